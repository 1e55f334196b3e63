//! The second lake of a volume: a row that says which, the round that brings it up to date, and how far it lags.
//!
//! Whoever claims a lake key of such a volume leaves a note in the same transaction, before the first byte goes to the first lake. The round works through
//! the notes, and through everything that was drained before there was a second lake. A note goes by the transaction that confirms the copy, unless the key was
//! claimed again since. So the notes are the lag: what no note names is in the second lake. (D221)

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use stoker_catalog::kv::{Commit, Outcome, Range, Row};
use stoker_format::VolumeId;
use stoker_lake::Lake;
use stoker_schema::rows::{
    CopyRow, CopyWalkRow, CopyWorkRow, Drain, EntryRow, LakeKeyRow, ReplicaRow, ReplicaState, RowValue,
    TIERS_SINCE, VolumeRow, keys, tier_keys,
};
use stoker_store::{
    BoxFuture, Counter, ErrorKind, LakeMode, ReplicaInfo, Result, StoreError, Subject, check_lake_name,
};
use tokio::sync::OnceCell;

use super::named;
use crate::core::Core;
use crate::numbers::VOLUMES_MAX;
use crate::volumes::{Lakes, Volume};
use crate::{clock, error};

/// Copies under way at the same time, per volume.
const AT_ONCE: usize = 8;

/// Rows that one step of a walk looks at.
pub(super) const WALK_ROWS: usize = 500;

/// Notes and copies that are counted at most for an answer.
const COUNTED_MAX: usize = 200_000;

/// Foreign objects that are named at most.
const FOREIGN_MAX: usize = 100;

/// Keys whose next try is remembered; beyond, they are tried again at once.
const LATER_MAX: usize = 100_000;

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 32;

/// The second lake of a volume, as a node knows it.
pub(crate) struct Replica {
    pub row: ReplicaRow,
    /// Of its row, so that whoever knows an older one claims nothing.
    pub seq: u64,
    first: OnceCell<Arc<dyn Lake>>,
    second: OnceCell<Arc<dyn Lake>>,
}

impl Replica {
    pub fn of(row: Option<&Row>) -> Result<Option<Replica>> {
        let Some(row) = row else { return Ok(None) };
        let value = ReplicaRow::of(row).map_err(error::catalog)?;
        Ok(Some(Replica { row: value, seq: row.seq, first: OnceCell::new(), second: OnceCell::new() }))
    }

    pub fn is_copying(&self) -> bool {
        self.row.state == ReplicaState::Copying
    }

    pub fn is_promoting(&self) -> bool {
        self.row.state == ReplicaState::Promoting
    }

    /// The lake that is not the volume's.
    pub fn other(&self) -> &str {
        if self.is_copying() { &self.row.second } else { &self.row.first }
    }

    pub async fn first(&self, lakes: &Lakes) -> Result<Arc<dyn Lake>> {
        let lake = self.first.get_or_try_init(|| lakes.open(&self.row.first, false)).await;
        lake.cloned().map_err(error::lake)
    }

    pub async fn second(&self, lakes: &Lakes) -> Result<Arc<dyn Lake>> {
        let lake = self.second.get_or_try_init(|| lakes.open(&self.row.second, false)).await;
        lake.cloned().map_err(error::lake)
    }

    /// The one that is not the volume's, opened.
    pub async fn other_lake(&self, lakes: &Lakes) -> Result<Arc<dyn Lake>> {
        if self.is_copying() { self.second(lakes).await } else { self.first(lakes).await }
    }
}

/// A volume, and a key in it.
type VolumeKey = (u32, Vec<u8>);

