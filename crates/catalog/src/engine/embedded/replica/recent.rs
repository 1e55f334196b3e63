//! What was done since the table was written last: rows in memory, in front of the table. (D140)
//!
//! A transaction of the store costs the same for one commit as for fifty: pages are copied, allocated and summed. So what the commits of an
//! entry wrote stays here as a *layer*, and goes to the table later, in one transaction with that of others. Layers are sorted and never
//! change; whoever reads has them and the state of the table below, and looks at the newest layer first. Of two layers of about one size one is
//! made, so that there are few. Nothing is lost with them: the log has the entries.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::engine::apply::{self, Rows, RowsMut};
use crate::error::Result;
use crate::kv::{Range, Row};

/// Rows and bytes that are kept in front of the table; what is more goes there.
const ROWS_MAX: usize = 8_192;
const BYTES_MAX: usize = 2 << 20;
/// What a row takes besides its key and value.
const ROW_BYTES: usize = 96;
/// Bits of the filter of a layer for each of its rows.
const FILTER_BITS: usize = 16;

/// The commit that wrote a row, and its value; none if the row was removed.
type Written = Option<(u64, Arc<[u8]>)>;

#[derive(Debug, Clone)]
struct Change {
    key: Arc<[u8]>,
    hash: u64,
    written: Written,
}

/// What some entries wrote, by key.
#[derive(Debug)]
struct Layer {
    changes: Vec<Change>,
    bytes: usize,
    /// Two bits for each key, so that a layer that lacks a key is seldom searched for it.
    filter: Vec<u64>,
}

/// All that is not in the table yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent {
    /// The newest last.
    layers: Vec<Arc<Layer>>,
}

/// What one entry writes, over rows that do not change meanwhile.
pub(super) struct Fresh<'v, R> {
    below: &'v R,
    rows: BTreeMap<Arc<[u8]>, Written>,
}

fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

impl Layer {
    fn new(changes: Vec<Change>) -> Layer {
        let words = (changes.len() * FILTER_BITS).div_ceil(64).next_power_of_two();
        let mut filter = vec![0; words];
        let mut bytes = 0;
        for change in &changes {
            let value = change.written.as_ref().map_or(0, |(_, value)| value.len());
            bytes += ROW_BYTES + change.key.len() + value;
            for (word, bit) in places(change.hash, words) {
                filter[word] |= bit;
            }
        }
        Layer { changes, bytes, filter }
    }

    fn get(&self, key: &[u8], hash: u64) -> Option<&Written> {
        if places(hash, self.filter.len()).into_iter().any(|(word, bit)| self.filter[word] & bit == 0) {
            return None;
        }
        let at = self.changes.binary_search_by(|change| (*change.key).cmp(key)).ok()?;
        Some(&self.changes[at].written)
    }

    /// This one with a newer one over it.
    fn under(&self, newer: &Layer) -> Layer {
        let mut changes = Vec::with_capacity(self.changes.len() + newer.changes.len());
        let mut old = self.changes.iter().peekable();
        for change in &newer.changes {
            while let Some(before) = old.next_if(|before| before.key < change.key) {
                changes.push(before.clone());
            }
            old.next_if(|before| before.key == change.key);
            changes.push(change.clone());
        }
        changes.extend(old.cloned());
        Layer::new(changes)
    }

    /// Those of a range.
    fn slice(&self, range: &Range) -> &[Change] {
        let from = self.changes.partition_point(|change| *change.key < *range.start);
        let to = match &range.end {
            Some(end) => self.changes.partition_point(|change| *change.key < **end),
            None => self.changes.len(),
        };
        self.changes.get(from..to).unwrap_or_default()
    }
}

/// The two bits of a key in a filter of so many words, which are a power of two.
fn places(hash: u64, words: usize) -> [(usize, u64); 2] {
    let place = |hash: u64| ((hash >> 6) as usize & (words - 1), 1 << (hash & 63));
    [place(hash), place(hash.rotate_left(32))]
}

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Whether it should go to the table.
    pub(super) fn is_much(&self) -> bool {
        let rows: usize = self.layers.iter().map(|layer| layer.changes.len()).sum();
        let bytes: usize = self.layers.iter().map(|layer| layer.bytes).sum();
        rows >= ROWS_MAX || bytes >= BYTES_MAX
    }

    /// This with what an entry wrote over it.
    pub(super) fn with<R>(&self, fresh: Fresh<'_, R>) -> Recent {
        let change = |(key, written): (Arc<[u8]>, Written)| Change { hash: hash_of(&key), key, written };
        let mut layers = self.layers.clone();
        let mut top = Layer::new(fresh.rows.into_iter().map(change).collect());
        while let Some(below) = layers.pop_if(|below| below.changes.len() <= 2 * top.changes.len()) {
            top = below.under(&top);
        }
        layers.push(Arc::new(top));
        Recent { layers }
    }

    /// The commit that wrote a row and its value, or none if it was removed; nothing if the table knows.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<(u64, &[u8])>> {
        if self.layers.is_empty() {
            return None;
        }
        let hash = hash_of(key);
        let written = self.layers.iter().rev().find_map(|layer| layer.get(key, hash))?;
        Some(written.as_ref().map(|(seq, value)| (*seq, &**value)))
    }

    /// The rows of a range that the table has, which are `below`, with these in their place.
    pub(super) fn over<'r, B>(&'r self, range: &Range, below: B) -> Merge<'r, B>
    where
        B: Iterator<Item = Result<Row>>,
    {
        let slices = self.layers.iter().rev().map(|layer| layer.slice(range)).collect();
        Merge { slices, below: below.peekable(), is_reverse: range.reverse }
    }

    /// Writes all of it.
    pub(super) fn write(&self, rows: &mut impl RowsMut) -> Result<()> {
        let mut layers = self.layers.iter().rev();
        let Some(newest) = layers.next() else { return Ok(()) };
        let below = layers
            .fold(None, |above: Option<Layer>, layer| Some(layer.under(above.as_ref().unwrap_or(newest))));
        for change in &below.as_ref().unwrap_or(newest).changes {
            match &change.written {
                Some((seq, value)) => rows.put(&change.key, value, *seq)?,
                None => rows.delete(&change.key)?,
            }
        }
        Ok(())
    }
}

