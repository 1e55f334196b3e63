//! Memory for what is read ahead: within a budget, and used again, for fresh pages cost more than the copy into them.

use std::collections::BTreeMap;

use stoker_store::Buf;

/// Buffers of one process.
pub struct Memory {
    budget: usize,
    /// All that there are, in use or not.
    used: usize,
    idle: BTreeMap<usize, Vec<Buf>>,
    idle_bytes: usize,
    peak: usize,
}

impl Memory {
    pub fn new(budget: usize) -> Memory {
        Memory { budget, used: 0, idle: BTreeMap::new(), idle_bytes: 0, peak: 0 }
    }

    /// Whether this much more can be had.
    pub fn fits(&self, len: usize) -> bool {
        self.used - self.idle_bytes + len <= self.budget
    }

    /// The most that there was at once.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// A buffer of exactly this length, whether it fits or not.
    pub fn take(&mut self, len: usize) -> Buf {
        if len == 0 {
            return Buf::none();
        }
        if let Some(buf) = self.idle.get_mut(&len).and_then(Vec::pop) {
            self.idle_bytes -= len;
            return buf;
        }
        while self.used + len > self.budget && self.idle_bytes > 0 {
            self.forget();
        }
        self.used += len;
        self.peak = self.peak.max(self.used);
        let mut buf = Buf::heap(len);
        buf.set_len(len);
        buf
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, buf: Buf) {
        let len = buf.len();
        if len == 0 {
            return;
        }
        self.idle.entry(len).or_default().push(buf);
        self.idle_bytes += len;
        // One that was larger than the budget is not kept.
        while self.used > self.budget && self.idle_bytes > 0 {
            self.forget();
        }
    }

    /// Frees the longest buffer that nobody uses.
    fn forget(&mut self) {
        let Some(mut entry) = self.idle.last_entry() else { return };
        let (len, buf) = (*entry.key(), entry.get_mut().pop());
        if entry.get().is_empty() {
            entry.remove();
        }
        if buf.is_some() {
            self.used -= len;
            self.idle_bytes -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_again_and_stay_in_the_budget() {
        let mut memory = Memory::new(100 << 10);
        let one = memory.take(40 << 10);
        let place = one.io_ptr(0);
        assert!(memory.fits(60 << 10) && !memory.fits((60 << 10) + 1));
        memory.give_back(one);
        assert!(memory.fits(100 << 10));
        let again = memory.take(40 << 10);
        assert_eq!((again.io_ptr(0), again.len()), (place, 40 << 10));
        let other = memory.take(20 << 10);
        memory.give_back(again);
        // What nobody uses goes first.
        let large = memory.take(80 << 10);
        assert_eq!(memory.peak(), 100 << 10);
        // One alone may be larger than all.
        memory.give_back(large);
        memory.give_back(other);
        let huge = memory.take(1 << 20);
        memory.give_back(huge);
        assert_eq!((memory.peak(), memory.used, memory.idle_bytes), (1 << 20, 0, 0));
        assert_eq!(memory.take(0).len(), 0);
    }
}
