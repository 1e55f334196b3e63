//! The calls.

use std::sync::Arc;

use bytes::Bytes;
use stoker_format::VersionId;
use stoker_store::*;

use super::{Live, Memory, OpenFile, OpenWriter, Stored, Target, Upload, missing, receipt_of, volume_mut};

impl Memory {
    fn get(&self, volume: &str, key: &Key) -> Result<Arc<Stored>> {
        let mut state = self.state.lock().unwrap();
        volume_mut(&mut state, volume)?.files.get(key).cloned().ok_or_else(|| missing(key))
    }

    fn with_upload<T>(
        &self,
        volume: &str,
        upload: &UploadId,
        act: impl FnOnce(&mut Upload) -> T,
    ) -> Result<T> {
        let mut state = self.state.lock().unwrap();
        let upload = volume_mut(&mut state, volume)?.uploads.get_mut(&upload.0);
        upload
            .map(act)
            .ok_or_else(|| StoreError::about(ErrorKind::NotFound, Subject::Upload, "no such upload"))
    }

    pub fn finish_part(&self, volume: &str, upload: &UploadId, number: u32, bytes: Bytes) -> Result<Receipt> {
        let etag = format!("{:016x}", stoker_format::crc64(&bytes));
        let modified_ms = self.number();
        let part = PartInfo {
            number,
            size: bytes.len() as u64,
            etag: etag.clone(),
            modified_ms,
            checksums: Vec::new(),
        };
        let key = self.with_upload(volume, upload, |upload| {
            upload.parts.insert(number, (part.clone(), bytes));
            upload.key.to_string()
        })?;
        Ok(Receipt {
            volume: volume.to_owned(),
            key,
            version: VersionId::ZERO,
            size: part.size,
            etag,
            checksums: Vec::new(),
            class: Class::One,
            copies: 1,
            holders: Vec::new(),
            seq: modified_ms,
            drain: DrainState::Never,
            lake: None,
            lake_etag: None,
            version_id: None,
        })
    }
}

/// Sets are tried with a real node behind the socket.
fn no_sets() -> StoreError {
    StoreError::about(ErrorKind::NotFound, Subject::Set, "no such set")
}

fn upload_info(id: &str, upload: &Upload) -> UploadInfo {
    UploadInfo {
        key: upload.key.clone(),
        upload: UploadId(id.to_owned()),
        begun_ms: 1,
        attributes: upload.attributes.clone(),
        checksum: upload.checksum,
        is_full: false,
    }
}

/// A call that is answered at once.
macro_rules! now {
    ($body:block) => {
        Box::pin(async move { $body })
    };
}

impl Store for Memory {
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        now!({ Ok(self.state.lock().unwrap().volumes.values().map(|volume| volume.info.clone()).collect()) })
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<VolumeInfo>> {
        now!({ Ok(volume_mut(&mut self.state.lock().unwrap(), name)?.info.clone()) })
    }

