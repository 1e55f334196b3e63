//! Bytes of a key in memory.

use std::fmt;

use zeroize::Zeroizing;

/// A key of 256 bits: zeroed when it is dropped, never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Draws a new one from the operating system.
    pub fn draw() -> Result<Secret, getrandom::Error> {
        let mut secret = Secret(Zeroizing::new([0; 32]));
        getrandom::fill(&mut *secret.0)?;
        Ok(secret)
    }

    /// Takes bytes of a key; none if they are not 32.
    pub fn of(bytes: &[u8]) -> Option<Secret> {
        let mut secret = Secret(Zeroizing::new([0; 32]));
        if bytes.len() != secret.0.len() {
            return None;
        }
        secret.0.copy_from_slice(bytes);
        Some(secret)
    }

    /// The bytes, for whoever wraps or derives.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Keeps memory out of core dumps of this process from now on: which mappings a dump has is the kernel's filter, and none of ours that may
/// hold a key is in an empty one. What a handler prints of the stack is lost with it.
pub fn hide_from_core_dumps() -> std::io::Result<()> {
    std::fs::write("/proc/self/coredump_filter", "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::of(&[0xab; 32]).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret");
        assert!(Secret::of(&[1; 31]).is_none());
        assert_ne!(Secret::draw().unwrap().bytes(), Secret::draw().unwrap().bytes());
    }
}
