//! When files were opened last, coarsely: for rules that ask.
//!
//! An open leaves its hour in memory, and only if a rule asks for its volume. Now and then what is news is written, many files in one transaction; a file that is open all
//! day costs four rows a day. What was not written is lost with the node, and a file seems older than it is by at most that. A renamed file begins anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, RwLock};

use stoker_catalog::kv::{Commit, Range};
use stoker_format::VolumeId;
use stoker_schema::rows::{RowValue, SeenRow, tier_keys};
use stoker_store::Result;

use crate::core::Core;
use crate::{clock, error};

const HOUR_MS: u64 = 3_600_000;

/// Files that are remembered until they are written; more are not.
const FILES_MAX: usize = 100_000;

/// Rows of one transaction.
const ROWS_MAX: usize = 500;

/// A row that is at most so many hours behind is not written again.
const COARSE_HOURS: u32 = 6;

/// Pause between two writes.
const WRITE_MS: u64 = 60_000;

/// What was opened here.
#[derive(Default)]
pub(crate) struct Recency {
    /// Volumes that any rule asks for.
    wanted: RwLock<HashSet<u32>>,
    seen: Mutex<HashMap<(u32, Vec<u8>), u32>>,
    written_ms: std::sync::atomic::AtomicU64,
}

impl Recency {
    /// Somebody opened a file.
    pub fn note(&self, volume: VolumeId, key: &[u8]) {
        if !self.wanted.read().unwrap().contains(&volume.0) {
            return;
        }
        let hour = u32::try_from(clock::now_ms() / HOUR_MS).unwrap_or(u32::MAX);
        let mut seen = self.seen.lock().unwrap();
        if seen.len() < FILES_MAX || seen.contains_key(&(volume.0, key.to_vec())) {
            seen.insert((volume.0, key.to_vec()), hour);
        }
    }

    /// Rules ask for these volumes, and no others.
    pub fn want(&self, volumes: HashSet<u32>) {
        if *self.wanted.read().unwrap() != volumes {
            *self.wanted.write().unwrap() = volumes;
        }
    }

    /// When a file was opened here, if that is not written yet.
    pub fn here_ms(&self, volume: VolumeId, key: &[u8]) -> Option<u64> {
        let hour = self.seen.lock().unwrap().get(&(volume.0, key.to_vec())).copied();
        hour.map(|hour| u64::from(hour) * HOUR_MS)
    }
}

impl Core {
    /// Writes down what was opened here, if it is time.
    pub(super) async fn write_recency(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let now_ms = clock::now_ms();
        if self.recency.written_ms.load(Relaxed) + WRITE_MS > now_ms {
            return Ok(());
        }
        self.recency.written_ms.store(now_ms, Relaxed);
        let news: Vec<((u32, Vec<u8>), u32)> = self.recency.seen.lock().unwrap().drain().collect();
        let written = self.write_news(&news).await;
        if written.is_err() {
            let mut seen = self.recency.seen.lock().unwrap();
            for (file, hour) in news {
                seen.entry(file).or_insert(hour);
            }
        }
        written
    }

    async fn write_news(&self, news: &[((u32, Vec<u8>), u32)]) -> Result<()> {
        for part in news.chunks(ROWS_MAX) {
            let keys: Vec<Vec<u8>> =
                part.iter().map(|((volume, key), _)| tier_keys::seen(VolumeId(*volume), key)).collect();
            let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let rows = self.catalog.get(&asked).await.map_err(error::catalog)?;
            let mut commit = Commit::new();
            for ((key, (_, hour)), row) in keys.iter().zip(part).zip(rows) {
                let known = row.as_ref().map(SeenRow::of).transpose().map_err(error::catalog)?;
                if known.is_none_or(|known| known.hour + COARSE_HOURS <= *hour) {
                    commit = commit.put(key.clone(), SeenRow { hour: *hour }.encode());
                }
            }
            if !commit.writes.is_empty() {
                let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
            }
        }
        Ok(())
    }

    /// When files of a volume were opened, of those behind `after` and up to `last`, by key. Rows of files that are not among `files` any more go.
    pub(super) async fn seen_between(
        &self,
        volume: VolumeId,
        after: Option<&[u8]>,
        files: &[&[u8]],
    ) -> Result<HashMap<Vec<u8>, u64>> {
        let mut seen = HashMap::new();
        let Some(last) = files.last() else { return Ok(seen) };
        let known: HashSet<&[u8]> = files.iter().copied().collect();
        let mut range = Range::prefix(&tier_keys::seen(volume, b""), 1_000);
        if let Some(after) = after {
            range = range.after(&tier_keys::seen(volume, after));
        }
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            let mut gone = Commit::new();
            for row in &page.rows {
                let key = tier_keys::seen_part(&row.key);
                if key > *last {
                    break;
                }
                match known.contains(key) {
                    true => {
                        let hour = SeenRow::of(row).map_err(error::catalog)?.hour;
                        seen.insert(key.to_vec(), u64::from(hour) * HOUR_MS);
                    }
                    false => gone = gone.delete(row.key.clone()),
                }
            }
            if !gone.writes.is_empty() {
                let _ = self.catalog.commit(gone).await.map_err(error::catalog)?;
            }
            match page.rows.last() {
                Some(end) if page.more && tier_keys::seen_part(&end.key) <= *last => {
                    range = range.after(&end.key);
                }
                _ => return Ok(seen),
            }
        }
    }
}
