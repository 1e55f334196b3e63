//! Keys of a lake that are the cluster's own. They say by themselves what lies there, so that a salvage finds it without a catalog.

use stoker_format::VersionId;

/// Keys of writes that too few nodes have, and of spilled chunks, begin with this.
pub const AWAY: &[u8] = b".stoker-alone/";

/// Keys of objects that are kept for open reads begin with this.
pub const OPEN: &[u8] = b".stoker-open/";

/// Where the bytes of a version are kept for those who have it open.
pub fn open_key(version: VersionId) -> Vec<u8> {
    [OPEN, version.to_string().as_bytes()].concat()
}

/// The lake key of spilled chunks: the version, the number of the first one and what lies between two.
pub fn spill_key(version: VersionId, first: u32, stride: u32) -> Vec<u8> {
    [AWAY, format!("{version}-{first}-{stride}").as_bytes()].concat()
}

/// What such a key says.
pub fn parse_spill(key: &[u8]) -> Option<(VersionId, u32, u32)> {
    let mut words = std::str::from_utf8(key.strip_prefix(AWAY)?).ok()?.split('-');
    let found = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (words.next().is_none() && found.2 > 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_is_there() {
        let version = VersionId([7; 12]);
        let key = spill_key(version, 12, 4 << 20);
        assert_eq!(parse_spill(&key), Some((version, 12, 4 << 20)));
        let alone = [AWAY, version.to_string().as_bytes()].concat();
        for wrong in [&alone[..], b"a", b".stoker-alone/x-1-2", &[&key[..], b"-1"].concat()] {
            assert_eq!(parse_spill(wrong), None, "{}", wrong.escape_ascii());
        }
        assert_eq!(parse_spill(&spill_key(version, 0, 0)), None);
    }
}
