//! Who goes past the kernel's cache of pages.
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
    /// Anything else.
    Other,
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
            Use::Other => openers.writing > 0,
        };
        match (is_direct, what) {
            (false, _) => openers.cached += 1,
            (true, Use::Write) => openers.writing += 1,
            (true, Use::Other) => {}
        }
        tables.handles.insert(handle, Opener { ino, is_direct, what });
        is_direct
    }

    /// A handle is gone.
    pub fn close(&self, handle: u64) {
        let mut tables = self.0.lock().unwrap();
        let Some(Opener { ino, is_direct, what }) = tables.handles.remove(&handle) else { return };
        let Some(openers) = tables.files.get_mut(&ino) else { return };
        match (is_direct, what) {
            (false, _) => openers.cached -= 1,
            (true, Use::Write) => openers.writing -= 1,
            (true, Use::Other) => {}
        }
        if openers.cached == 0 && openers.writing == 0 {
            tables.files.remove(&ino);
        }
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
        assert!(passes.open(3, 7, Use::Other), "a reader beside writers");
        assert!(!passes.open(4, 8, Use::Other), "another file");
        passes.close(1);
        assert!(passes.open(5, 7, Use::Other));
        passes.close(2);
        assert!(!passes.open(6, 7, Use::Other), "the writers are gone");
        assert!(!passes.open(9, 7, Use::Write), "somebody has pages");
        passes.close(9);
        passes.close(6);
        assert!(passes.open(10, 7, Use::Write), "readers past the cache do not count");
    }

    #[test]
    fn nothing_stays_behind() {
        let passes = Passes::default();
        for handle in 0..6 {
            passes.open(handle, handle % 2, if handle < 3 { Use::Write } else { Use::Other });
        }
        (0..7).chain(0..6).for_each(|handle| passes.close(handle));
        let tables = passes.0.lock().unwrap();
        assert!(tables.handles.is_empty() && tables.files.is_empty());
    }
}
