//! Where a listing goes on behind a group.

use crate::error::{LakeError, Result};
use crate::key::KEY_BYTES_MAX;

/// The key after which a server has to go on.
///
/// Behind a group that is the greatest key that the group can hold, because the keys of the group come after its
/// name and would make the group once more.
pub(super) fn start_after(root: &str, prefix: &[u8], after: &[u8], delimiter: Option<u8>) -> Result<String> {
    let text = std::str::from_utf8(after)
        .map_err(|_| LakeError::invalid("a key of this lake is UTF-8; this is not"))?;
    let group = delimiter.and_then(|delimiter| {
        let rest = after.strip_prefix(prefix)?;
        let at = rest.iter().position(|&byte| byte == delimiter)?;
        Some(&text[..prefix.len() + at + 1])
    });
    let Some(group) = group else { return Ok(format!("{root}{text}")) };
    let mut key = format!("{root}{group}");
    for greatest in ['\u{10ffff}', '\u{ffff}', '\u{7ff}', '\u{7f}'] {
        while key.len() + greatest.len_utf8() <= KEY_BYTES_MAX {
            key.push(greatest);
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_left_behind_its_last_key() {
        assert_eq!(start_after("r/", b"", b"a", Some(b'/')).unwrap(), "r/a");
        assert_eq!(start_after("", b"", b"a/b", None).unwrap(), "a/b");
        assert_eq!(start_after("", b"a/", b"a/b", Some(b'/')).unwrap(), "a/b");
        for group in ["a/", "ab/", "abc/", "abcd/"] {
            let key = start_after("", b"", group.as_bytes(), Some(b'/')).unwrap();
            assert!(key.starts_with(group) && key.len() == KEY_BYTES_MAX);
            let mut greater = group.to_owned();
            while greater.len() + 4 <= KEY_BYTES_MAX {
                greater.push('\u{10ffff}');
            }
            assert!(key >= greater);
        }
    }
}
