//! How plain bytes become stored bytes (R15), and back.
//!
//! A payload is sealed in blocks of 4 KiB, each by AES-256-GCM with a tag of its own, so that a read of 4 KiB opens 4 KiB. Ciphertext is
//! as long as the bytes and lies where they would; the tags lie in the header of the record beside the CRCs of the same blocks.
//! Nothing depends on where a record lies, so every copy and every move of it is the same ciphertext.
//!
//! **No nonce is used twice for other bytes under one key.** The key that AES uses is not the data key. It is derived for one sealing:
//!
//! ```text
//! key of a sealing = HMAC-SHA256(data key, purpose | salt (16 random bytes) | volume | epoch | chunk | kind | length of the payload)
//! nonce of a block = number of the block
//! ```
//!
//! Within a sealing each block has another number, so another nonce. Two sealings have the same key only if they drew the same salt, of
//! 128 random bits, for the same chunk, kind and length. So it does not matter for what a chunk id is used again:
//! - a chunk that comes back from the lake, or of which only the front comes back: another salt, and of a front another length;
//! - a name record that is written again under the id of its version with other contents: another salt;
//! - a chunk that was spilled and is staged later, or that another node stages: another salt;
//! - a retry of an append, a copy to a peer, repair, relocation: the ciphertext is kept with its salt, nothing is sealed again;
//! - a chunk that a copy refers to: the record is the same one, and it stays under the keys of its volume;
//! - ids that repeat because a clock or a catalog went back: another salt.
//!
//! What is derived into the key needs no other authentication: a block of another chunk, volume, epoch, kind, or of a payload that was
//! cut off, opens under none of these keys, and a block at another place has another nonce.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use stoker_format::{BLOCK, ChunkId, KeyId, RecordKind, SEAL_TAG_LEN, Seal, VolumeId};
use zeroize::Zeroize;

use crate::Secret;

/// What the derived keys are for, so that no other use of a data key gives the same ones.
const PURPOSE: &[u8] = b"stoker sealed record, 1";

/// The payload that is sealed or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its volume.
    pub volume: VolumeId,
    /// Its chunk, or the id of its name record.
    pub chunk: ChunkId,
    /// What it is.
    pub kind: RecordKind,
    /// Bytes of all of it.
    pub len: u32,
}

/// A data key of a volume.
pub struct DataKey {
    epoch: KeyId,
    secret: Secret,
    derive: hmac::Key,
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey(epoch {})", self.epoch.0)
    }
}

impl DataKey {
    /// The key of an epoch.
    pub fn new(epoch: KeyId, secret: Secret) -> DataKey {
        let derive = hmac::Key::new(hmac::HMAC_SHA256, secret.bytes());
        DataKey { epoch, secret, derive }
    }

    /// Its epoch.
    pub fn epoch(&self) -> KeyId {
        self.epoch
    }

