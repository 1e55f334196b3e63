//! Finds lines, newest first, a page at a time. Works on the files alone: of a node that runs, of one that is stopped, or copies of them.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use crate::line::{Entry, Line, parse};
use crate::segment::{self, Lines};
use crate::time;

/// Most lines of a page.
pub const PAGE_LEN_MAX: usize = 1000;

/// Which lines.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// Their path begins so.
    pub path: Option<String>,
    /// Whoever asked is called so: the whole principal, or its name without its kind.
    pub user: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// Their result begins so.
    pub result: Option<String>,
    /// Through this endpoint.
    pub door: Option<String>,
    /// Not before this time, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Before this time.
    pub to_ms: Option<u64>,
    /// Before this event.
    pub before: Option<u64>,
    /// At most so many; 0 for none.
    pub limit: usize,
}

/// Some lines, newest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Lines.
    pub entries: Vec<Entry>,
    /// Where the next page begins: what [`Query::before`] has to be; none if this is the last.
    pub next: Option<u64>,
}

impl Query {
    fn fits(&self, entry: &Entry) -> bool {
        let event = &entry.event;
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|one| one == found);
        let starts = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|start| found.starts_with(start))
        };
        let name = event.principal.split_once(' ').map_or(event.principal.as_str(), |(_, name)| name);
        let is_user = self.user.as_deref().is_none_or(|user| user == event.principal || user == name);
        let in_time = (self.from_ms, self.to_ms) == (None, None)
            || time::parse(&entry.time).is_some_and(|at_ms| {
                self.from_ms.is_none_or(|from| at_ms >= from) && self.to_ms.is_none_or(|to| at_ms < to)
            });
        is_user
            && in_time
            && starts(&self.path, &event.path)
            && starts(&self.result, &event.result)
            && is(&self.tenant, &event.tenant)
            && is(&self.action, &event.action)
            && is(&self.door, &event.door)
    }

    /// Finds a page in the segments of a directory.
    pub fn run(&self, dir: &Path) -> io::Result<Page> {
        self.run_on(segment::list(dir)?.into_iter().map(|(_, path)| path).collect())
    }

    /// The same in these files, oldest first.
    pub fn run_on(&self, mut files: Vec<PathBuf>) -> io::Result<Page> {
        let limit = self.limit.min(PAGE_LEN_MAX);
        let mut entries: Vec<Entry> = Vec::new();
        let mut newer_begins = None;
        while let Some(path) = files.pop() {
            let begins = match begin(&path) {
                // It was let go of meanwhile.
                Err(fault) if fault.kind() == io::ErrorKind::NotFound => continue,
                begins => begins?,
            };
            let (first, at_ms) = begins;
            let is_later = self.before.is_some_and(|before| first.is_some_and(|first| first >= before))
                || self.to_ms.is_some_and(|to| at_ms.is_some_and(|at| at >= to));
            let is_earlier = self.from_ms.is_some_and(|from| newer_begins.is_some_and(|next| next < from));
            newer_begins = at_ms.or(newer_begins);
            if is_earlier {
                break;
            }
            if is_later {
                continue;
            }
            // One more than fits says that there is another page.
            let found = self.newest(&path, limit + 1 - entries.len())?;
            entries.extend(found.into_iter().rev());
            if entries.len() > limit {
                entries.truncate(limit);
                return Ok(Page { next: entries.last().map(|entry| entry.seq), entries });
            }
        }
        Ok(Page { entries, next: None })
    }

    fn newest(&self, path: &Path, count: usize) -> io::Result<VecDeque<Entry>> {
        let mut found = VecDeque::new();
        let mut lines = Lines::open(path)?;
        while let Some((line, _)) = lines.next_line()? {
            let Some(Line::Entry(entry)) = parse(line) else { continue };
            if self.before.is_some_and(|before| entry.seq >= before) {
                break;
            }
            if self.fits(&entry) {
                found.push_back(entry);
                if found.len() > count {
                    found.pop_front();
                }
            }
        }
        Ok(found)
    }
}

/// The first event of a segment, and when it began.
fn begin(path: &Path) -> io::Result<(Option<u64>, Option<u64>)> {
    let mut lines = Lines::open(path)?;
    Ok(match lines.next_line()?.and_then(|(line, _)| parse(line)) {
        Some(Line::Begin(begin)) => (Some(begin.first), time::parse(&begin.time)),
        _ => (None, None),
    })
}
