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
    ErrorKind, Key, LOCK_LEASE_MS, LOCK_OWNERS_MAX, LockClient, LockHeld, LockKind, LockOwner, LockRequest,
    LockSpace, StoreError,
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

/// Who, here, and on which file.
type Owner = (u64, LockSpace, u64);

/// What this file system has locked.
pub(crate) struct Locks {
    client: Option<LockClient>,
    state: Mutex<State>,
}

struct State {
    owners: HashMap<Owner, Known>,
    /// Before this moment the node had all of them.
    confirmed: Instant,
    /// Counts what was got.
    moment: u64,
    is_kept: bool,
}

/// What is known of an owner.
struct Known {
    /// The file's number in the catalog, and a name that it had.
    number: u64,
    key: Key,
    /// When it got something; none if that is not known for sure.
    got: Option<u64>,
}

impl Locks {
    pub fn new(client: Option<LockClient>) -> Locks {
        let (owners, confirmed) = (HashMap::new(), Instant::now());
        Locks { client, state: Mutex::new(State { owners, confirmed, moment: 0, is_kept: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Whether something is locked that was not confirmed for long.
    pub fn is_doubtful(&self, ino: u64) -> bool {
        let state = self.state();
        state.confirmed.elapsed() >= CONFIRMED
            && state.owners.iter().any(|((at, ..), known)| *at == ino && known.got.is_some())
    }

    /// Somebody is about to ask: what it has by then is kept from now on, whether the answer comes or not.
    fn note_asked(&self, owner: Owner, number: u64, key: &Key) -> Result<()> {
        let mut state = self.state();
        if state.owners.is_empty() {
            state.confirmed = Instant::now();
        }
        if state.owners.len() >= LOCK_OWNERS_MAX && !state.owners.contains_key(&owner) {
            return Err(Errno::ENOLCK);
        }
        state.owners.entry(owner).or_insert_with(|| Known { number, key: key.clone(), got: None });
        Ok(())
    }

    fn note_got(&self, owner: Owner, number: u64, key: &Key) {
        let mut state = self.state();
        state.moment += 1;
        let got = Some(state.moment);
        state.owners.insert(owner, Known { number, key: key.clone(), got });
    }

    /// An owner has nothing.
    fn note_without(&self, owner: Owner) {
        self.state().owners.remove(&owner);
    }

    /// An owner got nothing; what it had before it has.
    fn note_refused(&self, owner: Owner) {
        let mut state = self.state();
        if state.owners.get(&owner).is_some_and(|known| known.got.is_none()) {
            state.owners.remove(&owner);
        }
    }

    fn place(&self, owner: Owner) -> Option<(u64, Key)> {
        self.state().owners.get(&owner).map(|known| (known.number, known.key.clone()))
    }

    fn is_sure(&self, owner: Owner) -> bool {
        self.state().owners.get(&owner).is_some_and(|known| known.got.is_some())
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
            return self.0.unlock(&inode, lock, false).await;
        }
        self.0.check_locks(&inode).await?;
        // What others do not see they would lock as another file.
        if !inode.is_published() {
            self.0.flush(&inode).await?;
        }
        let (owner, key, number) = ((ino, lock.space, lock.owner), self.0.lock_key(&inode)?, inode.number());
        self.0.locks.note_asked(owner, number, &key)?;
        self.0.keep_locks();
        let (mut waiting, mut is_unknown) = (Waiting::default(), false);
        loop {
            // Before each try: what another one here got meanwhile says nothing of what was lost before.
            let checked = self.0.check_locks(&inode).await;
            let wait_ms = if is_called_away.is_some() { WAIT_MS } else { 0 };
            let refused = match checked {
                Err(errno) => Some(errno),
                Ok(()) => match self.0.ask_lock(&key, number, lock, false, wait_ms).await {
                    Ok(None) => break,
                    Ok(Some(_)) => is_called_away.is_none().then_some(Errno::EAGAIN),
                    Err(fault) if fault.kind == ErrorKind::Full => Some(Errno::ENOLCK),
                    Err(fault) => {
                        is_unknown |= fault.is_unknown();
                        waiting.after(fault, &self.0.options).await.err().map(Errno::from)
                    }
                },
            };
            let is_called_away = is_called_away.is_some_and(|is_called_away| is_called_away());
            let Some(errno) = refused.or(is_called_away.then_some(Errno::EINTR)) else { continue };
            if is_unknown && !self.0.locks.is_sure(owner) {
                // It may have been got, by an ask whose answer was lost.
                self.0.give_back_later(inode, Lock { kind: None, ..lock });
            } else {
                self.0.locks.note_refused(owner);
            }
            return Err(errno);
        }
        self.0.locks.note_got(owner, number, &key);
        // What the one before wrote.
        let seen = match self.refresh(ino).await {
            Ok(()) => inode.check_lost(),
            seen => seen,
        };
        if seen.is_err() {
            self.0.give_back_later(inode, Lock { kind: None, ..lock });
        }
        seen
    }

    /// What stands in the way of a lock.
    pub async fn test_lock(&self, ino: u64, lock: Lock) -> Result<Option<LockHeld>> {
        let inode = self.0.table.get(ino)?;
        if !inode.is_published() {
            self.0.flush(&inode).await?;
        }
        let (key, number) = (self.0.lock_key(&inode)?, inode.number());
        Ok(patiently!(self.0, self.0.ask_lock(&key, number, lock, true, 0))?)
    }

    /// An owner closed the file: what it has locked there is free.
    pub async fn end_locks(&self, ino: u64, space: LockSpace, owner: u64) {
        if self.0.locks.place((ino, space, owner)).is_none() {
            return;
        }
        let Ok(inode) = self.0.table.get(ino) else { return };
        let lock = Lock { space, owner, pid: 0, kind: None, start: 0, end: u64::MAX };
        if self.0.unlock(&inode, lock, true).await.is_err() {
            self.0.give_back_later(inode, lock);
        }
    }

    /// Nothing is locked any more: this file system ends.
    pub async fn end_all_locks(&self) {
        if let Some(client) = self.0.locks.client
            && !std::mem::take(&mut self.0.locks.state().owners).is_empty()
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
        key: &Key,
        number: u64,
        lock: Lock,
        is_test: bool,
        wait_ms: u32,
    ) -> std::result::Result<Option<LockHeld>, StoreError> {
        let Some(client) = self.locks.client else {
            return Err(StoreError::new(ErrorKind::Invalid, "locks hold within this mount"));
        };
        let Lock { space, owner, pid, kind, start, end } = lock;
        let request =
            LockRequest { inode: number, client, space, owner, pid, kind, start, end, is_test, wait_ms };
        self.store.lock(&self.volume, key, request).await
    }

    /// A name of a file, or the last one that it had.
    fn lock_key(&self, inode: &Inode) -> Result<Key> {
        self.table.key(inode).or_else(|_| {
            let (parent, name) = {
                let place = inode.place.lock().unwrap();
                (place.parent, place.name.clone())
            };
            self.table.key_in(&*self.table.get(parent)?, &name)
        })
    }

    /// Whoever gets the lock next sees what was written. Of a file that is closed, what cannot be published is dropped first.
    async fn unlock(&self, inode: &Arc<Inode>, lock: Lock, is_closed: bool) -> Result<()> {
        let owner = (inode.ino, lock.space, lock.owner);
        let Some((number, key)) = self.locks.place(owner) else { return Ok(()) };
        match self.flush(inode).await {
            Err(_) if is_closed && inode.is_awaited() => self.give_up(inode).await,
            // There is nothing left to be published, and whoever wrote it is told elsewhere.
            Err(Errno::ESTALE) => {}
            flushed => flushed?,
        }
        let left = patiently!(self, self.ask_lock(&key, number, lock, false, 0));
        match left {
            Ok(Some(_)) => {}
            Ok(None) => self.locks.note_without(owner),
            // The volume is gone, or who asks has no rights there any more: the lease ends.
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Denied) => {
                self.locks.note_without(owner);
            }
            Err(fault) => return Err(fault.into()),
        }
        Ok(())
    }

    /// Gives back in the background, until that is done.
    fn give_back_later(self: &Arc<Core>, inode: Arc<Inode>, lock: Lock) {
        let core = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(core) = core.upgrade() {
                if core.unlock(&inode, lock, false).await.is_ok() {
                    return;
                }
                drop(core);
                tokio::time::sleep(AGAIN).await;
            }
        });
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
        if inode.check_lost().is_err() && inode.is_dirty() {
            self.lose_bytes(inode, content);
        }
        checked
    }

