//! What a transport is told at its start.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stoker_buffer::Pool;
use stoker_format::{ClusterId, NodeId};

use super::credentials::Credentials;
use super::join::JoinDesk;

/// Settings and parts of a transport.
#[derive(Clone)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// This node's session; later ones are larger.
    pub session: u64,
    /// How nodes prove themselves, and whether bytes are encrypted.
    pub security: Security,
    /// Memory for bodies that arrive; when it is used up, peers wait.
    pub pool: Arc<Pool>,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Local addresses to dial from: the first rail of a peer from the first of its family, and so on, round and round.
    /// Empty: the system chooses.
    pub bind: Vec<IpAddr>,
    /// Where nodes without a certificate are admitted; none: nowhere.
    pub join: Option<JoinDesk>,
    /// Connections for bulk bytes to each address of a peer; there is one more for small requests.
    pub bulk_connections: usize,
    /// Requests that are served at once for one connection.
    pub requests_max: u32,
    /// Bytes of bodies, in requests or expected in answers, that may be under way on one connection.
    pub window_bytes: u32,
    /// Connections that are accepted, from all peers together.
    pub connections_max: usize,
    /// How often both sides of a connection ping; three without a sound end it.
    pub ping_interval: Duration,
    /// How long making a connection may take, with TLS and hello.
    pub dial_timeout: Duration,
    /// The longest pause between two tries to reach an address.
    pub redial_pause_max: Duration,
}

/// How nodes prove themselves.
#[derive(Clone)]
pub enum Security {
    /// By certificates of the cluster's authority; everything is encrypted.
    Tls(Arc<Credentials>),
    /// By the cluster's secret; nothing is encrypted or signed. For networks that nobody else is on.
    Plaintext {
        /// The secret; at least 16 random bytes.
        secret: Vec<u8>,
    },
}

impl Config {
    /// The usual settings; listens nowhere yet.
    pub fn new(
        cluster: ClusterId,
        node: NodeId,
        session: u64,
        security: Security,
        pool: Arc<Pool>,
    ) -> Config {
        Config {
            cluster,
            node,
            session,
            security,
            pool,
            listen: Vec::new(),
            bind: Vec::new(),
            join: None,
            bulk_connections: 2,
            requests_max: 256,
            window_bytes: 32 << 20,
            connections_max: 4096,
            ping_interval: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(3),
            redial_pause_max: Duration::from_secs(5),
        }
    }
}
