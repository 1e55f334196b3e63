//! The keys that a node has open, and the key-encryption keys that open them.

use std::path::Path;
use std::sync::Arc;

use stoker_format::{KeyId, RecordKind, VolumeId};
use stoker_keys::key_file::{self, KeyFileError};
use stoker_keys::{DataKey, Keyring, Secret, VolumeKeys, WrappingKey};
use stoker_ring::Put;
use stoker_schema::rows::{DataKeyRow, DataKeysRow};
use stoker_store::{ErrorKind, Result, StoreError, Subject};

use super::{SEALED_LEN_MAX, place_of};
use crate::options::KeyFiles;

/// What seals and opens.
pub(crate) struct Vault {
    keyring: Arc<Keyring>,
    /// The first wraps, all of them unwrap.
    keks: Vec<WrappingKey>,
}

impl Vault {
    /// With the key of a file if one is named, and that of the cluster. Those of former files unwrap only.
    pub fn open(files: &KeyFiles, secrets: &[[u8; 32]]) -> Result<Vault> {
        let mut keks = Vec::new();
        if let Some(file) = &files.file {
            keks.push(WrappingKey::of_file(&read_key(file)?));
        }
        let secret = |bytes: &[u8; 32]| Secret::of(bytes).expect("32 bytes");
        keks.extend(secrets.iter().map(|bytes| WrappingKey::of_cluster(&secret(bytes))));
        for file in &files.former {
            keks.push(WrappingKey::of_file(&read_key(file)?));
        }
        Ok(Vault { keyring: Arc::default(), keks })
    }

    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// Whether a volume is encrypted.
    pub fn is_encrypted(&self, volume: VolumeId) -> bool {
        self.keyring.of(volume).is_some()
    }

    /// Whether any volume is, as far as this node knows.
    pub fn has_sealed(&self) -> bool {
        !self.keyring.is_empty()
    }

    /// Whether a key was wrapped by another key-encryption key than that which wraps now.
    pub fn is_former(&self, row: &DataKeyRow) -> bool {
        self.keks.first().is_some_and(|kek| kek.id() != row.kek)
    }

    /// Wraps a key for the catalog.
    pub fn wrap(&self, volume: VolumeId, key: &DataKey, created_ms: u64) -> Result<DataKeyRow> {
        let broken = |fault| StoreError::new(ErrorKind::Unavailable, format!("a data key: {fault}"));
        let none = || StoreError::new(ErrorKind::Unavailable, "this node has no key-encryption key");
        let kek = self.keks.first().ok_or_else(none)?;
        let wrapped = kek.wrap(volume, key).map_err(broken)?;
        Ok(DataKeyRow { epoch: key.epoch().0, wrapped, kek: kek.id().to_owned(), created_ms })
    }

    /// The keys that a row has; locked if the key-encryption key of one of them is not here.
    pub fn unlock(&self, volume: VolumeId, row: &DataKeysRow) -> VolumeKeys {
        let mut keys = std::collections::BTreeMap::new();
        for key in &row.epochs {
            match self.unwrap(volume, key) {
                Ok(open) => keys.insert(key.epoch, Arc::new(open)),
                Err(why) => return VolumeKeys::Locked(why),
            };
        }
        VolumeKeys::Open(keys)
    }

    fn unwrap(&self, volume: VolumeId, row: &DataKeyRow) -> std::result::Result<DataKey, String> {
        let kek = self.keks.iter().find(|kek| kek.id() == row.kek).ok_or_else(|| {
            let here: Vec<&str> = self.keks.iter().map(WrappingKey::id).collect();
            let here = if here.is_empty() { "none".to_owned() } else { here.join(", ") };
            format!("it is wrapped by the key-encryption key {}, and this node has {here}", row.kek)
        })?;
        kek.unwrap(volume, KeyId(row.epoch), &row.wrapped).map_err(|fault| fault.to_string())
    }

