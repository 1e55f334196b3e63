//! Volumes that keep versions: what their settings say, deletes of a version for good, locks, listings. (D210)
//!
//! That versions stay is done by the transactions that change a name ([`stoker_schema::names`]); whoever makes one says in its plan that the volume
//! keeps them, and the transaction fails if the setting is another one by then.

pub(crate) mod change;
mod list;
mod lock;
mod setting;

use stoker_catalog::Row;
use stoker_catalog::kv::Check;
use stoker_format::{PastId, past_key};
use stoker_schema::names::{Keeping, Which, id_of};
use stoker_schema::rows::{FileRow, PastRow, RetentionRow, RowValue, SettingRow, keys};
use stoker_store::{
    ErrorKind, Keeps, Key, Lock, NULL_VERSION, Result, Retention, StoreError, Subject, VersionInfo,
    Versioning,
};

use crate::core::Core;
use crate::lookup::no_such_key;
use crate::volumes::Volume;
use crate::{clock, error};

/// What a volume keeps, and the check that it still does.
pub(crate) struct KnownVersioning {
    pub versioning: Versioning,
    pub check: Check,
}

impl KnownVersioning {
    /// Of the row of the setting.
    pub fn of(key: Vec<u8>, row: Option<&Row>) -> Result<KnownVersioning> {
        let Some(row) = row else {
            return Ok(KnownVersioning { versioning: Versioning::default(), check: Check::Absent(key) });
        };
        let document = SettingRow::of(row).map_err(error::catalog)?.document;
        let text = std::str::from_utf8(&document).unwrap_or_default();
        let versioning = text.parse().map_err(|fault: StoreError| {
            let message = format!("what a volume keeps of versions cannot be read: {}", fault.message);
            StoreError::new(ErrorKind::Corrupt, message)
        })?;
        Ok(KnownVersioning { versioning, check: Check::Value(key, row.value.clone()) })
    }

    pub fn keeps(&self) -> Keeps {
        self.versioning.keeps
    }
}

/// The id of a version as users have it.
pub(crate) fn id_text(file: &FileRow) -> String {
    id_of(file).map_or_else(|| NULL_VERSION.to_owned(), |id| id.to_string())
}

/// What users are told of a version.
pub(crate) fn info_of(file: &FileRow, past: &PastRow) -> VersionInfo {
    let retention = past
        .retention
        .as_ref()
        .map(|row| Retention { is_compliance: row.is_compliance, until_ms: row.until_ms });
    VersionInfo { id: id_text(file), is_marker: past.is_marker, retention, is_held: past.is_held }
}

/// The version that an id means; none if it is no id.
fn which(id: &str) -> Option<Which> {
    match id {
        NULL_VERSION => Some(Which::Null),
        id => id.parse::<PastId>().ok().map(Which::Id),
    }
}

/// Versions are not kept where others write to the lake.
pub(crate) fn not_shared() -> StoreError {
    let message = "versions are kept only in a volume whose lake mode is `owned`: what others do in the lake has no versions";
    StoreError::about(ErrorKind::Conflict, Subject::Volume, message)
}

/// What a lock becomes in the row of a file that is written.
pub(crate) fn locked_by(lock: Option<&Lock>) -> Option<PastRow> {
    let lock = lock?;
    let retention = lock
        .retention
        .map(|given| RetentionRow { is_compliance: given.is_compliance, until_ms: given.until_ms });
    Some(PastRow { retention, is_held: lock.is_held, ..PastRow::default() })
}

impl Core {
    /// What becomes of what a key of a volume has, when it gets something else or nothing; none if it goes.
    pub fn keeping(&self, volume: &Volume, key: &[u8]) -> Option<Keeping> {
        let is_suspended = match volume.versions.keeps() {
            Keeps::Nothing => return None,
            Keeps::Versions => false,
            Keeps::Last => true,
        };
        Some(Keeping { key: key.to_vec(), is_suspended, now_ms: clock::now_ms() })
    }

    /// What holds a file that is written into a volume: what the request says, and else what the volume says.
    pub fn lock_new(&self, volume: &Volume, file: &mut FileRow) -> Result<()> {
        let versioning = volume.versions.versioning;
        let asks = file.past.as_ref().is_some_and(|past| past.retention.is_some() || past.is_held);
        if asks && !versioning.has_lock {
            return Err(no_lock(volume));
        }
        if versioning.keeps == Keeps::Nothing {
            file.past = None;
            return Ok(());
        }
        let past = file.past.get_or_insert_default();
        if let (None, Some(default)) = (past.retention, &versioning.default) {
            let given = default.from(self.expiry.stamp_ms());
            past.retention =
                Some(RetentionRow { is_compliance: given.is_compliance, until_ms: given.until_ms });
        }
        Ok(())
    }

    /// The path that a key leads to: that of a version may be the one of its name.
    pub async fn version_path(&self, volume: &Volume, key: &Key) -> Result<Vec<u8>> {
        let Some((of, id)) = key.version_parts() else { return Ok(key.as_bytes().to_vec()) };
        if id == NULL_VERSION && volume.versions.keeps() == Keeps::Nothing {
            // What is there is the one version.
            return Ok(of.into_bytes());
        }
        let which = which(id).ok_or_else(|| no_such_version(&of, id))?;
        let found = self.names.version_of(volume.id, of.as_bytes(), which).await.map_err(error::catalog)?;
        match found {
            Some((_, true)) => Ok(of.into_bytes()),
            Some((located, false)) => match keys::past_name_parts(&located.spot.name) {
                Some((of, id)) => Ok(past_key(of, &id.to_string())),
                None => Err(no_such_key(key.as_bytes())),
            },
            None => Err(no_such_version(&of, id)),
        }
    }
}

pub(crate) fn no_such_version(key: &Key, id: &str) -> StoreError {
    let message = format!("`{key}` has no version `{id}`");
    StoreError::about(ErrorKind::NotFound, Subject::Version, message)
}

/// Nothing can be locked there.
pub(crate) fn no_lock(volume: &Volume) -> StoreError {
    let message = format!("versions of volume `{}` cannot be locked: it has no object lock", volume.name);
    StoreError::about(ErrorKind::Invalid, Subject::Lock, message)
}
