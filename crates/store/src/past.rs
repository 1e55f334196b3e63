//! Versions of keys: what a volume keeps of what was replaced or deleted, and what holds it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError, Subject};
use crate::file::FileInfo;
use crate::key::Key;
use crate::write::Condition;

pub use stoker_format::NULL_VERSION;

/// The setting of a volume that says whether it keeps versions: `enabled` or `suspended`.
pub const VERSIONING_SETTING: &str = "versioning";
/// The setting that says that its versions can be locked, and for how long they are if nobody says: see [`Versioning`].
pub const LOCK_SETTING: &str = "object-lock";
/// The setting that says by which rules its objects expire.
pub const LIFECYCLE_SETTING: &str = "lifecycle";

/// Longest retention that a volume gives by itself, in days.
pub const RETENTION_DAYS_MAX: u32 = 36_500;
/// The same in years.
pub const RETENTION_YEARS_MAX: u32 = 100;

const DAY_MS: u64 = 24 * 3_600_000;

impl Key {
    /// The key by which one version of a key is asked for: [`NULL_VERSION`] is the one without an id.
    pub fn version_of(key: &Key, id: &str) -> Result<Key> {
        let whole = stoker_format::past_key(key.as_bytes(), id);
        // An id with a slash in it would be about another key.
        match stoker_format::past_parts(&whole) {
            Some((of, _)) if of == key.as_bytes() => Key::new(whole),
            _ => {
                let message = format!("`{}` is no id of a version", id.chars().take(64).collect::<String>());
                Err(StoreError::about(ErrorKind::Invalid, Subject::Version, message))
            }
        }
    }

    /// The key and the id, if it is the key of one version.
    pub fn version_parts(&self) -> Option<(Key, &str)> {
        let (key, id) = stoker_format::past_parts(self.as_bytes())?;
        Some((Key::new(key).ok()?, id))
    }
}

/// Whether a volume keeps versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keeps {
    /// It never did.
    #[default]
    Nothing,
    /// All.
    Versions,
    /// Those that there are, and of new ones the last.
    Last,
}

/// How long a lock lasts that nobody gave an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefaultRetention {
    /// Nobody can shorten it.
    pub is_compliance: bool,
    /// How many of them.
    pub count: u32,
    /// They are years, and otherwise days.
    pub is_years: bool,
}

impl DefaultRetention {
    /// The lock of what is written now.
    pub fn from(&self, now_ms: u64) -> Retention {
        let days = if self.is_years { u64::from(self.count) * 365 } else { u64::from(self.count) };
        let until_ms = now_ms.saturating_add(days.saturating_mul(DAY_MS));
        Retention { is_compliance: self.is_compliance, until_ms }
    }
}

/// What a volume keeps, as its settings say it: `enabled`, `suspended`, and behind that `lock`, and behind that for how long,
/// `governance 30 days` or `compliance 7 years`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Versioning {
    /// Whether it keeps versions.
    pub keeps: Keeps,
    /// Its versions can be locked.
    pub has_lock: bool,
    /// For how long they are if nobody says.
    pub default: Option<DefaultRetention>,
}

impl fmt::Display for Versioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.keeps {
            Keeps::Nothing => "off",
            Keeps::Versions => "enabled",
            Keeps::Last => "suspended",
        })?;
        if self.has_lock {
            f.write_str(" lock")?;
        }
        self.default.map_or(Ok(()), |default| {
            let mode = if default.is_compliance { "compliance" } else { "governance" };
            let unit = if default.is_years { "years" } else { "days" };
            write!(f, " {mode} {} {unit}", default.count)
        })
    }
}

impl FromStr for Versioning {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Versioning> {
        let odd = |what: &str| {
            let message = format!(
                "{what}: give `enabled` or `suspended`, and behind it perhaps `lock` and `governance 30 days`"
            );
            StoreError::new(ErrorKind::Invalid, message)
        };
        let mut words = text.split_ascii_whitespace();
        let keeps = match words.next() {
            Some("enabled") => Keeps::Versions,
            Some("suspended") => Keeps::Last,
            Some("off") => Keeps::Nothing,
            _ => return Err(odd("versions are kept or not")),
        };
        let has_lock = match words.next() {
            None => return Ok(Versioning { keeps, ..Versioning::default() }),
            Some("lock") => true,
            Some(_) => return Err(odd("only `lock` can follow")),
        };
        let Some(mode) = words.next() else { return Ok(Versioning { keeps, has_lock, default: None }) };
        let is_compliance = match mode {
            "compliance" => true,
            "governance" => false,
            _ => return Err(odd("a retention is for governance or compliance")),
        };
        let count = words.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        let (is_years, max) = match words.next() {
            Some("days") => (false, RETENTION_DAYS_MAX),
            Some("years") => (true, RETENTION_YEARS_MAX),
            _ => return Err(odd("a retention is of days or years")),
        };
        if words.next().is_some() || !(1..=max).contains(&count) {
            return Err(odd("a retention has 1 to 36,500 days, or 1 to 100 years"));
        }
        let default = Some(DefaultRetention { is_compliance, count, is_years });
        Ok(Versioning { keeps, has_lock, default })
    }
}

