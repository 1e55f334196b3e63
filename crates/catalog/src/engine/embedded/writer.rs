//! The way to the one thread that changes the file: a queue whose bytes are limited.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redb::Database;
use stoker_format::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::Shared;
use super::durable::Durable;
use super::ledger::CommitName;
use super::primary::Primary;
use super::space::{Room, Space};
use super::storage::Storage;
use super::worker::Worker;
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::kv::{COMMIT_BYTES_MAX, Commit, Outcome};

/// Most bytes of commits that wait or are being made durable; above this callers wait.
pub(super) const QUEUE_BYTES: usize = 4 * COMMIT_BYTES_MAX;
/// What a commit counts besides its bytes, so that many tiny ones are limited too.
pub(super) const COMMIT_OVERHEAD_BYTES: usize = 512;
/// The unit of [`QUEUE_BYTES`] in which callers wait.
pub(super) const PERMIT_BYTES: usize = 1 << 10;

/// What the thread is asked to do.
pub(super) enum Order {
    Work(Request),
    /// Standbys may join.
    Join,
    /// A standby is not to come back.
    Detach(NodeId, oneshot::Sender<Result<()>>),
    /// Another epoch rules.
    Fence(Epoch),
}

/// A change and who waits for it.
pub(super) struct Request {
    pub work: Work,
    pub bytes: usize,
    pub answer: oneshot::Sender<Answer>,
    /// Goes with the commit and not with its caller, who may give up waiting.
    _room: OwnedSemaphorePermit,
}

/// `None` if the commit has the name of a client that is not known.
pub(super) type Answer = Result<Option<Outcome>>;

/// A change that takes a number.
pub(super) enum Work {
    Commit(Commit, Option<CommitName>),
    /// Makes a client known, whose commits have names.
    ClientOpen(u128),
}

impl Work {
    fn bytes(&self) -> usize {
        match self {
            Work::Commit(commit, _) => commit.bytes(),
            Work::ClientOpen(_) => 0,
        }
    }
}

/// Whom the catalog serves.
pub(super) enum Serves {
    /// One node, in the epoch that its file has.
    Alone(Epoch),
    /// Others, too.
    Primary(Box<Primary>),
}

/// The file that is written.
pub(super) struct Place {
    pub database: Arc<Database>,
    pub storage: Arc<Storage>,
    pub space: Arc<Space>,
    pub durable: Durable,
}

/// The way to the thread.
pub(super) struct Writer {
    /// Closed by taking it.
    queue: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    /// Limits what is in the queue.
    room: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: tokio::sync::watch::Receiver<()>,
    shared: Arc<Shared>,
    space: Arc<Space>,
}

impl Writer {
    /// Starts the thread; `seq` is that of the last commit in the file.
    pub(super) fn start(place: Place, shared: Arc<Shared>, seq: u64, serves: Serves) -> Result<Writer> {
        let space = Arc::clone(&place.space);
        space.wait_for_room();
        let (queue, orders) = mpsc::unbounded_channel();
        let (alive, ended) = tokio::sync::watch::channel(());
        let mut worker = Worker::new(place, Arc::clone(&shared), seq, serves);
        let thread = std::thread::Builder::new()
            .name("catalog-writer".into())
            .spawn(move || {
                worker.run(orders);
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
            space,
        })
    }

    /// Waits for room, queues a valid change and waits until it is durable.
    pub(super) async fn work(&self, work: Work) -> Answer {
        let bytes = work.bytes() + COMMIT_OVERHEAD_BYTES;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).expect("limited by COMMIT_BYTES_MAX");
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let room = room.map_err(|_| CatalogError::closed())?;
        self.shared.sound()?;
        self.shared.moving()?;
        if self.space.get() == Room::Stuck {
            return Err(self.space.refusal());
        }
        let (answer, answered) = oneshot::channel();
        self.order(Order::Work(Request { work, bytes, answer, _room: room }))?;
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| {
                Err(CatalogError::unknown("the catalog's writer ended without an answer; read to find out"))
            }),
            () = self.space.stuck() => Err(self.space.in_doubt()),
        }
    }

    /// Records that a standby is not to come back.
    pub(super) async fn detach(&self, standby: NodeId) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Detach(standby, answer))?;
        answered.await.unwrap_or_else(|_| Err(CatalogError::closed()))
    }

    /// Records that another epoch rules.
    pub(super) fn fence(&self, by: Epoch) {
        // A catalog that is closed rules nothing.
        let _ = self.order(Order::Fence(by));
    }

    /// Lets standbys join when this is called; keeps no closed writer alive.
    pub(super) fn joiner(&self) -> impl Fn() + Send + Sync + 'static {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().map(mpsc::UnboundedSender::downgrade);
        move || {
            if let Some(queue) = queue.as_ref().and_then(mpsc::WeakUnboundedSender::upgrade) {
                // One that ended has no use for it.
                let _ = queue.send(Order::Join);
            }
        }
    }

    /// Lets the thread finish what waits, and waits for its end.
    pub(super) async fn close(&self) {
        self.stop();
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    fn order(&self, order: Order) -> Result<()> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or_else(CatalogError::closed)?;
        queue.send(order).map_err(|_| CatalogError::closed())
    }

    fn stop(&self) {
        self.space.give_up();
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
