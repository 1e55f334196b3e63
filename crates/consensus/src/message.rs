//! Messages between replicas as bytes. The library's own form is not used: its reader follows nested bytes as deep as they go.

use std::fmt;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};
use serde::{Deserialize, Serialize};

use crate::group::FORMER_MAX;

/// Longest message: the largest entry, and what goes with it.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Longest change of a group: a kind, a number and a node.
const CHANGE_BYTES_MAX: usize = 64;

/// What travels from one replica to another, with the group that it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The group in which it was sent.
    pub group: u64,
    /// The groups whose place that one took.
    pub former: Vec<u64>,
    pub(crate) message: Message,
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageError(String);

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a message between replicas: {}", self.0)
    }
}

impl std::error::Error for MessageError {}

/// The fields of a message, in the order in which they travel.
#[derive(Serialize, Deserialize)]
struct Fields {
    group: u64,
    former: Vec<u64>,
    kind: u8,
    to: u64,
    from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<Written>,
    commit: u64,
    commit_term: u64,
    snapshot: Option<Copied>,
    request_snapshot: u64,
    reject: bool,
    reject_hint: u64,
    context: Bytes,
    priority: i64,
}

#[derive(Serialize, Deserialize)]
struct Written {
    is_change: bool,
    term: u64,
    index: u64,
    data: Bytes,
}

/// Where a copy of everything stands.
#[derive(Serialize, Deserialize)]
struct Copied {
    index: u64,
    term: u64,
    voters: Vec<u64>,
    learners: Vec<u64>,
}

/// The kinds that travel, by their numbers.
const KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

impl Envelope {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let message = &self.message;
        let kind = KINDS.iter().position(|kind| *kind == message.msg_type);
        let written = |entry: &Entry| Written {
            is_change: entry.entry_type != EntryType::EntryNormal,
            term: entry.term,
            index: entry.index,
            data: entry.data.clone(),
        };
        let copied = || {
            let metadata = message.get_snapshot().get_metadata();
            let conf = metadata.get_conf_state();
            Copied {
                index: metadata.index,
                term: metadata.term,
                voters: conf.voters.clone(),
                learners: conf.learners.clone(),
            }
        };
        let fields = Fields {
            group: self.group,
            former: self.former.clone(),
            kind: kind.map_or(u8::MAX, |kind| kind as u8),
            to: message.to,
            from: message.from,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            entries: message.entries.iter().map(written).collect(),
            commit: message.commit,
            commit_term: message.commit_term,
            snapshot: (message.msg_type == MessageType::MsgSnapshot).then(copied),
            request_snapshot: message.request_snapshot,
            reject: message.reject,
            reject_hint: message.reject_hint,
            context: message.context.clone(),
            priority: message.priority,
        };
        postcard::to_stdvec(&fields).expect("plain data encodes")
    }

    /// Reads one, whatever bytes these are.
    pub fn decode(bytes: &[u8]) -> Result<Envelope, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError(format!("{} bytes are too many", bytes.len())));
        }
        let fields: Fields = match postcard::take_from_bytes(bytes) {
            Ok((fields, [])) => fields,
            Ok((_, rest)) => return Err(MessageError(format!("{} bytes are behind it", rest.len()))),
            Err(fault) => return Err(MessageError(fault.to_string())),
        };
        let Some(kind) = KINDS.get(usize::from(fields.kind)) else {
            return Err(MessageError(format!("kind {} is not known", fields.kind)));
        };
        if fields.former.len() > FORMER_MAX {
            return Err(MessageError(format!("a group that took the place of {}", fields.former.len())));
        }
        let follow = fields.entries.iter().zip(fields.index + 1..).all(|(entry, index)| entry.index == index);
        if !follow {
            return Err(MessageError("its entries do not follow each other".into()));
        }
        // The library reads changes of the group in its own form, whose nested bytes it follows as deep as they go.
        let is_short = |entry: &Written| !entry.is_change || entry.data.len() <= CHANGE_BYTES_MAX;
        if !fields.entries.iter().all(is_short) {
            return Err(MessageError("a change of the group that is too long".into()));
        }
        let mut message = Message {
            msg_type: *kind,
            to: fields.to,
            from: fields.from,
            term: fields.term,
            log_term: fields.log_term,
            index: fields.index,
            entries: fields.entries.into_iter().map(entry).collect::<Vec<_>>().into(),
            commit: fields.commit,
            commit_term: fields.commit_term,
            request_snapshot: fields.request_snapshot,
            reject: fields.reject,
            reject_hint: fields.reject_hint,
            context: fields.context,
            priority: fields.priority,
            ..Message::default()
        };
        if let Some(copied) = fields.snapshot {
            let metadata = message.mut_snapshot().mut_metadata();
            (metadata.index, metadata.term) = (copied.index, copied.term);
            *metadata.mut_conf_state() = ConfState::from((copied.voters, copied.learners));
        }
        Ok(Envelope { group: fields.group, former: fields.former, message })
    }

    /// The number of the replica that sent it.
    pub fn from(&self) -> u64 {
        self.message.from
    }

    /// The number of the replica that it is for.
    pub fn to(&self) -> u64 {
        self.message.to
    }

    /// Whether whoever takes it has to write: it carries entries, or a copy of everything.
    pub fn is_written(&self) -> bool {
        !self.message.entries.is_empty() || self.message.msg_type == MessageType::MsgSnapshot
    }

    /// Up to where a leader believes that this replica has entries that are committed, if it says so without any.
    pub fn believed(&self) -> Option<u64> {
        (self.message.msg_type == MessageType::MsgHeartbeat).then_some(self.message.commit)
    }

    /// Whether it says that a copy of everything was sent, and up to where that goes.
    pub fn snapshot(&self) -> Option<crate::Point> {
        let metadata = self.message.get_snapshot().get_metadata();
        let point = crate::Point { index: metadata.index, term: metadata.term };
        (self.message.msg_type == MessageType::MsgSnapshot).then_some(point)
    }
}

