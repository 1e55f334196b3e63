//! The payload of a name record: one change of the namespace, so that names survive with the bytes.
//!
//! Fields are tagged, so a later release can add some. An older release keeps what it does not know, or refuses
//! the record when the field is marked critical; it never drops a field and carries on.

use crate::error::FormatError;
use crate::ids::{VersionId, VolumeId};
use crate::le;

mod field;
mod run;

pub use field::NameField;
pub use run::ChunkRun;

/// Version of the payload's layout; apart from the format version because names also travel between nodes.
pub const NAME_VERSION: u16 = 1;

/// Longest key in bytes.
pub const NAME_KEY_LEN_MAX: usize = 4096;

/// Longest name record in bytes. A file with more runs is split over several records by its writer.
pub const NAME_LEN_MAX: usize = 1 << 20;

/// Most fields of one name record.
pub const NAME_FIELDS_MAX: usize = 65536;

const FIXED_LEN: usize = 32;

/// What a name record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameOp {
    /// A key has a new version.
    Put = 1,
    /// A key is gone.
    Delete = 2,
    /// `OldKey` is now `Key`.
    Rename = 3,
    /// A directory exists.
    MakeDir = 4,
    /// A directory is gone.
    RemoveDir = 5,
    /// Attributes changed, bytes did not.
    SetAttributes = 6,
    /// A second name for an inode.
    Link = 7,
    /// A symbolic link.
    Symlink = 8,
    /// A checkpoint set became visible.
    PublishSet = 9,
    /// `OldKey` and `Key` swapped what they are.
    Exchange = 10,
}

impl NameOp {
    fn from_u8(op: u8) -> Result<Self, FormatError> {
        Ok(match op {
            0 => return Err(FormatError::Corrupt("a name record has no operation")),
            1 => Self::Put,
            2 => Self::Delete,
            3 => Self::Rename,
            4 => Self::MakeDir,
            5 => Self::RemoveDir,
            6 => Self::SetAttributes,
            7 => Self::Link,
            8 => Self::Symlink,
            9 => Self::PublishSet,
            10 => Self::Exchange,
            _ => return Err(FormatError::TooNew { found: op.into(), supported: Self::Exchange as u16 }),
        })
    }
}

/// One change of the namespace. Which fields an operation needs is the catalog's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRecord {
    /// What changes.
    pub op: NameOp,
    /// Namespace that changes.
    pub volume: VolumeId,
    /// Version that becomes visible; zero where there is none.
    pub version: VersionId,
    /// Order of changes; salvage applies them by it.
    pub catalog_seq: u64,
    /// The rest, in the order of writing.
    pub fields: Vec<NameField>,
}

impl NameRecord {
    /// Encodes the payload. Panics where [`Self::check`] fails, so check what users can choose first.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(fault) = self.check() {
            panic!("a name record that cannot be written: {fault}");
        }
        let mut out = Vec::with_capacity(self.encoded_len());
        out.extend_from_slice(&NAME_VERSION.to_le_bytes());
        out.extend_from_slice(&[self.op as u8, 0]);
        out.extend_from_slice(&self.volume.0.to_le_bytes());
        out.extend_from_slice(&self.catalog_seq.to_le_bytes());
        out.extend_from_slice(&self.version.0);
        out.extend_from_slice(&(self.fields.len() as u32).to_le_bytes());
        for field in &self.fields {
            field.encode(&mut out);
        }
        out
    }

    /// Tells whether the record is within the limits of the format, and its runs make sense.
    pub fn check(&self) -> Result<(), FormatError> {
        if self.fields.len() > NAME_FIELDS_MAX {
            return Err(FormatError::Corrupt("a name record has too many fields"));
        }
        if self.encoded_len() > NAME_LEN_MAX {
            return Err(FormatError::Corrupt("a name record is too long"));
        }
        self.fields.iter().try_for_each(NameField::check)
    }

    /// Decodes the payload. The bytes must be verified: a name record has no checksum of its own.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < FIXED_LEN {
            return Err(FormatError::Short { need: FIXED_LEN, have: bytes.len() });
        }
        match le::u16(bytes, 0) {
            0 => return Err(FormatError::Corrupt("version 0 does not exist")),
            1..=NAME_VERSION => {}
            found => return Err(FormatError::TooNew { found, supported: NAME_VERSION }),
        }
        if bytes.len() > NAME_LEN_MAX {
            return Err(FormatError::Corrupt("a name record is too long"));
        }
        Ok(Self {
            op: NameOp::from_u8(bytes[2])?,
            volume: VolumeId(le::u32(bytes, 4)),
            catalog_seq: le::u64(bytes, 8),
            version: VersionId(le::array(bytes, 16)),
            fields: decode_fields(le::u32(bytes, 28) as usize, &bytes[FIXED_LEN..])?,
        })
    }

    /// Length that [`Self::encode`] will give.
    pub fn encoded_len(&self) -> usize {
        FIXED_LEN + self.fields.iter().map(NameField::encoded_len).sum::<usize>()
    }
}

fn decode_fields(count: usize, mut bytes: &[u8]) -> Result<Vec<NameField>, FormatError> {
    if count > NAME_FIELDS_MAX {
        return Err(FormatError::Corrupt("a name record has too many fields"));
    }
    let mut fields = Vec::new();
    for _ in 0..count {
        let (field, rest) = NameField::decode(bytes)?;
        fields.push(field);
        bytes = rest;
    }
    if !bytes.is_empty() {
        return Err(FormatError::Corrupt("a name record has bytes behind its last field"));
    }
    Ok(fields)
}