/// What a node remembers of its rounds.
#[derive(Default)]
pub(crate) struct Replicas {
    /// When keys that failed are tried again, and after how many failures.
    later: Mutex<HashMap<VolumeKey, (u64, u32)>>,
    /// What went wrong last, by volume.
    trouble: Mutex<HashMap<u32, String>>,
    /// How far volumes lag whose rounds are done here, for metrics.
    lags: Mutex<HashMap<u32, (u64, ReplicaInfo)>>,
    /// When the former lake of a volume is asked next.
    pub(super) recover_ms: Mutex<HashMap<u32, u64>>,
    /// Held while a long object is copied.
    pub(super) long: tokio::sync::Mutex<()>,
    pub copied_files: std::sync::atomic::AtomicU64,
    pub copied_bytes: std::sync::atomic::AtomicU64,
    pub fallback_reads: std::sync::atomic::AtomicU64,
}

/// How often the lag is counted for metrics.
const LAG_MS: u64 = 10_000;

impl Replicas {
    pub(super) fn is_later(&self, volume: VolumeId, key: &[u8]) -> bool {
        let later = self.later.lock().unwrap();
        later.get(&(volume.0, key.to_vec())).is_some_and(|(at_ms, _)| *at_ms > clock::now_ms())
    }

    /// A key failed: it is left alone for a while, longer each time.
    pub(super) fn postpone(&self, volume: VolumeId, key: &[u8]) {
        let mut later = self.later.lock().unwrap();
        if later.len() >= LATER_MAX {
            later.clear();
        }
        let entry = later.entry((volume.0, key.to_vec())).or_insert((0, 0));
        entry.1 = (entry.1 + 1).min(6);
        entry.0 = clock::now_ms() + (500 << entry.1);
    }

    pub(super) fn went_well(&self, volume: VolumeId, key: &[u8]) {
        self.later.lock().unwrap().remove(&(volume.0, key.to_vec()));
    }

    pub(super) fn set_trouble(&self, volume: VolumeId, words: Option<String>) {
        let mut trouble = self.trouble.lock().unwrap();
        match words {
            Some(words) if trouble.get(&volume.0) != Some(&words) => {
                tracing::warn!("the second lake of volume {}: {words}", volume.0);
                trouble.insert(volume.0, words);
            }
            Some(_) => {}
            None => drop(trouble.remove(&volume.0)),
        }
    }

    /// Numbers for `/metrics`: of volumes whose rounds are done here, and of what this node copied and read.
    pub fn counters(&self) -> Vec<Counter> {
        let mut all: Vec<Counter> = [
            ("replica_copied_files_total", "Objects copied to second lakes.", &self.copied_files),
            ("replica_copied_bytes_total", "Their bytes.", &self.copied_bytes),
            (
                "replica_fallback_reads_total",
                "Reads that the other lake of a volume answered.",
                &self.fallback_reads,
            ),
        ]
        .into_iter()
        .map(|(name, help, value)| Counter::new(name, help, &[], value.load(Ordering::Relaxed) as f64))
        .collect();
        let lags = self.lags.lock().unwrap();
        for (_, info) in lags.values().take(VOLUMES_MAX) {
            for (name, help, value) in [
                (
                    "replica_lag_files",
                    "Files whose copy in the second lake is behind.",
                    info.lag_files as f64,
                ),
                ("replica_lag_bytes", "Their bytes.", info.lag_bytes as f64),
                (
                    "replica_lag_seconds",
                    "How long the oldest of them is behind.",
                    info.lag_ms as f64 / 1_000.0,
                ),
                (
                    "replica_lacking_files",
                    "Files that only the former lake of a volume has.",
                    info.lacking_files as f64,
                ),
            ] {
                all.push(Counter::new(name, help, &[("volume", info.volume.as_str())], value));
            }
        }
        all
    }
}

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::about(ErrorKind::Invalid, Subject::Volume, message)
}