    /// Seals what belongs to encrypted volumes and is not sealed yet, where it lies.
    pub fn seal(&self, puts: &mut [Put]) -> Result<()> {
        for put in puts.iter_mut().filter(|put| put.seal.is_none()) {
            let Some(keys) = self.keyring.of(put.volume) else { continue };
            let key = match (&*keys, put.kind) {
                // Files of such a volume can still be deleted. The records of that are of no use to anybody, and nobody can read them.
                (VolumeKeys::Destroyed(_), RecordKind::Name) => Arc::new(throwaway()?),
                _ => keys.newest().ok_or_else(|| missing(put.volume, &keys, None))?,
            };
            if put.payload.len() > SEALED_LEN_MAX {
                let message = format!(
                    "chunks of an encrypted volume have at most {SEALED_LEN_MAX} bytes, not {}",
                    put.payload.len()
                );
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            let place = place_of(put.volume, put.chunk, put.payload.len() as u32);
            let sealed = key.seal(&place, put.payload.as_mut_slice());
            let broken = |fault| StoreError::new(ErrorKind::Unavailable, format!("no random bytes: {fault}"));
            put.seal = Some(Arc::new(sealed.map_err(broken)?));
        }
        Ok(())
    }

    /// The key of an epoch of a volume.
    pub fn key(&self, volume: VolumeId, epoch: KeyId) -> Result<Arc<DataKey>> {
        let keys = self.keyring.of(volume).ok_or_else(|| unknown(volume, epoch))?;
        keys.epoch(epoch).ok_or_else(|| missing(volume, &keys, Some(epoch)))
    }

    /// How the bytes of a volume lie on drives, in words; none if as they are.
    pub fn summary(&self, volume: VolumeId) -> Option<String> {
        let keys = self.keyring.of(volume)?;
        Some(match keys.newest() {
            Some(key) => {
                format!(
                    "encrypted on drives (aes-256-gcm, data key {}); objects in the lake are plain",
                    key.epoch().0
                )
            }
            None => missing(volume, &keys, None).message,
        })
    }

    /// Refuses reads and writes of a volume whose keys are not to be had, before anything that is in memory is looked at.
    pub fn check(&self, volume: VolumeId) -> Result<()> {
        match self.keyring.of(volume) {
            Some(keys) if keys.newest().is_none() => Err(missing(volume, &keys, None)),
            _ => Ok(()),
        }
    }
}

/// A key that nobody keeps.
fn throwaway() -> Result<DataKey> {
    let random = |fault| StoreError::new(ErrorKind::Unavailable, format!("no random bytes: {fault}"));
    Ok(DataKey::new(KeyId(u32::MAX), Secret::draw().map_err(random)?))
}

fn unknown(volume: VolumeId, epoch: KeyId) -> StoreError {
    let message = format!("data key {} of volume {} is not known here yet", epoch.0, volume.0);
    StoreError::about(ErrorKind::Unavailable, Subject::Volume, message)
}

/// Why there is no key.
fn missing(volume: VolumeId, keys: &VolumeKeys, epoch: Option<KeyId>) -> StoreError {
    match (keys, epoch) {
        (VolumeKeys::Destroyed(_), _) => {
            let message = "the data keys of this volume were destroyed (`stoker data-key ls` says when): what they encrypted on drives \
                           cannot be read by anybody any more; delete the volume to free its space";
            StoreError::about(ErrorKind::Denied, Subject::Volume, message)
        }
        (VolumeKeys::Locked(why), _) => {
            let message = format!(
                "the data keys of volume {} cannot be opened: {why}; give this node the key with `[keys] file`, and start it again",
                volume.0
            );
            StoreError::about(ErrorKind::Unavailable, Subject::Volume, message)
        }
        (VolumeKeys::Open(_), epoch) => unknown(volume, epoch.unwrap_or(KeyId(0))),
    }
}

fn read_key(path: &Path) -> Result<Secret> {
    key_file::read(path).map_err(|fault| {
        let message = format!("the key-encryption key {}: {fault}", path.display());
        let kind = match fault {
            KeyFileError::Io(_) => ErrorKind::Unavailable,
            KeyFileError::Wrong(_) => ErrorKind::Invalid,
        };
        StoreError::new(kind, message)
    })
}
