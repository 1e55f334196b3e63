//! Values: a version byte, then the fields in order.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::Row;

/// A value of a row. The version is raised when fields change; a release reads its own version and the one before.
pub trait RowValue: Serialize + DeserializeOwned {
    /// Version that is written.
    const VERSION: u8 = 1;
    /// Table, for messages.
    const TABLE: &'static str;

    /// Reads the fields of the version before, if there was one.
    fn former(_body: &[u8]) -> Option<postcard::Result<Self>> {
        None
    }

    /// The bytes of the value.
    fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![Self::VERSION]).expect("plain data encodes")
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
                let message =
                    format!("a row of table {table} was written by a newer release (version {version})");
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
