//! Locks that hold among all mounts of a cluster. (D193)
//!
//! Who gets a lock sees what the one before wrote: bytes are published before a lock is given back, and what is published is
//! looked up after one was got. Locks are leases. As long as this file system has some it says so every few seconds, and before it
//! publishes a locked file it knows that the lock was there a moment ago; if not, what was written is dropped, and its writer is told.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use stoker_store::{
    ErrorKind, LOCK_LEASE_MS, LockClient, LockHeld, LockKind, LockRequest, LockSpace, StoreError,
};
use tokio::time::Instant;

use crate::content::Content;
use crate::error::{Errno, Result};
use crate::files::{Core, Files, Waiting, patiently};
use crate::inode::Inode;

/// How often the node hears that this file system is there.
const ROUND: Duration = Duration::from_secs(5);

/// Pause after the node could not be told.
const AGAIN: Duration = Duration::from_millis(500);

/// A lock that was confirmed so long ago may be gone by the time that something is published.
const CONFIRMED: Duration = Duration::from_millis(LOCK_LEASE_MS / 2);

/// How long one call waits for a lock: in between, whoever waits may be called away.
const WAIT_MS: u32 = 300;

/// A lock to be had, or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Of ranges or of files.
    pub space: LockSpace,
    /// Who has it.
    pub owner: u64,
    /// Its process.
    pub pid: u32,
    /// None to give it back.
    pub kind: Option<LockKind>,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

/// What this file system has locked.
pub(crate) struct Locks {
    client: Option<LockClient>,
    state: Mutex<State>,
}

struct State {
    files: HashMap<u64, Locked>,
    /// Before this moment the node had all of them.
    confirmed: Instant,
    is_kept: bool,
}

/// A file with locks.
struct Locked {
    /// Its number in the catalog.
    number: u64,
    /// Owners, and whether they surely got something: of some only a question is known.
    owners: HashMap<(LockSpace, u64), bool>,
}

