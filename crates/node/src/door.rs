//! The door's calls, each handed to the part that does it.

use stoker_format::VersionId;
use stoker_qos::{Class, Tag};
use stoker_schema::rows::keys;
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, BoxFuture, Checksum, ChecksumKind, Condition, Conflict,
    CopyRequest, Counter, EditRequest, Entry, ErrorKind, Explanation, File, FileInfo, Finish, INODES_MAX,
    JobOrder, JobReport, Key, ListPage, ListRequest, LockChange, LockClient, LockHeld, LockOwner,
    LockRequest, NodeStatus, Order, PartChoice, PartSource, PartsPage, Receipt, RenameMode, Report,
    Resolution, Result, SetId, SetInfo, SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload, Store,
    StoreError, Subject, UploadId, UploadInfo, UploadsPage, VersionDelete, VersionDeleted, VersionsPage,
    VersionsRequest, VolumeInfo, VolumeOptions, VolumePolicy, WriteRequest, Writer,
};

use crate::admission::working;
use crate::core::{Core, add};
use crate::lookup::no_such_key;
use crate::node::Node;
use crate::rotate::{ACCESS_KEY_LEN_MAX, StoredKey, check_key};
use crate::writer::ChunkWriter;
use crate::{clock, error};

impl Store for Node {
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        Box::pin(self.core.volumes_view())
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>> {
        Box::pin(async move { self.core.volumes.info(&*self.core.volumes.get(name).await?).await })
    }

    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>> {
        Box::pin(async move {
            self.core.check_open()?;
            self.core.check_no_witness()?;
            let volume = self.core.volumes.create(name, options).await?;
            self.core.keep_rows().await?;
            self.core.settle_leases(&volume).await;
            self.core.drainer.wake();
            self.core.volumes.info(&volume).await
        })
    }

    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.set(name, policy).await?;
            self.core.keep_rows().await?;
            self.core.settle_leases(&volume).await;
            self.core.drainer.reload();
            self.core.volumes.info(&volume).await
        })
    }

    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(name).await?;
            self.core.sets_forget(&volume).await?;
            self.core.volumes.delete(&volume).await?;
            self.core.keep_rows().await?;
            self.core.drainer.wake();
            self.core.end_leases(&volume).await
        })
    }

    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let path = &self.core.version_path(&volume, key).await?[..];
            let seen = self.core.seen(&volume, path).await?.ok_or_else(|| no_such_key(path))?;
            let mut info = Core::info(path, &seen.file)?;
            info.part_sizes = self.core.names.upload_part_sizes(&seen.file).await.map_err(error::catalog)?;
            info.expires = self.core.expires(&volume, path, &info);
            self.core.count_links(&volume, [&mut info]).await?;
            Ok(info)
        })
    }

    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>> {
        Box::pin(async move {
            self.core.check_open()?;
            let volume = self.core.volumes.get(volume).await?;
            add(&self.core.stats.opens, 1);
            self.core.recency.note(volume.id, key.as_bytes());
            let file = self.core.open_version(&volume, key).await?;
            Ok(Box::new(file) as Box<dyn File>)
        })
    }

    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.list_page(&volume, request).await
        })
    }

    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let writer = self.core.begin_write(volume, key, request).await?;
            Ok(Box::new(writer) as Box<dyn Writer>)
        })
    }

    fn edit<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let writer = self.core.begin_edit(volume, key, request).await?;
            Ok(Box::new(writer) as Box<dyn Writer>)
        })
    }

    fn entry<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Entry>> {
        Box::pin(async move {
            self.core.check_open()?;
            let volume = self.core.volumes.get(volume).await?;
            self.core.entry_of(&volume, key.as_bytes()).await
        })
    }

    fn directory<'a>(&'a self, volume: &'a str, inode: u64) -> BoxFuture<'a, Result<Vec<u8>>> {
        Box::pin(async move {
            self.core.check_open()?;
            let volume = self.core.volumes.get(volume).await?;
            self.core.directory_of(&volume, inode).await
        })
    }

    fn inodes(&self, count: u32) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            if count == 0 || count > INODES_MAX {
                let message = format!("1 to {INODES_MAX} numbers are handed out at once");
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            self.core.names.inodes().reserve(u64::from(count)).await.map_err(error::catalog)
        })
    }

    fn copy(&self, request: CopyRequest) -> BoxFuture<'_, Result<Receipt>> {
        let core = self.core.clone();
        Box::pin(async move { self.core.to_the_end(async move { core.copy_file(request).await }).await })
    }

    fn link<'a>(&'a self, volume: &'a str, from: &'a Key, to: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, from, to) = (self.core.clone(), from.clone(), to.clone());
            self.core.to_the_end(async move { core.link_file(&volume, &from, &to).await }).await
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
            let volume = self.core.volumes.get(volume).await?;
            let (core, from, to) = (self.core.clone(), from.clone(), to.clone());
            self.core.to_the_end(async move { core.rename_any(&volume, &from, &to, mode).await }).await
        })
    }

    fn delete<'a>(
        &'a self,
        volume: &'a str,
        requests: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let delete = |(key, condition): (Key, Condition)| -> BoxFuture<'a, Result<bool>> {
                let (core, volume) = (self.core.clone(), volume.clone());
                let delete = async move { core.delete_file(&volume, key.as_bytes(), &condition).await };
                Box::pin(self.core.to_the_end(delete))
            };
            // Together, so that they share commits of the catalog and writes of the drive.
            use futures_util::StreamExt;
            Ok(futures_util::stream::iter(requests).map(delete).buffered(64).collect().await)
        })
    }

    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key) = (self.core.clone(), key.clone());
            let change = async move {
                let path = core.version_path(&volume, &key).await?;
                core.change_attributes(&volume, &path, change).await
            };
            self.core.to_the_end(change).await
        })
    }

    fn lock<'a>(
        &'a self,
        volume: &'a str,
        _key: &'a Key,
        request: LockRequest,
    ) -> BoxFuture<'a, Result<Option<LockHeld>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.lock_file(&volume, request).await
        })
    }

    fn locks_keep<'a>(
        &'a self,
        volume: &'a str,
        client: LockClient,
        owners: Vec<LockOwner>,
    ) -> BoxFuture<'a, Result<Vec<LockOwner>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.locks_keep_of(&volume, client, owners).await
        })
    }

    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        Box::pin(self.core.upload_begin(volume, key, attributes, checksum, false))
    }

    fn upload_create_full<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: ChecksumKind,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        Box::pin(self.core.upload_begin(volume, key, attributes, Some(checksum), true))
    }

    fn upload_part_open<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
    ) -> BoxFuture<'a, Result<Box<dyn File>>> {
        Box::pin(self.core.open_part(volume, key, upload, number))
    }

    fn part_checksums<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(VersionId, Vec<Checksum>)>> {
        Box::pin(self.core.part_checksums(volume, key))
    }

    fn versions<'a>(
        &'a self,
        volume: &'a str,
        request: VersionsRequest,
    ) -> BoxFuture<'a, Result<VersionsPage>> {
        Box::pin(async move {
            self.core.check_open()?;
            let volume = self.core.volumes.get(volume).await?;
            self.core.versions_page(&volume, request).await
        })
    }

    fn delete_versions<'a>(
        &'a self,
        volume: &'a str,
        deletes: Vec<VersionDelete>,
    ) -> BoxFuture<'a, Result<Vec<Result<VersionDeleted>>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let delete = |delete: VersionDelete| -> BoxFuture<'a, Result<VersionDeleted>> {
                let (core, volume) = (self.core.clone(), volume.clone());
                let delete = async move { core.delete_version(&volume, delete).await };
                Box::pin(self.core.to_the_end(delete))
            };
            use futures_util::StreamExt;
            Ok(futures_util::stream::iter(deletes).map(delete).buffered(64).collect().await)
        })
    }

    fn set_version_lock<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: LockChange,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key) = (self.core.clone(), key.clone());
            self.core.to_the_end(async move { core.change_lock(&volume, &key, change).await }).await
        })
    }

    fn volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        Box::pin(self.core.setting(volume, name))
    }

    fn set_volume_setting<'a>(
        &'a self,
        volume: &'a str,
        name: &'a str,
        document: Option<Vec<u8>>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.core.set_setting(volume, name, document))
    }

    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            self.core.check_open()?;
            let volume = self.core.volumes.get(volume).await?;
            self.core.check_writable(&volume)?;
            self.core.check_room(&volume, key.as_bytes(), size.unwrap_or(1)).await?;
            let purpose = self.core.part_purpose(&volume, key, upload, number).await?;
            Ok(Box::new(ChunkWriter::new(self.core.clone(), volume, size, Box::new(purpose)))
                as Box<dyn Writer>)
        })
    }

    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key, upload) = (self.core.clone(), key.clone(), upload.clone());
            let copy = async move { core.copy_part(&volume, &key, &upload, number, source).await };
            self.core.to_the_end(copy).await
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
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.parts_page(&volume, key, upload, after, limit).await
        })
    }

    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.uploads_page(&volume, prefix, after, limit).await
        })
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
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key, upload) = (self.core.clone(), key.clone(), upload.clone());
            let complete =
                async move { core.complete(&volume, &key, &upload, parts, condition, finish).await };
            self.core.to_the_end(complete).await
        })
    }

    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key, upload) = (self.core.clone(), key.clone(), upload.clone());
            self.core.to_the_end(async move { core.abort(&volume, &key, &upload).await }).await
        })
    }

    fn set_begin<'a>(&'a self, volume: &'a str, request: SetRequest) -> BoxFuture<'a, Result<SetInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.set_begin(&volume, request).await
        })
    }

    fn set_shard<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        request: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let writer = self.core.shard_begin(volume, key, set, request).await?;
            Ok(Box::new(writer) as Box<dyn Writer>)
        })
    }

    fn set_shard_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        set: SetId,
        shard: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key) = (self.core.clone(), key.clone());
            self.core.to_the_end(async move { core.complete_shard(&volume, &key, set, shard).await }).await
        })
    }

    fn set_publish<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let core = self.core.clone();
            self.core.to_the_end(async move { core.set_publish(&volume, set).await }).await
        })
    }

    fn set_abort<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let core = self.core.clone();
            self.core.to_the_end(async move { core.set_abort(&volume, set).await }).await
        })
    }

    fn set_status<'a>(&'a self, volume: &'a str, set: SetId) -> BoxFuture<'a, Result<SetStatus>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.set_status(&volume, set).await
        })
    }

    fn set_find<'a>(&'a self, volume: &'a str, path: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.set_find(&volume, path).await
        })
    }

    fn sets<'a>(
        &'a self,
        volume: &'a str,
        after: Option<SetId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<SetsPage>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.sets_page(&volume, after, limit).await
        })
    }

    fn set_latest<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.set_latest(&volume, prefix).await
        })
    }

    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.receipt_of(&volume, key).await
        })
    }

    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.await_state(&volume, key, version, awaited).await
        })
    }

    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.drain_prefix(&volume, prefix).await
        })
    }

    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let path = key.as_bytes();
            let seen = self.core.seen(&volume, path).await?.ok_or_else(|| no_such_key(path))?;
            let extent = self.core.extent(&volume, &seen.file).await?;
            let file = self.core.open_file(&volume, path).await?;
            let work = Tag { class: Class::Stage, ..self.core.work_on(&volume) };
            working(work, self.core.stage_file(&file, extent.as_ref())).await
        })
    }

    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>> {
        Box::pin(self.core.conflict_list(volume))
    }

    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            let (core, key) = (self.core.clone(), key.clone());
            let resolve = async move { core.resolve_conflict(&volume, &key, resolution).await };
            self.core.to_the_end(resolve).await
        })
    }

    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>> {
        Box::pin(async move {
            let mut found = Vec::new();
            self.core
                .each(b"A".to_vec(), |row| {
                    match StoredKey::of(row, &self.core.wrapping) {
                        Ok(stored) => found.extend(stored.working(clock::now_ms())),
                        // One that nobody can use must not hide the others.
                        Err(fault) if fault.kind == ErrorKind::Denied => tracing::warn!("{}", fault.message),
                        Err(fault) => return Err(fault),
                    }
                    Ok(())
                })
                .await?;
            Ok(found)
        })
    }

    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>> {
        Box::pin(async move {
            if access_key.len() > ACCESS_KEY_LEN_MAX {
                return Ok(None);
            }
            let key = keys::access_key(access_key);
            let row = self.core.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
            let stored = row.as_ref().map(|row| StoredKey::of(row, &self.core.wrapping)).transpose()?;
            Ok(stored.and_then(|stored| stored.working(clock::now_ms())))
        })
    }

    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_key(&key)?;
            let row_key = keys::access_key(&key.access_key);
            let row = StoredKey { key, expires_ms: None, lifetime_ms: None };
            let commit = stoker_catalog::Commit::new().put(row_key, row.encode(&self.core.wrapping));
            let _ = self.core.catalog.commit(commit).await.map_err(error::catalog)?;
            self.core.keep_rows().await
        })
    }

    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let key = keys::access_key(access_key);
            let commit = stoker_catalog::Commit::new().present(key.clone()).delete(key);
            match self.core.catalog.commit(commit).await.map_err(error::catalog)? {
                stoker_catalog::Outcome::Done { .. } => self.core.keep_rows().await,
                stoker_catalog::Outcome::Failed { .. } => {
                    let message = format!("there is no access key `{access_key}`");
                    Err(StoreError::about(ErrorKind::NotFound, Subject::AccessKey, message))
                }
            }
        })
    }

    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>> {
        Box::pin(async move {
            let volume = self.core.volumes.get(volume).await?;
            self.core.explain_file(&volume, key).await
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        Box::pin(self.core.node_status())
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        Box::pin(self.core.node_counters())
    }

    fn job(&self, order: JobOrder) -> BoxFuture<'_, Result<JobReport>> {
        Box::pin(self.core.carry_out_job(order))
    }

    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>> {
        Box::pin(self.carry_out(order))
    }
}
