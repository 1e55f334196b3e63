//! What is asked and answered. Variants are only ever added at the end; a change of a type raises the protocol version.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, ChecksumKind, Condition, Conflict, CopyRequest,
    Counter, EditRequest, Entry, ErrorKind, Explanation, FileInfo, Finish, JobLabel, JobOrder, JobReport,
    Key, ListPage, ListRequest, LockClient, LockHeld, LockOwner, LockRequest, NoLease, NodeStatus, Order,
    PartChoice, PartSource, PartsPage, Receipt, RenameMode, Report, Resolution, Seek, SetId, SetInfo,
    SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload, StoreError, UploadId, UploadInfo,
    UploadsPage, VersionDelete, VersionDeleted, VersionsPage, VersionsRequest, VolumeInfo, VolumeOptions,
    VolumePolicy, WriteRequest,
};

use crate::beside::{Beside, HOLES_SINCE};
use crate::fault::Fault;
use crate::lease::Place;

/// The protocol since which there are tenants and users.
const PEOPLE_SINCE: u16 = 10;

/// The protocol since which files can be locked.
const LOCKS_SINCE: u16 = 11;

/// The protocol since which there are jobs, and a connection says for which it works.
pub(crate) const JOBS_SINCE: u16 = 12;

/// The protocol since which versions of files are told apart, and settings of volumes are read and changed.
pub(crate) const VERSIONS_SINCE: u16 = 12;

/// A request; one for each call of the door, and three for open files and writers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the calls of the door say what each is")]
pub enum Request {
    Volumes,
    Volume {
        name: String,
    },
    VolumeCreate {
        name: String,
        options: VolumeOptions,
    },
    VolumeSet {
        name: String,
        policy: VolumePolicy,
    },
    VolumeDelete {
        name: String,
    },
    Stat {
        volume: String,
        key: Key,
    },
    /// The file's id is the id of this request.
    Open {
        volume: String,
        key: Key,
    },
    /// Reads from an open file; the bytes are the payload of the answer.
    Read {
        file: u64,
        offset: u64,
        len: u32,
    },
    List {
        volume: String,
        request: ListRequest,
    },
    /// The writer's id is the id of this request.
    Create {
        volume: String,
        key: Key,
        request: WriteRequest,
    },
    /// Ends a writer behind its last bytes: how many there were and their CRC-64/NVME.
    Finish {
        writer: u64,
        len: u64,
        crc64: u64,
        finish: Finish,
    },
    Copy(CopyRequest),
    Rename {
        volume: String,
        from: Key,
        to: Key,
        mode: RenameMode,
    },
    Delete {
        volume: String,
        keys: Vec<(Key, Condition)>,
    },
    SetAttributes {
        volume: String,
        key: Key,
        change: AttributesChange,
    },
    UploadCreate {
        volume: String,
        key: Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    },
    /// The writer's id is the id of this request.
    UploadPart {
        volume: String,
        key: Key,
        upload: UploadId,
        number: u32,
        size: Option<u64>,
    },
    UploadPartCopy {
        volume: String,
        key: Key,
        upload: UploadId,
        number: u32,
        source: PartSource,
    },
    UploadParts {
        volume: String,
        key: Key,
        upload: UploadId,
        after: u32,
        limit: usize,
    },
    Uploads {
        volume: String,
        prefix: Vec<u8>,
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    },
    UploadComplete {
        volume: String,
        key: Key,
        upload: UploadId,
        parts: Vec<PartChoice>,
        condition: Condition,
        finish: Finish,
    },
    UploadAbort {
        volume: String,
        key: Key,
        upload: UploadId,
    },
    Receipt {
        volume: String,
        key: Key,
    },
    Wait {
        volume: String,
        key: Key,
        version: Option<[u8; 12]>,
        awaited: Awaited,
    },
    Drain {
        volume: String,
        prefix: Vec<u8>,
    },
    Stage {
        volume: String,
        key: Key,
    },
    Conflicts {
        volume: Option<String>,
    },
    ConflictResolve {
        volume: String,
        key: Key,
        resolution: Resolution,
    },
    AccessKeys,
    AccessKey {
        access_key: String,
    },
    AccessKeyPut(AccessKey),
    AccessKeyDelete {
        access_key: String,
    },
    Explain {
        volume: String,
        key: Key,
    },
    Status,
    Counters,
    /// Asks for leases on an open file; they end with a Release of this request's id, or with the file. Answered by a
    /// frame of its own kind, or by a response that says no.
    Lease {
        file: u64,
        offset: u64,
        len: u64,
    },
    Operate(Order),
    SetBegin {
        volume: String,
        request: SetRequest,
    },
    /// The writer's id is the id of this request.
    SetShard {
        volume: String,
        key: Key,
        set: SetId,
        request: ShardRequest,
    },
    SetShardComplete {
        volume: String,
        key: Key,
        set: SetId,
        shard: ShardUpload,
    },
    SetPublish {
        volume: String,
        set: SetId,
    },
    SetAbort {
        volume: String,
        set: SetId,
    },
    SetStatus {
        volume: String,
        set: SetId,
    },
    SetFind {
        volume: String,
        path: Key,
    },
    Sets {
        volume: String,
        after: Option<SetId>,
        limit: usize,
    },
    SetLatest {
        volume: String,
        prefix: Vec<u8>,
    },
    /// The writer's id is the id of this request.
    Edit {
        volume: String,
        key: Key,
        request: EditRequest,
    },
    /// The bytes are few, and their CRC-64/NVME comes with them.
    EditNow {
        volume: String,
        key: Key,
        request: EditRequest,
        bytes: Bytes,
        crc64: u64,
    },
    Entry {
        volume: String,
        key: Key,
    },
    Inodes {
        count: u32,
    },
    Directory {
        volume: String,
        inode: u64,
    },
    Link {
        volume: String,
        from: Key,
        to: Key,
    },
    /// Ends an edit whose base was not known when it began: of its bytes alone nobody needs the CRC-64, so that they are guarded
    /// by a CRC32C, which the drive needs anyway.
    FinishOn {
        writer: u64,
        len: u64,
        crc32c: u32,
        finish: Finish,
        base: [u8; 12],
    },
    /// Asks for memory that both sides share, through which bytes of writers pass. Once for a connection. Answered by a
    /// frame with a descriptor, or by a response that says no.
    Hatch {
        slots: u32,
    },
    /// Looks for bytes or a hole in an open file.
    Seek {
        file: u64,
        offset: u64,
        what: Seek,
    },
    Lock {
        volume: String,
        key: Key,
        request: LockRequest,
    },
    LocksKeep {
        volume: String,
        client: LockClient,
        owners: Vec<LockOwner>,
    },
    Job(JobOrder),
    /// What this connection asks for from now on is work of this job. The first frame of a client; not answered.
    ForJob {
        label: JobLabel,
    },
    Versions {
        volume: String,
        request: VersionsRequest,
    },
    DeleteVersions {
        volume: String,
        deletes: Vec<VersionDelete>,
    },
    VolumeSetting {
        volume: String,
        name: String,
    },
    SetVolumeSetting {
        volume: String,
        name: String,
        document: Option<Vec<u8>>,
    },
}

