//! What peers reach: the node, its catalog, and the desk where new nodes are admitted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use stoker_catalog::remote::CatalogServer;
use stoker_cell::transport::{
    Authority, BoxFuture, Fault, HEAD_LEN_MAX, Issued, Issuer, JoinService, Message, Peer, PublicKey, Service,
};
use stoker_format::NodeId;

use super::keys::{CatalogPlace, ClusterKeys};
use super::wire::{KIND_CATALOG, KIND_CATALOG_LARGE, KIND_NODE, TOO_LARGE, catalog_bytes, catalog_message};
use crate::cell::Body;
use crate::clock;
use crate::node::Node;

/// Codes of faults.
const STARTING: u16 = 1;
const UNKNOWN: u16 = 2;

struct Open {
    node: Arc<Node>,
    catalog: Option<Arc<CatalogServer>>,
}

/// Leads requests of peers to what they ask for, as soon as that runs.
#[derive(Default)]
pub(super) struct Doorway(Arc<OnceLock<Open>>);

impl Doorway {
    pub fn open(&self, node: Arc<Node>, catalog: Option<Arc<CatalogServer>>) {
        let _ = self.0.set(Open { node, catalog });
    }
}

impl Service for Doorway {
    fn serve(&self, from: Peer, request: Message) -> BoxFuture<'static, Result<Message, Fault>> {
        let doorway = self.0.clone();
        Box::pin(async move {
            let Some(open) = doorway.get() else { return Err(Fault::new(STARTING, "this node is starting")) };
            match request.kind {
                KIND_NODE => {
                    let body = match request.body {
                        stoker_cell::transport::Body::None => Body::None,
                        body => Body::Aligned(body.into_buf()),
                    };
                    let (head, body) = open.node.serve_peer(from.node, &request.head, body).await;
                    let answer = Message::new(KIND_NODE, head);
                    Ok(match body {
                        Body::None => answer,
                        Body::Shared(bytes) => {
                            answer.with_body(stoker_cell::transport::Body::Shared(vec![bytes]))
                        }
                        Body::Aligned(buf) => answer.with_body(stoker_cell::transport::Body::Buf(buf)),
                    })
                }
                KIND_CATALOG | KIND_CATALOG_LARGE => {
                    let Some(catalog) = &open.catalog else {
                        return Err(Fault::new(UNKNOWN, "this node keeps no catalog"));
                    };
                    let is_small = request.kind == KIND_CATALOG;
                    let answer = catalog.answer(catalog_bytes(request)).await;
                    match is_small && answer.len() > HEAD_LEN_MAX {
                        true => Err(Fault::new(TOO_LARGE, "a large answer needs room")),
                        false => Ok(catalog_message(KIND_CATALOG, answer.into())),
                    }
                }
                other => Err(Fault::new(UNKNOWN, format!("requests of kind {other} are not known here"))),
            }
        })
    }
}

/// Signs certificates with the cluster's own key.
pub(super) struct Renewals(pub Authority);

impl Issuer for Renewals {
    fn issue(&self, node: NodeId, key: PublicKey) -> BoxFuture<'_, Result<Issued, String>> {
        let issued = self.0.issue(node, &key, clock::now_ms() / 1_000);
        Box::pin(async move { issued.map_err(|fault| fault.to_string()) })
    }
}

/// Admits nodes that have the token.
pub(super) struct Desk {
    keys: Mutex<ClusterKeys>,
    node: OnceLock<Arc<Node>>,
}

impl Desk {
    pub fn new(keys: ClusterKeys) -> Desk {
        Desk { keys: Mutex::new(keys), node: OnceLock::new() }
    }

    /// What new nodes are told of this one.
    pub fn set_members(&self, node: &Arc<Node>, id: NodeId, addresses: Vec<String>, gossip: &[SocketAddr]) {
        let mut keys = self.keys.lock().unwrap();
        if keys.catalog == CatalogPlace::Here {
            keys.catalog = CatalogPlace::With { node: id.0, addresses };
        }
        let own = gossip.iter().map(SocketAddr::to_string);
        let others = keys.seeds.clone();
        keys.seeds = own.chain(others).collect();
        let _ = self.node.set(node.clone());
    }
}

impl JoinService for Desk {
    fn secrets(&self) -> Vec<[u8; 16]> {
        vec![self.keys.lock().unwrap().token_secret]
    }

    fn admit(&self, id: NodeId, _: Bytes) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            let Some(node) = self.node.get() else { return Err("this node is starting; try again".into()) };
            if node.knows(id) {
                return Err(format!("the cluster has a node {id} already"));
            }
            Ok(self.keys.lock().unwrap().encode().into())
        })
    }
}
