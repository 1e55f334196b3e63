//! The NFS door of a daemon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stoker_gateway_nfs::{NfsGateway, NfsOptions};
use stoker_store::{Counter, Store};

use super::cannot_listen;
use super::plan::NfsPlan;
use crate::failure::Failure;
use crate::{clock, out};

/// The share of the node's memory that what clients wrote and did not commit may take, of one volume.
const BUFFER_SHARE: u64 = 16;
/// The share for requests, and for answers.
const TRANSFER_SHARE: u64 = 32;
const MEMORY_MAX: u64 = 256 << 20;

/// The gateway and where it is reached.
pub struct NfsDoor {
    gateway: NfsGateway,
}

impl NfsDoor {
    /// Listens and serves; none if it has no address.
    pub fn start(
        store: &Arc<dyn Store>,
        plan: &NfsPlan,
        node: &str,
        memory_bytes: u64,
    ) -> Result<Option<NfsDoor>, Failure> {
        if plan.listen.is_empty() {
            return Ok(None);
        }
        let share = |part: u64| (memory_bytes / part).min(MEMORY_MAX) as usize;
        let mut options = NfsOptions::new(plan.listen.clone(), format!("nfs-{node}"), clock::unix_ns);
        options.exports = plan.exports.clone();
        options.buffer_bytes_max = share(BUFFER_SHARE);
        options.bytes_in_max = share(TRANSFER_SHARE);
        options.bytes_out_max = share(TRANSFER_SHARE);
        let gateway =
            NfsGateway::start(Arc::clone(store), options).map_err(|error| cannot_listen("nfs", &error))?;
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

/// The command that mounts a volume from an address.
pub fn mount_command(address: SocketAddr, volume: &str) -> String {
    let address = super::s3::reachable(address);
    let (host, port) = match address {
        SocketAddr::V4(at) => (at.ip().to_string(), at.port()),
        SocketAddr::V6(at) => (format!("[{}]", at.ip()), at.port()),
    };
    format!("mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolock {host}:/{volume} DIRECTORY")
}
