//! What one client of `bench read` does again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stoker_node::Node;
use stoker_store::{ErrorKind, File, Store, StoreError};

use super::{READ, data};
use crate::cell::Client;
use crate::rng::Rng;

/// Reads a stretch of a file, whole.
async fn read(file: &dyn File, number: u64, offset: u64) -> Result<(), StoreError> {
    let end = (offset + READ.len as u64).min(file.info().size);
    let mut at = offset;
    while at < end {
        let bytes = file.read(at, (end - at) as usize).await?;
        if bytes.is_empty() {
            return Err(StoreError::new(ErrorKind::Corrupt, "a file is shorter than it says"));
        }
        data::check(number, at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// Reads anywhere in open files.
pub struct Anywhere {
    files: Arc<Vec<Box<dyn File>>>,
    rng: Rng,
    next: (usize, u64),
}

impl Anywhere {
    /// A client with a slot of the queue.
    pub fn new(files: Arc<Vec<Box<dyn File>>>, slot: usize) -> Anywhere {
        Anywhere { files, rng: Rng::new(crate::clock::unix_ms() ^ (slot as u64) << 48), next: (0, 0) }
    }
}

impl Client for Anywhere {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        if self.files.is_empty() {
            return Ok(false);
        }
        let file = self.rng.below(self.files.len() as u64) as usize;
        let stretches = (self.files[file].info().size / READ.len as u64).max(1);
        self.next = (file, self.rng.below(stretches) * READ.len as u64);
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let (file, offset) = self.next;
        read(self.files[file].as_ref(), file as u64, offset).await
    }
}

/// Reads files from their beginning to their end, each once.
pub struct Whole {
    node: Arc<Node>,
    volume: &'static str,
    files: Arc<Vec<u64>>,
    /// The next file that nobody has taken.
    taken: Arc<AtomicUsize>,
    open: Option<(u64, Box<dyn File>)>,
    offset: u64,
}

impl Whole {
    /// Clients that share files.
    pub fn clients(node: &Arc<Node>, volume: &'static str, files: Arc<Vec<u64>>, depth: usize) -> Vec<Whole> {
        let taken = Arc::new(AtomicUsize::new(0));
        let client = |_| {
            let (node, files, taken) = (node.clone(), files.clone(), taken.clone());
            Whole { node, volume, files, taken, open: None, offset: 0 }
        };
        (0..depth).map(client).collect()
    }
}

impl Client for Whole {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        if let Some((_, file)) = &self.open
            && self.offset < file.info().size
        {
            return Ok(true);
        }
        let Some(number) = self.files.get(self.taken.fetch_add(1, Ordering::Relaxed)).copied() else {
            return Ok(false);
        };
        self.open = Some((number, self.node.open(self.volume, &data::key(number)?).await?));
        self.offset = 0;
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let (number, file) = self.open.as_ref().expect("prepared");
        read(file.as_ref(), *number, self.offset).await?;
        self.offset += READ.len as u64;
        Ok(())
    }
}
