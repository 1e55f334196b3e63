//! One commit after another inside a transaction of the store. The same commits on equal tables leave equal tables, and end alike.

use redb::WriteTransaction;

use super::ledger::{CommitName, Found, Ledger};
use super::table::Draft;
use super::writer::Answer;
use crate::engine::apply::{self, RowsMut};
use crate::engine::changes::Changes;
use crate::error::{ErrorKind, Result};
use crate::kv::{Commit, Outcome};

/// The names of commits inside a transaction, opened by the first that has one.
pub(super) fn opened<'l, 't>(
    ledger: &'l mut Option<Ledger<'t>>,
    transaction: &'t WriteTransaction,
) -> Result<&'l mut Ledger<'t>> {
    if ledger.is_none() {
        *ledger = Some(Ledger::open(transaction)?);
    }
    Ok(ledger.as_mut().expect("opened above"))
}

/// Runs one commit. The inner error is that of the commit, which then changed nothing.
pub(super) fn run(draft: &mut impl RowsMut, commit: &Commit, seq: &mut u64) -> Result<Result<Outcome>> {
    let mut changes = match Changes::new(&commit.writes) {
        Ok(changes) => changes,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(check) = apply::check_failed(draft, &commit.checks)? {
        return Ok(Ok(Outcome::Failed { check }));
    }
    match apply::sums_resolve(draft, &mut changes) {
        Ok(()) => {}
        Err(error) if error.kind == ErrorKind::Invalid => return Ok(Err(error)),
        Err(error) => return Err(error),
    }
    apply::change_all(draft, &changes, *seq + 1)?;
    *seq += 1;
    Ok(Ok(Outcome::Done { seq: *seq }))
}

/// Runs a commit with a name, if it did not happen before.
pub(super) fn run_once(
    draft: &mut Draft<'_>,
    ledger: &mut Ledger<'_>,
    commit: &Commit,
    name: &CommitName,
    seq: &mut u64,
) -> Result<Answer> {
    match ledger.find(name)? {
        Found::Stranger => return Ok(Ok(None)),
        Found::Done { seq } => return Ok(Ok(Some(Outcome::Done { seq }))),
        Found::New => {}
    }
    let outcome = run(draft, commit, seq)?;
    if let Ok(Outcome::Done { seq }) = outcome {
        ledger.done(name, seq)?;
    }
    Ok(outcome.map(Some))
}
