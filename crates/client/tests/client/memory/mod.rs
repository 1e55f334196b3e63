//! A store in memory: the smallest thing that keeps the door's promises, for tests of the wire.

#![allow(dead_code, reason = "each test uses a part of it")]

mod store;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use stoker_buffer::Pool;
use stoker_format::{VersionId, VolumeId};
use stoker_store::*;
use tokio::sync::{Semaphore, watch};

/// Chunk of the files, small so that tests cross its borders.
pub const CHUNK: usize = 256 << 10;

pub struct Stored {
    pub info: FileInfo,
    pub bytes: Bytes,
}

#[derive(Default)]
pub struct Upload {
    pub key: Key,
    pub attributes: Attributes,
    pub checksum: Option<ChecksumKind>,
    pub parts: BTreeMap<u32, (PartInfo, Bytes)>,
}

pub struct Volume {
    pub info: VolumeInfo,
    pub files: BTreeMap<Key, Arc<Stored>>,
    pub uploads: BTreeMap<String, Upload>,
}

#[derive(Default)]
pub struct State {
    pub volumes: BTreeMap<String, Volume>,
    pub keys: BTreeMap<String, AccessKey>,
    pub conflicts: Vec<Conflict>,
}

/// The store. Clones share everything.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

pub struct Inner {
    pub state: Mutex<State>,
    next: AtomicU64,
    /// Open files and writers.
    pub live: watch::Sender<usize>,
    /// Calls that have begun, by name.
    pub begun: watch::Sender<Vec<&'static str>>,
    /// For which job each was, the last time.
    pub jobs: Mutex<BTreeMap<&'static str, Option<JobLabel>>>,
    /// Publishes, copies and waits pass one by one once this has permits.
    pub gate: Semaphore,
    /// Files that became visible.
    pub published: watch::Sender<usize>,
    /// Memory for writers.
    pub pool: Arc<Pool>,
}

impl std::ops::Deref for Memory {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Memory {
    /// A store that lets everything pass, with one volume `data`.
    pub fn new() -> Memory {
        Memory::with(Semaphore::MAX_PERMITS, 64 << 20)
    }

    /// A store that holds publishes, copies and waits until its gate has permits.
    pub fn gated() -> Memory {
        Memory::with(0, 64 << 20)
    }

    pub fn with(permits: usize, pool_bytes: usize) -> Memory {
        let memory = Memory(Arc::new(Inner {
            state: Mutex::default(),
            next: AtomicU64::new(1),
            live: watch::Sender::new(0),
            begun: watch::Sender::new(Vec::new()),
            jobs: Mutex::default(),
            gate: Semaphore::new(permits),
            published: watch::Sender::new(0),
            pool: Pool::new(pool_bytes).unwrap(),
        }));
        memory.add_volume("data", VolumeOptions::default()).unwrap();
        memory
    }

    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until that many files and writers are open.
    pub async fn until_live(&self, count: usize) {
        self.live.subscribe().wait_for(|live| *live == count).await.unwrap();
    }

    /// Waits until a call of that name has begun that often.
    pub async fn until_begun(&self, name: &str, times: usize) {
        let enough = |calls: &Vec<&str>| calls.iter().filter(|call| **call == name).count() >= times;
        self.begun.subscribe().wait_for(enough).await.unwrap();
    }

    pub fn begin(&self, name: &'static str) {
        self.jobs.lock().unwrap().insert(name, job());
        self.begun.send_modify(|calls| calls.push(name));
    }

    /// Waits until that many files became visible.
    pub async fn until_published(&self, count: usize) {
        self.published.subscribe().wait_for(|published| *published >= count).await.unwrap();
    }

    pub async fn pass_gate(&self) {
        self.gate.acquire().await.unwrap().forget();
    }

    fn add_volume(&self, name: &str, options: VolumeOptions) -> Result<VolumeInfo> {
        check_volume_name(name)?;
        let mut state = self.state.lock().unwrap();
        if state.volumes.contains_key(name) {
            return Err(StoreError::about(ErrorKind::Conflict, Subject::Volume, "the volume is there"));
        }
        let info = VolumeInfo {
            name: name.to_owned(),
            id: VolumeId(self.number() as u32),
            created_ms: self.number(),
            lake: options.lake,
            policy: options.policy.unwrap_or_default(),
            files: 0,
            bytes: 0,
        };
        let volume = Volume { info: info.clone(), files: BTreeMap::new(), uploads: BTreeMap::new() };
        state.volumes.insert(name.to_owned(), volume);
        Ok(info)
    }

