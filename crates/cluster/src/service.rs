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

use crate::catalog_host::CatalogHost;
use crate::clock;
use crate::join::JoinPayload;
use crate::keys::ClusterKeys;
use crate::members::Members;
use crate::ways::{
    KIND_CATALOG, KIND_CATALOG_HOST, KIND_CATALOG_LARGE, KIND_NODE, KIND_REPLICA, KIND_STANDBY, TOO_LARGE,
    catalog_bytes, catalog_message, with_shared,
};
use crate::wire::Body;

/// Codes of faults.
const STARTING: u16 = 1;
const UNKNOWN: u16 = 2;

/// What a node answers to others, in the language that nodes speak.
pub trait PeerService: Send + Sync + 'static {
    /// Answers a request of a peer.
    fn serve<'a>(
        &'a self,
        from: NodeId,
        head: &'a [u8],
        body: Body,
    ) -> stoker_store::BoxFuture<'a, (Vec<u8>, Body)>;
}

#[derive(Default)]
struct Rooms {
    host: OnceLock<Arc<CatalogHost>>,
    node: OnceLock<Arc<dyn PeerService>>,
}

/// Leads requests of peers to what they ask for, as soon as that runs: the catalog first, since nodes wait for it.
#[derive(Default)]
pub struct Doorway(Arc<Rooms>);

impl Doorway {
    /// From now on requests about the catalog are answered.
    pub fn open_host(&self, host: Arc<CatalogHost>) {
        let _ = self.0.host.set(host);
    }

    /// From now on requests to the node are answered.
    pub fn open_node(&self, node: Arc<dyn PeerService>) {
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
            let host = || rooms.host.get().ok_or_else(starting);
            match request.kind {
                KIND_NODE => {
                    let node = rooms.node.get().ok_or_else(starting)?;
                    let body = match request.body {
                        stoker_fabric::transport::Body::None => Body::None,
                        body => Body::Aligned(body.into_buf()),
                    };
                    let (head, body) = node.serve(from.node, &request.head, body).await;
                    let answer = Message::new(KIND_NODE, head);
                    Ok(match body {
                        Body::None => answer,
                        Body::Shared(summed) => with_shared(answer, summed),
                        Body::Aligned(buf) => answer.with_body(stoker_fabric::transport::Body::Buf(buf)),
                    })
                }
                KIND_CATALOG | KIND_CATALOG_LARGE => {
                    let Some(catalog) = host()?.server() else {
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
                    let host = host()?;
                    let Some(standby) = host.standby() else {
                        // Somebody wants to be followed by a node that serves: one of the two was replaced.
                        host.probe_soon();
                        return Err(Fault::new(UNKNOWN, "this node follows no catalog"));
                    };
                    let answer = standby.answer(catalog_bytes(request)).await;
                    Ok(catalog_message(KIND_STANDBY, answer.into()))
                }
                KIND_REPLICA => {
                    let Some(replica) = host()?.replica() else {
                        return Err(Fault::new(UNKNOWN, "this node has no replica of the catalog"));
                    };
                    let answer = replica.answer(from.node, catalog_bytes(request)).await;
                    Ok(catalog_message(KIND_REPLICA, answer.into()))
                }
                KIND_CATALOG_HOST => {
                    let answer = host()?.answer(from.node, &request.head).await;
                    Ok(Message::new(KIND_CATALOG_HOST, answer))
                }
                other => Err(Fault::new(UNKNOWN, format!("requests of kind {other} are not known here"))),
            }
        })
    }
}

/// Signs certificates with the cluster's own key.
pub struct Renewals(pub Authority);

impl Issuer for Renewals {
    fn issue(&self, node: NodeId, key: PublicKey) -> BoxFuture<'_, Result<Issued, String>> {
        let issued = self.0.issue(node, &key, clock::now_ms() / 1_000);
        Box::pin(async move { issued.map_err(|fault| fault.to_string()) })
    }
}

/// Admits nodes that have a token.
pub struct Desk {
    keys: Mutex<ClusterKeys>,
    host: OnceLock<Arc<CatalogHost>>,
    members: OnceLock<Arc<Members>>,
}

impl Desk {
    /// Admits nobody before it knows the members.
    pub fn new(keys: ClusterKeys) -> Desk {
        Desk { keys: Mutex::new(keys), host: OnceLock::new(), members: OnceLock::new() }
    }

    fn started(&self) -> Result<&Arc<Members>, String> {
        self.members.get().ok_or_else(|| "this node is starting; try again".to_owned())
    }

    /// What new nodes are told of this one.
    pub fn set_members(
        &self,
        members: &Arc<Members>,
        host: Option<&Arc<CatalogHost>>,
        gossip: &[SocketAddr],
    ) {
        let mut keys = self.keys.lock().unwrap();
        if let Some(host) = host {
            let _ = self.host.set(host.clone());
        }
        let own = gossip.iter().map(SocketAddr::to_string);
        let others = keys.seeds.clone();
        keys.seeds = own.chain(others).collect();
        let _ = self.members.set(members.clone());
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
            let members = self.started()?;
            if members.knows(id) {
                return Err(format!("the cluster has a node {id} already"));
            }
            if let Some(JoinPayload::Named { name }) = JoinPayload::decode(&payload) {
                // Who is in the cluster is nothing for those whose token is no good any more.
                members.join_token_check(token, id).await.map_err(unanswered)??;
                members.check_name_free(&name)?;
            }
            members.join_token_use(token, id).await.map_err(unanswered)??;
            let mut keys = self.keys.lock().unwrap().clone();
            if let Some(host) = self.host.get() {
                keys.catalog = host.place();
            }
            Ok(keys.encode().into())
        })
    }
}
