//! One real node for all tests, each with a volume of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use stoker_access::Guard;
use stoker_gateway_s3::{Gateway, GatewayOptions};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{Access, AccessKey, DrainPolicy, Store, VolumeOptions, VolumePolicy};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::Client;

pub const ACCESS_KEY: &str = "AKIATEST/1";
pub const SECRET_KEY: &str = "secret/of+the=test";

/// A node and a gateway, alive as long as the tests.
pub struct Rig {
    pub runtime: Runtime,
    pub node: Arc<Node>,
    pub gateway: Gateway,
    _dir: TempDir,
}

static RIG: OnceLock<Rig> = OnceLock::new();
static VOLUMES: AtomicUsize = AtomicUsize::new(0);

impl Rig {
    pub fn get() -> &'static Rig {
        RIG.get_or_init(|| {
            let dir = TempDir::new().unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let node = runtime.block_on(async {
                let mut options = NodeOptions::new(dir.path().join("node"));
                let path = dir.path().join("ring");
                options.drives = vec![DriveOptions { path, size_bytes: Some(512 << 20) }];
                options.memory_bytes = 512 << 20;
                options.volume_defaults =
                    VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
                let node = Node::open(options).await.unwrap();
                let access = Access { uid: 1000, gid: 100, ..Access::default() };
                node.access_key_put(access_key(ACCESS_KEY, SECRET_KEY, access)).await.unwrap();
                node
            });
            let options = GatewayOptions { domains: vec!["s3.test".to_owned()], ..GatewayOptions::default() };
            let gateway = Gateway::start(guard_of(&node), options).unwrap();
            Rig { runtime, node, gateway, _dir: dir }
        })
    }

    /// Another gateway in front of the same node.
    pub fn other_gateway(&self, options: GatewayOptions) -> Gateway {
        Gateway::start(guard_of(&self.node), options).unwrap()
    }

    /// Another guard of the same cluster, as another node has one.
    pub fn guard(&self) -> Guard {
        guard_of(&self.node)
    }

    /// Adds an access key.
    pub fn add_key(&self, name: &str, access: Access) -> Client {
        self.runtime.block_on(self.node.access_key_put(access_key(name, SECRET_KEY, access))).unwrap();
        Client { access_key: name.to_owned(), ..client() }
    }
}

fn guard_of(node: &Arc<Node>) -> Guard {
    let guard = Guard::new(node.clone());
    guard.seal_sessions_with(&[7; 32]);
    guard
}

pub fn access_key(name: &str, secret: &str, access: Access) -> AccessKey {
    AccessKey { access_key: name.to_owned(), secret_key: secret.to_owned(), access, created_ms: 1 }
}

/// A client with the key that may do everything.
pub fn client() -> Client {
    Client::new(Rig::get().gateway.addresses()[0], ACCESS_KEY, SECRET_KEY)
}

/// A fresh volume.
pub fn volume() -> String {
    let rig = Rig::get();
    let name = format!("vol-{}", VOLUMES.fetch_add(1, Ordering::Relaxed));
    rig.runtime.block_on(rig.node.volume_create(&name, VolumeOptions::default())).unwrap();
    name
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
