//! Reads blocks from bundles into memory of the caller, and compares them with their sums.

use std::sync::Arc;

use futures_util::future::try_join_all;
use stoker_store::{ErrorKind, File, Result, StoreError};
use tokio::sync::Semaphore;

use crate::bundle::Record;
use crate::sum::{self, Piece};

/// A longer block is read in pieces of this, at once.
const PIECE: usize = 1 << 20;

/// Fills memory, which may lie in parts, with a block; false if its bytes do not fit its sum.
pub(crate) async fn fill(
    file: &Arc<dyn File>,
    turns: &Semaphore,
    record: &Record,
    parts: &mut [&mut [u8]],
) -> Result<bool> {
    let mut pieces = Vec::new();
    let mut at = record.offset;
    for part in parts.iter_mut().flat_map(|part| part.chunks_mut(PIECE)) {
        let len = part.len() as u64;
        let piece = match at == record.offset {
            true => Piece::first(&record.digest, part),
            false => Piece::further(part),
        };
        pieces.push(fill_piece(file, turns, at, piece));
        at += len;
    }
    let sums = try_join_all(pieces).await?;
    Ok(sum::of_pieces(&sums) == record.sum)
}

async fn fill_piece(
    file: &Arc<dyn File>,
    turns: &Semaphore,
    offset: u64,
    mut piece: Piece<'_>,
) -> Result<(u64, u64)> {
    let _turn = turns.acquire().await.expect("never closed");
    while piece.lacks() > 0 {
        let bytes = file.read(offset + piece.filled() as u64, piece.lacks()).await?;
        if bytes.is_empty() {
            return Err(StoreError::new(ErrorKind::Corrupt, "the bundle ends inside a block"));
        }
        piece.fill(&bytes);
    }
    Ok(piece.end())
}
