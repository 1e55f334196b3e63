//! The writes of a commit, brought into a form in which their order no longer matters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::error::{CatalogError, Result};
use crate::kv::Write;

/// What a commit does: first the ranges go, then each key gets its one change, in key order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes<'w> {
    /// Ranges to delete, none of them empty.
    pub ranges: Vec<(&'w [u8], &'w [u8])>,
    /// What happens to single rows, after the ranges are gone.
    pub keys: BTreeMap<&'w [u8], Change<'w>>,
}

/// What happens to one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change<'w> {
    /// It gets this value.
    Put(Cow<'w, [u8]>),
    /// It goes.
    Delete,
    /// Its stored counter is raised; no range of the same commit holds this row.
    Add(i64),
}

impl<'w> Changes<'w> {
    /// Fails if a sum is not possible, as far as the writes alone can tell.
    pub(crate) fn new(writes: &'w [Write]) -> Result<Changes<'w>> {
        let mut changes = Changes::default();
        // A later write can make good what an earlier one spoilt, so only what is left in the end counts.
        let mut bad: BTreeMap<&[u8], CatalogError> = BTreeMap::new();
        for write in writes {
            match write {
                Write::Put(key, value) => {
                    bad.remove(key.as_slice());
                    changes.keys.insert(key, Change::Put(Cow::Borrowed(value)));
                }
                Write::Delete(key) => {
                    bad.remove(key.as_slice());
                    changes.keys.insert(key, Change::Delete);
                }
                Write::DeleteRange(start, end) if start < end => {
                    bad.retain(|key, _| *key < start.as_slice() || *key >= end.as_slice());
                    changes.delete_range(start, end);
                }
                Write::DeleteRange(..) => {}
                Write::Add(key, delta) => {
                    if let Err(error) = changes.add(key, *delta) {
                        bad.insert(key, error);
                    }
                }
            }
        }
        match bad.into_values().next() {
            Some(error) => Err(error),
            None => Ok(changes),
        }
    }

    fn delete_range(&mut self, start: &'w [u8], end: &'w [u8]) {
        let inside = self.keys.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        let inside: Vec<&[u8]> = inside.map(|(key, _)| *key).collect();
        for key in inside {
            self.keys.remove(key);
        }
        self.ranges.push((start, end));
    }

    /// Leaves the change of a row as it is if this sum is not possible.
    fn add(&mut self, key: &'w [u8], delta: i64) -> Result<()> {
        let put = |sum: i64| Change::Put(Cow::Owned(sum.to_le_bytes().to_vec()));
        let change = match self.keys.get(key) {
            Some(Change::Put(value)) => put(sum(Some(value), delta)?),
            Some(Change::Delete) => put(delta),
            Some(Change::Add(earlier)) => Change::Add(total(*earlier, delta)?),
            None if self.ranges.iter().any(|(start, end)| *start <= key && key < *end) => put(delta),
            None => Change::Add(delta),
        };
        self.keys.insert(key, change);
        Ok(())
    }
}

/// The value of a counter plus `delta`; a missing one is 0.
pub(crate) fn sum(value: Option<&[u8]>, delta: i64) -> Result<i64> {
    let before = match value {
        None => 0,
        Some(bytes) => i64::from_le_bytes(bytes.try_into().map_err(|_| {
            CatalogError::invalid(format!("cannot add to a value of {} bytes; a counter has 8", bytes.len()))
        })?),
    };
    total(before, delta)
}

fn total(before: i64, delta: i64) -> Result<i64> {
    before.checked_add(delta).ok_or_else(|| {
        CatalogError::invalid(format!("adding {delta} to a counter of {before} leaves the range of an i64"))
    })
}
