//! The ring under measurement, and the one task that keeps it busy.
//!
//! It behaves like a drained workload: every appended chunk is marked clean soon after its acknowledgement, so that
//! reclaim can drop it. What that costs is part of the figures.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stoker_format::{ChunkId, VersionId, VolumeId};
use stoker_ring::{Buf, ErrorKind, OpenOptions, Put, Ring, RingError, Status};
use tokio::runtime::{Builder, Runtime};

use super::measure::{Meter, Round};
use super::workload::{CHUNK, Job, Limit, Mix, Order};
use crate::clock;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::ring::{Wish, make};
use crate::rng::Rng;

/// Chunks are marked clean in lists of this many, or of this many bytes.
const MARKS_MAX: usize = 256;
const MARKS_BYTES_MAX: usize = 32 << 20;

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

enum Work {
    Append(ChunkId, Buf),
    Read(ChunkId, usize, usize, Buf),
    MarkClean(Vec<ChunkId>),
}

enum Done {
    Appended(ChunkId, Buf, Duration),
    Read(Buf, Duration),
    /// The ring had dropped the chunk: clean ones may go at any time.
    Missed(ChunkId),
    Marked,
}

async fn perform(ring: &Ring, work: Work, started: Instant) -> Result<Done, RingError> {
    match work {
        Work::Append(chunk, payload) => {
            let buf = ring.append_one(Put::chunk(chunk, VolumeId(1), payload)).await?;
            Ok(Done::Appended(chunk, buf, clock::now() - started))
        }
        Work::Read(chunk, offset, len, buf) => match ring.read_into(chunk, offset, len, buf).await {
            Ok(view) => Ok(Done::Read(view.into_buf(), clock::now() - started)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Done::Missed(chunk)),
            Err(error) => Err(error),
        },
        Work::MarkClean(chunks) => ring.mark_clean(chunks).await.map(|_| Done::Marked),
    }
}

impl Subject {
    /// Makes a ring and waits until every segment is prepared.
    pub fn make(path: &Path, size: u64) -> Result<Subject, Failure> {
        let superblock = make(path, Wish { size: Some(size), ..Wish::default() })?;
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
        let ring = self.ring.clone();
        let mut client = Client {
            job: *job,
            number: &mut self.number,
            rng: &mut self.rng,
            resident: &mut self.resident,
            resident_max: self.resident_max,
            unmarked: Vec::new(),
        };
        let (round, bufs) =
            self.runtime.block_on(client.run(&ring, limit, std::mem::take(&mut self.bufs)))?;
        self.bufs = bufs;
        self.settle()?;
        Ok(round)
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

/// One round's client: decides what comes next, and marks clean what was acknowledged.
struct Client<'a> {
    job: Job,
    number: &'a mut u64,
    rng: &'a mut Rng,
    resident: &'a mut VecDeque<ChunkId>,
    resident_max: usize,
    unmarked: Vec<ChunkId>,
}

impl Client<'_> {
    async fn run(
        &mut self,
        ring: &Ring,
        limit: Limit,
        mut idle: Vec<Buf>,
    ) -> Result<(Round, Vec<Buf>), RingError> {
        let mut under_way = FuturesUnordered::new();
        let (mut busy, mut issued, len) = (0, 0, self.job.len);
        let mut meter = Meter::start();
        loop {
            let now = clock::now();
            while limit.is_open(meter.elapsed_s(now), issued) {
                let Some(buf) = idle.pop() else { break };
                under_way.push(perform(ring, self.next(buf), now));
                issued += len as u64;
                busy += 1;
            }
            if self.unmarked.len() >= MARKS_MAX.min(MARKS_BYTES_MAX / len) {
                under_way.push(perform(ring, Work::MarkClean(std::mem::take(&mut self.unmarked)), now));
            }
            if busy == 0 {
                break;
            }
            match under_way.next().await.expect("work is under way") {
                Ok(Done::Appended(chunk, buf, took)) => {
                    meter.note(len, took);
                    self.appended(chunk);
                    idle.push(buf);
                    busy -= 1;
                }
                Ok(Done::Read(buf, took)) => {
                    meter.note(len, took);
                    idle.push(buf);
                    busy -= 1;
                }
                Ok(Done::Missed(chunk)) => {
                    self.resident.retain(|other| *other != chunk);
                    if self.resident.is_empty() {
                        return Err(RingError::new(
                            ErrorKind::NotFound,
                            "every chunk that could be read was dropped",
                        ));
                    }
                    idle.push(ring.pool().get(len).await);
                    busy -= 1;
                }
                Ok(Done::Marked) => {}
                Err(error) => return Err(error),
            }
        }
        let round = meter.finish();
        while let Some(done) = under_way.next().await {
            done?;
        }
        ring.mark_clean(std::mem::take(&mut self.unmarked)).await?;
        Ok((round, idle))
    }

    fn appended(&mut self, chunk: ChunkId) {
        self.unmarked.push(chunk);
        if self.job.len == CHUNK {
            self.resident.push_back(chunk);
            if self.resident.len() > self.resident_max {
                self.resident.pop_front();
            }
        }
    }

    fn next(&mut self, mut buf: Buf) -> Work {
        let number = *self.number;
        *self.number += 1;
        let is_append = match self.job.mix {
            Mix::Writes => true,
            Mix::Reads => false,
            Mix::Half => number.is_multiple_of(2),
        };
        if is_append {
            let mut version = [0; 12];
            version[..8].copy_from_slice(&(number >> 10).to_le_bytes());
            let chunk = ChunkId::new(VersionId(version), (number & 1023) as u32);
            buf.set_len(self.job.len);
            buf.as_mut_slice()[..16].copy_from_slice(&chunk.to_bytes());
            return Work::Append(chunk, buf);
        }
        let chunk = self.resident[self.rng.below(self.resident.len() as u64) as usize];
        let place = self.rng.below((CHUNK / self.job.len) as u64) as usize;
        Work::Read(chunk, place * self.job.len, self.job.len, buf)
    }
}
