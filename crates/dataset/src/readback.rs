//! Reads a file back, whole, and sums it: what the door gives is compared with what was given to it.

use std::sync::atomic::AtomicU64;

use futures_util::{StreamExt, TryStreamExt, stream};
use stoker_format::{VersionId, crc64, crc64_combine};
use stoker_store::{ErrorKind, File, Key, Result, Store, StoreError};

use crate::meter;

const PIECE: u64 = 4 << 20;
/// Pieces under way at once.
const PIECES: usize = 4;

/// Checks that the present version of a key is this one and has this sum.
pub async fn verify(
    store: &dyn Store,
    volume: &str,
    key: &Key,
    version: VersionId,
    sum: u64,
    counter: &AtomicU64,
) -> Result<()> {
    let file = store.open(volume, key).await?;
    if file.info().version != version {
        let message = "somebody else replaced it meanwhile: choose another name, or let one of you write it";
        return Err(StoreError::new(ErrorKind::Conflict, message));
    }
    if crc_of(&*file, counter).await? != sum {
        let message = "it was read back and is not what was written; nothing refers to it";
        return Err(StoreError::new(ErrorKind::Corrupt, message));
    }
    Ok(())
}

async fn crc_of(file: &dyn File, counter: &AtomicU64) -> Result<u64> {
    let size = file.info().size;
    let mut reads = Vec::with_capacity(size.div_ceil(PIECE) as usize);
    for piece in 0..size.div_ceil(PIECE) {
        let at = piece * PIECE;
        reads.push(crc_of_piece(file, at, size.min(at + PIECE)));
    }
    let reads = stream::iter(reads).buffered(PIECES);
    let add = |crc, (part, len): (u64, u64)| {
        meter::add(counter, len);
        std::future::ready(Ok(crc64_combine(crc, part, len)))
    };
    reads.try_fold(0, add).await
}

async fn crc_of_piece(file: &dyn File, start: u64, end: u64) -> Result<(u64, u64)> {
    let (mut at, mut crc) = (start, 0);
    while at < end {
        let bytes = file.read(at, (end - at) as usize).await?;
        if bytes.is_empty() {
            return Err(StoreError::new(ErrorKind::Corrupt, "it ends before its length"));
        }
        crc = crc64_combine(crc, crc64(&bytes), bytes.len() as u64);
        at += bytes.len() as u64;
    }
    Ok((crc, end - start))
}
