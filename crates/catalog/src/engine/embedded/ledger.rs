//! Commits that have names, so that one which is sent twice is done once.
//!
//! A client of another node numbers its commits and says below which number it waits for nothing any more.
//! What was done is remembered in the transaction that did it, and goes to the standbys with it: whoever
//! serves next can tell a commit that happened from one that did not. What was refused needs no memory here,
//! since trying it again is as good as the first try.

use redb::{ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::file::failed;
use crate::error::Result;

/// Client -> the commit that opened it.
pub(super) const CLIENTS: TableDefinition<'static, u128, u64> = TableDefinition::new("client");
/// Client and number -> the commit that it became.
pub(super) const ANSWERS: TableDefinition<'static, (u128, u64), u64> = TableDefinition::new("answer");

/// Most clients that are remembered; above this the one that was opened first goes.
const CLIENTS_MAX: u64 = 1024;

/// The name of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommitName {
    /// Who sends it.
    pub client: u128,
    /// Its number among the commits of this client.
    pub number: u64,
    /// The client waits for no commit below this number.
    pub floor: u64,
}

/// What is known of a name.
pub(super) enum Found {
    /// The client is not known, or not any more, so nothing is known of its commits.
    Stranger,
    /// It is done.
    Done { seq: u64 },
    /// It did not happen.
    New,
}

/// The names inside a write transaction.
pub(super) struct Ledger<'t> {
    clients: Table<'t, u128, u64>,
    answers: Table<'t, (u128, u64), u64>,
}

impl<'t> Ledger<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Ledger<'t>> {
        let clients = transaction.open_table(CLIENTS).map_err(failed)?;
        let answers = transaction.open_table(ANSWERS).map_err(failed)?;
        Ok(Ledger { clients, answers })
    }

    pub(super) fn find(&self, name: &CommitName) -> Result<Found> {
        if self.clients.get(name.client).map_err(failed)?.is_none() {
            return Ok(Found::Stranger);
        }
        let answer = self.answers.get((name.client, name.number)).map_err(failed)?;
        Ok(answer.map_or(Found::New, |seq| Found::Done { seq: seq.value() }))
    }

    /// Remembers that a name became this commit, and forgets what its client does not ask for any more.
    pub(super) fn done(&mut self, name: &CommitName, seq: u64) -> Result<()> {
        let old = (name.client, 0)..(name.client, name.floor);
        self.answers.retain_in(old, |_, _| false).map_err(failed)?;
        self.answers.insert((name.client, name.number), seq).map_err(failed)?;
        Ok(())
    }

    /// Makes a client known. The same on every copy of the catalog, for it depends on nothing else.
    pub(super) fn client_open(&mut self, client: u128, seq: u64) -> Result<()> {
        self.clients.insert(client, seq).map_err(failed)?;
        while self.clients.len().map_err(failed)? > CLIENTS_MAX {
            let mut oldest: Option<(u64, u128)> = None;
            for pair in self.clients.iter().map_err(failed)? {
                let (client, seq) = pair.map_err(failed)?;
                let this = (seq.value(), client.value());
                oldest = Some(oldest.map_or(this, |oldest| oldest.min(this)));
            }
            let Some((_, gone)) = oldest else { break };
            self.clients.remove(gone).map_err(failed)?;
            self.answers.retain_in((gone, 0)..=(gone, u64::MAX), |_, _| false).map_err(failed)?;
        }
        Ok(())
    }
}
