//! The data keys that a node has open.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use stoker_format::{KeyId, VolumeId};

use crate::DataKey;

/// The keys of an encrypted volume.
#[derive(Debug)]
pub enum VolumeKeys {
    /// They are not here yet, for this reason: the key-encryption key cannot be had now.
    Locked(String),
    /// Open, by epoch; the highest seals what is new.
    Open(BTreeMap<u32, Arc<DataKey>>),
    /// Destroyed at that time, milliseconds since 1970: nothing opens what they sealed.
    Destroyed(u64),
}

impl VolumeKeys {
    /// The key that seals what is new.
    pub fn newest(&self) -> Option<Arc<DataKey>> {
        match self {
            VolumeKeys::Open(keys) => keys.last_key_value().map(|(_, key)| key.clone()),
            VolumeKeys::Locked(_) | VolumeKeys::Destroyed(_) => None,
        }
    }

    /// The key of an epoch.
    pub fn epoch(&self, epoch: KeyId) -> Option<Arc<DataKey>> {
        match self {
            VolumeKeys::Open(keys) => keys.get(&epoch.0).cloned(),
            VolumeKeys::Locked(_) | VolumeKeys::Destroyed(_) => None,
        }
    }
}

/// What a node knows of its encrypted volumes. A volume that is not in it is plain.
#[derive(Default, Debug)]
pub struct Keyring(RwLock<HashMap<u32, Arc<VolumeKeys>>>);

impl Keyring {
    /// The keys of a volume; none if it is plain.
    pub fn of(&self, volume: VolumeId) -> Option<Arc<VolumeKeys>> {
        self.0.read().unwrap().get(&volume.0).cloned()
    }

    /// Whether every volume is plain.
    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap().is_empty()
    }

    /// Takes the keys of a volume. Keys that were destroyed do not come back; those that are open are not given up for locked ones.
    pub fn set(&self, volume: VolumeId, keys: VolumeKeys) {
        let mut all = self.0.write().unwrap();
        let stays = match (all.get(&volume.0).map(Arc::as_ref), &keys) {
            (Some(VolumeKeys::Destroyed(_)), _) => true,
            (Some(VolumeKeys::Open(_)), VolumeKeys::Locked(_)) => true,
            (Some(VolumeKeys::Open(old)), VolumeKeys::Open(new)) => old.len() > new.len(),
            _ => false,
        };
        if !stays {
            all.insert(volume.0, Arc::new(keys));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    fn open(epochs: u32) -> VolumeKeys {
        let key = |epoch| (epoch, Arc::new(DataKey::new(KeyId(epoch), Secret::of(&[1; 32]).unwrap())));
        VolumeKeys::Open((1..=epochs).map(key).collect())
    }

    #[test]
    fn what_is_known_of_keys_does_not_go_back() {
        let (ring, volume) = (Keyring::default(), VolumeId(4));
        assert!(ring.of(volume).is_none());
        ring.set(volume, VolumeKeys::Locked("away".into()));
        assert!(ring.of(volume).unwrap().newest().is_none());
        ring.set(volume, open(2));
        ring.set(volume, open(1));
        ring.set(volume, VolumeKeys::Locked("away".into()));
        let keys = ring.of(volume).unwrap();
        assert_eq!(keys.newest().unwrap().epoch(), KeyId(2));
        assert!(keys.epoch(KeyId(1)).is_some() && keys.epoch(KeyId(3)).is_none());
        ring.set(volume, VolumeKeys::Destroyed(5));
        ring.set(volume, open(3));
        assert!(matches!(*ring.of(volume).unwrap(), VolumeKeys::Destroyed(5)));
    }
}
