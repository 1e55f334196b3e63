//! Runs commits, many in one transaction, and finds out what became of those whose answer was lost.
//!
//! A few lanes take what waits: while their transactions are under way, the next ones gather, so the more is to do the more
//! goes together. A lane numbers its transactions, and each leaves its number and its results in the row of the
//! lane. When a connection breaks, the lane waits until the session has ended and reads that row: it is there with the
//! number of the transaction if and only if the transaction was made, on this server or on the one that it failed over to.
//! So a commit is made once, however often the server goes away, as long as it is back within the time that callers have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::columns::Columns;
use super::connection::{Connection, Isolation, Session};
use super::fault::Fault;
use super::form::Form;
use super::listener::Listener;
use super::locks::Locks;
use super::pool::Pool;
use super::queue::{Queue, Waiting};
use crate::engine::changes::Changes;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{Commit, Outcome};

/// Pauses after a conflict, and while no server takes commits.
const CONFLICT_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
const AWAY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Locks of one transaction to begin with. A server with its usual settings has room for some 7,000 of all sessions.
const LOCKS_MAX: usize = 1_000;
/// A transaction that has no room for so few locks takes one for everything.
const LOCKS_MIN: usize = 16;

/// What the lanes share.
pub(super) struct Committer {
    pub pool: Arc<Pool>,
    pub form: Arc<Form>,
    pub listener: Arc<Listener>,
    pub queue: Queue,
    /// Longer than the server itself goes on.
    pub answer_timeout: Duration,
    /// How long commits are tried again that others stand in the way of.
    pub conflict_timeout: Duration,
    /// The highest number that is known to be durable.
    pub seq_known: AtomicU64,
    pub conflicts: AtomicU64,
    /// How many locks a transaction may have, from what the server had room for.
    pub locks_max: AtomicUsize,
}

/// One after the other, the transactions of a lane.
struct Lane {
    id: i64,
    batch: i64,
}

impl Committer {
    pub(super) fn new(
        pool: Arc<Pool>,
        form: Arc<Form>,
        listener: Arc<Listener>,
        answer_timeout: Duration,
        conflict_timeout: Duration,
    ) -> Committer {
        Committer {
            pool,
            form,
            listener,
            queue: Queue::new(),
            answer_timeout,
            conflict_timeout,
            seq_known: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            locks_max: AtomicUsize::new(LOCKS_MAX),
        }
    }

    /// Runs a commit as soon as a lane is free.
    pub(super) async fn commit(&self, commit: Commit, deadline: Instant) -> Result<Outcome> {
        commit.validate()?;
        let locks = Locks::of(&commit.checks, &Changes::new(&commit.writes)?, LOCKS_MAX);
        self.queue.run(commit, locks, deadline).await
    }

    /// Runs what waits until the queue is closed; one of several.
    pub(super) async fn lane(self: Arc<Committer>, id: u64) {
        let mut lane = Lane { id: id.cast_signed(), batch: 0 };
        while let Some(batch) = self.queue.next(lane.id, self.locks_max.load(Ordering::Relaxed)).await {
            let most = self.locks_max.load(Ordering::Relaxed);
            // Grows again slowly after it was halved.
            self.locks_max.store((most + 1).min(LOCKS_MAX), Ordering::Relaxed);
            // Those that cannot go together are run by themselves, so this list may grow meanwhile.
            let mut batches = vec![batch];
            while let Some(batch) = batches.pop() {
                batches.extend(self.run(&mut lane, batch).await);
            }
        }
    }

