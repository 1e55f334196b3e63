//! The ring under measurement, and the tasks that keep it busy: one per slot of the queue, on one thread.
//!
//! Records are appended as clean, so that the ring goes round and reclaim drops what it meets. What that costs is part
//! of the figures.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_format::{ChunkId, VersionId, VolumeId};
use stoker_ring::{Buf, ErrorKind, OpenOptions, Put, Retention, Ring, RingError, Status};
use tokio::runtime::{Builder, Runtime};

use super::measure::{Meter, Round};
use super::workload::{CHUNK, Job, Limit, Mix, Order};
use crate::clock;
use crate::failure::Failure;
use crate::new_ring::{NewRing, make};
use crate::progress::Progress;
use crate::rng::Rng;

/// Share of the ring that is kept readable, in percent; the rest is room for appends between reclaims.
const RESIDENT: u64 = 40;

/// Bytes that one step of the progress bar stands for while the ring is filled.
const STEP: u64 = 128 << 20;

/// A ring and its client.
pub struct Subject {
    ring: Ring,
    runtime: Runtime,
    bufs: Vec<Buf>,
    number: u64,
    rng: Rng,
    /// Whole chunks of [`CHUNK`] bytes, oldest first, that reads may go to.
    resident: VecDeque<ChunkId>,
    resident_max: usize,
}

impl Subject {
    /// Makes a ring and waits until every segment is prepared.
    pub fn make(path: &Path, size: u64) -> Result<Subject, Failure> {
        let superblock = make(path, NewRing { size: Some(size), ..NewRing::default() })?;
        let bytes = superblock.segment_size * u64::from(superblock.segment_count);
        let subject = Subject::open(path, bytes)?;
        subject.runtime.block_on(subject.ring.wait_prepared())?;
        Ok(subject)
    }

    /// Opens a ring of `bytes` bytes.
    pub fn open(path: &Path, bytes: u64) -> Result<Subject, Failure> {
        let ring = Ring::open(path, OpenOptions::default())?;
        // Neither timers nor sockets: an idle runtime waits on a condition variable.
        let runtime = Builder::new_current_thread().build().map_err(|e| Failure::io("runtime", &e))?;
        let resident_max = (bytes * RESIDENT / 100 / CHUNK as u64) as usize;
        Ok(Subject {
            ring,
            runtime,
            bufs: Vec::new(),
            number: 0,
            rng: Rng::new(clock::unix_ms()),
            resident: VecDeque::new(),
            resident_max,
        })
    }

    /// What the ring says of itself.
    pub fn status(&self) -> Result<Status, Failure> {
        Ok(self.runtime.block_on(self.ring.status())?)
    }

    /// Lets the ring drop all that is in it.
    pub fn mark_all_clean(&mut self) -> Result<(), Failure> {
        for page in self.ring.pages() {
            self.runtime.block_on(self.ring.mark_clean(page.iter().map(|info| info.chunk).collect()))?;
        }
        Ok(())
    }

    /// Takes the buffers for a load; they stay until the next one.
    pub fn equip(&mut self, job: &Job) {
        // Given back first, so that one load's buffers make room for the next one's.
        self.bufs.clear();
        for _ in 0..job.depth {
            let mut buf = self.ring.pool().take(job.len).unwrap_or_else(|| Buf::heap(job.len));
            self.rng.fill(buf.as_mut_slice());
            self.bufs.push(buf);
        }
    }

    /// Appends whole chunks until `bytes` were written.
    pub fn fill(&mut self, bytes: u64, progress: &Progress) -> Result<(), Failure> {
        let job = Job { len: CHUNK, depth: 8, mix: Mix::Writes, order: Order::Sequential };
        self.equip(&job);
        let mut done = 0;
        while done < bytes {
            let round = self.round(&job, Limit::Bytes(STEP.min(bytes - done)))?;
            progress.add(round.bytes);
            done += round.bytes;
        }
        Ok(())
    }

    /// Sees to it that reads find their chunks, with CRC tables in memory.
    pub fn make_resident(&mut self, progress: &Progress) -> Result<(), Failure> {
        let ring = &self.ring;
        self.resident.retain(|chunk| ring.stat(chunk).is_some());
        let missing = self.resident_max - self.resident.len().min(self.resident_max);
        self.fill((missing * CHUNK) as u64, progress)?;
        for chunk in &self.resident {
            self.runtime.block_on(self.ring.read(*chunk, 0, stoker_format::BLOCK))?;
        }
        Ok(())
    }

