//! A folder that is a lake, and the bare way to read it.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::data;
use crate::failure::Failure;
use crate::measure::{Meter, Round};
use crate::rng::Rng;
use crate::workload::Job;
use crate::{clock, sys};

/// Bytes of a file: two chunks.
const FILE: usize = 8 << 20;

/// Plain files as others would have put them there.
pub struct LakeFolder {
    dir: PathBuf,
    files: u64,
    shares: u32,
}

impl LakeFolder {
    /// Writes files of so many bytes together, to be read in shares.
    pub fn make(dir: PathBuf, bytes: u64, shares: u32) -> Result<LakeFolder, Failure> {
        let failed = |e: io::Error| Failure::io(dir.display(), &e);
        let files = (bytes / FILE as u64).max(u64::from(shares));
        fs::create_dir_all(&dir).map_err(failed)?;
        let mut content = vec![0; FILE];
        Rng::new(1).fill(&mut content);
        for file in 0..files {
            data::stamped(file, 0, &mut content);
            let written = File::create(dir.join(format!("{file:06}"))).and_then(|to| {
                to.write_all_at(&content, 0)?;
                to.sync_all()
            });
            written.map_err(failed)?;
        }
        Ok(LakeFolder { dir, files, shares })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// The files of one round.
    pub fn share(&self, round: u32) -> Range<u64> {
        let of = |round: u32| self.files * u64::from(round) / u64::from(self.shares);
        of(round)..of(round + 1)
    }

    fn open(&self, file: u64) -> io::Result<File> {
        File::open(self.dir.join(format!("{file:06}")))
    }

    /// Has the kernel drop what it holds of these files.
    pub fn forget_pages(&self, share: &Range<u64>) -> Result<(), Failure> {
        let forgotten = share.clone().try_for_each(|file| sys::forget_pages(&self.open(file)?));
        forgotten.map_err(|e| Failure::io(self.dir.display(), &e))
    }

    /// Reads these files once, by as many threads as there are slots, with plain reads.
    pub fn read_bare(&self, share: &Range<u64>, job: &Job) -> Result<Round, Failure> {
        let next = AtomicU64::new(share.start);
        let memory: Vec<Vec<u8>> = (0..job.depth).map(|_| vec![1; job.len]).collect();
        let meter = Mutex::new(Meter::start());
        let read = |mut memory: Vec<u8>| -> io::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= share.end {
                    return Ok(());
                }
                let file = self.open(number)?;
                for offset in (0..FILE as u64).step_by(job.len) {
                    let begun = clock::now();
                    file.read_exact_at(&mut memory, offset)?;
                    let took = begun.elapsed();
                    meter.lock().expect("no reader panicked").note(job.len, took);
                }
            }
        };
        let done = thread::scope(|scope| {
            let read = &read;
            let readers: Vec<_> =
                memory.into_iter().map(|memory| scope.spawn(move || read(memory))).collect();
            readers.into_iter().try_for_each(|reader| reader.join().expect("a reader that does not panic"))
        });
        done.map_err(|e| Failure::io(self.dir.display(), &e))?;
        Ok(meter.into_inner().expect("no reader panicked").finish())
    }
}
