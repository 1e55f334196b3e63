//! Where bytes of encrypted volumes become ciphertext, and plain bytes again (R15). How they are sealed is told in `stoker_keys::sealing`;
//! what a user sees of it in docs/encryption.md. (D165)
//!
//! ```text
//! writer, name record --seal--> [ring here, peers, repair, relocation: ciphertext with its seal] --open--> cache, readers, drain
//! chunk of the lake   --seal-->
//! ```
//!
//! - Bytes are sealed once, in the buffer that they came in, before the first of the append here and the copies to peers begins
//!   ([`Vault::seal`]). Peers, repair and reclaim move ciphertext. A ring refuses plain bytes of an encrypted volume, whichever way led there.
//! - Bytes of a drive or a peer are opened after their CRC was compared and before anything else sees them. What is kept in memory
//!   (cache, chunks that landed from a lake) is plain; it is not written anywhere, and reads of a volume whose keys are gone do not reach it.
//! - A block that fails its tag counts as damaged: another copy is read, and what cannot be read is `Corrupt`.
//!
//! The keys come from rows of the catalog ([`data_keys`]), wrapped by a key-encryption key of the cluster or of a file ([`Vault`]).

pub(crate) mod data_keys;
mod vault;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stoker_format::{BLOCK, ChunkId, KeyId, RecordKind, SEAL_TAG_LEN, Seal, VolumeId};
use stoker_keys::Place;
use stoker_ring::SealedBlocks;
use stoker_store::{Buf, ErrorKind, Result, StoreError, Subject};

pub(crate) use vault::Vault;

use crate::cache::bytes_of;
use crate::cell::Stored;
use crate::core::Core;
use crate::rings::NAME_INDEX;

/// Longest payload that is sealed: its tags have to fit the head of a message.
pub(crate) const SEALED_LEN_MAX: usize = 8 << 20;

/// What opens some blocks of a sealed chunk.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedPart {
    /// Of the record.
    pub volume: u32,
    /// Bytes of the whole record.
    pub len: u32,
    /// Number of the first block.
    pub first: u32,
    pub key: u32,
    pub salt: [u8; 16],
    /// Of these blocks alone.
    pub tags: Vec<u8>,
}

impl SealedPart {
    /// The seal of the blocks that a ring read.
    pub fn of(sealed: &SealedBlocks) -> SealedPart {
        let count = sealed.range.len().div_ceil(BLOCK);
        let tags = sealed.first * SEAL_TAG_LEN..(sealed.first + count) * SEAL_TAG_LEN;
        SealedPart {
            volume: sealed.volume.0,
            len: sealed.len,
            first: sealed.first as u32,
            key: sealed.seal.key.0,
            salt: sealed.seal.salt,
            // The ring refuses a seal without a tag for each block.
            tags: sealed.seal.tags.get(tags).unwrap_or_default().to_vec(),
        }
    }

    /// Whether so many bytes are the whole record.
    pub fn is_whole(&self, len: usize) -> bool {
        self.first == 0 && self.len as usize == len && self.to_seal().fits(len)
    }

    /// Whether so many bytes are the whole blocks around a range of the record.
    pub fn covers(&self, range: &Range<usize>, len: usize) -> bool {
        let start = self.first as usize * BLOCK;
        start <= range.start && start.checked_add(len).is_some_and(|end| end >= range.end)
    }

    fn to_seal(&self) -> Seal {
        Seal { key: KeyId(self.key), salt: self.salt, tags: self.tags.clone() }
    }

    /// The seal of the record, of which this is all.
    pub fn into_seal(self) -> Arc<Seal> {
        Arc::new(Seal { key: KeyId(self.key), salt: self.salt, tags: self.tags })
    }
}

/// Where a payload belongs, as its sealing has it.
fn place_of(volume: VolumeId, chunk: ChunkId, len: u32) -> Place {
    let kind = if chunk.index == NAME_INDEX { RecordKind::Name } else { RecordKind::Chunk };
    Place { volume, chunk, kind, len }
}

/// The error for a block whose tag does not hold although its CRC does, or that was damaged with both.
fn not_authentic(chunk: &ChunkId) -> StoreError {
    let message =
        format!("a block of chunk {chunk} is not what was sealed: it was changed, or belongs elsewhere");
    StoreError::about(ErrorKind::Corrupt, Subject::Source, message)
}

impl Core {
    /// Opens blocks of a chunk where they lie.
    async fn open_blocks(&self, chunk: ChunkId, part: &SealedPart, blocks: &mut [u8]) -> Result<()> {
        let volume = VolumeId(part.volume);
        let key = match self.vault.key(volume, KeyId(part.key)) {
            Ok(key) => key,
            // The keys were rotated by another node, or could not be had until now.
            Err(fault) if fault.kind == ErrorKind::Unavailable => {
                self.load_keys(volume).await?;
                self.vault.key(volume, KeyId(part.key))?
            }
            Err(fault) => return Err(fault),
        };
        let place = place_of(volume, chunk, part.len);
        match key.open_blocks(&place, &part.salt, part.first as usize, &part.tags, blocks) {
            true => Ok(()),
            false => Err(not_authentic(&chunk)),
        }
    }

    /// Opens what a ring read; the wanted bytes are where they were.
    pub async fn open_view(&self, chunk: ChunkId, sealed: &SealedBlocks, buf: &mut Buf) -> Result<()> {
        let part = SealedPart::of(sealed);
        self.open_blocks(chunk, &part, &mut buf.as_mut_slice()[sealed.range.clone()]).await
    }

    /// Opens what a peer sent: the wanted range of the chunk.
    pub async fn open_received(
        &self,
        chunk: ChunkId,
        mut buf: Buf,
        part: &SealedPart,
        range: Range<usize>,
    ) -> Result<Bytes> {
        self.open_blocks(chunk, part, buf.as_mut_slice()).await?;
        let start = part.first as usize * BLOCK;
        Ok(bytes_of(buf, range.start - start..range.end - start))
    }

    /// Plain bytes of a chunk as it is stored.
    pub async fn open_stored(&self, volume: VolumeId, chunk: ChunkId, stored: Stored) -> Result<Bytes> {
        let Stored { bytes, seal } = stored;
        let Some(seal) = seal else { return Ok(bytes.bytes) };
        let mut buf = Buf::copy_of(&bytes.bytes);
        let (len, all) = (bytes.bytes.len() as u32, 0..bytes.bytes.len());
        let whole = SealedBlocks { seal, volume, len, first: 0, range: all.clone() };
        self.open_view(chunk, &whole, &mut buf).await?;
        Ok(bytes_of(buf, all))
    }

    /// Whether a sealed chunk that came from elsewhere is what its volume sealed.
    pub async fn is_authentic(&self, volume: VolumeId, chunk: ChunkId, stored: &Stored) -> bool {
        let copy = Stored { bytes: stored.bytes.clone(), seal: stored.seal.clone() };
        copy.seal.is_some() && self.open_stored(volume, chunk, copy).await.is_ok()
    }
}
