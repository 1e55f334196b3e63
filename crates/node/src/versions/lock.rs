//! Locks: what holds a version, and who may let go of it (R19).

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_schema::names::{Located, Refusal};
use stoker_schema::rows::{EntryRow, PastRow, RetentionRow, RowValue};
use stoker_store::{ErrorKind, Key, LockChange, Result, Retention, StoreError, Subject};

use super::{no_lock, no_such_version, which};
use crate::core::Core;
use crate::error;
use crate::lookup::no_such_key;
use crate::volumes::Volume;

/// Tries of a change that others keep getting in the way of.
const TRIES_MAX: usize = 100;

fn refused(message: &str) -> StoreError {
    StoreError::about(ErrorKind::Denied, Subject::Lock, message)
}

/// What holds a version after a change; `now_ms` by the clock of expiries. A retention for compliance can be made longer and nothing
/// else; one for governance so as well, and anything by who may bypass it.
fn changed(old: &PastRow, change: LockChange, now_ms: u64) -> Result<PastRow> {
    let mut row = old.clone();
    row.is_held = change.is_held.unwrap_or(row.is_held);
    let Some(wanted) = change.retention else { return Ok(row) };
    if let Some(there) = old.retention.filter(|there| there.until_ms > now_ms) {
        let is_longer = wanted.is_some_and(|new: Retention| {
            new.until_ms >= there.until_ms && new.is_compliance == there.is_compliance
        });
        if there.is_compliance && !is_longer {
            return Err(refused("the version is retained for compliance: nobody can shorten that"));
        }
        if !is_longer && !change.bypass {
            return Err(refused(
                "the version is retained for governance: that is shortened by who bypasses it",
            ));
        }
    }
    row.retention =
        wanted.map(|new| RetentionRow { is_compliance: new.is_compliance, until_ms: new.until_ms });
    Ok(row)
}

impl Core {
    /// Changes what holds a version.
    pub async fn change_lock(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        change: LockChange,
    ) -> Result<()> {
        self.check_open()?;
        self.check_writable(volume)?;
        if !volume.versions.versioning.has_lock {
            return Err(no_lock(volume));
        }
        for _ in 0..TRIES_MAX {
            let located = self.lockable(volume, key).await?;
            let old = located.file.past.clone();
            // Written before versions were kept: of these a key has one, before all others.
            let old = old.unwrap_or_else(|| PastRow { is_null: true, ..PastRow::default() });
            if old.is_marker {
                let message = "a marker has no content, and nothing holds it";
                return Err(StoreError::about(ErrorKind::Invalid, Subject::Version, message));
            }
            let past = changed(&old, change, self.expiry.now_ms())?;
            let mut file = located.file.clone();
            file.past = Some(past);
            let row_key = located.spot.row_key();
            let mut commit = Commit::new();
            commit.checks.extend(self.guards(volume));
            let guards = commit.checks.len();
            commit.checks.push(Check::Seq(row_key.clone(), located.seq));
            commit.writes.push(Write::Put(row_key, EntryRow::File(Box::new(file)).encode()));
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.saw(seq);
                    return Ok(());
                }
                Outcome::Failed { check } if check < guards => {
                    return Err(error::refusal(Refusal::Guard(check)));
                }
                Outcome::Failed { .. } => {}
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    /// The version that is to be locked.
    async fn lockable(&self, volume: &Volume, key: &Key) -> Result<Located> {
        let found = match key.version_parts() {
            None => self.names.lookup(volume.id, key.as_bytes()).await.map_err(error::catalog)?,
            Some((of, id)) => {
                let which = which(id).ok_or_else(|| no_such_version(&of, id))?;
                let found = self.names.version_of(volume.id, of.as_bytes(), which).await;
                let found = found.map_err(error::catalog)?.map(|(located, _)| located);
                return found.ok_or_else(|| no_such_version(&of, id));
            }
        };
        found.ok_or_else(|| no_such_key(key.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retentions_grow_and_governance_is_bypassed() {
        let retention = |is_compliance, until_ms| Retention { is_compliance, until_ms };
        let (governance, compliance) =
            (|until| Some(retention(false, until)), |until| Some(retention(true, until)));
        for (old, new, plain, bypassing) in [
            (None, governance(50), true, true),
            (governance(50), governance(60), true, true),
            (governance(50), governance(40), false, true),
            (governance(50), None, false, true),
            (governance(50), compliance(60), false, true),
            (compliance(50), compliance(60), true, true),
            (compliance(50), compliance(50), true, true),
            (compliance(50), compliance(49), false, false),
            (compliance(50), governance(60), false, false),
            (compliance(50), None, false, false),
            // Over, it holds nothing.
            (compliance(10), None, true, true),
            (governance(10), governance(12), true, true),
        ] {
            let row =
                |old: Retention| RetentionRow { is_compliance: old.is_compliance, until_ms: old.until_ms };
            let past = PastRow { retention: old.map(row), is_held: true, ..PastRow::default() };
            for (bypass, expect) in [(false, plain), (true, bypassing)] {
                let change = LockChange { retention: Some(new), is_held: None, bypass };
                let found = changed(&past, change, 10);
                assert_eq!(found.is_ok(), expect, "{old:?} to {new:?} {bypass}");
                if let Ok(found) = found {
                    assert_eq!((found.retention, found.is_held), (new.map(row), true));
                }
            }
        }
        let held = PastRow { is_held: true, ..PastRow::default() };
        let free = changed(&held, LockChange { is_held: Some(false), ..LockChange::default() }, 0).unwrap();
        assert!(!free.is_held);
    }
}
