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
    ErrorKind, LOCK_LEASE_MS, LOCK_OWNERS_MAX, LOCKS_MAX, LockClient, LockHeld, LockKind, LockOwner,
    LockRequest, LockSpace, Result, StoreError, Subject,
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

/// Files of a volume that mounts of one node have locks on, each counted for each mount.
const FILES_MAX: usize = 100_000;

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
    /// Files that mounts of a volume asked about.
    files: HashMap<VolumeId, usize>,
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
    /// It had something there when the row was written or read last.
    is_held: bool,
}

impl Client {
    fn new() -> Client {
        Client { heard: Instant::now(), files: BTreeMap::new() }
    }
}

impl State {
    fn count_less(&mut self, volume: VolumeId, files: usize) {
        if let Some(count) = self.files.get_mut(&volume) {
            *count = count.saturating_sub(files);
            if *count == 0 {
                self.files.remove(&volume);
            }
        }
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
        let state = &mut *self.locks.state();
        let Some(client) = state.clients.get_mut(&self.place) else { return };
        if let Entry::Occupied(mut known) = client.files.entry(self.inode) {
            known.get_mut().asks -= 1;
            if known.get().asks == 0 && !known.get().is_held {
                known.remove();
                state.count_less(self.place.0, 1);
            }
        }
    }
}