impl Request {
    /// The first protocol that has it, or has it in this form: volumes carry their policy, nodes tell where reads go.
    pub fn since(&self) -> u16 {
        match self {
            Request::Volumes
            | Request::Volume { .. }
            | Request::VolumeCreate { .. }
            | Request::VolumeSet { .. }
            | Request::Lease { .. } => 2,
            Request::Operate(
                Order::People
                | Order::PeopleChange(_)
                | Order::Accounts
                | Order::KeyCreate { .. }
                | Order::KeyTimes,
            ) => PEOPLE_SINCE,
            Request::Operate(
                Order::Qos | Order::QosSet(_) | Order::QosUnset { .. } | Order::QosSeen | Order::QosShares(_),
            ) => JOBS_SINCE,
            Request::Status
            | Request::Operate(_)
            | Request::SetBegin { .. }
            | Request::SetShard { .. }
            | Request::SetShardComplete { .. }
            | Request::SetPublish { .. }
            | Request::SetAbort { .. }
            | Request::SetStatus { .. }
            | Request::SetFind { .. }
            | Request::Sets { .. }
            | Request::SetLatest { .. } => 3,
            Request::FinishOn { .. } => LATE_SINCE,
            _ if self.is_late() => LATE_SINCE,
            Request::Hatch { .. } => HATCH_SINCE,
            Request::Seek { .. } => HOLES_SINCE,
            Request::Lock { .. } | Request::LocksKeep { .. } => LOCKS_SINCE,
            Request::Job(_) | Request::ForJob { .. } => JOBS_SINCE,
            Request::Versions { .. }
            | Request::DeleteVersions { .. }
            | Request::VolumeSetting { .. }
            | Request::SetVolumeSetting { .. } => VERSIONS_SINCE,
            Request::Edit { .. }
            | Request::EditNow { .. }
            | Request::Entry { .. }
            | Request::Inodes { .. }
            | Request::Directory { .. } => 4,
            Request::Rename { mode: RenameMode::Exchange { .. }, .. } | Request::Link { .. } => 5,
            _ => 1,
        }
    }

