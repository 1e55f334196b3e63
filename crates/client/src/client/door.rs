//! The calls of the door, one request each.

use bytes::Bytes;
use stoker_format::{VersionId, crc64};
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, BoxFuture, ChecksumKind, Condition, Conflict,
    CopyRequest, Counter, EditRequest, Entry, Explanation, File, FileInfo, Finish, JobOrder, JobReport, Key,
    ListPage, ListRequest, LockClient, LockHeld, LockOwner, LockRequest, NodeStatus, Order, PartChoice,
    PartSource, PartsPage, Receipt, RenameMode, Report, Resolution, Result, SetId, SetInfo, SetRequest,
    SetStatus, SetsPage, ShardRequest, ShardUpload, Store, UploadId, UploadInfo, UploadsPage, VersionDelete,
    VersionDeleted, VersionsPage, VersionsRequest, VolumeInfo, VolumeOptions, VolumePolicy, WriteRequest,
    Writer,
};

use super::file::RemoteFile;
use super::writer::RemoteWriter;
use super::{Client, unexpected};
use crate::message::{Request, Response};

/// Keys in one request to delete, and bytes of those keys and their conditions.
const DELETE_KEYS_MAX: usize = 1000;
const DELETE_BYTES_MAX: usize = 512 << 10;

/// Versions in one request to delete: with the longest keys and etags they fit.
const VERSIONS_MAX: usize = 100;

/// Asks, and takes the answer apart.
macro_rules! ask {
    ($client:expr, $request:expr, $pattern:pat => $value:expr) => {
        Box::pin(async move {
            match $client.ask($request).await? {
                $pattern => Ok($value),
                _ => Err(unexpected()),
            }
        })
    };
}

