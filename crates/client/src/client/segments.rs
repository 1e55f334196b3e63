//! Descriptors of leases, each file once: most leases show one of few segments, and a process has only so many descriptors.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

/// The files that a lease shows.
pub(super) type LeaseFiles = Vec<Arc<File>>;

/// Closed files are forgotten when there are so many more entries than files that were open at the last look.
const GONE_MAX: usize = 64;

/// The open files of all leases of a connection.
#[derive(Default)]
pub(super) struct Segments {
    /// By device and inode. An inode is not used again while the file is open.
    known: HashMap<(u64, u64), Weak<File>>,
    /// Entries at which it is looked for closed files.
    look_at: usize,
}

impl Segments {
    /// The same files; those that are open already are closed, and the open ones taken.
    pub fn once(&mut self, files: Vec<File>) -> LeaseFiles {
        files.into_iter().map(|file| self.one(file)).collect()
    }

    fn one(&mut self, file: File) -> Arc<File> {
        let Ok(meta) = file.metadata() else { return Arc::new(file) };
        let place = (meta.dev(), meta.ino());
        if let Some(open) = self.known.get(&place).and_then(Weak::upgrade) {
            return open;
        }
        if self.known.len() >= self.look_at {
            self.known.retain(|_, file| file.strong_count() > 0);
            self.look_at = self.known.len() + GONE_MAX;
        }
        let file = Arc::new(file);
        self.known.insert(place, Arc::downgrade(&file));
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_open_once_and_closed_ones_are_forgotten() {
        let mut segments = Segments::default();
        let files: Vec<File> = (0..3 * GONE_MAX).map(|_| tempfile::tempfile().unwrap()).collect();
        let again = |file: &File| vec![file.try_clone().unwrap()];
        let first = segments.once(again(&files[0]));
        let second = segments.once(again(&files[0]));
        let other = segments.once(again(&files[1]));
        assert!(Arc::ptr_eq(&first[0], &second[0]) && !Arc::ptr_eq(&first[0], &other[0]));
        drop((first, second));
        let reopened = segments.once(again(&files[0]));
        assert_eq!(Arc::strong_count(&reopened[0]), 1);
        for file in &files {
            segments.once(again(file));
        }
        assert!(segments.known.len() <= 2 * GONE_MAX, "{}", segments.known.len());
        assert!(
            Arc::ptr_eq(&segments.once(again(&files[0]))[0], &reopened[0]),
            "one that is open is not forgotten"
        );
    }
}
