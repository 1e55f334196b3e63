//! What the demo writes and reads: bytes that anybody can make again from a seed, so that none has to be kept to compare.

use std::path::Path;

use stoker_client::Client;
use stoker_store::{Finish, Key, Receipt, SetId, ShardRequest, Store};

use crate::failure::Failure;
use crate::rng::Rng;

/// Bytes that are made, written and compared at once.
const PIECE: usize = 4 << 20;

/// The shards of the demo's checkpoint.
#[derive(Clone)]
pub struct Shards {
    pub volume: String,
    /// The directory, with its slash.
    pub dir: String,
    pub count: u32,
    pub shard_bytes: u64,
    pub seed: u64,
}

impl Shards {
    pub fn total(&self) -> u64 {
        self.shard_bytes * u64::from(self.count)
    }

    pub fn key(&self, number: u32) -> Result<Key, Failure> {
        Ok(Key::new(format!("{}rank-{number}.bin", self.dir))?)
    }

    fn content(&self, number: u32) -> Content {
        Content {
            rng: Rng::new(self.seed ^ u64::from(number) << 32),
            left: self.shard_bytes,
            piece: vec![0; PIECE],
        }
    }

    /// Writes one shard of a set.
    pub async fn write(&self, client: &Client, set: SetId, number: u32) -> Result<Receipt, Failure> {
        let request = ShardRequest {
            number,
            writer: format!("rank {number}"),
            size: Some(self.shard_bytes),
            ..ShardRequest::default()
        };
        let mut writer = client.set_shard(&self.volume, &self.key(number)?, set, request).await?;
        let mut content = self.content(number);
        while let Some(piece) = content.next() {
            let mut rest = piece;
            while !rest.is_empty() {
                let mut buf = writer.buffer().await?;
                let len = rest.len().min(buf.capacity());
                buf.set_len(len);
                buf.as_mut_slice().copy_from_slice(&rest[..len]);
                writer.write(buf).await?;
                rest = &rest[len..];
            }
        }
        Ok(writer.finish(Finish::default()).await?)
    }

    /// Reads one shard and compares it byte for byte.
    pub async fn verify(&self, client: &Client, number: u32) -> Result<(), Failure> {
        let key = self.key(number)?;
        let file = client.open(&self.volume, &key).await?;
        if file.info().size != self.shard_bytes {
            return Err(differs(number, "its length"));
        }
        let mut content = self.content(number);
        let mut offset = 0u64;
        while let Some(piece) = content.next() {
            let mut rest = piece;
            while !rest.is_empty() {
                let bytes = file.read(offset, rest.len()).await?;
                if bytes.is_empty() || rest.get(..bytes.len()) != Some(&bytes[..]) {
                    return Err(differs(number, &format!("bytes from {offset} on")));
                }
                offset += bytes.len() as u64;
                rest = &rest[bytes.len()..];
            }
        }
        Ok(())
    }

    /// The same for the object in the lake, which is a plain file here.
    pub fn verify_lake(&self, lake: &Path, number: u32) -> Result<(), Failure> {
        let path = lake.join(&self.volume).join(format!("{}rank-{number}.bin", self.dir));
        let io = |error: &std::io::Error| Failure::io(path.display(), error);
        let mut file = std::fs::File::open(&path).map_err(|error| io(&error))?;
        let mut content = self.content(number);
        let mut found = vec![0; PIECE];
        while let Some(piece) = content.next() {
            let found = &mut found[..piece.len()];
            std::io::Read::read_exact(&mut file, found).map_err(|error| io(&error))?;
            if found != piece {
                return Err(differs(number, "the object in the lake"));
            }
        }
        Ok(())
    }
}

fn differs(number: u32, what: &str) -> Failure {
    Failure::new(format!("shard {number} is not what was written: {what} differs"))
}

/// The bytes of a shard, piece by piece.
struct Content {
    rng: Rng,
    left: u64,
    piece: Vec<u8>,
}

impl Content {
    fn next(&mut self) -> Option<&[u8]> {
        let len = self.left.min(PIECE as u64) as usize;
        if len == 0 {
            return None;
        }
        self.left -= len as u64;
        self.rng.fill(&mut self.piece[..len]);
        Some(&self.piece[..len])
    }
}
