//! Who leads jobs: one node, by the lease of all loops that one node leads ([`stoker_schema::lead`]). (D235, D246)
//!
//! Whoever sees a job and no leader leads. Each row that the leader writes is written only if it still leads; what it asks of other nodes
//! (hold this, bring that) does no harm twice. It shows that it lives while a turn goes on, however long that takes. With the last job it
//! gives the lead up, and so does a node that stops, so that nobody waits for the end of a lease then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::Range;
use stoker_schema::lead::{Candidate, POLL_EVERY, Term};
use stoker_schema::rows::keys;
use stoker_store::Result;
use tokio::time::Instant;

use super::driver::Driver;
use crate::core::Core;
use crate::error;

/// The loop, as its rows call it.
const LOOP: &str = "jobs";
/// Pause after the catalog did not answer.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// How often somebody looks for jobs whose news did not arrive.
const IDLE_EVERY: Duration = Duration::from_secs(60);
/// A node that stops takes no longer to give the lead up.
const GIVE_UP_MAX: Duration = Duration::from_secs(2);

/// Leads, or would.
struct Seat {
    candidate: Candidate,
    term: Option<Term>,
    held_at: Instant,
}

impl Seat {
    fn new(core: &Core) -> Result<Seat> {
        let now = Instant::now();
        Ok(Seat { candidate: core.candidate(LOOP, now.into_std())?, term: None, held_at: now })
    }

    /// Shows that it lives, if it leads and it is time to; the term, if it leads.
    async fn hold(&mut self) -> Result<Option<Term>> {
        let now = Instant::now();
        if self.term.is_none() || now.duration_since(self.held_at) >= POLL_EVERY {
            self.term = self.candidate.hold(now.into_std()).await.map_err(error::catalog)?;
            self.held_at = now;
        }
        Ok(self.term.clone())
    }

    /// Whether it may still lead although the catalog does not answer.
    fn is_fresh(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_fresh(Instant::now().into_std()))
    }
}

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    if core.is_witness {
        return;
    }
    let mut watch = core.catalog.watch(keys::JOBS_ACTIVE.to_vec());
    let (mut seat, mut driver) = (None::<Seat>, None::<Driver>);
    while !core.closing.load(Ordering::Relaxed) {
        match turn(&core, &mut seat, &mut driver).await {
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
                if !seat.as_ref().is_some_and(Seat::is_fresh) {
                    driver = None;
                }
                tokio::time::sleep(TROUBLE_PAUSE).await;
            }
        }
    }
}

/// Lets another node lead at once, if this one does. Nothing of the loop runs any more.
pub(crate) async fn give_up(core: &Core) {
    let given_up = async {
        let candidate = core.candidate(LOOP, Instant::now().into_std())?;
        candidate.give_up().await.map_err(error::catalog)
    };
    if let Ok(Err(fault)) = tokio::time::timeout(GIVE_UP_MAX, given_up).await {
        tracing::debug!("another node leads jobs later: {fault}");
    }
}

async fn turn(core: &Arc<Core>, seat: &mut Option<Seat>, driver: &mut Option<Driver>) -> Result<Duration> {
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
        }
        if let Some(seat) = seat.take() {
            seat.candidate.give_up().await.map_err(error::catalog)?;
        }
        return Ok(IDLE_EVERY);
    }
    let seat = match seat {
        Some(seat) => seat,
        None => seat.insert(Seat::new(core)?),
    };
    let Some(term) = seat.hold().await? else {
        *driver = None;
        return Ok(POLL_EVERY);
    };
    let leads = driver.get_or_insert_with(|| {
        tracing::info!("this node stages for jobs");
        Driver::new(core.clone())
    });
    let pause = {
        let mut turning = std::pin::pin!(leads.turn(&term));
        loop {
            tokio::select! {
                done = &mut turning => break Some(done?),
                () = tokio::time::sleep(POLL_EVERY) => {
                    match seat.hold().await {
                        Ok(None) => break None,
                        Err(fault) if !seat.is_fresh() => return Err(fault),
                        Ok(Some(_)) | Err(_) => {}
                    }
                }
            }
        }
    };
    // One that was replaced in the middle of a turn knows nothing any more.
    match pause {
        Some(pause) => Ok(pause),
        None => {
            *driver = None;
            Ok(POLL_EVERY)
        }
    }
}
