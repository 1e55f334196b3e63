//! Keys of versions that are not the present one of their name. (D210)
//!
//! Such a version is a file like any other, in a place that no directory leads to. Its key says which version of which key it is:
//! `.stoker-versions/KEY/ID`. That is its key in the lake as well, and in name records.

use std::fmt;
use std::str::FromStr;

use crate::ids::{ParseIdError, VersionId};

/// Keys of former versions begin with this.
pub const PAST: &[u8] = b".stoker-versions/";

/// The name of the one version of a key that has no id of its own: it was written while no versions were kept.
pub const NULL_VERSION: &str = "null";

/// Tells a version from the others of its key: which one it is, counted from 1, and its content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PastId {
    /// Later ones are higher.
    pub number: u64,
    /// Content.
    pub version: VersionId,
}

impl fmt::Display for PastId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{}", self.number, self.version)
    }
}

impl FromStr for PastId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<PastId, ParseIdError> {
        let expected = ParseIdError::new("40 lower-case hex digits");
        let (number, version) = text.split_at_checked(16).ok_or(expected)?;
        let is_sound = number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u64::from_str_radix(number, 16).ok().filter(|_| is_sound).ok_or(expected)?;
        Ok(PastId { number, version: version.parse().map_err(|_| expected)? })
    }
}

/// The key of a former version; the id may be [`NULL_VERSION`].
pub fn past_key(key: &[u8], id: &str) -> Vec<u8> {
    [PAST, key, b"/", id.as_bytes()].concat()
}

/// The key and the id in the key of a former version; none if it is another key.
pub fn past_parts(key: &[u8]) -> Option<(&[u8], &str)> {
    let rest = key.strip_prefix(PAST)?;
    let slash = rest.iter().rposition(|byte| *byte == b'/')?;
    let id = std::str::from_utf8(&rest[slash + 1..]).ok()?;
    let is_id = id == NULL_VERSION || id.parse::<PastId>().is_ok();
    (is_id && slash > 0).then_some((&rest[..slash], id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_versions_say_which() {
        let id = PastId { number: 0x12, version: VersionId([0xab; 12]) };
        let text = id.to_string();
        assert_eq!(text.parse::<PastId>(), Ok(id));
        for key in [&b"a"[..], b"a/b", b"dir/", b"/", b"\xff\x01", b".stoker-versions/a"] {
            for id in [text.as_str(), NULL_VERSION] {
                assert_eq!(past_parts(&past_key(key, id)), Some((key, id)), "{key:?}");
            }
        }
        for other in
            ["a", ".stoker-versions/", ".stoker-versions/a", ".stoker-versions//null", ".stoker-versions/a/x"]
        {
            assert_eq!(past_parts(other.as_bytes()), None, "{other}");
        }
        for wrong in [&text[1..], &text.to_uppercase(), "+000000000000012abababababababababababab", ""] {
            assert!(wrong.parse::<PastId>().is_err(), "{wrong}");
        }
    }
}