    fn volume_create<'a>(
        &'a self,
        name: &'a str,
        options: VolumeOptions,
    ) -> BoxFuture<'a, Result<VolumeInfo>> {
        now!({ self.add_volume(name, options) })
    }

    fn volume_set<'a>(&'a self, name: &'a str, policy: VolumePolicy) -> BoxFuture<'a, Result<VolumeInfo>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let volume = volume_mut(&mut state, name)?;
            volume.info.policy = policy;
            Ok(volume.info.clone())
        })
    }

    fn volume_delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        now!({
            let mut state = self.state.lock().unwrap();
            if !volume_mut(&mut state, name)?.files.is_empty() {
                return Err(StoreError::about(ErrorKind::Conflict, Subject::VolumeContents, "it holds keys"));
            }
            state.volumes.remove(name);
            Ok(())
        })
    }

    fn stat<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<FileInfo>> {
        now!({
            self.begin("stat");
            Ok(self.get(volume, key)?.info.clone())
        })
    }

    fn open<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Box<dyn File>>> {
        now!({
            let file = OpenFile { stored: self.get(volume, key)?, live: Live::new(self) };
            Ok(Box::new(file) as Box<dyn File>)
        })
    }

    fn list<'a>(&'a self, volume: &'a str, request: ListRequest) -> BoxFuture<'a, Result<ListPage>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let files = &volume_mut(&mut state, volume)?.files;
            let mut page = ListPage::default();
            for (key, stored) in files {
                let name = key.as_bytes();
                let Some(rest) = name.strip_prefix(&request.prefix[..]) else { continue };
                let delimiter = request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
                let cut =
                    delimiter.and_then(|d| rest.windows(d.len()).position(|w| w == d).map(|at| at + d.len()));
                let entry = match cut {
                    Some(end) => ListEntry::Prefix(name[..request.prefix.len() + end].to_vec()),
                    None => ListEntry::File(Box::new(stored.info.clone())),
                };
                let behind = request.after.as_deref().is_none_or(|after| entry.name() > after);
                if !behind || page.entries.last().is_some_and(|last| last.name() == entry.name()) {
                    continue;
                }
                if page.entries.len() >= request.limit.min(1000) {
                    page.more = true;
                    break;
                }
                page.entries.push(entry);
            }
            Ok(page)
        })
    }

    fn create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: WriteRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        now!({
            let etag = self.get(volume, key).map(|stored| stored.info.etag.clone());
            volume_mut(&mut self.state.lock().unwrap(), volume)?;
            if !request.condition.holds(etag.ok().as_deref()) {
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Condition, "it does not hold"));
            }
            let size = request.size;
            let target =
                Target::File { volume: volume.to_owned(), key: key.clone(), request: Box::new(request) };
            Ok(Box::new(OpenWriter::new(self, target, size)) as Box<dyn Writer>)
        })
    }

    fn copy(&self, request: CopyRequest) -> BoxFuture<'_, Result<Receipt>> {
        now!({
            self.begin("copy");
            self.pass_gate().await;
            let from = self.get(&request.from_volume, &request.from)?;
            let attributes = request.attributes.unwrap_or_else(|| from.info.attributes.clone());
            self.publish(&request.to_volume, &request.to, from.bytes.clone(), attributes, &request.condition)
        })
    }

    fn rename<'a>(
        &'a self,
        volume: &'a str,
        from: &'a Key,
        to: &'a Key,
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let files = &mut volume_mut(&mut state, volume)?.files;
            if mode == RenameMode::NoReplace && files.contains_key(to) {
                return Err(StoreError::new(ErrorKind::Conflict, format!("{to} exists")));
            }
            let mut moves = vec![(files.get(from).cloned().ok_or_else(|| missing(from))?, to)];
            if let RenameMode::Exchange { .. } = mode {
                moves.push((files.get(to).cloned().ok_or_else(|| missing(to))?, from));
            }
            files.remove(from);
            for (file, to) in moves {
                let info = FileInfo { key: to.clone(), ..file.info.clone() };
                files.insert(to.clone(), Arc::new(Stored { info, bytes: file.bytes.clone() }));
            }
            Ok(())
        })
    }

    fn delete<'a>(
        &'a self,
        volume: &'a str,
        keys: Vec<(Key, Condition)>,
    ) -> BoxFuture<'a, Result<Vec<Result<bool>>>> {
        now!({
            self.begin("delete");
            let mut state = self.state.lock().unwrap();
            let files = &mut volume_mut(&mut state, volume)?.files;
            let delete = |(key, condition): (Key, Condition)| {
                let etag = files.get(&key).map(|file| file.info.etag.clone());
                if !condition.holds(etag.as_deref()) {
                    return Err(StoreError::about(
                        ErrorKind::Conflict,
                        Subject::Condition,
                        "it does not hold",
                    ));
                }
                Ok(files.remove(&key).is_some())
            };
            Ok(keys.into_iter().map(delete).collect())
        })
    }

    fn set_attributes<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        change: AttributesChange,
    ) -> BoxFuture<'a, Result<FileInfo>> {
        now!({
            let file = self.get(volume, key)?;
            let mut info = file.info.clone();
            info.attributes.mode = change.mode.or(info.attributes.mode);
            info.attributes.tags = change.tags.unwrap_or(info.attributes.tags);
            let mut state = self.state.lock().unwrap();
            let stored = Stored { info: info.clone(), bytes: file.bytes.clone() };
            volume_mut(&mut state, volume)?.files.insert(key.clone(), Arc::new(stored));
            Ok(info)
        })
    }

    fn upload_create<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        attributes: Attributes,
        checksum: Option<ChecksumKind>,
    ) -> BoxFuture<'a, Result<UploadInfo>> {
        now!({
            let upload = Upload { key: key.clone(), attributes, checksum, ..Upload::default() };
            let id = format!("upload-{}", self.number());
            let info = upload_info(&id, &upload);
            volume_mut(&mut self.state.lock().unwrap(), volume)?.uploads.insert(id, upload);
            Ok(info)
        })
    }

    fn upload_part<'a>(
        &'a self,
        volume: &'a str,
        _key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        now!({
            self.with_upload(volume, upload, |_| ())?;
            let target = Target::Part { volume: volume.to_owned(), upload: upload.clone(), number };
            Ok(Box::new(OpenWriter::new(self, target, size)) as Box<dyn Writer>)
        })
    }

    fn upload_part_copy<'a>(
        &'a self,
        volume: &'a str,
        _key: &'a Key,
        upload: &'a UploadId,
        number: u32,
        source: PartSource,
    ) -> BoxFuture<'a, Result<Receipt>> {
        now!({
            let from = self.get(&source.volume, &source.key)?;
            let (start, end) = source.range.unwrap_or((0, from.info.size));
            self.finish_part(volume, upload, number, from.bytes.slice(start as usize..end as usize))
        })
    }

    fn upload_parts<'a>(
        &'a self,
        volume: &'a str,
        _key: &'a Key,
        upload: &'a UploadId,
        after: u32,
        limit: usize,
    ) -> BoxFuture<'a, Result<PartsPage>> {
        now!({
            self.with_upload(volume, upload, |found| {
                let behind = found.parts.range(after + 1..);
                let mut parts: Vec<PartInfo> =
                    behind.take(limit + 1).map(|(_, (info, _))| info.clone()).collect();
                let more = parts.len() > limit;
                parts.truncate(limit);
                PartsPage { upload: upload_info(&upload.0, found), parts, more }
            })
        })
    }

    fn uploads<'a>(
        &'a self,
        volume: &'a str,
        prefix: &'a [u8],
        _after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> BoxFuture<'a, Result<UploadsPage>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let found = &volume_mut(&mut state, volume)?.uploads;
            let fitting = found.iter().filter(|(_, upload)| upload.key.as_bytes().starts_with(prefix));
            let uploads = fitting.take(limit).map(|(id, upload)| upload_info(id, upload)).collect();
            Ok(UploadsPage { uploads, more: false })
        })
    }

    fn upload_complete<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        upload: &'a UploadId,
        parts: Vec<PartChoice>,
        condition: Condition,
        _finish: Finish,
    ) -> BoxFuture<'a, Result<Receipt>> {
        now!({
            let attributes = self.with_upload(volume, upload, |upload| upload.attributes.clone())?;
            let joined = self.with_upload(volume, upload, |upload| {
                let mut bytes = Vec::new();
                for choice in &parts {
                    let part = upload.parts.get(&choice.number).filter(|(info, _)| info.etag == choice.etag);
                    let Some((_, part)) = part else {
                        return Err(StoreError::about(ErrorKind::Invalid, Subject::Part, "no such part"));
                    };
                    bytes.extend_from_slice(part);
                }
                Ok(Bytes::from(bytes))
            })??;
            let receipt = self.publish(volume, key, joined, attributes, &condition)?;
            self.upload_abort(volume, key, upload).await?;
            Ok(receipt)
        })
    }

    fn upload_abort<'a>(
        &'a self,
        volume: &'a str,
        _key: &'a Key,
        upload: &'a UploadId,
    ) -> BoxFuture<'a, Result<()>> {
        now!({
            self.with_upload(volume, upload, |_| ())?;
            volume_mut(&mut self.state.lock().unwrap(), volume)?.uploads.remove(&upload.0);
            Ok(())
        })
    }

    fn set_begin<'a>(&'a self, _: &'a str, _: SetRequest) -> BoxFuture<'a, Result<SetInfo>> {
        now!({ Err(no_sets()) })
    }

    fn set_shard<'a>(
        &'a self,
        _: &'a str,
        _: &'a Key,
        _: SetId,
        _: ShardRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        now!({ Err(no_sets()) })
    }

    fn set_shard_complete<'a>(
        &'a self,
        _: &'a str,
        _: &'a Key,
        _: SetId,
        _: ShardUpload,
    ) -> BoxFuture<'a, Result<Receipt>> {
        now!({ Err(no_sets()) })
    }

    fn set_publish<'a>(&'a self, _: &'a str, _: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        now!({ Err(no_sets()) })
    }

    fn set_abort<'a>(&'a self, _: &'a str, _: SetId) -> BoxFuture<'a, Result<SetInfo>> {
        now!({ Err(no_sets()) })
    }

    fn set_status<'a>(&'a self, _: &'a str, _: SetId) -> BoxFuture<'a, Result<SetStatus>> {
        now!({ Err(no_sets()) })
    }

    fn set_find<'a>(&'a self, _: &'a str, _: &'a Key) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        now!({ Ok(None) })
    }

    fn sets<'a>(&'a self, _: &'a str, _: Option<SetId>, _: usize) -> BoxFuture<'a, Result<SetsPage>> {
        now!({ Ok(SetsPage::default()) })
    }

    fn set_latest<'a>(&'a self, _: &'a str, _: &'a [u8]) -> BoxFuture<'a, Result<Option<SetInfo>>> {
        now!({ Ok(None) })
    }

    fn receipt<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Receipt>> {
        now!({ Ok(receipt_of(volume, &self.get(volume, key)?.info)) })
    }

    fn wait<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        version: Option<VersionId>,
        _awaited: Awaited,
    ) -> BoxFuture<'a, Result<Receipt>> {
        now!({
            let _live = Live::new(self);
            self.begin("wait");
            self.pass_gate().await;
            let info = self.get(volume, key)?.info.clone();
            if version.is_some_and(|version| version != info.version) {
                return Err(missing(key));
            }
            Ok(receipt_of(volume, &info))
        })
    }

    fn drain<'a>(&'a self, volume: &'a str, prefix: &'a [u8]) -> BoxFuture<'a, Result<u64>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let files = volume_mut(&mut state, volume)?.files.keys();
            Ok(files.filter(|key| key.as_bytes().starts_with(prefix)).count() as u64)
        })
    }

    fn stage<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<u64>> {
        now!({ Ok(self.get(volume, key)?.info.size) })
    }

    fn conflicts<'a>(&'a self, volume: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Conflict>>> {
        now!({
            let state = self.state.lock().unwrap();
            let fits = |conflict: &&Conflict| volume.is_none_or(|volume| volume == conflict.volume);
            Ok(state.conflicts.iter().filter(fits).cloned().collect())
        })
    }

    fn conflict_resolve<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        _resolution: Resolution,
    ) -> BoxFuture<'a, Result<()>> {
        now!({
            let mut state = self.state.lock().unwrap();
            let before = state.conflicts.len();
            state.conflicts.retain(|conflict| conflict.volume != volume || conflict.file.key != *key);
            if state.conflicts.len() < before { Ok(()) } else { Err(missing(key)) }
        })
    }

    fn access_keys(&self) -> BoxFuture<'_, Result<Vec<AccessKey>>> {
        now!({ Ok(self.state.lock().unwrap().keys.values().cloned().collect()) })
    }

    fn access_key<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<Option<AccessKey>>> {
        now!({ Ok(self.state.lock().unwrap().keys.get(access_key).cloned()) })
    }

    fn access_key_put(&self, key: AccessKey) -> BoxFuture<'_, Result<()>> {
        now!({
            self.state.lock().unwrap().keys.insert(key.access_key.clone(), key);
            Ok(())
        })
    }

    fn access_key_delete<'a>(&'a self, access_key: &'a str) -> BoxFuture<'a, Result<()>> {
        now!({
            let gone = self.state.lock().unwrap().keys.remove(access_key);
            let no = || StoreError::about(ErrorKind::NotFound, Subject::AccessKey, "no such key");
            gone.map(drop).ok_or_else(no)
        })
    }

    fn explain<'a>(&'a self, volume: &'a str, key: &'a Key) -> BoxFuture<'a, Result<Explanation>> {
        now!({
            let file = self.get(volume, key)?.info.clone();
            let receipt = receipt_of(volume, &file);
            let words = vec!["in memory".to_owned()];
            let (chunks, holders) = (1, Vec::new());
            Ok(Explanation { file, receipt, chunks, chunks_local: 1, chunks_cached: 0, holders, words })
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        now!({
            Ok(NodeStatus {
                node: "0".repeat(32),
                cluster: "0".repeat(32),
                version: "test".to_owned(),
                started_ms: 1,
                catalog: "memory".to_owned(),
                nodes: Vec::new(),
                rings: Vec::new(),
                sources: Vec::new(),
                dirty_files: 0,
                dirty_bytes: 0,
                dirty_age_ms: 0,
                conflicts: 0,
                drains: 0,
                lake_trouble: None,
                cache_bytes: 0,
                ready: true,
                words: Vec::new(),
            })
        })
    }

    fn operate(&self, order: Order) -> BoxFuture<'_, Result<Report>> {
        Box::pin(async move {
            let message = format!("a store in memory carries out no orders: {order:?}");
            Err(StoreError::new(ErrorKind::Invalid, message))
        })
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        now!({
            let counter = |number: u64| Counter {
                name: format!("number_{number}_total"),
                help: "x".repeat(1000),
                labels: vec![("drive".to_owned(), "a".to_owned())],
                value: number as f64 / 3.0,
            };
            Ok((0..5000).map(counter).collect())
        })
    }
}
