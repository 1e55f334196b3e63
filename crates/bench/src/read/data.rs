//! Files to be read, with a stamp in every stretch that is read at once: a wrong byte order or place is noticed.

use std::sync::Arc;

use stoker_store::{File, Finish, Key, ListRequest, Store, StoreError, WriteRequest};

use super::READ;
use crate::cell::Seat;
use crate::failure::Failure;
use crate::rng::Rng;

/// Bytes of a file in a ring.
const FILE: u64 = 64 << 20;
/// Files written at the same time.
const AT_ONCE: usize = 4;
/// Bytes of a stamp.
const STAMP: usize = 16;

/// What a stretch of a file begins with.
pub fn stamp(file: u64, offset: u64) -> [u8; STAMP] {
    let mut stamp = [0; STAMP];
    stamp[..8].copy_from_slice(&(file + 1).to_le_bytes());
    stamp[8..].copy_from_slice(&offset.to_le_bytes());
    stamp
}

/// Whether bytes that were read at a place begin as they must.
pub fn check(file: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
    if offset.is_multiple_of(READ.len as u64) && bytes.get(..STAMP) != Some(&stamp(file, offset)) {
        let message = format!("the bytes at {offset} of file {file} are wrong");
        return Err(StoreError::new(stoker_store::ErrorKind::Corrupt, message));
    }
    Ok(())
}

/// Random bytes with stamps.
pub fn stamped(file: u64, offset: u64, memory: &mut [u8]) {
    for (at, stretch) in memory.chunks_mut(READ.len).enumerate() {
        stretch[..STAMP].copy_from_slice(&stamp(file, offset + (at * READ.len) as u64));
    }
}

/// The name of a file.
pub fn key(file: u64) -> Result<Key, StoreError> {
    Key::new(format!("{file:06}"))
}

/// Writes files of so many bytes together.
pub fn write(seat: &Seat, volume: &str, bytes: u64) -> Result<(), Failure> {
    let files = (bytes / FILE).max(1);
    seat.runtime().block_on(async {
        let node = seat.node();
        for first in (0..files).step_by(AT_ONCE) {
            let some = first..(first + AT_ONCE as u64).min(files);
            let written = some.map(|file| write_file(node.as_ref(), volume, file));
            futures_util::future::try_join_all(written).await?;
        }
        Ok::<(), StoreError>(())
    })?;
    Ok(())
}

async fn write_file(store: &dyn Store, volume: &str, file: u64) -> Result<(), StoreError> {
    let request = WriteRequest { size: Some(FILE), ..WriteRequest::default() };
    let mut writer = store.create(volume, &key(file)?, request).await?;
    let mut offset = 0;
    let mut bytes = Vec::new();
    while offset < FILE {
        let mut buf = writer.buffer().await?;
        let len = buf.capacity().min((FILE - offset) as usize);
        if bytes.len() < len {
            bytes.resize(len, 0);
            Rng::new(file).fill(&mut bytes);
        }
        stamped(file, offset, &mut bytes[..len]);
        buf.fill(&bytes[..len]);
        writer.write(buf).await?;
        offset += len as u64;
    }
    writer.finish(Finish::default()).await.map(drop)
}

/// Opens all files of a volume, in the order of their numbers.
pub fn open(seat: &Seat, volume: &str) -> Result<Vec<Box<dyn File>>, Failure> {
    let opened = seat.runtime().block_on(async {
        let node = seat.node();
        let page = node.list(volume, ListRequest { limit: 1000, ..ListRequest::default() }).await?;
        let mut files = Vec::new();
        for file in 0..page.entries.len() as u64 {
            files.push(node.open(volume, &key(file)?).await?);
        }
        Ok::<_, StoreError>(files)
    })?;
    Ok(opened)
}

/// Reads a little of every chunk.
pub fn touch(seat: &Seat, files: &Arc<Vec<Box<dyn File>>>) -> Result<(), Failure> {
    seat.runtime().block_on(async {
        for file in files.iter() {
            for offset in (0..file.info().size).step_by(READ.len) {
                file.read(offset, 1).await?;
            }
        }
        Ok::<(), StoreError>(())
    })?;
    Ok(())
}
