//! The end of a volume. Whoever deletes all files and then the volume need not wait until the lake has seen the deletes: the
//! volume is gone for everybody at once, and *leaving* until they have arrived. Should a volume of that name be made again
//! meanwhile, it is the same one that comes back, so that nothing deleted shows up in it.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Write, prefix_end};
use stoker_format::VolumeId;
use stoker_schema::names;
use stoker_schema::rows::{RowValue, VolumeRow, keys, tier_keys};
use stoker_store::{ErrorKind, Result, StoreError, Subject, VolumePolicy};

use super::{Volume, Volumes, not_found};
use crate::{clock, error};

/// Tables whose rows belong to users: files and directories, uploads, checkpoint sets, seals.
const CONTENTS: [&[u8]; 4] = [b"E", b"u", b"c", b"Z"];

/// Removed volumes that are remembered; no row is under way for longer than it takes to remove so many.
const REMOVED_MAX: usize = 1_024;

/// Tables whose rows are work in the lake: deletes, requests without a known end, moves, chunks that are only there.
const WORK: [&[u8]; 4] = [b"t", b"a", b"R", b"T"];

fn empty(tables: &[&[u8]], id: VolumeId) -> Vec<Check> {
    let check = |letter: &&[u8]| {
        let start = [*letter, &id.0.to_be_bytes()].concat();
        let end = prefix_end(&start).expect("tables are not 0xff");
        Check::AtMost { start, end, max: 0 }
    };
    tables.iter().map(check).collect()
}

/// What users said of a volume goes with it at once: one that comes back is a new one to them.
fn settings_gone(id: VolumeId) -> Write {
    let settings = keys::settings(id);
    let end = prefix_end(&settings).expect("tables are not 0xff");
    Write::DeleteRange(settings, end)
}

impl Volumes {
    /// Removes a volume without contents.
    pub async fn delete(&self, volume: &Volume) -> Result<()> {
        let key = keys::volume(&volume.name);
        loop {
            if self.remove(volume).await? {
                return Ok(());
            }
            let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
            let row = row.ok_or_else(|| not_found(&volume.name))?;
            let value = VolumeRow::of(&row).map_err(error::catalog)?;
            if value.id != volume.id.0 || value.leaving {
                return Err(not_found(&volume.name));
            }
            let value = VolumeRow { leaving: true, ..value };
            let mut commit = Commit::new()
                .seq(key.clone(), row.seq)
                .put(key.clone(), value.encode())
                .delete(keys::volume_id(volume.id));
            commit.writes.push(settings_gone(volume.id));
            commit.checks.extend(empty(&CONTENTS, volume.id));
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.outdate(volume, seq);
                    return Ok(());
                }
                Outcome::Failed { check: 0, .. } => continue,
                Outcome::Failed { .. } => {
                    let message = format!(
                        "volume `{}` is not empty: delete its files, directories, checkpoint sets and seals, and abort its uploads \
                         first",
                        volume.name
                    );
                    return Err(StoreError::about(ErrorKind::Conflict, Subject::VolumeContents, message));
                }
            }
        }
    }

    /// Forgets a volume, and what rows from before that commit say of it.
    fn outdate(&self, volume: &Volume, seq: u64) {
        // First, so that whoever learns of it from an older row either sees this or is forgotten with it.
        let mut since = self.since.lock().unwrap();
        since.insert(volume.id.0, seq);
        if since.len() > REMOVED_MAX {
            since.pop_first();
        }
        drop(since);
        self.forget(volume);
    }

    /// Removes what is left of a volume that is leaving, if it has no more work in the lake.
    pub async fn finish_leaving(&self, volume: &Volume) -> Result<()> {
        self.remove(volume).await.map(|_| ())
    }

    /// Removes a volume if neither contents nor work are left.
    async fn remove(&self, volume: &Volume) -> Result<bool> {
        let (id, key) = (volume.id, keys::volume(&volume.name));
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(false) };
        let value = VolumeRow::of(&row).map_err(error::catalog)?;
        if value.id != id.0 || value.leaving != volume.leaving {
            return Ok(false);
        }
        let mut commit = Commit::new()
            .seq(key.clone(), row.seq)
            .delete(key)
            .delete(keys::volume_id(id))
            .delete(keys::import(id))
            .delete(keys::data_keys(id))
            .delete(keys::destroyed_keys(id))
            .delete(tier_keys::replica(id))
            .delete(tier_keys::copy_walk(id));
        for rows in [tier_keys::copies(id), tier_keys::lacking(id, b"")] {
            let end = prefix_end(&rows).expect("tables are not 0xff");
            commit.writes.push(Write::DeleteRange(rows, end));
        }
        let work = tier_keys::copy_work(id, b"");
        let end = prefix_end(&work).expect("tables are not 0xff");
        commit.checks.push(Check::AtMost { start: work, end, max: 0 });
        commit.writes.extend(names::usage_deletes(id));
        commit.writes.push(settings_gone(id));
        let sums = keys::sums_of(id);
        let end = prefix_end(&sums).expect("tables are not 0xff");
        commit.writes.push(Write::DeleteRange(sums, end));
        commit.checks.extend(empty(&CONTENTS, id));
        commit.checks.extend(empty(&WORK, id));
        let removed =
            matches!(self.catalog.commit(commit).await.map_err(error::catalog)?, Outcome::Done { .. });
        if removed {
            self.outdate(volume, u64::MAX);
        }
        Ok(removed)
    }

    /// Makes a volume that is leaving a usable one again; none if it is gone by now.
    pub(super) async fn come_back(
        &self,
        known: &Volume,
        lake: Option<&str>,
        policy: Option<VolumePolicy>,
    ) -> Result<Option<Arc<Volume>>> {
        let name = &known.name;
        if known.lake_url.as_deref() != lake {
            let message = format!(
                "a volume `{name}` was deleted a moment ago, and not all deletes of its files have reached {} yet; try again later",
                known.lake_url.as_deref().unwrap_or("its lake")
            );
            return Err(StoreError::about(ErrorKind::Conflict, Subject::Volume, message));
        }
        let key = keys::volume(name);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let value = row.as_ref().map(VolumeRow::of).transpose().map_err(error::catalog)?;
        let (Some(row), Some(value)) = (row, value.filter(|value| value.id == known.id.0 && value.leaving))
        else {
            self.forget(known);
            return Ok(None);
        };
        // What lies in the lake is what we have not deleted yet: nobody else's, so that the lake's mode stays.
        let policy = policy
            .unwrap_or_else(|| VolumePolicy { lake_mode: known.policy.lake_mode, ..self.defaults.clone() });
        let value = VolumeRow {
            created_ms: clock::now_ms(),
            policy: serde_json::to_vec(&policy).expect("plain data encodes"),
            leaving: false,
            ..value
        };
        let commit = Commit::new()
            .seq(key.clone(), row.seq)
            .put(key, value.encode())
            .put(keys::volume_id(known.id), name.as_bytes());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.keep(name, &value, seq).await.map(Some),
            Outcome::Failed { .. } => {
                self.forget(known);
                Ok(None)
            }
        }
    }

    fn forget(&self, volume: &Volume) {
        let same = |other: &mut Arc<Volume>| other.id == volume.id;
        self.by_name.write().unwrap().extract_if(|_, other| same(other)).count();
        self.by_id.write().unwrap().remove(&volume.id.0);
    }
}
