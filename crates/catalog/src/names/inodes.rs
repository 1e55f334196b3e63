//! Numbers for files and directories, handed out in blocks.

use std::sync::{Arc, Mutex};

use crate::error::{CatalogError, Result};
use crate::kv::{Catalog, Commit, Outcome};
use crate::rows::{ROOT, keys};

/// Numbers taken from the catalog at once.
const BLOCK: u64 = 1 << 16;

/// Hands out inodes. Those of a block that was not used up are lost at a restart, which 64 bits can bear.
pub struct Inodes {
    catalog: Arc<dyn Catalog>,
    block: Mutex<std::ops::Range<u64>>,
    refill: tokio::sync::Mutex<()>,
}

impl Inodes {
    pub(super) fn new(catalog: Arc<dyn Catalog>) -> Inodes {
        Inodes { catalog, block: Mutex::new(0..0), refill: tokio::sync::Mutex::new(()) }
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
            let row = self.catalog.get(&[keys::NEXT_INODE]).await?.pop().flatten();
            let first = match &row {
                Some(row) => u64::from_le_bytes(
                    row.value[..]
                        .try_into()
                        .map_err(|_| CatalogError::corrupt("the counter of inodes is not a number"))?,
                ),
                None => ROOT + 1,
            };
            let change = Commit::new()
                .unchanged(keys::NEXT_INODE, row.as_ref())
                .put(keys::NEXT_INODE, (first + BLOCK).to_le_bytes());
            if let Outcome::Done { .. } = self.catalog.commit(change).await? {
                *self.block.lock().unwrap() = first..first + BLOCK;
            }
        }
    }
}
