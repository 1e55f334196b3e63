//! Percent-encoding as S3 uses it.

const UNRESERVED: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
        byte += 1;
    }
    table
};

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What is left as it is besides the unreserved characters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The slashes of a path.
    Slash,
    /// Nothing.
    Nothing,
}

/// Appends bytes in S3's canonical encoding.
pub(crate) fn encode(out: &mut Vec<u8>, bytes: &[u8], keep: Keep) {
    for &byte in bytes {
        if UNRESERVED[usize::from(byte)] || (byte == b'/' && keep == Keep::Slash) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Bytes in S3's canonical encoding, as text.
pub(crate) fn encoded(bytes: &[u8], keep: Keep) -> String {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    encode(&mut out, bytes, keep);
    out.into_iter().map(char::from).collect()
}

/// What a `+` means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plus {
    /// Itself, in a path.
    Plus,
    /// A space, in a query.
    Space,
}

/// Decodes exactly once; None for a percent sign without two hex digits.
pub(crate) fn decode(text: &[u8], plus: Plus) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (&[high, low], tail) = rest.split_first_chunk::<2>()?;
                out.push(hex_digit(high)? << 4 | hex_digit(low)?);
                rest = tail;
            }
            b'+' if plus == Plus::Space => out.push(b' '),
            byte => out.push(byte),
        }
    }
    Some(out)
}

/// Value of one hex digit.
pub(crate) fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_once() {
        assert_eq!(decode(b"a%2520b+c", Plus::Plus).unwrap(), b"a%20b+c");
        assert_eq!(decode(b"a%20b+c", Plus::Space).unwrap(), b"a b c");
        assert_eq!(decode(b"%e4%Ff%00", Plus::Plus).unwrap(), [0xe4, 0xff, 0]);
        for bad in ["%", "%a", "a%g0", "%0g"] {
            assert_eq!(decode(bad.as_bytes(), Plus::Plus), None, "{bad}");
        }
    }

    #[test]
    fn encodes_canonically() {
        assert_eq!(encoded("a b/ä$+~".as_bytes(), Keep::Slash), "a%20b/%C3%A4%24%2B~");
        assert_eq!(encoded(b"a/b", Keep::Nothing), "a%2Fb");
    }

    proptest::proptest! {
        #[test]
        fn what_was_encoded_decodes(bytes: Vec<u8>) {
            proptest::prop_assert_eq!(decode(encoded(&bytes, Keep::Nothing).as_bytes(), Plus::Space).unwrap(), bytes);
        }
    }
}
