//! What operators ask for: keys, conflicts, status.

use serde::{Deserialize, Serialize};

use crate::data_keys::DataKeysInfo;
use crate::file::FileInfo;
use crate::fleet::{
    DriveInfo, Evacuation, FabricLeg, LostFile, NodeInfo, Rebuild, Removal, RiskReport, Unreachable,
};
use crate::history::History;
use crate::join_token::JoinTokenInfo;
use crate::measures::Measures;
use crate::outage::Outages;
use crate::people::{AccountInfo, People, PeopleChange};
use crate::qos::{QosInfo, QosReport, QosRequest, QosSeen, QosShare};
use crate::receipt::Receipt;
use crate::volume::{VolumeInfo, VolumeOptions};

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

/// What an operator asks of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Where the catalog is, and who follows it.
    Catalog,
    /// Make this node the one that keeps the catalog.
    CatalogPromote {
        /// Go on although acknowledged changes may be lost.
        accept_loss: bool,
    },
    /// Let a standby of the catalog go for good.
    CatalogDetach {
        /// Its id or its name.
        node: String,
    },
    /// Whether a node can stop without anybody noticing.
    CanStop {
        /// Its id or its name; none for the one that is asked.
        node: Option<String>,
    },
    /// What volumes commit to now, and which files have fewer copies.
    Protection,
    /// Every node, with what it holds.
    Nodes,
    /// Put no new chunks on a node, but read from it.
    Quarantine {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
    },
    /// End a quarantine or an evacuation.
    Rejoin {
        /// Its id or its name.
        node: String,
    },
    /// Bring everything that is not in the lake from a node to others.
    Evacuate {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
    },
    /// How far an evacuation is.
    Evacuation {
        /// Its id or its name.
        node: String,
    },
    /// What would be lost with each node and each cell.
    Risk,
    /// Files that are lost, or will be if nobody comes back.
    Lost,
    /// How far the protection of what lost a copy is.
    Rebuild,
    /// Every drive.
    Drives {
        /// Only of this node, by its id or its name.
        node: Option<String>,
    },
    /// Put a drive into service.
    DriveAdd {
        /// The node's id or name.
        node: String,
        /// Where it is on that node.
        path: String,
        /// Bytes of the ring if it has to be made.
        size_bytes: Option<u64>,
    },
    /// Take a drive out of service once nothing is only there.
    DriveRemove {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
        /// Although that loses what is only there.
        force: bool,
    },
    /// What would be lost with a drive now.
    DriveLosses {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
    },
    /// A page of one state of the catalog, for a backup. The node that keeps the catalog answers.
    CatalogRows {
        /// The state to go on with; none begins one. One that is not asked for a while is gone.
        state: Option<u64>,
        /// The rows behind this key; none for the first.
        after: Option<Vec<u8>>,
    },
    /// Replace an access key by a new one of the same rights. The old one works on for a while.
    KeyRotate {
        /// Its public part.
        access_key: String,
        /// How long the old one works on, milliseconds.
        grace_ms: u64,
    },
    /// Revoke every join token, and make a new one.
    JoinTokenRotate,
    /// How well one node reaches another: it sends bytes that the other drops, for a second at most.
    Fabric {
        /// The node that sends, by its id or its name.
        from: String,
        /// The node that receives, by its id or its name.
        to: String,
    },
    /// What a node measured of itself and its parts.
    Measures {
        /// Its id or its name; none for the one that is asked.
        node: Option<String>,
    },
    /// Cordon a drive: no new chunks, and what the lake lacks is brought elsewhere. Or uncordon it.
    DriveCordon {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
        /// Whether it is cordoned from now on.
        cordoned: bool,
    },
    /// What somebody wrote down for the whole cluster under a name.
    Note {
        /// Its name.
        name: String,
    },
    /// Add a line to a note, for whoever reads it.
    NoteAdd {
        /// Its name.
        name: String,
        /// What is added.
        line: String,
    },
    /// Make a token that lets nodes join.
    JoinTokenCreate {
        /// How long it works, milliseconds.
        ttl_ms: u64,
        /// How many nodes it lets join.
        uses: u32,
    },
    /// Every token that lets nodes join, or did not long ago.
    JoinTokens,
    /// Let no more nodes join by a token.
    JoinTokenRevoke {
        /// Its id; none for all of them.
        id: Option<String>,
    },
    /// Nodes that others cannot reach, and who tried.
    Unreachable,
    /// Remove a node for good: a live one once it is empty, a lost one once what it held is accounted for. Goes as far as it
    /// can now, and the nodes go on by themselves; asked again, it tells how far it is.
    NodeRemove {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
        /// Although files are lost with it.
        accept_loss: bool,
    },
    /// What does not answer, and what helps; asks nobody.
    Outages,
    /// What was, as figures over time.
    History {
        /// Of this node, by its id or its name; none for all that answer soon.
        node: Option<String>,
        /// The first moment, milliseconds since 1970.
        since_ms: u64,
        /// Time between two points.
        every_ms: u64,
    },
    /// How far removals of nodes are; changes nothing.
    Removals {
        /// Of this node, by its id or its name, also after it; none for all that are under way.
        node: Option<String>,
    },
    /// The level of the cluster, and what keeps it from rising.
    Level,
    /// Keep the level from rising by itself, or let it.
    LevelHold {
        /// Whether it stays as it is.
        held: bool,
    },
    /// Make a volume whose bytes are encrypted on drives.
    EncryptedVolume {
        /// Its name.
        name: String,
        /// What else it wants.
        options: VolumeOptions,
    },
    /// The data keys of every encrypted volume.
    DataKeys,
    /// Make a new data key, which encrypts what is written to a volume from now on.
    DataKeyRotate {
        /// The volume.
        volume: String,
    },
    /// Destroy the data keys of a volume: what they encrypted cannot be read again.
    DataKeyDestroy {
        /// The volume.
        volume: String,
    },
    /// Every tenant, project and user.
    People,
    /// Change one of them.
    PeopleChange(PeopleChange),
    /// What every tenant, project and user has and may have.
    Accounts,
    /// Make an access key that works for so long; none for as long as it is there.
    KeyCreate {
        /// The key.
        key: AccessKey,
        /// How long it works.
        lifetime_ms: Option<u64>,
    },
    /// When access keys stop to work.
    KeyTimes,
    /// Policies of admission, and how they fare.
    Qos,
    /// Promise and allow something to somebody's work.
    QosSet(Box<QosRequest>),
    /// End a policy.
    QosUnset {
        /// Its id.
        id: String,
    },
    /// What a node sees of admission: asked by the node that divides promises.
    QosSeen,
    /// What of the policies is a node's: told by the node that divides promises.
    QosShares(Vec<QosShare>),
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

