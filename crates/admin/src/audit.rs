//! Who changed what: every changing call and every login, in the log and in a bounded list.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::clock;

/// Entries that are kept in memory; the log has all.
const ENTRIES_MAX: usize = 1_000;
/// Of logins that were refused. They have a list of their own: a stranger must not be able to wash out who changed what.
const STRANGERS_MAX: usize = 100;
/// Longest text of an entry.
const TEXT_LEN_MAX: usize = 512;

/// Role of somebody who has none.
pub const STRANGER: &str = "stranger";

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
    strangers: VecDeque<AuditEntry>,
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
        let (list, len_max) = match entry.role == STRANGER {
            true => (&mut kept.strangers, STRANGERS_MAX),
            false => (&mut kept.entries, ENTRIES_MAX),
        };
        if list.len() == len_max {
            list.pop_front();
        }
        list.push_back(entry);
    }

    /// The newest entries, newest first.
    pub fn newest(&self, limit: usize) -> Vec<AuditEntry> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&AuditEntry> = kept.entries.iter().chain(&kept.strangers).collect();
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.seq));
        all.into_iter().take(limit).cloned().collect()
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

    fn entry(role: &str, call: String) -> AuditEntry {
        AuditEntry {
            seq: 0,
            at_ms: 0,
            role: role.into(),
            address: "127.0.0.1".into(),
            by: "token".into(),
            call,
            request: "ä".repeat(TEXT_LEN_MAX),
            status: 200,
            error: String::new(),
        }
    }

    #[test]
    fn the_list_is_bounded_and_newest_first() {
        let audit = Audit::default();
        for number in 0..ENTRIES_MAX + 3 {
            audit.add(entry("operator", format!("POST /{number}")));
        }
        let newest = audit.newest(usize::MAX);
        assert_eq!((newest.len(), newest[0].seq), (ENTRIES_MAX, ENTRIES_MAX as u64 + 3));
        assert!(newest[0].request.len() <= TEXT_LEN_MAX + '…'.len_utf8() && newest[0].request.ends_with('…'));
        assert_eq!(audit.newest(2).len(), 2);
    }

    #[test]
    fn strangers_do_not_wash_out_who_changed_what() {
        let audit = Audit::default();
        audit.add(entry("operator", "POST /change".into()));
        for _ in 0..2 * ENTRIES_MAX {
            audit.add(entry(STRANGER, "POST /api/v1/session".into()));
        }
        audit.add(entry("view", "POST /refused".into()));
        let newest = audit.newest(usize::MAX);
        assert_eq!(newest.len(), STRANGERS_MAX + 2);
        assert_eq!(newest[0].call, "POST /refused");
        assert_eq!(newest.last().unwrap().call, "POST /change");
        assert!(newest.windows(2).all(|pair| pair[0].seq > pair[1].seq));
    }
}
