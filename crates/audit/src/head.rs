//! Heads: statements, signed with the cluster's key, of how far a log goes and of what it consists.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::line::{Hash, hex, unhex};

/// What a head says: the chain up to an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The node.
    pub node: String,
    /// The segment.
    pub segment: u64,
    /// The last event; 0 if there is none yet.
    pub seq: u64,
    /// Hash of the last line.
    pub chain: String,
    /// When it was signed.
    pub time: String,
    /// Which key signed it: the public key.
    pub key: String,
    /// The signature.
    pub signature: String,
}

impl Head {
    fn said(&self) -> Vec<u8> {
        let Head { node, segment, seq, chain, time, key, .. } = self;
        format!("stoker audit head 1\n{node}\n{segment}\n{seq}\n{chain}\n{time}\n{key}\n").into_bytes()
    }

    /// Whether one of these keys signed it.
    pub fn is_signed_by(&self, keys: &[PublicKey]) -> bool {
        let Some(signature) = unhex::<64>(&self.signature) else { return false };
        keys.iter()
            .filter(|key| hex(&key.0) == self.key)
            .any(|key| UnparsedPublicKey::new(&ED25519, key.0).verify(&self.said(), &signature).is_ok())
    }
}

/// What heads are checked with; no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads 64 hex digits.
    pub fn parse(text: &str) -> Option<PublicKey> {
        unhex(text).map(PublicKey)
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// What signs heads.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl SigningKey {
    /// The key that belongs to a seed. The seed is a secret of the cluster, made for this purpose alone.
    pub fn of_seed(seed: &[u8; 32]) -> Option<SigningKey> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = PublicKey(pair.public_key().as_ref().try_into().ok()?);
        Some(SigningKey { pair, public })
    }

    /// What its heads are checked with.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn sign(&self, node: &str, segment: u64, seq: u64, chain: Hash, time: String) -> Head {
        let mut head = Head {
            node: node.to_owned(),
            segment,
            seq,
            chain: chain.to_string(),
            time,
            key: self.public.to_string(),
            signature: String::new(),
        };
        head.signature = hex(self.pair.sign(&head.said()).as_ref());
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_was_changed_is_not_signed() {
        let key = SigningKey::of_seed(&[7; 32]).unwrap();
        let other = SigningKey::of_seed(&[8; 32]).unwrap();
        let head = key.sign("n1", 2, 30, Hash([4; 32]), "2026-11-19T00:00:00.000Z".into());
        assert!(head.is_signed_by(&[other.public(), key.public()]));
        assert!(!head.is_signed_by(&[other.public()]));
        for changed in [
            Head { seq: 31, ..head.clone() },
            Head { segment: 3, ..head.clone() },
            Head { node: "n2".into(), ..head.clone() },
            Head { chain: Hash([5; 32]).to_string(), ..head.clone() },
            Head { key: other.public().to_string(), ..head.clone() },
            Head { signature: String::new(), ..head.clone() },
        ] {
            assert!(!changed.is_signed_by(&[key.public(), other.public()]), "{changed:?}");
        }
    }
}
