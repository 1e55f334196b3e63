//! Room for the file, reserved ahead of what is written: a file system that is full refuses commits and never breaks
//! one.
//!
//! The store has no way back from a write that fails: it trusts nothing any more, not even what it can still read. So it
//! must not meet a full file system. Before each group of commits [`Storage::room`](super::storage::Storage::room) makes
//! sure that blocks behind the last one in use are allocated; if they cannot be, the group is refused, reads go on, and
//! the next group tries again. Should a group take more than was reserved, its blocks are held in memory and the flush
//! waits for room (*stuck*): whoever waits for that group hears that nobody knows what becomes of it.
//!
//! Other errors of a file are not waited for: after a flush that failed, nobody can tell what is on the drive.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::CatalogError;

/// How long a flush that found no room rests before it tries again.
const PAUSE: Duration = Duration::from_millis(200);

/// Whether there is room for commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// As far as anybody knows.
    Free,
    /// Commits are refused.
    Full,
    /// A flush waits.
    Stuck,
}

/// What is known of the room for one file.
#[derive(Debug)]
pub(super) struct Space {
    path: PathBuf,
    /// Bytes behind the last one in use that are kept allocated; none is asked for if this is 0.
    reserve: u64,
    /// The end of what was written.
    pub(super) written_to: AtomicU64,
    /// The end of what is allocated.
    pub(super) reserved_to: AtomicU64,
    room: watch::Sender<Room>,
    /// Whether a flush may wait.
    waits: AtomicBool,
    /// Wakes a flush that waits, once nobody wants it any more.
    ended: (Mutex<()>, Condvar),
}

impl Space {
    pub(super) fn new(path: &Path, reserve: u64) -> Space {
        Space {
            path: path.to_owned(),
            reserve,
            written_to: AtomicU64::new(0),
            reserved_to: AtomicU64::new(0),
            room: watch::Sender::new(Room::Free),
            waits: AtomicBool::new(false),
            ended: (Mutex::new(()), Condvar::new()),
        }
    }

    /// From now on a flush waits for room.
    pub(super) fn wait_for_room(&self) {
        self.waits.store(self.reserve > 0, Ordering::Release);
    }

    /// From now on a flush that finds no room fails.
    pub(super) fn give_up(&self) {
        self.waits.store(false, Ordering::Release);
        let _lock = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.1.notify_all();
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// Bytes to allocate, from the most to the least that is worth a try. Empty while there is enough.
    pub(super) fn wanted(&self) -> Option<[u64; 2]> {
        let (written, reserved) = (self.written_to.load(Ordering::Acquire), self.reserved());
        (self.reserve > 0 && reserved < written + self.reserve)
            .then_some([written + 2 * self.reserve, written + self.reserve])
    }

    /// Whether what is allocated is enough for a group of commits.
    pub(super) fn is_enough(&self) -> bool {
        self.reserved() >= self.written_to.load(Ordering::Acquire) + self.reserve / 2
    }

    /// The least that must be free where nothing can be reserved.
    pub(super) fn free_min(&self) -> u64 {
        self.reserve / 2
    }

    fn reserved(&self) -> u64 {
        self.reserved_to.load(Ordering::Acquire)
    }

    /// Takes note of how it stands, and says so once.
    pub(super) fn set(&self, room: Room) {
        let mut before = room;
        // Every commit that waits listens here.
        self.room.send_if_modified(|now| {
            before = std::mem::replace(now, room);
            before != room
        });
        match (before, room) {
            (Room::Free, Room::Full | Room::Stuck) => tracing::error!(
                path = %self.path.display(),
                "the catalog's file system is full; commits are refused until there is room, reads go on"
            ),
            (Room::Full | Room::Stuck, Room::Free) => tracing::info!(
                path = %self.path.display(),
                "the catalog's file system has room again; commits go on"
            ),
            _ => {}
        }
    }

    pub(super) fn get(&self) -> Room {
        *self.room.borrow()
    }

    /// Returns once a flush waits.
    pub(super) async fn stuck(&self) {
        let mut room = self.room.subscribe();
        if room.wait_for(|room| *room == Room::Stuck).await.is_err() {
            std::future::pending().await
        }
    }

    /// Rests before the next try; false if there is to be none.
    pub(super) fn pause(&self) -> bool {
        let lock = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.waits() {
            return false;
        }
        let _ = self.ended.1.wait_timeout(lock, PAUSE);
        self.waits()
    }

    /// What a caller is told.
    pub(super) fn refusal(&self) -> CatalogError {
        CatalogError::unavailable(self.reason())
    }

    /// What whoever waits for a stuck group is told.
    pub(super) fn in_doubt(&self) -> CatalogError {
        CatalogError::unknown(format!("{}; read to find out what became of the commit", self.reason()))
    }

    pub(super) fn reason(&self) -> String {
        let folder = self.path.parent().unwrap_or(&self.path);
        format!("the catalog's file system ({}) is full; free some space there", folder.display())
    }
}

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
