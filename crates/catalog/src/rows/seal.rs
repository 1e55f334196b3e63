//! Seals: trees that are frozen into a manifest.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;
use super::entry::{HolderRow, SourceRef};
use super::layout::Layout;

/// How far a seal is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SealState {
    /// Its references are being written.
    Building,
    /// It holds all that its manifest names.
    Ready,
    /// Its references are being taken away.
    Removing,
}

/// A seal. It is no snapshot: a file that changes while the seal is built is in it as it was when it was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SealRow {
    /// How far it is.
    pub state: SealState,
    /// Keys that it covers start with this.
    pub prefix: Vec<u8>,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// The catalog's sequence when it was begun: all that was acknowledged before is in it.
    pub seq: u64,
    /// Files in the manifest; 0 until it is ready.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Content of the manifest, a file's version like any other; none until it is ready.
    pub manifest: Option<[u8; 12]>,
}

impl RowValue for SealRow {
    const TABLE: &'static str = "seals";
}

/// A version that a seal holds, and what it takes to let go of it once no file has it any more. Whoever moves the bytes
/// of a version tells this row as well as the file rows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRow {
    /// Length.
    pub size: u64,
    /// How the content is cut into chunks.
    pub layout: Layout,
    /// Who holds chunks that are not drained.
    pub holders: Vec<HolderRow>,
    /// Lake object that has the bytes; a relier row keeps it there (R11). None: the bytes are on the holders' drives.
    pub relies: Option<SourceRef>,
}

impl RowValue for MemberRow {
    const TABLE: &'static str = "seal members";
}
