//! Random commits on an engine and on a plain map must do the same.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stoker_catalog::{Catalog, Check, Commit, ErrorKind, Outcome, Range, Row, Write};

use crate::fixture::{Fixture, all, full};

/// The obvious implementation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub rows: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
}

impl Model {
    fn holds(&self, check: &Check) -> bool {
        match check {
            Check::Absent(key) => !self.rows.contains_key(key),
            Check::Present(key) => self.rows.contains_key(key),
            Check::Seq(key, seq) => self.rows.get(key).is_some_and(|(_, found)| found == seq),
            Check::Value(key, value) => self.rows.get(key).is_some_and(|(found, _)| found == value),
            Check::AtMost { start, end, max } => {
                self.rows.keys().filter(|key| *start <= **key && **key < *end).count() <= *max
            }
            Check::SumAtMost { start, end, max } => {
                let counters = self.rows.iter().filter(|(key, _)| *start <= **key && **key < *end);
                let counters = counters.filter_map(|(_, (value, _))| value.as_slice().try_into().ok());
                counters.map(|value| i128::from(i64::from_le_bytes(value))).sum::<i128>() <= i128::from(*max)
            }
        }
    }

    /// The index of the first check that does not hold.
    pub fn failed(&self, checks: &[Check]) -> Option<usize> {
        checks.iter().position(|check| !self.holds(check))
    }

    /// Does the writes, or nothing and `None` if a sum is not possible and no later write covers it.
    pub fn write(&mut self, writes: &[Write], seq: u64) -> Option<()> {
        let mut next = self.rows.clone();
        let mut bad = BTreeSet::new();
        for write in writes {
            match write {
                Write::Put(key, value) => {
                    bad.remove(key);
                    next.insert(key.clone(), (value.clone(), seq));
                }
                Write::Delete(key) => {
                    bad.remove(key);
                    next.remove(key);
                }
                Write::DeleteRange(start, end) => {
                    let outside = |key: &Vec<u8>| key < start || key >= end;
                    bad.retain(outside);
                    next.retain(|key, _| outside(key));
                }
                Write::Add(key, delta) => {
                    let before = match next.get(key) {
                        Some((value, _)) => value.as_slice().try_into().ok().map(i64::from_le_bytes),
                        None => Some(0),
                    };
                    match before.and_then(|before| before.checked_add(*delta)) {
                        Some(sum) => {
                            next.insert(key.clone(), (sum.to_le_bytes().to_vec(), seq));
                        }
                        None => {
                            bad.insert(key.clone());
                        }
                    }
                }
            }
        }
        if !bad.is_empty() {
            return None;
        }
        self.rows = next;
        Some(())
    }

    /// The rows of a range, all of them.
    pub fn range(&self, range: &Range) -> Vec<Row> {
        let end = |key: &Vec<u8>| range.end.as_ref().is_none_or(|end| key < end);
        let inside = self.rows.iter().filter(|(key, _)| range.start <= **key && end(key));
        let mut rows: Vec<Row> = inside
            .map(|(key, (value, seq))| Row { key: key.clone(), value: value.clone(), seq: *seq })
            .collect();
        if range.reverse {
            rows.reverse();
        }
        rows
    }
}

/// Short keys of few, nasty bytes, so that they collide and are prefixes of each other.
fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xfe), Just(0xff)], 1..4)
}

fn bound() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => key(), 1 => Just(vec![])]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_le_bytes().to_vec()),
        (0i64..3).prop_map(|n| n.to_le_bytes().to_vec()),
        vec(any::<u8>(), 0..12),
    ]
}

/// A check of which some part comes from the state, so that it has a chance to hold.
fn check() -> impl Strategy<Value = (u8, Vec<u8>, Vec<u8>, Vec<u8>, usize)> {
    (0u8..7, key(), bound(), value(), 0usize..12)
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Write::Put(key, value)),
        2 => key().prop_map(Write::Delete),
        1 => (bound(), bound()).prop_map(|(start, end)| Write::DeleteRange(start, end)),
        2 => (key(), -3i64..4).prop_map(|(key, delta)| Write::Add(key, delta)),
    ]
}

