//! What users say of a volume that nothing in the engine acts upon: tags of a bucket, which web pages may use it. Documents by name, which the
//! door that takes them understands.

use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome};
use stoker_schema::names::Refusal;
use stoker_schema::rows::{RowValue, SettingRow, keys};
use stoker_store::{ErrorKind, LIFECYCLE_SETTING, LOCK_SETTING, Result, StoreError, VERSIONING_SETTING};

use crate::core::Core;
use crate::error;

/// Longest document: a row has to hold it.
pub(crate) const LEN_MAX: usize = 48 << 10;

/// What doors may ask for and set. Other rows of the kind are the engine's own.
const NAMES: [&str; 9] = [
    VERSIONING_SETTING,
    LOCK_SETTING,
    LIFECYCLE_SETTING,
    "audit",
    "cors",
    "ownership",
    "policy",
    "public-access",
    "tagging",
];

fn check_name(name: &str) -> Result<()> {
    match NAMES.contains(&name) {
        true => Ok(()),
        false => Err(StoreError::new(ErrorKind::Invalid, format!("a volume has no setting `{name}`"))),
    }
}

impl Core {
    /// A setting of a volume.
    pub async fn setting(&self, volume: &str, name: &str) -> Result<Option<Vec<u8>>> {
        check_name(name)?;
        let volume = self.volumes.get(volume).await?;
        if matches!(name, VERSIONING_SETTING | LOCK_SETTING) {
            return Ok(self.versioning_text(&volume, name));
        }
        if name == LIFECYCLE_SETTING {
            return Box::pin(self.lifecycle_text(&volume)).await;
        }
        let key = keys::setting(volume.id, name);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let row = row.as_ref().map(SettingRow::of).transpose().map_err(error::catalog)?;
        Ok(row.map(|row| row.document))
    }

    /// Changes a setting, or takes it away.
    pub async fn set_setting(
        self: &Arc<Core>,
        volume: &str,
        name: &str,
        document: Option<Vec<u8>>,
    ) -> Result<()> {
        self.check_open()?;
        check_name(name)?;
        if matches!(name, VERSIONING_SETTING | LOCK_SETTING) {
            return self.set_versioning(volume, name, document.as_deref()).await;
        }
        if name == LIFECYCLE_SETTING {
            return Box::pin(self.set_lifecycle(volume, document.as_deref())).await;
        }
        let volume = self.volumes.get(volume).await?;
        let key = keys::setting(volume.id, name);
        let mut commit = Commit { checks: self.guards(&volume), writes: Vec::new() };
        commit = match document {
            None => commit.delete(key),
            Some(document) if document.len() > LEN_MAX => {
                let message = format!("a setting has at most {LEN_MAX} bytes, not {}", document.len());
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            Some(document) => commit.put(key, SettingRow { document }.encode()),
        };
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(())
            }
            Outcome::Failed { check } => Err(error::refusal(Refusal::Guard(check))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_engine_are_no_settings() {
        for name in NAMES {
            assert!(check_name(name).is_ok());
        }
        for name in ["lifecycle-pass", "lifecycle/01", "Policy", ""] {
            assert_eq!(check_name(name).unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}
