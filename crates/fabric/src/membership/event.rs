//! What the caller learns.

use std::net::SocketAddr;

use stoker_format::NodeId;

use super::identity::Identity;

/// Something changed. Of several events of one node the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node is there, or is there again after a restart: its boot is new.
    Joined(Peer),
    /// It missed its pings. Nothing moves yet.
    Suspect(NodeId),
    /// A suspect or gone node answers again, in the same boot.
    Alive(NodeId),
    /// It was suspect for the whole grace period. A proposal: only the catalog declares a node down.
    Gone(NodeId),
    /// It announced that it leaves.
    Left(NodeId),
    /// Two processes are live with one node id. The newer boot stays. If it is our own id and the older boot is ours,
    /// nothing more comes from here, and this process must stop.
    Duplicate {
        /// The id that both use.
        node: NodeId,
        /// The boot that must stop.
        older: u64,
        /// The boot that stays.
        newer: u64,
        /// Where the other one is, as seen from here.
        address: SocketAddr,
    },
}

impl Event {
    /// The node that it is about.
    pub fn node(&self) -> NodeId {
        match self {
            Event::Joined(peer) => peer.node,
            Event::Suspect(node) | Event::Alive(node) | Event::Gone(node) | Event::Left(node) => *node,
            Event::Duplicate { node, .. } => *node,
        }
    }
}

/// Another node, in one of its boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which node.
    pub node: NodeId,
    /// Which of its boots.
    pub boot: u64,
    /// Where its membership listens.
    pub addresses: Vec<SocketAddr>,
    /// What it says of itself.
    pub meta: Vec<u8>,
}

impl From<&Identity> for Peer {
    fn from(identity: &Identity) -> Peer {
        Peer {
            node: identity.node,
            boot: identity.boot,
            addresses: identity.profile.addresses.clone(),
            meta: identity.profile.meta.clone(),
        }
    }
}