/// Until when a version stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retention {
    /// Nobody can shorten it; otherwise whoever may bypass it.
    pub is_compliance: bool,
    /// Milliseconds since 1970.
    pub until_ms: u64,
}

/// What is to hold a version that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lock {
    /// Until when it stays; none: as its volume says.
    pub retention: Option<Retention>,
    /// It stays until somebody says otherwise.
    pub is_held: bool,
}

/// Which version a file is, and what holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionInfo {
    /// Its id, or [`NULL_VERSION`].
    pub id: String,
    /// It says that its key was deleted, and has no content.
    pub is_marker: bool,
    /// Until when it stays.
    pub retention: Option<Retention>,
    /// It stays until somebody says otherwise.
    pub is_held: bool,
}

/// Which versions to list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionsRequest {
    /// Of keys that start with these bytes.
    pub prefix: Vec<u8>,
    /// Keys that share the bytes up to this behind the prefix are shown once.
    pub delimiter: Option<Vec<u8>>,
    /// Only what comes after this key, or group.
    pub after: Option<Vec<u8>>,
    /// And of this key those that come after this version; none: nothing of it.
    pub after_version: Option<String>,
    /// At most so many entries; capped at 1,000.
    pub limit: usize,
}

/// One line of a listing of versions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VersionEntry {
    /// A version, or a marker.
    Version {
        /// What it is; its key is that of the name.
        info: Box<FileInfo>,
        /// Which one.
        version: VersionInfo,
        /// It is what its key shows, or hides by.
        is_latest: bool,
    },
    /// Keys that start with these bytes.
    Prefix(Vec<u8>),
}

/// Versions in the byte order of keys, of one key the latest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionsPage {
    /// Versions and prefixes.
    pub entries: Vec<VersionEntry>,
    /// More follows.
    pub more: bool,
}

/// A delete in a volume that keeps versions, or does not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionDelete {
    /// Key.
    pub key: Key,
    /// The version that goes for good; none: the key is deleted, and what it had stays if versions are kept.
    pub version: Option<String>,
    /// Must hold for what is deleted.
    pub condition: Condition,
    /// What is retained, but not for compliance, may go.
    pub bypass: bool,
}

/// What a delete did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionDeleted {
    /// There was something.
    pub existed: bool,
    /// The version that went, or the marker that came.
    pub version: Option<String>,
    /// What went, or came, is a marker.
    pub is_marker: bool,
}

/// A change of what holds a version; what is none stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockChange {
    /// Until when it stays; `Some(None)`: no more than by a hold.
    pub retention: Option<Option<Retention>>,
    /// Whether it stays until somebody says otherwise.
    pub is_held: Option<bool>,
    /// A retention that is not for compliance may be shortened.
    pub bypass: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_versions_are_read_as_they_are_written() {
        for text in [
            "enabled",
            "suspended",
            "enabled lock",
            "enabled lock governance 30 days",
            "enabled lock compliance 7 years",
        ] {
            assert_eq!(text.parse::<Versioning>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "on",
            "enabled locked",
            "enabled lock both 1 days",
            "enabled lock governance 0 days",
            "enabled lock governance 36501 days",
            "enabled lock compliance 101 years",
            "enabled lock compliance 1 months",
            "enabled lock compliance 1 days more",
            "enabled lock compliance -1 days",
        ] {
            assert!(text.parse::<Versioning>().is_err(), "{text}");
        }
        let year: Versioning = "enabled lock compliance 1 years".parse().unwrap();
        let retention = Retention { is_compliance: true, until_ms: 5 + 365 * DAY_MS };
        assert_eq!(year.default.unwrap().from(5), retention);
    }

    #[test]
    fn keys_of_versions_are_keys() {
        let key = Key::new("a/b").unwrap();
        let version = Key::version_of(&key, NULL_VERSION).unwrap();
        assert_eq!(version.version_parts(), Some((key.clone(), "null")));
        assert_eq!(key.version_parts(), None);
        for other in ["a/null", "/null", "null/", "", "..", "NULL"] {
            assert!(Key::version_of(&key, other).is_err(), "an id of another key: {other}");
        }
    }
}
