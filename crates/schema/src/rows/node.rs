//! Nodes of the cluster.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;
use crate::level::Level;

/// What the cluster decided about a node. Decided here, by a transaction, and nowhere else (R12); whether it answers is
/// another question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// It counts.
    Up,
    /// It announced that it stops: nothing new goes there, and nobody worries.
    Leaving,
    /// Declared gone: what it alone held is protected elsewhere, and its session is over.
    Down,
}

/// What a person decided about a node. It outlives restarts and losses of the node. (D44)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Duty {
    /// It takes chunks.
    #[default]
    Full,
    /// It takes no new chunks; still read from.
    Quarantined,
    /// The same, and what is not in the lake is brought to other nodes.
    Evacuating,
}

/// The level since which there may be witnesses: a release from before would send them chunks.
pub const WITNESSES_SINCE: Level = Level(5);

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRow {
    /// For people.
    pub name: String,
    /// Where peers reach it, one for each rail.
    pub addresses: Vec<String>,
    /// Where its pings go.
    pub gossip: Vec<String>,
    /// The cell that it belongs to; nodes without a name are one cell.
    pub cell: String,
    /// Switch that it hangs on.
    pub tor: String,
    /// Power feed.
    pub power: String,
    /// Share of the chunks that it takes, relative to others. 0 is that of a witness, which keeps names and no bytes; since [`WITNESSES_SINCE`].
    pub weight: u32,
    /// What was decided.
    pub state: NodeState,
    /// Since when, milliseconds since 1970 by the catalog's clock.
    pub since_ms: u64,
    /// What a person decided.
    pub duty: Duty,
}

/// The fields of version 2, with an address that nothing ever set.
#[derive(Serialize, Deserialize)]
struct Former {
    name: String,
    addresses: Vec<String>,
    gossip: Vec<String>,
    s3: Option<String>,
    cell: String,
    tor: String,
    power: String,
    weight: u32,
    state: NodeState,
    since_ms: u64,
    duty: Duty,
}

impl RowValue for NodeRow {
    const VERSION: u8 = 3;
    const SINCE: Level = Level(2);
    const TABLE: &'static str = "nodes";

    fn former(body: &[u8]) -> Option<postcard::Result<NodeRow>> {
        let read = postcard::from_bytes::<Former>(body).map(|former| {
            let Former { name, addresses, gossip, s3: _, cell, tor, power, weight, state, since_ms, duty } =
                former;
            NodeRow { name, addresses, gossip, cell, tor, power, weight, state, since_ms, duty }
        });
        Some(read)
    }

    fn encode_former(&self, head: Vec<u8>) -> Vec<u8> {
        let NodeRow { name, addresses, gossip, cell, tor, power, weight, state, since_ms, duty } =
            self.clone();
        let former =
            Former { name, addresses, gossip, s3: None, cell, tor, power, weight, state, since_ms, duty };
        postcard::to_extend(&former, head).expect("plain data encodes")
    }
}

/// A node that no other one has reached yet at the addresses of its row. Without such a row it was reached. A row of its own and not
/// a field, so that releases which do not know it read the rest. (D90)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnreachedRow {
    /// When it announced these addresses, milliseconds since 1970 by the catalog's clock.
    pub since_ms: u64,
    /// The last try of another node, if one failed.
    pub failed: Option<FailedDial>,
}

/// A node could not reach another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedDial {
    /// The node that tried.
    pub by: [u8; 16],
    /// What it met.
    pub why: String,
}

impl RowValue for UnreachedRow {
    const TABLE: &'static str = "unreached nodes";
}

/// A node that is to be removed for good once nothing is left on it. It does not count for the class of volumes any more. (D91)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemovingRow {
    /// Since when, milliseconds since 1970 by the catalog's clock.
    pub since_ms: u64,
    /// Whoever ordered it accepts that files are lost with it.
    pub accept_loss: bool,
}

impl RowValue for RemovingRow {
    const VERSION: u8 = 2;
    const TABLE: &'static str = "nodes to be removed";

    fn former(body: &[u8]) -> Option<postcard::Result<RemovingRow>> {
        Some(postcard::from_bytes(body).map(|since_ms| RemovingRow { since_ms, accept_loss: false }))
    }
}

/// A node that was removed for good. It stays known, so that it is refused should it start again. (D91)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemovedRow {
    /// What it was called.
    pub name: String,
    /// When, milliseconds since 1970 by the catalog's clock.
    pub at_ms: u64,
    /// Files that were lost with it.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
}

impl RowValue for RemovedRow {
    const TABLE: &'static str = "removed nodes";
}

/// A claim on repairing what a lost node held, so that two survivors do not do the same work (R12).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RepairRow {
    /// Who does it.
    pub node: [u8; 16],
    /// Session of that node; a claim of a session that is over counts no more.
    pub session: [u8; 16],
}

impl RowValue for RepairRow {
    const TABLE: &'static str = "repairs";
}

/// The catalog came out of a backup. A node that saw a commit between the two numbers knows of changes that the backup
/// does not have, and must not go on as if they had never been (R9).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RestoredRow {
    /// The last commit of the backup.
    pub from_seq: u64,
    /// Commits of the restored catalog are above this.
    pub base_seq: u64,
    /// When it was restored, milliseconds since 1970.
    pub at_ms: u64,
}

impl RowValue for RestoredRow {
    const TABLE: &'static str = "restored";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_written_in_the_form_of_the_level_and_read_in_both() {
        let row = NodeRow {
            name: "n0".into(),
            addresses: vec!["10.0.0.5:9002".into()],
            gossip: Vec::new(),
            cell: "c".into(),
            tor: String::new(),
            power: "p".into(),
            weight: 7,
            state: NodeState::Leaving,
            since_ms: 9,
            duty: Duty::Evacuating,
        };
        for (level, version) in [(Level(1), 2), (Level(2), 3), (Level(3), 3)] {
            let bytes = row.encode_at(level);
            assert_eq!(bytes[0], version, "{level}");
            assert_eq!(NodeRow::decode(&bytes).unwrap(), row, "{level}");
        }
    }
}