impl Locks {
    pub fn new(client: Option<LockClient>) -> Locks {
        let state = State { files: HashMap::new(), confirmed: Instant::now(), is_kept: false };
        Locks { client, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Whether something is locked that was not confirmed for long.
    pub fn is_doubtful(&self, ino: u64) -> bool {
        let state = self.state();
        let is_held = state.files.get(&ino).is_some_and(|file| file.owners.values().any(|sure| *sure));
        is_held && state.confirmed.elapsed() >= CONFIRMED
    }

    fn note_asked(&self, ino: u64, number: u64, by: (LockSpace, u64)) {
        let mut state = self.state();
        if state.files.is_empty() {
            state.confirmed = Instant::now();
        }
        let file = state.files.entry(ino).or_insert_with(|| Locked { number, owners: HashMap::new() });
        file.owners.entry(by).or_insert(false);
    }

    fn note_got(&self, ino: u64, number: u64, by: (LockSpace, u64)) {
        let mut state = self.state();
        let file = state.files.entry(ino).or_insert_with(|| Locked { number, owners: HashMap::new() });
        file.owners.insert(by, true);
    }

    /// An owner has nothing there, or nothing but what it surely has.
    fn note_without(&self, ino: u64, by: (LockSpace, u64), is_all: bool) {
        let mut state = self.state();
        let Some(file) = state.files.get_mut(&ino) else { return };
        if is_all || file.owners.get(&by) == Some(&false) {
            file.owners.remove(&by);
        }
        if file.owners.is_empty() {
            state.files.remove(&ino);
        }
    }

    fn number(&self, ino: u64, by: (LockSpace, u64)) -> Option<u64> {
        let state = self.state();
        state.files.get(&ino).filter(|file| file.owners.contains_key(&by)).map(|file| file.number)
    }
}

impl Files {
    /// Whether locks hold among all mounts of the cluster.
    pub fn has_locks(&self) -> bool {
        self.0.locks.client.is_some()
    }

    /// Locks, or gives back. With a look at whether the caller is called away (EINTR) it waits; without, somebody else's lock is EAGAIN.
    pub async fn lock(
        &self,
        ino: u64,
        lock: Lock,
        is_called_away: Option<&(dyn Fn() -> bool + Sync)>,
    ) -> Result<()> {
        let inode = self.0.table.get(ino)?;
        if lock.kind.is_none() {
            return self.0.unlock(&inode, lock).await;
        }
        self.0.check_locks(&inode).await?;
        // What others do not see they would lock as another file.
        if !inode.is_published() {
            self.0.flush(&inode).await?;
        }
        inode.check_lost()?;
        let (number, by) = (inode.number(), (lock.space, lock.owner));
        self.0.locks.note_asked(ino, number, by);
        self.0.keep_locks();
        let mut waiting = Waiting::default();
        loop {
            let wait_ms = if is_called_away.is_some() { WAIT_MS } else { 0 };
            let refused = match self.0.ask_lock(&inode, number, lock, false, wait_ms).await {
                Ok(None) => break,
                Ok(Some(_)) => is_called_away.is_none().then_some(Errno::EAGAIN),
                Err(fault) => match waiting.after(fault, &self.0.options).await {
                    Ok(()) => None,
                    Err(fault) => Some(errno(fault)),
                },
            };
            let is_called_away = is_called_away.is_some_and(|is_called_away| is_called_away());
            if let Some(errno) = refused.or(is_called_away.then_some(Errno::EINTR)) {
                self.0.locks.note_without(ino, by, false);
                return Err(errno);
            }
        }
        self.0.locks.note_got(ino, number, by);
        // What the one before wrote.
        let seen = self.refresh(ino).await;
        if seen.is_err() {
            let _ = self.0.ask_lock(&inode, number, Lock { kind: None, ..lock }, false, 0).await;
        }
        seen
    }

    /// What stands in the way of a lock.
    pub async fn test_lock(&self, ino: u64, lock: Lock) -> Result<Option<LockHeld>> {
        let inode = self.0.table.get(ino)?;
        if !inode.is_published() {
            self.0.flush(&inode).await?;
        }
        let number = inode.number();
        patiently!(self.0, self.0.ask_lock(&inode, number, lock, true, 0)).map_err(errno)
    }

    /// Whether a lock is of another mount.
    pub fn is_foreign(&self, held: &LockHeld) -> bool {
        self.0.locks.client != Some(held.client)
    }

    /// An owner closed the file: what it has locked there is free.
    pub async fn end_locks(&self, ino: u64, space: LockSpace, owner: u64) {
        if self.0.locks.number(ino, (space, owner)).is_none() {
            return;
        }
        let Ok(inode) = self.0.table.get(ino) else { return };
        let lock = Lock { space, owner, pid: 0, kind: None, start: 0, end: u64::MAX };
        if self.0.unlock(&inode, lock).await.is_ok() {
            return;
        }
        let core = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            while let Some(core) = core.upgrade() {
                if core.unlock(&inode, lock).await.is_ok() {
                    return;
                }
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    /// Nothing is locked any more: this file system ends.
    pub async fn end_all_locks(&self) {
        if let Some(client) = self.0.locks.client
            && !std::mem::take(&mut self.0.locks.state().files).is_empty()
            && let Err(fault) = self.0.store.locks_keep(&self.0.volume, client, Vec::new()).await
        {
            tracing::warn!("locks end a little later: {fault}");
        }
    }

    /// Whether the caller's caches are of another version than the one that is known; said once.
    pub fn has_old_pages(&self, ino: u64) -> bool {
        let Ok(inode) = self.0.table.get(ino) else { return false };
        let version = inode.meta.lock().unwrap().version;
        std::mem::replace(&mut *inode.shown.lock().unwrap(), version) != version
    }
}

impl Core {
    async fn ask_lock(
        &self,
        inode: &Inode,
        number: u64,
        lock: Lock,
        is_test: bool,
        wait_ms: u32,
    ) -> std::result::Result<Option<LockHeld>, StoreError> {
        let Some(client) = self.locks.client else {
            return Err(StoreError::new(ErrorKind::Invalid, "locks hold within this mount"));
        };
        let key = self.table.key(inode).map_err(crate::publish::stale)?;
        let Lock { space, owner, pid, kind, start, end } = lock;
        let request =
            LockRequest { inode: number, client, space, owner, pid, kind, start, end, is_test, wait_ms };
        self.store.lock(&self.volume, &key, request).await
    }

    /// Whoever gets the lock next sees what was written.
    async fn unlock(&self, inode: &Arc<Inode>, lock: Lock) -> Result<()> {
        let by = (lock.space, lock.owner);
        let Some(number) = self.locks.number(inode.ino, by) else { return Ok(()) };
        // What cannot be published is told to whoever writes, syncs or closes.
        let _ = self.flush(inode).await;
        patiently!(self, self.ask_lock(inode, number, lock, false, 0)).map_err(errno)?;
        if lock.start == 0 && lock.end == u64::MAX {
            self.locks.note_without(inode.ino, by, true);
        }
        Ok(())
    }

    /// Refuses a file whose locks may be gone, before something is done that relies on them.
    pub async fn check_locks(&self, inode: &Inode) -> Result<()> {
        if self.locks.is_doubtful(inode.ino) {
            let mut waiting = Waiting::default();
            while let Err(fault) = self.confirm_locks().await {
                waiting.after(fault, &self.options).await?;
            }
        }
        inode.check_lost()
    }

    /// The same for whoever publishes: what was written without the lock is dropped.
    pub async fn check_locks_of(&self, inode: &Inode, content: &mut Content) -> Result<()> {
        let checked = self.check_locks(inode).await;
        if checked.is_err() && inode.is_dirty() {
            self.lose_bytes(inode, content);
        }
        checked
    }

    /// Tells the node that this file system is there, and hears which locks are gone.
    async fn confirm_locks(&self) -> std::result::Result<(), StoreError> {
        let Some(client) = self.locks.client else { return Ok(()) };
        let begun = Instant::now();
        let asked: HashMap<u64, u64> =
            self.locks.state().files.iter().map(|(ino, file)| (file.number, *ino)).collect();
        if !asked.is_empty() {
            let lost = self.store.locks_keep(&self.volume, client, asked.keys().copied().collect()).await?;
            let mut state = self.locks.state();
            for ino in lost.iter().filter_map(|number| asked.get(number)) {
                let Some(file) = state.files.get_mut(ino) else { continue };
                // Of those that ask right now nothing is gone.
                let had = file.owners.len();
                file.owners.retain(|_, sure| !*sure);
                let is_lost = file.owners.len() < had;
                if file.owners.is_empty() {
                    state.files.remove(ino);
                }
                if let Some(inode) = self.table.get(*ino).ok().filter(|inode| is_lost && inode.is_open()) {
                    tracing::warn!(
                        "inode {ino} was locked here, and this mount was away for so long that others may have it: \
                         nothing more is written to it before it is opened again"
                    );
                    inode.is_lost.store(true, Ordering::Release);
                }
            }
        }
        self.locks.state().confirmed = begun;
        Ok(())
    }

    fn keep_locks(self: &Arc<Core>) {
        if !std::mem::replace(&mut self.locks.state().is_kept, true) {
            tokio::spawn(keep(Arc::downgrade(self)));
        }
    }
}

/// The error of a lock.
fn errno(fault: StoreError) -> Errno {
    match fault.kind {
        ErrorKind::Full => Errno::ENOLCK,
        _ => fault.into(),
    }
}

async fn keep(core: Weak<Core>) {
    let mut pause = ROUND;
    loop {
        tokio::time::sleep(pause).await;
        let Some(core) = core.upgrade() else { return };
        pause = match core.confirm_locks().await {
            Ok(()) => ROUND,
            Err(fault) => {
                tracing::warn!("locks are not confirmed: {fault}");
                AGAIN
            }
        };
    }
}
