//! One tagged field of a name record.

use super::NAME_KEY_LEN_MAX;
use super::run::{ChunkRun, RUN_LEN};
use crate::error::FormatError;
use crate::le;

const FIELD_HEADER_LEN: usize = 8;
const FLAG_CRITICAL: u16 = 1;

const KEY: u16 = 1;
const OLD_KEY: u16 = 2;
const SIZE: u16 = 3;
const MTIME_NS: u16 = 4;
const MODE: u16 = 5;
const UID: u16 = 6;
const GID: u16 = 7;
const ETAG: u16 = 8;
const CONTENT_TYPE: u16 = 9;
const META: u16 = 10;
const TAG: u16 = 11;
const XATTR: u16 = 12;
const RUNS: u16 = 13;
const TARGET: u16 = 14;
const PARENT: u16 = 15;
const INODE: u16 = 16;
const CHECKSUM: u16 = 17;
const SET: u16 = 18;
const REST: u16 = 19;
/// Highest tag of this release; tags from 1 to here are all taken.
const TAG_MAX: u16 = REST;

/// A property that a name change carries. Names and values are bytes: S3, NFS and POSIX do not agree on text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameField {
    /// The name; at most [`NAME_KEY_LEN_MAX`] bytes.
    Key(Vec<u8>),
    /// The former name of a rename; same limit.
    OldKey(Vec<u8>),
    /// Length of the file.
    Size(u64),
    /// Modification time since 1970, may lie before it.
    MtimeNs(i64),
    /// POSIX mode bits with the file type.
    Mode(u32),
    /// Owner.
    Uid(u32),
    /// Group.
    Gid(u32),
    /// The S3 ETag fixed at publish, without quotes.
    ETag(Vec<u8>),
    /// The S3 content type.
    ContentType(Vec<u8>),
    /// One pair of S3 user metadata.
    Meta {
        /// Without the `x-amz-meta-` prefix.
        name: Vec<u8>,
        /// As the user sent it.
        value: Vec<u8>,
    },
    /// One S3 object tag.
    Tag {
        /// As the user sent it.
        name: Vec<u8>,
        /// As the user sent it.
        value: Vec<u8>,
    },
    /// One extended attribute.
    Xattr {
        /// With its namespace, as in `user.comment`.
        name: Vec<u8>,
        /// As the user set it.
        value: Vec<u8>,
    },
    /// The chunks of the file; several such fields follow one another.
    Runs(Vec<ChunkRun>),
    /// Where a symbolic link points.
    Target(Vec<u8>),
    /// Inode of the directory.
    Parent(u64),
    /// Inode of the file.
    Inode(u64),
    /// A checksum of the whole file that the user asked to keep.
    Checksum {
        /// Number of the algorithm; the catalog owns the list.
        algorithm: u8,
        /// As the algorithm gives it.
        value: Vec<u8>,
    },
    /// The checkpoint set that this belongs to.
    Set([u8; 16]),
    /// What else the node wants back that the other fields do not say exactly; its own business.
    Rest(Vec<u8>),
    /// A field of a later release that may be kept unread. The tag is none of this release's.
    Unknown {
        /// Its number.
        tag: u16,
        /// Its content, unread.
        bytes: Vec<u8>,
    },
}

impl NameField {
    /// Length with header and padding.
    pub(super) fn encoded_len(&self) -> usize {
        FIELD_HEADER_LEN + self.body_len().next_multiple_of(4)
    }

    pub(super) fn check(&self) -> Result<(), FormatError> {
        match self {
            Self::Key(key) | Self::OldKey(key) if key.len() > NAME_KEY_LEN_MAX => {
                Err(FormatError::Corrupt("a name record has a key that is too long"))
            }
            Self::Runs(runs) => runs.iter().try_for_each(ChunkRun::check),
            Self::Unknown { tag: 0..=TAG_MAX, .. } => {
                Err(FormatError::Corrupt("an unknown field has the tag of a known one"))
            }
            _ => Ok(()),
        }
    }

