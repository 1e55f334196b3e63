//! The collector deletes chunks that nothing refers to. A chunk goes only after a transaction said so and nobody reads it
//! here any more; nothing else deletes published chunks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Range, Row, Write, prefix_end};
use stoker_format::{ChunkId, ChunkRun, VersionId};
use stoker_schema::rows::{GarbageRow, RowValue, RunRow, keys};
use stoker_store::Result;

use crate::core::{Core, add};
use crate::rings::{self, NAME_INDEX};
use crate::{clock, error};

/// Rows looked at in one round.
const ROUND: usize = 500;

/// Pause between rounds that nobody asked for: pinned versions are looked at again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    while !core.closing.load(std::sync::atomic::Ordering::Relaxed) {
        match core.collect_round().await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(fault) => tracing::warn!("deleting chunks that nothing refers to: {fault}"),
        }
        tokio::select! {
            biased;
            () = core.garbage.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Clocks of nodes may differ by so much, and versions begin with their time.
const SKEW_MS: u64 = 60_000;

/// Records of deletes that one round lets go.
const RECORDS_MAX: usize = 10_000;

fn version_of(row: &Row) -> Option<VersionId> {
    keys::garbage_version(&row.key)
}

fn is_delete_record(rows: &[(Row, GarbageRow)]) -> bool {
    rows.iter().any(|(_, garbage)| garbage.is_delete_record())
}

/// The dead version, and those whose chunks it uses.
fn versions_in(rows: &[(Row, GarbageRow)]) -> impl Iterator<Item = VersionId> + '_ {
    let dead = rows.first().and_then(|(row, _)| version_of(row));
    let owners = rows.iter().flat_map(|(_, garbage)| &garbage.runs).map(|run| VersionId(run.version));
    dead.into_iter().chain(owners)
}

