//! Every call of the store: what it is about, whether it may be, and then the call.

use bytes::Bytes;
use stoker_format::VersionId;
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, BoxFuture, Checksum, ChecksumKind, Condition, Conflict,
    CopyRequest, Counter, EditRequest, Entry, ErrorKind, Explanation, File, FileInfo, Finish, JobOrder,
    JobReport, Key, ListPage, ListRequest, LockChange, LockClient, LockHeld, LockOwner, LockRequest,
    NodeStatus, Order, PartChoice, PartSource, PartsPage, Receipt, RenameMode, Report, Resolution, Result,
    SetId, SetInfo, SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload, Store, StoreError, Subject,
    UploadId, UploadInfo, UploadsPage, VersionDelete, VersionDeleted, VersionsPage, VersionsRequest,
    VolumeInfo, VolumeOptions, VolumePolicy, WriteRequest, Writer, volume_tenant,
};

use super::{Decided, POLICY_SETTING, Who, full_of, is_limited, own_is_full, own_of, refused, told};
use crate::action::{Action, order_action};
use crate::decide::{Reason, Resource, Rights, decide};
use crate::policy::{Fault as PolicyFault, Policy, name_of_setting};
use crate::told::Told;

/// Decides, and calls the store behind with the full name of the volume.
macro_rules! at {
    ($me:ident, $action:ident, $volume:expr, |$v:ident| $resource:expr, |$s:ident| $call:expr) => {{
        if let Who::Fixed(rights) = &$me.who
            && own_is_full(rights, $volume)
            && $me.is_free(rights, $volume)
        {
            let $v = $volume;
            if let Err(fault) = $me.judge(rights, Action::$action, $resource) {
                return refused(fault);
            }
            let $s: &dyn Store = &*$me.shared.store;
            return $call;
        }
        Box::pin(async move {
            let rights = $me.rights().await?;
            let full = full_of(&rights, $volume);
            let $v: &str = &full;
            $me.know(&rights, $v).await?;
            $me.judge(&rights, Action::$action, $resource)?;
            let $s: &dyn Store = &*$me.shared.store;
            let answer = $me.on_behalf($call).await;
            told(answer, $v, $volume)
        })
    }};
}

/// The same for a set that is named by its number: whoever sees a part of a volume alone sees the sets of that part.
macro_rules! of_set {
    ($me:ident, $action:ident, $volume:expr, $set:expr, |$v:ident, $s:ident| $call:expr) => {{
        if let Who::Fixed(rights) = &$me.who
            && own_is_full(rights, $volume)
            && !is_limited(rights)
            && $me.is_free(rights, $volume)
        {
            let $v = $volume;
            if let Err(fault) = $me.judge(rights, Action::$action, Resource::Key($v, b"")) {
                return refused(fault);
            }
            let $s: &dyn Store = &*$me.shared.store;
            return $call;
        }
        Box::pin(async move {
            let rights = $me.rights().await?;
            let full = full_of(&rights, $volume);
            let $v: &str = &full;
            $me.know(&rights, $v).await?;
            $me.judge(&rights, Action::$action, Resource::Glimpse($v))?;
            let $s: &dyn Store = &*$me.shared.store;
            if is_limited(&rights) || !$me.is_free(&rights, $v) {
                let info = told($s.set_status($v, $set).await, $v, $volume)?.info;
                $me.judge(&rights, Action::$action, Resource::Key($v, info.path.as_bytes()))?;
            }
            let answer = $me.on_behalf($call).await;
            told(answer, $v, $volume)
        })
    }};
}

/// The same for what is about no volume.
macro_rules! on_cluster {
    ($me:ident, $action:expr, |$s:ident| $call:expr) => {{
        let action = $action;
        if let Who::Fixed(rights) = &$me.who {
            if let Err(fault) = $me.judge(rights, action, Resource::Cluster) {
                return refused(fault);
            }
            let $s: &dyn Store = &*$me.shared.store;
            return $call;
        }
        Box::pin(async move {
            let rights = $me.rights().await?;
            $me.judge(&rights, action, Resource::Cluster)?;
            let $s: &dyn Store = &*$me.shared.store;
            $call.await
        })
    }};
}

