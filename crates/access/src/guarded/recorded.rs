//! The store as endpoints have it: every call is decided, and what is to be written down of it is.

use std::sync::Arc;

use bytes::Bytes;
use stoker_audit::Log;
use stoker_format::VersionId;
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, BoxFuture, Checksum, ChecksumKind, Condition, Conflict,
    Context, CopyRequest, Counter, EditRequest, Entry, Explanation, File, FileInfo, Finish, JOB_ID_LEN_MAX,
    JobOrder, JobReport, Key, ListPage, ListRequest, LockChange, LockClient, LockHeld, LockOwner,
    LockRequest, NodeStatus, Order, PartChoice, PartSource, PartsPage, PeopleChange, Receipt, RenameMode,
    Report, Resolution, Result, SetId, SetInfo, SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload,
    Store, UploadId, UploadInfo, UploadsPage, VersionDelete, VersionDeleted, VersionsPage, VersionsRequest,
    VolumeInfo, VolumeOptions, VolumePolicy, WriteRequest, Writer,
};

use super::record::{RecordedFile, RecordedWriter};
use super::{Decided, Who, full_of};
use crate::action::{Action, order_action};
use crate::decide::Resource;
use crate::guard::Shared;
use crate::origin::Origin;

/// The setting of a volume that says whether its reads are written down. Operators alone change it.
pub const AUDIT_SETTING: &str = "audit";
/// Its value if they are.
pub const AUDIT_FULL: &[u8] = b"full";

/// A store that does what its caller may do, and writes down what it did.
pub struct Guarded {
    pub(super) decided: Decided,
}

/// A call that changes something: its line is written when it is over.
macro_rules! change {
    ($me:ident, $action:ident, $volume:expr, $key:expr, |$s:ident| $call:expr) => {
        change!($me, $action, $volume, $key, |$s| $call, |_| 0, String::new())
    };
    ($me:ident, $action:ident, $volume:expr, $key:expr, |$s:ident| $call:expr, $bytes:expr, $detail:expr) => {{
        let $s = &$me.decided;
        if $me.log().is_none() {
            return $call;
        }
        Box::pin(async move {
            let note = $me.decided.note(Action::$action, $volume, $key).await?;
            let note = note.map(|note| note.detail($detail));
            let answer = $call.await;
            match note {
                Some(note) => note.ends(answer, $bytes).await,
                None => answer,
            }
        })
    }};
}

/// A call that gives a writer: its line is written when the writer is finished.
macro_rules! writer {
    ($me:ident, $action:ident, $volume:expr, $key:expr, |$s:ident| $call:expr) => {{
        let $s = &$me.decided;
        if $me.log().is_none() {
            return $call;
        }
        Box::pin(async move {
            let note = $me.decided.note(Action::$action, $volume, Some($key.as_bytes())).await?;
            RecordedWriter::begin($call.await, note)
        })
    }};
}

/// A call that only looks: it has a line where everything has one.
macro_rules! look {
    ($me:ident, $action:ident, $volume:expr, $key:expr, |$s:ident| $call:expr) => {{
        let $s = &$me.decided;
        if $me.has_none($volume) {
            return $call;
        }
        Box::pin(async move {
            let note = $me.decided.note_full(Action::$action, $volume, Some($key)).await?;
            let answer = $call.await;
            match note {
                Some(note) => note.looked(answer),
                None => answer,
            }
        })
    }};
}

/// A call that opens bytes: the same, and they are given out when the line is durable.
macro_rules! file {
    ($me:ident, $action:ident, $volume:expr, $key:expr, |$s:ident| $call:expr) => {{
        let $s = &$me.decided;
        if $me.has_none($volume) {
            return $call;
        }
        Box::pin(async move {
            let note = $me.decided.note_full(Action::$action, $volume, Some($key.as_bytes())).await?;
            RecordedFile::open($call.await, note).await
        })
    }};
}

impl Guarded {
    pub(crate) fn new(shared: Arc<Shared>, context: Context, who: Who) -> Guarded {
        Guarded { decided: Decided::new(shared, context, who) }
    }

    /// Says where the connection comes from that this view is for.
    pub fn comes_from(&self, origin: Origin) {
        let _ = self.decided.address.set(origin);
    }

    /// Who asks.
    pub fn context(&self) -> &Context {
        self.decided.context()
    }

    /// Decides about a volume as the caller calls it, for an endpoint that wants to know before it goes on. The store decides again.
    pub async fn permit(
        &self,
        action: Action,
        volume: &str,
        resource: impl Fn(&str) -> Resource<'_>,
    ) -> Result<()> {
        self.decided.permit(action, volume, resource).await
    }

