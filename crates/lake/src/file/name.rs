//! From keys to names of directory entries, and back.
//!
//! A key is split at `/` into segments. All but the last are directories, the last is a file. The rules are in
//! the documentation of [`FileLake`](super::FileLake); this file is the only place that knows them.

/// What every name that a user's segment may not have begins with.
const RESERVED: &[u8] = b".stoker-";
/// A directory holds names of at most this many bytes.
const NAME_BYTES_MAX: usize = 255;
/// Bytes of an escaped segment in one name; the rest of a longer one is in names below.
const PIECE_BYTES: usize = 240;

/// The directory of temporary files, locks and uploads.
pub(super) const TMP: &str = ".stoker-tmp";
/// The directory of metadata that did not fit into extended attributes.
pub(super) const META: &str = ".stoker-meta";

/// Which of the two places of a segment is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Of a directory, and of a file that no directory is in the way of.
    Own,
    /// Of a file whose own place is, or was, taken by a directory.
    Beside,
}

/// What a name of a directory entry stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A whole segment in its own place.
    Plain,
    /// The last piece of an escaped segment.
    Escaped(Place, Vec<u8>),
    /// A piece of an escaped segment that goes on below.
    Piece(Vec<u8>),
    /// Ours, and no part of any key.
    Reserved,
}

/// The names under which a segment lies: the last is the entry itself, those before are directories that hold
/// the pieces of a segment that is too long for one name.
pub(super) fn names(segment: &[u8], place: Place) -> Vec<Vec<u8>> {
    if place == Place::Own && is_plain(segment) {
        return vec![segment.to_vec()];
    }
    let escaped = escape(segment);
    let tag = match place {
        Place::Own => b'n',
        Place::Beside => b'f',
    };
    if RESERVED.len() + 1 + escaped.len() <= NAME_BYTES_MAX {
        return vec![tagged(tag, &escaped)];
    }
    let pieces: Vec<&[u8]> = escaped.chunks(PIECE_BYTES).collect();
    let last = pieces.len() - 1;
    pieces
        .iter()
        .enumerate()
        .map(|(index, piece)| tagged(if index == last { tag } else { b'p' }, piece))
        .collect()
}

/// What a name stands for.
pub(super) fn meaning(name: &[u8]) -> Meaning {
    let Some(rest) = name.strip_prefix(RESERVED) else { return Meaning::Plain };
    match rest.split_first() {
        Some((b'n', escaped)) => Meaning::Escaped(Place::Own, escaped.to_vec()),
        Some((b'f', escaped)) => Meaning::Escaped(Place::Beside, escaped.to_vec()),
        Some((b'p', piece)) => Meaning::Piece(piece.to_vec()),
        _ => Meaning::Reserved,
    }
}

/// The segment of an entry, if the names that lead to it are those that [`names`] gives.
pub(super) fn segment_of(path: &[Vec<u8>]) -> Option<(Vec<u8>, Place)> {
    let mut escaped = Vec::new();
    let (last, above) = path.split_last()?;
    for name in above {
        let Meaning::Piece(piece) = meaning(name) else { return None };
        escaped.extend_from_slice(&piece);
    }
    let (segment, place) = match meaning(last) {
        Meaning::Plain => (last.clone(), Place::Own),
        Meaning::Escaped(place, piece) => {
            escaped.extend_from_slice(&piece);
            (unescape(&escaped)?, place)
        }
        Meaning::Piece(_) | Meaning::Reserved => return None,
    };
    (names(&segment, place) == path).then_some((segment, place))
}

/// A directory can hold the segment as it is.
fn is_plain(segment: &[u8]) -> bool {
    !segment.is_empty()
        && segment != b"."
        && segment != b".."
        && segment.len() <= NAME_BYTES_MAX
        && !segment.contains(&0)
        && !segment.starts_with(RESERVED)
}

fn tagged(tag: u8, escaped: &[u8]) -> Vec<u8> {
    let mut name = RESERVED.to_vec();
    name.push(tag);
    name.extend_from_slice(escaped);
    name
}

fn escape(segment: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(segment.len());
    for &byte in segment {
        match byte {
            0 => escaped.extend_from_slice(b"%00"),
            b'%' => escaped.extend_from_slice(b"%25"),
            _ => escaped.push(byte),
        }
    }
    escaped
}

fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut segment = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            segment.push(byte);
        } else if let Some(tail) = rest.strip_prefix(b"00") {
            segment.push(0);
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix(b"25") {
            segment.push(b'%');
            rest = tail;
        } else {
            return None;
        }
    }
    Some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(segment: &[u8], own: &[&[u8]], beside: &[&[u8]]) {
        assert_eq!(names(segment, Place::Own), own, "own place of {segment:?}");
        assert_eq!(names(segment, Place::Beside), beside, "place beside of {segment:?}");
    }

    #[test]
    fn the_escape_is_the_documented_one() {
        check(b"file.txt", &[b"file.txt"], &[b".stoker-ffile.txt"]);
        check(b"", &[b".stoker-n"], &[b".stoker-f"]);
        check(b".", &[b".stoker-n."], &[b".stoker-f."]);
        check(b"..", &[b".stoker-n.."], &[b".stoker-f.."]);
        check(b"50%", &[b"50%"], &[b".stoker-f50%25"]);
        check(b"a\0b", &[b".stoker-na%00b"], &[b".stoker-fa%00b"]);
        check(b".stoker-tmp", &[b".stoker-n.stoker-tmp"], &[b".stoker-f.stoker-tmp"]);
        check(b"new\nline\\", &[b"new\nline\\"], &[b".stoker-fnew\nline\\"]);
        let long = vec![b'a'; 300];
        let mut first = b".stoker-p".to_vec();
        first.extend_from_slice(&long[..240]);
        let mut second = b".stoker-n".to_vec();
        second.extend_from_slice(&long[240..]);
        assert_eq!(names(&long, Place::Own), [first, second]);
        assert_eq!(names(&[b'a'; 255], Place::Own).len(), 1);
        assert_eq!(names(&[b'a'; 255], Place::Beside).len(), 2);
    }

    #[test]
    fn names_that_we_would_not_give_mean_nothing() {
        for name in [
            &b".stoker-tmp"[..],
            b".stoker-nplain",
            b".stoker-n%41",
            b".stoker-n%",
            b".stoker-",
            b".stoker-p",
        ] {
            assert_eq!(segment_of(&[name.to_vec()]), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn names_are_legal_and_reversible(
            segment in prop_oneof![
                prop::collection::vec(any::<u8>().prop_map(|b| if b == b'/' { b'%' } else { b }), 0..40),
                prop::collection::vec(prop::sample::select(vec![b'.', b'%', 0, b'a']), 0..4),
                prop::collection::vec(prop::sample::select(vec![b'%', 0, b'a']), 200..1024),
            ],
            place in prop_oneof![Just(Place::Own), Just(Place::Beside)],
        ) {
            let path = names(&segment, place);
            for name in &path {
                prop_assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX);
                prop_assert!(name != b"." && name != b".." && !name.contains(&0) && !name.contains(&b'/'));
            }
            prop_assert_eq!(segment_of(&path), Some((segment, place)));
        }
    }
}
