//! What time does to sets.

use super::ROWS_AT_ONCE;
use crate::names::{Names, Refusal};
use crate::rows::{Abort, RowValue, SetWork, keys};
use stoker_catalog::kv::{Commit, Range};

/// What a sweep did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetsSwept {
    /// Open sets whose deadline had passed.
    pub expired: u64,
    /// Aborted sets whose shards are garbage now.
    pub cleared: u64,
    /// Aborted sets that nothing tells of any more.
    pub forgotten: u64,
}

impl Names {
    /// Gives up sets whose deadline has passed, finishes aborts that were interrupted, and forgets old ones. `now_ms` is
    /// the catalog's clock. Reads only sets for which something is left to do.
    pub async fn sets_sweep(&self, now_ms: u64) -> Result<SetsSwept, Refusal> {
        let mut swept = SetsSwept::default();
        let mut range = Range::prefix(keys::SET_WORK, ROWS_AT_ONCE);
        loop {
            let page = self.catalog.range(range.clone()).await?;
            for row in &page.rows {
                let (Some(volume), Some(id)) = (keys::volume_part(&row.key), keys::set_part(&row.key)) else {
                    continue;
                };
                match SetWork::of(row)? {
                    SetWork::Expire { deadline_ms } if deadline_ms <= now_ms => {
                        match self.set_give_up(volume, id, Abort::Deadline, &[], now_ms).await {
                            Ok(_) => swept.expired += 1,
                            // Published just in time, or gone.
                            Err(Refusal::Conflict(_) | Refusal::NotFound) => continue,
                            Err(refusal) => return Err(refusal),
                        }
                        self.set_clear(volume, id, now_ms).await?;
                        swept.cleared += 1;
                    }
                    SetWork::Clear => {
                        self.set_clear(volume, id, now_ms).await?;
                        swept.cleared += 1;
                    }
                    SetWork::Remember { until_ms } if until_ms <= now_ms => {
                        let change = Commit::new()
                            .seq(row.key.clone(), row.seq)
                            .delete(row.key.clone())
                            .delete(keys::set(volume, id));
                        swept.forgotten += u64::from(self.attempt(&[], change).await?.is_some());
                    }
                    SetWork::Expire { .. } | SetWork::Remember { .. } | SetWork::Drain => {}
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(swept),
            }
        }
    }
}
