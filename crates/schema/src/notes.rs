//! Notes: what somebody wrote down for the whole cluster, under a name.
//!
//! A note has a head, which changes often and is one row, and a body, which does not, may be long, lies in pieces, and is read on its own.
//! Whoever writes says which note it replaces, by the commit that wrote that; if there is another one by now, nothing happens.

use stoker_catalog::kv::{Catalog, Commit, Outcome, Row, prefix_end};
use stoker_catalog::{CatalogError, Result};

use crate::rows::keys;

/// Bytes of the head of a note, which every write of it writes.
pub const HEAD_LEN_MAX: usize = 60 << 10;

/// Bytes of the body of a note.
pub const BODY_LEN_MAX: usize = 128 * PIECE_LEN;

/// Bytes of a row that holds a piece of a body.
const PIECE_LEN: usize = 60 << 10;

/// A note without its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The commit that wrote it.
    pub seq: u64,
    /// What was written last.
    pub head: Vec<u8>,
    pieces: Pieces,
}

/// In front of the head: which body it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Pieces {
    /// Counts bodies; also in front of each piece.
    number: u64,
    count: u8,
}

impl Pieces {
    const LEN: usize = 9;

    fn to_bytes(self) -> [u8; Pieces::LEN] {
        let mut bytes = [self.count; Pieces::LEN];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// What stands in front of a row, and the rest of it.
    fn split(value: &[u8]) -> Option<(Pieces, &[u8])> {
        let (front, rest) = value.split_first_chunk::<{ Pieces::LEN }>()?;
        let number = u64::from_be_bytes(front[..8].try_into().ok()?);
        Some((Pieces { number, count: front[8] }, rest))
    }
}

/// The note with a name, without its body.
pub async fn read(catalog: &dyn Catalog, name: &str) -> Result<Option<Note>> {
    let Some(row) = row(catalog, &keys::note(name)).await? else { return Ok(None) };
    let broken = || CatalogError::corrupt(format!("the note `{name}` cannot be read"));
    let (pieces, head) = Pieces::split(&row.value).ok_or_else(broken)?;
    Ok(Some(Note { seq: row.seq, head: head.to_vec(), pieces }))
}

/// The body of a note, which was written with it or before; none if somebody wrote another one meanwhile.
pub async fn body(catalog: &dyn Catalog, name: &str, note: &Note) -> Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    for number in 0..note.pieces.count {
        let piece = row(catalog, &keys::note_piece(name, number)).await?;
        let piece = piece.as_ref().and_then(|piece| Pieces::split(&piece.value));
        let Some((_, bytes)) = piece.filter(|(of, _)| *of == note.pieces) else { return Ok(None) };
        body.extend_from_slice(bytes);
    }
    Ok(Some(body))
}

/// Writes a head, and a body if it changed, in place of what was read (`seq`; none for nothing). Gives the commit; none if somebody else
/// was quicker.
pub async fn write(
    catalog: &dyn Catalog,
    name: &str,
    seq: Option<u64>,
    head: &[u8],
    body: Option<&[u8]>,
) -> Result<Option<u64>> {
    if head.len() > HEAD_LEN_MAX || body.is_some_and(|body| body.len() > BODY_LEN_MAX) {
        let len = body.map_or(0, <[u8]>::len);
        let message =
            format!("the note `{name}` is too long: {} bytes of head, {len} bytes of body", head.len());
        return Err(CatalogError::invalid(message));
    }
    let key = keys::note(name);
    let before = row(catalog, &key).await?;
    if before.as_ref().map(|row| row.seq) != seq {
        return Ok(None);
    }
    let mut pieces =
        before.as_ref().and_then(|row| Pieces::split(&row.value)).map_or(Pieces::default(), |(it, _)| it);
    let mut change = Commit::new().unchanged(key.clone(), before.as_ref());
    if let Some(body) = body {
        let parts: Vec<&[u8]> = body.chunks(PIECE_LEN).collect();
        pieces = Pieces { number: pieces.number + 1, count: parts.len() as u8 };
        for (number, part) in parts.iter().enumerate() {
            let value = [&pieces.to_bytes()[..], part].concat();
            change = change.put(keys::note_piece(name, number as u8), value);
        }
        let end = prefix_end(&key).expect("a table is not 0xff");
        change = change.delete_range(keys::note_piece(name, parts.len() as u8), end);
    }
    change = change.put(key, [&pieces.to_bytes()[..], head].concat());
    match catalog.commit(change).await? {
        Outcome::Done { seq, .. } => Ok(Some(seq)),
        Outcome::Failed { .. } => Ok(None),
    }
}

async fn row(catalog: &dyn Catalog, key: &[u8]) -> Result<Option<Row>> {
    Ok(catalog.get(&[key]).await?.pop().flatten())
}
