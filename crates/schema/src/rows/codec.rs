//! Values: a version byte, then the fields in order.

use serde::Serialize;
use serde::de::DeserializeOwned;

use stoker_catalog::kv::Row;
use stoker_catalog::{CatalogError, ErrorKind, Result};

use crate::level::Level;

/// A value of a row. The version is raised when fields change; a release reads its own version and the one before, and writes the one that
/// the level of the cluster allows.
pub trait RowValue: Serialize + DeserializeOwned {
    /// The newest version.
    const VERSION: u8 = 1;
    /// The level since which that is written; before, it is the version before.
    const SINCE: Level = Level::FIRST;
    /// Table, for messages.
    const TABLE: &'static str;

    /// Reads the fields of the version before, if there was one.
    fn former(_body: &[u8]) -> Option<postcard::Result<Self>> {
        None
    }

    /// Writes the fields of the version before behind its number. Has to be there if [`Self::SINCE`] is not the first level.
    fn encode_former(&self, _head: Vec<u8>) -> Vec<u8> {
        unreachable!("a row of table {} has one form", Self::TABLE)
    }

    /// The bytes of a value whose form all levels allow.
    fn encode(&self) -> Vec<u8> {
        const { assert!(Self::SINCE.0 == Level::FIRST.0, "its form depends on the level: encode_at") };
        self.encode_at(Level::FIRST)
    }

    /// The bytes of the value, in the form that a level allows.
    fn encode_at(&self, level: Level) -> Vec<u8> {
        match level < Self::SINCE {
            true => self.encode_former(vec![Self::VERSION - 1]),
            false => postcard::to_extend(self, vec![Self::VERSION]).expect("plain data encodes"),
        }
    }

    /// Reads a value back; bytes that do not fit are `Corrupt`, a newer version is `Foreign`.
    fn decode(bytes: &[u8]) -> Result<Self> {
        let table = Self::TABLE;
        let unreadable = |fault: postcard::Error| {
            CatalogError::new(ErrorKind::Corrupt, format!("a row of table {table} cannot be read: {fault}"))
        };
        if let Some((&version, body)) = bytes.split_first()
            && version.checked_add(1) == Some(Self::VERSION)
            && let Some(read) = Self::former(body)
        {
            return read.map_err(unreadable);
        }
        match bytes.split_first() {
            Some((&version, body)) if version == Self::VERSION => {
                postcard::from_bytes(body).map_err(unreadable)
            }
            Some((&version, _)) if version > Self::VERSION => {
                let message = format!(
                    "a row of table {table} was written by a newer release (version {version}); use that release or a newer one"
                );
                Err(CatalogError::new(ErrorKind::Foreign, message))
            }
            _ => Err(CatalogError::new(ErrorKind::Corrupt, format!("a row of table {table} has no version"))),
        }
    }

    /// Reads the value of a row.
    fn of(row: &Row) -> Result<Self> {
        Self::decode(&row.value)
    }
}