fn entry(written: Written) -> Entry {
    Entry {
        entry_type: if written.is_change { EntryType::EntryConfChange } else { EntryType::EntryNormal },
        term: written.term,
        index: written.index,
        data: written.data,
        ..Entry::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read_and_half_of_it_is_nothing() {
        let written = |index| Written { is_change: index == 6, term: 3, index, data: vec![7; 9].into() };
        for kind in KINDS {
            let mut message = Message {
                msg_type: kind,
                to: 1,
                from: 2,
                term: 3,
                index: 4,
                entries: vec![entry(written(5)), entry(written(6))].into(),
                commit: 3,
                reject: true,
                reject_hint: 9,
                context: b"why".as_slice().into(),
                ..Message::default()
            };
            if kind == MessageType::MsgSnapshot {
                let metadata = message.mut_snapshot().mut_metadata();
                (metadata.index, metadata.term) = (8, 2);
                *metadata.mut_conf_state() = ConfState::from((vec![1, 2], vec![3]));
            }
            let sent = Envelope { group: 5, former: vec![3, u64::MAX], message };
            let bytes = sent.encode();
            assert_eq!(Envelope::decode(&bytes).unwrap(), sent);
            for len in 0..bytes.len() {
                assert!(Envelope::decode(&bytes[..len]).is_err());
            }
        }
    }

    #[test]
    fn a_change_of_the_group_is_short() {
        let written = Written { is_change: true, term: 1, index: 1, data: vec![0x0b; 65].into() };
        let entries = vec![entry(written)].into();
        let message = Message { msg_type: MessageType::MsgAppend, entries, ..Message::default() };
        let bytes = Envelope { group: 1, former: Vec::new(), message }.encode();
        assert!(Envelope::decode(&bytes).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn no_group_took_the_place_of_many() {
        let of = |count| Envelope { group: 1, former: vec![2; count], message: Message::default() }.encode();
        assert!(Envelope::decode(&of(FORMER_MAX)).unwrap_err().to_string().contains("kind"));
        assert!(Envelope::decode(&of(FORMER_MAX + 1)).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut state = 1u64;
        for len in 0..2_000usize {
            let bytes: Vec<u8> = (0..len % 80)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 57) as u8
                })
                .collect();
            let _ = Envelope::decode(&bytes);
        }
    }
}
