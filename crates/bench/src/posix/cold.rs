//! Taking what is read out of the page cache.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::Path;

use super::load::LARGE;
use super::workload::Work;
use crate::failure::Failure;
use crate::sys;

/// Drops pages, entries and inodes.
const DROP: &str = "/proc/sys/vm/drop_caches";

/// How it is done: by dropping all of the machine's, or where that is not allowed by asking for one file.
#[derive(Default)]
pub struct Cold {
    is_asked: Cell<bool>,
}

impl Cold {
    /// Makes a directory cold before a round that wants it so.
    pub fn before(&self, dir: &Path, work: Work) -> Result<(), Failure> {
        if !work.is_cold() {
            return Ok(());
        }
        // Only what is clean can be dropped.
        let large = dir.join(LARGE);
        let file = File::open(&large).map_err(|e| Failure::io(large.display(), &e))?;
        file.sync_all().map_err(|e| Failure::io(large.display(), &e))?;
        if fs::write(DROP, "3").is_err() {
            self.is_asked.set(true);
            sys::forget_pages(&file).map_err(|e| Failure::io(large.display(), &e))?;
        }
        Ok(())
    }

    /// What was done, for the report.
    pub fn words(&self) -> &'static str {
        if self.is_asked.get() { "posix_fadvise on the file that is read" } else { "drop_caches 3" }
    }
}
