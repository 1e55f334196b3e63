//! The folder that a benchmark or a demonstration works in: gone when it ends, fails or is interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::failure::Failure;
use crate::sys::StopSignals;
use crate::{out, size, sys};

/// A folder of our own below the one that was given.
pub struct Scratch {
    path: PathBuf,
    /// Whoever removes the folder has it. Once the work is interrupted it does not come back: what then fails because the folder
    /// is gone says nothing.
    removing: Arc<Mutex<()>>,
    /// What is there stays, and a stop is the end that was wanted.
    kept: Arc<AtomicBool>,
}

impl Scratch {
    /// Makes the folder, if `bytes` fit. Call it before other threads start: they leave the stop signals to it.
    pub fn new(dir: &Path, bytes: u64) -> Result<Scratch, Failure> {
        Scratch::named(dir, bytes, "stoker-bench")
    }

    /// The same, with a name that says whose it is.
    pub fn named(dir: &Path, bytes: u64, name: &str) -> Result<Scratch, Failure> {
        let meta = fs::metadata(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        if !meta.is_dir() {
            return Err(Failure::new(format!("{} is no directory", dir.display()))
                .hint("give the drive's mount point"));
        }
        let (free, _) = stoker_ring::disk_space(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        if free < bytes {
            let (need, free) = (size::human(bytes), size::human(free));
            let cause = format!("the files take {need}, {} has {free} free", dir.display());
            return Err(Failure::new(cause).hint("choose a smaller --size or another --dir"));
        }
        let signals = StopSignals::hold();
        let path = dir.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| Failure::io(path.display(), &e))?;
        let removing = Arc::<Mutex<()>>::default();
        let kept = Arc::<AtomicBool>::default();
        let scratch = Scratch { path: path.clone(), removing: removing.clone(), kept: kept.clone() };
        let watch = move || {
            let signal = signals.wait();
            let _removing = removing.lock();
            if kept.load(Ordering::Relaxed) {
                std::process::exit(0);
            }
            remove(&path);
            std::process::exit(128 + signal);
        };
        thread::Builder::new()
            .name("stoker-signal".into())
            .spawn(watch)
            .map_err(|e| Failure::io("thread", &e))?;
        Ok(scratch)
    }

    /// From now on a stop leaves everything where it is, and is no failure.
    pub fn keep_when_stopped(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Leaves everything where it is.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// A path inside.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _removing = self.removing.lock();
        remove(&self.path);
    }
}

/// Removes everything; again, if a ring that still works has made a file meanwhile. What is mounted there is not ours to
/// empty: it is unmounted.
fn remove(path: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    let full = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    for point in points.filter(|point| point.starts_with(&full)) {
        let _ = sys::unmount(point, sys::Unmount::Now);
    }
    for _ in 0..20 {
        if fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
    }
    out::say(format!("stoker: {} could not be removed, please do", path.display()));
}
