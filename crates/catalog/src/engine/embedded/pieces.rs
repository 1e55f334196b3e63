//! A copy of a whole table in pieces: its rows, and the names of commits that were done.

use std::ops::Bound;

use redb::{ReadTransaction, ReadableTable, TableError, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::ledger::{ANSWERS, CLIENTS};
use super::{file, table};
use crate::engine::apply::RowsMut;
use crate::error::Result;
use crate::kv::{Range, Row};

/// Most rows, clients or answers of one piece.
const PIECE_ROWS_MAX: usize = 1 << 14;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Piece {
    Rows(#[serde(deserialize_with = "crate::wire::limited::<_, _, PIECE_ROWS_MAX>")] Vec<Row>),
    Clients(#[serde(deserialize_with = "crate::wire::limited::<_, _, PIECE_ROWS_MAX>")] Vec<(u128, u64)>),
    Answers(#[serde(deserialize_with = "crate::wire::limited::<_, _, PIECE_ROWS_MAX>")] Vec<Answer>),
}

/// Client, number and commit of something that was done.
pub(super) type Answer = (u128, u64, u64);

impl Piece {
    /// Adds it to a table.
    pub(super) fn write(&self, transaction: &WriteTransaction) -> Result<()> {
        match self {
            Piece::Rows(rows) => {
                let mut draft = table::Draft::open(transaction)?;
                rows.iter().try_for_each(|row| draft.put(&row.key, &row.value, row.seq))
            }
            Piece::Clients(clients) => {
                let mut table = transaction.open_table(CLIENTS).map_err(file::failed)?;
                clients
                    .iter()
                    .try_for_each(|(client, seq)| table.insert(client, seq).map(drop).map_err(file::failed))
            }
            Piece::Answers(answers) => {
                let mut table = transaction.open_table(ANSWERS).map_err(file::failed)?;
                answers.iter().try_for_each(|(client, number, seq)| {
                    table.insert((*client, *number), seq).map(drop).map_err(file::failed)
                })
            }
        }
    }
}

/// The pieces of a snapshot, in order.
pub(super) struct Pieces<'s> {
    snapshot: &'s ReadTransaction,
    next: Next,
}

enum Next {
    Rows(Range),
    Clients,
    Answers(Bound<(u128, u64)>),
    Nothing,
}

impl<'s> Pieces<'s> {
    pub(super) fn new(snapshot: &'s ReadTransaction) -> Pieces<'s> {
        Pieces { snapshot, next: Next::Rows(Range::prefix(b"", PIECE_ROWS_MAX)) }
    }

    pub(super) fn next(&mut self) -> Result<Option<Piece>> {
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Rows(range) => {
                let page = table::Snapshot::open(self.snapshot)?.page(&range)?;
                let last: Option<&Row> = page.rows.last().filter(|_| page.more);
                self.next = last.map_or(Next::Clients, |row| Next::Rows(range.after(&row.key)));
                Ok(Some(Piece::Rows(page.rows)))
            }
            Next::Clients => {
                self.next = Next::Answers(Bound::Unbounded);
                let Some(table) = existing(self.snapshot.open_table(CLIENTS))? else { return Ok(None) };
                let mut clients = Vec::new();
                for pair in ReadableTable::iter(&table).map_err(file::failed)?.take(PIECE_ROWS_MAX) {
                    let (client, seq) = pair.map_err(file::failed)?;
                    clients.push((client.value(), seq.value()));
                }
                Ok(Some(Piece::Clients(clients)))
            }
            Next::Answers(from) => {
                let Some(table) = existing(self.snapshot.open_table(ANSWERS))? else { return Ok(None) };
                let mut answers = Vec::new();
                for pair in ReadableTable::range(&table, (from, Bound::Unbounded))
                    .map_err(file::failed)?
                    .take(PIECE_ROWS_MAX)
                {
                    let (name, seq) = pair.map_err(file::failed)?;
                    let (client, number) = name.value();
                    answers.push((client, number, seq.value()));
                }
                let Some((client, number, _)) = answers.last() else { return Ok(None) };
                self.next = Next::Answers(Bound::Excluded((*client, *number)));
                Ok(Some(Piece::Answers(answers)))
            }
            Next::Nothing => Ok(None),
        }
    }
}

fn existing<T>(opened: std::result::Result<T, TableError>) -> Result<Option<T>> {
    match opened {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(file::failed(error)),
    }
}
