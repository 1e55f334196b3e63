//! One commit as it is kept in log and tail and sent to standbys. Doing entries in order on equal files leaves
//! equal files.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::ledger::{CommitName, Ledger};
use super::lineage::{Lineage, Position};
use super::standby::Members;
use super::table::Draft;
use crate::engine::apply;
use crate::engine::changes::Changes;
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{COMMIT_WRITES_MAX, Write};
use crate::wire;

/// A commit that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry<'w> {
    pub seq: u64,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    pub change: EntryChange<'w>,
}

/// What it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum EntryChange<'w> {
    /// Writes whose checks held.
    Rows {
        #[serde(deserialize_with = "writes")]
        writes: Cow<'w, [Write]>,
        name: Option<CommitName>,
    },
    /// A client of another node was opened.
    Client(u128),
    /// Who follows, and who of them has everything.
    Members(Members),
}

fn writes<'de, D: Deserializer<'de>>(bytes: D) -> std::result::Result<Cow<'static, [Write]>, D::Error> {
    wire::limited::<_, _, COMMIT_WRITES_MAX>(bytes).map(Cow::Owned)
}

impl Entry<'_> {
    /// As it is kept and sent.
    pub(super) fn encoded(&self) -> (u64, Vec<u8>) {
        (self.seq, wire::encode(self))
    }

    /// Does on a copy what was done on the primary.
    pub(super) fn apply(
        &self,
        draft: &mut Draft<'_>,
        ledger: &mut Ledger<'_>,
        lineage: &mut Lineage,
    ) -> Result<()> {
        match &self.change {
            EntryChange::Rows { writes, name } => {
                let mut changes = Changes::new(writes).map_err(impossible)?;
                apply::sums_resolve(draft, &mut changes).map_err(impossible)?;
                apply::change_all(draft, &changes, self.seq)?;
                name.map_or(Ok(()), |name| ledger.done(&name, self.seq))?;
            }
            EntryChange::Client(client) => ledger.client_open(*client, self.seq)?,
            EntryChange::Members(members) => {
                lineage.members = members.clone();
                lineage.members_at = Position { epoch: self.epoch, seq: self.seq };
            }
        }
        if lineage.epoch() != self.epoch {
            lineage.begin(self.epoch, self.seq - 1);
        }
        Ok(())
    }
}

/// What the primary could do and this copy cannot: they are not the same.
fn impossible(error: CatalogError) -> CatalogError {
    match error.kind {
        ErrorKind::Invalid => CatalogError::corrupt(format!("this copy differs from its primary: {error}")),
        _ => error,
    }
}
