//! What replicas say to each other beside what the group's library says, which travels as letters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stoker_consensus::{FORMER_MAX, Group, Member, REPLICAS_MAX};
use stoker_format::NodeId;

use super::incoming::Head;
use crate::engine::embedded::pieces::Piece;
use crate::error::CatalogError;
use crate::wire::Blob;

/// Most letters of one message.
pub(super) const LETTERS_MAX: usize = 1024;

/// A request to a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ToReplica {
    /// Messages of the group's library, in their order.
    Letters(#[serde(deserialize_with = "crate::wire::limited::<_, _, LETTERS_MAX>")] Vec<Blob>),
    /// A copy of everything begins.
    CopyBegin(Head),
    /// The next piece of it.
    CopyPiece { copy: u64, index: u64, piece: Piece },
    /// It is complete.
    CopyEnd { copy: u64, pieces: u64 },
}

/// What it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum FromReplica {
    Done,
    /// It cannot take this copy further; begin a new one.
    CopyLost,
    Failed(CatalogError),
}

/// A group as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Members {
    id: u64,
    #[serde(deserialize_with = "crate::wire::limited::<_, _, FORMER_MAX>")]
    former: Vec<u64>,
    incarnation: u64,
    #[serde(deserialize_with = "crate::wire::limited::<_, _, REPLICAS_MAX>")]
    members: Vec<(u64, [u8; 16], bool)>,
}

impl Members {
    /// Whether a replica of this group may become one of these.
    pub(super) fn may_replace(&self, group: u64) -> bool {
        group == 0 || group == self.id || self.former.contains(&group)
    }

    pub(super) fn of(group: &Group) -> Members {
        let members = group.members.iter().map(|(id, member)| (*id, member.node.0, member.votes));
        let Group { id, former, incarnation, .. } = group;
        Members { id: *id, former: former.clone(), incarnation: *incarnation, members: members.collect() }
    }

    pub(super) fn group(self) -> Group {
        let member = |(id, node, votes)| (id, Member { node: NodeId(node), votes });
        let members: BTreeMap<u64, Member> = self.members.into_iter().map(member).collect();
        Group { id: self.id, former: self.former, incarnation: self.incarnation, members }
    }
}