    /// Appends the field. The caller has checked it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flags = if self.is_critical() { FLAG_CRITICAL } else { 0 };
        out.extend_from_slice(&self.tag().to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&(self.body_len() as u32).to_le_bytes());
        self.encode_body(out);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    /// Decodes the field at the start of `bytes` and returns what follows it.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), FormatError> {
        let cut_off = |need| FormatError::Short { need, have: bytes.len() };
        let (header, rest) =
            bytes.split_at_checked(FIELD_HEADER_LEN).ok_or_else(|| cut_off(FIELD_HEADER_LEN))?;
        let (tag, flags, len) = (le::u16(header, 0), le::u16(header, 2), le::u32(header, 4) as usize);
        let padded = len.saturating_add(3) & !3;
        let (padded, rest) =
            rest.split_at_checked(padded).ok_or_else(|| cut_off(padded.saturating_add(FIELD_HEADER_LEN)))?;
        let (body, padding) = padded.split_at(len);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(FormatError::Corrupt("the padding of a name field is not zero"));
        }
        let known = (1..=TAG_MAX).contains(&tag);
        // A flag that this release does not know could change what the field means.
        if flags & !FLAG_CRITICAL != 0 || !known && flags & FLAG_CRITICAL != 0 {
            return Err(FormatError::TooNew { found: tag, supported: TAG_MAX });
        }
        let field = Self::decode_body(tag, body)
            .ok_or(FormatError::Corrupt("a name field has an impossible length or content"))?;
        field.check()?;
        Ok((field, rest))
    }

    fn tag(&self) -> u16 {
        match self {
            Self::Key(_) => KEY,
            Self::OldKey(_) => OLD_KEY,
            Self::Size(_) => SIZE,
            Self::MtimeNs(_) => MTIME_NS,
            Self::Mode(_) => MODE,
            Self::Uid(_) => UID,
            Self::Gid(_) => GID,
            Self::ETag(_) => ETAG,
            Self::ContentType(_) => CONTENT_TYPE,
            Self::Meta { .. } => META,
            Self::Tag { .. } => TAG,
            Self::Xattr { .. } => XATTR,
            Self::Runs(_) => RUNS,
            Self::Target(_) => TARGET,
            Self::Parent(_) => PARENT,
            Self::Inode(_) => INODE,
            Self::Checksum { .. } => CHECKSUM,
            Self::Set(_) => SET,
            Self::Rest(_) => REST,
            Self::Unknown { tag, .. } => *tag,
        }
    }

    /// Without these the change would be applied to the wrong name or with the wrong bytes.
    fn is_critical(&self) -> bool {
        matches!(
            self,
            Self::Key(_)
                | Self::OldKey(_)
                | Self::Size(_)
                | Self::Runs(_)
                | Self::Target(_)
                | Self::Parent(_)
                | Self::Inode(_)
                | Self::Set(_)
        )
    }

    fn body_len(&self) -> usize {
        match self {
            Self::Mode(_) | Self::Uid(_) | Self::Gid(_) => 4,
            Self::Size(_) | Self::MtimeNs(_) | Self::Parent(_) | Self::Inode(_) => 8,
            Self::Set(_) => 16,
            Self::Meta { name, value } | Self::Tag { name, value } | Self::Xattr { name, value } => {
                4 + name.len() + value.len()
            }
            Self::Runs(runs) => runs.len() * RUN_LEN,
            Self::Checksum { value, .. } => 1 + value.len(),
            Self::Key(bytes)
            | Self::OldKey(bytes)
            | Self::ETag(bytes)
            | Self::ContentType(bytes)
            | Self::Target(bytes)
            | Self::Rest(bytes)
            | Self::Unknown { bytes, .. } => bytes.len(),
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Mode(number) | Self::Uid(number) | Self::Gid(number) => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Size(number) | Self::Parent(number) | Self::Inode(number) => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::MtimeNs(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Set(id) => out.extend_from_slice(id),
            Self::Meta { name, value } | Self::Tag { name, value } | Self::Xattr { name, value } => {
                out.extend_from_slice(&(name.len() as u32).to_le_bytes());
                out.extend_from_slice(name);
                out.extend_from_slice(value);
            }
            Self::Runs(runs) => runs.iter().for_each(|run| run.encode(out)),
            Self::Checksum { algorithm, value } => {
                out.push(*algorithm);
                out.extend_from_slice(value);
            }
            Self::Key(bytes)
            | Self::OldKey(bytes)
            | Self::ETag(bytes)
            | Self::ContentType(bytes)
            | Self::Target(bytes)
            | Self::Rest(bytes)
            | Self::Unknown { bytes, .. } => out.extend_from_slice(bytes),
        }
    }

    fn decode_body(tag: u16, body: &[u8]) -> Option<Self> {
        let number_u32 = || body.try_into().ok().map(u32::from_le_bytes);
        let number_u64 = || body.try_into().ok().map(u64::from_le_bytes);
        Some(match tag {
            0 => return None,
            KEY => Self::Key(body.to_vec()),
            OLD_KEY => Self::OldKey(body.to_vec()),
            SIZE => Self::Size(number_u64()?),
            MTIME_NS => Self::MtimeNs(number_u64()?.cast_signed()),
            MODE => Self::Mode(number_u32()?),
            UID => Self::Uid(number_u32()?),
            GID => Self::Gid(number_u32()?),
            ETAG => Self::ETag(body.to_vec()),
            CONTENT_TYPE => Self::ContentType(body.to_vec()),
            META => decode_pair(body).map(|(name, value)| Self::Meta { name, value })?,
            TAG => decode_pair(body).map(|(name, value)| Self::Tag { name, value })?,
            XATTR => decode_pair(body).map(|(name, value)| Self::Xattr { name, value })?,
            RUNS if body.len().is_multiple_of(RUN_LEN) => {
                Self::Runs(body.chunks_exact(RUN_LEN).map(ChunkRun::decode).collect())
            }
            RUNS => return None,
            TARGET => Self::Target(body.to_vec()),
            PARENT => Self::Parent(number_u64()?),
            INODE => Self::Inode(number_u64()?),
            CHECKSUM => {
                let (&algorithm, value) = body.split_first()?;
                Self::Checksum { algorithm, value: value.to_vec() }
            }
            SET => Self::Set(body.try_into().ok()?),
            REST => Self::Rest(body.to_vec()),
            _ => Self::Unknown { tag, bytes: body.to_vec() },
        })
    }
}

fn decode_pair(body: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (len, rest) = body.split_first_chunk()?;
    let (name, value) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((name.to_vec(), value.to_vec()))
}
