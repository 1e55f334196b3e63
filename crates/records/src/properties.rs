//! What users give a file besides bytes, as the catalog keeps it.

use serde::{Deserialize, Serialize};
use stoker_store::{Attributes, Checksum, ErrorKind, Result, StoreError, is_meta_reserved};

/// Version of this encoding.
const VERSION: u8 = 1;

/// Largest encoding: the row of the file has to hold it.
const BYTES_MAX: usize = 48 << 10;

/// Properties of a file, an upload or a part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Properties {
    /// Metadata, tags, mode and the like.
    pub attributes: Attributes,
    /// Checksums that the user asked to keep.
    pub checksums: Vec<Checksum>,
    /// Checksum that an upload announced.
    pub announced: Option<stoker_store::ChecksumKind>,
}

impl Properties {
    /// Every property that is to be kept passes here, whoever it came from: names of metadata that are ours are refused.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.attributes.check()?;
        let bytes = postcard::to_extend(self, vec![VERSION]).expect("plain data encodes");
        if bytes.len() > BYTES_MAX {
            let message =
                format!("metadata, tags and attributes have {} bytes, at most {BYTES_MAX} fit", bytes.len());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        Ok(bytes)
    }

    /// Reads them back.
    pub fn decode(bytes: &[u8]) -> Result<Properties> {
        let corrupt = |what| {
            StoreError::new(ErrorKind::Corrupt, format!("properties of a file cannot be read: {what}"))
        };
        match bytes.split_first() {
            None => Ok(Properties::default()),
            Some((&VERSION, body)) => postcard::from_bytes(body)
                .map(Properties::without_reserved)
                .map_err(|fault| corrupt(fault.to_string())),
            Some((version, _)) => Err(corrupt(format!("version {version} is newer than this release"))),
        }
    }

    /// Without the names that are ours: older releases took them from anybody.
    pub fn without_reserved(mut self) -> Properties {
        self.attributes.meta.retain(|(name, _)| !is_meta_reserved(name));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_meta(name: &str) -> Properties {
        let meta = vec![("colour".to_owned(), "red".to_owned()), (name.to_owned(), "1".to_owned())];
        Properties { attributes: Attributes { meta, ..Attributes::default() }, ..Properties::default() }
    }

    #[test]
    fn reserved_names_are_refused_and_those_of_older_releases_dropped() {
        for name in ["stoker-version", "stoker-", "Stoker-Mode", "STOKER-anything", "stoker-Seal"] {
            let properties = with_meta(name);
            assert_eq!(properties.encode().unwrap_err().kind, ErrorKind::Invalid, "{name}");
            let older = postcard::to_extend(&properties, vec![VERSION]).unwrap();
            assert_eq!(Properties::decode(&older).unwrap().attributes.meta.len(), 1, "{name}");
        }
        for name in
            ["stoker", "stoke-r", "stoker-seal", "stoker-pack", "stoker-set", "x-stoker-mode", "stökér-"]
        {
            let properties = with_meta(name);
            assert_eq!(Properties::decode(&properties.encode().unwrap()).unwrap(), properties, "{name}");
        }
    }
}
