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
    Rows(#[serde(deserialize_with = "crate::wire::limited::<_, _, GET_KEYS_MAX>")] Vec<Option<(u64, Vec<u8>)>>),
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
