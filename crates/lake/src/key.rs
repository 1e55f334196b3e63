//! What a key may be.

use crate::error::{LakeError, Result};

/// Longest key, as in S3.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key may have so many bytes below the lake's prefix.
pub(crate) fn check_len(key: &[u8], max: usize) -> Result<()> {
    check_key(key)?;
    if key.len() > max {
        return Err(LakeError::invalid(format!(
            "below its prefix the lake holds keys of at most {max} bytes, this one has {}",
            key.len()
        )));
    }
    Ok(())
}

/// User metadata may have so many bytes.
pub(crate) fn check_meta(bytes: usize, max: usize) -> Result<()> {
    if bytes > max {
        return Err(LakeError::invalid(format!(
            "the lake holds at most {max} bytes of metadata with an object, names and tags and what Stoker adds included; \
             these are {bytes}"
        )));
    }
    Ok(())
}

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