    /// The same about a key, or all keys that start so.
    pub async fn permit_key(&self, action: Action, volume: &str, key: &[u8]) -> Result<()> {
        self.decided.permit_key(action, volume, key).await
    }

    pub(crate) fn write_stranger(&self, action: &str, volume: &str, key: Option<&[u8]>, why: &str) {
        self.decided.write_stranger(action, volume, key, why);
    }

    /// Writes down that whoever this view is for was given something by another way than a call of the store.
    pub async fn given(&self, action: &str, detail: String) -> Result<()> {
        self.decided.write_given(action, detail).await
    }

    pub(super) fn log(&self) -> Option<&Arc<Log>> {
        self.decided.shared.log.as_ref()
    }

    /// Whether it is known at once that a call that changes nothing has no line.
    fn has_none(&self, volume: &str) -> bool {
        let Some(log) = self.log() else { return true };
        if log.is_full() {
            return false;
        }
        let Who::Fixed(rights) = &self.decided.who else { return false };
        self.decided.shared.known_full(log, &full_of(rights, volume)) == Some(false)
    }
}

/// What an order does, without what it is given: there may be secrets in it.
fn order_name(order: &Order) -> String {
    let text = match order {
        Order::PeopleChange(change) => return people_change(change),
        Order::Tiers(order) => return order.summary(),
        order => format!("{order:?}"),
    };
    text.chars().take_while(char::is_ascii_alphanumeric).collect()
}

fn people_change(change: &PeopleChange) -> String {
    match change {
        PeopleChange::TenantCreate { tenant } => format!("TenantCreate {tenant}"),
        PeopleChange::TenantDelete { tenant } => format!("TenantDelete {tenant}"),
        PeopleChange::ProjectCreate { tenant, project } => format!("ProjectCreate {tenant}/{project}"),
        PeopleChange::ProjectDelete { tenant, project } => format!("ProjectDelete {tenant}/{project}"),
        PeopleChange::UserCreate { name, .. } => format!("UserCreate {name}"),
        PeopleChange::UserSet { name, .. } => format!("UserSet {name}"),
        PeopleChange::UserToken { name, .. } => format!("UserToken {name}"),
        PeopleChange::UserDelete { name } => format!("UserDelete {name}"),
        PeopleChange::Quota { account, .. } => format!("Quota {account}"),
    }
}

fn job_name(order: &JobOrder) -> String {
    let mut order = order.clone();
    let id = match &mut order {
        JobOrder::Submit(submit) => submit.id.clone(),
        order => order.job_mut().map(|job| job.id.clone()).unwrap_or_default(),
    };
    format!("{} {}", order.word(), id.chars().take(JOB_ID_LEN_MAX).collect::<String>())
}

fn shown(key: &Key) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(key.as_bytes())
}