/// Which of two keys a range has first.
fn order(is_reverse: bool, key: &[u8], other: &[u8]) -> Ordering {
    if is_reverse { other.cmp(key) } else { key.cmp(other) }
}

/// Rows of several layers and of the table, in order, each once.
pub(super) struct Merge<'r, B: Iterator> {
    /// What is left of each layer, of the newest first.
    slices: Vec<&'r [Change]>,
    below: Peekable<B>,
    is_reverse: bool,
}

impl<'r, B: Iterator<Item = Result<Row>>> Merge<'r, B> {
    fn first(&self, slice: &'r [Change]) -> Option<&'r Change> {
        if self.is_reverse { slice.last() } else { slice.first() }
    }

    /// The change that comes next: of several of one key the newest.
    fn peek(&self) -> Option<&'r Change> {
        let heads = self.slices.iter().filter_map(|slice| self.first(slice));
        heads.reduce(
            |best, head| if order(self.is_reverse, &head.key, &best.key).is_lt() { head } else { best },
        )
    }

    /// Goes behind a key in every layer.
    fn pass(&mut self, key: &[u8]) {
        for at in 0..self.slices.len() {
            let slice = self.slices[at];
            if self.first(slice).is_some_and(|head| *head.key == *key) {
                let rest = if self.is_reverse { slice.split_last() } else { slice.split_first() };
                self.slices[at] = rest.map_or(&[], |(_, rest)| rest);
            }
        }
    }
}

impl<B: Iterator<Item = Result<Row>>> Iterator for Merge<'_, B> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        loop {
            let Some(change) = self.peek() else { return self.below.next() };
            // A row that cannot be read comes before everything.
            let is_reverse = self.is_reverse;
            let order = self.below.peek().map(|row| {
                row.as_ref().map_or(Ordering::Less, |row| order(is_reverse, &row.key, &change.key))
            });
            match order {
                Some(Ordering::Less) => return self.below.next(),
                Some(Ordering::Equal) => drop(self.below.next()),
                Some(Ordering::Greater) | None => {}
            }
            self.pass(&change.key);
            if let Some((seq, value)) = &change.written {
                return Some(Ok(Row { key: change.key.to_vec(), value: value.to_vec(), seq: *seq }));
            }
        }
    }
}

impl<'v, R> Fresh<'v, R> {
    pub(super) fn over(below: &'v R) -> Fresh<'v, R> {
        Fresh { below, rows: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<R: Rows> Rows for Fresh<'_, R> {
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
        match self.rows.get(key) {
            Some(written) => Ok(read(written.as_ref().map(|(seq, value)| (*seq, &**value)))),
            None => self.below.read(key, read),
        }
    }

    fn count(&self, _: &[u8], _: &[u8], _: usize) -> Result<usize> {
        unreachable!("commits that count rows are done on the table")
    }

    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
        if start >= end {
            return Ok(0);
        }
        let mut sum = self.below.sum(start, end)?;
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        for (key, written) in self.rows.range::<[u8], _>(bounds) {
            let before = self.below.read(key, |row| row.map_or(0, |(_, value)| apply::counted(value)))?;
            sum += written.as_ref().map_or(0, |(_, value)| apply::counted(value)) - before;
        }
        Ok(sum)
    }
}

impl<R: Rows> RowsMut for Fresh<'_, R> {
    fn put(&mut self, key: &[u8], value: &[u8], seq: u64) -> Result<()> {
        self.rows.insert(key.into(), Some((seq, value.into())));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.rows.insert(key.into(), None);
        Ok(())
    }

