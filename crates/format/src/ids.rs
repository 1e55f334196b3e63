//! Names of things on drives and between nodes, as types that cannot be mixed up.
//!
//! The text forms are canonical: one id has one spelling, so ids can be compared as text in logs and scripts.

use std::fmt;
use std::str::FromStr;

/// Text that is not the canonical spelling of an id. Carries what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError(&'static str);

impl ParseIdError {
    /// Says what was expected.
    pub(crate) const fn new(expected: &'static str) -> ParseIdError {
        ParseIdError(expected)
    }
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an id: expected {}", self.0)
    }
}

impl std::error::Error for ParseIdError {}

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $len:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Stands for "none" or "not set yet"; never given to a real thing.
            pub const ZERO: Self = Self([0; $len]);

            /// Tells whether this is [`Self::ZERO`].
            pub fn is_zero(&self) -> bool {
                *self == Self::ZERO
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self).ok_or(ParseIdError($expected))
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_decimal(text).map(Self).ok_or(ParseIdError("a decimal number"))
            }
        }
    };
}

byte_id!(
    /// All nodes of one catalog. A drive of another cluster is never taken over by accident.
    ClusterId, 16, "32 lower-case hex digits"
);
byte_id!(
    /// One host that runs `stoker serve`.
    NodeId, 16, "32 lower-case hex digits"
);
byte_id!(
    /// One NVMe device, wherever it is plugged in.
    DriveId, 16, "32 lower-case hex digits"
);
byte_id!(
    /// One formatting of a drive. Formatting again draws a new one, so no old record can pass for a new one.
    RingId, 16, "32 lower-case hex digits"
);
byte_id!(
    /// One version of one file; the first 96 bits of the ids of its chunks.
    VersionId, 12, "24 lower-case hex digits"
);
number_id!(
    /// A namespace with a class, a lake binding and policies. 0 is no volume, or many.
    VolumeId, u32
);
number_id!(
    /// The key that encrypted stored bytes. 0 means plain bytes.
    KeyId, u32
);
number_id!(
    /// Place of a segment in its ring, from 0.
    SegmentId, u32
);
number_id!(
    /// One life of a segment. Raised with each reuse, so a record of an earlier life is known as such.
    Generation, u64
);
number_id!(
    /// Order of appends within one ring. Of several records of a chunk the highest counts.
    Seq, u64
);

/// An immutable piece of a file version. Its byte form sorts like the type does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChunkId {
    /// The file version that the chunk was written for.
    pub version: VersionId,
    /// Which chunk of that version, in the order of writing.
    pub index: u32,
}

impl ChunkId {
    /// Names a chunk of a version.
    pub const fn new(version: VersionId, index: u32) -> Self {
        Self { version, index }
    }

    /// Version, then index big-endian: the one big-endian number on a drive, so that byte order is id order.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..12].copy_from_slice(&self.version.0);
        bytes[12..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Inverse of [`Self::to_bytes`]; every byte string is some chunk id.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let [version @ .., a, b, c, d] = bytes;
        Self { version: VersionId(version), index: u32::from_be_bytes([a, b, c, d]) }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.version, self.index)
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({self})")
    }
}

impl FromStr for ChunkId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let expected = ParseIdError("24 lower-case hex digits, a dot and a decimal number");
        let (version, index) = text.split_once('.').ok_or(expected)?;
        let version = parse_hex(version).map(VersionId).ok_or(expected)?;
        let index = parse_decimal(index).ok_or(expected)?;
        Ok(Self { version, index })
    }
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
    }
    Some(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Digits without sign or leading zeros, so that a number has one spelling.
fn parse_decimal<T: FromStr>(text: &str) -> Option<T> {
    let canonical = text == "0" || !text.starts_with(['0', '+', '-']);
    canonical.then(|| text.parse().ok()).flatten()
}
