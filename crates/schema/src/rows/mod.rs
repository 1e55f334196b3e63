//! What the rows of the catalog mean: their keys and their values.
//!
//! Every table has a one-byte prefix; numbers in keys are big-endian, so that byte order is number order. Values start
//! with a version byte. Properties that the catalog does not look into (content type, checksums, tags) are bytes here.

mod codec;
mod data_keys;
mod entry;
mod job;
mod join_token;
pub mod keys;
mod lake;
mod layout;
mod links;
mod locks;
mod node;
mod past;
mod people;
mod place;
mod qos;
mod set;
pub mod tier_keys;
mod tiers;
mod upload;
mod volume;

pub use codec::RowValue;
pub use data_keys::{DataKeyRow, DataKeysRow, DestroyedKeysRow, ENCRYPTED_SINCE};
pub use entry::{DirRow, Drain, EntryRow, FileRow, HolderRow, LakeRef, SourceRef};
pub use job::{JobRow, JobWindowsRow};
pub use join_token::{JoinTokenRow, JoinUse};
pub use lake::{
    ConflictRow, GraveRow, ImportRow, IntentRow, LakeKeyRow, RekeyRow, SUMS_PER_ROW, SpillRow, SumsRow,
    TombstoneRow,
};
pub use layout::{Layout, RUNS_PER_ROW, RunRow, VersionRow};
pub use links::LinksRow;
pub use locks::{LockRow, LocksRow};
pub use node::{
    Duty, FailedDial, NodeRow, NodeState, RemovedRow, RemovingRow, RepairRow, RestoredRow, UnreachedRow,
    WITNESSES_SINCE,
};
pub use past::{PastRow, RetentionRow, VERSIONS_SINCE};
pub use people::{PlainRow, QuotaRow, TokenPart, UserRow};
pub use place::{DirtyRow, DriveRow, DriveState, GarbageRow, MissingChunk, MissingRow, RefRow, SessionRow};
pub use qos::QosRow;
pub use set::{Abort, OpenSetRow, SetRow, SetState, SetWork, ShardRow};
pub use tiers::{
    CopyRow, CopyWalkRow, CopyWorkRow, LackingRow, LakeRow, PolicyRow, ReplicaRow, ReplicaState, SeenRow,
    TIERS_SINCE,
};
pub use upload::{AnswerRow, CompletedRow, PartRow, UploadRow};
pub use volume::{AccessKeyRow, SettingRow, VolumeRow};

/// The directory that every volume starts with.
pub const ROOT: u64 = 1;

/// Where a directory hangs that has no name: below nothing. It and what is in it cannot be found by any key.
pub const NOWHERE: u64 = 0;

/// Where versions are that are not the present one of their name. No key leads through it: an entry's name in it is that of
/// [`keys::past_name`]. (D210)
pub const HISTORY: u64 = u64::MAX;
