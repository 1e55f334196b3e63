//! The trait.

use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use stoker_buffer::Buf;
use stoker_format::VersionId;

use crate::edit::{DirectoryInfo, EDIT_NOW_LEN_MAX, EditRequest, Entry, Seek};
use crate::error::{ErrorKind, Result, StoreError, Subject};
use crate::file::{Checksum, FileInfo};
use crate::filler::Filler;
use crate::job::{JobOrder, JobReport};
use crate::key::Key;
use crate::lease::{Leased, NoLease};
use crate::list::{ListPage, ListRequest};
use crate::lock::{LockClient, LockHeld, LockOwner, LockRequest};
use crate::numbers::Counter;
use crate::operator::{AccessKey, Conflict, Explanation, NodeStatus, Resolution};
use crate::order::{Order, Report};
use crate::past::{LockChange, VersionDelete, VersionDeleted, VersionsPage, VersionsRequest};
use crate::receipt::{Awaited, Receipt};
use crate::set::{SetId, SetInfo, SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload};
use crate::upload::{PartChoice, PartsPage, UploadId, UploadInfo, UploadsPage};
use crate::volume::{VolumeInfo, VolumeOptions, VolumePolicy};
use crate::write::{AttributesChange, Condition, CopyRequest, Finish, RenameMode, WriteRequest};
use crate::{Attributes, ChecksumKind};

const NO_LOCKS: &str = "files behind this door cannot be locked";
const NO_VERSIONS: &str = "versions of files are not told apart behind this door";

/// A future that can be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Bytes, and those of their sums that are known.
#[derive(Clone, Default, Debug)]
pub struct SummedBytes {
    /// The bytes.
    pub bytes: Bytes,
    /// CRC-64/NVME.
    pub crc64: Option<u64>,
    /// CRC32C.
    pub crc32c: Option<u32>,
}

impl From<Bytes> for SummedBytes {
    fn from(bytes: Bytes) -> SummedBytes {
        SummedBytes { bytes, crc64: None, crc32c: None }
    }
}

/// An open file: one version, pinned. Reads never mix two versions.
pub trait File: Send + Sync {
    /// What it is.
    fn info(&self) -> &FileInfo;

    /// Verified bytes at an offset: at least one and at most `len`, fewer where a stored piece ends; empty only at
    /// the end of the file. Ask again for the rest.
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>>;

    /// The same into memory of the caller; says where in it the bytes are. Saves a copy if that begins on a block boundary
    /// and has a block more than the bytes need, and the thread may be blocked ([`alone`](crate::alone)).
    fn read_within<'a>(
        &'a self,
        offset: u64,
        len: usize,
        room: &'a mut [u8],
    ) -> BoxFuture<'a, Result<Range<usize>>> {
        Box::pin(async move {
            let bytes = self.read(offset, len.min(room.len())).await?;
            let count = bytes.len().min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            Ok(0..count)
        })
    }

    /// The first offset from this one on that is what is looked for; none if there is none, or `offset` is behind the end.
    /// Whoever does not know of holes says that there are none but the end.
    fn seek(&self, offset: u64, what: Seek) -> BoxFuture<'_, Result<Option<u64>>> {
        let size = self.info().size;
        let found = match what {
            Seek::Data => offset,
            Seek::Hole => size,
        };
        Box::pin(std::future::ready(Ok((offset < size).then_some(found))))
    }

    /// The reader will want all of the file, in any order: what is to be asked for it may be asked for at once.
    fn wants_all(&self) {}

    /// Leases on the stored pieces from the one at `offset` on, as far as they go within `len` bytes: for a reader on
    /// this machine that checks what it reads. They end with this file. A refusal is no failure: [`Self::read`] works.
    fn lease(&self, _offset: u64, _len: u64) -> BoxFuture<'_, Result<Leased>> {
        Box::pin(std::future::ready(Ok(Leased::never(NoLease::NotLocal))))
    }
}

/// A file (or a part of an upload) being written. Dropped without `finish`, nothing of it becomes visible and its
/// space comes back.
pub trait Writer: Send {
    /// Aligned memory to fill, waiting until there is some: room for a chunk, or for what is left of the announced
    /// size. Its length is 0; its capacity is what fits. To be filled from the front, `set_len`, then [`Self::write`].
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>>;

