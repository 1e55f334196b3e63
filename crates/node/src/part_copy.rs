//! A part that is a range of a file: by reference where the chunks are here, otherwise read and written anew.

use std::sync::Arc;

use stoker_catalog::kv::Check;
use stoker_format::{ChunkRun, VersionId, crc64};
use stoker_schema::names::Located;
use stoker_store::{
    ErrorKind, File, Finish, Key, PartSource, Receipt, Result, StoreError, Subject, UploadId, Writer,
};

use crate::cell::Protected;
use crate::core::Core;
use crate::publish::{check_condition, is_outdated, owners};
use crate::reader::NodeFile;
use crate::uploads::PartPurpose;
use crate::volumes::Volume;
use crate::writer::ChunkWriter;

/// Tries before a source that keeps changing is copied byte by byte.
const TRIES_MAX: usize = 5;

/// Chunks of a file that a part goes on with behind its own bytes.
pub(crate) struct Borrowed {
    /// The file.
    pub source: VersionId,
    pub runs: Vec<ChunkRun>,
    /// What the file has to be when the part is made.
    pub check: Check,
    /// Of the whole part, if it is known.
    pub crc64: Option<u64>,
    /// Keeps them where they are.
    pub kept: Protected,
}

impl Borrowed {
    pub fn owners(&self) -> Vec<VersionId> {
        owners(&self.runs, VersionId::ZERO)
    }
}

/// The chunks that a range starts and ends with, as runs. A run starts with a whole chunk, so the bytes in front of the
/// first boundary have to be written anew: how many, and the runs behind them. A hole can be cut anywhere.
pub(crate) fn cut(runs: &[ChunkRun], start: u64, end: u64) -> (u64, Vec<ChunkRun>) {
    let mut head = end - start;
    let mut kept: Vec<ChunkRun> = Vec::new();
    for run in runs {
        if run.is_hole() {
            let (from, to) = (run.file_offset.max(start), run.end().min(end));
            if from < to {
                if kept.is_empty() {
                    head = from - start;
                }
                kept.push(ChunkRun::hole(from - start, to - from));
            }
            continue;
        }
        let chunk_len = u64::from(run.chunk_len);
        for step in 0..run.count {
            let from = run.file_offset + u64::from(step) * chunk_len;
            let len = u64::from(if step + 1 == run.count { run.last_len } else { run.chunk_len });
            if from < start {
                continue;
            }
            if from >= end {
                return (head, kept);
            }
            if kept.is_empty() {
                head = from - start;
            }
            let len = len.min(end - from) as u32;
            match kept.last_mut() {
                Some(last)
                    if last.version == run.version
                        && last.first_index + last.count == run.first_index + step
                        && last.last_len == last.chunk_len
                        && len <= last.chunk_len =>
                {
                    last.count += 1;
                    last.last_len = len;
                }
                _ => kept.push(ChunkRun {
                    file_offset: from - start,
                    version: run.version,
                    first_index: run.first_index + step,
                    count: 1,
                    chunk_len: len,
                    last_len: len,
                }),
            }
        }
    }
    (head, kept)
}

impl Core {
    /// Makes a part of a range of a file.
    pub async fn copy_part(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        upload: &UploadId,
        number: u32,
        source: PartSource,
    ) -> Result<Receipt> {
        self.check_open()?;
        let _work = self.work.begin();
        let from = self.volumes.get(&source.volume).await?;
        for attempt in 0..=TRIES_MAX {
            let mut purpose = self.part_purpose(volume, key, upload, number).await?;
            let path = self.version_path(&from, &source.key).await?;
            let (file, located) = self.open_located(&from, &path).await?;
            let info = file.info();
            check_condition(&source.condition, Some(&info.etag))?;
            let (start, end) = source.range.unwrap_or((0, info.size));
            purpose.etag = Some(copied_etag(&source, &info.etag, start, end));
            if start > end || end > info.size || (start == end && info.size > 0) {
                let message = format!(
                    "bytes {start} to {end} are not inside the source, which has {} bytes",
                    info.size
                );
                return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
            }
            // Until the part has its row, nobody may say that these chunks are in the lake and can go.
            let _marks = self.marks.read().await;
            let mut own = end;
            let may_share = attempt < TRIES_MAX && self.may_share(&from, volume);
            if let Some(located) = located.filter(|_| may_share)
                && let Some((head, borrowed)) = self.borrow(volume, &file, &located, start, end).await?
            {
                own = start + head;
                purpose.borrowed = Some(borrowed);
            }
            match self.write_part(volume, &file, purpose, start, own).await {
                Err(fault) if is_outdated(&fault) => continue,
                done => return done,
            }
        }
        Err(StoreError::new(ErrorKind::Conflict, "the source is contended; retry"))
    }

