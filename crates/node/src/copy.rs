//! Copies by reference, and names of files beside their first.

use std::sync::Arc;

use stoker_catalog::kv::Check;
use stoker_format::ChunkRun;
use stoker_schema::names::{Located, Refusal};
use stoker_schema::rows::{Drain, FileRow, LakeRef, SourceRef};
use stoker_store::{
    Condition, CopyRequest, ErrorKind, File, FileInfo, Finish, Key, Receipt, Result, StoreError, Subject,
    WriteRequest, Writer,
};

use crate::cell::Keepers;
use crate::core::{Core, add, copies};
use crate::lookup::no_such_key;
use crate::name_record::Cut;
use crate::properties::Properties;
use crate::publish::{Job, Keeps, check_condition, is_outdated};
use crate::volumes::Volume;
use crate::writer::RunList;
use crate::{clock, error, name_record};

const _: () = assert!(stoker_store::LINKS_MAX == stoker_schema::names::LINKS_MAX);

/// What a copy by reference becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    /// A file of its own.
    File,
    /// One more name of the same file.
    Name,
}

/// Tries of a copy whose source keeps changing.
const COPIES_MAX: usize = 20;

impl Core {
    /// Gives a file one more name. It is a copy by reference that stays one file with its source.
    pub async fn link_file(self: &Arc<Core>, volume: &Arc<Volume>, from: &Key, to: &Key) -> Result<FileInfo> {
        self.check_open()?;
        let _work = self.work.begin();
        self.check_writable(volume)?;
        self.check_keeps_nothing(volume, "a file in it has one name")?;
        if from.as_bytes().ends_with(b"/") || to.as_bytes().ends_with(b"/") {
            return Err(StoreError::new(ErrorKind::Invalid, "a directory has one name"));
        }
        self.adopt(volume, from.as_bytes()).await?;
        let request = CopyRequest {
            from_volume: volume.name.clone(),
            from: from.clone(),
            from_condition: Condition::default(),
            to_volume: volume.name.clone(),
            to: to.clone(),
            condition: Condition::absent(),
            attributes: None,
        };
        for _ in 0..COPIES_MAX {
            if self.copy_once(volume, volume, &request, Copied::Name).await?.is_some() {
                let found = self.names.lookup(volume.id, to.as_bytes()).await.map_err(error::catalog)?;
                let found = found.ok_or_else(|| no_such_key(to.as_bytes()))?;
                let mut info = Core::info(to.as_bytes(), &found.file)?;
                self.count_links(volume, [&mut info]).await?;
                return Ok(info);
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    /// Says how many names files have.
    pub async fn count_links<'i>(
        &self,
        volume: &Volume,
        files: impl IntoIterator<Item = &'i mut FileInfo>,
    ) -> Result<()> {
        let mut files: Vec<&mut FileInfo> = files.into_iter().filter(|info| info.links == 0).collect();
        let numbers: Vec<u64> = files.iter().map(|info| info.inode).collect();
        let counts = self.names.link_counts(volume.id, &numbers).await.map_err(error::catalog)?;
        files.iter_mut().zip(counts).for_each(|(info, count)| info.links = count);
        Ok(())
    }

    /// Copies by reference: the copy is another name for the same version.
    pub async fn copy_file(self: &Arc<Core>, request: CopyRequest) -> Result<Receipt> {
        self.check_open()?;
        let _work = self.work.begin();
        let from_volume = self.volumes.get(&request.from_volume).await?;
        let volume = self.volumes.get(&request.to_volume).await?;
        self.check_writable(&volume)?;
        if !self.may_share(&from_volume, &volume) {
            return self.copy_bytes(&from_volume, &volume, request).await;
        }
        for _ in 0..COPIES_MAX {
            if let Some(receipt) = self.copy_once(&from_volume, &volume, &request, Copied::File).await? {
                return Ok(receipt);
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    /// Whether files of two volumes may have chunks in common: a chunk of an encrypted volume is under its keys alone.
    pub fn may_share(&self, one: &Volume, other: &Volume) -> bool {
        one.id == other.id || !(self.vault.is_encrypted(one.id) || self.vault.is_encrypted(other.id))
    }

    /// Copies by reading and writing.
    async fn copy_bytes(
        self: &Arc<Core>,
        from_volume: &Arc<Volume>,
        volume: &Arc<Volume>,
        request: CopyRequest,
    ) -> Result<Receipt> {
        let from = self.version_path(from_volume, &request.from).await?;
        let (file, _) = self.open_located(from_volume, &from).await?;
        let info = file.info();
        check_condition(&request.from_condition, Some(&info.etag))?;
        let wanted = WriteRequest {
            attributes: request.attributes.unwrap_or_else(|| info.attributes.clone()),
            condition: request.condition,
            size: Some(info.size),
            append: false,
        };
        let mut writer: Box<dyn Writer> =
            Box::new(self.begin_write(volume.clone(), &request.to, wanted).await?);
        let mut offset = 0;
        while offset < info.size {
            let mut buf = writer.buffer().await?;
            let room = buf.capacity().min((info.size - offset) as usize).min(self.chunk_bytes as usize);
            while buf.len() < room {
                let bytes = file.read(offset, room - buf.len()).await?;
                buf.fill(&bytes);
                offset += bytes.len() as u64;
            }
            writer.write(buf).await?;
        }
        writer.finish(Finish::default()).await
    }

    /// One try; none if the source changed meanwhile, be it that it was drained.
    async fn copy_once(
        self: &Arc<Core>,
        from_volume: &Arc<Volume>,
        volume: &Arc<Volume>,
        request: &CopyRequest,
        copied: Copied,
    ) -> Result<Option<Receipt>> {
        let (from, to) = (&self.version_path(from_volume, &request.from).await?[..], request.to.as_bytes());
        let seen = self.seen(from_volume, from).await?.ok_or_else(|| no_such_key(from))?;
        if seen.file.past.as_ref().is_some_and(|past| past.is_marker) {
            let message = "a delete marker has no content that could be copied";
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Version, message));
        }
        check_condition(&request.from_condition, Some(&seen.file.etag))?;
        let is_ours = |located: &&Located| located.file.version == seen.file.version;
        let link = match (copied, seen.located.as_ref().filter(is_ours)) {
            (Copied::File, _) => None,
            (Copied::Name, Some(located)) => Some(Box::new(located.clone())),
            (Copied::Name, None) => {
                let message =
                    "somebody else changed the file in the lake; write it here, then give it another name";
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Lake, message));
            }
        };
        let _pin = self.pins.pin(seen.file.version());
        let mut properties = Properties::decode(&seen.file.properties)?;
        if let Some(attributes) = &request.attributes {
            properties.attributes = attributes.clone();
        }
        if link.is_none() {
            properties.more.user = crate::publish::user();
        }
        match &link {
            Some(_) => self.check_path(volume, to, &properties.attributes).await?,
            None => self.check_lake(volume, to, &properties.attributes).await?,
        }
        let now_ms = clock::now_ms();
        // Two names share one version: the record of the second has an id of its own.
        let record = clock::mint();
        let mut row = FileRow {
            inode: 0,
            // All names of a file tell the same.
            modified_ms: if link.is_some() { seen.file.modified_ms } else { now_ms },
            drain: Core::drain_of(volume),
            lake: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            name_record: Some(record.0),
            properties: properties.encode()?,
            home: self.node.0,
            links: None,
            past: request
                .attributes
                .as_ref()
                .and_then(|given| crate::versions::locked_by(given.lock.as_ref())),
            ..seen.file.clone()
        };
        let runs = self.names.runs(&seen.file).await.map_err(error::catalog)?;
        let (mut sessions, keeps) = (Vec::new(), Keeps::default());
        let _marks = self.marks.read().await;
        if seen.file.drain == Drain::Clean || seen.file.source.is_some() {
            row.source = self.source_of(from_volume, &seen.file);
            row.holders = self.rings.holders([self.rings.stand_in()]);
            // Elsewhere it costs less to rely on the lake object until the copy is drained.
            if self.class(volume).copies() == 1
                && let Some(kept) = self.secure(volume, &runs, &[]).await?
            {
                (row.source, row.holders) = (None, kept.holders());
            }
        } else if copies(&row.holders, from_volume.policy.class) < self.class(volume).copies() as u32 {
            let on_drives: Vec<ChunkRun> = runs.iter().filter(|run| !run.is_spilled()).copied().collect();
            let kept = self.secure(volume, &on_drives, &row.holders).await?;
            let gone =
                || StoreError::new(ErrorKind::Unavailable, "the bytes of the source cannot be reached now");
            let kept = kept.ok_or_else(gone)?;
            (row.holders, sessions) = (kept.holders(), kept.sessions());
            keeps.lock().unwrap().push(kept);
        }
        row.home = self.home_among(&row.holders);
        let mut list = RunList::default();
        runs.iter().for_each(|run| list.push_run(run));
        let seq = self.seq_now().await;
        let put = name_record::put(volume.id, to, &row, &properties, Cut::whole(list.runs()), seq);
        let left = self.leave_record(volume, record, &put, Keepers::Holders(&row.holders)).await?;
        // The source must still be what it was, or its chunks may be on their way out.
        let check = |located: &Located| Check::Seq(located.spot.row_key(), located.seq);
        let job = Job {
            row,
            runs: list,
            upload_parts: Vec::new(),
            condition: request.condition.clone(),
            append: false,
            base: None,
            has_layout: true,
            checks: seen.located.as_ref().map(check).into_iter().collect(),
            writes: Vec::new(),
            sessions,
            keeps,
            has_marks: true,
            shard: None,
            keeps_links: false,
            link,
            pins: Default::default(),
        };
        let published = self.publish(volume, to, job).await;
        match published {
            Ok(receipt) => {
                drop(left);
                add(&self.stats.publishes, 1);
                Ok(Some(receipt))
            }
            Err(fault) => {
                if !fault.is_unknown() {
                    self.retract(record, left).await?;
                }
                match is_outdated(&fault) {
                    true => Ok(None),
                    false => Err(fault),
                }
            }
        }
    }

    fn source_of(&self, volume: &Volume, file: &FileRow) -> Option<SourceRef> {
        if file.drain != Drain::Clean {
            return file.source.clone();
        }
        let LakeRef { key, etag } = file.lake.clone()?;
        Some(SourceRef { volume: volume.id.0, key, etag })
    }
}