    /// Tells the node that this file system is there, and hears which locks are gone.
    async fn confirm_locks(&self) -> std::result::Result<(), StoreError> {
        let Some(client) = self.locks.client else { return Ok(()) };
        let begun = Instant::now();
        let (asked, moment) = {
            let state = self.locks.state();
            let of = |(owner, known): (&Owner, &Known)| {
                (LockOwner { inode: known.number, space: owner.1, owner: owner.2 }, *owner)
            };
            (state.owners.iter().map(of).collect::<HashMap<LockOwner, Owner>>(), state.moment)
        };
        if !asked.is_empty() {
            let lost = self.store.locks_keep(&self.volume, client, asked.keys().copied().collect()).await?;
            for owner in lost.iter().filter_map(|one| asked.get(one)) {
                // What was got since it was asked, or is about to be, is not what is gone.
                let is_lost = {
                    let mut state = self.locks.state();
                    let got = state.owners.get(owner).and_then(|known| known.got);
                    let is_lost = got.is_some_and(|got| got <= moment);
                    if is_lost {
                        state.owners.remove(owner);
                    }
                    is_lost
                };
                let ino = owner.0;
                if let Some(inode) = self.table.get(ino).ok().filter(|inode| is_lost && inode.is_open()) {
                    tracing::warn!(
                        "inode {ino} was locked here, and this mount was away for so long that others may have it: \
                         nothing more is written to it before it is closed and opened again"
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
