//! The node's clock and its random numbers: the only place that reads either.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stoker_format::VersionId;

use crate::world;

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the edge: everything else takes time as an argument")]
pub fn now_ms() -> u64 {
    let real = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    world::current(|world| world.now_ms()).unwrap_or_else(real)
}

/// Random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if world::current(|world| world.fill(&mut bytes)).is_none() {
        getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    }
    bytes
}

/// A fresh version: its time, then 48 random bits. The first bit is 0 for some thousand years.
pub fn mint() -> VersionId {
    let mut id = [0; 12];
    id[..6].copy_from_slice(&now_ms().to_be_bytes()[2..]);
    id[6..].copy_from_slice(&random::<6>());
    id[0] &= 0x7f;
    VersionId(id)
}

/// When a version was minted, milliseconds since 1970.
pub fn minted_ms(version: VersionId) -> u64 {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&version.0[..6]);
    u64::from_be_bytes(bytes)
}

/// The version of a lake object that was not written by us: the same object has the same one on every node. The first
/// bit is 1, so that it cannot be one of ours.
pub fn lake_version(volume: u32, key: &[u8], etag: &str) -> VersionId {
    let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    digest.update(&volume.to_be_bytes());
    digest.update(&(key.len() as u64).to_be_bytes());
    digest.update(key);
    digest.update(etag.as_bytes());
    let mut id = [0; 12];
    id.copy_from_slice(&digest.finish().as_ref()[..12]);
    id[0] |= 0x80;
    VersionId(id)
}
