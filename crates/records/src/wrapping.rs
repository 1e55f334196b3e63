//! Secrets in the catalog are wrapped by the cluster's key, so that a copy of the catalog (its file, a backup, a
//! database) opens no bucket to whoever reads it. (D82)
//!
//! The key is made of the secret in `cluster.keys`, which every node of the cluster has and no catalog. When that
//! secret is replaced (`stoker key rotate --authority`), the file keeps the former ones, too; rows
//! are wrapped anew when a node starts. A node that is in no cluster has no key, and its rows are plain.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;

use stoker_host::clock;

/// What the wrapping key is for, so that no other use of the secret gives the same one.
const PURPOSE: &[u8] = b"stoker: secrets in the catalog, 1";
const NONCE_BYTES: usize = 12;

/// The keys by which secrets are wrapped.
#[derive(Default)]
pub struct WrappingKeys {
    /// The first wraps, all of them unwrap.
    keys: Vec<LessSafeKey>,
}

/// A secret that was wrapped.
#[derive(Debug, PartialEq, Eq)]
pub struct Unwrapped {
    /// It.
    pub secret: Vec<u8>,
    /// By a key that is replaced.
    pub is_former: bool,
}

impl WrappingKeys {
    /// Made of the secrets of a cluster, the newest first.
    pub fn of(secrets: &[[u8; 32]]) -> WrappingKeys {
        let key = |secret: &[u8; 32]| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
            let key = UnboundKey::new(&AES_256_GCM, tag.as_ref()).expect("32 bytes are a key");
            LessSafeKey::new(key)
        };
        WrappingKeys { keys: secrets.iter().map(key).collect() }
    }

    /// Whether secrets are wrapped at all.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Wraps the secret of `owner`, to whom alone it can be given back; `None` without a key.
    pub fn wrap(&self, owner: &str, secret: &[u8]) -> Option<String> {
        let key = self.keys.first()?;
        let nonce = clock::random::<NONCE_BYTES>();
        let mut bytes = secret.to_vec();
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(owner.as_bytes()),
            &mut bytes,
        )
        .expect("a short secret can be wrapped");
        Some([&nonce[..], &bytes].concat().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The secret of `owner`; `None` if no key here wrapped it.
    pub fn unwrap(&self, owner: &str, wrapped: &str) -> Option<Unwrapped> {
        let bytes = unhex(wrapped)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        self.keys.iter().enumerate().find_map(|(index, key)| {
            let mut opened = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let secret = key.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut opened).ok()?;
            Some(Unwrapped { secret: secret.to_vec(), is_former: index > 0 })
        })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_back_to_its_owner_alone() {
        let keys = WrappingKeys::of(&[[1; 32]]);
        let wrapped = keys.wrap("AKIA", b"a secret").unwrap();
        assert!(!wrapped.contains("secret"));
        assert_ne!(keys.wrap("AKIA", b"a secret").unwrap(), wrapped, "no nonce is used twice");
        let secret = Unwrapped { secret: b"a secret".to_vec(), is_former: false };
        assert_eq!(keys.unwrap("AKIA", &wrapped), Some(secret));
        assert_eq!(keys.unwrap("other", &wrapped), None);
        assert_eq!(WrappingKeys::of(&[[2; 32]]).unwrap("AKIA", &wrapped), None);
        let rotated = WrappingKeys::of(&[[2; 32], [1; 32]]);
        assert!(rotated.unwrap("AKIA", &wrapped).unwrap().is_former);
        for damaged in
            ["", "0", "zz", "\u{e9}\u{e9}", &wrapped[..30], &wrapped.replace(&wrapped[40..42], "ff")]
        {
            assert_eq!(keys.unwrap("AKIA", damaged), None, "{damaged}");
        }
        assert_eq!(WrappingKeys::default().wrap("AKIA", b"a secret"), None);
    }
}