impl Core {
    /// Deletes a bounded number of versions; true if more may be there.
    async fn collect_round(self: &Arc<Core>) -> Result<bool> {
        let mut range = Range::prefix(keys::GARBAGE, ROUND);
        let (mut deleted, mut records) = (false, Vec::new());
        let more = loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            let mut versions: Vec<Vec<(Row, GarbageRow)>> = Vec::new();
            for row in &page.rows {
                let garbage = GarbageRow::of(row).map_err(error::catalog)?;
                match versions.last_mut() {
                    Some(rows) if version_of(&rows[0].0) == version_of(row) => {
                        rows.push((row.clone(), garbage));
                    }
                    _ => versions.push(vec![(row.clone(), garbage)]),
                }
            }
            if let Some(last) = versions.pop() {
                // All rows of a version are settled together, and the page may end in the middle of one.
                versions.push(self.all_rows(last).await?);
            }
            versions.retain(|rows| !self.in_use(rows));
            let (later, mut now): (Vec<_>, Vec<_>) =
                versions.into_iter().partition(|rows| is_delete_record(rows));
            records.extend(later.into_iter().take(RECORDS_MAX.saturating_sub(records.len())));
            self.leave_to_readers(&mut now).await;
            if !now.is_empty() {
                deleted |= self.collect(now).await?;
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => break page.more,
            }
        };
        if !records.is_empty() {
            self.collect_records(records).await?;
        }
        Ok(deleted && more)
    }

    /// Lets records of deletes go whose dead are gone, on whichever node. Were a record gone first and then the catalog, what is
    /// left of the dead on drives would look alive.
    async fn collect_records(self: &Arc<Core>, mut records: Vec<Vec<(Row, GarbageRow)>>) -> Result<()> {
        if let Some(oldest_ms) = self.oldest_dead_ms().await? {
            let is_after = |rows: &Vec<(Row, GarbageRow)>| {
                let record = rows.first().and_then(|(row, _)| version_of(row));
                record.is_none_or(|record| clock::minted_ms(record) + SKEW_MS < oldest_ms)
            };
            records.retain(is_after);
        }
        if !records.is_empty() {
            self.collect(records).await?;
        }
        Ok(())
    }

    /// When the oldest version was begun that is dead and has not been deleted from all drives.
    async fn oldest_dead_ms(&self) -> Result<Option<u64>> {
        let mut range = Range::prefix(keys::GARBAGE, ROUND);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                if !GarbageRow::of(row).map_err(error::catalog)?.is_delete_record() {
                    return Ok(version_of(row).map(clock::minted_ms));
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(None),
            }
        }
    }

    async fn all_rows(&self, rows: Vec<(Row, GarbageRow)>) -> Result<Vec<(Row, GarbageRow)>> {
        let Some(version) = version_of(&rows[0].0) else { return Ok(rows) };
        let mut all = Vec::new();
        self.each(keys::garbage_all(version), |row| {
            all.push((row.clone(), GarbageRow::of(row).map_err(error::catalog)?));
            Ok(())
        })
        .await?;
        Ok(all)
    }

    /// Whether somebody here still reads one of the chunks, or may.
    fn in_use(&self, rows: &[(Row, GarbageRow)]) -> bool {
        let Some(version) = versions_in(rows).next() else { return true };
        let mut runs = rows.iter().flat_map(|(_, garbage)| &garbage.runs);
        !self.cell.is_mine(version)
            || self.pins.is_held(version)
            || runs.any(|run| self.pins.is_read(VersionId(run.version), run.first_index, run.count))
    }

    /// Takes out what somebody reads on another node. One that does not answer may have readers until it is declared down.
    async fn leave_to_readers(&self, versions: &mut Vec<Vec<(Row, GarbageRow)>>) {
        let others = self.cell.others();
        if others.is_empty() || versions.is_empty() {
            return;
        }
        let all: Vec<VersionId> = versions.iter().flat_map(|rows| versions_in(rows)).collect();
        let mut read = HashSet::new();
        for node in others {
            match self.cell.pinned(node, &all).await {
                Ok(pinned) => {
                    read.extend(
                        all.iter().zip(pinned).filter(|(_, pinned)| *pinned).map(|(version, _)| *version),
                    );
                }
                Err(_) => return versions.clear(),
            }
        }
        versions.retain(|rows| !versions_in(rows).any(|version| read.contains(&version)));
    }

    async fn collect(self: &Arc<Core>, versions: Vec<Vec<(Row, GarbageRow)>>) -> Result<bool> {
        let mut ids: Vec<ChunkId> = Vec::new();
        let mut commit = Commit::new();
        let mut spilled = Vec::new();
        for rows in versions {
            let rows = match rows.iter().all(|(_, garbage)| garbage.settled) {
                true => rows,
                false => match self.settle_shares(rows).await? {
                    Some(rows) => rows,
                    None => continue,
                },
            };
            for (row, garbage) in rows {
                let runs: Vec<ChunkRun> = garbage.runs.iter().map(|run| run.at(0)).collect();
                ids.extend(rings::chunks(&runs).map(|(chunk, _)| chunk));
                ids.extend(version_of(&row).map(|version| ChunkId::new(version, NAME_INDEX)));
                commit = commit.delete(row.key);
                if runs.iter().any(ChunkRun::is_spilled) {
                    spilled.push(garbage);
                }
            }
        }
        if !spilled.is_empty() {
            self.forget_spilled(&mut commit, &spilled).await?;
        }
        if commit.writes.is_empty() {
            return Ok(false);
        }
        // Durable on the drives before the catalog forgets that it has to be done.
        self.rings.delete(&ids).await?;
        self.cell.tell_forget(&self.cell.others(), &ids).await;
        add(&self.stats.collected_chunks, ids.len() as u64);
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        if !spilled.is_empty() {
            self.drainer.wake();
        }
        Ok(true)
    }

    /// Finds out which chunks of a dead version nobody else uses, and takes it out of the users of the others.
    async fn settle_shares(
        self: &Arc<Core>,
        rows: Vec<(Row, GarbageRow)>,
    ) -> Result<Option<Vec<(Row, GarbageRow)>>> {
        let Some(dead) = rows.first().and_then(|(row, _)| version_of(row)) else { return Ok(None) };
        let mut change = Commit::new();
        for (row, _) in &rows {
            change.checks.push(Check::Seq(row.key.clone(), row.seq));
        }
        let mut alone: HashMap<[u8; 12], bool> = HashMap::new();
        let mut users = Vec::new();
        for run in rows.iter().flat_map(|(_, garbage)| &garbage.runs) {
            if alone.contains_key(&run.version) {
                continue;
            }
            let owner = VersionId(run.version);
            let (shares, references) = (keys::shares(owner), keys::references(owner));
            let page = self.catalog.range(Range::prefix(&shares, 100)).await.map_err(error::catalog)?;
            let own = page.rows.iter().find(|row| keys::sharer(&row.key) == Some(dead));
            if let Some(own) = own {
                change.checks.push(Check::Seq(own.key.clone(), own.seq));
                change.writes.push(Write::Delete(own.key.clone()));
            }
            let other = page.rows.iter().find(|row| keys::sharer(&row.key) != Some(dead));
            let owner_lives = match other {
                // Nobody is named: the dead one was the only user, whoever owned the chunks.
                None if own.is_none() => None,
                None if owner == dead => None,
                None => {
                    let range = Range::prefix(&references, 1);
                    self.catalog.range(range).await.map_err(error::catalog)?.rows.into_iter().next()
                }
                Some(_) => None,
            };
            // Whoever makes us leave the chunks alone must itself stay; if nobody does, nobody may come.
            match other.map(|row| &row.key).or(owner_lives.as_ref().map(|row| &row.key)) {
                Some(stays) => {
                    change.checks.push(Check::Present(stays.clone()));
                    users.extend(other.and_then(|row| keys::sharer(&row.key)));
                    users.extend(owner_lives.is_some().then_some(owner));
                    alone.insert(run.version, false);
                }
                None => {
                    let end = prefix_end(&shares).expect("a table is not 0xff");
                    let max = usize::from(own.is_some());
                    change.checks.push(Check::AtMost { start: shares, end, max });
                    if own.is_some() && owner != dead {
                        let end = prefix_end(&references).expect("a table is not 0xff");
                        change.checks.push(Check::AtMost { start: references, end, max: 0 });
                    }
                    alone.insert(run.version, true);
                }
            }
        }
        let mine = |run: &&RunRow| alone.get(&run.version).copied().unwrap_or(false);
        let mut settled = Vec::new();
        for (row, garbage) in rows {
            let runs: Vec<RunRow> = garbage.runs.iter().filter(mine).copied().collect();
            let garbage = GarbageRow { settled: true, runs };
            change.writes.push(Write::Put(row.key.clone(), garbage.encode()));
            settled.push((row, garbage));
        }
        if change.writes.len() == settled.len() {
            // No share changed: the checks alone decide, and a crash decides again.
            change.writes.clear();
        }
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { .. } => {
                // Whoever is left may have all its chunks in the lake.
                users.into_iter().for_each(|user| self.drainer.reconsider(user));
                Ok(Some(settled))
            }
            Outcome::Failed { .. } => Ok(None),
        }
    }
}
