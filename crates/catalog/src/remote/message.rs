//! What a client asks a server, and what it hears back.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::error::CatalogError;
use crate::kv::{Commit, GET_KEYS_MAX, Outcome, Page, Range};

/// Most prefixes that one client watches.
pub(super) const PREFIXES_MAX: usize = 4096;

/// A request; the body is borrowed where it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Request<A> {
    /// The highest epoch that the client saw.
    pub seen: Epoch,
    pub ask: A,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Ask {
    Get(#[serde(deserialize_with = "crate::wire::limited::<_, _, GET_KEYS_MAX>")] Vec<Vec<u8>>),
    Range(Range),
    Seq,
    NowMs,
    /// Opens a session for the commits of a client.
    Open {
        client: u128,
    },
    Commit(NamedCommit),
    /// Watches these prefixes and no others. A new generation forgets what was watched before.
    Arm {
        client: u128,
        generation: u64,
        #[serde(deserialize_with = "crate::wire::limited::<_, _, PREFIXES_MAX>")]
        prefixes: Vec<Vec<u8>>,
    },
    /// Waits until something changed, but not for ever.
    Poll {
        client: u128,
        generation: u64,
    },
}

/// A commit, who sends it, and to whom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NamedCommit {
    /// The epoch that is to do it.
    pub to: Epoch,
    pub session: u64,
    pub client: u128,
    pub number: u64,
    /// The client waits for no number below this one.
    pub floor: u64,
    pub commit: Commit,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The epoch of the server.
    pub epoch: Epoch,
    pub said: Said,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Said {
    /// Number and value of each row that there is.
    Rows(
        #[serde(deserialize_with = "crate::wire::limited::<_, _, GET_KEYS_MAX>")] Vec<Option<(u64, Vec<u8>)>>,
    ),
    Page(Page),
    Number(u64),
    Opened {
        session: u64,
        /// Whoever serves after this server knows what it did.
        lasting: bool,
    },
    Outcome(Outcome),
    /// The commit was for another epoch and did not happen.
    OtherEpoch,
    /// The session is not there, and the commit did not happen now.
    SessionGone,
    /// The client is not known any more; what became of its commits is not known.
    ClientGone,
    Armed,
    /// What may have changed.
    Changed(#[serde(deserialize_with = "crate::wire::limited::<_, _, PREFIXES_MAX>")] Vec<Vec<u8>>),
    /// These prefixes are not watched.
    Unarmed,
    Failed(CatalogError),
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::kv::{COMMIT_WRITES_MAX, Check, Write};
    use crate::wire;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>(), 0..20)
    }

    fn commit() -> impl Strategy<Value = Commit> {
        let check = prop_oneof![
            bytes().prop_map(Check::Absent),
            (bytes(), any::<u64>()).prop_map(|(key, seq)| Check::Seq(key, seq)),
            (bytes(), bytes(), any::<u32>()).prop_map(|(start, end, max)| Check::AtMost {
                start,
                end,
                max: max as usize
            }),
            (bytes(), bytes(), any::<i64>()).prop_map(|(start, end, max)| Check::SumAtMost {
                start,
                end,
                max
            }),
        ];
        let write = prop_oneof![
            (bytes(), bytes()).prop_map(|(key, value)| Write::Put(key, value)),
            (bytes(), any::<i64>()).prop_map(|(key, delta)| Write::Add(key, delta)),
            (bytes(), bytes()).prop_map(|(start, end)| Write::DeleteRange(start, end)),
        ];
        (vec(check, 0..5), vec(write, 0..5)).prop_map(|(checks, writes)| Commit { checks, writes })
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(commit in commit(), numbers in any::<(u64, u128, u64, u64)>()) {
            let (session, client, number, floor) = numbers;
            let named = NamedCommit { to: Epoch::default(), session, client, number, floor, commit };
            let ask = Ask::Commit(named);
            let sent = wire::encode(&Request { seen: Epoch::default(), ask: &ask });
            prop_assert_eq!(wire::decode::<Request<Ask>>(&sent).unwrap().ask, ask);
            // Half of a message is none.
            for length in 0..sent.len() {
                prop_assert!(wire::decode::<Request<Ask>>(&sent[..length]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..200), version in any::<bool>()) {
            if let (Some(first), true) = (bytes.first_mut(), version) {
                *first = 1;
            }
            let _ = wire::decode::<Request<Ask>>(&bytes);
            let _ = wire::decode::<Answer>(&bytes);
        }
    }

    #[test]
    fn lists_are_limited_before_they_take_memory() {
        let deletes = vec![Write::Delete(vec![]); COMMIT_WRITES_MAX + 1];
        let sent = wire::encode(&Commit { checks: vec![], writes: deletes });
        assert!(wire::decode::<Commit>(&sent).unwrap_err().message.contains("cannot be read"));
        let fits = Commit { checks: vec![], writes: vec![Write::Delete(vec![]); COMMIT_WRITES_MAX] };
        assert_eq!(wire::decode::<Commit>(&wire::encode(&fits)).unwrap(), fits);
    }
}
