//! File handles. One says by itself what it is of, so every node understands it, before and after a restart.
//!
//! A directory is its number in the catalog, which it keeps when it is renamed. Anything else is its number, the
//! directory that it was found in, and its name, of a long one the front: the catalog finds files by name only. A file
//! that was renamed is known by its old handle as long as this process remembers it, and is stale after that.
//!
//! A handle is a key to what it is of: whoever has one was let into its directory once. So each carries a MAC under a key that
//! only the nodes of the cluster know, and cannot be guessed. Handles of format 1 had a checksum that anybody could compute; of
//! those the root is still known, which everybody gets who mounts, so that mounts outlive the change. The rest is stale.

use std::fmt;

use aws_lc_rs::{constant_time, hmac};
use bytes::Bytes;
use stoker_files::ROOT;
use stoker_format::{VolumeId, crc64};

/// Longest handle of NFSv3.
pub const HANDLE_LEN_MAX: usize = 64;

const FORMAT: u8 = 2;
const MAC: std::ops::Range<usize> = 2..12;
const NUMBERS: usize = MAC.end + 4 + 8 + 8;
const FRONT_MAX: usize = HANDLE_LEN_MAX - NUMBERS;

/// Format 1: kind, two zeros, a checksum of four bytes, then the same numbers.
const FORMAT_OLD: u8 = 1;
const HEAD_OLD: usize = 8;
const NUMBERS_OLD: usize = HEAD_OLD + 4 + 8 + 8;

/// The key that tells handles of the cluster from all others; the same on all its nodes. (D76)
#[derive(Clone)]
pub struct HandleKey(hmac::Key);

impl HandleKey {
    /// Of 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> HandleKey {
        HandleKey(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The MAC of a handle, whatever stands in its place.
    fn mac(&self, bytes: &[u8]) -> [u8; MAC.end - MAC.start] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(b"stoker nfs handle\0");
        context.update(&bytes[..MAC.start]);
        context.update(&bytes[MAC.end..]);
        let mut mac = [0; MAC.end - MAC.start];
        mac.copy_from_slice(&context.sign().as_ref()[..MAC.end - MAC.start]);
        mac
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey")
    }
}

/// Why bytes are no handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHandle {
    /// They never were one of ours.
    Foreign,
    /// They look like one: of an older release, of another cluster, or made up.
    Unknown,
}

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

    pub fn encode(&self, key: &HandleKey) -> Vec<u8> {
        let (kind, parent, front): (u8, u64, &[u8]) = match &self.place {
            None => (0, 0, b""),
            Some(place) => (if place.is_whole { 1 } else { 2 }, place.parent, &place.front),
        };
        let mut bytes = vec![0; MAC.end];
        (bytes[0], bytes[1]) = (FORMAT, kind);
        bytes.extend_from_slice(&self.volume.0.to_be_bytes());
        bytes.extend_from_slice(&self.ino.to_be_bytes());
        bytes.extend_from_slice(&parent.to_be_bytes());
        bytes.extend_from_slice(front);
        let mac = key.mac(&bytes);
        bytes[MAC].copy_from_slice(&mac);
        bytes
    }

    pub fn decode(bytes: &Bytes, key: &HandleKey) -> Result<Handle, NoHandle> {
        if bytes.len() > HANDLE_LEN_MAX {
            return Err(NoHandle::Foreign);
        }
        match bytes.first() {
            Some(&FORMAT) if bytes.len() >= NUMBERS => {}
            Some(&FORMAT_OLD) => return decode_old(bytes),
            _ => return Err(NoHandle::Foreign),
        }
        if constant_time::verify_slices_are_equal(&bytes[MAC], &key.mac(bytes)).is_err() {
            return Err(NoHandle::Unknown);
        }
        Handle::parse(bytes[1], &bytes[MAC.end..]).ok_or(NoHandle::Unknown)
    }

    /// Its numbers and its name.
    fn parse(kind: u8, bytes: &[u8]) -> Option<Handle> {
        let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let volume = VolumeId(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?));
        let (ino, parent, front) = (number(4)?, number(12)?, bytes.get(20..)?.to_vec());
        let place = match kind {
            0 if parent == 0 && front.is_empty() => None,
            1 if !front.is_empty() => Some(Place { parent, front, is_whole: true }),
            2 if front.len() == FRONT_MAX => Some(Place { parent, front, is_whole: false }),
            _ => return None,
        };
        Some(Handle { volume, ino, place })
    }
}

/// The root of a volume, as older releases wrote it.
fn decode_old(bytes: &[u8]) -> Result<Handle, NoHandle> {
    if bytes.len() < NUMBERS_OLD || bytes[2..4] != [0, 0] {
        return Err(NoHandle::Foreign);
    }
    let mut plain = bytes.to_vec();
    plain[4..HEAD_OLD].fill(0);
    let crc = crc64(&plain);
    if bytes[4..HEAD_OLD] != ((crc >> 32) as u32 ^ crc as u32).to_be_bytes() {
        return Err(NoHandle::Foreign);
    }
    let root = Handle::parse(bytes[1], &bytes[HEAD_OLD..]).filter(|handle| handle.place.is_none());
    root.filter(|handle| handle.ino == ROOT).ok_or(NoHandle::Unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> HandleKey {
        HandleKey::new(&[byte; 32])
    }

    #[test]
    fn handles_fit_and_come_back() {
        let check = |handle: Handle| {
            let bytes = handle.encode(&key(1));
            assert!(bytes.len() <= HANDLE_LEN_MAX);
            assert_eq!(Handle::decode(&bytes.into(), &key(1)), Ok(handle));
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
        let bytes = Handle::file(VolumeId(3), 0x0102, 7, b"ab").encode(&key(1));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0201a10db72fedabd440dbd900000003000000000000010200000000000000076162");
    }

    /// Whoever knows how handles look, and all numbers in them, cannot make one.
    #[test]
    fn a_handle_needs_the_key() {
        let handle = Handle::file(VolumeId(3), 9, 7, b"secret");
        let bytes = handle.encode(&key(1));
        assert_eq!(Handle::decode(&bytes.into(), &key(2)), Err(NoHandle::Unknown));
    }

    fn old(kind: u8, ino: u64) -> Bytes {
        let mut bytes = vec![FORMAT_OLD, kind, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&3u32.to_be_bytes());
        bytes.extend_from_slice(&ino.to_be_bytes());
        bytes.extend_from_slice(&0u64.to_be_bytes());
        let crc = crc64(&bytes);
        bytes[4..8].copy_from_slice(&((crc >> 32) as u32 ^ crc as u32).to_be_bytes());
        bytes.into()
    }

    #[test]
    fn of_the_older_format_only_the_root_is_known() {
        assert_eq!(Handle::decode(&old(0, ROOT), &key(1)), Ok(Handle::directory(VolumeId(3), ROOT)));
        assert_eq!(Handle::decode(&old(0, 2), &key(1)), Err(NoHandle::Unknown));
        let mut wrong = old(0, ROOT).to_vec();
        wrong[5] ^= 1;
        assert_eq!(Handle::decode(&wrong.into(), &key(1)), Err(NoHandle::Foreign));
    }

    proptest! {
        #[test]
        fn other_bytes_are_no_handles(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Handle::decode(&bytes.into(), &key(1)).is_err());
        }

        #[test]
        fn a_changed_handle_is_none(at in 0usize..36, change in 1u8..) {
            let mut bytes = Handle::file(VolumeId(3), 9, 7, b"name").encode(&key(1));
            bytes[at] ^= change;
            prop_assert!(Handle::decode(&bytes.into(), &key(1)).is_err());
        }
    }
}
