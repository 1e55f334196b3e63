//! Entries of directories.

use serde::{Deserialize, Serialize};
use stoker_format::{DriveId, NodeId, VersionId};

use super::codec::RowValue;
use super::layout::Layout;
use super::past::PastRow;
use crate::level::Level;
use stoker_catalog::{CatalogError, ErrorKind, Result};

/// A drive that acknowledged chunks of a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HolderRow {
    /// Node.
    pub node: [u8; 16],
    /// Drive.
    pub drive: [u8; 16],
    /// Life of the drive that acknowledged.
    pub incarnation: u64,
}

impl HolderRow {
    /// Names a holder.
    pub fn new(node: NodeId, drive: DriveId, incarnation: u64) -> HolderRow {
        HolderRow { node: node.0, drive: drive.0, incarnation }
    }
}

/// Where a file is in the lake, confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LakeRef {
    /// Key, relative to the volume's root in the lake; after a rename not the path of the file.
    pub key: Vec<u8>,
    /// Etag of the object.
    pub etag: String,
}

/// A lake object of another file that an undrained copy still needs (R11).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceRef {
    /// Volume of the object.
    pub volume: u32,
    /// Key, relative to that volume's root in the lake.
    pub key: Vec<u8>,
    /// Etag of the object.
    pub etag: String,
}

/// How far a reference is on its way to the lake (R11: it belongs to the reference, not to the chunks).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Drain {
    /// To be drained.
    Dirty,
    /// Confirmed in the lake.
    Clean,
    /// Not to be drained.
    Never,
    /// The lake holds something else than expected.
    Conflict,
}

/// A file: its present version and where that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileRow {
    /// Number of this name of the file, which no other has. The number of a file that never had another name.
    pub inode: u64,
    /// Content.
    pub version: [u8; 12],
    /// Length.
    pub size: u64,
    /// S3 ETag.
    pub etag: String,
    /// When it was published, milliseconds since 1970.
    pub modified_ms: u64,
    /// CRC-64/NVME of the content, if it is known.
    pub crc64: Option<u64>,
    /// How the content is cut into chunks.
    pub layout: Layout,
    /// Who holds chunks that are not drained.
    pub holders: Vec<HolderRow>,
    /// On its way to the lake.
    pub drain: Drain,
    /// Where it is in the lake: this version if clean, otherwise what is to be replaced there.
    pub lake: Option<LakeRef>,
    /// Where its bytes are in the lake if not under its own key yet: it is a copy of a drained file.
    pub source: Option<SourceRef>,
    /// Oldest change that is not in the lake, milliseconds since 1970; 0 if clean.
    pub dirty_since_ms: u64,
    /// Publishes of this name so far.
    pub publishes: u32,
    /// The record of this name on a drive, if it is not that of the version: a second name of the same content.
    pub name_record: Option<[u8; 12]>,
    /// Properties that the catalog does not look into.
    pub properties: Vec<u8>,
    /// Node that owes the drain: the last one that changed the file. All zero if nobody does.
    pub home: [u8; 16],
    /// Number of the file if it has or had other names. They have the same version and properties, always.
    pub links: Option<u64>,
    /// Which version of its name it is, if its volume keeps versions. It stands behind the others, in rows that have one.
    #[serde(skip)]
    pub past: Option<PastRow>,
}

impl FileRow {
    /// Number of the file, the same under all its names.
    pub fn number(&self) -> u64 {
        self.links.unwrap_or(self.inode)
    }

    /// Bytes of the content that are stored: all but those in holes.
    pub fn allocated(&self) -> u64 {
        match self.layout {
            Layout::Sparse { allocated } => allocated.min(self.size),
            Layout::Simple { .. } | Layout::Rows => self.size,
        }
    }

    /// Content.
    pub fn version(&self) -> VersionId {
        VersionId(self.version)
    }
}

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EntryRow {
    /// A file.
    File(Box<FileRow>),
    /// A directory, by its inode.
    Directory(u64),
}

/// That of entries without a version of their name.
const PLAIN: u8 = 3;

impl RowValue for EntryRow {
    /// Files of volumes that keep versions have this one, which there are at [`super::VERSIONS_SINCE`] only; all others are as before.
    const VERSION: u8 = 4;
    const TABLE: &'static str = "entries";

    fn encode_at(&self, _level: Level) -> Vec<u8> {
        let past = match self {
            EntryRow::File(file) => file.past.as_ref(),
            EntryRow::Directory(_) => None,
        };
        let version = if past.is_some() { Self::VERSION } else { PLAIN };
        let bytes = postcard::to_extend(self, vec![version]).expect("plain data encodes");
        past.into_iter()
            .fold(bytes, |bytes, past| postcard::to_extend(past, bytes).expect("plain data encodes"))
    }

    fn decode(bytes: &[u8]) -> Result<EntryRow> {
        let corrupt = |what: String| CatalogError::new(ErrorKind::Corrupt, what);
        let read = match bytes.split_first() {
            Some((&Self::VERSION, body)) => versioned(body),
            Some((&PLAIN, body)) => postcard::from_bytes(body),
            Some((&2, body)) => postcard::from_bytes(body).map(|former| match former {
                FormerRow::File(file) => EntryRow::File(Box::new((*file).into())),
                FormerRow::Directory(inode) => EntryRow::Directory(inode),
            }),
            Some((&version, _)) if version > Self::VERSION => {
                let message = format!(
                    "a row of table entries was written by a newer release (version {version}); use that release or a newer one"
                );
                return Err(CatalogError::new(ErrorKind::Foreign, message));
            }
            _ => return Err(corrupt("a row of table entries has no version".to_owned())),
        };
        read.map_err(|fault| corrupt(format!("a row of table entries cannot be read: {fault}")))
    }
}