    /// Keeps the ring busy until the limit, then waits for the last operation. [`Subject::equip`] comes first.
    pub fn round(&mut self, job: &Job, limit: Limit) -> Result<Round, Failure> {
        let round = Arc::new(Shared {
            ring: self.ring.clone(),
            job: *job,
            limit,
            meter: Mutex::new(Meter::start()),
            next: AtomicU64::new(self.number),
            issued: AtomicU64::new(0),
            readable: self.resident.iter().copied().collect(),
            appended: Mutex::new(Vec::new()),
        });
        let bufs = std::mem::take(&mut self.bufs);
        let clients: Vec<Client> = bufs
            .into_iter()
            .map(|buf| Client { round: round.clone(), buf, rng: Rng::new(self.rng.next_u64()) })
            .collect();
        let bufs = self.runtime.block_on(async {
            let tasks: Vec<_> = clients.into_iter().map(|client| tokio::spawn(client.run())).collect();
            let mut bufs = Vec::new();
            for task in tasks {
                bufs.push(task.await.expect("a client that does not panic")?);
            }
            Ok::<_, RingError>(bufs)
        })?;
        self.bufs = bufs;
        let round = Arc::into_inner(round).expect("every client has ended");
        self.number = round.next.into_inner();
        for chunk in round.appended.into_inner().expect("no client panicked") {
            self.resident.push_back(chunk);
            if self.resident.len() > self.resident_max {
                self.resident.pop_front();
            }
        }
        let measured = round.meter.into_inner().expect("no client panicked").finish();
        self.settle()?;
        Ok(measured)
    }

    /// Waits, but not for long, for what the ring still does: the next round is the other side's.
    fn settle(&self) -> Result<(), Failure> {
        for _ in 0..100 {
            let status = self.status()?;
            if status.queued_bytes == 0
                && status.segments.reclaiming == 0
                && self.ring.stats().in_flight.get() == 0
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Finishes and closes the ring.
    pub fn close(mut self) -> Result<(), Failure> {
        self.bufs.clear();
        Ok(self.runtime.block_on(self.ring.close())?)
    }
}

/// What the clients of one round share.
struct Shared {
    ring: Ring,
    job: Job,
    limit: Limit,
    meter: Mutex<Meter>,
    next: AtomicU64,
    issued: AtomicU64,
    /// Chunks that reads go to.
    readable: Vec<ChunkId>,
    /// Whole chunks that were written.
    appended: Mutex<Vec<ChunkId>>,
}

/// One slot of the queue: a task with a buffer that asks for one operation after the other.
struct Client {
    round: Arc<Shared>,
    buf: Buf,
    rng: Rng,
}

impl Client {
    async fn run(mut self) -> Result<Buf, RingError> {
        let round = self.round.clone();
        let started = round.meter.lock().expect("no client panicked").started();
        let len = round.job.len;
        loop {
            let now = clock::now();
            let issued = round.issued.fetch_add(len as u64, Ordering::Relaxed);
            if !round.limit.is_open((now - started).as_secs_f64(), issued) {
                return Ok(self.buf);
            }
            let number = round.next.fetch_add(1, Ordering::Relaxed);
            let is_append = match round.job.mix {
                Mix::Writes => true,
                Mix::Reads => false,
                Mix::Half => number.is_multiple_of(2),
            };
            self.buf = match is_append {
                true => self.append(number).await?,
                false => match self.read().await? {
                    Some(buf) => buf,
                    // The ring had dropped the chunk: clean ones may go at any time.
                    None => {
                        self.buf = round.ring.pool().get(len).await;
                        continue;
                    }
                },
            };
            round.meter.lock().expect("no client panicked").note(len, clock::now() - now);
        }
    }

    async fn append(&mut self, number: u64) -> Result<Buf, RingError> {
        let mut version = [0; 12];
        version[..8].copy_from_slice(&(number >> 10).to_le_bytes());
        let chunk = ChunkId::new(VersionId(version), (number & 1023) as u32);
        let mut payload = std::mem::replace(&mut self.buf, Buf::none());
        payload.set_len(self.round.job.len);
        payload.as_mut_slice()[..16].copy_from_slice(&chunk.to_bytes());
        let put = Put { retention: Retention::Clean, ..Put::chunk(chunk, VolumeId(1), payload) };
        let buf = self.round.ring.append_one(put).await?;
        if self.round.job.len == CHUNK {
            self.round.appended.lock().expect("no client panicked").push(chunk);
        }
        Ok(buf)
    }

    async fn read(&mut self) -> Result<Option<Buf>, RingError> {
        let (readable, len) = (&self.round.readable, self.round.job.len);
        if readable.is_empty() {
            return Err(RingError::new(ErrorKind::NotFound, "every chunk that could be read was dropped"));
        }
        let chunk = readable[self.rng.below(readable.len() as u64) as usize];
        let place = self.rng.below((CHUNK / len) as u64) as usize;
        let buf = std::mem::replace(&mut self.buf, Buf::none());
        match self.round.ring.read_into(chunk, place * len, len, buf).await {
            Ok(view) => Ok(Some(view.into_buf())),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
