//! Who waits for which prefix. Engines tell what was written, after it can be read; waiting is the watch's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::kv::{Watch, Write};

/// Prefixes without a watch are looked for when there are twice as many as after the last look.
const SWEEP_PREFIXES_MIN: usize = 64;

/// The prefixes that somebody watches.
#[derive(Debug)]
pub(crate) struct Watches {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// One counter per prefix, shared by its watches.
    prefixes: BTreeMap<Vec<u8>, watch::Sender<u64>>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<usize, usize>,
    sweep_prefixes: usize,
    closed: bool,
}

impl Watches {
    pub(crate) fn new() -> Watches {
        let state = State {
            prefixes: BTreeMap::new(),
            lengths: BTreeMap::new(),
            sweep_prefixes: SWEEP_PREFIXES_MIN,
            closed: false,
        };
        Watches { state: Mutex::new(state) }
    }

    /// A new watch of this prefix; one of a closed catalog fails at once.
    pub(crate) fn watch(&self, prefix: Vec<u8>) -> Watch {
        let mut state = self.lock();
        if state.closed {
            let (sender, receiver) = watch::channel(0);
            drop(sender);
            return Watch::new(receiver);
        }
        if let Some(sender) = state.prefixes.get(&prefix) {
            return Watch::new(sender.subscribe());
        }
        if state.prefixes.len() >= state.sweep_prefixes {
            state.sweep();
        }
        let (sender, receiver) = watch::channel(0);
        *state.lengths.entry(prefix.len()).or_default() += 1;
        state.prefixes.insert(prefix, sender);
        Watch::new(receiver)
    }

    /// Wakes the watches of everything that these writes may have changed.
    pub(crate) fn wake<'w>(&self, writes: impl IntoIterator<Item = &'w Write>) {
        let state = self.lock();
        if state.prefixes.is_empty() {
            return;
        }
        for write in writes {
            match write {
                Write::Put(key, _) | Write::Delete(key) | Write::Add(key, _) => state.wake_above(key),
                Write::DeleteRange(start, end) => state.wake_between(start, end),
            }
        }
    }

    /// Wakes what covers this key, and everything below it.
    pub(crate) fn wake_prefix(&self, prefix: &[u8]) {
        let state = self.lock();
        state.wake_above(prefix);
        let below = state.prefixes.range::<[u8], _>((Bound::Excluded(prefix), Bound::Unbounded));
        below.take_while(|(key, _)| key.starts_with(prefix)).for_each(|(_, sender)| raise(sender));
    }

    /// Wakes the watches of this very prefix.
    pub(crate) fn wake_exact(&self, prefix: &[u8]) {
        self.lock().prefixes.get(prefix).into_iter().for_each(raise);
    }

    /// The prefixes that somebody watches.
    pub(crate) fn prefixes(&self) -> BTreeSet<Vec<u8>> {
        let state = self.lock();
        let watched = state.prefixes.iter().filter(|(_, sender)| sender.receiver_count() > 0);
        watched.map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Wakes every watch.
    pub(crate) fn wake_all(&self) {
        self.lock().prefixes.values().for_each(raise);
    }

    /// Ends every watch, now and later.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.prefixes.clear();
        state.lengths.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Wakes the prefixes that this key starts with.
    fn wake_above(&self, key: &[u8]) {
        for length in self.lengths.range(..=key.len()).map(|(length, _)| *length) {
            if let Some(sender) = self.prefixes.get(&key[..length]) {
                raise(sender);
            }
        }
    }

    /// Wakes the prefixes that have a key in `start..end`.
    fn wake_between(&self, start: &[u8], end: &[u8]) {
        if start >= end {
            return;
        }
        self.wake_above(start);
        let inside = self.prefixes.range::<[u8], _>((Bound::Excluded(start), Bound::Excluded(end)));
        inside.for_each(|(_, sender)| raise(sender));
    }

    /// Forgets the prefixes that nobody watches any more.
    fn sweep(&mut self) {
        self.prefixes.retain(|_, sender| sender.receiver_count() > 0);
        self.lengths.clear();
        for prefix in self.prefixes.keys() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        self.sweep_prefixes = (self.prefixes.len() * 2).max(SWEEP_PREFIXES_MIN);
    }
}

fn raise(sender: &watch::Sender<u64>) {
    sender.send_modify(|changes| *changes = changes.wrapping_add(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(write: Write, prefixes: &[&str]) -> Vec<String> {
        let watches = Watches::new();
        let made: Vec<_> = prefixes.iter().map(|prefix| watches.watch(prefix.as_bytes().to_vec())).collect();
        watches.wake([&write]);
        prefixes.iter().zip(&made).filter(|(_, w)| w.is_changed()).map(|(p, _)| p.to_string()).collect()
    }

    #[test]
    fn a_key_wakes_its_prefixes_only() {
        let put = Write::Put(b"dir/file".to_vec(), vec![]);
        let prefixes = ["", "dir/", "dir/file", "dir/file2", "dir/g", "e"];
        assert_eq!(woken(put, &prefixes), ["", "dir/", "dir/file"]);
    }

    #[test]
    fn a_range_wakes_whatever_it_touches() {
        let delete = |start: &str, end: &str| Write::DeleteRange(start.into(), end.into());
        let prefixes = ["", "a", "b", "ba", "bc", "c"];
        assert_eq!(woken(delete("b", "bb"), &prefixes), ["", "b", "ba"]);
        assert_eq!(woken(delete("bb", "c"), &prefixes), ["", "b", "bc"]);
        assert_eq!(woken(delete("c", "b"), &prefixes), Vec::<String>::new());
    }

    #[test]
    fn forgotten_watches_do_not_pile_up() {
        let watches = Watches::new();
        let kept = watches.watch(b"kept".to_vec());
        for n in 0..10_000u32 {
            drop(watches.watch(n.to_be_bytes().to_vec()));
        }
        assert!(watches.lock().prefixes.len() <= SWEEP_PREFIXES_MIN);
        watches.wake([&Write::Delete(b"kept".to_vec())]);
        assert!(kept.is_changed());
    }

    #[test]
    fn a_prefix_wakes_above_and_below() {
        let watches = Watches::new();
        let made = ["", "a", "ab", "abc", "b"].map(|prefix| watches.watch(prefix.into()));
        watches.wake_prefix(b"ab");
        assert_eq!(made.each_ref().map(Watch::is_changed), [true, true, true, true, false]);
    }
}