impl Store for Client {
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        ask!(self, Request::Volumes, Response::Volumes(volumes) => volumes)
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>> {
        ask!(self, Request::Volume { name: name.to_owned() }, Response::Volume(volume) => volume)
    }

    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>> {
        ask!(self, Request::VolumeCreate { name: name.to_owned(), options }, Response::Volume(volume) => volume)
    }

    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>> {
        ask!(self, Request::VolumeSet { name: name.to_owned(), policy }, Response::Volume(volume) => volume)
    }

    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        ask!(self, Request::VolumeDelete { name: name.to_owned() }, Response::Done => ())
    }

    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        let request = Request::Stat { volume: volume.to_owned(), key: key.clone() };
        ask!(self, request, Response::File(info) => *info)
    }

    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>> {
        Box::pin(async move { Ok(Box::new(RemoteFile::open(self, volume, key).await?) as Box<dyn File>) })
    }

    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>> {
        ask!(self, Request::List { volume: volume.to_owned(), request }, Response::Page(page) => page)
    }

    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let size = request.size;
            let request = Request::Create { volume: volume.to_owned(), key: key.clone(), request };
            Ok(Box::new(RemoteWriter::create(self, request, size).await?) as Box<dyn Writer>)
        })
    }

    fn edit<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let size = request.take_len();
            let request = Request::Edit { volume: volume.to_owned(), key: key.clone(), request };
            Ok(Box::new(RemoteWriter::create(self, request, size).await?) as Box<dyn Writer>)
        })
    }

    fn edit_now<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let (volume, key, crc64) = (volume.to_owned(), key.clone(), crc64(&bytes));
        let request = Request::EditNow { volume, key, request, bytes, crc64 };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn entry<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Entry>> {
        let request = Request::Entry { volume: volume.to_owned(), key: key.clone() };
        ask!(self, request, Response::Entry(entry) => entry)
    }

    fn directory<'a>(&'a self, volume: &'a str, inode: u64) -> BoxFuture<'a, Result<Vec<u8>>> {
        let request = Request::Directory { volume: volume.to_owned(), inode };
        ask!(self, request, Response::Path(path) => path)
    }

    fn lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: LockRequest,
    ) -> BoxFuture<'a, Result<Option<LockHeld>>> {
        let request = Request::Lock { volume: volume.to_owned(), key: key.clone(), request };
        ask!(self, request, Response::Locked(held) => held)
    }

    fn locks_keep<'a>(
        &'a self,
        volume: &'a str,
        client: LockClient,
        owners: Vec<LockOwner>,
    ) -> BoxFuture<'a, Result<Vec<LockOwner>>> {
        let request = Request::LocksKeep { volume: volume.to_owned(), client, owners };
        ask!(self, request, Response::LocksLost(lost) => lost)
    }

    fn inodes(&self, count: u32) -> BoxFuture<'_, Result<u64>> {
        ask!(self, Request::Inodes { count }, Response::Number(first) => first)
    }

    fn link<'a>(&'a self, volume: &'a str, from: &'a Key, to: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        let request = Request::Link { volume: volume.to_owned(), from: from.clone(), to: to.clone() };
        ask!(self, request, Response::File(info) => *info)
    }

    fn copy(&self, request: CopyRequest) -> BoxFuture<'_, Result<Receipt>> {
        ask!(self, Request::Copy(request), Response::Receipt(receipt) => *receipt)
    }

    fn rename<'a>(
        &'a self,
        volume: &'a str,
        from: &'a Key,
        to: &'a Key,
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>> {
        let request = Request::Rename { volume: volume.to_owned(), from: from.clone(), to: to.clone(), mode };
        ask!(self, request, Response::Done => ())
    }

    fn delete<'a>(
        &'a self,
        volume: &'a str,
        keys: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(keys.len());
            let mut rest = keys.into_iter().peekable();
            while rest.peek().is_some() {
                let batch = next_batch(&mut rest);
                let count = batch.len();
                match self.ask(Request::Delete { volume: volume.to_owned(), keys: batch }).await {
                    Ok(Response::Deleted(batch)) if batch.len() == count => answers.extend(batch),
                    Ok(_) => return Err(unexpected()),
                    // Earlier batches are done: their answers count.
                    Err(error) if answers.is_empty() && rest.peek().is_none() => return Err(error),
                    Err(error) => answers.extend(std::iter::repeat_n(Err(error), count)),
                }
            }
            Ok(answers)
        })
    }

    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>> {
        let request = Request::SetAttributes { volume: volume.to_owned(), key: key.clone(), change };
        ask!(self, request, Response::File(info) => *info)
    }

    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        let request =
            Request::UploadCreate { volume: volume.to_owned(), key: key.clone(), attributes, checksum };
        ask!(self, request, Response::Upload(upload) => upload)
    }

    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        let (volume, key, upload) = (volume.to_owned(), key.clone(), upload.clone());
        let request = Request::UploadPart { volume, key, upload, number, size };
        Box::pin(
            async move { Ok(Box::new(RemoteWriter::create(self, request, size).await?) as Box<dyn Writer>) },
        )
    }

    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let (volume, key, upload) = (volume.to_owned(), key.clone(), upload.clone());
        let request = Request::UploadPartCopy { volume, key, upload, number, source };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn upload_parts<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        after: u32,
        limit: usize,
    ) -> BoxFuture<'a, Result<PartsPage>> {
        let (volume, key, upload) = (volume.to_owned(), key.clone(), upload.clone());
        let request = Request::UploadParts { volume, key, upload, after, limit };
        ask!(self, request, Response::Parts(page) => page)
    }

    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>> {
        let request = Request::Uploads { volume: volume.to_owned(), prefix: prefix.to_vec(), after, limit };
        ask!(self, request, Response::Uploads(page) => page)
    }

    fn upload_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        parts: Vec<PartChoice>,
        condition: Condition,
        finish: Finish,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let (volume, key, upload) = (volume.to_owned(), key.clone(), upload.clone());
        let request = Request::UploadComplete { volume, key, upload, parts, condition, finish };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>> {
        let (volume, key, upload) = (volume.to_owned(), key.clone(), upload.clone());
        ask!(self, Request::UploadAbort { volume, key, upload }, Response::Done => ())
    }

    fn set_begin<'a>(&'a self, volume: &'a str, request: SetRequest) -> BoxFuture<'a, Result<SetInfo>> {
        ask!(self, Request::SetBegin { volume: volume.to_owned(), request }, Response::Set(set) => set)
    }

    fn set_shard<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        request: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        let size = request.size;
        let request = Request::SetShard { volume: volume.to_owned(), key: key.clone(), set, request };
        Box::pin(
            async move { Ok(Box::new(RemoteWriter::create(self, request, size).await?) as Box<dyn Writer>) },
        )
    }

    fn set_shard_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        shard: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let request = Request::SetShardComplete { volume: volume.to_owned(), key: key.clone(), set, shard };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn set_publish<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        ask!(self, Request::SetPublish { volume: volume.to_owned(), set }, Response::Set(set) => set)
    }

    fn set_abort<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        ask!(self, Request::SetAbort { volume: volume.to_owned(), set }, Response::Set(set) => set)
    }

    fn set_status<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetStatus>> {
        let request = Request::SetStatus { volume: volume.to_owned(), set };
        ask!(self, request, Response::SetStatus(status) => *status)
    }

    fn set_find<'a>(&'a self, volume: &'a str, path: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        let request = Request::SetFind { volume: volume.to_owned(), path: path.clone() };
        ask!(self, request, Response::SetFound(set) => set)
    }

    fn sets<'a>(
        &'a self,
        volume: &'a str,
        after: Option<SetId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<SetsPage>> {
        let request = Request::Sets { volume: volume.to_owned(), after, limit };
        ask!(self, request, Response::Sets(page) => page)
    }

    fn set_latest<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        let request = Request::SetLatest { volume: volume.to_owned(), prefix: prefix.to_vec() };
        ask!(self, request, Response::SetFound(set) => set)
    }

    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>> {
        let request = Request::Receipt { volume: volume.to_owned(), key: key.clone() };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let version = version.map(|version| version.0);
        let request = Request::Wait { volume: volume.to_owned(), key: key.clone(), version, awaited };
        ask!(self, request, Response::Receipt(receipt) => *receipt)
    }

    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>> {
        let request = Request::Drain { volume: volume.to_owned(), prefix: prefix.to_vec() };
        ask!(self, request, Response::Number(files) => files)
    }

    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>> {
        let request = Request::Stage { volume: volume.to_owned(), key: key.clone() };
        ask!(self, request, Response::Number(bytes) => bytes)
    }

    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>> {
        let request = Request::Conflicts { volume: volume.map(str::to_owned) };
        ask!(self, request, Response::Conflicts(conflicts) => conflicts)
    }

    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>> {
        let request = Request::ConflictResolve { volume: volume.to_owned(), key: key.clone(), resolution };
        ask!(self, request, Response::Done => ())
    }

    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>> {
        ask!(self, Request::AccessKeys, Response::AccessKeys(keys) => keys)
    }

    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>> {
        let request = Request::AccessKey { access_key: access_key.to_owned() };
        ask!(self, request, Response::AccessKey(key) => key)
    }

    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>> {
        ask!(self, Request::AccessKeyPut(key), Response::Done => ())
    }

    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>> {
        let request = Request::AccessKeyDelete { access_key: access_key.to_owned() };
        ask!(self, request, Response::Done => ())
    }

    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>> {
        let request = Request::Explain { volume: volume.to_owned(), key: key.clone() };
        ask!(self, request, Response::Explanation(explanation) => *explanation)
    }

    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        ask!(self, Request::Status, Response::Status(status) => *status)
    }

    fn versions<'a>(
        &'a self,
        volume: &'a str,
        request: VersionsRequest,
    ) -> BoxFuture<'a, Result<VersionsPage>> {
        ask!(self, Request::Versions { volume: volume.to_owned(), request }, Response::Versions(page) => page)
    }

    fn delete_versions<'a>(
        &'a self,
        volume: &'a str,
        deletes: Vec<VersionDelete>,
    ) -> BoxFuture<'a, Result<Vec<Result<VersionDeleted>>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(deletes.len());
            for batch in deletes.chunks(VERSIONS_MAX) {
                let request = Request::DeleteVersions { volume: volume.to_owned(), deletes: batch.to_vec() };
                match self.ask(request).await? {
                    Response::DeletedVersions(some) if some.len() == batch.len() => answers.extend(some),
                    _ => return Err(unexpected()),
                }
            }
            Ok(answers)
        })
    }

    fn volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        let request = Request::VolumeSetting { volume: volume.to_owned(), name: name.to_owned() };
        ask!(self, request, Response::Setting(document) => document)
    }

    fn set_volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
        document: Option<Vec<u8>>,
    ) -> BoxFuture<'a, Result<()>> {
        let (volume, name) = (volume.to_owned(), name.to_owned());
        ask!(self, Request::SetVolumeSetting { volume, name, document }, Response::Done => ())
    }

    fn job(&self, order: JobOrder) -> BoxFuture<'_, Result<JobReport>> {
        ask!(self, Request::Job(order), Response::Job(report) => *report)
    }

    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>> {
        ask!(self, Request::Operate(order), Response::Report(report) => *report)
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        ask!(self, Request::Counters, Response::Counters(counters) => counters)
    }
}

/// As many keys as fit one request; at least one.
fn next_batch(
    rest: &mut std::iter::Peekable<impl Iterator<Item = (Key, Condition)>>,
) -> Vec<(Key, Condition)> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    while let Some(next) = rest.next_if(|_| batch.len() < DELETE_KEYS_MAX && bytes < DELETE_BYTES_MAX) {
        let etags = [&next.1.if_match, &next.1.if_none_match].into_iter().flatten().flatten();
        bytes += next.0.as_bytes().len() + etags.map(|etag| etag.len() + 2).sum::<usize>() + 8;
        batch.push(next);
    }
    batch
}