impl Locks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn ask(&self, place: Place, inode: u64) -> Result<Ask<'_>> {
        let state = &mut *self.state();
        let files = state.files.get(&place.0).copied().unwrap_or(0);
        let known = state.clients.get_mut(&place);
        let is_new = known.as_ref().is_none_or(|client| !client.files.contains_key(&inode));
        if is_new && files >= FILES_MAX {
            let message =
                format!("mounts of this node have locks on {FILES_MAX} files of this volume already");
            return Err(StoreError::new(ErrorKind::Full, message));
        }
        let client = state.clients.entry(place).or_insert_with(Client::new);
        client.heard = Instant::now();
        client.files.entry(inode).or_default().asks += 1;
        if is_new {
            *state.files.entry(place.0).or_default() += 1;
        }
        Ok(Ask { locks: self, place, inode })
    }

    /// A mount said that it is there.
    fn hear(&self, place: Place) {
        if let Some(client) = self.state().clients.get_mut(&place) {
            client.heard = Instant::now();
        }
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
        let silent: Vec<(Place, Client)> = silent.collect();
        for ((volume, client), known) in silent {
            state.count_less(volume, known.files.len());
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
            return Ok(found.locks.in_the_way(&wanted).map(|lock| held(lock, &wanted)));
        }
        self.run_locks();
        let is_wanted = request.kind.is_some();
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        let mut changes = self.catalog.watch(keys::locks(volume, inode));
        loop {
            let (core, wanted) = (self.clone(), wanted.clone());
            // Whoever asked may go away; then the mount's silence gives back what this got.
            let change = async move { core.lock_once(volume, inode, wanted, is_wanted).await };
            let found = self.to_the_end(change).await?;
            if found.is_none() || !is_wanted || Instant::now() >= until {
                return Ok(found);
            }
            let again = until.min(Instant::now() + LOOK_AGAIN);
            // Woken or not, it looks.
            let _ = tokio::time::timeout_at(again, changes.changed()).await;
        }
    }

    /// Says that a mount is there; tells which of its owners have nothing any more. What memory says of rows counts for nothing here:
    /// another node may have ended them, or this one may be out of the cluster without having heard of it.
    pub(crate) async fn locks_keep_of(
        self: &Arc<Core>,
        volume: &Volume,
        client: LockClient,
        owners: Vec<LockOwner>,
    ) -> Result<Vec<LockOwner>> {
        self.check_open()?;
        if owners.len() > LOCK_OWNERS_MAX {
            let message = format!("a mount has at most {LOCK_OWNERS_MAX} owners of locks");
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let place = (volume.id, client);
        if owners.is_empty() {
            self.give_all_back(place).await?;
            return Ok(Vec::new());
        }
        self.run_locks();
        // Said before anything is looked at: from here on nobody ends what is found.
        self.locks.hear(place);
        let mut by_file: BTreeMap<u64, Vec<LockOwner>> = BTreeMap::new();
        owners.iter().for_each(|owner| by_file.entry(owner.inode).or_default().push(*owner));
        let row_keys: Vec<Vec<u8>> = by_file.keys().map(|inode| keys::locks(volume.id, *inode)).collect();
        let mut wanted: Vec<&[u8]> = vec![&self.session.0];
        wanted.extend(row_keys.iter().map(Vec::as_slice));
        let mut rows = self.catalog.get(&wanted).await.map_err(error::catalog)?.into_iter();
        if rows.next().flatten().is_none_or(|row| row.value != self.session.1) {
            return Err(replaced());
        }
        let mut lost = Vec::new();
        for ((inode, owners), row) in by_file.into_iter().zip(rows) {
            let row = row.as_ref().map(LocksRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
            let mine: Vec<&LockRow> = row.held.iter().filter(|lock| lock.client == client.0).collect();
            let is_here = |lock: &&LockRow| (lock.node, lock.session) == (self.node.0, self.session_id);
            let mut there: Vec<LockOwner> = mine.iter().map(|lock| owner_of(inode, lock)).collect();
            if !mine.iter().all(is_here) || !self.locks.is_held(place, inode) {
                let core = self.clone();
                let find = async move { core.find_again(place, inode).await };
                there = self.to_the_end(find).await?;
            }
            lost.extend(owners.into_iter().filter(|owner| !there.contains(owner)));
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
                return Ok(Some(held(other, &wanted)));
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
            let is_of_owner = |lock: &&LockRow| {
                (lock.client, lock.owner, lock.is_of_file) == (wanted.client, wanted.owner, wanted.is_of_file)
            };
            let left = found.locks.held.iter().find(is_of_owner).filter(|_| !is_wanted);
            let left = left.map(|lock| held(lock, &wanted));
            if found.locks.held.len() > LOCKS_MAX {
                let message = format!("a file has at most {LOCKS_MAX} locks");
                return Err(StoreError::new(ErrorKind::Full, message));
            }
            let is_held = found.locks.held.iter().any(|lock| lock.client == wanted.client);
            let volume_check = is_wanted.then(|| Check::Present(keys::volume_id(volume)));
            if self.locks_put(found, volume_check).await? {
                self.locks.note(place, inode, is_held);
                return Ok(left);
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "too many lock this file at once; try again"))
    }

    /// Who of a mount has locks on a file whose locks this node does not know to be through it. They are from then on.
    async fn find_again(self: &Arc<Core>, place: Place, inode: u64) -> Result<Vec<LockOwner>> {
        let _ask = self.locks.ask(place, inode)?;
        let _turn = self.lock_turn(place.0, inode).await;
        for _ in 0..TRIES_MAX {
            let mut found = self.locks_at(place.0, inode).await?;
            let (node, session) = (self.node.0, self.session_id);
            let mine: Vec<_> = found.locks.held.iter_mut().filter(|lock| lock.client == place.1.0).collect();
            let owners: Vec<LockOwner> = mine.iter().map(|lock| owner_of(inode, lock)).collect();
            if mine.is_empty() {
                self.locks.note(place, inode, false);
                return Ok(owners);
            }
            mine.into_iter().for_each(|lock| (lock.node, lock.session) = (node, session));
            // Written also if it says so already: whoever is about to end them looks again.
            if self.locks_put(found, None).await? {
                self.locks.note(place, inode, true);
                return Ok(owners);
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
            Outcome::Failed { check: 0, .. } => Err(replaced()),
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

fn replaced() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the cluster goes on without this node; ask another one")
}

fn owner_of(inode: u64, lock: &LockRow) -> LockOwner {
    let space = if lock.is_of_file { LockSpace::Files } else { LockSpace::Ranges };
    LockOwner { inode, space, owner: lock.owner }
}

fn held(lock: &LockRow, asked: &LockRow) -> LockHeld {
    let kind = if lock.is_exclusive { LockKind::Exclusive } else { LockKind::Shared };
    LockHeld { is_own: lock.client == asked.client, pid: lock.pid, kind, start: lock.start, end: lock.end }
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
