//! The map of a cell: its nodes, where they stand and how they are, as one row of the catalog.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use stoker_format::NodeId;

use super::candidates::{Candidate, Candidates};

/// The nodes of a cell at one moment. A higher epoch is newer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Raised with every change.
    pub epoch: u64,
    /// In any order.
    pub nodes: Vec<Member>,
}

impl Map {
    /// The nodes that may be chosen, ready for placing.
    pub fn candidates(&self, purpose: Purpose) -> Candidates {
        let chosen = self.nodes.iter().filter(|member| purpose.allows(member.state));
        Candidates::new(chosen.map(|member| Candidate {
            node: member.node,
            weight: member.weight,
            domain: member.domain.clone(),
        }))
    }
}

/// A node, as the map knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which node.
    #[serde(with = "node_bytes")]
    pub node: NodeId,
    /// What people call it.
    pub name: String,
    /// Where other nodes reach it; several are used side by side.
    pub addresses: Vec<SocketAddr>,
    /// Its share of the chunks, relative to the others. 0 takes none.
    pub weight: u32,
    /// What it fails together with.
    pub domain: Domain,
    /// How it is.
    pub state: State,
}

/// Labels of the things that fail as a whole. A node without a label may share that thing with anyone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The switch on top of its rack.
    pub tor: Option<String>,
    /// Its power feed.
    pub power: Option<String>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Takes writes and reads.
    Up,
    /// Missed pings; nothing moves yet.
    Suspect,
    /// Said that it will stop.
    Leaving,
    /// Declared gone by a catalog transaction.
    Down,
    /// Taken out of placement by an operator, still readable.
    Quarantined,
}

/// What candidates are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// New copies: only nodes that are up.
    Write,
    /// Copies that exist: every node that may still answer.
    Read,
}

impl Purpose {
    fn allows(self, state: State) -> bool {
        match self {
            Purpose::Write => state == State::Up,
            Purpose::Read => state != State::Down,
        }
    }
}

/// What copies must not share. Each includes the ones before it only if the labels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Spread {
    /// Two nodes; always demanded.
    Node,
    /// Two racks.
    Tor,
    /// Two power feeds.
    Power,
}

mod node_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use stoker_format::NodeId;

    pub(super) fn serialize<S: Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
        node.0.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
        Deserialize::deserialize(deserializer).map(NodeId)
    }
}
