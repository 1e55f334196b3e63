//! Locks of files that hold among all mounts of a cluster.

use serde::{Deserialize, Serialize};

/// How long a client may be silent before what it has locked is free again.
pub const LOCK_LEASE_MS: u64 = 20_000;
/// Locks on one file, of all clients together; fewer if they are of very many clients.
pub const LOCKS_MAX: usize = 1500;
/// Owners of locks that one client has, each counted for each of its files.
pub const LOCK_OWNERS_MAX: usize = 10_000;

/// Who asks: one mount, by a number that it draws when it begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockClient(pub [u8; 16]);

/// The two kinds of locks that Linux has. They do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockSpace {
    /// Of ranges of bytes: `fcntl`.
    Ranges,
    /// Of whole files: `flock`.
    Files,
}

/// Whether others may have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// Beside other shared ones.
    Shared,
    /// Alone.
    Exclusive,
}

/// A lock wanted, asked after, or given back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    /// The file.
    pub inode: u64,
    /// The mount.
    pub client: LockClient,
    /// Which kind of locks.
    pub space: LockSpace,
    /// Who of that mount; what one owner has does not stand in its own way.
    pub owner: u64,
    /// The process, for others that ask who has it.
    pub pid: u32,
    /// What is wanted; none gives the range back.
    pub kind: Option<LockKind>,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for all that will ever be there.
    pub end: u64,
    /// Only asks what stands in the way.
    pub is_test: bool,
    /// How long to wait for whoever has it.
    pub wait_ms: u32,
}

/// Somebody who has something locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockOwner {
    /// The file.
    pub inode: u64,
    /// Which kind of locks.
    pub space: LockSpace,
    /// Who of the mount that asks.
    pub owner: u64,
}

/// A lock that somebody has. Whose it is, by the number of a mount, is for nobody else: who knows that speaks for the mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHeld {
    /// It is of the mount that asks.
    pub is_own: bool,
    /// The process there.
    pub pid: u32,
    /// Whether others may have it too.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}
