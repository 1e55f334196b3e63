//! `stoker ring torture`: writes, reads and deletes at full speed until killed, and says what was acknowledged.
//!
//! One line per event, each by a `write(2)` of its own, so that what the reader of the pipe has seen happened before:
//! `opening`, `ready`, `put CHUNK LEN SEED` and `del CHUNK` after the acknowledgement, `bye CHUNK` before a delete is
//! asked for (from then on the record may be gone).

mod record;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stoker_format::{ChunkId, VolumeId};
use stoker_ring::{Buf, OpenOptions, Put, Ring, Settings};

use crate::failure::Failure;
use crate::rng::Rng;
use record::Specimen;

/// Operations under way at the same time.
const DEPTH: usize = 24;
/// Share of the ring that live records may fill, in percent.
const FILL: u64 = 40;

/// Arguments of `ring torture`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the ring is.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// What to do; the same seed writes the same records.
    #[arg(long)]
    seed: u64,
}

/// Works until killed, or until nobody reads.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(|e| Failure::io("stdout", &e))?;
    let mut log = Log(File::from(stdout));
    log.line("opening")?;
    let settings = Settings { pool_bytes: 64 << 20, ..Settings::default() };
    let ring = Ring::open(&args.dir, OpenOptions { settings, ..OpenOptions::default() })?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().map_err(|e| Failure::io("runtime", &e))?;
    runtime.block_on(torture(&ring, args.seed, log))?;
    Ok(ExitCode::SUCCESS)
}

struct Log(File);

impl Log {
    fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        let line = format!("{text}\n");
        self.0.write_all(line.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::io("stdout", &error),
        })
    }
}

enum Work {
    Put(Specimen),
    Read(Specimen),
    Delete(Vec<ChunkId>),
}

/// Does one thing; gives back what was done.
async fn perform(ring: &Ring, work: Work) -> Result<Work, Failure> {
    match &work {
        Work::Put(specimen) => {
            let mut payload = ring.pool().take(specimen.len).unwrap_or_else(|| Buf::heap(specimen.len));
            specimen.fill(payload.as_mut_slice());
            ring.append_one(Put::chunk(specimen.chunk, VolumeId(1), payload)).await?;
        }
        Work::Read(specimen) => {
            let view = ring.read(specimen.chunk, 0, specimen.len).await?;
            if !specimen.is(&view) {
                return Err(Failure::new(format!(
                    "record {} has other bytes than were written",
                    specimen.chunk
                )));
            }
        }
        Work::Delete(chunks) => ring.delete(chunks.clone()).await?,
    }
    Ok(work)
}

/// What a record costs on the drive, about.
fn cost(len: usize) -> u64 {
    len as u64 + 4096
}

async fn torture(ring: &Ring, seed: u64, mut log: Log) -> Result<(), Failure> {
    let mut rng = Rng::new(!seed);
    let superblock = ring.status().await?.superblock;
    let budget = superblock.segment_size * u64::from(superblock.segment_count) * FILL / 100;
    let len_max = ring.record_len_max();
    let mut live: Vec<Specimen> =
        ring.pages().flatten().map(|info| Specimen::of(info.chunk, len_max)).collect();
    live.sort_by_key(|specimen| specimen.chunk);
    // Counted from the moment a put is asked for, until its delete is.
    let mut bytes: u64 = live.iter().map(|specimen| cost(specimen.len)).sum();
    let (mut under_way, mut next) = (FuturesUnordered::new(), 0);
    log.line("ready")?;
    loop {
        while under_way.len() < DEPTH {
            let work = if bytes > budget && !live.is_empty() {
                let count = (1 + rng.below(16) as usize).min(live.len());
                let gone: Vec<Specimen> =
                    (0..count).map(|_| live.swap_remove(rng.below(live.len() as u64) as usize)).collect();
                for specimen in &gone {
                    log.line(format_args!("bye {}", specimen.chunk))?;
                    bytes -= cost(specimen.len);
                }
                Work::Delete(gone.iter().map(|specimen| specimen.chunk).collect())
            } else if rng.below(8) == 0 && !live.is_empty() {
                // Taken out of the list meanwhile, so that no delete overtakes the read.
                Work::Read(live.swap_remove(rng.below(live.len() as u64) as usize))
            } else {
                let specimen = Specimen::new(seed, next, len_max);
                next += 1;
                bytes += cost(specimen.len);
                Work::Put(specimen)
            };
            under_way.push(perform(ring, work));
        }
        match under_way.next().await.expect("work is under way")? {
            Work::Put(specimen) => {
                log.line(format_args!("put {} {} {}", specimen.chunk, specimen.len, specimen.seed))?;
                live.push(specimen);
            }
            Work::Read(specimen) => live.push(specimen),
            Work::Delete(chunks) => {
                for chunk in chunks {
                    log.line(format_args!("del {chunk}"))?;
                }
            }
        }
    }
}
