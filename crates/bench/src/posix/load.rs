//! The loads on a directory, whoever serves it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::workload::Work;
use crate::clock;
use crate::failure::Failure;
use crate::measure::{Meter, Round};
use crate::rng::Rng;

/// The file that is read.
pub const LARGE: &str = "large";
/// The file that is written.
pub const FRESH: &str = "fresh";
/// The directory that files are made in.
const MADE: &str = "made";

/// Bytes of one operation of what goes from front to back.
pub const BLOCK: usize = 1 << 20;
/// Bytes of one operation of what does not, and of a small file.
const SMALL: usize = 4096;
/// Threads that ask for properties.
const STATTERS: usize = 4;
/// Threads that make the small files beforehand.
const MAKERS: u64 = 8;
/// What is written is made of blocks that differ: no side may save on repetitions.
const PATTERNS: usize = 8;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a large file.
    pub size: u64,
    /// Small files.
    pub files: u64,
    /// Length of a round that has no end of its own.
    pub seconds: f64,
}

/// Memory at an address that O_DIRECT takes.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(len: usize) -> Aligned {
        let memory = vec![0; len + SMALL];
        let start = memory.as_ptr().align_offset(SMALL);
        Aligned { memory, start, len }
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Blocks to write.
pub struct Patterns(Vec<u8>);

impl Patterns {
    /// Always the same ones.
    pub fn new() -> Patterns {
        let mut bytes = vec![0; PATTERNS * BLOCK];
        Rng::new(7).fill(&mut bytes);
        Patterns(bytes)
    }

    /// The block at a place of a file.
    pub fn at(&self, offset: u64) -> &[u8] {
        let block = (offset / BLOCK as u64) as usize % PATTERNS;
        &self.0[block * BLOCK..(block + 1) * BLOCK]
    }
}

fn name(number: u64) -> String {
    format!("small-{number:07}")
}

impl Load {
    /// Writes what is read and listed.
    pub fn prepare(&self, dir: &Path) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::io(dir.display(), &e);
        self.write(&dir.join(LARGE), &mut Meter::start()).map_err(failed)?;
        let make = |from: u64| -> io::Result<()> {
            for number in (from..self.files).step_by(MAKERS as usize) {
                fs::write(dir.join(name(number)), [7; 100])?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let makers: Vec<_> = (0..MAKERS).map(|from| scope.spawn(move || make(from))).collect();
            makers.into_iter().try_for_each(|maker| maker.join().expect("makers do not panic"))
        })
        .map_err(failed)
    }

    /// One round.
    pub fn run(&self, dir: &Path, work: Work) -> Result<Round, Failure> {
        let round = match work {
            Work::SeqRead { direct } => self.seq_read(dir, direct),
            Work::SeqWrite => self.seq_write(dir),
            Work::RandRead => self.rand_read(dir),
            Work::Create { writers } => self.create(dir, writers),
            Work::Stat { .. } => self.stat(dir),
            Work::Readdir => self.readdir(dir),
        };
        round.map_err(|e| Failure::io(dir.display(), &e))
    }

    fn seq_read(&self, dir: &Path, direct: bool) -> io::Result<Round> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let mut room = Aligned::new(BLOCK);
        let mut meter = Meter::start();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(dir.join(LARGE))?;
        let mut left = self.size;
        while left > 0 {
            let begun = clock::now();
            let count = file.read(room.bytes())?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= count as u64;
            meter.note(count, begun.elapsed());
        }
        Ok(meter.finish())
    }

    fn seq_write(&self, dir: &Path) -> io::Result<Round> {
        let mut meter = Meter::start();
        self.write(&dir.join(FRESH), &mut meter)?;
        Ok(meter.finish())
    }

    /// Takes away what a round made, when nobody measures.
    pub fn clean(&self, dir: &Path, work: Work) -> Result<(), Failure> {
        let cleaned = match work {
            Work::SeqWrite => fs::remove_file(dir.join(FRESH)),
            Work::Create { .. } => fs::remove_dir_all(dir.join(MADE)),
            _ => Ok(()),
        };
        cleaned.map_err(|e| Failure::io(dir.display(), &e))
    }

    fn write(&self, path: &Path, meter: &mut Meter) -> io::Result<()> {
        let patterns = Patterns::new();
        let mut file = File::create(path)?;
        let mut at = 0;
        while at < self.size {
            let len = (self.size - at).min(BLOCK as u64) as usize;
            let begun = clock::now();
            file.write_all(&patterns.at(at)[..len])?;
            meter.note(len, begun.elapsed());
            at += len as u64;
        }
        file.sync_all()
    }

    fn rand_read(&self, dir: &Path) -> io::Result<Round> {
        let mut room = Aligned::new(SMALL);
        let mut rng = Rng::new(11);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(dir.join(LARGE))?;
        let mut meter = Meter::start();
        while meter.elapsed_s(clock::now()) < self.seconds {
            let at = rng.below(self.size / SMALL as u64) * SMALL as u64;
            let begun = clock::now();
            file.read_exact_at(room.bytes(), at)?;
            meter.note(SMALL, begun.elapsed());
        }
        Ok(meter.finish())
    }

    fn create(&self, dir: &Path, writers: usize) -> io::Result<Round> {
        let dir = dir.join(MADE);
        fs::create_dir(&dir)?;
        let next = AtomicU64::new(0);
        let bytes = [9; SMALL];
        self.by_threads(writers, |_| {
            let path = dir.join(format!("{:07}", next.fetch_add(1, Ordering::Relaxed)));
            let mut file = File::create(path)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            Ok(SMALL)
        })
    }

    fn stat(&self, dir: &Path) -> io::Result<Round> {
        self.by_threads(STATTERS, |rng| {
            let meta = fs::symlink_metadata(dir.join(name(rng.below(self.files))))?;
            if meta.len() == 100 { Ok(0) } else { Err(io::ErrorKind::InvalidData.into()) }
        })
    }

    fn readdir(&self, dir: &Path) -> io::Result<Round> {
        let mut meter = Meter::start();
        let begun = clock::now();
        let mut count = 0;
        for entry in fs::read_dir(dir)? {
            entry?;
            count += 1;
        }
        if count <= self.files {
            return Err(io::Error::other(format!("{count} of {} entries", self.files + 1)));
        }
        let each = begun.elapsed() / count as u32;
        (0..count).for_each(|_| meter.note(0, each));
        Ok(meter.finish())
    }

    /// The same by several threads until the time is over.
    fn by_threads(
        &self,
        threads: usize,
        work: impl Fn(&mut Rng) -> io::Result<usize> + Sync,
    ) -> io::Result<Round> {
        let ready = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let (ready, work) = (&ready, &work);
            let one = move |seed: usize| -> io::Result<Vec<(usize, Duration)>> {
                let mut rng = Rng::new(seed as u64);
                let mut done = Vec::new();
                ready.wait();
                let begun = clock::now();
                while begun.elapsed().as_secs_f64() < self.seconds {
                    let at = clock::now();
                    let bytes = work(&mut rng)?;
                    done.push((bytes, at.elapsed()));
                }
                Ok(done)
            };
            let workers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || one(seed))).collect();
            let mut meter = Meter::start();
            ready.wait();
            let mut all = Vec::new();
            for worker in workers {
                all.extend(worker.join().expect("workers do not panic")?);
            }
            all.into_iter().for_each(|(bytes, took)| meter.note(bytes, took));
            Ok(meter.finish())
        })
    }
}