    /// Queues bytes behind those written before; waits while too much is under way. A buffer that is not full ends its
    /// chunk early: callers fill buffers up unless they have to wait long for more.
    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>>;

    /// True if bytes can be written from where they are, with [`Self::write_bytes`].
    fn takes_bytes(&self) -> bool {
        false
    }

    /// Empty memory from which [`Self::write_bytes`] takes bytes without a copy; none if there is none to spare. Its
    /// [`Buf::fill`] sums what this writer needs.
    fn memory(&self) -> Option<Buf> {
        None
    }

    /// The same as [`Self::write`] for bytes that lie elsewhere; only if [`Self::takes_bytes`]. They do not end a chunk.
    fn write_bytes(&mut self, bytes: SummedBytes) -> BoxFuture<'_, Result<()>> {
        let _ = bytes;
        Box::pin(async {
            Err(StoreError::new(ErrorKind::Invalid, "this writer takes buffers of its own only"))
        })
    }

    /// CRC-64/NVME of everything written so far; 0 of an edit whose base is named at its end, which keeps none.
    fn crc64(&self) -> u64;

    /// Waits until all is durable, then publishes. When this returns, the bytes survive what the class promises.
    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>>;

    /// The same for an edit whose base was not known when it began ([`EditRequest::base`]): this version, which must be the
    /// present one and as long as what is kept of it; `Conflict` about `Condition` otherwise.
    fn finish_on(self: Box<Self>, base: VersionId, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let _ = (base, finish);
        Box::pin(async {
            Err(StoreError::new(ErrorKind::Invalid, "this writer goes on with no other version"))
        })
    }
}