/// An entry with what its volume says of the version behind it.
fn versioned(body: &[u8]) -> postcard::Result<EntryRow> {
    let (mut entry, rest) = postcard::take_from_bytes::<EntryRow>(body)?;
    if let EntryRow::File(file) = &mut entry {
        file.past = Some(postcard::from_bytes(rest)?);
    }
    Ok(entry)
}

/// An entry of version 2, when a file had one name.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
enum FormerRow {
    File(Box<FormerFile>),
    Directory(u64),
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct FormerFile {
    inode: u64,
    version: [u8; 12],
    size: u64,
    etag: String,
    modified_ms: u64,
    crc64: Option<u64>,
    layout: Layout,
    holders: Vec<HolderRow>,
    drain: Drain,
    lake: Option<LakeRef>,
    source: Option<SourceRef>,
    dirty_since_ms: u64,
    publishes: u32,
    name_record: Option<[u8; 12]>,
    properties: Vec<u8>,
    home: [u8; 16],
}

impl From<FormerFile> for FileRow {
    fn from(former: FormerFile) -> FileRow {
        let FormerFile { inode, version, size, etag, modified_ms, crc64, layout, holders, .. } = former;
        let FormerFile {
            drain, lake, source, dirty_since_ms, publishes, name_record, properties, home, ..
        } = former;
        FileRow {
            inode,
            version,
            size,
            etag,
            modified_ms,
            crc64,
            layout,
            holders,
            drain,
            lake,
            source,
            dirty_since_ms,
            publishes,
            name_record,
            properties,
            home,
            links: None,
            past: None,
        }
    }
}

/// Where a directory hangs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirRow {
    /// Directory that holds it.
    pub parent: u64,
    /// Its name there, with the `/` at its end.
    pub name: Vec<u8>,
}

impl RowValue for DirRow {
    const TABLE: &'static str = "directories";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_version_before_are_read() {
        let file = FormerFile {
            inode: 7,
            version: [1; 12],
            size: 3,
            etag: "e".into(),
            modified_ms: 4,
            crc64: Some(5),
            layout: Layout::Rows,
            holders: vec![HolderRow { node: [2; 16], drive: [3; 16], incarnation: 6 }],
            drain: Drain::Dirty,
            lake: Some(LakeRef { key: b"k".to_vec(), etag: "l".into() }),
            source: None,
            dirty_since_ms: 8,
            publishes: 9,
            name_record: Some([4; 12]),
            properties: vec![1, 2],
            home: [5; 16],
        };
        let bytes = postcard::to_extend(&FormerRow::File(Box::new(file)), vec![2]).unwrap();
        let EntryRow::File(read) = EntryRow::decode(&bytes).unwrap() else { panic!("a file") };
        assert_eq!(
            (read.inode, read.number(), read.links, read.publishes, read.home),
            (7, 7, None, 9, [5; 16])
        );
        assert_eq!((read.etag.as_str(), read.properties.as_slice()), ("e", &[1u8, 2][..]));
        let bytes = postcard::to_extend(&FormerRow::Directory(9), vec![2]).unwrap();
        assert_eq!(EntryRow::decode(&bytes).unwrap(), EntryRow::Directory(9));
        assert!(EntryRow::decode(&[1, 0]).is_err());

        // What keeps no versions is written as ever; a version behind it is read back, and nothing less.
        let plain = EntryRow::File(read.clone());
        assert_eq!(plain.encode()[0], 3);
        assert_eq!(EntryRow::decode(&plain.encode()).unwrap(), plain);
        let retention = Some(super::super::RetentionRow { is_compliance: true, until_ms: 77 });
        let past = PastRow { number: 9, is_null: false, is_marker: false, retention, is_held: true };
        let row = EntryRow::File(Box::new(FileRow { past: Some(past), ..*read }));
        let bytes = row.encode();
        assert_eq!(bytes[0], 4);
        assert_eq!(EntryRow::decode(&bytes).unwrap(), row);
        for len in 0..bytes.len() {
            assert!(EntryRow::decode(&bytes[..len]).is_err(), "{len}");
        }
        assert_eq!(EntryRow::decode(&[5]).unwrap_err().kind, ErrorKind::Foreign);
    }

    #[test]
    fn what_holds_a_version() {
        let row = |is_compliance, until_ms, is_held| PastRow {
            retention: Some(super::super::RetentionRow { is_compliance, until_ms }),
            is_held,
            ..PastRow::default()
        };
        for (row, at_9, bypassed, at_10) in [
            (PastRow::default(), false, false, false),
            (row(false, 10, false), true, false, false),
            (row(true, 10, false), true, true, false),
            (row(false, 10, true), true, true, true),
        ] {
            let found = (row.is_locked(9, false), row.is_locked(9, true), row.is_locked(10, false));
            assert_eq!(found, (at_9, bypassed, at_10), "{row:?}");
        }
    }
}