fn range() -> impl Strategy<Value = Range> {
    (bound(), proptest::option::of(bound()), 1usize..9, any::<bool>())
        .prop_map(|(start, end, limit, reverse)| Range { start, end, limit, reverse })
}

type RawCheck = (u8, Vec<u8>, Vec<u8>, Vec<u8>, usize);

fn checks(model: &Model, raw: &[RawCheck]) -> Vec<Check> {
    let made = raw.iter().map(|(kind, key, bound, value, max)| match (kind, model.rows.get(key)) {
        (0, _) => Check::Absent(key.clone()),
        (1, _) => Check::Present(key.clone()),
        (2, Some((_, seq))) => Check::Seq(key.clone(), *seq),
        (2, None) => Check::Seq(key.clone(), 1),
        (3, Some((found, _))) => Check::Value(key.clone(), found.clone()),
        (3, None) | (4, _) => Check::Value(key.clone(), value.clone()),
        (5, Some((_, seq))) => Check::Seq(key.clone(), seq - 1),
        (6, _) if value.len() == 8 => {
            let max = i64::from_le_bytes(value.as_slice().try_into().unwrap());
            Check::SumAtMost { start: bound.clone(), end: key.clone(), max }
        }
        _ => Check::AtMost { start: bound.clone(), end: key.clone(), max: *max },
    });
    made.collect()
}

async fn compare(catalog: &dyn Catalog, model: &mut Model, raw: &[RawCheck], writes: Vec<Write>) {
    let commit = Commit { checks: checks(model, raw), writes };
    let result = catalog.commit(commit.clone()).await;
    // A sum that is bad whatever is stored makes a commit bad, not its checks.
    if Model::default().write(&commit.writes, 1).is_none() {
        assert_eq!(result.unwrap_err().kind, ErrorKind::Invalid, "{commit:?}");
        return;
    }
    if let Some(check) = model.failed(&commit.checks) {
        assert_eq!(result.unwrap(), Outcome::Failed { check }, "{commit:?} on {model:?}");
        return;
    }
    match result {
        Ok(Outcome::Done { seq }) => {
            assert!(model.rows.values().all(|(_, older)| *older < seq || commit.writes.is_empty()));
            assert_eq!(model.write(&commit.writes, seq), Some(()), "{commit:?} on {model:?}");
        }
        Ok(Outcome::Failed { check }) => panic!("check {check} of {commit:?} failed on {model:?}"),
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
            assert_eq!(model.clone().write(&commit.writes, 1), None, "{commit:?} on {model:?}");
        }
    }
}

pub async fn random_commits_like_the_model(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let (runs, length) = if full() { (200, 60) } else { (16, 25) };
    let commits = vec((vec(check(), 0..3), vec(write(), 0..6)), length);
    let history = (commits, vec(range(), 12), vec(key(), 8));
    for run in 0..runs {
        let mut seed = [0; 32];
        seed[0] = run;
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let (commits, ranges, keys) =
            history.new_tree(&mut TestRunner::new_with_rng(Config::default(), rng)).unwrap().current();
        let mut model = Model::default();
        for (raw, writes) in commits {
            compare(catalog, &mut model, &raw, writes).await;
        }
        for range in ranges {
            let expected = model.range(&range);
            let page = catalog.range(range.clone()).await.unwrap();
            assert_eq!(page.rows, expected[..expected.len().min(range.limit)], "{range:?}");
            assert_eq!(page.more, expected.len() > range.limit, "{range:?}");
            assert_eq!(all(catalog, range.clone()).await, expected, "{range:?}");
        }
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = catalog.get(&keys).await.unwrap();
        for (key, row) in keys.iter().zip(found) {
            let expected = model.rows.get(*key).map(|(value, seq)| (key.to_vec(), value.clone(), *seq));
            assert_eq!(row.map(|row| (row.key, row.value, row.seq)), expected);
        }
        let everything = Commit::new().delete_range("", vec![255; 8]);
        assert!(matches!(catalog.commit(everything).await.unwrap(), Outcome::Done { .. }));
        assert_eq!(all(catalog, Range::prefix(b"", 9)).await, []);
    }
}
