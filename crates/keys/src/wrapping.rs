//! Wrapping of data keys by a key-encryption key whose bytes are here.
//!
//! A wrapped key is `1 | nonce (12) | ciphertext (32) | tag (16)`, by AES-256-GCM with a random nonce; volume and epoch are authenticated, so
//! that a wrapped key cannot be taken for that of another volume.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hmac};
use stoker_format::{KeyId, VolumeId};
use zeroize::Zeroize;

use crate::{DataKey, Secret};

const FORM: u8 = 1;
const NONCE_LEN: usize = 12;

/// What is derived of a secret of the cluster, so that no other use of it gives the same key.
const PURPOSE: &[u8] = b"stoker: data keys of volumes, 1";

/// A key-encryption key.
pub struct WrappingKey {
    /// Names it, and tells nothing of it.
    id: String,
    key: LessSafeKey,
}

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappingKey({})", self.id)
    }
}

/// Why a data key cannot be unwrapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WrapError {
    /// The bytes have a form that this release does not know, or were damaged.
    Damaged,
    /// The operating system gave no random bytes.
    Entropy,
}

impl fmt::Display for WrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WrapError::Damaged => "the wrapped key is damaged, or was wrapped by another key",
            WrapError::Entropy => "the operating system gives no random bytes",
        })
    }
}

impl std::error::Error for WrapError {}

impl WrappingKey {
    /// A key that is in a file of its own, by the 32 bytes of it.
    pub fn of_file(secret: &Secret) -> WrappingKey {
        WrappingKey::new("file", secret.bytes())
    }

    /// A key that is made of the secret of a cluster.
    pub fn of_cluster(secret: &Secret) -> WrappingKey {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()), PURPOSE);
        WrappingKey::new("cluster", derived.as_ref())
    }

    fn new(source: &str, bytes: &[u8]) -> WrappingKey {
        let print = digest::digest(&digest::SHA256, &[b"stoker key id, 1", bytes].concat());
        let print: String = print.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("32 bytes are a key");
        WrappingKey { id: format!("{source}:{print}"), key: LessSafeKey::new(key) }
    }

    /// Its name: where it comes from, and a fingerprint.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Wraps a data key of a volume.
    pub fn wrap(&self, volume: VolumeId, key: &DataKey) -> Result<Vec<u8>, WrapError> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| WrapError::Entropy)?;
        let mut sealed = key.secret().bytes().to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(context(volume, key.epoch())),
                &mut sealed,
            )
            .expect("a short secret can be wrapped");
        Ok([&[FORM][..], &nonce, &sealed].concat())
    }

    /// A data key of a volume.
    pub fn unwrap(&self, volume: VolumeId, epoch: KeyId, wrapped: &[u8]) -> Result<DataKey, WrapError> {
        let Some((&FORM, rest)) = wrapped.split_first() else { return Err(WrapError::Damaged) };
        let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_LEN>() else {
            return Err(WrapError::Damaged);
        };
        let mut opened = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let secret = match self.key.open_in_place(nonce, Aad::from(context(volume, epoch)), &mut opened) {
            Ok(secret) => Secret::of(secret),
            Err(_) => None,
        };
        opened.zeroize();
        secret.map(|secret| DataKey::new(epoch, secret)).ok_or(WrapError::Damaged)
    }
}

fn context(volume: VolumeId, epoch: KeyId) -> Vec<u8> {
    [&b"stoker data key, 1"[..], &volume.0.to_le_bytes(), &epoch.0.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_key_comes_back_to_its_volume_alone() {
        let kek = WrappingKey::of_cluster(&Secret::of(&[1; 32]).unwrap());
        let other = WrappingKey::of_file(&Secret::of(&[1; 32]).unwrap());
        assert_ne!(kek.id(), other.id());
        let key = DataKey::new(KeyId(2), Secret::of(&[5; 32]).unwrap());
        let wrapped = kek.wrap(VolumeId(7), &key).unwrap();
        assert!(!wrapped.windows(8).any(|bytes| bytes == [5; 8]));
        let back = kek.unwrap(VolumeId(7), KeyId(2), &wrapped).unwrap();
        assert_eq!((back.epoch(), back.secret().bytes()), (KeyId(2), &[5; 32]));
        assert_eq!(kek.unwrap(VolumeId(8), KeyId(2), &wrapped).unwrap_err(), WrapError::Damaged);
        assert_eq!(kek.unwrap(VolumeId(7), KeyId(1), &wrapped).unwrap_err(), WrapError::Damaged);
        assert_eq!(other.unwrap(VolumeId(7), KeyId(2), &wrapped).unwrap_err(), WrapError::Damaged);
        for at in 0..wrapped.len() {
            assert!(kek.unwrap(VolumeId(7), KeyId(2), &wrapped[..at]).is_err(), "{at}");
            let mut damaged = wrapped.clone();
            damaged[at] ^= 1;
            assert!(kek.unwrap(VolumeId(7), KeyId(2), &damaged).is_err(), "{at}");
        }
    }
}
