//! What is due of a listing of versions, line by line.

use super::{Calendar, Lifecycle, Object, Rule};

/// A line of a listing: keys in their order, of one key the latest version first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'l> {
    /// The version. A marker is empty and has no tags.
    pub object: Object<'l>,
    /// It says that its key was deleted.
    pub is_marker: bool,
    /// It is what its key shows, or hides by.
    pub is_latest: bool,
}

/// What is done with a version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// The key is deleted: where versions are kept, a marker says so.
    Expire,
    /// The former version goes for good.
    Remove,
    /// The marker goes, behind which nothing is.
    Unmark,
}

/// What is to be done, with what the caller gave to know the version by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision<T> {
    /// What.
    pub act: Act,
    /// Name of the rule that says so.
    pub rule: String,
    /// The version.
    pub what: T,
}

/// The key whose versions are passing.
struct Passing<T> {
    key: Vec<u8>,
    /// When the version came that passed last: the next one is a former one since then. None if that is not known.
    since_ms: Option<u64>,
    /// Former versions that passed.
    former: u32,
    /// The latest version is a marker, and nothing behind it passed yet.
    marker: Option<(u64, T)>,
}

/// Decides about the lines of a listing, in whatever pages they come. Begins at the first line of a key.
pub struct Scan<T> {
    passing: Option<Passing<T>>,
}

impl<T> Default for Scan<T> {
    fn default() -> Scan<T> {
        Scan { passing: None }
    }
}

impl<T> Scan<T> {
    /// The key that may have more lines: whoever begins anew does so with it.
    pub fn key(&self) -> Option<&[u8]> {
        self.passing.as_ref().map(|passing| &passing.key[..])
    }

    /// The next line; adds what is to be done.
    pub fn line(
        &mut self,
        rules: &Lifecycle,
        (calendar, now_ms): (Calendar, u64),
        line: Line<'_>,
        what: T,
        out: &mut Vec<Decision<T>>,
    ) {
        let object = &line.object;
        if self.key() != Some(object.key) {
            self.end(rules, (calendar, now_ms), out);
            let (key, since_ms) = (object.key.to_vec(), line.is_latest.then_some(object.modified_ms));
            let mut passing = Passing { key, since_ms, former: 0, marker: None };
            if line.is_latest && line.is_marker {
                passing.marker = Some((object.modified_ms, what));
            } else if line.is_latest
                && let Some((at_ms, rule)) = rules.expires(object, calendar)
                && at_ms <= now_ms
            {
                out.push(Decision { act: Act::Expire, rule: rule.id.clone(), what });
            }
            self.passing = Some(passing);
            return;
        }
        let Some(passing) = &mut self.passing else { return };
        passing.marker = None;
        let is_due = |rule: &&Rule| {
            let Some((former, since_ms)) = rule.former.zip(passing.since_ms) else { return false };
            passing.former >= former.newer
                && rule.removes(object, line.is_marker, since_ms, (calendar, now_ms))
        };
        // One that is latest beside another one is there because somebody writes: the next pass sees what it is.
        if !line.is_latest
            && let Some(rule) = rules.enabled().find(is_due)
        {
            out.push(Decision { act: Act::Remove, rule: rule.id.clone(), what });
        }
        passing.former = passing.former.saturating_add(1);
        passing.since_ms = Some(object.modified_ms);
    }

    /// The key that passed has no more lines; adds what is to be done.
    pub fn end(
        &mut self,
        rules: &Lifecycle,
        (calendar, now_ms): (Calendar, u64),
        out: &mut Vec<Decision<T>>,
    ) {
        let Some(Passing { key, marker: Some((since_ms, what)), .. }) = self.passing.take() else { return };
        let is_due =
            |rule: &&Rule| rule.lone_marker_ms(&key, since_ms, calendar).is_some_and(|at_ms| at_ms <= now_ms);
        if let Some(rule) = rules.enabled().find(is_due) {
            out.push(Decision { act: Act::Unmark, rule: rule.id.clone(), what });
        }
    }
}