impl Store for Decided {
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            self.judge(&rights, Action::Volumes, Resource::Cluster)?;
            let mut volumes = self.shared.store.volumes().await?;
            volumes.retain(|volume| {
                decide(&rights, Action::Volume, Resource::Glimpse(&volume.name)).is_allowed()
            });
            for volume in &mut volumes {
                let full = std::mem::take(&mut volume.name);
                own_of(&rights, &full).clone_into(&mut volume.name);
                let own = volume.name.clone();
                volume.rename(&full, &own);
            }
            Ok(volumes)
        })
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>> {
        at!(self, Volume, name, |v| Resource::Glimpse(v), |s| s.volume(v))
    }

    /// Where a volume drains says whose bytes it shows, so that only operators choose it.
    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, name);
            self.judge(&rights, Action::VolumeCreate, Resource::Volume(&full))?;
            if matches!(*rights, Rights::Member(_)) && options != VolumeOptions::default() {
                return Err(Reason::Operators.fault());
            }
            match self.shared.store.volume_create(&full, options).await {
                // What else there is, and where, is nothing for a tenant.
                Err(fault) if fault.subject == Subject::Lake && *full != *name => {
                    let message = format!("volume `{name}` cannot be made now; ask who runs the cluster");
                    Err(StoreError { message, ..fault })
                }
                answer => told(answer, &full, name),
            }
        })
    }

    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>> {
        at!(self, VolumeSet, name, |v| Resource::Volume(v), |s| s.volume_set(v, policy))
    }

    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        at!(self, VolumeDelete, name, |v| Resource::Volume(v), |s| s.volume_delete(v))
    }

    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        at!(self, Stat, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.stat(v, key))
    }

    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>> {
        at!(self, Open, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.open(v, key))
    }

    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>> {
        at!(self, List, volume, |v| Resource::Key(v, &request.prefix), |s| s.list(v, request))
    }

    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        at!(self, Create, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.create(v, key, request))
    }

    fn edit<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        at!(self, Edit, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.edit(v, key, request))
    }

    fn edit_now<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<Receipt>> {
        at!(self, EditNow, volume, |v| Resource::Key(v, key.as_bytes()), |s| s
            .edit_now(v, key, request, bytes))
    }

    fn entry<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Entry>> {
        at!(self, Entry, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.entry(v, key))
    }

    fn directory<'a>(&'a self, volume: &'a str, inode: u64) -> BoxFuture<'a, Result<Vec<u8>>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            self.judge(&rights, Action::Directory, Resource::Glimpse(&full))?;
            let found = told(self.shared.store.directory(&full, inode).await, &full, volume)?;
            self.judge(&rights, Action::Directory, Resource::Key(&full, &found))?;
            Ok(found)
        })
    }

    fn inodes(&self, count: u32) -> BoxFuture<'_, Result<u64>> {
        on_cluster!(self, Action::Inodes, |s| s.inodes(count))
    }

    /// A lock is of a number, and who may see a part of a volume alone may not keep others from the rest of it.
    fn lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: LockRequest,
    ) -> BoxFuture<'a, Result<Option<LockHeld>>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            self.judge(&rights, Action::Lock, Resource::Key(&full, key.as_bytes()))?;
            let store = &self.shared.store;
            if is_limited(&rights) && (request.kind.is_some() || request.is_test) {
                let entry = told(store.entry(&full, key).await, &full, volume)?;
                let is_file = entry.file.is_some_and(|file| file.inode == request.inode);
                let is_directory = entry.directory.is_some_and(|found| found.inode == request.inode);
                if !is_file && !is_directory {
                    let message = "another file than the one to be locked has this name";
                    return Err(StoreError::new(ErrorKind::NotFound, message));
                }
            }
            told(store.lock(&full, key, request).await, &full, volume)
        })
    }

    fn locks_keep<'a>(
        &'a self,
        volume: &'a str,
        client: LockClient,
        owners: Vec<LockOwner>,
    ) -> BoxFuture<'a, Result<Vec<LockOwner>>> {
        at!(self, LocksKeep, volume, |v| Resource::Glimpse(v), |s| s.locks_keep(v, client, owners))
    }

    fn link<'a>(&'a self, volume: &'a str, from: &'a Key, to: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            for key in [from, to] {
                self.judge(&rights, Action::Link, Resource::Key(&full, key.as_bytes()))?;
            }
            told(self.on_behalf(self.shared.store.link(&full, from, to)).await, &full, volume)
        })
    }

    fn copy(&self, mut request: CopyRequest) -> BoxFuture<'_, Result<Receipt>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let source = full_of(&rights, &request.from_volume).into_owned();
            let target = full_of(&rights, &request.to_volume).into_owned();
            self.know(&rights, &source).await?;
            self.know(&rights, &target).await?;
            self.judge(&rights, Action::Open, Resource::Key(&source, request.from.as_bytes()))?;
            self.judge(&rights, Action::Copy, Resource::Key(&target, request.to.as_bytes()))?;
            let own = std::mem::replace(&mut request.to_volume, target.clone());
            let own_source = std::mem::replace(&mut request.from_volume, source.clone());
            let answer = told(self.on_behalf(self.shared.store.copy(request)).await, &target, &own);
            answer.map_err(|mut fault| {
                fault.rename(&source, &own_source);
                fault
            })
        })
    }

    fn rename<'a>(
        &'a self,
        volume: &'a str,
        from: &'a Key,
        to: &'a Key,
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            for key in [from, to] {
                self.judge(&rights, Action::Rename, Resource::Key(&full, key.as_bytes()))?;
            }
            told(self.shared.store.rename(&full, from, to, mode).await, &full, volume)
        })
    }

    /// Each key has an answer of its own, also if it is no.
    fn delete<'a>(
        &'a self,
        volume: &'a str,
        keys: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>> {
        if let Who::Fixed(rights) = &self.who
            && own_is_full(rights, volume)
            && !is_limited(rights)
            && self.is_free(rights, volume)
        {
            if let Err(fault) = self.judge(rights, Action::Delete, Resource::Key(volume, b"")) {
                return refused(fault);
            }
            return self.shared.store.delete(volume, keys);
        }
        Box::pin(self.delete_each(volume, keys))
    }

    fn versions<'a>(
        &'a self,
        volume: &'a str,
        request: VersionsRequest,
    ) -> BoxFuture<'a, Result<VersionsPage>> {
        at!(self, Versions, volume, |v| Resource::Key(v, &request.prefix), |s| s.versions(v, request))
    }

    fn delete_versions<'a>(
        &'a self,
        volume: &'a str,
        deletes: Vec<VersionDelete>,
    ) -> BoxFuture<'a, Result<Vec<Result<VersionDeleted>>>> {
        Box::pin(self.delete_each_version(volume, deletes))
    }

    fn set_version_lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: LockChange,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.lock_version(volume, key, change))
    }

    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>> {
        at!(self, SetAttributes, volume, |v| Resource::Key(v, key.as_bytes()), |s| s
            .set_attributes(v, key, change))
    }

    fn volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        at!(self, VolumeSetting, volume, |v| Resource::Glimpse(v), |s| s.volume_setting(v, name))
    }

    fn set_volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
        document: Option<Vec<u8>>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            let names = name_of_setting(name);
            self.judge_as(names, &rights, Action::SetVolumeSetting, Resource::Volume(&full))?;
            if let (POLICY_SETTING, Some(document)) = (name, &document) {
                let (tenant, bucket) = volume_tenant(&full);
                Policy::parse(document, bucket, tenant).map_err(PolicyFault::into_error)?;
            }
            let answer = self.shared.store.set_volume_setting(&full, name, document).await;
            self.shared.policies.forget(&full);
            told(answer, &full, volume)
        })
    }

    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        at!(self, UploadCreate, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_create(v, key, attributes, checksum)
        })
    }

    fn upload_create_full<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: ChecksumKind,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        at!(self, UploadCreateFull, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_create_full(v, key, attributes, checksum)
        })
    }

    fn upload_part_open<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
    ) -> BoxFuture<'a, Result<Box<dyn File>>> {
        at!(self, UploadPartOpen, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_part_open(v, key, upload, number)
        })
    }

    fn part_checksums<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(VersionId, Vec<Checksum>)>> {
        at!(self, PartChecksums, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.part_checksums(v, key))
    }

    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        at!(self, UploadPart, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_part(v, key, upload, number, size)
        })
    }

    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        mut source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            let from = full_of(&rights, &source.volume).into_owned();
            self.know(&rights, &from).await?;
            self.judge(&rights, Action::Open, Resource::Key(&from, source.key.as_bytes()))?;
            self.judge(&rights, Action::UploadPartCopy, Resource::Key(&full, key.as_bytes()))?;
            let own = std::mem::replace(&mut source.volume, from.clone());
            let answer = self.shared.store.upload_part_copy(&full, key, upload, number, source).await;
            told(answer, &full, volume).map_err(|mut fault| {
                fault.rename(&from, &own);
                fault
            })
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
        at!(self, UploadParts, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_parts(v, key, upload, after, limit)
        })
    }

    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>> {
        at!(self, Uploads, volume, |v| Resource::Key(v, prefix), |s| s.uploads(v, prefix, after, limit))
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
        at!(self, UploadComplete, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.upload_complete(v, key, upload, parts, condition, finish)
        })
    }

    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>> {
        at!(self, UploadAbort, volume, |v| Resource::Key(v, key.as_bytes()), |s| s
            .upload_abort(v, key, upload))
    }

    fn set_begin<'a>(&'a self, volume: &'a str, request: SetRequest) -> BoxFuture<'a, Result<SetInfo>> {
        at!(self, SetBegin, volume, |v| Resource::Key(v, request.target.as_bytes()), |s| s
            .set_begin(v, request))
    }

    fn set_shard<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        request: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        at!(self, SetShard, volume, |v| Resource::Key(v, key.as_bytes()), |s| s
            .set_shard(v, key, set, request))
    }

    fn set_shard_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        shard: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>> {
        at!(self, SetShardComplete, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.set_shard_complete(v, key, set, shard)
        })
    }

    fn set_publish<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        of_set!(self, SetPublish, volume, set, |v, s| s.set_publish(v, set))
    }

    fn set_abort<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        of_set!(self, SetAbort, volume, set, |v, s| s.set_abort(v, set))
    }

    fn set_status<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetStatus>> {
        of_set!(self, SetStatus, volume, set, |v, s| s.set_status(v, set))
    }

    fn set_find<'a>(&'a self, volume: &'a str, path: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        at!(self, SetFind, volume, |v| Resource::Key(v, path.as_bytes()), |s| s.set_find(v, path))
    }

    fn sets<'a>(
        &'a self,
        volume: &'a str,
        after: Option<SetId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<SetsPage>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = full_of(&rights, volume);
            self.know(&rights, &full).await?;
            self.judge(&rights, Action::Sets, Resource::Glimpse(&full))?;
            let mut after = after;
            loop {
                let mut page = told(self.shared.store.sets(&full, after, limit).await, &full, volume)?;
                let last = page.sets.last().map(|info| info.set);
                page.sets.retain(|info| {
                    decide(&rights, Action::Sets, Resource::Key(&full, info.path.as_bytes())).is_allowed()
                });
                // Nobody could go on behind a page without an end.
                if !page.sets.is_empty() || !page.more || last.is_none() {
                    return Ok(page);
                }
                after = last;
            }
        })
    }

    fn set_latest<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        at!(self, SetLatest, volume, |v| Resource::Key(v, prefix), |s| s.set_latest(v, prefix))
    }

    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>> {
        at!(self, Receipt, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.receipt(v, key))
    }

    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>> {
        at!(self, Wait, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.wait(v, key, version, awaited))
    }

    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>> {
        at!(self, Drain, volume, |v| Resource::Key(v, prefix), |s| s.drain(v, prefix))
    }

    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>> {
        at!(self, Stage, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.stage(v, key))
    }

    fn job(&self, order: JobOrder) -> BoxFuture<'_, Result<JobReport>> {
        Box::pin(self.job_decided(order))
    }

    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            let full = volume.map(|volume| full_of(&rights, volume));
            let resource = full.as_deref().map_or(Resource::Cluster, Resource::Glimpse);
            self.judge(&rights, Action::Conflicts, resource)?;
            let mut found = self.shared.store.conflicts(full.as_deref()).await.map_err(|mut fault| {
                if let (Some(full), Some(own)) = (&full, volume) {
                    fault.rename(full, own);
                }
                fault
            })?;
            let place = |one: &Conflict| {
                decide(&rights, Action::Conflicts, Resource::Key(&one.volume, one.file.key.as_bytes()))
            };
            found.retain(|conflict| place(conflict).is_allowed());
            for conflict in &mut found {
                conflict.volume = own_of(&rights, &conflict.volume).to_owned();
            }
            Ok(found)
        })
    }

    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>> {
        at!(self, ConflictResolve, volume, |v| Resource::Key(v, key.as_bytes()), |s| {
            s.conflict_resolve(v, key, resolution)
        })
    }

    /// Secrets are for operators alone.
    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>> {
        Box::pin(async move {
            let rights = self.rights().await?;
            self.judge(&rights, Action::AccessKeys, Resource::Cluster)?;
            let mut keys = self.shared.store.access_keys().await?;
            if !matches!(*rights, Rights::Operator) {
                keys.iter_mut().for_each(|key| key.secret_key.clear());
            }
            Ok(keys)
        })
    }

    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>> {
        on_cluster!(self, Action::AccessKey, |s| s.access_key(access_key))
    }

    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>> {
        on_cluster!(self, Action::AccessKeyPut, |s| s.access_key_put(key))
    }

    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>> {
        on_cluster!(self, Action::AccessKeyDelete, |s| s.access_key_delete(access_key))
    }

    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>> {
        at!(self, Explain, volume, |v| Resource::Key(v, key.as_bytes()), |s| s.explain(v, key))
    }

    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        on_cluster!(self, Action::Status, |s| s.status())
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        on_cluster!(self, Action::Counters, |s| s.counters())
    }

    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>> {
        let changes_people = matches!(order, Order::PeopleChange(_));
        if !changes_people {
            on_cluster!(self, order_action(&order), |s| s.operate(order))
        } else {
            Box::pin(async move {
                let rights = self.rights().await?;
                self.judge(&rights, order_action(&order), Resource::Cluster)?;
                let report = self.shared.store.operate(order).await;
                self.shared.forget();
                report
            })
        }
    }
}
