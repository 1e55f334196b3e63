//! A catalog that is kept by a group of nodes, one replica on each. (D127)
//!
//! The group's log decides the order of commits; a commit is acknowledged once a majority has its entry on their drives and it was done on
//! the node that leads. What a commit checks is looked at when its entry is done, so that every replica comes to the same rows and the same
//! answer. A group of one is the same with nobody else to wait for.
//!
//! How a commit flows: [`ReplicatedCatalog::commit`] queues it for the [`worker`], which makes one entry of all that wait ([`batch`]); the
//! [`Driver`](stoker_consensus::Driver) has it sent ([`post`]) and kept ([`disk`]), hears from the others that they have it, has it done on the
//! table, or in front of it ([`recent`]), and the worker answers. How a read flows: the caller reads the table itself, and looks before and after whether this replica was
//! sure to lead all the time ([`state`]); if that is not known, a majority is asked.
//!
//! A replica that is far behind, or new, gets a copy of everything ([`incoming`]), beside the table that it has, which is replaced once the
//! copy is whole and the log says so. A replica without a table knows no group and waits to be taken into one; its number was drawn when its
//! file was made, so one that lost its drive comes back as somebody else and cannot vote twice.

mod batch;
mod disk;
mod incoming;
mod message;
mod meta;
mod post;
mod recent;
mod request;
mod state;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use redb::{ReadTransaction, ReadableDatabase};
use stoker_consensus::{Change, Envelope, Group};
use stoker_format::{ClusterId, NodeId};
use tokio::sync::{Semaphore, oneshot, watch};

pub(super) use self::disk::replay;
pub use self::post::ReplicaWays;
pub use self::state::{ReplicaMember, ReplicaProgress, ReplicaStanding};

use self::disk::Disk;
use self::incoming::Incoming;
use self::message::{FromReplica, ToReplica};
use self::meta::Meta;
use self::post::Post;
use self::request::{Order, Request};
use self::state::{Shared, Shown, View};
use self::worker::{Event, Worker};
use super::ledger::CommitName;
use super::lineage::{Lineage, Role};
use super::space::{Room, Space};
use super::writer::{Answer, COMMIT_OVERHEAD_BYTES, PERMIT_BYTES, QUEUE_BYTES};
use super::{EmbeddedOptions, Lasting, file, guarded, now_ms};
use crate::engine::apply;
use crate::error::{CatalogError, Result};
use crate::kv::{self, BoxFuture, Catalog, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch};
use crate::wire;

/// Most bytes of letters that wait to be heard; what comes on top is not taken, and comes again.
const LETTERS_BYTES: usize = 64 << 20;

/// What becomes of a node that has no replica yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// It begins a group of its own, with the rows that its file has, if there is one.
    Group,
    /// It waits until a group takes it in.
    Wait,
}

/// A catalog that is kept by a group of nodes; this is the replica of one of them.
///
/// Dropping it finishes the commits that wait, like [`close`](ReplicatedCatalog::close) does.
pub struct ReplicatedCatalog {
    path: PathBuf,
    cluster: ClusterId,
    options: EmbeddedOptions,
    events: Sender<Event>,
    shared: Arc<Shared>,
    space: Arc<Space>,
    /// Limits commits that wait.
    room: Arc<Semaphore>,
    /// Limits letters that wait.
    letters: Arc<Semaphore>,
    incoming: Arc<Mutex<Option<Incoming>>>,
    ended: watch::Receiver<()>,
    standing: watch::Receiver<ReplicaStanding>,
    /// The highest time that was told.
    now_ms: AtomicU64,
}

