//! File handles. One says by itself what it is of, so every node understands it, before and after a restart.
//!
//! A directory is its number in the catalog, which it keeps when it is renamed. Anything else is its number, the
//! directory that it was found in, and its name, of a long one the front: the catalog finds files by name only. A file
//! that was renamed is known by its old handle as long as this process remembers it, and is stale after that.

use bytes::Bytes;
use stoker_format::{VolumeId, crc64};

/// Longest handle of NFSv3.
pub const HANDLE_LEN_MAX: usize = 64;

const FORMAT: u8 = 1;
const HEAD: usize = 8;
const NUMBERS: usize = HEAD + 4 + 8 + 8;
const FRONT_MAX: usize = HANDLE_LEN_MAX - NUMBERS;

/// What a handle is of.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Handle {
    pub volume: VolumeId,
    pub ino: u64,
    /// Where it hangs; none for a directory.
    pub place: Option<Place>,
}

/// Where something was found.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    pub parent: u64,
    /// The front of its name.
    pub front: Vec<u8>,
    /// The front is all of it.
    pub is_whole: bool,
}

impl Handle {
    pub fn directory(volume: VolumeId, ino: u64) -> Handle {
        Handle { volume, ino, place: None }
    }

    pub fn file(volume: VolumeId, ino: u64, parent: u64, name: &[u8]) -> Handle {
        let front = name[..name.len().min(FRONT_MAX)].to_vec();
        Handle { volume, ino, place: Some(Place { parent, is_whole: front.len() == name.len(), front }) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (kind, parent, front): (u8, u64, &[u8]) = match &self.place {
            None => (0, 0, b""),
            Some(place) => (if place.is_whole { 1 } else { 2 }, place.parent, &place.front),
        };
        let mut bytes = vec![FORMAT, kind, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&self.volume.0.to_be_bytes());
        bytes.extend_from_slice(&self.ino.to_be_bytes());
        bytes.extend_from_slice(&parent.to_be_bytes());
        bytes.extend_from_slice(front);
        let check = check(&bytes);
        bytes[4..HEAD].copy_from_slice(&check);
        bytes
    }

    /// None for what was never a handle of ours.
    pub fn decode(bytes: &Bytes) -> Option<Handle> {
        if bytes.len() < NUMBERS
            || bytes.len() > HANDLE_LEN_MAX
            || bytes[0] != FORMAT
            || bytes[2..4] != [0, 0]
        {
            return None;
        }
        let mut plain = bytes.to_vec();
        plain[4..HEAD].fill(0);
        if bytes[4..HEAD] != check(&plain) {
            return None;
        }
        let number = |at: usize| Some(u64::from_be_bytes(bytes[at..at + 8].try_into().ok()?));
        let volume = VolumeId(u32::from_be_bytes(bytes[HEAD..HEAD + 4].try_into().ok()?));
        let (ino, parent, front) = (number(HEAD + 4)?, number(HEAD + 12)?, bytes[NUMBERS..].to_vec());
        let place = match bytes[1] {
            0 if parent == 0 && front.is_empty() => None,
            1 if !front.is_empty() => Some(Place { parent, front, is_whole: true }),
            2 if front.len() == FRONT_MAX => Some(Place { parent, front, is_whole: false }),
            _ => return None,
        };
        Some(Handle { volume, ino, place })
    }
}

/// Tells a handle from other bytes. It is no secret: who may use a volume is asked with every request.
fn check(bytes: &[u8]) -> [u8; 4] {
    let crc = crc64(bytes);
    ((crc >> 32) as u32 ^ crc as u32).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles_fit_and_come_back() {
        let check = |handle: Handle| {
            let bytes = handle.encode();
            assert!(bytes.len() <= HANDLE_LEN_MAX);
            assert_eq!(Handle::decode(&bytes.into()), Some(handle));
        };
        check(Handle::directory(VolumeId(3), 1));
        check(Handle::file(VolumeId(3), u64::MAX, 7, b"a"));
        check(Handle::file(VolumeId(3), 9, 7, &[b'x'; FRONT_MAX]));
        check(Handle::file(VolumeId(3), 9, 7, &[b'x'; FRONT_MAX + 1]));
        check(Handle::file(VolumeId(3), 9, 7, &[b'x'; 255]));
    }

    /// The bytes are kept by clients over releases.
    #[test]
    fn the_format_stays() {
        let bytes = Handle::file(VolumeId(3), 0x0102, 7, b"ab").encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex.len(), 60);
        assert_eq!(&hex[..8], "01010000");
        assert_eq!(&hex[16..], "00000003000000000000010200000000000000076162");
    }

    proptest! {
        #[test]
        fn other_bytes_are_no_handles(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Handle::decode(&bytes.into()), None);
        }

        #[test]
        fn a_changed_handle_is_none(at in 0usize..30, change in 1u8..) {
            let mut bytes = Handle::file(VolumeId(3), 9, 7, b"name").encode();
            bytes[at] ^= change;
            prop_assert_eq!(Handle::decode(&bytes.into()), None);
        }
    }
}