/// What became of an [`Order`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// It is done.
    Done,
    /// Of [`Order::Catalog`].
    Catalog(CatalogStatus),
    /// Of [`Order::CatalogPromote`].
    Promoted(CatalogPromotion),
    /// Of [`Order::CanStop`].
    CanStop(StopVerdict),
    /// Of [`Order::Protection`].
    Protection(Vec<VolumeProtection>),
    /// Of [`Order::Nodes`].
    Nodes(Vec<NodeInfo>),
    /// Of [`Order::Evacuate`] and [`Order::Evacuation`].
    Evacuation(Evacuation),
    /// Of [`Order::Risk`].
    Risk(RiskReport),
    /// Of [`Order::Lost`] and [`Order::DriveLosses`].
    Lost(Vec<LostFile>),
    /// Of [`Order::Rebuild`].
    Rebuild(Rebuild),
    /// Of [`Order::Drives`], and the drive that an order was about.
    Drives(Vec<DriveInfo>),
    /// Of [`Order::CatalogRows`].
    CatalogRows(CatalogPage),
    /// Of [`Order::KeyRotate`]: the new one.
    Key(AccessKey),
    /// Of [`Order::JoinTokenRotate`]: the new one.
    JoinToken(String),
    /// Of [`Order::Fabric`].
    Fabric(FabricLeg),
    /// Of [`Order::Measures`].
    Measures(Box<Measures>),
    /// Of [`Order::Note`]; none if there is none.
    Note(Option<String>),
    /// Of [`Order::JoinTokenCreate`].
    JoinTokenMade {
        /// The token itself; nobody can tell it again.
        token: String,
        /// What is known of it.
        info: JoinTokenInfo,
    },
    /// Of [`Order::JoinTokens`], and of [`Order::JoinTokenRevoke`] those that are revoked by it.
    JoinTokens(Vec<JoinTokenInfo>),
    /// Of [`Order::Unreachable`].
    Unreachable(Vec<Unreachable>),
    /// Of [`Order::NodeRemove`].
    Removal(Box<Removal>),
    /// Of [`Order::Outages`].
    Outages(Outages),
    /// Of [`Order::History`].
    History(Box<History>),
    /// Of [`Order::Removals`].
    Removals(Vec<Removal>),
    /// Of [`Order::Level`] and [`Order::LevelHold`].
    Level(LevelStatus),
    /// Of [`Order::EncryptedVolume`].
    Volume(Box<VolumeInfo>),
    /// Of [`Order::DataKeys`], and the volume that an order was about.
    DataKeys(Vec<DataKeysInfo>),
    /// Of [`Order::People`].
    People(People),
    /// Of [`Order::Accounts`].
    Accounts(Vec<AccountInfo>),
    /// Of [`Order::KeyTimes`]: public parts of the keys that stop to work, and when, milliseconds since 1970.
    KeyTimes(Vec<(String, u64)>),
    /// Of [`Order::Qos`].
    Qos(Box<QosReport>),
    /// Of [`Order::QosSet`].
    QosPolicy(Box<QosInfo>),
    /// Of [`Order::QosSeen`].
    QosSeen(QosSeen),
}

