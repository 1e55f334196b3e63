//! What operators ask for: keys, conflicts, status.

use serde::{Deserialize, Serialize};

use crate::file::FileInfo;
use crate::receipt::Receipt;

/// What an access key may do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// May not change anything.
    pub read_only: bool,
    /// Only these, as `volume` or `volume/prefix`; empty for everything.
    pub prefixes: Vec<String>,
    /// User that its files belong to.
    pub uid: u32,
    /// Group that its files belong to.
    pub gid: u32,
}

/// An access key for S3.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccessKey {
    /// Public part.
    pub access_key: String,
    /// Secret part.
    pub secret_key: String,
    /// What it may do.
    pub access: Access,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
}

/// A version that was not drained because the lake changed under it, or refuses it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Conflict {
    /// Volume.
    pub volume: String,
    /// Our version.
    pub file: FileInfo,
    /// What we expected in the lake: an etag, or none for nothing.
    pub lake_etag_expected: Option<String>,
    /// What is there.
    pub lake_etag_found: Option<String>,
    /// When it was found, milliseconds since 1970.
    pub since_ms: u64,
    /// Why the lake refuses our version; none if it holds something else.
    pub refused: Option<String>,
}

/// How a conflict ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Resolution {
    /// Our version replaces the lake's.
    Ours,
    /// The lake's version replaces ours.
    Theirs,
    /// The lake's stays; ours moves to another key.
    KeepBoth,
}

/// Where a file is, in words and numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The file.
    pub file: FileInfo,
    /// Its receipt now.
    pub receipt: Receipt,
    /// Chunks, and how many of them lie on a drive of this node.
    pub chunks: u64,
    /// Chunks that lie on a drive here.
    pub chunks_local: u64,
    /// Chunks that lie in memory here.
    pub chunks_cached: u64,
    /// By drive.
    pub holders: Vec<HolderInfo>,
    /// What happens next, and why.
    pub words: Vec<String>,
}

/// Chunks of a file on one drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HolderInfo {
    /// Drive, as a path.
    pub drive: String,
    /// Chunks there.
    pub chunks: u64,
    /// Bytes there.
    pub bytes: u64,
}

/// One ring of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingStatus {
    /// Where the drive is.
    pub path: String,
    /// Id of the drive.
    pub drive: String,
    /// Bytes of the ring.
    pub bytes: u64,
    /// Bytes that must stay.
    pub keep_bytes: u64,
    /// Bytes that may go.
    pub clean_bytes: u64,
    /// Records.
    pub records: u64,
    /// Why it takes no more writes, if so.
    pub poisoned: Option<String>,
    /// What does the I/O.
    pub io: String,
}

/// A node of the cluster as another one sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// What the cluster decided: `up`, `leaving`, `down` or `quarantined`.
    pub state: String,
    /// It misses pings, as seen from the node that was asked.
    pub suspect: bool,
    /// Where peers reach it.
    pub addresses: Vec<String>,
    /// Cell; nodes without a name are one cell.
    #[serde(default)]
    pub cell: String,
    /// Switch.
    pub tor: String,
    /// Power feed.
    pub power: String,
    /// How long it takes to answer, microseconds; 0 for the node that was asked.
    pub latency_us: u64,
}

/// Where reads go: a drive of the node, a peer, or a lake, with the times by which it is chosen. None: not seen lately.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `drive`, `peer`, `turn` (a peer that gets what it does not have out of the lake) or `lake`.
    pub kind: String,
    /// Path of the drive, name of the node, name of the volume.
    pub name: String,
    /// Reads that it answered.
    pub reads: u64,
    /// Reads that it should have answered and could not.
    pub failures: u64,
    /// Mean of small reads, microseconds.
    pub small_mean_us: Option<u64>,
    /// Nineteen of twenty small reads took no longer.
    pub small_p95_us: Option<u64>,
    /// Mean of large reads, microseconds.
    pub large_mean_us: Option<u64>,
    /// Nineteen of twenty large reads took no longer.
    pub large_p95_us: Option<u64>,
}

