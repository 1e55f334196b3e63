//! The identity of a drive, and what a release must know to touch it.
//!
//! Two copies lie in neighbouring blocks. Only one is rewritten at a time, with a higher `update`, so a torn
//! write leaves the other.

use crate::error::FormatError;
use crate::ids::{ClusterId, DriveId, KeyId, NodeId, RingId};
use crate::layout::{BLOCK, FORMAT_VERSION, SEGMENT_COUNT_MAX, SEGMENT_COUNT_MIN, segment_size_is_valid};
use crate::le;

const MAGIC: &[u8; 8] = b"STOKERSB";
const LABEL_AT: usize = 160;

/// Feature bits that this release understands. None are defined in version 1.
const FEATURES_INCOMPAT_KNOWN: u64 = 0;
const FEATURES_RO_COMPAT_KNOWN: u64 = 0;

/// Longest label in bytes.
pub const LABEL_LEN_MAX: usize = 32;

/// How segments are laid out on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One file per segment; can give leases.
    Directory = 1,
    /// One file or raw device, divided; gives no leases.
    Flat = 2,
}

/// Everything that must be known before the first segment is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Cluster that the drive was given to.
    pub cluster: ClusterId,
    /// Node that the drive was last in.
    pub node: NodeId,
    /// The drive itself.
    pub drive: DriveId,
    /// This formatting of it; every record repeats it.
    pub ring: RingId,
    /// Raised when the drive is declared gone and comes back empty; acknowledgements name it (R6).
    pub incarnation: u64,
    /// Raised at each start; tells this boot's segments from the last one's.
    pub boot: u64,
    /// Raised at each rewrite; the higher copy counts.
    pub update: u64,
    /// Size of every segment.
    pub segment_size: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Files or one flat space.
    pub layout: Layout,
    /// When the drive was formatted, for people.
    pub created_unix_ms: u64,
    /// Where segment 0 begins on a flat drive.
    pub data_offset: u64,
    /// A name for people; at most [`LABEL_LEN_MAX`] bytes, no NUL.
    pub label: String,
    /// Key of the drive, 0 for none (R5).
    pub key: KeyId,
    /// Version that wrote the drive.
    pub format_version: u16,
    /// Oldest version that may read it.
    pub reader_version_min: u16,
    /// Whoever does not know one of these must not touch the drive.
    pub features_incompat: u64,
    /// Whoever does not know one of these may read, not write.
    pub features_ro_compat: u64,
    /// Whoever does not know these may ignore them.
    pub features_compat: u64,
}

/// What this release may do with a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Serve reads; append, reclaim and superblock updates are forbidden.
    ReadOnly,
}

/// Decides what this release may do with a drive. Call it before anything but showing the drive's identity.
pub fn negotiate(superblock: &Superblock) -> Result<Access, FormatError> {
    if superblock.reader_version_min > FORMAT_VERSION {
        return Err(too_new(superblock.reader_version_min));
    }
    if superblock.features_incompat & !FEATURES_INCOMPAT_KNOWN != 0 {
        // A later release may add a feature without raising the version; say that it is newer all the same.
        return Err(too_new(superblock.format_version.max(FORMAT_VERSION + 1)));
    }
    if superblock.features_ro_compat & !FEATURES_RO_COMPAT_KNOWN != 0 {
        return Ok(Access::ReadOnly);
    }
    Ok(Access::ReadWrite)
}

