//! Leases: a local reader's right to read parts of a file from the drive itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most descriptors in one answer.
pub const LEASE_DESCRIPTORS_MAX: usize = 32;
/// Most extents in one answer.
pub const LEASE_EXTENTS_MAX: usize = 64;

/// A stored piece of a file, to be read through a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseExtent {
    /// Where it starts in the file.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
    /// Which of the descriptors shows it.
    pub descriptor: usize,
    /// Where it starts there; not always on a block boundary.
    pub at: u64,
    /// CRC32C of each block of it, counted from its first byte; the last block may be short. Bytes that were not
    /// checked against it are nobody's promise.
    pub table: Arc<[u32]>,
}

impl LeaseExtent {
    /// Where it ends in the file.
    pub const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// Extents that follow one another, and the descriptors that show them. What a descriptor shows at these places never
/// changes, whatever happens to the file.
#[derive(Default, Debug)]
pub struct Leases {
    /// In the order of the file; the first holds the byte that was asked for, the last may end before the range does.
    pub extents: Vec<LeaseExtent>,
    /// Read-only, opened for whole aligned blocks (O_DIRECT), each once.
    pub descriptors: Vec<OwnedFd>,
}

/// Why bytes have to be read through the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NoLease {
    /// The reader is not on the machine of the drive, or whoever serves the file cannot pass descriptors.
    NotLocal,
    /// The bytes are on no drive, only in the lake.
    NotOnDrive,
    /// The bytes lie on a raw device, or in one segment with those of other volumes.
    Shared,
    /// The volume does not allow leases.
    Volume,
    /// As many are out as may be.
    Limit,
}

/// The answer to a wish for leases.
#[derive(Debug)]
pub enum Leased {
    /// Here they are.
    Granted(Leases),
    /// There are none.
    Refused {
        /// Why.
        reason: NoLease,
        /// Where in the file it may be worth to ask again; the end of numbers for never.
        until: u64,
    },
}

impl Leased {
    /// A refusal that holds for the whole file.
    pub const fn never(reason: NoLease) -> Leased {
        Leased::Refused { reason, until: u64::MAX }
    }
}
