//! Datagrams that only members of this cluster can make: cluster id, tag, body.
//!
//! The tag is HMAC-SHA-256 over cluster id and body, cut to 16 bytes, with a key that is derived from the cluster's
//! secret for this use alone.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::{constant_time, hmac};
use stoker_format::ClusterId;

/// A datagram, at most: below the MTU of every network that we know.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
const CLUSTER_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = CLUSTER_BYTES + TAG_BYTES;
/// What a datagram can carry.
pub(super) const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEAD_BYTES;

/// Seals and opens the datagrams of one cluster.
#[derive(Debug)]
pub struct Seal {
    cluster: ClusterId,
    key: hmac::Key,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Longer than any of ours.
    Oversized,
    /// Of another cluster.
    Foreign,
    /// Too short, or with a wrong tag.
    Forged,
    /// Rightly sealed, but not understood.
    Malformed,
}

impl Seal {
    /// For the cluster with this secret.
    pub fn new(cluster: ClusterId, secret: &[u8]) -> Seal {
        let parent = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let mut purpose = b"stoker membership 1 ".to_vec();
        purpose.extend_from_slice(&cluster.0);
        let derived = hmac::sign(&parent, &purpose);
        Seal { cluster, key: hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()) }
    }

    /// Makes a datagram of a body.
    pub fn seal(&self, body: &[u8]) -> Vec<u8> {
        assert!(body.len() <= BODY_BYTES_MAX, "a body of {} bytes", body.len());
        let mut datagram = Vec::with_capacity(HEAD_BYTES + body.len());
        datagram.extend_from_slice(&self.cluster.0);
        datagram.extend_from_slice(&self.tag(body));
        datagram.extend_from_slice(body);
        datagram
    }

    /// The body of a datagram, if this cluster made it.
    pub fn open<'d>(&self, datagram: &'d [u8]) -> Result<&'d [u8], Dropped> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(Dropped::Oversized);
        }
        let (cluster, rest) = datagram.split_at_checked(CLUSTER_BYTES).ok_or(Dropped::Forged)?;
        if cluster != self.cluster.0 {
            return Err(Dropped::Foreign);
        }
        let (tag, body) = rest.split_at_checked(TAG_BYTES).ok_or(Dropped::Forged)?;
        constant_time::verify_slices_are_equal(tag, &self.tag(body)).map_err(|_| Dropped::Forged)?;
        Ok(body)
    }

    fn tag(&self, body: &[u8]) -> [u8; TAG_BYTES] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&self.cluster.0);
        context.update(body);
        let whole = context.sign();
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&whole.as_ref()[..TAG_BYTES]);
        tag
    }
}

/// How many datagrams came, went and were dropped.
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    dropped: [AtomicU64; 4],
}

impl Counts {
    /// Datagrams sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Datagrams received, dropped ones included.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Datagrams dropped for this reason.
    pub fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason as usize].load(Ordering::Relaxed)
    }

    /// Counts one; tells whether it is the first of its kind.
    pub(super) fn count_dropped(&self, reason: Dropped) -> bool {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_cluster_opens_a_datagram() {
        let ours = Seal::new(ClusterId([1; 16]), b"secret");
        let datagram = ours.seal(b"body");
        assert_eq!(ours.open(&datagram), Ok(&b"body"[..]));
        assert_eq!(Seal::new(ClusterId([2; 16]), b"secret").open(&datagram), Err(Dropped::Foreign));
        assert_eq!(Seal::new(ClusterId([1; 16]), b"other").open(&datagram), Err(Dropped::Forged));

        let mut moved = datagram.clone();
        moved[..16].fill(2);
        assert_eq!(Seal::new(ClusterId([2; 16]), b"secret").open(&moved), Err(Dropped::Forged), "a replay");
        assert_eq!(ours.open(&vec![1; DATAGRAM_BYTES_MAX + 1]), Err(Dropped::Oversized));
        for at in 0..datagram.len() {
            let mut damaged = datagram.clone();
            damaged[at] ^= 1;
            assert!(ours.open(&damaged).is_err(), "byte {at}");
            assert!(ours.open(&datagram[..at]).is_err(), "cut at {at}");
        }
    }
}
