//! What an entry of the log says: commits that were proposed together. Whether their checks hold is found out when the entry is done, which
//! every replica does in the same order on the same rows.

use std::borrow::Cow;

use redb::WriteTransaction;
use serde::{Deserialize, Deserializer, Serialize};

use crate::engine::apply::RowsMut;
use crate::engine::embedded::execute::{opened, run, run_once};
use crate::engine::embedded::ledger::CommitName;
use crate::engine::embedded::table::Draft;
use crate::engine::embedded::writer::Answer;
use crate::error::Result;
use crate::kv::{Check, Commit, Outcome, Write};
use crate::wire;

/// Most commits of one entry.
pub(super) const WORKS_MAX: usize = 4096;

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Work<'w> {
    Commit(#[serde(deserialize_with = "owned")] Cow<'w, Commit>, Option<CommitName>),
    /// Makes a client known, whose commits have names.
    ClientOpen(u128),
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Batch<'w> {
    #[serde(deserialize_with = "crate::wire::limited::<_, _, WORKS_MAX>")]
    pub works: Vec<Work<'w>>,
}

fn owned<'de, D: Deserializer<'de>>(bytes: D) -> std::result::Result<Cow<'static, Commit>, D::Error> {
    Commit::deserialize(bytes).map(Cow::Owned)
}

impl<'w> Batch<'w> {
    /// Its bytes, which are about as many.
    pub(super) fn encode(&self, bytes: usize) -> Vec<u8> {
        wire::encode_large(self, bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Batch<'static>> {
        wire::decode(bytes)
    }
}

/// Does these works, behind commit `seq`; gives how each of them ended. An error is one of the store, not of a commit.
pub(super) fn run_all<'w>(
    works: impl ExactSizeIterator<Item = Work<'w>>,
    transaction: &WriteTransaction,
    seq: &mut u64,
) -> Result<Vec<Answer>> {
    let mut draft = Draft::open(transaction)?;
    let mut ledger = None;
    let mut answers = Vec::with_capacity(works.len());
    for work in works {
        answers.push(match work {
            Work::Commit(commit, None) => run(&mut draft, &commit, seq)?.map(Some),
            Work::Commit(commit, Some(name)) => {
                run_once(&mut draft, opened(&mut ledger, transaction)?, &commit, &name, seq)?
            }
            Work::ClientOpen(client) => {
                *seq += 1;
                opened(&mut ledger, transaction)?.client_open(client, *seq)?;
                Ok(Some(Outcome::Done { seq: *seq }))
            }
        });
    }
    Ok(answers)
}

/// The same on rows that are not those of a transaction, for works that are all [light](Work::is_light).
pub(super) fn run_light<'w>(
    works: impl ExactSizeIterator<Item = Work<'w>>,
    rows: &mut impl RowsMut,
    seq: &mut u64,
) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(works.len());
    for work in works {
        let Work::Commit(commit, None) = work else { unreachable!("looked at before") };
        answers.push(run(rows, &commit, seq)?.map(Some));
    }
    Ok(answers)
}

impl Work<'_> {
    /// Whether it reads and writes single rows alone, and has no name to be remembered.
    pub(super) fn is_light(&self) -> bool {
        let Work::Commit(commit, None) = self else { return false };
        !commit.checks.iter().any(|check| matches!(check, Check::AtMost { .. }))
            && !commit.writes.iter().any(|write| matches!(write, Write::DeleteRange(..)))
    }

    /// The same, lent.
    pub(super) fn lent(&self) -> Work<'_> {
        match self {
            Work::Commit(commit, name) => Work::Commit(Cow::Borrowed(commit), *name),
            Work::ClientOpen(client) => Work::ClientOpen(*client),
        }
    }
}
