//! Windows for checkpoints: what jobs ask, as transactions on one row; and drains that move to the gaps between. (D247)
//!
//! Who may write when is decided by [`stoker_jobs::broker`]. What it knows is a row, so that any node answers and none is needed. Nodes that have
//! a drain follow the row, and pause while windows have most of what drives take.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::kv::{Commit, Outcome, Row};
use stoker_jobs::Place;
use stoker_jobs::broker::{Ask, Broker, WAIT_MS_MAX};
use stoker_schema::rows::{JobWindowsRow, RowValue, keys};
use stoker_store::{ErrorKind, JobName, JobWindow, JobWindowAsk, Result, StoreError};

use super::rows::tenant_of;
use crate::core::Core;
use crate::{clock, error};

/// Tries before somebody who asks is told to go on.
const TRIES_MAX: usize = 40;
/// How often drains look whether windows are open, as long as there are any.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often somebody looks for a row whose news did not arrive.
const IDLE_EVERY: Duration = Duration::from_secs(30);
/// Copies that a checkpoint has where nobody knows its volume.
const COPIES_UNKNOWN: usize = 2;

/// What this node knows of windows.
#[derive(Default)]
pub(crate) struct Windows {
    /// Those who ask here do so one after the other.
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Broker>,
}

impl Windows {
    fn know(&self, broker: Broker) {
        *self.known.lock().unwrap() = broker;
    }
}

/// What a row says. One that cannot be read is as if nobody had a window: it is advice.
fn broker_of(row: Option<&Row>) -> Broker {
    let read = |row: &Row| {
        let document = JobWindowsRow::of(row).ok()?.document;
        serde_json::from_slice(&document).ok()
    };
    row.and_then(read).unwrap_or_default()
}

impl Core {
    /// Gives a job a window.
    pub(super) async fn job_window(self: &Arc<Core>, name: &JobName, ask: JobWindowAsk) -> Result<JobWindow> {
        let who = self.window_of(name).await?;
        let capacity = self.checkpoint_capacity(name).await?;
        let given = |broker: &mut Broker, now_ms: u64| {
            let at_ms = (ask.in_ms > 0).then(|| now_ms.saturating_add(ask.in_ms));
            let wait_ms_max = ask.wait_ms_max.unwrap_or(WAIT_MS_MAX);
            let given = broker.ask(&who, Ask { bytes: ask.bytes, at_ms, wait_ms_max }, capacity, now_ms);
            JobWindow {
                wait_ms: given.start_ms.saturating_sub(now_ms),
                length_ms: given.end_ms.saturating_sub(given.start_ms),
                is_crowded: given.is_crowded,
                next_ms: given.next_ms.map(|next_ms| next_ms.saturating_sub(now_ms)),
            }
        };
        self.change_windows(given).await
    }

    /// A job wrote its checkpoint.
    pub(super) async fn job_window_end(self: &Arc<Core>, name: &JobName, bytes: u64) -> Result<JobWindow> {
        let who = self.window_of(name).await?;
        let ended = |broker: &mut Broker, now_ms: u64| {
            broker.end(&who, bytes, now_ms);
            let next_ms = broker.next_ms(&who).map(|next_ms| next_ms.saturating_sub(now_ms));
            JobWindow { next_ms, ..JobWindow::default() }
        };
        self.change_windows(ended).await
    }

    /// The name of a job as the broker has it. A job that is over writes no checkpoints.
    async fn window_of(&self, name: &JobName) -> Result<String> {
        let known = self.job_known(name).await?.ok_or_else(|| super::door::no_job(name))?;
        if !known.job.holds_data() {
            let state = known.job.info.state.word();
            let message = format!("job `{}` is {state}: it writes no checkpoints", name.id);
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
        Ok(format!("{}/{}", tenant_of(name), name.id))
    }

    /// Bytes of checkpoints that drives take in a second, as far as is known.
    async fn checkpoint_capacity(self: &Arc<Core>, name: &JobName) -> Result<Option<u64>> {
        let known = self.job_known(name).await?;
        let place = known.and_then(|known| Place::parse(&known.job.info.checkpoints?).ok());
        let copies = match place {
            Some(place) => match self.volumes.get(&place.volume).await {
                Ok(volume) => volume.policy.class.in_cluster(self.cell.view().nodes().count()).copies(),
                Err(_) => COPIES_UNKNOWN,
            },
            None => COPIES_UNKNOWN,
        };
        Ok(self.drives_bytes_per_s().await.map(|all| all / copies as u64))
    }

    async fn change_windows(
        self: &Arc<Core>,
        change: impl Fn(&mut Broker, u64) -> JobWindow,
    ) -> Result<JobWindow> {
        let _turn = self.windows.turn.lock().await;
        for _ in 0..TRIES_MAX {
            let row = self.catalog.get(&[keys::JOBS_WINDOWS]).await.map_err(error::catalog)?.pop().flatten();
            let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
            let mut broker = broker_of(row.as_ref());
            let given = change(&mut broker, now_ms);
            let document = serde_json::to_vec(&broker).expect("plain data encodes");
            let commit = Commit::new()
                .unchanged(keys::JOBS_WINDOWS.to_vec(), row.as_ref())
                .put(keys::JOBS_WINDOWS.to_vec(), JobWindowsRow { document }.encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.windows.know(broker);
                return Ok(given);
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "windows are contended; write without one"))
    }
}

/// Has drains pause while windows have most of what drives take. Runs until the node closes.
pub(crate) async fn follow(core: Arc<Core>) {
    let mut watch = core.catalog.watch(keys::JOBS_WINDOWS.to_vec());
    let mut is_changed = true;
    while !core.closing.load(Ordering::Relaxed) {
        if is_changed && let Ok(rows) = core.catalog.get(&[keys::JOBS_WINDOWS]).await {
            core.windows.know(broker_of(rows.first().and_then(Option::as_ref)));
        }
        let (is_crowded, is_open) = {
            let known = core.windows.known.lock().unwrap();
            // Clocks of nodes differ by little, and this is about seconds.
            let now_ms = clock::now_ms();
            (known.is_crowded(now_ms), known.has_windows(now_ms))
        };
        core.drainer.pace.set_crowded(is_crowded);
        let pause = if is_open { LOOK_EVERY } else { IDLE_EVERY };
        is_changed = tokio::select! {
            () = tokio::time::sleep(pause) => !is_open,
            changed = watch.changed() => {
                if changed.is_err() {
                    tokio::time::sleep(LOOK_EVERY).await;
                    watch = core.catalog.watch(keys::JOBS_WINDOWS.to_vec());
                }
                true
            }
        };
    }
}
