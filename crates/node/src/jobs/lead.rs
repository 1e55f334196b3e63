//! Who leads jobs: a row says it, and changes as long as that node does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::{Commit, Outcome, Range};
use stoker_schema::rows::{JobLeadRow, RowValue, keys};
use stoker_store::Result;
use tokio::time::Instant;

use super::driver::Driver;
use crate::core::Core;
use crate::error;

/// A row that stays the same for so long is that of a node that is gone.
const LEASE: Duration = Duration::from_secs(10);
/// How often the leader changes it.
const BEAT_EVERY: Duration = Duration::from_secs(3);
/// How often others look at it while there are jobs.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause after the catalog did not answer.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// How often somebody looks for jobs whose news did not arrive.
const IDLE_EVERY: Duration = Duration::from_secs(60);

/// What a node knows of the row.
#[derive(Default)]
struct Seen {
    /// The row as it was written, and since when it is so.
    row: Option<(Vec<u8>, Instant)>,
    /// When this node changed it last, if it leads.
    beat: Option<(u64, Instant)>,
}

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    if core.is_witness {
        return;
    }
    let mut watch = core.catalog.watch(keys::JOBS_ACTIVE.to_vec());
    let (mut seen, mut driver) = (Seen::default(), None::<Driver>);
    while !core.closing.load(Ordering::Relaxed) {
        match turn(&core, &mut seen, &mut driver).await {
            Ok(pause) => {
                let wait = async {
                    match driver.as_mut() {
                        Some(driver) => driver.news().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = wait => {}
                    changed = watch.changed() => {
                        if changed.is_err() {
                            // The catalog was closed; it may be opened again elsewhere.
                            tokio::time::sleep(TROUBLE_PAUSE).await;
                            watch = core.catalog.watch(keys::JOBS_ACTIVE.to_vec());
                        }
                        if let Some(driver) = driver.as_mut() {
                            driver.rows_changed();
                        }
                    }
                }
            }
            Err(fault) => {
                tracing::debug!("jobs are not led: {fault}");
                // Another node may lead by now.
                if seen.beat.is_some_and(|(_, at)| at.elapsed() >= LEASE / 2) {
                    (driver, seen.beat) = (None, None);
                }
                tokio::time::sleep(TROUBLE_PAUSE).await;
            }
        }
    }
}

async fn turn(core: &Arc<Core>, seen: &mut Seen, driver: &mut Option<Driver>) -> Result<Duration> {
    let has_jobs = match driver {
        Some(driver) => driver.has_jobs(),
        None => {
            let range = Range::prefix(keys::JOBS_ACTIVE, 1);
            !core.catalog.range(range).await.map_err(error::catalog)?.rows.is_empty()
        }
    };
    if !has_jobs {
        // Nothing to lead: whoever sees the next job first does it.
        if let Some(mut last) = driver.take() {
            last.end().await;
            seen.beat = None;
        }
        return Ok(IDLE_EVERY);
    }
    if !is_leader(core, seen).await? {
        *driver = None;
        return Ok(LOOK_EVERY);
    }
    let driver = match driver {
        Some(driver) => driver,
        None => {
            tracing::info!("this node stages for jobs");
            driver.insert(Driver::new(core.clone()))
        }
    };
    driver.turn().await
}

/// Whether this node leads, after it tried to.
async fn is_leader(core: &Arc<Core>, seen: &mut Seen) -> Result<bool> {
    if seen.beat.is_some_and(|(_, at)| at.elapsed() < BEAT_EVERY) {
        return Ok(true);
    }
    let row = core.catalog.get(&[keys::JOBS_LEAD]).await.map_err(error::catalog)?.pop().flatten();
    let now = Instant::now();
    let is_own = match &row {
        None => true,
        Some(row) => {
            let lead = JobLeadRow::of(row).map_err(error::catalog)?;
            if seen.row.as_ref().is_none_or(|(known, _)| *known != row.value) {
                seen.row = Some((row.value.clone(), now));
            }
            let is_silent = seen.row.as_ref().is_some_and(|(_, since)| since.elapsed() >= LEASE);
            let node = stoker_format::NodeId(lead.node);
            // A node that began anew, or was declared down, does not lead.
            let is_gone = core.cell.is_joined() && core.cell.view().session(node) != Some(lead.session);
            // An earlier boot of this node does not lead any more: its session ended with this one's beginning.
            lead.node == core.node.0 || is_silent || is_gone
        }
    };
    if !is_own {
        seen.beat = None;
        return Ok(false);
    }
    let beat = seen.beat.map_or(0, |(beat, _)| beat) + 1;
    let next = JobLeadRow { node: core.node.0, session: core.session_id, beat }.encode();
    let commit = match &row {
        None => Commit::new().absent(keys::JOBS_LEAD.to_vec()),
        Some(row) => Commit::new().seq(keys::JOBS_LEAD.to_vec(), row.seq),
    };
    let (session, value) = core.session.clone();
    let commit = commit.value(session, value).put(keys::JOBS_LEAD.to_vec(), next);
    match core.catalog.commit(commit).await.map_err(error::catalog)? {
        Outcome::Done { seq } => {
            core.saw(seq);
            seen.beat = Some((beat, now));
            Ok(true)
        }
        Outcome::Failed { .. } => {
            seen.beat = None;
            Ok(false)
        }
    }
}
