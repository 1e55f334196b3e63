//! Locks of files, as leases (D193).
//!
//! Who has what is a row of the catalog, one for each locked file, and every change of it is a transaction: two nodes never give
//! the same bytes to two mounts. That a mount is still there is known by the node that it speaks to, and by nobody else; such
//! a mount that is silent for a lease loses what it has. Of a node that is gone, others wait out the same time before they
//! take what its mounts had, so that those can come back through another node.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use stoker_catalog::Row;
use stoker_catalog::kv::{Check, Commit, Outcome, VALUE_BYTES_MAX};
use stoker_format::{NodeId, VolumeId};
use stoker_schema::rows::{LockRow, LocksRow, NodeRow, NodeState, RowValue, SessionRow, keys};
use stoker_store::{
    ErrorKind, LOCK_LEASE_MS, LOCKED_FILES_MAX, LOCKS_MAX, LockClient, LockHeld, LockKind, LockRequest,
    LockSpace, Result, StoreError, Subject,
};
use tokio::time::Instant;

use crate::core::Core;
use crate::error;
use crate::volumes::Volume;

const LEASE: Duration = Duration::from_millis(LOCK_LEASE_MS);

/// How often silent mounts are looked for.
const ROUND: Duration = Duration::from_secs(1);

/// Whoever waits looks again after this time, since nothing says that a node has been gone for long enough.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Longest wait of one call.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Tries before a change that other nodes keep getting in the way of is given up.
const TRIES_MAX: usize = 200;

/// Mounts that one node speaks for.
const CLIENTS_MAX: usize = 100_000;

/// Nodes that are gone, remembered at most.
const GONE_MAX: usize = 1_024;

/// A mount, of a volume.
type Place = (VolumeId, LockClient);

/// What this node knows of locks.
#[derive(Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
    is_running: AtomicBool,
}

#[derive(Default)]
struct State {
    clients: HashMap<Place, Client>,
    /// What silent mounts had and what is still in rows.
    ending: BTreeSet<(VolumeId, LockClient, u64)>,
    /// Boots of nodes that were seen gone, and since when.
    gone: HashMap<([u8; 16], [u8; 16]), Instant>,
}

struct Client {
    heard: Instant,
    files: BTreeMap<u64, Known>,
}

/// A file that a mount asked about.
#[derive(Default)]
struct Known {
    asks: u32,
    is_held: bool,
}

impl Client {
    fn new() -> Client {
        Client { heard: Instant::now(), files: BTreeMap::new() }
    }
}

/// A call about a file, so that nothing is forgotten while it runs.
struct Ask<'a> {
    locks: &'a Locks,
    place: Place,
    inode: u64,
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state();
        let Some(client) = state.clients.get_mut(&self.place) else { return };
        if let Entry::Occupied(mut known) = client.files.entry(self.inode) {
            known.get_mut().asks -= 1;
            if known.get().asks == 0 && !known.get().is_held {
                known.remove();
            }
        }
    }
}

impl Locks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn ask(&self, place: Place, inode: u64) -> Result<Ask<'_>> {
        let mut state = self.state();
        if state.clients.len() >= CLIENTS_MAX && !state.clients.contains_key(&place) {
            return Err(StoreError::new(ErrorKind::Full, "too many mounts have locks through this node"));
        }
        let client = state.clients.entry(place).or_insert_with(Client::new);
        client.heard = Instant::now();
        if client.files.len() >= LOCKED_FILES_MAX && !client.files.contains_key(&inode) {
            let message = format!("a mount has locks on at most {LOCKED_FILES_MAX} files");
            return Err(StoreError::new(ErrorKind::Full, message));
        }
        client.files.entry(inode).or_default().asks += 1;
        Ok(Ask { locks: self, place, inode })
    }

    /// Whether a mount has something there, as its row says. To be called with the lock of the row's key.
    fn note(&self, place: Place, inode: u64, is_held: bool) {
        let mut state = self.state();
        if let Some(known) = state.clients.get_mut(&place).and_then(|client| client.files.get_mut(&inode)) {
            known.is_held = is_held;
        }
    }

    fn is_held(&self, place: Place, inode: u64) -> bool {
        let state = self.state();
        let known = state.clients.get(&place).and_then(|client| client.files.get(&inode));
        known.is_some_and(|known| known.is_held)
    }

    /// Takes out whoever was silent for a lease; what they had is to be ended.
    fn take_silent(&self) -> Vec<(VolumeId, LockClient, u64)> {
        let state = &mut *self.state();
        let silent = state.clients.extract_if(|_, client| {
            client.heard.elapsed() >= LEASE && client.files.values().all(|known| known.asks == 0)
        });
        for ((volume, client), known) in silent {
            state.ending.extend(known.files.into_keys().map(|inode| (volume, client, inode)));
        }
        state.ending.iter().copied().collect()
    }

    /// Since when a boot of a node is seen gone.
    fn gone_for(&self, boot: ([u8; 16], [u8; 16])) -> Duration {
        let mut state = self.state();
        if state.gone.len() >= GONE_MAX && !state.gone.contains_key(&boot) {
            let oldest = state.gone.iter().min_by_key(|(_, since)| **since).map(|(boot, _)| *boot);
            oldest.map(|oldest| state.gone.remove(&oldest));
        }
        state.gone.entry(boot).or_insert_with(Instant::now).elapsed()
    }
}