    /// Makes a file visible.
    pub fn publish(
        &self,
        volume: &str,
        key: &Key,
        bytes: Bytes,
        attributes: Attributes,
        condition: &Condition,
    ) -> Result<Receipt> {
        let mut state = self.state.lock().unwrap();
        let volume = volume_mut(&mut state, volume)?;
        if !condition.holds(volume.files.get(key).map(|file| file.info.etag.as_str())) {
            return Err(StoreError::about(
                ErrorKind::Conflict,
                Subject::Condition,
                "the condition does not hold",
            ));
        }
        let number = self.number();
        let mut version = VersionId::ZERO;
        version.0[..8].copy_from_slice(&number.to_be_bytes());
        let crc64 = stoker_format::crc64(&bytes);
        let info = FileInfo {
            key: key.clone(),
            size: bytes.len() as u64,
            etag: format!("{crc64:016x}"),
            modified_ms: number,
            version,
            inode: number,
            attributes,
            checksums: vec![Checksum {
                kind: ChecksumKind::Crc64Nvme,
                value: crc64.to_be_bytes().to_vec(),
                parts: 0,
            }],
            part_sizes: Vec::new(),
            drain: DrainState::Dirty,
            links: 1,
            allocated: None,
            past: None,
            expires: None,
        };
        let receipt = receipt_of(&volume.info.name, &info);
        volume.files.insert(key.clone(), Arc::new(Stored { info, bytes }));
        self.published.send_modify(|count| *count += 1);
        Ok(receipt)
    }
}

pub fn receipt_of(volume: &str, info: &FileInfo) -> Receipt {
    Receipt {
        volume: volume.to_owned(),
        key: info.key.to_string(),
        version: info.version,
        size: info.size,
        etag: info.etag.clone(),
        checksums: info.checksums.clone(),
        class: Class::One,
        copies: 1,
        holders: Vec::new(),
        seq: info.modified_ms,
        drain: info.drain.clone(),
        lake: None,
        lake_etag: None,
        version_id: None,
    }
}

pub fn volume_mut<'s>(state: &'s mut State, name: &str) -> Result<&'s mut Volume> {
    state
        .volumes
        .get_mut(name)
        .ok_or_else(|| StoreError::about(ErrorKind::NotFound, Subject::Volume, format!("no volume {name}")))
}

pub fn missing(key: &Key) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("no key {key}"))
}

/// Counts what is open.
pub struct Live(Memory);

impl Live {
    pub fn new(memory: &Memory) -> Live {
        memory.live.send_modify(|live| *live += 1);
        Live(memory.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.send_modify(|live| *live -= 1);
    }
}

pub struct OpenFile {
    pub stored: Arc<Stored>,
    pub live: Live,
}

impl File for OpenFile {
    fn info(&self) -> &FileInfo {
        &self.stored.info
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            self.live.0.begin("read");
            let size = self.stored.bytes.len();
            let start = usize::try_from(offset).unwrap_or(size).min(size);
            // A stored piece ends at each border of a chunk.
            let end = (start + len).min(size).min((start / CHUNK + 1) * CHUNK);
            Ok(self.stored.bytes.slice(start..end))
        })
    }
}

/// Where the bytes of a writer go.
pub enum Target {
    File { volume: String, key: Key, request: Box<WriteRequest> },
    Part { volume: String, upload: UploadId, number: u32 },
}

pub struct OpenWriter {
    pub memory: Memory,
    pub target: Target,
    pub size: Option<u64>,
    pub bytes: Vec<u8>,
    pub chunks: Vec<usize>,
    pub crc64: Digest,
    pub live: Live,
}

impl OpenWriter {
    pub fn new(memory: &Memory, target: Target, size: Option<u64>) -> OpenWriter {
        let crc64 = Digest::new(CrcAlgorithm::Crc64Nvme);
        let (bytes, chunks) = (Vec::new(), Vec::new());
        OpenWriter { memory: memory.clone(), target, size, bytes, chunks, crc64, live: Live::new(memory) }
    }
}

impl Writer for OpenWriter {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let mut buf = self.memory.pool.get(CHUNK).await;
            buf.set_len(0);
            Ok(buf)
        })
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if buf.as_slice().starts_with(b"refuse me") {
                return Err(StoreError::about(ErrorKind::Full, Subject::Quota, "the quota is reached"));
            }
            self.bytes.extend_from_slice(buf.as_slice());
            self.chunks.push(buf.len());
            self.crc64.update(buf.as_slice());
            Ok(())
        })
    }

    fn crc64(&self) -> u64 {
        self.crc64.finalize()
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move {
            self.memory.begin("finish");
            self.memory.pass_gate().await;
            // All chunks but the last are full: who fills buffers from a socket must not end them early.
            let full = self.chunks.iter().rev().skip(1).all(|len| *len == CHUNK);
            if !full {
                return Err(StoreError::new(
                    ErrorKind::Invalid,
                    format!("chunks of {:?} bytes", self.chunks),
                ));
            }
            let bytes = Bytes::from(self.bytes);
            match self.target {
                Target::File { volume, key, request } => {
                    let mut receipt =
                        self.memory.publish(&volume, &key, bytes, request.attributes, &request.condition)?;
                    receipt.etag = finish.etag.unwrap_or(receipt.etag);
                    Ok(receipt)
                }
                Target::Part { volume, upload, number } => {
                    self.memory.finish_part(&volume, &upload, number, bytes)
                }
            }
        })
    }
}
