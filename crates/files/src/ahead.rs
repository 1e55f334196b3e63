//! Reading ahead: whoever reads from front to back finds the next blocks there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use stoker_format::VersionId;
use stoker_store::{File, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is read ahead at once.
pub(crate) const BLOCK: u64 = 1 << 20;

/// Most blocks ahead of one reader.
const WINDOW_MAX: u64 = 8;

/// How far from the expected place a read may begin and still count as going on: the kernel sends several at once.
const NEAR: u64 = 2 << 20;

type Read = Shared<BoxFuture<'static, std::result::Result<Bytes, StoreError>>>;

/// A block on its way, and the room that it takes.
struct Block {
    read: Read,
    _room: OwnedSemaphorePermit,
}

/// Reads that must go on where others ended before anything is read ahead: one that jumps may land near its last one.
const STEPS: u32 = 2;

/// What one reader will want.
pub(crate) struct Ahead {
    version: Option<VersionId>,
    /// Where the next read would begin.
    next: u64,
    /// Reads that went on since the reader jumped last.
    steps: u32,
    /// Blocks that are fetched ahead; grows while the reader goes on.
    window: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Default for Ahead {
    /// Whoever begins at the front is believed.
    fn default() -> Ahead {
        Ahead { version: None, next: 0, steps: STEPS - 1, window: 0, blocks: BTreeMap::new() }
    }
}

impl Ahead {
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.window = 0;
    }

    /// The blocks that a range lies in, if the reader goes from front to back; none if it jumps, or has just jumped.
    pub fn wish(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        len: u64,
        rooms: &Arc<Semaphore>,
    ) -> Option<Vec<(u64, Read)>> {
        let info = file.info();
        if self.version != Some(info.version) {
            self.clear();
            self.version = Some(info.version);
        }
        let goes_on = offset <= self.next + NEAR && self.next <= offset + NEAR;
        let end = offset + len;
        self.steps = if goes_on { self.steps.saturating_add(1) } else { 0 };
        if self.steps < STEPS || info.size <= BLOCK {
            self.clear();
            self.next = end;
            return None;
        }
        if end > self.next {
            self.next = end;
            self.window = (self.window * 2).clamp(1, WINDOW_MAX);
        }
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let behind = self.next.saturating_sub(2 * NEAR) / BLOCK;
        self.blocks.retain(|at, _| *at >= behind.min(first) && *at <= last + 2 * WINDOW_MAX);
        let end_block = info.size.div_ceil(BLOCK);
        for at in first..(last + 1 + self.window).min(end_block) {
            if let Entry::Vacant(vacant) = self.blocks.entry(at) {
                match rooms.clone().try_acquire_owned() {
                    Ok(room) => vacant.insert(Block { read: fetch(file.clone(), at), _room: room }),
                    Err(_) if at > last => break,
                    // What is wanted now is read by itself, and nothing of it is kept.
                    Err(_) => return None,
                };
            }
        }
        Some((first..=last).filter_map(|at| Some((at, self.blocks.get(&at)?.read.clone()))).collect())
    }

    /// A block could not be read; it is asked for again.
    pub fn distrust(&mut self, block: u64) {
        self.blocks.remove(&block);
    }
}

fn fetch(file: Arc<dyn File>, block: u64) -> Read {
    let start = block * BLOCK;
    let len = BLOCK.min(file.info().size - start) as usize;
    let task = tokio::spawn(async move { read_exactly(&*file, start, len).await });
    let read = async move {
        task.await
            .unwrap_or_else(|fault| Err(StoreError::new(stoker_store::ErrorKind::Closed, fault.to_string())))
    };
    read.boxed().shared()
}

/// Bytes of an open file, all of them.
pub(crate) async fn read_exactly(
    file: &dyn File,
    start: u64,
    len: usize,
) -> std::result::Result<Bytes, StoreError> {
    let first = file.read(start, len).await?;
    if first.len() == len {
        return Ok(first);
    }
    let mut bytes = Vec::with_capacity(len);
    let mut piece = first;
    loop {
        if piece.is_empty() {
            let message = "a file ended before its length";
            return Err(StoreError::new(stoker_store::ErrorKind::Corrupt, message));
        }
        bytes.extend_from_slice(&piece);
        if bytes.len() == len {
            return Ok(bytes.into());
        }
        piece = file.read(start + bytes.len() as u64, len - bytes.len()).await?;
    }
}

#[cfg(test)]
mod tests {
    use stoker_store::{Attributes, DrainState, FileInfo, Key};

    use super::*;

    /// A file of zeros.
    struct Zeros(FileInfo);

    impl File for Zeros {
        fn info(&self) -> &FileInfo {
            &self.0
        }

        fn read(&self, _offset: u64, len: usize) -> BoxFuture<'_, std::result::Result<Bytes, StoreError>> {
            Box::pin(async move { Ok(vec![0; len].into()) })
        }
    }

    fn file() -> Arc<dyn File> {
        Arc::new(Zeros(FileInfo {
            key: Key::new("file").unwrap(),
            size: 100 * BLOCK,
            etag: String::new(),
            modified_ms: 0,
            version: VersionId::ZERO,
            inode: 1,
            attributes: Attributes::default(),
            checksums: Vec::new(),
            part_sizes: Vec::new(),
            drain: DrainState::Dirty,
            links: 1,
            allocated: None,
            past: None,
            expires: None,
        }))
    }

    #[tokio::test]
    async fn readers_together_keep_no_more_than_there_is_room_for() {
        let (rooms, file) = (Arc::new(Semaphore::new(10)), file());
        let mut readers: Vec<Ahead> = (0..64).map(|_| Ahead::default()).collect();
        for at in 0..20 {
            for reader in &mut readers {
                reader.wish(&file, at * BLOCK, BLOCK, &rooms);
            }
            let kept: usize = readers.iter().map(|reader| reader.blocks.len()).sum();
            assert_eq!(kept + rooms.available_permits(), 10);
        }
        // Whoever gets none reads what it wants by itself; with room again it reads ahead again.
        assert!(readers[63].wish(&file, 20 * BLOCK, BLOCK, &rooms).is_none());
        readers.drain(..63);
        assert!(readers[0].wish(&file, 21 * BLOCK, BLOCK, &rooms).is_some());
    }

    #[tokio::test]
    async fn who_jumps_reads_nothing_ahead_and_who_goes_on_does() {
        let (file, rooms) = (file(), Arc::new(Semaphore::new(100)));
        let mut ahead = Ahead::default();
        let mut wish = |offset| ahead.wish(&file, offset, 4096, &rooms).is_some();
        assert!(wish(0), "from the front on");
        assert!(wish(4096));
        assert!(!wish(50 << 20), "a jump");
        assert!(!wish((50 << 20) + 8192), "it may have landed there by chance");
        assert!(wish((50 << 20) + 12_288));
        assert!(!wish(10 << 20));
        let mut jumping = Ahead::default();
        for at in [7u64, 90, 91, 3, 50, 48, 20] {
            assert!(jumping.wish(&file, at << 20, 4096, &rooms).is_none(), "{at}");
        }
    }
}
