//! What peers reach: the node, its catalog, and the desk where new nodes are admitted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use stoker_fabric::transport::{
    Authority, BoxFuture, Fault, HEAD_LEN_MAX, Issued, Issuer, JoinService, Message, Peer, PublicKey,
    Service, TokenId, TokenKey,
};
use stoker_format::NodeId;
use stoker_store::StoreError;

use super::join::JoinPayload;
use super::keeper::Keeper;
use super::keys::ClusterKeys;
use super::wire::{
    KIND_CATALOG, KIND_CATALOG_LARGE, KIND_KEEPER, KIND_NODE, KIND_REPLICA, KIND_STANDBY, TOO_LARGE,
    catalog_bytes, catalog_message, with_shared,
};
use crate::cell::Body;
use crate::clock;
use crate::node::Node;

/// Codes of faults.
const STARTING: u16 = 1;
const UNKNOWN: u16 = 2;

#[derive(Default)]
struct Rooms {
    keeper: OnceLock<Arc<Keeper>>,
    node: OnceLock<Arc<Node>>,
}

/// Leads requests of peers to what they ask for, as soon as that runs: the catalog first, since nodes wait for it.
#[derive(Default)]
pub(super) struct Doorway(Arc<Rooms>);

impl Doorway {
    pub fn open_keeper(&self, keeper: Arc<Keeper>) {
        let _ = self.0.keeper.set(keeper);
    }

    pub fn open_node(&self, node: Arc<Node>) {
        let _ = self.0.node.set(node);
    }
}

fn starting() -> Fault {
    Fault::new(STARTING, "this node is starting")
}

impl Service for Doorway {
    fn serve(&self, from: Peer, request: Message) -> BoxFuture<'static, Result<Message, Fault>> {
        let rooms = self.0.clone();
        Box::pin(async move {
            let keeper = || rooms.keeper.get().ok_or_else(starting);
            match request.kind {
                KIND_NODE => {
                    let node = rooms.node.get().ok_or_else(starting)?;
                    let body = match request.body {
                        stoker_fabric::transport::Body::None => Body::None,
                        body => Body::Aligned(body.into_buf()),
                    };
                    let (head, body) = node.serve_peer(from.node, &request.head, body).await;
                    let answer = Message::new(KIND_NODE, head);
                    Ok(match body {
                        Body::None => answer,
                        Body::Shared(summed) => with_shared(answer, summed),
                        Body::Aligned(buf) => answer.with_body(stoker_fabric::transport::Body::Buf(buf)),
                    })
                }
                KIND_CATALOG | KIND_CATALOG_LARGE => {
                    let Some(catalog) = keeper()?.server() else {
                        return Err(Fault::new(UNKNOWN, "this node does not keep the catalog"));
                    };
                    let is_small = request.kind == KIND_CATALOG;
                    let answer = catalog.answer(catalog_bytes(request)).await;
                    match is_small && answer.len() > HEAD_LEN_MAX {
                        true => Err(Fault::new(TOO_LARGE, "a large answer needs room")),
                        false => Ok(catalog_message(KIND_CATALOG, answer.into())),
                    }
                }
                KIND_STANDBY => {
                    let keeper = keeper()?;
                    let Some(standby) = keeper.standby() else {
                        // Somebody wants to be followed by a node that serves: one of the two was replaced.
                        keeper.look_soon();
                        return Err(Fault::new(UNKNOWN, "this node follows no catalog"));
                    };
                    let answer = standby.answer(catalog_bytes(request)).await;
                    Ok(catalog_message(KIND_STANDBY, answer.into()))
                }
                KIND_REPLICA => {
                    let Some(replica) = keeper()?.replica() else {
                        return Err(Fault::new(UNKNOWN, "this node has no replica of the catalog"));
                    };
                    let answer = replica.answer(from.node, catalog_bytes(request)).await;
                    Ok(catalog_message(KIND_REPLICA, answer.into()))
                }
                KIND_KEEPER => {
                    let answer = keeper()?.answer(from.node, &request.head).await;
                    Ok(Message::new(KIND_KEEPER, answer))
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

/// Admits nodes that have a token.
pub(super) struct Desk {
    keys: Mutex<ClusterKeys>,
    keeper: OnceLock<Arc<Keeper>>,
    node: OnceLock<Arc<Node>>,
}

impl Desk {
    pub fn new(keys: ClusterKeys) -> Desk {
        Desk { keys: Mutex::new(keys), keeper: OnceLock::new(), node: OnceLock::new() }
    }

    fn started(&self) -> Result<&Arc<Node>, String> {
        self.node.get().ok_or_else(|| "this node is starting; try again".to_owned())
    }

    /// What new nodes are told of this one.
    pub fn set_members(&self, node: &Arc<Node>, keeper: Option<&Arc<Keeper>>, gossip: &[SocketAddr]) {
        let mut keys = self.keys.lock().unwrap();
        if let Some(keeper) = keeper {
            let _ = self.keeper.set(keeper.clone());
        }
        let own = gossip.iter().map(SocketAddr::to_string);
        let others = keys.seeds.clone();
        keys.seeds = own.chain(others).collect();
        let _ = self.node.set(node.clone());
    }
}

fn unanswered(fault: StoreError) -> String {
    format!("whether the token is valid is not known now ({}); try again", fault.message)
}

impl JoinService for Desk {
    fn key(&self, token: TokenId) -> BoxFuture<'_, Result<Option<TokenKey>, String>> {
        Box::pin(async move { self.started()?.join_token_key(token).await.map_err(unanswered) })
    }

    fn admit(&self, token: TokenId, id: NodeId, payload: Bytes) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            let node = self.started()?;
            if node.knows(id) {
                return Err(format!("the cluster has a node {id} already"));
            }
            if let Some(JoinPayload::Named { name }) = JoinPayload::decode(&payload) {
                // Who is in the cluster is nothing for those whose token is no good any more.
                node.join_token_check(token, id).await.map_err(unanswered)??;
                node.check_name_free(&name)?;
            }
            node.join_token_use(token, id).await.map_err(unanswered)??;
            let mut keys = self.keys.lock().unwrap().clone();
            if let Some(keeper) = self.keeper.get() {
                keys.catalog = keeper.place();
            }
            Ok(keys.encode().into())
        })
    }
}