impl ReplicatedCatalog {
    /// Opens the replica at `path`, or makes one there. Must be called inside a runtime.
    ///
    /// Fails with `Foreign` for a file of another cluster, of a newer version, or of a standby; with `Corrupt` for a damaged one, and with
    /// `Unavailable` while another process has it open.
    pub fn open(
        path: &Path,
        cluster: ClusterId,
        node: NodeId,
        options: &EmbeddedOptions,
        beginning: Beginning,
        ways: ReplicaWays,
    ) -> Result<ReplicatedCatalog> {
        incoming::clean(path);
        let space = Arc::new(Space::new(path, options.reserve_bytes));
        let shared = Arc::new(Shared::new());
        let begin = |opened: &file::Opened| {
            let snapshot = opened.database.begin_read().map_err(file::failed)?;
            begun(&snapshot, opened.seq, node, beginning)
        };
        let disk = Disk::open(path, cluster, options, &space, begin, &shared)?;
        space.wait_for_room();
        let driver = worker::driver(&disk)?;
        let (events, inbox) = channel();
        let post = Post::new(tokio::runtime::Handle::current(), ways, events.clone());
        let (alive, ended) = watch::channel(());
        shared.standing.send_modify(|standing| standing.id = driver.id());
        let standing = shared.standing.subscribe();
        let failing = Arc::clone(&shared);
        let mut worker = Worker::new(node, driver, disk, Arc::clone(&shared), Arc::clone(&space), post);
        std::thread::Builder::new()
            .name("catalog-replica".into())
            .spawn(move || {
                // The library stops by a panic where its rules are broken.
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run(&inbox)));
                if ran.is_err() {
                    failing
                        .poison(&CatalogError::unavailable("the thread of the catalog's replica panicked"));
                    failing.hide();
                }
                // The file must be let go of before anybody hears that this ended.
                drop(worker);
                drop(inbox);
                drop(alive);
            })
            .map_err(|error| CatalogError::unavailable(format!("cannot start a thread: {error}")))?;
        Ok(ReplicatedCatalog {
            path: path.to_owned(),
            cluster,
            options: options.clone(),
            events,
            shared,
            space,
            room: Arc::new(Semaphore::new(QUEUE_BYTES / PERMIT_BYTES)),
            letters: Arc::new(Semaphore::new(LETTERS_BYTES / PERMIT_BYTES)),
            incoming: Arc::default(),
            ended,
            standing,
            now_ms: AtomicU64::new(0),
        })
    }

    /// How it stands, and news of that.
    pub fn standing(&self) -> watch::Receiver<ReplicaStanding> {
        self.standing.clone()
    }

    /// Whether nobody else could lead, since nobody else is in the group.
    pub fn leads_alone(&self) -> bool {
        let standing = self.standing.borrow();
        standing.leads && standing.members.len() == 1
    }

    /// Whether it knows of nobody who leads, and of a group in which somebody should.
    pub fn is_stalled(&self) -> bool {
        let standing = self.standing.borrow();
        standing.is_stalled && !standing.members.is_empty()
    }

    /// The rows of these keys, if this replica may answer by itself now.
    pub fn get_now(&self, keys: &[&[u8]]) -> Option<Result<Vec<Option<Row>>>> {
        if let Err(error) = kv::keys_validate(keys) {
            return Some(Err(error));
        }
        self.read_now(&|view| keys.iter().map(|key| view.row(key)).collect())
    }

    /// How far the members of the group are, and the last entry, as the leader saw it last; only where this replica leads.
    pub fn progress(&self) -> (Vec<ReplicaProgress>, u64) {
        self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a node into the group, whose replica has this number; it does not vote yet. False if that cannot be done now.
    pub async fn take_in(&self, id: u64, node: NodeId) -> bool {
        self.change(Change::Learner { id, node }).await
    }

    /// Has a replica vote that caught up. False if that cannot be done now.
    pub async fn let_vote(&self, id: u64) -> bool {
        self.change(Change::Voter { id }).await
    }

    /// Takes a replica out of the group. False if that cannot be done now.
    pub async fn take_out(&self, id: u64) -> bool {
        self.change(Change::Remove { id }).await
    }

    async fn change(&self, change: Change) -> bool {
        let (answer, answered) = oneshot::channel();
        self.events.send(Event::Change(change, answer)).is_ok() && answered.await.unwrap_or(false)
    }

    /// Has another replica lead: that of this node, or whichever has most.
    pub fn give_away(&self, to: Option<NodeId>) {
        // One that ended leads nothing.
        let _ = self.events.send(Event::GiveAway(to));
    }

    /// Goes on alone, with all that this replica has: the others are lost. What was acknowledged and is not here is lost with them.
    pub async fn begin_anew(&self) -> Result<()> {
        if self.standing.borrow().members.is_empty() {
            return Err(CatalogError::invalid("this replica is empty; it was in no group yet"));
        }
        let (answer, answered) = oneshot::channel();
        self.events.send(Event::BeginAnew(answer)).map_err(|_| CatalogError::closed())?;
        answered.await.unwrap_or_else(|_| Err(CatalogError::closed()))
    }

    /// Answers a request of the replica on another node.
    pub async fn answer(&self, from: NodeId, request: Vec<u8>) -> Vec<u8> {
        wire::encode(&self.answered(from, request).await.unwrap_or_else(FromReplica::Failed))
    }

    async fn answered(&self, from: NodeId, request: Vec<u8>) -> Result<FromReplica> {
        self.shared.sound()?;
        match wire::decode::<ToReplica>(&request)? {
            ToReplica::Letters(letters) => {
                for letter in letters {
                    let permits = u32::try_from(letter.0.len() / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
                    let Ok(room) = Arc::clone(&self.letters).try_acquire_many_owned(permits) else { break };
                    let envelope = Envelope::decode(&letter.0)
                        .map_err(|error| CatalogError::invalid(error.to_string()))?;
                    self.events
                        .send(Event::Letter(from, envelope, room))
                        .map_err(|_| CatalogError::closed())?;
                }
                Ok(FromReplica::Done)
            }
            copy => {
                if let ToReplica::CopyBegin(head) = &copy
                    && !head.members.may_replace(self.standing.borrow().group)
                {
                    return Err(CatalogError::invalid("a copy of another group's catalog"));
                }
                let (incoming, shared) = (Arc::clone(&self.incoming), Arc::clone(&self.shared));
                let (path, cluster, cache) = (self.path.clone(), self.cluster, self.options.cache_bytes);
                let is_full = !self.shared.has_room();
                let taken = tokio::task::spawn_blocking(move || {
                    if is_full {
                        return Err(CatalogError::unavailable("no room for a copy of the catalog"));
                    }
                    guarded(|| copied(copy, &incoming, &shared, &path, cluster, cache))
                });
                taken
                    .await
                    .unwrap_or_else(|_| Err(CatalogError::unavailable("the copy was given up half way")))
            }
        }
    }

    async fn work(&self, work: Order, bytes: usize) -> Answer {
        let bytes = bytes + COMMIT_OVERHEAD_BYTES;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).expect("limited by COMMIT_BYTES_MAX");
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let room = room.map_err(|_| CatalogError::closed())?;
        self.shared.sound()?;
        if self.space.get() == Room::Stuck {
            return Err(self.space.refusal());
        }
        let (answer, answered) = oneshot::channel();
        let request = Request { work, bytes, answer, _room: room };
        self.events.send(Event::Work(request)).map_err(|_| CatalogError::closed())?;
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| {
                Err(CatalogError::unknown("the catalog's replica ended without an answer; read to find out"))
            }),
            () = self.space.stuck() => Err(self.space.in_doubt()),
        }
    }

    /// Reads what is done here, if this replica was sure to lead all the time; else after a majority said that it does.
    async fn read<T>(&self, read: impl Fn(&Arc<View>) -> Result<T>) -> Result<T> {
        if let Some(found) = self.read_now(&read) {
            return found;
        }
        let (answer, answered) = oneshot::channel();
        self.events.send(Event::Read(answer)).map_err(|_| CatalogError::closed())?;
        answered.await.unwrap_or_else(|_| Err(CatalogError::closed()))?;
        guarded(|| read(&self.shared.view()?))
    }

    /// Reads what is done here; none if this replica was not sure to lead all the time.
    fn read_now<T>(&self, read: &impl Fn(&Arc<View>) -> Result<T>) -> Option<Result<T>> {
        if let Err(error) = self.shared.sound() {
            return Some(Err(error));
        }
        let ticket = self.shared.read_begin()?;
        let found = guarded(|| read(&self.shared.view()?));
        // What could not be read needs no lease.
        (found.is_err() || self.shared.read_end(ticket)).then_some(found)
    }

    /// A commit without writes needs no entry: its checks hold in a snapshot or they do not.
    async fn validate(&self, commit: &Commit) -> Result<Outcome> {
        self.read(|view| match apply::check_failed(&**view, &commit.checks)? {
            Some(check) => Ok(Outcome::Failed { check }),
            None => Ok(Outcome::Done { seq: view.seq }),
        })
        .await
    }

    /// Finishes the commits that wait, ends every watch and lets go of the file.
    pub async fn close(&self) {
        self.stop();
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
        self.shared.watches.close();
    }

    fn stop(&self) {
        self.space.give_up();
        self.room.close();
        // One that ended needs not be told.
        let _ = self.events.send(Event::Stop);
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// What a replica is that is made out of a file which is none.
fn begun(snapshot: &ReadTransaction, seq: u64, node: NodeId, beginning: Beginning) -> Result<Meta> {
    let lineage = Lineage::load(snapshot)?;
    let id = meta::draw();
    let empty = Meta { id, base: 0, group: Group::default(), waits_for_others: false, log: None };
    match (beginning, lineage.role) {
        (Beginning::Wait, Role::Alone) if seq == 0 => Ok(empty),
        (Beginning::Wait, _) => Err(CatalogError::invalid(
            "this file is a catalog of its own and waits for nobody; put it aside first",
        )),
        (Beginning::Group, Role::Standby | Role::Replica) => {
            Err(CatalogError::foreign("this file follows another catalog; promote it first"))
        }
        (Beginning::Group, Role::Alone | Role::Primary) => {
            lineage.rules()?;
            let waits_for_others = lineage.members.known().next().is_some();
            Ok(Meta {
                base: lineage.epoch().promotions(),
                group: Group::alone(meta::draw(), id, node),
                waits_for_others,
                ..empty
            })
        }
    }
}

/// Takes a piece of a copy.
fn copied(
    request: ToReplica,
    incoming: &Mutex<Option<Incoming>>,
    shared: &Shared,
    path: &Path,
    cluster: ClusterId,
    cache_bytes: usize,
) -> Result<FromReplica> {
    let mut incoming = incoming.lock().unwrap_or_else(PoisonError::into_inner);
    match request {
        ToReplica::CopyBegin(head) => {
            // One that was broken off makes room first.
            *incoming = None;
            *incoming = Some(Incoming::begin(path, cache_bytes, head)?);
        }
        ToReplica::CopyPiece { copy, index, piece } => match &mut *incoming {
            Some(half) if half.expects(copy, index) => {
                half.piece(&piece).inspect_err(|_| *incoming = None)?
            }
            _ => return Ok(FromReplica::CopyLost),
        },
        ToReplica::CopyEnd { copy, pieces } => {
            match incoming.take().filter(|half| half.expects(copy, pieces)) {
                Some(whole) => shared.stage(whole.end(cluster)?),
                None => return Ok(FromReplica::CopyLost),
            }
        }
        ToReplica::Letters(_) => return Err(CatalogError::invalid("letters are no copy")),
    }
    Ok(FromReplica::Done)
}

impl Lasting for ReplicatedCatalog {
    fn client_open(&self, client: u128) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.work(Order::ClientOpen(client), 0).await.map(drop) })
    }

    fn commit_once(&self, commit: Commit, name: CommitName) -> BoxFuture<'_, Result<Option<Outcome>>> {
        Box::pin(async move {
            commit.validate()?;
            if commit.writes.is_empty() {
                return self.validate(&commit).await.map(Some);
            }
            let bytes = commit.bytes();
            self.work(Order::Commit(commit, Some(name)), bytes).await
        })
    }
}