    /// Chunks of a range that can be shared, made must-keep; none if they are not all here, or not worth it.
    async fn borrow(
        self: &Arc<Core>,
        volume: &Volume,
        file: &NodeFile,
        located: &Located,
        start: u64,
        end: u64,
    ) -> Result<Option<(u64, Borrowed)>> {
        let (head, runs) = cut(file.runs(), start, end);
        if runs.is_empty() {
            return Ok(None);
        }
        let Some(kept) = self.secure(volume, &runs, &located.file.holders).await? else { return Ok(None) };
        let is_whole = head == 0 && end - start == located.file.size;
        let borrowed = Borrowed {
            source: located.file.version(),
            runs,
            check: Check::Seq(located.spot.row_key(), located.seq),
            crc64: located.file.crc64.filter(|_| is_whole),
            kept,
        };
        Ok(Some((head, borrowed)))
    }

    async fn write_part(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        file: &NodeFile,
        purpose: PartPurpose,
        start: u64,
        end: u64,
    ) -> Result<Receipt> {
        let writer = ChunkWriter::new(self.clone(), volume.clone(), Some(end - start), Box::new(purpose));
        let mut writer: Box<dyn Writer> = Box::new(writer);
        let mut offset = start;
        while offset < end {
            let mut buf = writer.buffer().await?;
            let room = buf.capacity().min((end - offset) as usize).min(self.chunk_bytes as usize);
            while buf.len() < room {
                let bytes = file.read(offset, room - buf.len()).await?;
                buf.fill(&bytes);
                offset += bytes.len() as u64;
            }
            writer.write(buf).await?;
        }
        writer.finish(Finish::default()).await
    }
}

/// The ETag of a part that is a copy: the same when the same bytes of the same version are copied again, by whichever node and in
/// whichever way.
fn copied_etag(source: &PartSource, etag: &str, start: u64, end: u64) -> String {
    let name = format!("{}/{}\0{etag}\0{start}", source.volume, source.key);
    format!("{:016x}{:016x}-1", crc64(name.as_bytes()), end - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_offset: u64, first_index: u32, count: u32, chunk_len: u32, last_len: u32) -> ChunkRun {
        ChunkRun { file_offset, version: VersionId([1; 12]), first_index, count, chunk_len, last_len }
    }

    #[test]
    fn ranges_are_cut_at_chunks() {
        let runs = [run(0, 0, 3, 100, 40), run(240, 7, 2, 10, 10)];
        assert_eq!(cut(&runs, 0, 260), (0, runs.to_vec()));
        assert_eq!(cut(&runs, 0, 150), (0, vec![run(0, 0, 2, 100, 50)]));
        assert_eq!(cut(&runs, 50, 250), (50, vec![run(50, 1, 2, 100, 40), run(190, 7, 1, 10, 10)]));
        assert_eq!(cut(&runs, 10, 90), (80, vec![]));
        assert_eq!(cut(&runs, 241, 249), (8, vec![]));
        let holes = [ChunkRun::hole(0, 500), run(500, 0, 1, 100, 100), ChunkRun::hole(600, 1 << 40)];
        assert_eq!(cut(&holes, 10, 490), (0, vec![ChunkRun::hole(0, 480)]));
        assert_eq!(
            cut(&holes, 499, 700),
            (0, vec![ChunkRun::hole(0, 1), run(1, 0, 1, 100, 100), ChunkRun::hole(101, 100)])
        );
        assert_eq!(cut(&holes, 550, 800), (50, vec![ChunkRun::hole(50, 200)]));
        for (start, end) in [(0, 1), (1, 260), (99, 101), (100, 200), (199, 259), (240, 241)] {
            let (head, kept) = cut(&runs, start, end);
            let borrowed: u64 = kept.iter().map(ChunkRun::byte_len).sum();
            assert_eq!(head + borrowed, end - start, "{start}..{end}");
        }
    }
}
