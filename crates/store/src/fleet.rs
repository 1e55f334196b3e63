//! What operators see of nodes and drives, and what would be lost with them.

use serde::{Deserialize, Serialize};

/// A node of the cluster, with what it holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// Cell; nodes without a name are one cell.
    pub cell: String,
    /// Switch.
    pub tor: String,
    /// Power feed.
    pub power: String,
    /// `up`, `leaving`, `down`, `quarantined` or `evacuating`.
    pub state: String,
    /// Since when it is in this state, milliseconds since 1970.
    pub since_ms: u64,
    /// Since when it does not answer the node that was asked, milliseconds since 1970.
    pub silent_since_ms: Option<u64>,
    /// Drives whose acknowledgements count.
    pub drives: u32,
    /// Drives that failed or were taken out, and left something to do.
    pub drives_gone: u32,
    /// Files with copies there that are not in the lake.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
    /// How long it takes to answer, microseconds; 0 for the node that was asked.
    pub latency_us: u64,
}

/// A node that others cannot reach. It holds nothing, and no write waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unreachable {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// Where it says that it is.
    pub addresses: Vec<String>,
    /// Name of the node that tried.
    pub by: String,
    /// What that one met.
    pub why: String,
    /// Since when it says so, milliseconds since 1970.
    pub since_ms: u64,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unreachable { name, by, why, .. } = self;
        let at = self.addresses.join(", ");
        write!(
            f,
            "{name} cannot be reached at {at} by {by} ({why}): it holds nothing and does not count; start it with `--peers` at \
             an address that the others reach, or open that port"
        )
    }
}

/// How far the removal of a node is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removal {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// `waiting` (it is silent and not declared down yet), `evacuating`, `protecting` (others make up for what a lost node held),
    /// `loss` (what is left is lost with it, and nobody has accepted that), or `removed`.
    pub step: String,
    /// Files, and parts of unfinished uploads, that are not in the lake and still count as being there.
    pub files_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
    /// Files and parts of which no other copy can be read: they are lost with it.
    pub lost: Vec<LostFile>,
    /// How many there are; the list names some of them.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// What it waits for, if it does.
    pub trouble: Option<String>,
}

/// How far the evacuation of a node is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evacuation {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// What the cluster decided about it, as in [`NodeInfo`].
    pub state: String,
    /// Files, and parts of unfinished uploads, that are not in the lake and still have a copy there.
    pub files_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
    /// Of these, files of which no other node has a copy.
    pub files_only_there: u64,
    /// Their bytes.
    pub bytes_only_there: u64,
    /// Parts of unfinished uploads that no other node has.
    pub parts_only_there: u64,
    /// Why the last try to move something failed, if it did.
    pub trouble: Option<String>,
    /// It holds nothing that is only there, and nothing that counts as a copy.
    pub done: bool,
}

/// What would be lost with a node or a cell.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Risk {
    /// Node id; empty for a cell.
    pub node: String,
    /// Name of the node or of the cell.
    pub name: String,
    /// Cell.
    pub cell: String,
    /// What the cluster decided about the node; empty for a cell.
    pub state: String,
    /// Files with copies there that are not in the lake.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
    /// Age of the oldest of them in milliseconds; 0 if there is none.
    pub oldest_age_ms: u64,
    /// Of these, files with one copy that can be read now.
    pub one_copy_files: u64,
    /// Their bytes.
    pub one_copy_bytes: u64,
    /// Files that nobody could read any more.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Files whose chunks are spread over so many nodes that some of them may be lost.
    pub doubtful_files: u64,
    /// Their bytes.
    pub doubtful_bytes: u64,
    /// Parts of unfinished uploads that would be lost.
    pub lost_parts: u64,
}

/// What would be lost, and what is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RiskReport {
    /// By node.
    pub nodes: Vec<Risk>,
    /// By cell.
    pub cells: Vec<Risk>,
    /// Files that no node can be read from now: their copies are on nodes or drives that are gone or silent.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// There was more than is looked at: every number is at least that.
    pub at_least: bool,
}

/// A file that is not in the lake and of which no copy can be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostFile {
    /// Volume.
    pub volume: String,
    /// Key; empty for a shard of a set that was never published.
    pub key: Vec<u8>,
    /// Version.
    pub version: String,
    /// Length.
    pub bytes: u64,
    /// When it was written, milliseconds since 1970.
    pub since_ms: u64,
    /// Whether all copies are out of reach, or only some of its chunks may be.
    pub whole: bool,
    /// Nodes that have the copies, by name.
    pub nodes: Vec<String>,
    /// One of these nodes may come back: it is silent, stopped or down, and its drives were not given up.
    pub may_return: bool,
}

/// A drive of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriveInfo {
    /// Id of the drive.
    pub drive: String,
    /// Node that has it.
    pub node: String,
    /// Name of that node.
    pub name: String,
    /// Where it is on that node; empty if the node did not answer.
    pub path: String,
    /// `live`, `leaving`, `failed` or `gone`; `unknown` if the node did not answer.
    pub state: String,
    /// Why, if it is not live.
    pub why: Option<String>,
    /// Raised whenever what it acknowledged before may be lost.
    pub incarnation: u64,
    /// Bytes of the ring.
    pub bytes: u64,
    /// Bytes that must stay.
    pub keep_bytes: u64,
    /// Bytes that may go.
    pub clean_bytes: u64,
    /// Files with chunks there that are not in the lake.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
}

/// How far the protection of what lost a copy is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rebuild {
    /// Files that have a copy on a node or drive that is gone, or that is being emptied.
    pub files_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
    /// Of these, files with one copy that can be read.
    pub one_copy_files: u64,
    /// Their bytes.
    pub one_copy_bytes: u64,
    /// Files that cannot be protected, because no copy can be read.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Files that were protected again since the start of the node that was asked.
    pub files_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
    /// Bytes per second lately, of all nodes that answer.
    pub bytes_per_s: u64,
    /// Bytes per second that each node may use for it.
    pub bytes_per_s_max: u64,
    /// Files that each node protects at the same time.
    pub workers: u32,
    /// When everything is protected at this rate, milliseconds from now; none if nothing moves.
    pub end_in_ms: Option<u64>,
    /// What is being made up for: names of nodes, and of drives with their node.
    pub losses: Vec<String>,
    /// Why the last try failed, if it did.
    pub trouble: Option<String>,
}

/// How well one node reaches another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FabricLeg {
    /// Id of the node that sent.
    pub from: String,
    /// Id of the node that received.
    pub to: String,
    /// Questions without bytes, one after the other.
    pub round_trips: u32,
    /// Half of them took no longer, microseconds.
    pub p50_us: u64,
    /// The longest, microseconds.
    pub max_us: u64,
    /// Bytes that were sent, several pieces at once.
    pub bytes: u64,
    /// How fast they went.
    pub bytes_per_s: u64,
}
