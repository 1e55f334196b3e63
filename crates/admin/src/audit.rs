//! Who changed what: every changing call and every login, in the log and in a bounded list.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::clock;

/// Entries that are kept in memory; the log has all.
const ENTRIES_MAX: usize = 1_000;
/// Longest text of an entry.
const TEXT_LEN_MAX: usize = 512;

/// One changing call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AuditEntry {
    /// Counts entries since the start.
    pub seq: u64,
    /// When it ended, milliseconds since 1970.
    pub at_ms: u64,
    /// Role of the caller.
    pub role: String,
    /// Where the caller is.
    pub address: String,
    /// How it showed who it is: `token` or `session`.
    pub by: String,
    /// Method and path.
    pub call: String,
    /// What was asked for, cut short if it is long.
    pub request: String,
    /// HTTP status.
    pub status: u16,
    /// Why it was refused; empty if it was not.
    pub error: String,
}

/// The list.
#[derive(Default)]
pub struct Audit {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    seq: u64,
    entries: VecDeque<AuditEntry>,
}

impl Audit {
    /// Adds an entry; time and number are given here.
    pub fn add(&self, mut entry: AuditEntry) {
        entry.at_ms = clock::unix_ms();
        entry.request = cut(entry.request);
        entry.error = cut(entry.error);
        entry.call = cut(entry.call);
        tracing::info!(
            target: "audit",
            role = entry.role,
            address = entry.address,
            by = entry.by,
            call = entry.call,
            request = entry.request,
            status = entry.status,
            error = entry.error,
        );
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.seq += 1;
        entry.seq = kept.seq;
        if kept.entries.len() == ENTRIES_MAX {
            kept.entries.pop_front();
        }
        kept.entries.push_back(entry);
    }

    /// The newest entries, newest first.
    pub fn newest(&self, limit: usize) -> Vec<AuditEntry> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entries.iter().rev().take(limit).cloned().collect()
    }
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_LEN_MAX {
        let end = (0..=TEXT_LEN_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_newest_first() {
        let audit = Audit::default();
        for number in 0..ENTRIES_MAX + 3 {
            audit.add(AuditEntry {
                seq: 0,
                at_ms: 0,
                role: "operator".into(),
                address: "127.0.0.1".into(),
                by: "token".into(),
                call: format!("POST /{number}"),
                request: "ä".repeat(TEXT_LEN_MAX),
                status: 200,
                error: String::new(),
            });
        }
        let newest = audit.newest(usize::MAX);
        assert_eq!((newest.len(), newest[0].seq), (ENTRIES_MAX, ENTRIES_MAX as u64 + 3));
        assert!(newest[0].request.len() <= TEXT_LEN_MAX + '…'.len_utf8() && newest[0].request.ends_with('…'));
        assert_eq!(audit.newest(2).len(), 2);
    }
}
