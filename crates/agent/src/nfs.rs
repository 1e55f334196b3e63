//! The NFS door of a daemon.

use std::net::SocketAddr;
use std::time::Duration;

use stoker_access::Guard;
use stoker_gateway_nfs::{HandleKey, NfsGateway, NfsOptions};
use stoker_node::Node;
use stoker_store::Counter;

use super::plan::NfsPlan;
use super::{cannot_listen, refused};
use crate::failure::Failure;
use crate::{clock, out};

/// The share of the node's memory that what clients wrote and did not commit may take, of one volume.
const BUFFER_SHARE: u64 = 16;
/// The share for requests, and for answers.
const TRANSFER_SHARE: u64 = 32;
const MEMORY_MAX: u64 = 256 << 20;

/// Where the catalog has the key of handles. No operator can add to a note of this name.
const KEY_NOTE: &str = "nfs.handles";
/// In front of the key.
const KEY_VERSION: u8 = 1;

/// The gateway and where it is reached.
pub struct NfsDoor {
    gateway: NfsGateway,
}

impl NfsDoor {
    /// Listens and serves; none if it has no address.
    pub async fn start(
        node: &Node,
        guard: &Guard,
        plan: &NfsPlan,
        name: &str,
        memory_bytes: u64,
    ) -> Result<Option<NfsDoor>, Failure> {
        if plan.listen.is_empty() {
            return Ok(None);
        }
        let share = |part: u64| (memory_bytes / part).min(MEMORY_MAX) as usize;
        let key = handle_key(node).await?;
        let mut options = NfsOptions::new(plan.listen.clone(), key, format!("nfs-{name}"), clock::unix_ns);
        options.exports = plan.exports.clone();
        options.buffer_bytes_max = share(BUFFER_SHARE);
        options.bytes_in_max = share(TRANSFER_SHARE);
        options.bytes_out_max = share(TRANSFER_SHARE);
        let gateway = NfsGateway::start(guard, options).map_err(|error| cannot_listen("nfs", &error))?;
        let is_open = |address: &&SocketAddr| !address.ip().is_loopback();
        if let Some(address) = gateway.addresses().iter().find(is_open) {
            out::say(format!(
                "nfs {address}: NFS believes every client on an allowed address, whoever it says it is, and is not \
                 encrypted; keep it on networks that you trust"
            ));
        }
        Ok(Some(NfsDoor { gateway }))
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.gateway.addresses().to_vec()
    }

    /// Its numbers.
    pub fn counters(&self) -> Vec<Counter> {
        self.gateway.counters()
    }

    /// Takes no more requests, finishes what is under way for at most this long, and publishes what waits.
    pub async fn stop(&self, grace: Duration) {
        self.gateway.stop(grace).await;
    }
}

/// The key of handles: made by the first node that shows volumes, and the same for all of them from then on.
async fn handle_key(node: &Node) -> Result<HandleKey, Failure> {
    loop {
        if let Some(note) = node.note(KEY_NOTE).await.map_err(refused)? {
            return match note.head.split_first() {
                Some((&KEY_VERSION, key)) if key.len() == 32 => {
                    let mut secret = [0; 32];
                    secret.copy_from_slice(key);
                    Ok(HandleKey::new(&secret))
                }
                _ => {
                    Err(Failure::new("the key of NFS handles in the catalog was written by a newer release")
                        .hint("upgrade this node, or start it without NFS"))
                }
            };
        }
        let mut head = [0; 33];
        head[0] = KEY_VERSION;
        aws_lc_rs::rand::fill(&mut head[1..])
            .map_err(|_| Failure::new("the system gives no random bytes"))?;
        // Another node may be quicker: then its key counts.
        node.write_note(KEY_NOTE, None, &head, None).await.map_err(refused)?;
    }
}

/// The command that mounts a volume from an address.
pub fn mount_command(address: SocketAddr, volume: &str) -> String {
    let address = super::s3::reachable(address);
    let (host, port) = match address {
        SocketAddr::V4(at) => (at.ip().to_string(), at.port()),
        SocketAddr::V6(at) => (format!("[{}]", at.ip()), at.port()),
    };
    format!("mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolock {host}:/{volume} DIRECTORY")
}