    fn delete_range(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        unreachable!("commits that remove ranges are done on the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv;

    /// The table, and what everything together must look like.
    struct Plain(BTreeMap<Vec<u8>, (u64, Vec<u8>)>);

    impl Rows for Plain {
        fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
            Ok(read(self.0.get(key).map(|(seq, value)| (*seq, value.as_slice()))))
        }

        fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize> {
            Ok(self.0.range(start.to_vec()..end.to_vec()).take(stop).count())
        }

        fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
            let rows = self.0.range(start.to_vec()..end.to_vec());
            Ok(rows.map(|(_, (_, value))| apply::counted(value)).sum())
        }
    }

    impl RowsMut for Plain {
        fn put(&mut self, key: &[u8], value: &[u8], seq: u64) -> Result<()> {
            self.0.insert(key.to_vec(), (seq, value.to_vec()));
            Ok(())
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            self.0.remove(key);
            Ok(())
        }

        fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
            self.0.retain(|key, _| key.as_slice() < start || key.as_slice() >= end);
            Ok(())
        }
    }

    impl Plain {
        fn rows(&self, range: &Range) -> Vec<Row> {
            let is_in = |key: &[u8]| {
                key >= range.start.as_slice() && range.end.as_deref().is_none_or(|end| key < end)
            };
            let mut rows: Vec<Row> = self
                .0
                .iter()
                .filter(|(key, _)| is_in(key))
                .map(|(key, (seq, value))| Row { key: key.clone(), value: value.clone(), seq: *seq })
                .collect();
            if range.reverse {
                rows.reverse();
            }
            rows
        }
    }

    #[test]
    fn layers_over_a_table_are_like_one_table() {
        let mut state = 11u64;
        let mut roll = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..60 {
            let mut table = Plain(BTreeMap::new());
            for _ in 0..roll(60) {
                table.put(&[roll(40) as u8 + 1], &[0], 1).unwrap();
            }
            let mut truth = Plain(table.0.clone());
            let mut recent = Recent::default();
            for seq in 2..roll(40) + 3 {
                let mut fresh = Fresh::over(&table);
                for _ in 0..roll(6) {
                    let key = [roll(40) as u8 + 1];
                    match roll(3) {
                        0 => {
                            fresh.delete(&key).unwrap();
                            truth.delete(&key).unwrap();
                        }
                        _ => {
                            fresh.put(&key, &[seq as u8], seq).unwrap();
                            truth.put(&key, &[seq as u8], seq).unwrap();
                        }
                    }
                }
                if !fresh.is_empty() {
                    recent = recent.with(fresh);
                }
                assert!(recent.layers.len() < 10, "{} layers", recent.layers.len());
            }
            for key in 0..=42u8 {
                let below = table.0.get([key].as_slice()).map(|(seq, value)| (*seq, value.as_slice()));
                let expected = truth.0.get([key].as_slice()).map(|(seq, value)| (*seq, value.as_slice()));
                assert_eq!(recent.get(&[key]).unwrap_or(below), expected);
            }
            for _ in 0..20 {
                let (start, end) = (roll(44) as u8, roll(44) as u8);
                let mut range = kv::Range::between(&[start], &[end.max(start)], 1);
                range.end = range.end.filter(|_| roll(4) > 0);
                range.reverse = roll(2) == 0;
                let below = table.rows(&range).into_iter().map(Ok);
                let merged: Result<Vec<Row>> = recent.over(&range, below).collect();
                assert_eq!(merged.unwrap(), truth.rows(&range), "{range:?}");
            }
            recent.write(&mut table).unwrap();
            assert_eq!(table.0, truth.0);
        }
    }

    #[test]
    fn a_sum_has_what_the_entry_wrote_and_not_what_that_took_the_place_of() {
        let counter = |sum: i64| sum.to_le_bytes();
        let mut table = Plain(BTreeMap::new());
        table.put(b"a", &counter(100), 1).unwrap();
        for (key, sum) in [(b"b1", 5), (b"b2", -7), (b"b3", 11)] {
            table.put(key, &counter(sum), 1).unwrap();
        }
        let mut fresh = Fresh::over(&table);
        assert_eq!(fresh.sum(b"b", b"c").unwrap(), 9);
        fresh.put(b"b2", &counter(40), 2).unwrap();
        fresh.put(b"b9", &counter(1), 2).unwrap();
        fresh.delete(b"b3").unwrap();
        fresh.put(b"c", &counter(1000), 2).unwrap();
        assert_eq!(fresh.sum(b"b", b"c").unwrap(), 5 + 40 + 1);
        assert_eq!(fresh.sum(b"c", b"b").unwrap(), 0);
    }

    #[test]
    fn it_says_when_it_is_much() {
        let table = Plain(BTreeMap::new());
        let mut recent = Recent::default();
        let mut entries = 0u32;
        while !recent.is_much() {
            let mut fresh = Fresh::over(&table);
            (0..7u32).for_each(|n| fresh.put(&(entries * 7 + n).to_be_bytes(), &[1; 100], 1).unwrap());
            recent = recent.with(fresh);
            entries += 1;
        }
        assert_eq!(entries as usize, ROWS_MAX.div_ceil(7));
        assert!(recent.layers.len() <= 14, "{} layers", recent.layers.len());
    }
}
