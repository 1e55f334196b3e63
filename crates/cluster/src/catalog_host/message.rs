//! What nodes ask each other about the catalog, beside what the catalog itself sends.

use serde::{Deserialize, Serialize};
use stoker_catalog::Epoch;
use stoker_store::CatalogStatus;

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Which epoch rules? The sender says where it is: after a start, others may know an old place.
    Where { addresses: Vec<String> },
    /// This epoch rules; the sender is there.
    Rules { epoch: Epoch, addresses: Vec<String> },
    /// The sender is about to stop. Asked before it says in its own file that it does not follow any more.
    MayLeave,
    /// It has said so: it is waited for no longer.
    Left,
    /// How it stands with the standbys.
    Status,
    /// Let a standby go for good.
    Detach([u8; 16]),
    /// Have a replica of the catalog's group, and say its number. `base` is what the epochs of the group are counted from.
    Host { incarnation: u64, base: u64 },
    /// The sender wants to lead.
    HandOver,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The highest epoch that the node heard of, where it last saw the node that it belongs to, and the highest commit
    /// that it saw (R9).
    Epoch {
        epoch: Epoch,
        addresses: Vec<String>,
        seq_seen: u64,
    },
    Done,
    Status(CatalogStatus),
    /// Not done, and why.
    No(String),
    /// The number of the replica here.
    Replica(u64),
}

/// Most addresses of a node that are heeded.
pub(crate) const ADDRESSES_MAX: usize = 16;

pub(crate) fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_stdvec(message).expect("plain data encodes")
}

pub(crate) fn decode<'b, M: Deserialize<'b>>(bytes: &'b [u8]) -> Option<M> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