impl Core {
    /// Gives a volume a second lake, or takes it away.
    pub(super) async fn replica_set(self: &Arc<Core>, name: &str, lake: Option<&str>) -> Result<()> {
        let volume = self.volumes.get(name).await?;
        let second = match lake {
            None => None,
            Some(lake) => Some(self.check_second(&volume, lake).await?),
        };
        for _ in 0..TRIES_MAX {
            let (keys, rows) = self.bond_rows(&volume).await?;
            let mut commit = Commit::new()
                .unchanged(keys[0].clone(), rows[0].as_ref())
                .unchanged(keys[1].clone(), rows[1].as_ref());
            let value = self.volume_row(&volume, rows[0].as_ref())?;
            let known = rows[1].as_ref().map(ReplicaRow::of).transpose().map_err(error::catalog)?;
            if known.as_ref().is_some_and(|known| known.state == ReplicaState::Promoting) {
                return Err(invalid(format!(
                    "the lakes of volume `{name}` are being swapped; wait until that is over"
                )));
            }
            let first = value.lake.clone().unwrap_or_default();
            let same = |known: &ReplicaRow| {
                known.state == ReplicaState::Copying && second.as_ref() == Some(&known.second)
            };
            if known.as_ref().is_some_and(same) || (known.is_none() && second.is_none()) {
                return Ok(());
            }
            if let Some(known) = &known
                && second.as_ref() != Some(&known.first)
                && self.lacks_any(&volume).await?
            {
                let message = format!(
                    "volume `{name}` lacks files that only {} has (`stoker lake lacking {name}`): make that its second lake and let them come back, or \
                     delete them first",
                    known.first
                );
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Volume, message));
            }
            if let Some(known) = &known
                && known.state == ReplicaState::Promoted
                && self.has_spilled(&volume).await?
            {
                let message = format!(
                    "volume `{name}` has files that are not drained and whose chunks may still be in {} alone: wait until `stoker status` shows no \
                     drains",
                    known.first
                );
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Volume, message));
            }
            // What is known of copies is about the lakes as they stood.
            for rows in [tier_keys::copies(volume.id), tier_keys::copy_work(volume.id, b"")] {
                let end = stoker_catalog::kv::prefix_end(&rows).expect("tables are not 0xff");
                commit.writes.push(stoker_catalog::kv::Write::DeleteRange(rows, end));
            }
            commit = match &second {
                None => commit.delete(keys[1].clone()).delete(keys[2].clone()),
                Some(second) => {
                    let row = ReplicaRow {
                        first,
                        second: second.clone(),
                        state: ReplicaState::Copying,
                        since_ms: clock::now_ms(),
                    };
                    commit
                        .put(keys[1].clone(), row.encode())
                        .put(keys[2].clone(), CopyWalkRow::default().encode())
                }
            };
            // With a new number, so that all nodes read it anew.
            let commit = commit.put(keys[0].clone(), value.encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.volumes.keep(&volume.name, &value, seq).await?;
                self.keep_rows().await?;
                self.drainer.wake();
                return Ok(());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "the row of the volume is contended; try again"))
    }

    /// The rows of a volume, of its second lake and of the walk, each with its key.
    pub(super) async fn bond_rows(&self, volume: &Volume) -> Result<([Vec<u8>; 3], Vec<Option<Row>>)> {
        let keys =
            [keys::volume(&volume.name), tier_keys::replica(volume.id), tier_keys::copy_walk(volume.id)];
        let rows = self.catalog.get(&[&keys[0], &keys[1], &keys[2]]).await.map_err(error::catalog)?;
        Ok((keys, rows))
    }

    /// The row of a volume, if it is still that one.
    pub(super) fn volume_row(&self, volume: &Volume, row: Option<&Row>) -> Result<VolumeRow> {
        let value = row.map(VolumeRow::of).transpose().map_err(error::catalog)?;
        value.filter(|value| value.id == volume.id.0).ok_or_else(|| {
            let message = format!("there is no volume `{}`", volume.name);
            StoreError::about(ErrorKind::NotFound, Subject::Volume, message)
        })
    }

    /// Whether files that are not in the lake by their names have chunks in an object there.
    async fn has_spilled(&self, volume: &Volume) -> Result<bool> {
        let range = Range::prefix(&keys::spilled_all(volume.id), 1);
        Ok(!self.catalog.range(range).await.map_err(error::catalog)?.rows.is_empty())
    }

    async fn lacks_any(&self, volume: &Volume) -> Result<bool> {
        let range = Range::prefix(&tier_keys::lacking(volume.id, b""), 1);
        Ok(!self.catalog.range(range).await.map_err(error::catalog)?.rows.is_empty())
    }

    /// Where the copies of a volume would go, if they may.
    async fn check_second(&self, volume: &Volume, lake: &str) -> Result<String> {
        check_lake_name(lake)?;
        let (name, level) = (&volume.name, self.level.get());
        if level < TIERS_SINCE {
            return Err(invalid(format!(
                "the cluster is at level {level}, and replicas need level {TIERS_SINCE}: run this release on all of its nodes; `stoker cluster \
                 level` says what keeps it"
            )));
        }
        if volume.lake_url.is_none() {
            return Err(invalid(format!("volume `{name}` has no lake that could be copied from")));
        }
        if volume.policy.lake_mode != LakeMode::Owned {
            return Err(invalid(format!(
                "others may write to the lake of volume `{name}`, and nobody tells Stoker what to copy: a replica needs --lake-mode owned"
            )));
        }
        if self.vault.is_encrypted(volume.id) {
            tracing::info!(
                volume = name,
                "copies in the second lake are plain, as objects in the first one are"
            );
        }
        let place = named::place(lake, name);
        self.volumes.lakes().named.get(lake).await?;
        self.volumes.refuse_overlap(name, &place).await?;
        let opened = self.volumes.lakes().open(&place, true).await.map_err(error::lake)?;
        opened.list(b"", None, None, 1).await.map_err(error::lake)?;
        Ok(place)
    }

    /// A bounded piece of the work for the second lake of a volume; true if something was done and more is left.
    pub(crate) async fn replicate_round<'a>(self: &'a Arc<Core>, volume: &'a Arc<Volume>) -> Result<bool> {
        let Some(replica) = volume.replica.as_deref() else {
            self.replicas.lags.lock().unwrap().remove(&volume.id.0);
            return Ok(false);
        };
        let done = match replica.row.state {
            ReplicaState::Copying => self.copy_round(volume, replica).await,
            ReplicaState::Promoting => self.promote_round(volume, replica).await,
            ReplicaState::Promoted => self.recover_round(volume, replica).await.map(|()| false),
        };
        if let Err(fault) = &done {
            self.replicas.set_trouble(volume.id, Some(fault.message.clone()));
        }
        self.note_lag(volume).await?;
        // Its trouble is told with the replica, not with the drain of the volume.
        Ok(done.unwrap_or(false))
    }

    async fn copy_round<'a>(
        self: &'a Arc<Core>,
        volume: &'a Arc<Volume>,
        replica: &'a Replica,
    ) -> Result<bool> {
        let second = replica.second(self.volumes.lakes()).await?;
        // One request instead of one for each note, while it does not answer.
        second.list(b".stoker-probe/", None, None, 1).await.map_err(error::lake)?;
        self.replicas.set_trouble(volume.id, None);
        self.recover_round(volume, replica).await?;
        // What an import finds has no note.
        let walked = match volume.asks_lake() {
            true => false,
            false => self.walk_for_copies(volume).await?,
        };
        let copy =
            |row: Row| -> BoxFuture<'_, Result<bool>> { Box::pin(self.copy_one(volume, replica, row)) };
        let done = self.each_row(&tier_keys::copy_work(volume.id, b""), AT_ONCE, copy).await?;
        Ok(walked || done)
    }

    /// How far the walk is. One that nobody knows of begins anew: a catalog that was rebuilt has forgotten it.
    pub(super) async fn walk_row(&self, volume: &Volume) -> Result<Option<(Row, CopyWalkRow)>> {
        let key = tier_keys::copy_walk(volume.id);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else {
            let commit = Commit::new().absent(key.clone()).put(key, CopyWalkRow::default().encode());
            let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
            return Ok(None);
        };
        let walk = CopyWalkRow::of(&row).map_err(error::catalog)?;
        Ok(Some((row, walk)))
    }

    /// Leaves notes for what was drained before there was a second lake; true if there is more to look at.
    async fn walk_for_copies(&self, volume: &Volume) -> Result<bool> {
        let walk_key = tier_keys::copy_walk(volume.id);
        let Some((row, walk)) = self.walk_row(volume).await? else { return Ok(true) };
        let table = match walk.table {
            0 => keys::lake_key(volume.id, b""),
            1 => [b"E", &volume.id.0.to_be_bytes()[..]].concat(),
            _ => return Ok(false),
        };
        let mut range = Range::prefix(&table, WALK_ROWS);
        if let Some(after) = &walk.after {
            range = range.after(after);
        }
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        let mut commit = Commit::new().seq(walk_key.clone(), row.seq);
        for row in &page.rows {
            let Some((key, bytes)) = copied(walk.table, row)? else { continue };
            let work = CopyWorkRow { since_ms: clock::now_ms(), bytes };
            commit = commit.put(tier_keys::copy_work(volume.id, &key), work.encode());
        }
        let next = match page.rows.last() {
            Some(last) if page.more => CopyWalkRow { after: Some(last.key.clone()), ..walk },
            _ => CopyWalkRow { after: None, table: walk.table + 1, ..walk },
        };
        let commit = commit.put(walk_key, next.encode());
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(true)
    }

    /// Counts the lag of a volume whose rounds are done here, every few seconds.
    async fn note_lag(&self, volume: &Volume) -> Result<()> {
        let now_ms = clock::now_ms();
        let is_due = |lags: &HashMap<u32, (u64, ReplicaInfo)>| {
            lags.get(&volume.id.0).is_none_or(|(at_ms, _)| at_ms + LAG_MS <= now_ms)
        };
        if is_due(&self.replicas.lags.lock().unwrap()) {
            let info = self.replica_info(volume).await?;
            let mut lags = self.replicas.lags.lock().unwrap();
            match info {
                Some(info) => drop(lags.insert(volume.id.0, (now_ms, info))),
                None => drop(lags.remove(&volume.id.0)),
            }
        }
        Ok(())
    }

    /// The second lakes of all volumes, or of one.
    pub(crate) async fn replicas(&self, only: Option<&str>) -> Result<Vec<ReplicaInfo>> {
        let volumes = match only {
            Some(name) => vec![self.volumes.get(name).await?],
            None => self.volumes.all().await?,
        };
        let mut infos = Vec::new();
        for volume in volumes {
            infos.extend(self.replica_info(&volume).await?);
        }
        Ok(infos)
    }

    /// How a volume and its second lake stand, as the rows say.
    pub(super) async fn replica_info(&self, volume: &Volume) -> Result<Option<ReplicaInfo>> {
        let (_, rows) = self.bond_rows(volume).await?;
        let Some(replica) = rows[1].as_ref().map(ReplicaRow::of).transpose().map_err(error::catalog)? else {
            return Ok(None);
        };
        let walk = rows[2].as_ref().map(CopyWalkRow::of).transpose().map_err(error::catalog)?;
        let walk = walk.unwrap_or_default();
        let (is_copying, now_ms) = (replica.state == ReplicaState::Copying, clock::now_ms());
        let (lake, other) = match is_copying {
            true => (replica.first, replica.second),
            false => (replica.second, replica.first),
        };
        let state = match replica.state {
            ReplicaState::Copying => "copying",
            ReplicaState::Promoting => "promoting",
            ReplicaState::Promoted => "promoted",
        };
        let mut info = ReplicaInfo {
            volume: volume.name.clone(),
            lake,
            other,
            state: state.to_owned(),
            since_ms: replica.since_ms,
            walked: walk.table > 1 || !is_copying,
            lacking_files: walk.lacking_files,
            lacking_bytes: walk.lacking_bytes,
            rescued_files: walk.rescued_files,
            trouble: self.replicas.trouble.lock().unwrap().get(&volume.id.0).cloned(),
            ..ReplicaInfo::default()
        };
        if !is_copying {
            return Ok(Some(info));
        }
        let mut foreign = Vec::new();
        let over = self
            .some_rows(&tier_keys::copy_work(volume.id, b""), |row| {
                let work = CopyWorkRow::of(row).map_err(error::catalog)?;
                info.lag_files += 1;
                info.lag_bytes += work.bytes;
                info.lag_ms = info.lag_ms.max(now_ms.saturating_sub(work.since_ms));
                if foreign.len() < FOREIGN_MAX * 10 {
                    foreign.push(tier_keys::copy_work_part(&row.key).to_vec());
                }
                Ok(())
            })
            .await?;
        info.at_least = over | self.count_rows(&tier_keys::copies(volume.id), &mut info.copies).await?;
        for key in foreign {
            let copy = self.copy_row(volume.id, &key).await?;
            if copy.is_some_and(|(copy, _)| copy.foreign.is_some()) && info.foreign.len() < FOREIGN_MAX {
                info.foreign.push(String::from_utf8_lossy(&key).into_owned());
            }
        }
        Ok(Some(info))
    }

    async fn count_rows(&self, prefix: &[u8], count: &mut u64) -> Result<bool> {
        self.some_rows(prefix, |_| {
            *count += 1;
            Ok(())
        })
        .await
    }

    /// Sees rows with a prefix, up to a limit; true if there are more.
    async fn some_rows(&self, prefix: &[u8], mut see: impl FnMut(&Row) -> Result<()>) -> Result<bool> {
        let mut range = Range::prefix(prefix, 1_000);
        for _ in 0..COUNTED_MAX / 1_000 {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            page.rows.iter().try_for_each(&mut see)?;
            match page.rows.last() {
                Some(last) if page.more && !self.closing.load(Ordering::Relaxed) => {
                    range = range.after(&last.key)
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What is known of a copy.
    pub(super) async fn copy_row(&self, volume: VolumeId, key: &[u8]) -> Result<Option<(CopyRow, u64)>> {
        let row =
            self.catalog.get(&[&tier_keys::copy(volume, key)]).await.map_err(error::catalog)?.pop().flatten();
        row.map(|row| Ok((CopyRow::of(&row).map_err(error::catalog)?, row.seq))).transpose()
    }

    /// The note that a claim on a lake key leaves for the second lake, to be written with the claim; none if the volume has none, or
    /// the key is never copied.
    pub(crate) async fn copy_note(
        &self,
        volume: &Volume,
        key: &[u8],
        bytes: u64,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let is_copying = volume.replica.as_ref().is_some_and(|replica| replica.is_copying());
        if !is_copying || !is_copied(key) {
            return Ok(None);
        }
        let note = tier_keys::copy_work(volume.id, key);
        let old = self.catalog.get(&[&note]).await.map_err(error::catalog)?.pop().flatten();
        let old = old.as_ref().map(CopyWorkRow::of).transpose().map_err(error::catalog)?;
        let since_ms = old.as_ref().map_or_else(clock::now_ms, |old| old.since_ms);
        let bytes = bytes.max(old.map_or(0, |old| old.bytes));
        Ok(Some((note, CopyWorkRow { since_ms, bytes }.encode())))
    }
}

/// Whether objects of such a key are copied: those of writes that are under way, and of open reads, are not.
pub(super) fn is_copied(key: &[u8]) -> bool {
    !key.starts_with(stoker_records::lake_keys::AWAY) && !key.starts_with(stoker_records::lake_keys::OPEN)
}

/// The lake key that a row of a table is about, and bytes, if there is something to copy.
fn copied(table: u8, row: &Row) -> Result<Option<(Vec<u8>, u64)>> {
    let found = match table {
        0 => {
            let value = LakeKeyRow::of(row).map_err(error::catalog)?;
            let is_there = value.etag.is_some() || value.session != [0; 16];
            is_there.then(|| (keys::lake_key_part(&row.key).to_vec(), 0))
        }
        _ => match EntryRow::of(row).map_err(error::catalog)? {
            EntryRow::File(file) if file.drain == Drain::Clean => file.lake.map(|lake| (lake.key, file.size)),
            _ => None,
        },
    };
    Ok(found.filter(|(key, _)| is_copied(key)))
}
