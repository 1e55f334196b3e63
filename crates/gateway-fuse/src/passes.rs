//! Who goes past the kernel's cache of pages. (D63)
//!
//! A program that only writes has no use for the pages: the kernel would copy each byte once more, and ask for properties
//! before the first write. But pages must not grow old under those who read them. So a writer goes past the cache only if
//! nobody has the file open through it, and whoever opens the file while such a writer is there goes past it, too.

use std::collections::HashMap;
use std::sync::Mutex;

/// What an opener wants of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Nothing but to write: it can go past the cache.
    Write,
    /// To read and to write.
    Both,
    /// Nothing but to read.
    Read,
}

/// Openers of one file.
#[derive(Default)]
struct Openers {
    /// Through the cache.
    cached: usize,
    /// Past it, to write.
    writing: usize,
}

/// A handle that is open.
#[derive(Clone, Copy)]
struct Opener {
    ino: u64,
    is_direct: bool,
    what: Use,
}

#[derive(Default)]
struct Tables {
    handles: HashMap<u64, Opener>,
    files: HashMap<u64, Openers>,
}

/// All that are open.
#[derive(Default)]
pub(crate) struct Passes(Mutex<Tables>);

impl Passes {
    /// A handle of a file is open from here on; true if it goes past the cache.
    pub fn open(&self, handle: u64, ino: u64, what: Use) -> bool {
        let mut tables = self.0.lock().unwrap();
        let openers = tables.files.entry(ino).or_default();
        let is_direct = match what {
            Use::Write => openers.cached == 0,
            Use::Both | Use::Read => openers.writing > 0,
        };
        match (is_direct, what) {
            (false, _) => openers.cached += 1,
            (true, Use::Write | Use::Both) => openers.writing += 1,
            (true, Use::Read) => {}
        }
        tables.handles.insert(handle, Opener { ino, is_direct, what });
        is_direct
    }

    /// A handle is gone; gives the file if it was written to past the cache.
    pub fn close(&self, handle: u64) -> Option<u64> {
        let mut tables = self.0.lock().unwrap();
        let Opener { ino, is_direct, what } = tables.handles.remove(&handle)?;
        let openers = tables.files.get_mut(&ino)?;
        let wrote = is_direct && what != Use::Read;
        match (is_direct, wrote) {
            (false, _) => openers.cached -= 1,
            (true, true) => openers.writing -= 1,
            (true, false) => {}
        }
        if openers.cached == 0 && openers.writing == 0 {
            tables.files.remove(&ino);
        }
        wrote.then_some(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_writers_past_them_do_not_meet() {
        let passes = Passes::default();
        assert!(passes.open(1, 7, Use::Write));
        assert!(passes.open(2, 7, Use::Write), "a second writer");
        assert!(passes.open(3, 7, Use::Read), "a reader beside writers");
        assert!(!passes.open(4, 8, Use::Read), "another file");
        assert_eq!(passes.close(1), Some(7));
        assert!(passes.open(5, 7, Use::Read));
        assert!(passes.open(11, 7, Use::Both));
        assert_eq!(passes.close(2), Some(7));
        assert!(passes.open(12, 7, Use::Read), "one that reads and writes is still there");
        assert_eq!(passes.close(11), Some(7));
        assert!(!passes.open(6, 7, Use::Read), "the writers are gone");
        assert!(!passes.open(9, 7, Use::Write), "somebody has pages");
        assert_eq!(passes.close(9), None);
        assert_eq!(passes.close(6), None);
        assert!(passes.open(10, 7, Use::Write), "readers past the cache do not count");
    }

    #[test]
    fn nothing_stays_behind() {
        let passes = Passes::default();
        for handle in 0..6 {
            passes.open(handle, handle % 2, [Use::Write, Use::Both, Use::Read][handle as usize / 2]);
        }
        for handle in (0..7).chain(0..6) {
            let _ = passes.close(handle);
        }
        let tables = passes.0.lock().unwrap();
        assert!(tables.handles.is_empty() && tables.files.is_empty());
    }
}
