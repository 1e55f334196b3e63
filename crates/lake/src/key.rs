//! What a key may be.

use crate::error::{LakeError, Result};

/// Longest key, as in S3.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key that any lake may hold.
pub(crate) fn check_key(key: &[u8]) -> Result<&[u8]> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(LakeError::invalid(format!(
            "a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}",
            key.len()
        )));
    }
    Ok(key)
}
