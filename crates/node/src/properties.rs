//! What users give a file besides bytes, as the catalog keeps it.

use serde::{Deserialize, Serialize};
use stoker_store::{Attributes, Checksum, ErrorKind, Result, StoreError};

/// Version of this encoding.
const VERSION: u8 = 1;

/// Largest encoding: the row of the file has to hold it.
const BYTES_MAX: usize = 48 << 10;

/// Properties of a file, an upload or a part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Properties {
    pub attributes: Attributes,
    pub checksums: Vec<Checksum>,
    /// Checksum that an upload announced.
    pub announced: Option<stoker_store::ChecksumKind>,
}

impl Properties {
    pub fn encode(&self) -> Result<Vec<u8>> {
        let bytes = postcard::to_extend(self, vec![VERSION]).expect("plain data encodes");
        if bytes.len() > BYTES_MAX {
            let message =
                format!("metadata, tags and attributes have {} bytes, at most {BYTES_MAX} fit", bytes.len());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        Ok(bytes)
    }

    pub fn decode(bytes: &[u8]) -> Result<Properties> {
        let corrupt = |what| {
            StoreError::new(ErrorKind::Corrupt, format!("properties of a file cannot be read: {what}"))
        };
        match bytes.split_first() {
            None => Ok(Properties::default()),
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|fault| corrupt(fault.to_string())),
            Some((version, _)) => Err(corrupt(format!("version {version} is newer than this release"))),
        }
    }
}
