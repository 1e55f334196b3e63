//! The one thread that changes the file.
//!
//! It takes every commit that waits, runs them in order inside one transaction of the store, makes it
//! durable with one flush, wakes the watches and then answers. Meanwhile the next commits gather.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redb::{Database, Durability};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::table::Draft;
use super::{Shared, file, guarded};
use crate::engine::apply;
use crate::engine::changes::Changes;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{COMMIT_BYTES_MAX, Commit, Outcome};

/// Most commits that share a flush.
const GROUP_COMMITS_MAX: usize = 4096;
/// A group takes no more commits once it has this many bytes.
const GROUP_BYTES: usize = 16 << 20;
/// Most bytes of commits that wait or are being made durable; above this callers wait.
const QUEUE_BYTES: usize = 4 * COMMIT_BYTES_MAX;
/// What a commit counts besides its bytes, so that many tiny ones are limited too.
const COMMIT_OVERHEAD_BYTES: usize = 512;
/// The unit of [`QUEUE_BYTES`] in which callers wait.
const PERMIT_BYTES: usize = 1 << 10;

/// A commit and who waits for it.
struct Request {
    commit: Commit,
    bytes: usize,
    answer: oneshot::Sender<Result<Outcome>>,
    /// Goes with the commit and not with its caller, who may give up waiting.
    _room: OwnedSemaphorePermit,
}

/// The way to the thread.
pub(super) struct Writer {
    /// Closed by taking it.
    queue: Mutex<Option<mpsc::UnboundedSender<Request>>>,
    /// Limits what is in the queue.
    room: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: tokio::sync::watch::Receiver<()>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Starts the thread; `seq` is that of the last commit in the file.
    pub(super) fn start(database: Arc<Database>, shared: Arc<Shared>, seq: u64) -> Result<Writer> {
        let (queue, requests) = mpsc::unbounded_channel();
        let (alive, ended) = tokio::sync::watch::channel(());
        let mut worker = Worker { database, shared: Arc::clone(&shared), seq };
        let thread = std::thread::Builder::new()
            .name("catalog-writer".into())
            .spawn(move || {
                worker.run(requests);
                // The file must be let go of before anybody hears that this ended.
                drop(worker);
                drop(alive);
            })
            .map_err(|error| CatalogError::unavailable(format!("cannot start a thread: {error}")))?;
        Ok(Writer {
            queue: Mutex::new(Some(queue)),
            room: Arc::new(Semaphore::new(QUEUE_BYTES / PERMIT_BYTES)),
            thread: Mutex::new(Some(thread)),
            ended,
            shared,
        })
    }

    /// Waits for room, queues a valid commit and waits until it is durable.
    pub(super) async fn commit(&self, commit: Commit) -> Result<Outcome> {
        let bytes = commit.bytes() + COMMIT_OVERHEAD_BYTES;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).expect("limited by COMMIT_BYTES_MAX");
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let room = room.map_err(|_| CatalogError::closed())?;
        self.shared.sound()?;
        let (answer, answered) = oneshot::channel();
        {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = queue.as_ref().ok_or_else(CatalogError::closed)?;
            queue.send(Request { commit, bytes, answer, _room: room }).map_err(|_| CatalogError::closed())?;
        }
        answered.await.unwrap_or_else(|_| {
            Err(CatalogError::unknown("the catalog's writer ended without an answer; read to find out"))
        })
    }

    /// Lets the thread finish what waits, and waits for its end.
    pub(super) async fn close(&self) {
        self.stop();
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    fn stop(&self) {
        self.room.close();
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread was answered as an unknown outcome; there is nothing more to do about it.
        let _ = thread.map(JoinHandle::join);
    }
}

/// What the thread owns.
struct Worker {
    database: Arc<Database>,
    shared: Arc<Shared>,
    seq: u64,
}

impl Worker {
    fn run(&mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let mut group = Vec::new();
        while let Some(first) = requests.blocking_recv() {
            let mut bytes = first.bytes;
            group.push(first);
            while bytes < GROUP_BYTES && group.len() < GROUP_COMMITS_MAX {
                let Ok(next) = requests.try_recv() else { break };
                bytes += next.bytes;
                group.push(next);
            }
            self.answer(std::mem::take(&mut group));
        }
    }

    /// Runs a group and tells everybody who waits for it.
    fn answer(&mut self, group: Vec<Request>) {
        let commits: Vec<&Commit> = group.iter().map(|request| &request.commit).collect();
        let results = match self.shared.sound() {
            Ok(()) => self.results(&commits),
            Err(error) => commits.iter().map(|_| Err(error.clone())).collect(),
        };
        let done =
            results.iter().zip(&commits).filter(|(result, _)| matches!(result, Ok(Outcome::Done { .. })));
        self.shared.watches.wake(done.flat_map(|(_, commit)| &commit.writes));
        for (request, result) in group.into_iter().zip(results) {
            // Whoever asked may have given up; the commit stays.
            let _ = request.answer.send(result);
        }
    }

    fn results(&mut self, commits: &[&Commit]) -> Vec<Result<Outcome>> {
        match guarded(|| self.group(commits)) {
            Ok(results) => results,
            Err(error) => {
                // Whatever went wrong, a later snapshot could tell another story than the file.
                self.shared.poison(&error);
                commits.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Runs commits in order inside one transaction; an error here is one of the store, not of a commit.
    fn group(&mut self, commits: &[&Commit]) -> Result<Vec<Result<Outcome>>> {
        let mut transaction = self.database.begin_write().map_err(file::failed)?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(|error| CatalogError::unavailable(error.to_string()))?;
        let mut seq = self.seq;
        let mut results = Vec::with_capacity(commits.len());
        {
            let mut draft = Draft::open(&transaction)?;
            for commit in commits {
                results.push(run(&mut draft, commit, &mut seq)?);
            }
        }
        if seq == self.seq {
            transaction.abort().map_err(file::failed)?;
            return Ok(results);
        }
        file::seq_set(&transaction, seq)?;
        transaction.commit().map_err(|error| match file::failed(error) {
            CatalogError { kind: ErrorKind::Corrupt, message } => CatalogError::corrupt(message),
            CatalogError { message, .. } => CatalogError::unknown(format!(
                "making a commit durable failed, and it may be there after a restart: {message}"
            )),
        })?;
        self.seq = seq;
        Ok(results)
    }
}

/// Runs one commit. The inner error is that of the commit, which then changed nothing.
fn run(draft: &mut Draft<'_>, commit: &Commit, seq: &mut u64) -> Result<Result<Outcome>> {
    let mut changes = match Changes::new(&commit.writes) {
        Ok(changes) => changes,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(check) = apply::check_failed(draft, &commit.checks)? {
        return Ok(Ok(Outcome::Failed { check }));
    }
    match apply::sums_resolve(draft, &mut changes) {
        Ok(()) => {}
        Err(error) if error.kind == ErrorKind::Invalid => return Ok(Err(error)),
        Err(error) => return Err(error),
    }
    apply::change_all(draft, &changes, *seq + 1)?;
    *seq += 1;
    Ok(Ok(Outcome::Done { seq: *seq }))
}