/// The locks of a file as they are, and what a change of them is decided by.
struct Found {
    key: Vec<u8>,
    row: Option<Row>,
    locks: LocksRow,
    /// That whoever was dropped is still gone.
    checks: Vec<Check>,
}

impl Core {
    /// Locks, gives back, or tells what stands in the way.
    pub(crate) async fn lock_file(
        self: &Arc<Core>,
        volume: &Volume,
        request: LockRequest,
    ) -> Result<Option<LockHeld>> {
        self.check_open()?;
        if request.start > request.end || request.inode == 0 {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "a lock is of a file, from a byte to one not before it",
            ));
        }
        let (volume, inode) = (volume.id, request.inode);
        let wanted = LockRow {
            client: request.client.0,
            owner: request.owner,
            is_of_file: request.space == LockSpace::Files,
            is_exclusive: request.kind != Some(LockKind::Shared),
            start: request.start,
            end: request.end,
            pid: request.pid,
            node: self.node.0,
            session: self.session_id,
        };
        if request.is_test {
            let found = self.locks_at(volume, inode).await?;
            return Ok(found.locks.in_the_way(&wanted).map(held));
        }
        self.run_locks();
        let is_wanted = request.kind.is_some();
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        let mut changes = self.catalog.watch(keys::locks(volume, inode));
        loop {
            let (core, wanted) = (self.clone(), wanted.clone());
            // Whoever asked may go away; then the mount's silence gives back what this got.
            let change = async move { core.lock_once(volume, inode, wanted, is_wanted).await };
            let in_the_way = self.to_the_end(change).await?;
            if in_the_way.is_none() || Instant::now() >= until {
                return Ok(in_the_way);
            }
            let again = until.min(Instant::now() + LOOK_AGAIN);
            // Woken or not, it looks.
            let _ = tokio::time::timeout_at(again, changes.changed()).await;
        }
    }

    /// Says that a mount is there; tells on which files it has nothing any more.
    pub(crate) async fn locks_keep_of(
        self: &Arc<Core>,
        volume: &Volume,
        client: LockClient,
        inodes: Vec<u64>,
    ) -> Result<Vec<u64>> {
        self.check_open()?;
        if inodes.len() > LOCKED_FILES_MAX {
            let message = format!("a mount has locks on at most {LOCKED_FILES_MAX} files");
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let place = (volume.id, client);
        if inodes.is_empty() {
            self.give_all_back(place).await?;
            return Ok(Vec::new());
        }
        self.run_locks();
        let mut lost = Vec::new();
        for inode in inodes {
            // Said before anything is looked at: from here on nobody ends what is found.
            let _ask = self.locks.ask(place, inode)?;
            if self.locks.is_held(place, inode) {
                continue;
            }
            let core = self.clone();
            let find = async move { core.find_again(place, inode).await };
            if !self.to_the_end(find).await? {
                lost.push(inode);
            }
        }
        Ok(lost)
    }

    async fn give_all_back(self: &Arc<Core>, place: Place) -> Result<()> {
        let files: Vec<u64> = {
            let state = self.locks.state();
            let client = state.clients.get(&place);
            client.map(|client| client.files.keys().copied().collect()).unwrap_or_default()
        };
        for inode in files {
            let _ask = self.locks.ask(place, inode)?;
            let _turn = self.lock_turn(place.0, inode).await;
            self.end_locks(place, inode, |_| true).await?;
            self.locks.note(place, inode, false);
        }
        Ok(())
    }

    /// One of a time changes a row here.
    async fn lock_turn(&self, volume: VolumeId, inode: u64) -> tokio::sync::MutexGuard<'_, ()> {
        self.key_locks.lock(volume, &inode.to_be_bytes()).await
    }

    async fn lock_once(
        self: &Arc<Core>,
        volume: VolumeId,
        inode: u64,
        wanted: LockRow,
        is_wanted: bool,
    ) -> Result<Option<LockHeld>> {
        let place = (volume, LockClient(wanted.client));
        let _ask = self.locks.ask(place, inode)?;
        let _turn = self.lock_turn(volume, inode).await;
        for _ in 0..TRIES_MAX {
            let mut found = self.locks_at(volume, inode).await?;
            if is_wanted && let Some(other) = found.locks.in_the_way(&wanted) {
                return Ok(Some(held(other)));
            }
            let mine = found.locks.held.iter_mut().filter(|lock| lock.client == wanted.client);
            for lock in mine {
                // Whatever the mount has there, it has through this node from now on.
                (lock.node, lock.session) = (wanted.node, wanted.session);
            }
            match is_wanted {
                true => found.locks.take(wanted.clone()),
                false => found.locks.give_back(&wanted),
            }
            if found.locks.held.len() > LOCKS_MAX {
                let message = format!("a file has at most {LOCKS_MAX} locks");
                return Err(StoreError::new(ErrorKind::Full, message));
            }
            let is_held = found.locks.held.iter().any(|lock| lock.client == wanted.client);
            let volume_check = is_wanted.then(|| Check::Present(keys::volume_id(volume)));
            if self.locks_put(found, volume_check).await? {
                self.locks.note(place, inode, is_held);
                return Ok(None);
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "too many lock this file at once; try again"))
    }

    /// Whether a mount that this node does not know has locks there. They are through this node from then on.
    async fn find_again(self: &Arc<Core>, place: Place, inode: u64) -> Result<bool> {
        let _ask = self.locks.ask(place, inode)?;
        let _turn = self.lock_turn(place.0, inode).await;
        for _ in 0..TRIES_MAX {
            if self.locks.is_held(place, inode) {
                return Ok(true);
            }
            let mut found = self.locks_at(place.0, inode).await?;
            let (node, session) = (self.node.0, self.session_id);
            let mine: Vec<_> = found.locks.held.iter_mut().filter(|lock| lock.client == place.1.0).collect();
            if mine.is_empty() {
                return Ok(false);
            }
            mine.into_iter().for_each(|lock| (lock.node, lock.session) = (node, session));
            // Written also if it says so already: whoever is about to end them looks again.
            if self.locks_put(found, None).await? {
                self.locks.note(place, inode, true);
                return Ok(true);
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "too many lock this file at once; try again"))
    }

    /// Takes from a file what a mount has there, as far as it is to end. To be called with the lock of the row's key.
    async fn end_locks(
        self: &Arc<Core>,
        place: Place,
        inode: u64,
        ends: impl Fn(&LockRow) -> bool,
    ) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let mut found = self.locks_at(place.0, inode).await?;
            let before = found.locks.held.len();
            found.locks.held.retain(|lock| lock.client != place.1.0 || !ends(lock));
            if found.locks.held.len() == before || self.locks_put(found, None).await? {
                return Ok(());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "too many lock this file at once; try again"))
    }

    /// The locks of a file without those of nodes that have been gone for a lease.
    async fn locks_at(self: &Arc<Core>, volume: VolumeId, inode: u64) -> Result<Found> {
        let key = keys::locks(volume, inode);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let locks = row.as_ref().map(LocksRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
        let mut found = Found { key, row, locks, checks: Vec::new() };
        let boots: BTreeSet<_> = found.locks.held.iter().map(|lock| (lock.node, lock.session)).collect();
        for (node, session) in boots.into_iter().filter(|boot| *boot != (self.node.0, self.session_id)) {
            let (is_gone, checks) = self.is_boot_gone(NodeId(node), session).await?;
            if is_gone && self.locks.gone_for((node, session)) >= LEASE {
                found.checks.extend(checks);
                found.locks.held.retain(|lock| (lock.node, lock.session) != (node, session));
            }
        }
        Ok(found)
    }

    /// Whether a boot of a node is over, or nobody counts on it; and what that is decided by.
    async fn is_boot_gone(&self, node: NodeId, session: [u8; 16]) -> Result<(bool, Vec<Check>)> {
        let (at_session, at_node) = (keys::session(node), keys::node(node));
        let rows = self.catalog.get(&[&at_session, &at_node]).await.map_err(error::catalog)?;
        let [session_row, node_row] = &rows[..] else { return Ok((false, Vec::new())) };
        let now = session_row.as_ref().map(SessionRow::of).transpose().map_err(error::catalog)?;
        let state = node_row.as_ref().map(NodeRow::of).transpose().map_err(error::catalog)?;
        // A node on its own is no member of anything.
        let is_away = state.is_some_and(|node| node.state != NodeState::Up);
        let is_gone = is_away || now.is_none_or(|now| now.session != session);
        let unchanged = |key, row: &Option<Row>| match row {
            Some(row) => Check::Seq(key, row.seq),
            None => Check::Absent(key),
        };
        Ok((is_gone, vec![unchanged(at_session, session_row), unchanged(at_node, node_row)]))
    }

    /// Writes the locks of a file; false if somebody else changed what they were decided by.
    async fn locks_put(&self, found: Found, check: Option<Check>) -> Result<bool> {
        let Found { key, row, locks, checks } = found;
        if row.is_none() && locks.held.is_empty() {
            return Ok(true);
        }
        let mut commit = Commit::new()
            .value(self.session.0.clone(), self.session.1.clone())
            .unchanged(key.clone(), row.as_ref());
        commit.checks.extend(checks);
        let last = commit.checks.len();
        commit.checks.extend(check);
        let value = locks.encode();
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreError::new(ErrorKind::Full, "too many mounts have too many locks on this file"));
        }
        let commit = match locks.held.is_empty() {
            true => commit.delete(key),
            false => commit.put(key, value),
        };
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(true)
            }
            Outcome::Failed { check: 0, .. } => Err(StoreError::new(
                ErrorKind::Closed,
                "the cluster goes on without this node; ask another one",
            )),
            Outcome::Failed { check, .. } if check == last => Err(StoreError::about(
                ErrorKind::NotFound,
                Subject::Volume,
                "the volume of this file is gone",
            )),
            Outcome::Failed { .. } => Ok(false),
        }
    }

    /// Looks after locks from the first one on.
    fn run_locks(self: &Arc<Core>) {
        if !self.locks.is_running.swap(true, Ordering::Relaxed) {
            self.tasks.spawn(run(Arc::downgrade(self)));
        }
    }

    async fn end_silent(self: &Arc<Core>) -> Result<()> {
        for (volume, client, inode) in self.locks.take_silent() {
            let place = (volume, client);
            let turn = self.lock_turn(volume, inode).await;
            // It may be back, and then what is there was found again; or it speaks to another node now.
            if !self.locks.is_held(place, inode) {
                let here = (self.node.0, self.session_id);
                self.end_locks(place, inode, |lock| (lock.node, lock.session) == here).await?;
            }
            drop(turn);
            self.locks.state().ending.remove(&(volume, client, inode));
        }
        Ok(())
    }

    /// What mounts had through earlier boots of this node and nobody came back for.
    async fn end_of_earlier_boots(self: &Arc<Core>) -> Result<()> {
        let is_left = |lock: &LockRow| lock.node == self.node.0 && lock.session != self.session_id;
        let mut left = Vec::new();
        self.each(keys::LOCKS.to_vec(), |row| {
            let locks = LocksRow::of(row).map_err(error::catalog)?;
            if let Some((volume, inode)) = keys::locks_parts(&row.key) {
                let clients: BTreeSet<_> =
                    locks.held.iter().filter(|lock| is_left(lock)).map(|lock| lock.client).collect();
                left.extend(clients.into_iter().map(|client| ((volume, LockClient(client)), inode)));
            }
            Ok(())
        })
        .await?;
        for (place, inode) in left {
            let _turn = self.lock_turn(place.0, inode).await;
            self.end_locks(place, inode, is_left).await?;
        }
        Ok(())
    }
}

fn held(lock: &LockRow) -> LockHeld {
    let kind = if lock.is_exclusive { LockKind::Exclusive } else { LockKind::Shared };
    LockHeld { client: LockClient(lock.client), pid: lock.pid, kind, start: lock.start, end: lock.end }
}

async fn run(core: Weak<Core>) {
    let begun = Instant::now();
    let mut is_swept = false;
    loop {
        tokio::time::sleep(ROUND).await;
        let Some(core) = core.upgrade() else { return };
        if core.closing.load(Ordering::Relaxed) {
            return;
        }
        if let Err(fault) = core.end_silent().await {
            tracing::warn!("locks of silent mounts are not ended: {}", fault.message);
        }
        if !is_swept && begun.elapsed() >= 2 * LEASE {
            match core.end_of_earlier_boots().await {
                Ok(()) => is_swept = true,
                Err(fault) => tracing::warn!("locks of earlier boots are not ended: {}", fault.message),
            }
        }
    }
}
