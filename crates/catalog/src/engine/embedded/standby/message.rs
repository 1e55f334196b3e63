//! What a primary says to a standby, and what it hears back.

use serde::{Deserialize, Serialize};

use super::Members;
use crate::engine::embedded::lineage::{Lineage, Position};
use crate::engine::embedded::pieces::Piece;
use crate::epoch::Epoch;
use crate::error::CatalogError;
use crate::wire::Blob;

/// Most commits of one message.
pub(in super::super) const APPEND_COMMITS_MAX: usize = 1 << 14;
/// A message takes no more commits once it has this many bytes.
pub(in super::super) const APPEND_BYTES: usize = 4 << 20;

/// A request to a standby.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct ToStandby {
    /// The epoch of whoever asks. A standby that heard of a higher one refuses.
    pub epoch: Epoch,
    pub ask: StandbyAsk,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum StandbyAsk {
    /// How far it is; whoever asks, and without a promise.
    Look,
    /// How far it is. Also promises to take nothing from a lower epoch any more.
    State,
    /// Commits that follow `prev`.
    Append {
        prev: Position,
        #[serde(deserialize_with = "crate::wire::limited::<_, _, APPEND_COMMITS_MAX>")]
        entries: Vec<Blob>,
    },
    /// A snapshot of a whole catalog begins.
    SnapshotBegin(SnapshotHead),
    /// The next piece of it.
    SnapshotPiece { id: u64, index: u64, piece: Piece },
    /// It is complete; it takes the place of what the standby had.
    SnapshotEnd { id: u64, pieces: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct SnapshotHead {
    pub id: u64,
    pub seq: u64,
    pub lineage: Lineage,
    /// The standby has commits that the primary does not have; they are put aside.
    pub diverged: bool,
}

/// What a standby says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum FromStandby {
    /// How far it is, after what was asked, if that could be done.
    State(StandbyState),
    /// It heard of a higher epoch than that of the request.
    Fenced(Epoch),
    /// It cannot take this snapshot further; begin a new one.
    SnapshotLost,
    Failed(CatalogError),
}

/// How far a standby is; all of it durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct StandbyState {
    pub position: Position,
    pub members: Members,
    pub members_at: Position,
}
