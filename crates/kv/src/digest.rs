//! What blocks are called: digests that carry what made them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use aws_lc_rs::digest::{SHA256, digest};

/// In front of the fields of a fingerprint, so that no other use of the hash gives the same.
const FINGERPRINT_PREFIX: &[u8] = b"stoker kv fingerprint 1\0";

/// What made the blocks: model, engine, layout, type of numbers, parallelism. Blocks of another fingerprint are never found.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of names and values, in whatever order they come. The same name twice counts twice.
    pub fn of<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Fingerprint {
        let mut fields: Vec<(&str, &str)> = fields.into_iter().collect();
        fields.sort_unstable();
        let mut bytes = FINGERPRINT_PREFIX.to_vec();
        for (name, value) in fields {
            for text in [name, value] {
                // With its length, so that no two lists of fields read alike.
                bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, &bytes).as_ref());
        Fingerprint(out)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What a block is called in bundles and in memory: the first half of SHA-256 over fingerprint and key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Makes digests of keys, many in a row.
pub struct Namer {
    scratch: Vec<u8>,
}

impl Namer {
    /// For keys under a fingerprint.
    pub fn new(fingerprint: &Fingerprint) -> Namer {
        Namer { scratch: fingerprint.0.to_vec() }
    }

    /// The digest of a key.
    pub fn name(&mut self, key: &[u8]) -> Digest {
        self.scratch.truncate(32);
        self.scratch.extend_from_slice(key);
        let whole = digest(&SHA256, &self.scratch);
        let mut out = [0; 16];
        out.copy_from_slice(&whole.as_ref()[..16]);
        Digest(out)
    }
}

/// A map by digest. A digest is as random as a hash, and nobody can choose it.
pub(crate) type DigestMap<T> = HashMap<Digest, T, BuildHasherDefault<FirstEight>>;

/// The first eight bytes of a digest.
#[derive(Default)]
pub(crate) struct FirstEight(u64);

impl Hasher for FirstEight {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    /// The length of the array, which is always the same.
    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_know_no_order_and_no_ambiguity() {
        let one = Fingerprint::of([("model", "m"), ("dtype", "bf16")]);
        assert_eq!(one, Fingerprint::of([("dtype", "bf16"), ("model", "m")]));
        let others = [
            Fingerprint::of([("model", "m")]),
            Fingerprint::of([("model", "mdtype"), ("", "bf16")]),
            Fingerprint::of([("model", "m"), ("dtype", "bf1"), ("6", "")]),
            Fingerprint::of([]),
        ];
        assert!(others.iter().all(|other| *other != one));
    }

    #[test]
    fn digests_depend_on_fingerprint_and_key() {
        let (a, b) = (Fingerprint::of([("model", "a")]), Fingerprint::of([("model", "b")]));
        let (mut of_a, mut of_b) = (Namer::new(&a), Namer::new(&b));
        assert_eq!(of_a.name(b"key"), of_a.name(b"key"));
        assert_ne!(of_a.name(b"key"), of_b.name(b"key"));
        assert_ne!(of_a.name(b"key"), of_a.name(b"key2"));
        assert_ne!(of_a.name(b""), of_a.name(b"\0"));
    }
}
