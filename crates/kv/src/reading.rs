//! Reads blocks from bundles into memory of the caller, and compares them with their sums.

use std::sync::Arc;

use futures_util::future::try_join_all;
use stoker_format::BLOCK;
use stoker_store::{ErrorKind, File, Result, StoreError, is_alone};
use tokio::sync::Semaphore;

use crate::bundle::Record;
use crate::sum::{self, Piece};

/// A longer block is read in pieces of this, at once.
const PIECE: usize = 1 << 20;

/// Fills memory, which may lie in parts, with a block; false if its bytes do not fit its sum.
pub(crate) async fn fill(
    file: &Arc<dyn File>,
    permits: &Semaphore,
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
        pieces.push(fill_piece(file, permits, at, piece));
        at += len;
    }
    let sums = try_join_all(pieces).await?;
    Ok(sum::of_pieces(&sums) == record.sum)
}

async fn fill_piece(
    file: &Arc<dyn File>,
    permits: &Semaphore,
    offset: u64,
    mut piece: Piece<'_>,
) -> Result<(u64, u64)> {
    let _permit = permits.acquire().await.expect("never closed");
    while piece.lacks() > 0 {
        let (at, lacks) = (offset + piece.filled() as u64, piece.lacks());
        // A thread that may be blocked reads from the drive to where the bytes belong.
        let count = match is_alone() && piece.room().as_ptr().addr().is_multiple_of(BLOCK) {
            true => {
                let found = file.read_within(at, lacks, piece.room()).await?;
                let count = found.len();
                piece.took(found);
                count
            }
            false => {
                let bytes = file.read(at, lacks).await?;
                piece.fill(&bytes);
                bytes.len()
            }
        };
        if count == 0 {
            return Err(StoreError::new(ErrorKind::Corrupt, "the bundle ends inside a block"));
        }
    }
    Ok(piece.end())
}
