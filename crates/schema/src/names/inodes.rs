//! Numbers for files and directories, handed out in blocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::rows::{ROOT, keys};
use stoker_catalog::kv::{Catalog, Commit, Outcome, Row};
use stoker_catalog::{CatalogError, Result};

/// Numbers taken from the catalog at once.
const BLOCK: u64 = 1 << 16;

/// Hands out inodes. Those of a block that was not used up are lost at a restart, which 64 bits can bear.
pub struct Inodes {
    catalog: Arc<dyn Catalog>,
    block: Mutex<std::ops::Range<u64>>,
    refill: tokio::sync::Mutex<()>,
    /// Numbers below are known to be handed out.
    end: AtomicU64,
}

impl Inodes {
    pub(super) fn new(catalog: Arc<dyn Catalog>) -> Inodes {
        Inodes {
            catalog,
            block: Mutex::new(0..0),
            refill: tokio::sync::Mutex::new(()),
            end: AtomicU64::new(0),
        }
    }

    fn take(&self) -> Option<u64> {
        self.block.lock().unwrap().next()
    }

    /// A number that no other file or directory has or had.
    pub async fn next(&self) -> Result<u64> {
        loop {
            if let Some(inode) = self.take() {
                return Ok(inode);
            }
            let _turn = self.refill.lock().await;
            if let Some(inode) = self.take() {
                return Ok(inode);
            }
            let first = self.reserve(BLOCK).await?;
            *self.block.lock().unwrap() = first..first + BLOCK;
        }
    }

    /// The first of so many numbers that nobody else is given.
    pub async fn reserve(&self, count: u64) -> Result<u64> {
        loop {
            let (first, row) = self.counter().await?;
            let change = Commit::new()
                .unchanged(keys::NEXT_INODE, row.as_ref())
                .put(keys::NEXT_INODE, (first + count).to_le_bytes());
            if let Outcome::Done { .. } = self.catalog.commit(change).await? {
                self.end.fetch_max(first + count, Ordering::Relaxed);
                return Ok(first);
            }
        }
    }

    /// Whether a number was handed out by somebody.
    pub async fn is_given(&self, inode: u64) -> Result<bool> {
        if inode >= self.end.load(Ordering::Relaxed) {
            self.end.fetch_max(self.counter().await?.0, Ordering::Relaxed);
        }
        Ok(inode > ROOT && inode < self.end.load(Ordering::Relaxed))
    }

    /// The number that comes next, and the row that says so.
    async fn counter(&self) -> Result<(u64, Option<Row>)> {
        let row = self.catalog.get(&[keys::NEXT_INODE]).await?.pop().flatten();
        let broken = |_| CatalogError::corrupt("the counter of inodes is not a number");
        let next = match &row {
            Some(row) => u64::from_le_bytes(row.value[..].try_into().map_err(broken)?),
            None => ROOT + 1,
        };
        Ok((next, row))
    }
}