    /// Whether this is an edit that learns at its end what it goes on with.
    pub fn is_late(&self) -> bool {
        matches!(self, Request::Edit { request, .. } if request.late_len().is_some())
    }

    /// Refuses what the other side, of an older release, does not understand.
    pub fn check_version(&self, version: u16) -> Result<(), StoreError> {
        if self.since() <= version {
            return Ok(());
        }
        let message = format!(
            "this needs protocol {}, and the other side speaks {version}; use the same release of Stoker on both sides",
            self.since()
        );
        Err(StoreError::new(ErrorKind::Invalid, message))
    }

    /// True if names, properties or policies change: not to be asked again without thought, and carried through once
    /// it is begun.
    pub fn changes(&self) -> bool {
        match self {
            Request::Volumes
            | Request::Volume { .. }
            | Request::Stat { .. }
            | Request::Entry { .. }
            | Request::Directory { .. }
            // Numbers that nobody hears of are lost, which does no harm.
            | Request::Inodes { .. }
            | Request::Open { .. }
            | Request::Read { .. }
            | Request::Lease { .. }
            | Request::Seek { .. }
            | Request::Hatch { .. }
            | Request::ForJob { .. }
            // Said again, it is what it was.
            | Request::LocksKeep { .. }
            | Request::List { .. }
            | Request::UploadParts { .. }
            | Request::Uploads { .. }
            | Request::Receipt { .. }
            | Request::Wait { .. }
            | Request::Drain { .. }
            | Request::Stage { .. }
            | Request::Conflicts { .. }
            | Request::AccessKeys
            | Request::AccessKey { .. }
            | Request::Explain { .. }
            | Request::Status
            | Request::Counters
            | Request::SetStatus { .. }
            | Request::SetFind { .. }
            | Request::Sets { .. }
            | Request::SetLatest { .. }
            | Request::Versions { .. }
            | Request::VolumeSetting { .. } => false,
            Request::VolumeCreate { .. }
            | Request::VolumeSet { .. }
            | Request::VolumeDelete { .. }
            | Request::Create { .. }
            | Request::Edit { .. }
            | Request::EditNow { .. }
            | Request::Finish { .. }
            | Request::FinishOn { .. }
            | Request::Copy(_)
            | Request::Rename { .. }
            | Request::Link { .. }
            | Request::Delete { .. }
            | Request::SetAttributes { .. }
            | Request::UploadCreate { .. }
            | Request::UploadPart { .. }
            | Request::UploadPartCopy { .. }
            | Request::UploadComplete { .. }
            | Request::UploadAbort { .. }
            | Request::ConflictResolve { .. }
            | Request::AccessKeyPut(_)
            | Request::AccessKeyDelete { .. }
            | Request::SetBegin { .. }
            | Request::SetShard { .. }
            | Request::SetShardComplete { .. }
            | Request::SetPublish { .. }
            | Request::SetAbort { .. }
            | Request::Lock { .. }
            | Request::DeleteVersions { .. }
            | Request::SetVolumeSetting { .. } => true,
            Request::Operate(order) => !order.only_reads(),
            Request::Job(order) => !order.only_reads(),
        }
    }

    /// True if it begins a writer.
    pub fn opens_writer(&self) -> bool {
        matches!(
            self,
            Request::Create { .. }
                | Request::Edit { .. }
                | Request::UploadPart { .. }
                | Request::SetShard { .. }
        )
    }

    /// True if it may rightly take for ever: it waits for the lake, or moves a file's bytes.
    pub fn is_long(&self) -> bool {
        matches!(
            self,
            Request::Wait { .. }
                | Request::Drain { .. }
                | Request::Stage { .. }
                | Request::Finish { .. }
                | Request::FinishOn { .. }
                | Request::EditNow { .. }
        )
    }