    /// Runs commits in one transaction and answers all of them; or gives them back in parts, if they cannot go together.
    async fn run(&self, lane: &mut Lane, mut batch: Vec<Waiting>) -> Vec<Vec<Waiting>> {
        lane.batch += 1;
        let conflict_deadline = Instant::now() + self.conflict_timeout;
        let mut conflict = Backoff::new(CONFLICT_PAUSE.0, CONFLICT_PAUSE.1);
        let mut away = Backoff::new(AWAY_PAUSE.0, AWAY_PAUSE.1);
        loop {
            let fault = match self.attempt(lane, &batch).await {
                Ok(results) => {
                    self.answer(batch, &results);
                    return Vec::new();
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::Conflict(words) => {
                    self.conflicts.fetch_add(1, Ordering::Relaxed);
                    if Instant::now() >= conflict_deadline {
                        let seconds = self.conflict_timeout.as_secs();
                        let words = format!("others wrote the same rows for {seconds} s: {words}");
                        return refuse(batch, &CatalogError::unavailable(words));
                    }
                    conflict.pause().await;
                }
                Fault::Refused(error) if batch.len() == 1 => return refuse(batch, &error),
                // Nobody knows what happened, so nothing of it may be tried again.
                Fault::Refused(error) if error.kind == ErrorKind::Unknown => return refuse(batch, &error),
                Fault::Refused(error) if error.kind == ErrorKind::Closed => return refuse(batch, &error),
                // One of them is at fault; each finds out by itself.
                Fault::Refused(_) => return batch.into_iter().map(|one| vec![one]).collect(),
                Fault::Crowded(words) if batch[0].locks == Locks::everything() => {
                    return refuse(batch, &CatalogError::unavailable(format!("PostgreSQL: {words}")));
                }
                Fault::Crowded(_) => return self.with_fewer_locks(batch),
                Fault::OtherForm => {
                    if let Err(fault) = self.learn_form().await {
                        match fault {
                            Fault::Refused(error) => return refuse(batch, &error),
                            _ => away.pause().await,
                        }
                    }
                }
                Fault::Away(words) | Fault::Lost(words) => {
                    batch = expire(batch, &CatalogError::unavailable(words));
                    if batch.is_empty() {
                        return Vec::new();
                    }
                    away.pause().await;
                }
            }
        }
    }

    /// Runs the transaction once; nothing happened if this fails, whatever happened to the connection.
    async fn attempt(&self, lane: &Lane, batch: &[Waiting]) -> std::result::Result<Vec<i64>, Fault> {
        let mut locks = Locks::default();
        batch.iter().for_each(|one| locks.join(&one.locks));
        let commits = batch.iter().map(|one| &one.commit);
        let columns = Columns::new(commits, &locks).map_err(Fault::Refused)?;
        let isolation = self.form.isolation();
        let mut lease = self.pool.lease(isolation).await?;
        let isolate = lease.isolate(isolation);
        let connection = lease.connection();
        let parameters = columns.parameters(&lane.id, &lane.batch);
        let called = async {
            let call = connection.client.query_one(&connection.commit, &parameters);
            tokio::join!(isolated(connection, isolate), call).1
        };
        let words = match tokio::time::timeout(self.answer_timeout, called).await {
            Ok(Ok(row)) => return Ok(row.get(0)),
            Ok(Err(error)) => match Fault::of(&error) {
                Fault::Lost(words) => words,
                fault => {
                    // What became a standby stays one.
                    if matches!(fault, Fault::Away(_)) {
                        lease.discard();
                    }
                    return Err(fault);
                }
            },
            Err(_) => "no answer".into(),
        };
        let session = lease.lose();
        self.resolve(lane, batch, session, words).await
    }

    /// What became of a transaction whose session was lost.
    async fn resolve(
        &self,
        lane: &Lane,
        batch: &[Waiting],
        session: Session,
        words: String,
    ) -> std::result::Result<Vec<i64>, Fault> {
        let deadline = batch.iter().map(|one| one.deadline).max().expect("a batch is not empty");
        let mut pause = Backoff::new(AWAY_PAUSE.0, AWAY_PAUSE.1);
        loop {
            let trouble = match self.result(lane, session).await {
                Ok(Some(results)) => return Ok(results),
                // It was not made and never will be.
                Ok(None) => return Err(Fault::Lost(words)),
                Err(fault) => fault.into_error(),
            };
            let writes = batch.iter().any(|one| !one.commit.writes.is_empty());
            if !writes {
                return Err(Fault::Lost(words));
            }
            if Instant::now() >= deadline || trouble.kind == ErrorKind::Closed {
                self.pool.abandon(session);
                return Err(Fault::Refused(CatalogError::unknown(format!(
                    "the connection to PostgreSQL was lost during a commit; read to find out: {words}; {}",
                    trouble.message
                ))));
            }
            pause.pause().await;
        }
    }

    /// The results of the lane's transaction if it was made, once nothing can change about that.
    async fn result(&self, lane: &Lane, session: Session) -> std::result::Result<Option<Vec<i64>>, Fault> {
        let lease = self.pool.lease(Isolation::Statement).await?;
        let on = lease.connection();
        let asked = async {
            self.pool.settle(on, &[session]).await?;
            on.client.query_opt(&on.result, &[&lane.id]).await.map_err(|error| Fault::of(&error))
        };
        match tokio::time::timeout(self.answer_timeout, asked).await {
            Ok(Ok(row)) => {
                let row = row.filter(|row| row.get::<_, i64>(0) == lane.batch);
                Ok(row.map(|row| row.get(1)))
            }
            Ok(Err(fault)) => {
                lease.discard();
                Err(fault)
            }
            Err(_) => {
                lease.discard();
                Err(Fault::Away("PostgreSQL does not answer".into()))
            }
        }
    }

    async fn learn_form(&self) -> std::result::Result<(), Fault> {
        let lease = self.pool.lease(Isolation::Statement).await?;
        let on = lease.connection();
        let asked = tokio::time::timeout(self.answer_timeout, on.client.query_one(&on.form, &[])).await;
        match asked {
            Ok(Ok(row)) => self.form.set(row.get(0)).map_err(Fault::Refused),
            Ok(Err(error)) => {
                lease.discard();
                Err(Fault::of(&error))
            }
            Err(_) => {
                lease.discard();
                Err(Fault::Away("PostgreSQL does not answer".into()))
            }
        }
    }

    /// The same commits in two halves, or one that locks everything.
    fn with_fewer_locks(&self, mut batch: Vec<Waiting>) -> Vec<Vec<Waiting>> {
        let locks: usize = batch.iter().map(|one| one.locks.len()).sum();
        self.locks_max.store((locks / 2).max(LOCKS_MIN), Ordering::Relaxed);
        if batch.len() > 1 {
            let half = batch.split_off(batch.len() / 2);
            return vec![half, batch];
        }
        batch[0].locks = Locks::everything();
        vec![batch]
    }

    fn answer(&self, batch: Vec<Waiting>, results: &[i64]) {
        for (one, result) in batch.into_iter().zip(results) {
            let outcome = match u64::try_from(*result) {
                Ok(0) => Outcome::Done { seq: self.seq_known.load(Ordering::SeqCst) },
                Ok(seq) => {
                    self.seq_known.fetch_max(seq, Ordering::SeqCst);
                    self.listener.written(&one.commit.writes);
                    Outcome::Done { seq }
                }
                Err(_) => Outcome::Failed {
                    check: usize::try_from(result.unsigned_abs()).expect("one of the checks that were sent")
                        - 1,
                },
            };
            // Whoever asked may wait no more.
            let _ = one.answer.send(Ok(outcome));
        }
    }
}

/// Answers those who have no time left, and gives back the others.
fn expire(batch: Vec<Waiting>, error: &CatalogError) -> Vec<Waiting> {
    let now = Instant::now();
    let (late, left) = batch.into_iter().partition(|one| one.deadline <= now);
    refuse(late, error);
    left
}

fn refuse(batch: Vec<Waiting>, error: &CatalogError) -> Vec<Vec<Waiting>> {
    for one in batch {
        let _ = one.answer.send(Err(error.clone()));
    }
    Vec::new()
}

/// Sends what makes a connection run in another isolation; if that fails, so does what follows it.
pub(super) async fn isolated(connection: &Connection, command: Option<&str>) {
    if let Some(command) = command {
        let _ = connection.client.batch_execute(command).await;
    }
}
