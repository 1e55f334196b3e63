//! The door: one trait, plain types, few errors.
//!
//! Whatever wants files from Stoker (a gateway, the command line, a Python program) asks [`Store`]. It is implemented
//! twice: by `node`, on rings, catalog and lake, and by `client`, over a socket.
//!
//! It must not do I/O.

#![forbid(unsafe_code)]

mod alone;
mod behalf;
mod copies;
mod data_keys;
mod edit;
mod error;
mod file;
mod filler;
mod fleet;
mod history;
mod id_text;
mod job;
mod join_token;
mod key;
mod lease;
mod list;
mod lock;
mod measures;
mod name_ids;
mod numbers;
mod operator;
mod order;
mod outage;
mod past;
mod patience;
mod people;
mod qos;
mod receipt;
mod set;
mod store;
mod tiers;
mod upload;
mod volume;
mod who;
mod write;

pub use alone::{alone, alone_many, is_alone};
pub use behalf::{asked_by, asker, in_job, job};
pub use copies::{
    CopyFacts, CopyPlace, Reach, class_words, commit_words, copies_words, receipt_copies_words,
};
pub use data_keys::{DataKeyInfo, DataKeysInfo};
pub use edit::{
    DirectoryInfo, EDIT_NOW_LEN_MAX, EDIT_PIECES_MAX, EditRequest, Entry, INODES_MAX, LINKS_MAX, Piece, Seek,
};
pub use error::{ErrorKind, Result, StoreError, Subject};
pub use file::{
    Attributes, Checksum, ChecksumKind, DrainState, Expires, FileInfo, META_PREFIX, is_meta_reserved,
};
pub use filler::Filler;
pub use fleet::{
    DriveInfo, Evacuation, FabricLeg, LostFile, NodeInfo, Rebuild, Removal, Risk, RiskReport, Unreachable,
};
pub use history::{
    Averages, Combine, FIGURES, HISTORY_AGE_MS_MAX, HISTORY_POINTS_MAX, History, HistoryNode, HistoryPoint,
    HistoryRequest, HistorySource, figure, merge as merge_history,
};
pub use job::{
    JOB_ID_LEN_MAX, JOB_MOUNTS_MAX, JOB_NODES_MAX, JOB_TEXT_LEN_MAX, JOBS_MAX, JOBS_PAGE_MAX, JobAccess,
    JobEnd, JobInfo, JobMount, JobName, JobOrder, JobQos, JobReadiness, JobReport, JobSource, JobSpec,
    JobState, JobStep, JobSubmit, JobWindow, JobWindowAsk, NodeReadiness, Tier, check_job_id,
};
pub use join_token::{
    JOIN_TOKEN_TTL_MS_DEFAULT, JOIN_TOKEN_TTL_MS_MAX, JOIN_TOKEN_USES_MAX, JoinTokenInfo, JoinTokenState,
};
pub use key::{KEY_LEN_MAX, Key, PATH_LEN_MAX};
pub use lease::{LEASE_DESCRIPTORS_MAX, LEASE_EXTENTS_MAX, LeaseExtent, Leased, Leases, NoLease};
pub use list::{ListEntry, ListPage, ListRequest};
pub use lock::{
    LOCK_LEASE_MS, LOCK_OWNERS_MAX, LOCKS_MAX, LockClient, LockHeld, LockKind, LockOwner, LockRequest,
    LockSpace,
};
pub use measures::{
    Calibration, CopyMeasures, DriveFacts, DriveMeasures, GateFacts, Measures, PartFacts, PartWeight,
    PortFacts, Times,
};
pub use name_ids::name_ids;
pub use numbers::{Counter, Histogram};
pub use operator::{
    Access, AccessKey, CatalogPage, CatalogPromotion, CatalogRow, CatalogStatus, Conflict, Explanation,
    HolderInfo, LevelNode, LevelStatus, NodeStatus, PeerStatus, Resolution, RingStatus, SourceStatus,
    StandbyInfo, StopVerdict, VolumeProtection,
};
pub use order::{Order, Report};
pub use outage::{CatalogAt, NodeWord, Outage, Outages, StaleView};
pub use past::{
    DefaultRetention, Keeps, LIFECYCLE_SETTING, LOCK_SETTING, Lock, LockChange, NULL_VERSION,
    RETENTION_DAYS_MAX, RETENTION_YEARS_MAX, Retention, VERSIONING_SETTING, VersionDelete, VersionDeleted,
    VersionEntry, VersionInfo, Versioning, VersionsPage, VersionsRequest,
};
pub use patience::{patience, patiently};
pub use people::{
    AccountInfo, AccountName, PROJECTS_MAX, People, PeopleChange, ProjectInfo, QuotaLimits, TENANTS_MAX,
    TenantInfo, TokenCheck, USER_PLACES_MAX, USERS_MAX, UserInfo, UserRights,
};
pub use qos::{
    QOS_POLICIES_MAX, QOS_REQUEST_LEN_MAX, QosFlow, QosInfo, QosRate, QosReport, QosRequest, QosSeen,
    QosShare, QosSpec, QosSubject,
};
pub use receipt::{Awaited, Holder, Receipt};
pub use set::{
    SET_DEADLINE_S_DEFAULT, SET_DEADLINE_S_MAX, SET_LAGGARDS_MAX, SET_MARKER, SET_OWNER_LEN_MAX, SetId,
    SetInfo, SetRequest, SetState, SetStatus, SetsPage, ShardRequest, ShardUpload,
};
pub use stoker_buffer::{Buf, HatchIn, HatchOut, Place, Places, SLOT_LEN};
pub use store::{BoxFuture, File, PartSource, Store, SummedBytes, Writer};
pub use tiers::{
    LAKE_LABELS_MAX, LAKE_SCHEME, LAKE_TEXT_LEN_MAX, LAKES_MAX, LackingFile, LakeChange, LakeCost, LakeInfo,
    LakeTrial, PlannedRule, PolicyInfo, PolicyMove, PolicyPlan, ReplicaInfo, TierOrder, TierReport,
    check_lake_name,
};
pub use upload::{PartChoice, PartInfo, PartsPage, UploadId, UploadInfo, UploadsPage};
pub use volume::{
    Class, DrainPolicy, LakeMode, Spread, VOLUME_NAME_LEN_MAX, VolumeInfo, VolumeOptions, VolumePolicy,
    WhenAlone, check_bucket_name, check_volume_name,
};
pub use who::{
    Context, JOB_LABEL_LEN_MAX, JobLabel, Principal, TENANT_DEFAULT, TENANT_MARK, UserName, WHO_NAME_LEN_MAX,
    WorkClass, check_who_name, full_volume_name, owner_entry, split_owner, volume_tenant,
};
pub use write::{AttributesChange, Condition, CopyRequest, Finish, RenameMode, WriteRequest};
