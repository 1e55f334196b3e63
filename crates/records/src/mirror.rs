//! The file beside the catalog that has what name records cannot give back: volumes and access keys. (D47)

use std::path::Path;

use stoker_catalog::Row;
use stoker_catalog::backup::{Kind, Reader};
use stoker_format::ClusterId;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::error;

/// Its name.
pub const FILE: &str = "catalog.kept";

/// Tables that are kept: wrapped data keys, lakes with names and which volumes have a second one, access keys, imports, volumes by name and by number. In the order of their keys. Join tokens are not: an
/// older file would let nodes in by tokens that were used or revoked since.
pub const TABLES: [&[u8]; 7] = [b"!keys/", b"!lakes/", b"!replica/", b"A", b"I", b"V", b"W"];

/// What the file in a node's directory says: its last commit and its rows; none if there is no file.
pub fn read(dir: &Path, cluster: ClusterId) -> Result<Option<(u64, Vec<Row>)>> {
    let path = dir.join(FILE);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(fault) => {
            return Err(StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display())));
        }
    };
    let mut reader = Reader::begin(std::io::BufReader::new(file)).map_err(error::catalog)?;
    let header = *reader.header();
    if header.cluster != cluster || header.kind != Kind::Kept {
        let message = format!("{}: it belongs to another cluster; remove it", path.display());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    let mut rows = Vec::new();
    while let Some(more) = reader.next_rows().map_err(error::catalog)? {
        rows.extend(more);
    }
    Ok(Some((header.seq, rows)))
}