/// The door.
pub trait Store: Send + Sync + 'static {
    // Volumes.

    /// All volumes by name.
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>>;
    /// One volume.
    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>>;
    /// Makes a volume. One that is there: `Conflict` about `Volume`.
    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>>;
    /// Changes what it wants.
    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>>;
    /// Removes an empty volume; lake objects stay as they are. With keys in it: `Conflict` about `VolumeContents`.
    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>>;

    // Names and bytes.

    /// What a key is now.
    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>>;
    /// Opens the present version.
    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>>;
    /// Lists in byte order of the keys.
    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>>;
    /// Begins a file.
    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>>;
    /// Begins a new version of a file that keeps ranges of the present one. The writer takes the bytes of the pieces
    /// that are not kept, in their order.
    fn edit<'a>(
        &'a self,
        _volume: &'a str,
        _key: &'a Key,
        _request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        let message = "files behind this door are written as a whole";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }
    /// The same in one call, for few bytes that are at hand: at most
    /// [`EDIT_NOW_LEN_MAX`](crate::EDIT_NOW_LEN_MAX).
    fn edit_now<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            if bytes.len() > EDIT_NOW_LEN_MAX {
                let message = format!("at most {EDIT_NOW_LEN_MAX} bytes are written in one call");
                return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
            }
            let mut filler = Filler::new(self.edit(volume, key, request).await?);
            filler.put(&bytes).await?;
            filler.finish(Finish::default()).await
        })
    }
    /// What a name is: a file, a directory, both or neither. The key has no `/` at its end.
    fn entry<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Entry>> {
        Box::pin(async move {
            let known = |found: Result<FileInfo>| match found {
                Ok(info) => Ok(Some(Box::new(info))),
                Err(fault) if fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key => Ok(None),
                Err(fault) => Err(fault),
            };
            let file = known(self.stat(volume, key).await)?;
            let Ok(inside) = Key::new([key.as_bytes(), b"/"].concat()) else {
                return Ok(Entry { file, directory: None });
            };
            let marker = known(self.stat(volume, &inside).await)?;
            let is_there = marker.is_some() || {
                let request = ListRequest { prefix: inside.into_bytes(), limit: 1, ..ListRequest::default() };
                !self.list(volume, request).await?.entries.is_empty()
            };
            Ok(Entry { file, directory: is_there.then_some(DirectoryInfo { inode: 0, marker }) })
        })
    }
    /// The key of the directory with this number, with a `/` at its end; empty for the root, which is 1.
    fn directory<'a>(&'a self, _volume: &'a str, _inode: u64) -> BoxFuture<'a, Result<Vec<u8>>> {
        let message = "directories behind this door have no numbers";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }
    /// Numbers for files to come, which no other file has or gets: the first, and as many as were asked for.
    fn inodes(&self, _count: u32) -> BoxFuture<'_, Result<u64>> {
        let message = "files behind this door get their numbers when they are published";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }
    /// Gives a file one more name, which must be free: `Conflict` about `Condition` otherwise. What is changed under one of
    /// its names by [`Self::edit`], an append or [`Self::set_attributes`] is changed under all. A file that is written anew under
    /// one of them is a file of its own. Too many names: `Full` about `Links`.
    fn link<'a>(&'a self, _volume: &'a str, _from: &'a Key, _to: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        let message = "files behind this door have one name";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }
    /// Copies by reference.
    fn copy(&self, request: CopyRequest) -> BoxFuture<'_, Result<Receipt>>;
    /// Renames a file, or a directory if both keys end with `/`, in one transaction; or swaps two names.
    fn rename<'a>(
        &'a self,
        volume: &'a str,
        from: &'a Key,
        to: &'a Key,
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>>;
    /// Deletes files; one answer each. A key that is not there is `Ok(false)`.
    fn delete<'a>(
        &'a self,
        volume: &'a str,
        keys: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>>;
    /// Changes properties without touching bytes.
    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>>;

    /// Locks a range of a file, or asks what stands in the way: tells what does, and none if nothing did. Or gives a range back: tells
    /// one of the locks that its owner still has there, and none if there is none. What is locked is free when its client is not
    /// heard of for [`LOCK_LEASE_MS`](crate::LOCK_LEASE_MS). The key is of the file: who may read it may lock it.
    fn lock<'a>(
        &'a self,
        _volume: &'a str,
        _key: &'a Key,
        _request: LockRequest,
    ) -> BoxFuture<'a, Result<Option<LockHeld>>> {
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, NO_LOCKS))))
    }
    /// Keeps what a client has locked: tells which of these have nothing any more. None at all: gives everything back.
    fn locks_keep<'a>(
        &'a self,
        _volume: &'a str,
        _client: LockClient,
        _owners: Vec<LockOwner>,
    ) -> BoxFuture<'a, Result<Vec<LockOwner>>> {
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, NO_LOCKS))))
    }

    // Versions. Whatever takes a key takes that of one version as well ([`Key::version_of`]), and shows or copies that one.

    /// Lists versions and markers.
    fn versions<'a>(
        &'a self,
        _volume: &'a str,
        _request: VersionsRequest,
    ) -> BoxFuture<'a, Result<VersionsPage>> {
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, NO_VERSIONS))))
    }
    /// Deletes keys, or one version of a key for good; one answer each. What is held or retained refuses: `Denied` about `Lock`.
    fn delete_versions<'a>(
        &'a self,
        _volume: &'a str,
        _deletes: Vec<VersionDelete>,
    ) -> BoxFuture<'a, Result<Vec<Result<VersionDeleted>>>> {
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, NO_VERSIONS))))
    }
    /// Changes what holds a version; the key is that of a version, or the present one is meant.
    fn set_version_lock<'a>(
        &'a self,
        _volume: &'a str,
        _key: &'a Key,
        _change: LockChange,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, NO_VERSIONS))))
    }

    /// What users say of a volume under a name, which the door that takes it understands.
    fn volume_setting<'a>(
        &'a self,
        _volume: &'a str,
        _name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Changes that, or takes it away. It goes with the volume.
    fn set_volume_setting<'a>(
        &'a self,
        _volume: &'a str,
        _name: &'a str,
        _document: Option<Vec<u8>>,
    ) -> BoxFuture<'a, Result<()>> {
        let message = "settings of volumes cannot be changed through this door";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }

    // Multipart uploads.

    /// Begins an upload.
    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>>;
    /// Begins an upload whose checksum of the whole will be one of all bytes, not of those of the parts. A door that cannot keep that
    /// begins one that has said nothing of it.
    fn upload_create_full<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: ChecksumKind,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        self.upload_create(volume, key, attributes, Some(checksum))
    }
    /// Opens a part, to look at bytes before they become a file. Not every door can.
    fn upload_part_open<'a>(
        &'a self,
        _volume: &'a str,
        _key: &'a Key,
        _upload: &'a UploadId,
        _number: u32,
    ) -> BoxFuture<'a, Result<Box<dyn File>>> {
        let message = "parts of uploads cannot be read through this door";
        Box::pin(std::future::ready(Err(StoreError::about(ErrorKind::Invalid, Subject::Part, message))))
    }
    /// Checksums of the parts that a file was uploaded in, in their order, and the version that has them; empty if they were not kept.
    fn part_checksums<'a>(
        &'a self,
        _volume: &'a str,
        _key: &'a Key,
    ) -> BoxFuture<'a, Result<(VersionId, Vec<Checksum>)>> {
        Box::pin(std::future::ready(Ok((VersionId::ZERO, Vec::new()))))
    }
    /// Begins a part, 1 to 10,000; an earlier one of that number is replaced when it is finished.
    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>>;
    /// Makes a part of a range of a file, by reference; the receipt's etag is the part's.
    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>>;
    /// Parts of an upload with a number above `after`.
    fn upload_parts<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        after: u32,
        limit: usize,
    ) -> BoxFuture<'a, Result<PartsPage>>;
    /// Uploads under way whose key starts with the prefix, after (key, upload).
    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>>;
    /// Publishes the chosen parts, in this order, as one file. `finish` may carry a checksum of the whole to be checked
    /// or kept.
    fn upload_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        parts: Vec<PartChoice>,
        condition: Condition,
        finish: Finish,
    ) -> BoxFuture<'a, Result<Receipt>>;
    /// Forgets an upload and its parts.
    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>>;

    // Checkpoint sets.

    /// Begins a set, or gives the one that the same owner has open for this directory.
    fn set_begin<'a>(&'a self, volume: &'a str, request: SetRequest) -> BoxFuture<'a, Result<SetInfo>>;
    /// Begins a shard, under a key below the directory of its set. Finished, it is durable and not visible. A set that
    /// is not open refuses, also when the shard is finished: `Conflict` about `Set`.
    fn set_shard<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        request: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>>;
    /// Makes a shard of the chosen parts of an upload to a key below the directory of the set.
    fn set_shard_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        shard: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>>;
    /// Makes all shards visible at once. If some lack, `Conflict` about `Set` names them. A set that is published
    /// already is fine.
    fn set_publish<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>>;
    /// Gives a set up; its shards go. One that was given up already is fine, a published one refuses.
    fn set_abort<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>>;
    /// A set, and which shards it lacks.
    fn set_status<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetStatus>>;
    /// The set that is open for a directory, or was published as it.
    fn set_find<'a>(&'a self, volume: &'a str, path: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>>;
    /// Sets of a volume behind one of them, in the order in which they were begun.
    fn sets<'a>(
        &'a self,
        volume: &'a str,
        after: Option<SetId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<SetsPage>>;
    /// The set that was published last of those whose directory starts with these bytes.
    fn set_latest<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>>;

    // Receipts and the lake.

    /// The receipt of the present version of a key, as of now.
    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>>;
    /// Waits until this version (none: the present one) of a key got that far; a version that is gone is `NotFound`.
    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>>;
    /// Drains keys with a prefix now, quiet or not; returns how many files that are.
    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>>;
    /// Brings the bytes of a file into the rings; returns how many bytes came from the lake.
    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>>;
    /// Versions that wait for a person.
    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>>;
    /// Ends a conflict.
    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>>;

    // Jobs.

    /// Carries out what a scheduler asks about a job: the data is there before the job is.
    fn job(&self, _order: JobOrder) -> BoxFuture<'_, Result<JobReport>> {
        let message = "jobs are not known behind this door";
        Box::pin(std::future::ready(Err(StoreError::new(ErrorKind::Invalid, message))))
    }

    // For operators.

    /// All access keys.
    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>>;
    /// One access key.
    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>>;
    /// Makes or changes an access key.
    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>>;
    /// Removes an access key.
    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>>;
    /// Where a file is and what happens to it next.
    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>>;
    /// The state of the node.
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>>;
    /// Numbers for `/metrics`.
    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>>;
    /// Carries out what an operator orders.
    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>>;
}

/// Where a copied part comes from.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PartSource {
    /// Volume.
    pub volume: String,
    /// File.
    pub key: Key,
    /// Must hold for it.
    pub condition: Condition,
    /// First byte and the byte behind the last; none for all.
    pub range: Option<(u64, u64)>,
}