impl Order {
    /// True if it changes nothing.
    pub fn only_reads(&self) -> bool {
        match self {
            Order::Catalog
            | Order::CanStop { .. }
            | Order::Protection
            | Order::Nodes
            | Order::Evacuation { .. }
            | Order::Risk
            | Order::Lost
            | Order::Rebuild
            | Order::Drives { .. }
            | Order::CatalogRows { .. }
            | Order::Fabric { .. }
            | Order::Measures { .. }
            | Order::Note { .. }
            | Order::JoinTokens
            | Order::Unreachable
            | Order::Outages
            | Order::History { .. }
            | Order::Removals { .. }
            | Order::Level
            | Order::DataKeys
            | Order::People
            | Order::Accounts
            | Order::KeyTimes
            | Order::Qos
            | Order::QosSeen
            | Order::DriveLosses { .. } => true,
            Order::CatalogPromote { .. }
            | Order::CatalogDetach { .. }
            | Order::Quarantine { .. }
            | Order::Rejoin { .. }
            | Order::Evacuate { .. }
            | Order::DriveAdd { .. }
            | Order::DriveCordon { .. }
            | Order::LevelHold { .. }
            | Order::EncryptedVolume { .. }
            | Order::DataKeyRotate { .. }
            | Order::DataKeyDestroy { .. }
            | Order::PeopleChange(_)
            | Order::NoteAdd { .. }
            | Order::KeyRotate { .. }
            | Order::KeyCreate { .. }
            | Order::JoinTokenRotate
            | Order::JoinTokenCreate { .. }
            | Order::JoinTokenRevoke { .. }
            | Order::NodeRemove { .. }
            | Order::QosSet(_)
            | Order::QosUnset { .. }
            | Order::QosShares(_)
            | Order::DriveRemove { .. } => false,
        }
    }
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
