//! What disturbs: clients that keep a node as busy as it gets, each with one thing.

use std::sync::Arc;

use stoker_client::Client as Connection;
use stoker_store::{Awaited, ErrorKind, File, Filler, Finish, Key, Store, StoreError, WriteRequest};

use crate::cell::Client;
use crate::rng::Rng;
use crate::workload::CHUNK;

/// Bytes that one read wants.
pub const READ: usize = 1 << 20;
/// Names that a client writes in turn: old versions are deleted meanwhile.
const NAMES: u64 = 4;

/// Reads anywhere in files.
pub struct Serve {
    files: Arc<Vec<Box<dyn File>>>,
    rng: Rng,
}

impl Serve {
    pub fn new(files: Arc<Vec<Box<dyn File>>>, slot: u64) -> Serve {
        Serve { files, rng: Rng::new(slot) }
    }
}

impl Client for Serve {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        Ok(!self.files.is_empty())
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let file = &self.files[self.rng.below(self.files.len() as u64) as usize];
        let places = (file.info().size / READ as u64).max(1);
        let mut at = self.rng.below(places) * READ as u64;
        let end = (at + READ as u64).min(file.info().size);
        while at < end {
            let bytes = file.read(at, (end - at) as usize).await?;
            if bytes.is_empty() {
                return Err(StoreError::new(ErrorKind::Corrupt, "a file is shorter than it says"));
            }
            at += bytes.len() as u64;
        }
        Ok(())
    }
}

/// Writes files of one chunk; with a lake, each is let go there and waited for.
pub struct Write {
    node: Arc<Connection>,
    volume: String,
    slot: u64,
    number: u64,
    bytes: Vec<u8>,
    is_drained: bool,
}

impl Write {
    pub fn new(node: Arc<Connection>, volume: &str, slot: u64) -> Write {
        let mut bytes = vec![0; CHUNK];
        Rng::new(slot + 1).fill(&mut bytes);
        Write { node, volume: volume.to_owned(), slot, number: 0, bytes, is_drained: false }
    }

    /// The same, and each file goes to the lake before the next one.
    #[must_use]
    pub fn drained(mut self) -> Write {
        self.is_drained = true;
        self
    }
}

impl Client for Write {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        self.number += 1;
        self.bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let key = Key::new(format!("{}/{}", self.slot, self.number % NAMES))?;
        let request = WriteRequest { size: Some(CHUNK as u64), ..WriteRequest::default() };
        let mut filler = Filler::new(self.node.create(&self.volume, &key, request).await?);
        filler.put(&self.bytes).await?;
        let receipt = filler.finish(Finish::default()).await?;
        if self.is_drained {
            self.node.drain(&self.volume, key.as_bytes()).await?;
            self.node.wait(&self.volume, &key, Some(receipt.version), Awaited::Drained).await?;
        }
        Ok(())
    }
}
