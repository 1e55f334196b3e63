//! What a node knows of lake objects beside the catalog: sums that it looked up, sums of what it read for the first time and has yet
//! to write down, and what it found damaged.
//!
//! An object that was there before us is believed at its first read; from then on its sums are in the catalog. Damage is told once
//! for a while, and as long it is not asked for again: a lake that lost a bit does not get it back by being asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use quick_cache::Weighter;
use stoker_catalog::kv::{Check, Commit, Outcome, Row};
use stoker_format::{VolumeId, crc32c};
use stoker_schema::rows::{Drain, RowValue, SUMS_PER_ROW, SumsRow, keys};
use stoker_store::{Counter, ErrorKind, Result, StoreError, Subject};

use crate::core::{Core, add};
use crate::stage::{Extent, Object};
use crate::sums::{Sums, piece_len};
use crate::{clock, error};

/// Memory for sums that were looked up.
const CACHE_BYTES: u64 = 16 << 20;

/// Pieces that wait to be written down; more are left for their next read.
const PENDING_MAX: usize = 16_384;

/// Objects whose sums are written down by one commit.
const AT_ONCE: usize = 64;

/// What was found damaged is not asked for again for so long.
const BAD_MS: u64 = 5_000;

/// Damaged pieces that are remembered.
const BAD_MAX: usize = 4_096;

/// Keys that numbers name; of more only the sum is told.
const TOLD_MAX: usize = 64;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Object, Arc<Sums>> for ByBytes {
    fn weight(&self, object: &Object, sums: &Arc<Sums>) -> u64 {
        (sums.weight() + object.1.len() + object.2.len() + 128) as u64
    }
}

/// A piece that was seen: its number, bytes and sum.
type Seen = (u64, u32, u32);

#[derive(Default)]
struct Pending {
    objects: BTreeMap<Object, (Arc<Extent>, u32, Vec<Seen>)>,
    pieces: usize,
    is_written: bool,
}

/// See the module.
pub(crate) struct SumBook {
    cache: quick_cache::sync::Cache<Object, Arc<Sums>, ByBytes>,
    pending: Mutex<Pending>,
    /// Damaged pieces, and until when they are not asked for again.
    bad: Mutex<BTreeMap<(Object, u64), u64>>,
    /// How often damage was found, by volume and key.
    told: Mutex<BTreeMap<(String, String), u64>>,
    /// Objects that are being put right.
    repairs: Mutex<BTreeSet<Object>>,
    repaired: std::sync::atomic::AtomicU64,
}

impl Default for SumBook {
    fn default() -> SumBook {
        SumBook {
            cache: quick_cache::sync::Cache::with_weighter(10_000, CACHE_BYTES, ByBytes),
            pending: Mutex::default(),
            bad: Mutex::default(),
            told: Mutex::default(),
            repairs: Mutex::default(),
            repaired: Default::default(),
        }
    }
}

impl SumBook {
    /// Whether a piece of these was found damaged a moment ago.
    pub fn is_bad(&self, object: &Object, pieces: Range<u64>, now_ms: u64) -> bool {
        let bad = self.bad.lock().unwrap();
        !bad.is_empty()
            && pieces
                .take(BAD_MAX)
                .any(|at| bad.get(&(object.clone(), at)).is_some_and(|until| *until > now_ms))
    }

    fn set_bad(&self, object: &Object, piece: u64, now_ms: u64) {
        let mut bad = self.bad.lock().unwrap();
        bad.retain(|_, until| *until > now_ms);
        if bad.len() < BAD_MAX {
            bad.insert((object.clone(), piece), now_ms + BAD_MS);
        }
    }

    fn count(&self, volume: &str, key: &[u8]) {
        let mut told = self.told.lock().unwrap();
        let own = (volume.to_owned(), String::from_utf8_lossy(key).into_owned());
        let own = if told.len() < TOLD_MAX || told.contains_key(&own) { own } else { Default::default() };
        *told.entry(own).or_default() += 1;
    }

    /// Numbers for `/metrics`.
    pub fn counters(&self) -> Vec<Counter> {
        let help = "Reads of lake objects whose bytes did not match their checksum.";
        let told = self.told.lock().unwrap();
        let one = |((volume, key), count): (&(String, String), &u64)| {
            let labels = [("volume", volume.as_str()), ("key", key.as_str())];
            Counter::new("lake_corrupt_reads_total", help, &labels, *count as f64)
        };
        let repaired = self.repaired.load(std::sync::atomic::Ordering::Relaxed) as f64;
        let help = "Lake objects with damaged bytes that are written again from copies on drives.";
        told.iter().map(one).chain([Counter::new("lake_repairs_total", help, &[], repaired)]).collect()
    }
}