impl Superblock {
    /// Encodes one copy. Panics on a geometry that [`Self::decode`] would refuse, or on a label too long.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert_eq!(self.geometry_fault(), None);
        assert!(self.label.len() <= LABEL_LEN_MAX && !self.label.contains('\0'), "label {:?}", self.label);
        let mut block = le::new_block(MAGIC, self.format_version);
        le::put(&mut block, 10, &self.reader_version_min.to_le_bytes());
        le::put(&mut block, 12, &(BLOCK as u32).to_le_bytes());
        le::put(&mut block, 16, &self.features_incompat.to_le_bytes());
        le::put(&mut block, 24, &self.features_ro_compat.to_le_bytes());
        le::put(&mut block, 32, &self.features_compat.to_le_bytes());
        le::put(&mut block, 40, &self.cluster.0);
        le::put(&mut block, 56, &self.node.0);
        le::put(&mut block, 72, &self.drive.0);
        le::put(&mut block, 88, &self.ring.0);
        le::put(&mut block, 104, &self.incarnation.to_le_bytes());
        le::put(&mut block, 112, &self.boot.to_le_bytes());
        le::put(&mut block, 120, &self.update.to_le_bytes());
        le::put(&mut block, 128, &self.segment_size.to_le_bytes());
        le::put(&mut block, 136, &self.segment_count.to_le_bytes());
        le::put(&mut block, 140, &(self.layout as u32).to_le_bytes());
        le::put(&mut block, 144, &self.created_unix_ms.to_le_bytes());
        le::put(&mut block, 152, &self.data_offset.to_le_bytes());
        le::put(&mut block, LABEL_AT, self.label.as_bytes());
        le::put(&mut block, 192, &self.key.0.to_le_bytes());
        le::seal_block(&mut block);
        block
    }

    /// Decodes one copy. A drive of a newer release decodes as long as its fields can be expressed here, so that
    /// people can be told whose it is; [`negotiate`] then refuses it.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let block = le::open_block(bytes, MAGIC, "the checksum of a superblock does not hold")?;
        Self::decode_fields(block).map_err(|fault| match le::u16(block, 10) {
            newer if newer > FORMAT_VERSION => too_new(newer),
            _ => fault,
        })
    }

    /// Decodes both copies and takes the one updated last. If neither decodes, the error says what is most
    /// worth knowing of the two.
    pub fn newest(a: &[u8], b: &[u8]) -> Result<Self, FormatError> {
        match (Self::decode(a), Self::decode(b)) {
            (Ok(a), Ok(b)) => Ok(if b.update > a.update { b } else { a }),
            (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(only),
            (Err(a), Err(b)) => Err(if worth(&b) > worth(&a) { b } else { a }),
        }
    }

    fn decode_fields(block: &[u8]) -> Result<Self, FormatError> {
        let format_version = le::u16(block, 8);
        if format_version == 0 {
            return Err(FormatError::Corrupt("version 0 does not exist"));
        }
        let block_size = le::u32(block, 12);
        if block_size as usize != BLOCK {
            return Err(FormatError::Unsupported(format!("a drive with blocks of {block_size} bytes")));
        }
        let superblock = Self {
            format_version,
            reader_version_min: le::u16(block, 10),
            features_incompat: le::u64(block, 16),
            features_ro_compat: le::u64(block, 24),
            features_compat: le::u64(block, 32),
            cluster: ClusterId(le::array(block, 40)),
            node: NodeId(le::array(block, 56)),
            drive: DriveId(le::array(block, 72)),
            ring: RingId(le::array(block, 88)),
            incarnation: le::u64(block, 104),
            boot: le::u64(block, 112),
            update: le::u64(block, 120),
            segment_size: le::u64(block, 128),
            segment_count: le::u32(block, 136),
            layout: match le::u32(block, 140) {
                1 => Layout::Directory,
                2 => Layout::Flat,
                _ => return Err(FormatError::Corrupt("a superblock has a layout that does not exist")),
            },
            created_unix_ms: le::u64(block, 144),
            data_offset: le::u64(block, 152),
            label: decode_label(&block[LABEL_AT..LABEL_AT + LABEL_LEN_MAX])?,
            key: KeyId(le::u32(block, 192)),
        };
        superblock.geometry_fault().map_or(Ok(superblock), |fault| Err(FormatError::Corrupt(fault)))
    }

    fn geometry_fault(&self) -> Option<&'static str> {
        if !segment_size_is_valid(self.segment_size) {
            return Some("a superblock has an impossible segment size");
        }
        if !(SEGMENT_COUNT_MIN..=SEGMENT_COUNT_MAX).contains(&self.segment_count) {
            return Some("a superblock has an impossible number of segments");
        }
        let data_len = self.segment_size * u64::from(self.segment_count);
        if !self.data_offset.is_multiple_of(BLOCK as u64) || self.data_offset.checked_add(data_len).is_none()
        {
            return Some("a superblock has an impossible data offset");
        }
        None
    }
}

fn decode_label(bytes: &[u8]) -> Result<String, FormatError> {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    match std::str::from_utf8(&bytes[..len]) {
        Ok(label) => Ok(label.to_owned()),
        Err(_) => Err(FormatError::Corrupt("the label of a superblock is not UTF-8")),
    }
}

fn too_new(found: u16) -> FormatError {
    FormatError::TooNew { found, supported: FORMAT_VERSION }
}

/// How much an error tells about a drive; the higher one is shown.
fn worth(error: &FormatError) -> u8 {
    match error {
        FormatError::TooNew { .. } => 4,
        FormatError::Unsupported(_) => 3,
        FormatError::Corrupt(_) => 2,
        FormatError::BadMagic => 1,
        FormatError::Short { .. } => 0,
    }
}
