//! What one client of `bench commit` does again and again.

use std::sync::Arc;

use stoker_node::{ChunkTrial, Node};
use stoker_store::{Buf, ErrorKind, Finish, Key, Store, StoreError, WriteRequest, Writer};

use crate::cell::Client;
use crate::rng::Rng;
use crate::workload::CHUNK;

/// The volume that chunks and files are written to.
pub const VOLUME: &str = "bench";

/// Names that a client publishes to in turn: old versions are deleted meanwhile.
const NAMES: u64 = 4;

/// Commits chunks.
///
/// The bytes are those that the memory held before, with a stamp: they arrive from a socket in a real node, in memory that is
/// handed on. Their checksums are taken, as they are there.
pub struct Commit {
    trial: Arc<ChunkTrial>,
    payload: Option<Buf>,
    rng: Rng,
}

impl Commit {
    /// A client with a slot of the queue.
    pub fn new(trial: Arc<ChunkTrial>, slot: usize) -> Commit {
        Commit { trial, payload: None, rng: Rng::new(slot as u64 + 1) }
    }
}

impl Client for Commit {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        let mut buf = self.trial.buffer().await;
        if buf.capacity() < CHUNK {
            return Err(StoreError::new(ErrorKind::Invalid, "the ring is too small for chunks of 4 MiB"));
        }
        let memory = &mut buf.spare_mut()[..CHUNK];
        if memory[CHUNK - 8..] == [0; 8] {
            // New memory is all zeroes, which a drive may treat in its own way.
            self.rng.fill(memory);
        }
        memory[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        buf.grow(CHUNK);
        self.payload = Some(buf);
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let payload = self.payload.take().expect("prepared");
        self.trial.commit(payload).await
    }
}

/// Writes files of one chunk.
pub struct Publish {
    node: Arc<Node>,
    slot: usize,
    number: u64,
    bytes: Vec<u8>,
}

impl Publish {
    /// A client with a slot of the queue.
    pub fn new(node: Arc<Node>, slot: usize) -> Publish {
        let mut bytes = vec![0; CHUNK];
        Rng::new(slot as u64 + 1).fill(&mut bytes);
        Publish { node, slot, number: 0, bytes }
    }
}

impl Client for Publish {
    async fn prepare(&mut self) -> Result<bool, StoreError> {
        self.number += 1;
        self.bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        Ok(true)
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let key = Key::new(format!("{}/{}", self.slot, self.number % NAMES))?;
        let request = WriteRequest { size: Some(CHUNK as u64), ..WriteRequest::default() };
        let mut writer: Box<dyn Writer> = self.node.create(VOLUME, &key, request).await?;
        let mut buf = writer.buffer().await?;
        buf.fill(&self.bytes);
        writer.write(buf).await?;
        writer.finish(Finish::default()).await.map(drop)
    }
}
