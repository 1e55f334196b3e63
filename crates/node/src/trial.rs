//! Commits of single chunks, to be measured: the way that each chunk of a writer takes, up to its acknowledgement and
//! without the file around it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use stoker_format::{ChunkId, RecordKind, VersionId};
use stoker_ring::Put;
use stoker_store::{Buf, Result};

use crate::cell::Copies;
use crate::core::Core;
use crate::node::Node;
use crate::pins::Pin;
use crate::tracker::Work;
use crate::volumes::Volume;
use crate::{clock, error};

/// Chunks that belong to no file. Without [`ChunkTrial::discard`] they stay until an inventory takes them for what they
/// are: litter.
pub struct ChunkTrial {
    core: Arc<Core>,
    volume: Arc<Volume>,
    version: VersionId,
    next_index: AtomicU32,
    copies: Mutex<Copies>,
    _work: Work,
    _pin: Pin,
}

impl Node {
    /// Begins to commit chunks as files of a volume would.
    pub async fn chunk_trial(&self, volume: &str) -> Result<ChunkTrial> {
        self.core.check_open()?;
        let volume = self.core.volumes.get(volume).await?;
        let version = clock::mint();
        Ok(ChunkTrial {
            _pin: self.core.pins.pin(version),
            _work: self.core.work.begin(),
            core: self.core.clone(),
            volume,
            version,
            next_index: AtomicU32::new(0),
            copies: Mutex::default(),
        })
    }

    /// Waits until every drive is written once, and writes run at full speed everywhere.
    pub async fn wait_prepared(&self) -> Result<()> {
        for drive in self.core.rings.drives() {
            drive.ring.wait_prepared().await.map_err(error::ring)?;
        }
        Ok(())
    }
}

impl ChunkTrial {
    /// Memory for a chunk, as a writer gives it; its length is 0.
    pub async fn buffer(&self) -> Buf {
        let mut buf = self.core.rings.write_buffer(self.core.chunk_bytes as usize).await;
        buf.set_len(0);
        buf
    }

    /// Commits a chunk; when this returns it is durable on as many nodes as the class of the volume says.
    pub async fn commit(&self, payload: Buf) -> Result<()> {
        let put = Put {
            chunk: ChunkId::new(self.version, self.next_index.fetch_add(1, Ordering::Relaxed)),
            volume: self.volume.id,
            kind: RecordKind::Chunk,
            retention: Core::retention(&self.volume),
            payload,
            seal: None,
        };
        let copied =
            self.core.commit_records(&self.volume, vec![put], stoker_store::WhenAlone::Refuse).await?;
        self.copies.lock().unwrap().add(copied);
        Ok(())
    }

    /// Deletes what was committed, everywhere.
    pub async fn discard(self) -> Result<()> {
        let ids: Vec<ChunkId> = (0..self.next_index.load(Ordering::Relaxed))
            .map(|index| ChunkId::new(self.version, index))
            .collect();
        self.core.rings.delete(&ids).await?;
        let nodes = self.copies.lock().unwrap().nodes();
        self.core.cell.tell_done(&nodes, &[self.version], 0).await;
        self.core.cell.tell_forget(&nodes, &ids).await;
        Ok(())
    }
}