    /// For whoever wraps it.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    fn key_of(&self, place: &Place, salt: &[u8; 16]) -> LessSafeKey {
        let mut context = hmac::Context::with_key(&self.derive);
        context.update(PURPOSE);
        context.update(salt);
        context.update(&place.volume.0.to_le_bytes());
        context.update(&self.epoch.0.to_le_bytes());
        context.update(&place.chunk.to_bytes());
        context.update(&[place.kind as u8]);
        context.update(&place.len.to_le_bytes());
        let mut key = [0; 32];
        key.copy_from_slice(context.sign().as_ref());
        let derived = UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes are a key");
        key.zeroize();
        LessSafeKey::new(derived)
    }

    /// Seals a payload where it lies; panics if it is not as long as the place says.
    pub fn seal(&self, place: &Place, payload: &mut [u8]) -> Result<Seal, getrandom::Error> {
        assert_eq!(payload.len(), place.len as usize, "a payload is sealed whole");
        let mut salt = [0; 16];
        getrandom::fill(&mut salt)?;
        let key = self.key_of(place, &salt);
        let mut tags = Vec::with_capacity(payload.len().div_ceil(BLOCK) * SEAL_TAG_LEN);
        for (number, block) in payload.chunks_mut(BLOCK).enumerate() {
            let tag = key.seal_in_place_separate_tag(nonce(number), Aad::empty(), block);
            tags.extend_from_slice(tag.expect("a block can be sealed").as_ref());
        }
        Ok(Seal { key: self.epoch, salt, tags })
    }

    /// Opens whole blocks where they lie, the first of them with this number; false if one was not sealed so. Then nothing of them is
    /// to be used.
    #[must_use]
    pub fn open(&self, place: &Place, seal: &Seal, first: usize, blocks: &mut [u8]) -> bool {
        let tags = first * SEAL_TAG_LEN..(first + blocks.len().div_ceil(BLOCK)) * SEAL_TAG_LEN;
        match seal.tags.get(tags) {
            Some(tags) if seal.fits(place.len as usize) && seal.key == self.epoch => {
                self.open_blocks(place, &seal.salt, first, tags, blocks)
            }
            _ => false,
        }
    }

    /// The same with the tags of these blocks alone.
    #[must_use]
    pub fn open_blocks(
        &self,
        place: &Place,
        salt: &[u8; 16],
        first: usize,
        tags: &[u8],
        blocks: &mut [u8],
    ) -> bool {
        let end = first.checked_mul(BLOCK).and_then(|start| start.checked_add(blocks.len()));
        let is_whole = |end: &usize| *end == place.len as usize || end.is_multiple_of(BLOCK);
        if end.filter(is_whole).is_none_or(|end| end > place.len as usize)
            || tags.len() != blocks.len().div_ceil(BLOCK) * SEAL_TAG_LEN
        {
            return false;
        }
        let key = self.key_of(place, salt);
        blocks.chunks_mut(BLOCK).zip(tags.chunks_exact(SEAL_TAG_LEN)).enumerate().all(|(at, (block, tag))| {
            key.open_in_place_separate_tag(nonce(first + at), Aad::empty(), tag, block).is_ok()
        })
    }
}