/// The state of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Node id.
    pub node: String,
    /// Cluster id.
    pub cluster: String,
    /// Version of the program.
    pub version: String,
    /// Since when, milliseconds since 1970.
    pub started_ms: u64,
    /// The catalog, in words.
    pub catalog: String,
    /// Nodes of the cluster.
    pub nodes: Vec<PeerStatus>,
    /// Rings.
    pub rings: Vec<RingStatus>,
    /// Where reads go.
    pub sources: Vec<SourceStatus>,
    /// Files that are not in the lake yet.
    pub dirty_files: u64,
    /// Their bytes.
    pub dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds; 0 if there is none.
    pub dirty_age_ms: u64,
    /// Conflicts to be resolved.
    pub conflicts: u64,
    /// Uploads to the lake under way.
    pub drains: u64,
    /// The last trouble with a lake, if it is still there.
    pub lake_trouble: Option<String>,
    /// Bytes of the cache in use.
    pub cache_bytes: u64,
    /// Ready to serve.
    pub ready: bool,
    /// What is true about the safety of acknowledged bytes.
    pub words: Vec<String>,
}

/// The level of a cluster: in which forms its nodes write rows, messages and files. It rises by itself once every node can read the next
/// one, and never falls.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelStatus {
    /// The level.
    pub level: u16,
    /// The highest that the release of the node that was asked knows.
    pub newest: u16,
    /// A person wants it to stay as it is.
    pub is_held: bool,
    /// Since when it is this high, milliseconds since 1970; 0 for the first.
    pub since_ms: u64,
    /// Every member.
    pub nodes: Vec<LevelNode>,
}

/// What a node can read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelNode {
    /// Its id.
    pub node: String,
    /// What people call it.
    pub name: String,
    /// The highest level that it can read, as far as it said so.
    pub reads: u16,
    /// Its release, if it said so.
    pub release: Option<String>,
    /// Why the level does not rise above that, and what helps.
    pub holds_up: Option<String>,
}

/// A row of the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CatalogRow {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The commit that wrote it last.
    pub seq: u64,
}

/// A part of one state of the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CatalogPage {
    /// Names the state; for the next page.
    pub state: u64,
    /// Cluster id.
    pub cluster: String,
    /// Every commit up to this one is in it.
    pub seq: u64,
    /// Rows in the order of their keys.
    pub rows: Vec<CatalogRow>,
    /// There are more.
    pub more: bool,
}

/// How the files of a volume are protected that are not in the lake yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeProtection {
    /// Volume.
    pub volume: String,
    /// Copies that a write makes now, on as many nodes.
    pub copies: u32,
    /// Files that are not in the lake and have fewer, from a time when there were fewer nodes or after a loss.
    pub files_below: u64,
}

/// Where the catalog is, and who follows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CatalogStatus {
    /// What it is.
    pub engine: String,
    /// The node that keeps it; none if it is in a database.
    pub holder: Option<String>,
    /// Which epoch this is; a higher one fences a lower one.
    pub epoch: String,
    /// The last commit that whoever answers has seen.
    pub seq: u64,
    /// Nothing is acknowledged, because too few standbys answer.
    pub stalled: bool,
    /// No other node has what is acknowledged.
    pub alone: bool,
    /// Who follows.
    pub standbys: Vec<StandbyInfo>,
    /// Why it cannot be asked, if so.
    pub trouble: Option<String>,
}

/// A node that follows the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StandbyInfo {
    /// Its id.
    pub node: String,
    /// It has every acknowledged commit.
    pub in_sync: bool,
    /// The last commit that it is known to have.
    pub seq: Option<u64>,
    /// What went wrong last.
    pub trouble: Option<String>,
}

/// What a promotion did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CatalogPromotion {
    /// The new epoch.
    pub epoch: String,
    /// The commit from which numbers go on.
    pub seq: u64,
    /// The node that kept the catalog before.
    pub before: String,
    /// Why acknowledged changes may be lost, if they may.
    pub loss: Option<String>,
}

/// Whether a node can stop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopVerdict {
    /// The node.
    pub node: String,
    /// Its name.
    pub name: String,
    /// Why not, as long as it should not.
    pub reasons: Vec<String>,
}