    /// Refuses keys that [`Key::new`] would refuse: bytes from the wire become keys without it.
    pub fn check_keys(&self) -> Result<(), StoreError> {
        let check = |key: &Key| Key::new(key.as_bytes()).map(drop);
        match self {
            Request::Copy(copy) => check(&copy.from).and_then(|()| check(&copy.to)),
            Request::Rename { from, to, .. } | Request::Link { from, to, .. } => {
                check(from).and_then(|()| check(to))
            }
            Request::Delete { keys, .. } => keys.iter().try_for_each(|(key, _)| check(key)),
            Request::DeleteVersions { deletes, .. } => deletes.iter().try_for_each(|one| check(&one.key)),
            Request::SetBegin { request, .. } => check(&request.target),
            Request::SetFind { path, .. } => check(path),
            Request::UploadPartCopy { key, source, .. } => check(key).and_then(|()| check(&source.key)),
            Request::Stat { key, .. }
            | Request::Open { key, .. }
            | Request::Entry { key, .. }
            | Request::Lock { key, .. }
            | Request::Create { key, .. }
            | Request::Edit { key, .. }
            | Request::EditNow { key, .. }
            | Request::SetAttributes { key, .. }
            | Request::UploadCreate { key, .. }
            | Request::UploadPart { key, .. }
            | Request::UploadParts { key, .. }
            | Request::UploadComplete { key, .. }
            | Request::UploadAbort { key, .. }
            | Request::Receipt { key, .. }
            | Request::Wait { key, .. }
            | Request::Stage { key, .. }
            | Request::ConflictResolve { key, .. }
            | Request::Explain { key, .. }
            | Request::SetShard { key, .. }
            | Request::SetShardComplete { key, .. } => check(key),
            _ => Ok(()),
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the types of the door say what each is")]
pub enum Response {
    Error(StoreError),
    Done,
    /// The bytes are the payload.
    Read,
    Volumes(Vec<VolumeInfo>),
    Volume(VolumeInfo),
    File(Box<FileInfo>),
    Page(ListPage),
    Receipt(Box<Receipt>),
    Deleted(Vec<Result<bool, StoreError>>),
    Upload(UploadInfo),
    Parts(PartsPage),
    Uploads(UploadsPage),
    Number(u64),
    Conflicts(Vec<Conflict>),
    AccessKeys(Vec<AccessKey>),
    AccessKey(Option<AccessKey>),
    Explanation(Box<Explanation>),
    Status(Box<NodeStatus>),
    Counters(Vec<Counter>),
    /// In a frame with descriptors; the tables are the payload.
    Lease {
        places: Vec<Place>,
    },
    NoLease {
        reason: NoLease,
        until: u64,
    },
    Report(Box<Report>),
    Set(SetInfo),
    SetFound(Option<SetInfo>),
    SetStatus(Box<SetStatus>),
    Sets(SetsPage),
    Entry(Entry),
    Path(Vec<u8>),
    /// Files with the number of their names, which older clients do not know.
    LinkedFile(Box<FileInfo>, u32),
    LinkedPage(ListPage, Vec<u32>),
    LinkedEntry(Entry, u32),
    /// In a frame with the descriptor of the memory.
    Hatch,
    /// Where it is; none if there is no such place.
    Sought(Option<u64>),
    /// Files with what is known beside them, where one of them has holes.
    SparseFile(Box<FileInfo>, Beside),
    SparsePage(ListPage, Vec<Beside>),
    SparseEntry(Entry, Beside),
    /// What stands in the way of a lock, or what is left of those that were given back.
    Locked(Option<LockHeld>),
    /// Those that have nothing any more.
    LocksLost(Vec<LockOwner>),
    Job(Box<JobReport>),
    Versions(VersionsPage),
    DeletedVersions(Vec<Result<VersionDeleted, StoreError>>),
    Setting(Option<Vec<u8>>),
}

/// The first protocol with a hatch.
pub(crate) const HATCH_SINCE: u16 = 7;

/// The first protocol with edits whose base is named at their end.
const LATE_SINCE: u16 = 6;

/// Writes a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("plain types always encode")
}

/// Reads a message that fills the bytes exactly.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(Fault::broken("a message with bytes behind its end")),
        Err(error) => Err(Fault::broken(format!("a message that cannot be read: {error}"))),
    }
}