impl Store for Guarded {
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        self.decided.volumes()
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>> {
        self.decided.volume(name)
    }

    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>> {
        change!(self, VolumeCreate, name, None, |s| s.volume_create(name, options))
    }

    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>> {
        change!(self, VolumeSet, name, None, |s| s.volume_set(name, policy))
    }

    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        change!(self, VolumeDelete, name, None, |s| s.volume_delete(name))
    }

    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        look!(self, Stat, volume, key.as_bytes(), |s| s.stat(volume, key))
    }

    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>> {
        file!(self, Open, volume, key, |s| s.open(volume, key))
    }

    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>> {
        look!(self, List, volume, request.prefix.as_slice(), |s| s.list(volume, request))
    }

    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        writer!(self, Create, volume, key, |s| s.create(volume, key, request))
    }

    fn edit<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        writer!(self, Edit, volume, key, |s| s.edit(volume, key, request))
    }

    fn edit_now<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<Receipt>> {
        let len = bytes.len() as u64;
        change!(
            self,
            EditNow,
            volume,
            Some(key.as_bytes()),
            |s| s.edit_now(volume, key, request, bytes),
            |_| len,
            String::new()
        )
    }

    fn entry<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Entry>> {
        look!(self, Entry, volume, key.as_bytes(), |s| s.entry(volume, key))
    }

    fn directory<'a>(&'a self, volume: &'a str, inode: u64) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.decided.directory(volume, inode)
    }

    fn inodes(&self, count: u32) -> BoxFuture<'_, Result<u64>> {
        self.decided.inodes(count)
    }

    fn lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: LockRequest,
    ) -> BoxFuture<'a, Result<Option<LockHeld>>> {
        look!(self, Lock, volume, key.as_bytes(), |s| s.lock(volume, key, request))
    }

    fn locks_keep<'a>(
        &'a self,
        volume: &'a str,
        client: LockClient,
        owners: Vec<LockOwner>,
    ) -> BoxFuture<'a, Result<Vec<LockOwner>>> {
        self.decided.locks_keep(volume, client, owners)
    }

    fn link<'a>(&'a self, volume: &'a str, from: &'a Key, to: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        change!(
            self,
            Link,
            volume,
            Some(to.as_bytes()),
            |s| s.link(volume, from, to),
            |_| 0,
            format!("of {}", shown(from))
        )
    }

    fn copy(&self, request: CopyRequest) -> BoxFuture<'_, Result<Receipt>> {
        if self.log().is_none() {
            return self.decided.copy(request);
        }
        Box::pin(async move {
            let source = format!("of {}/{}", request.from_volume, shown(&request.from));
            let to = request.to.clone();
            let note = self.decided.note(Action::Copy, &request.to_volume, Some(to.as_bytes())).await?;
            let answer = self.decided.copy(request).await;
            match note {
                Some(note) => note.detail(source).ends(answer, |receipt| receipt.size).await,
                None => answer,
            }
        })
    }

    fn rename<'a>(
        &'a self,
        volume: &'a str,
        from: &'a Key,
        to: &'a Key,
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>> {
        change!(
            self,
            Rename,
            volume,
            Some(from.as_bytes()),
            |s| s.rename(volume, from, to, mode),
            |_| 0,
            format!("to {}", shown(to))
        )
    }

    fn delete<'a>(
        &'a self,
        volume: &'a str,
        keys: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>> {
        Box::pin(self.delete_noted(volume, keys))
    }

    fn versions<'a>(
        &'a self,
        volume: &'a str,
        request: VersionsRequest,
    ) -> BoxFuture<'a, Result<VersionsPage>> {
        look!(self, Versions, volume, request.prefix.as_slice(), |s| s.versions(volume, request))
    }

    fn delete_versions<'a>(
        &'a self,
        volume: &'a str,
        deletes: Vec<VersionDelete>,
    ) -> BoxFuture<'a, Result<Vec<Result<VersionDeleted>>>> {
        Box::pin(self.delete_versions_noted(volume, deletes))
    }

    fn set_version_lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: LockChange,
    ) -> BoxFuture<'a, Result<()>> {
        change!(self, SetVersionLock, volume, Some(key.as_bytes()), |s| s
            .set_version_lock(volume, key, change))
    }

    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>> {
        change!(self, SetAttributes, volume, Some(key.as_bytes()), |s| s.set_attributes(volume, key, change))
    }

    fn volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        self.decided.volume_setting(volume, name)
    }

    fn set_volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
        document: Option<Vec<u8>>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if name == AUDIT_SETTING {
                // A tenant does not choose what is written down of it.
                self.decided.permit(Action::VolumeSet, volume, |full| Resource::Volume(full)).await?;
            }
            let note = self.decided.note(Action::SetVolumeSetting, volume, None).await?;
            let answer = self.decided.set_volume_setting(volume, name, document).await;
            let Some(note) = note else { return answer };
            self.decided.shared.forget_full(&note.volume());
            note.detail(name.to_owned()).ends(answer, |()| 0).await
        })
    }

    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        change!(self, UploadCreate, volume, Some(key.as_bytes()), |s| s
            .upload_create(volume, key, attributes, checksum))
    }

    fn upload_create_full<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: ChecksumKind,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        change!(self, UploadCreateFull, volume, Some(key.as_bytes()), |s| s
            .upload_create_full(volume, key, attributes, checksum))
    }

    fn upload_part_open<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
    ) -> BoxFuture<'a, Result<Box<dyn File>>> {
        file!(self, UploadPartOpen, volume, key, |s| s.upload_part_open(volume, key, upload, number))
    }

    fn part_checksums<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(VersionId, Vec<Checksum>)>> {
        look!(self, PartChecksums, volume, key.as_bytes(), |s| s.part_checksums(volume, key))
    }

    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        writer!(self, UploadPart, volume, key, |s| s.upload_part(volume, key, upload, number, size))
    }

    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>> {
        if self.log().is_none() {
            return self.decided.upload_part_copy(volume, key, upload, number, source);
        }
        Box::pin(async move {
            let detail = format!("of {}/{}", source.volume, shown(&source.key));
            let note = self.decided.note(Action::UploadPartCopy, volume, Some(key.as_bytes())).await?;
            let answer = self.decided.upload_part_copy(volume, key, upload, number, source).await;
            match note {
                Some(note) => note.detail(detail).ends(answer, |receipt| receipt.size).await,
                None => answer,
            }
        })
    }

    fn upload_parts<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        after: u32,
        limit: usize,
    ) -> BoxFuture<'a, Result<PartsPage>> {
        look!(self, UploadParts, volume, key.as_bytes(), |s| s
            .upload_parts(volume, key, upload, after, limit))
    }

    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>> {
        look!(self, Uploads, volume, prefix, |s| s.uploads(volume, prefix, after, limit))
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
        change!(
            self,
            UploadComplete,
            volume,
            Some(key.as_bytes()),
            |s| s.upload_complete(volume, key, upload, parts, condition, finish),
            |receipt: &Receipt| receipt.size,
            String::new()
        )
    }

    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>> {
        change!(self, UploadAbort, volume, Some(key.as_bytes()), |s| s.upload_abort(volume, key, upload))
    }

    fn set_begin<'a>(&'a self, volume: &'a str, request: SetRequest) -> BoxFuture<'a, Result<SetInfo>> {
        change!(self, SetBegin, volume, Some(request.target.as_bytes()), |s| s.set_begin(volume, request))
    }

    fn set_shard<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        request: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        writer!(self, SetShard, volume, key, |s| s.set_shard(volume, key, set, request))
    }

    fn set_shard_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        shard: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>> {
        change!(
            self,
            SetShardComplete,
            volume,
            Some(key.as_bytes()),
            |s| s.set_shard_complete(volume, key, set, shard),
            |receipt: &Receipt| receipt.size,
            String::new()
        )
    }

    fn set_publish<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        change!(self, SetPublish, volume, None, |s| s.set_publish(volume, set), |_| 0, format!("set {set}"))
    }

    fn set_abort<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        change!(self, SetAbort, volume, None, |s| s.set_abort(volume, set), |_| 0, format!("set {set}"))
    }

    fn set_status<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetStatus>> {
        self.decided.set_status(volume, set)
    }

    fn set_find<'a>(&'a self, volume: &'a str, path: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        look!(self, SetFind, volume, path.as_bytes(), |s| s.set_find(volume, path))
    }

    fn sets<'a>(
        &'a self,
        volume: &'a str,
        after: Option<SetId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<SetsPage>> {
        self.decided.sets(volume, after, limit)
    }

    fn set_latest<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        look!(self, SetLatest, volume, prefix, |s| s.set_latest(volume, prefix))
    }

    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>> {
        look!(self, Receipt, volume, key.as_bytes(), |s| s.receipt(volume, key))
    }

    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>> {
        self.decided.wait(volume, key, version, awaited)
    }

    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>> {
        change!(self, Drain, volume, Some(prefix), |s| s.drain(volume, prefix))
    }

    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>> {
        look!(self, Stage, volume, key.as_bytes(), |s| s.stage(volume, key))
    }

    fn job(&self, order: JobOrder) -> BoxFuture<'_, Result<JobReport>> {
        if order.only_reads() {
            return self.decided.job(order);
        }
        let detail = job_name(&order);
        change!(self, JobChange, "", None, |s| s.job(order), |_| 0, detail)
    }

    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>> {
        self.decided.conflicts(volume)
    }

    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>> {
        change!(self, ConflictResolve, volume, Some(key.as_bytes()), |s| s
            .conflict_resolve(volume, key, resolution))
    }

    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>> {
        self.decided.access_keys()
    }

    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>> {
        self.decided.access_key(access_key)
    }

    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>> {
        let detail = key.access_key.clone();
        change!(self, AccessKeyPut, "", None, |s| s.access_key_put(key), |_| 0, detail)
    }

    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>> {
        change!(
            self,
            AccessKeyDelete,
            "",
            None,
            |s| s.access_key_delete(access_key),
            |_| 0,
            access_key.to_owned()
        )
    }

    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>> {
        look!(self, Explain, volume, key.as_bytes(), |s| s.explain(volume, key))
    }

    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        self.decided.status()
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        self.decided.counters()
    }

    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>> {
        if self.log().is_none() || order_action(&order) != Action::Operate {
            return self.decided.operate(order);
        }
        let detail = order_name(&order);
        change!(self, Operate, "", None, |s| s.operate(order), |_| 0, detail)
    }
}