impl Core {
    /// What is known of the bytes of a lake object in a range of it.
    pub async fn sums_of(
        &self,
        volume: VolumeId,
        key: &[u8],
        etag: &str,
        range: &Range<u64>,
    ) -> Result<Option<Arc<Sums>>> {
        let object: Object = (volume.0, key.to_vec(), etag.to_owned());
        if let Some(sums) = self.sums.cache.get(&object).filter(|sums| sums.covers(range)) {
            return Ok(Some(sums));
        }
        let mut rows: Vec<Row> = Vec::new();
        self.each(keys::sums_all(volume, key), |row| {
            rows.push(row.clone());
            Ok(())
        })
        .await?;
        let sums = Sums::of(&rows, etag).map_err(error::catalog)?.map(Arc::new);
        if let Some(sums) = sums.as_ref().filter(|sums| sums.is_whole()) {
            self.sums.cache.insert(object, sums.clone());
        }
        Ok(sums)
    }

    /// Writes down, in the background, the sums of what was read for the first time.
    pub fn note_sums(self: &Arc<Core>, extent: &Arc<Extent>, known: Option<&Sums>, start: u64, bytes: &[u8]) {
        let range = start..start + bytes.len() as u64;
        if known.is_some_and(|known| known.covers(&range)) {
            return;
        }
        let piece_len = known.map_or(piece_len(self.chunk_bytes, 0), Sums::piece_len);
        let (step, end) = (u64::from(piece_len), range.end);
        let seen = (start.div_ceil(step)..end.div_ceil(step)).filter_map(|at| {
            let piece = at * step..end.min((at + 1) * step);
            let is_new = !known.is_some_and(|known| known.covers(&piece));
            let bytes = bytes.get((piece.start - start) as usize..(piece.end - start) as usize)?;
            is_new.then(|| (at, bytes.len() as u32, crc32c(bytes)))
        });
        let seen: Vec<Seen> = seen.collect();
        let mut pending = self.sums.pending.lock().unwrap();
        if seen.is_empty() || pending.pieces + seen.len() > PENDING_MAX || self.check_open().is_err() {
            return;
        }
        pending.pieces += seen.len();
        let entry = pending.objects.entry(extent.object());
        let (_, of, pieces) = entry.or_insert_with(|| (extent.clone(), piece_len, Vec::new()));
        if *of == piece_len {
            pieces.extend(seen);
        }
        if !std::mem::replace(&mut pending.is_written, true) {
            let (core, work) = (self.clone(), self.work.begin());
            self.tasks.spawn(async move {
                let _work = work;
                while let Some(notes) = core.sums.next_notes() {
                    core.write_notes(notes).await;
                }
            });
        }
    }

    async fn write_notes(&self, notes: Vec<Note>) {
        // Together, and one by one if somebody else wrote one of them meanwhile. What is not written is known at its next read.
        if matches!(self.try_notes(&notes).await, Ok(true)) {
            return;
        }
        for note in notes.chunks(1) {
            if let Err(fault) = self.try_notes(note).await {
                tracing::debug!("sums of a lake object are not kept: {fault}");
            }
        }
    }