fn nonce(number: usize) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stoker_format::VersionId;

    use super::*;

    fn key(epoch: u32) -> DataKey {
        DataKey::new(KeyId(epoch), Secret::of(&[7; 32]).unwrap())
    }

    fn place(len: usize) -> Place {
        let chunk = ChunkId::new(VersionId([3; 12]), 5);
        Place { volume: VolumeId(9), chunk, kind: RecordKind::Chunk, len: len as u32 }
    }

    fn plain(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_run_of_whole_blocks_opens_alone(len in 1usize..40_000, first in 0usize..10, count in 1usize..10) {
            let (key, place, plain) = (key(1), place(len), plain(len));
            let mut bytes = plain.clone();
            let seal = key.seal(&place, &mut bytes).unwrap();
            let blocks = len.div_ceil(BLOCK);
            let first = first % blocks;
            let range = first * BLOCK..((first + count) * BLOCK).min(len);
            let mut part = bytes[range.clone()].to_vec();
            prop_assert!(key.open(&place, &seal, first, &mut part));
            prop_assert_eq!(&part, &plain[range]);
        }
    }

    #[test]
    fn what_was_not_sealed_so_does_not_open() {
        let (key, place) = (key(1), place(3 * BLOCK));
        let mut sealed = plain(3 * BLOCK);
        let seal = key.seal(&place, &mut sealed).unwrap();
        let opens = |place: &Place, seal: &Seal, first: usize, bytes: &[u8]| {
            key.open(place, seal, first, &mut bytes.to_vec())
        };
        assert!(opens(&place, &seal, 0, &sealed));
        // A flipped bit, in any block.
        for at in [0, BLOCK + 17, 3 * BLOCK - 1] {
            let mut flipped = sealed.clone();
            flipped[at] ^= 1;
            assert!(!opens(&place, &seal, 0, &flipped), "{at}");
        }
        // Blocks that changed places, with or without their tags.
        let mut swapped = sealed.clone();
        swapped[..2 * BLOCK].rotate_left(BLOCK);
        assert!(!opens(&place, &seal, 0, &swapped));
        let mut tags = seal.tags.clone();
        tags[..2 * SEAL_TAG_LEN].rotate_left(SEAL_TAG_LEN);
        assert!(!opens(&place, &Seal { tags, ..seal.clone() }, 0, &swapped));
        // One that was cut off at a block.
        let short = Seal { tags: seal.tags[..2 * SEAL_TAG_LEN].to_vec(), ..seal.clone() };
        assert!(!opens(&Place { len: 2 * BLOCK as u32, ..place }, &short, 0, &sealed[..2 * BLOCK]));
        // Of another chunk, volume, kind, epoch, salt.
        let chunk = ChunkId::new(VersionId([3; 12]), 6);
        for other in [
            Place { chunk, ..place },
            Place { volume: VolumeId(8), ..place },
            Place { kind: RecordKind::Name, ..place },
        ] {
            assert!(!opens(&other, &seal, 0, &sealed));
        }
        assert!(!opens(&place, &Seal { salt: [0; 16], ..seal.clone() }, 0, &sealed));
        assert!(!opens(&place, &Seal { key: KeyId(2), ..seal.clone() }, 0, &sealed));
        // Ranges that are not whole blocks, or behind the end, are refused and do not panic.
        assert!(!opens(&place, &seal, 0, &sealed[..100]));
        assert!(!opens(&place, &seal, 1, &sealed));
    }

    /// The same bytes, and other bytes, under one chunk id, as often as a chunk comes back: no key of AES is used twice.
    #[test]
    fn no_key_of_a_sealing_repeats() {
        let key = key(1);
        let mut seen = std::collections::HashSet::new();
        for round in 0..300usize {
            // The same chunk whole, its front, and other bytes of the same length.
            let len = [BLOCK, 100, BLOCK][round % 3];
            let mut bytes = vec![if round % 3 == 2 { 1 } else { 0 }; len];
            let seal = key.seal(&place(len), &mut bytes).unwrap();
            assert!(seen.insert(seal.salt), "a salt came twice");
            // Of zeros the ciphertext is the key stream: if one repeated, so would its first bytes.
            if round % 3 < 2 {
                assert!(seen.insert(bytes[..16].try_into().unwrap()), "a key stream came twice");
            }
        }
    }

    /// `cargo test -p stoker-keys --release -- --ignored --nocapture how_fast`
    #[test]
    #[ignore = "prints figures of this machine"]
    #[expect(clippy::disallowed_methods, reason = "figures are what it is for")]
    fn how_fast() {
        let key = key(1);
        for len in [4 << 10, 64 << 10, 4 << 20] {
            let (place, rounds) = (place(len), (256 << 20) / len);
            let mut bytes = plain(len);
            let begun = std::time::Instant::now();
            let mut seal = None;
            for _ in 0..rounds {
                seal = Some(key.seal(&place, &mut bytes).unwrap());
            }
            let sealed = begun.elapsed();
            let (seal, sealed_bytes) = (seal.unwrap(), bytes.clone());
            let mut spent = std::time::Duration::ZERO;
            for _ in 0..rounds {
                bytes.copy_from_slice(&sealed_bytes);
                let begun = std::time::Instant::now();
                assert!(key.open(&place, &seal, 0, &mut bytes));
                spent += begun.elapsed();
            }
            let rate = |took: std::time::Duration| 256.0 / took.as_secs_f64();
            eprintln!("{len} bytes: seal {:.0} MiB/s, open {:.0} MiB/s", rate(sealed), rate(spent));
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", key(3)), "DataKey(epoch 3)");
    }
}