impl Catalog for ReplicatedCatalog {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move {
            kv::keys_validate(keys)?;
            self.read(|view| keys.iter().map(|key| view.row(key)).collect()).await
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            range.validate()?;
            self.read(|view| view.page(&range)).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            commit.validate()?;
            if commit.writes.is_empty() {
                return self.validate(&commit).await;
            }
            let bytes = commit.bytes();
            let outcome = self.work(Order::Commit(commit, None), bytes).await?;
            outcome.ok_or_else(|| CatalogError::unavailable("a commit without a name has no client"))
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.shared.watches.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.read(|view| Ok(view.seq)))
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        let now_ms = now_ms();
        let told = self.now_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms);
        Box::pin(std::future::ready(Ok(told)))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        Box::pin(async move {
            // Whoever gets it knows that this replica led, and reads on while it may not any more: it is one state.
            let view = self.read(|view| Ok(Arc::clone(view))).await?;
            Ok(Box::new(Shown(view)) as Box<dyn Snapshot>)
        })
    }

    fn describe(&self) -> String {
        format!("embedded, {}", self.path.display())
    }

    fn health(&self) -> Health {
        if let Err(error) = self.shared.sound() {
            return Health::Failed(error.message);
        }
        if self.standing.borrow().is_stalled {
            return Health::Stalled;
        }
        // Nobody may commit for hours; that there is room again is found out here.
        match self.space.get() == Room::Free || self.shared.has_room() {
            true => Health::Good,
            false => Health::ReadOnly(self.space.reason()),
        }
    }
}

impl Drop for ReplicatedCatalog {
    fn drop(&mut self) {
        self.stop();
        self.shared.watches.close();
    }
}
