//! A map that forgets what was used longest ago.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

pub struct Lru<K, V> {
    len_max: usize,
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    pub fn new(len_max: usize) -> Lru<K, V> {
        Lru { len_max, entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        self.order.remove(used);
        *used = self.next;
        self.order.insert(self.next, key.clone());
        self.next += 1;
        Some(value)
    }

    /// Adds or replaces; gives what has to go for it.
    #[must_use]
    pub fn put(&mut self, key: K, value: V) -> Option<(K, V)> {
        let replaced = self.remove(&key).map(|old| (key.clone(), old));
        self.order.insert(self.next, key.clone());
        self.entries.insert(key, (self.next, value));
        self.next += 1;
        if self.entries.len() <= self.len_max {
            return replaced;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.entries.remove(&oldest).map(|(_, value)| (oldest, value))
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (used, value) = self.entries.remove(key)?;
        self.order.remove(&used);
        Some(value)
    }

    /// The moment of the next use, to compare with [`Self::take_before`].
    pub fn moment(&self) -> u64 {
        self.next
    }

    /// Takes everything that was not used since a moment.
    pub fn take_before(&mut self, moment: u64) -> Vec<(K, V)> {
        let later = self.order.split_off(&moment);
        let old = std::mem::replace(&mut self.order, later);
        old.into_values().filter_map(|key| Some((key.clone(), self.entries.remove(&key)?.1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut lru = Lru::new(2);
        assert_eq!((lru.put(1, 'a'), lru.put(2, 'b')), (None, None));
        assert_eq!(lru.get(&1), Some(&mut 'a'));
        assert_eq!(lru.put(3, 'c'), Some((2, 'b')));
        assert_eq!(lru.put(3, 'd'), Some((3, 'c')));
        let moment = lru.moment();
        assert_eq!(lru.get(&3), Some(&mut 'd'));
        assert_eq!(lru.take_before(moment), [(1, 'a')]);
        assert_eq!(lru.get(&1), None);
        assert_eq!(lru.remove(&3), Some('d'));
        assert_eq!(lru.get(&3), None);
    }
}