    async fn try_notes(&self, notes: &[Note]) -> Result<bool> {
        let mut commit = Commit::new();
        let mut volumes = BTreeSet::new();
        for note in notes {
            let extent = &note.extent;
            let mut rows: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
            for seen in &note.seen {
                rows.entry((seen.0 / SUMS_PER_ROW as u64) as u32).or_default().push(*seen);
            }
            for (number, seen) in rows {
                let key = keys::sums(extent.volume, &extent.key, number);
                let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
                let known = row.as_ref().map(SumsRow::of).transpose().map_err(error::catalog)?;
                let mut sums = match known {
                    Some(known) if known.etag == extent.etag => known,
                    // Of another object under that key, which may be a newer one.
                    Some(_) if !self.is_there(extent).await? => continue,
                    _ => SumsRow { etag: extent.etag.clone(), piece_len: note.piece_len, sums: Vec::new() },
                };
                if sums.piece_len != note.piece_len {
                    continue;
                }
                for (at, len, sum) in seen {
                    let at = (at % SUMS_PER_ROW as u64) as usize;
                    let count = sums.sums.len().max(at + 1);
                    sums.sums.resize(count, (0, 0));
                    if sums.sums[at].0 < len {
                        sums.sums[at] = (len, sum);
                    }
                }
                commit = commit.unchanged(key.clone(), row.as_ref()).put(key, sums.encode());
                volumes.insert(extent.volume.0);
            }
        }
        if commit.writes.is_empty() {
            return Ok(true);
        }
        // A volume that is gone leaves none behind.
        let lives = |volume: &u32| Check::Present(keys::volume_id(VolumeId(*volume)));
        commit.checks.extend(volumes.iter().map(lives));
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    async fn is_there(&self, extent: &Extent) -> Result<bool> {
        let object = extent.lake.head(&extent.key).await.map_err(error::lake)?;
        Ok(object.is_some_and(|object| object.etag == extent.etag))
    }

    /// Bytes of a piece are not what they were: says so, and gives the error for whoever wants them.
    pub async fn lake_is_bad(&self, extent: &Extent, piece: u64) -> StoreError {
        let (object, now_ms) = (extent.object(), clock::now_ms());
        let volume = match self.volumes.by_id(extent.volume).await {
            Ok(Some(volume)) => volume.name.clone(),
            _ => extent.volume.0.to_string(),
        };
        if !self.sums.is_bad(&object, piece..piece + 1, now_ms) {
            self.sums.set_bad(&object, piece, now_ms);
            self.sums.count(&volume, &extent.key);
            let key = String::from_utf8_lossy(&extent.key);
            tracing::error!(volume, %key, piece, "the lake holds other bytes than what was written there");
        }
        bad(extent)
    }

    /// Writes an object again whose lake lost a bit, in the background: from the rings, which have what the lake does not.
    pub fn repair_lake(self: &Arc<Core>, extent: &Arc<Extent>) {
        let object = extent.object();
        if self.check_open().is_err() || !self.sums.repairs.lock().unwrap().insert(object.clone()) {
            return;
        }
        let (core, extent, work) = (self.clone(), extent.clone(), self.work.begin());
        self.tasks.spawn(async move {
            let _work = work;
            let key = String::from_utf8_lossy(&extent.key).into_owned();
            match core.rewrite(&extent).await {
                Ok(true) => {
                    add(&core.sums.repaired, 1);
                    tracing::warn!(key, "a damaged lake object is written again");
                }
                Ok(false) => {}
                Err(fault) => tracing::error!(key, "a damaged lake object cannot be written again: {fault}"),
            }
            core.sums.repairs.lock().unwrap().remove(&object);
        });
    }

    async fn rewrite(self: &Arc<Core>, extent: &Extent) -> Result<bool> {
        let located = self.names.lookup(extent.volume, &extent.key).await.map_err(error::catalog)?;
        let is_of = |lake: &stoker_schema::rows::LakeRef| lake.key == extent.key && lake.etag == extent.etag;
        match located {
            Some(located)
                if located.file.drain == Drain::Clean && located.file.lake.as_ref().is_some_and(is_of) =>
            {
                self.take_back(located).await.map(|()| true)
            }
            _ => Ok(false),
        }
    }
}

/// The error for bytes of a lake object that are not what they were.
pub(crate) fn bad(extent: &Extent) -> StoreError {
    let message = format!(
        "the lake lost bytes of `{}`: they do not match their checksum, and no other copy is in reach; restore the object",
        String::from_utf8_lossy(&extent.key)
    );
    StoreError::about(ErrorKind::Corrupt, Subject::Lake, message)
}

/// What is to be written down of an object.
struct Note {
    extent: Arc<Extent>,
    piece_len: u32,
    seen: Vec<Seen>,
}

impl SumBook {
    /// Some of what waits; none: nothing does, and whoever adds something begins anew.
    fn next_notes(&self) -> Option<Vec<Note>> {
        let mut pending = self.pending.lock().unwrap();
        let mut notes = Vec::new();
        while notes.len() < AT_ONCE
            && let Some((_, (extent, piece_len, seen))) = pending.objects.pop_first()
        {
            notes.push(Note { extent, piece_len, seen });
        }
        pending.pieces -= notes.iter().map(|note| note.seen.len()).sum::<usize>().min(pending.pieces);
        pending.is_written = !notes.is_empty();
        pending.is_written.then_some(notes)
    }
}
