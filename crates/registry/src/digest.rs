//! Digests of content.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};

/// A SHA-256, as 64 hex digits in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Digest(String);

impl Digest {
    /// Reads `sha256:HEX`.
    pub fn parse(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix("sha256:")?;
        Digest::of_hex(hex)
    }

    /// Reads the digits alone.
    pub(crate) fn of_hex(hex: &str) -> Option<Digest> {
        let is_sound = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_sound.then(|| Digest(hex.to_owned()))
    }

    pub(crate) fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// Computes one.
pub(crate) struct Hasher(Context);

impl Hasher {
    pub fn new() -> Hasher {
        Hasher(Context::new(&SHA256))
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn end(self) -> Digest {
        let sum = self.0.finish();
        Digest(sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_and_computed() {
        let mut hasher = Hasher::new();
        hasher.add(b"a");
        hasher.add(b"bc");
        let digest = hasher.end();
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(Digest::parse(text), Some(digest));
        for wrong in ["", "sha256:", &text.to_uppercase(), &text[..70], &format!("{text}0"), "sha512:00"] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
