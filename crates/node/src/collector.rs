//! The collector deletes chunks that nothing refers to. A chunk goes only after a transaction said so and nobody reads it
//! here any more; nothing else deletes published chunks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Range, Row, Write, prefix_end};
use stoker_catalog::rows::{GarbageRow, RowValue, RunRow, keys};
use stoker_format::{ChunkId, ChunkRun, VersionId};
use stoker_store::Result;

use crate::core::{Core, add};
use crate::error;
use crate::rings::{self, NAME_INDEX};

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
            () = core.garbage.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

fn version_of(row: &Row) -> Option<VersionId> {
    Some(VersionId(row.key.get(1..13)?.try_into().ok()?))
}

impl Core {
    /// Deletes a bounded number of versions; true if more may be there.
    async fn collect_round(self: &Arc<Core>) -> Result<bool> {
        let mut range = Range::prefix(b"g", ROUND);
        let mut deleted = false;
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            let mut rows: Vec<(Row, GarbageRow)> = Vec::new();
            for row in &page.rows {
                let pinned = version_of(row).is_none_or(|version| self.pins.is_pinned(version));
                if !pinned {
                    rows.push((row.clone(), GarbageRow::of(row).map_err(error::catalog)?));
                }
            }
            if !rows.is_empty() {
                self.collect(rows).await?;
                deleted = true;
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(deleted && page.more),
            }
        }
    }

    async fn collect(self: &Arc<Core>, rows: Vec<(Row, GarbageRow)>) -> Result<()> {
        let mut ready = Vec::new();
        for (row, garbage) in rows {
            match garbage.settled {
                true => ready.push((row, garbage)),
                false => ready.extend(self.settle_shares(row, garbage).await?),
            }
        }
        let mut ids: Vec<ChunkId> = Vec::new();
        let mut commit = Commit::new();
        for (row, garbage) in &ready {
            let runs: Vec<ChunkRun> = garbage.runs.iter().map(|run| run.at(0)).collect();
            ids.extend(rings::chunks(&runs).map(|(chunk, _)| chunk));
            ids.extend(version_of(row).map(|version| ChunkId::new(version, NAME_INDEX)));
            ids.extend(garbage.name_record.map(|record| ChunkId::new(VersionId(record), NAME_INDEX)));
            commit = commit.delete(row.key.clone());
        }
        if ready.is_empty() {
            return Ok(());
        }
        // Durable on the drives before the catalog forgets that it has to be done.
        self.rings.delete(&ids).await?;
        add(&self.stats.collected_chunks, ids.len() as u64);
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(())
    }

    /// Finds out which chunks are this version's alone. Each set of chunks has one owner that no row names, and a row
    /// for everyone else who uses it; an owner that dies passes the set on to one of them.
    async fn settle_shares(
        self: &Arc<Core>,
        row: Row,
        garbage: GarbageRow,
    ) -> Result<Option<(Row, GarbageRow)>> {
        let Some(dead) = version_of(&row) else { return Ok(None) };
        let mut change = Commit::new().seq(row.key.clone(), row.seq);
        let mut alone: HashMap<[u8; 12], bool> = HashMap::new();
        let mut shared = false;
        for run in &garbage.runs {
            if alone.contains_key(&run.version) {
                continue;
            }
            let owner = VersionId(run.version);
            let prefix = keys::shares(owner);
            let page = self.catalog.range(Range::prefix(&prefix, 100)).await.map_err(error::catalog)?;
            let end = prefix_end(&prefix).expect("a table is not 0xff");
            let own = page.rows.iter().find(|row| keys::sharer(&row.key) == Some(dead));
            match own.or(page.rows.first()) {
                None => change.checks.push(Check::AtMost { start: prefix, end, max: 0 }),
                Some(leaving) => {
                    shared = true;
                    change.checks.push(Check::Seq(leaving.key.clone(), leaving.seq));
                    change.writes.push(Write::Delete(leaving.key.clone()));
                }
            }
            alone.insert(run.version, page.rows.is_empty());
        }
        let mine = |run: &&RunRow| alone.get(&run.version).copied().unwrap_or(false);
        let runs: Vec<RunRow> = garbage.runs.iter().filter(mine).copied().collect();
        let settled = GarbageRow { settled: true, runs, ..garbage };
        if !shared {
            // Nothing to write down: the check alone decides, and a crash decides again.
            return match self.catalog.commit(change).await.map_err(error::catalog)? {
                Outcome::Done { .. } => Ok(Some((row, settled))),
                Outcome::Failed { .. } => Ok(None),
            };
        }
        change.writes.push(Write::Put(row.key.clone(), settled.encode()));
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { seq } => Ok(Some((Row { seq, value: settled.encode(), ..row }, settled))),
            Outcome::Failed { .. } => Ok(None),
        }
    }
}
