//! A mounted volume.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use stoker_files::Files;
use tokio::runtime::Handle;

use crate::adapter::Adapter;
use crate::crew::Crew;
use crate::kernel::Kernel;

/// What the kernel reads ahead of programs, in KiB.
const READ_AHEAD_KIB: u32 = 4096;

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the list of mounts shows as its source.
    pub source: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Nothing in it can be run.
    pub no_exec: bool,
    /// Bits that give who runs a file other rights mean nothing.
    pub no_suid: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// The same for changes of names. They are; this is for those who look at the list of mounts.
    pub dir_sync: bool,
    /// Every user of the machine may use it, as far as modes allow; otherwise only who mounts it.
    pub all_users: bool,
    /// How long the kernel believes names and properties that it was told.
    pub cache: Duration,
    /// Requests that are worked on at once.
    pub threads: usize,
}

impl MountOptions {
    /// The usual ones.
    pub fn new(source: impl Into<String>) -> MountOptions {
        MountOptions {
            source: source.into(),
            read_only: false,
            no_exec: false,
            no_suid: true,
            sync: false,
            dir_sync: false,
            all_users: true,
            cache: Duration::from_secs(1),
            threads: 32,
        }
    }
}

/// A mounted volume; unmounted when dropped.
pub struct Mount {
    session: BackgroundSession,
    files: Files,
    dir: PathBuf,
}

impl Mount {
    /// Mounts a file system on a directory. The runtime is the one that the file system lives in.
    pub fn new(files: Files, runtime: Handle, dir: &Path, options: &MountOptions) -> io::Result<Mount> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("stoker".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoAtime,
            if options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        let wished = [
            (options.no_exec, MountOption::NoExec),
            (options.no_suid, MountOption::NoSuid),
            (!options.no_suid, MountOption::Suid),
            (options.sync, MountOption::Sync),
            (options.dir_sync, MountOption::DirSync),
        ];
        config.mount_options.extend(wished.into_iter().filter(|(is_wished, _)| *is_wished).map(|(_, it)| it));
        config.acl = if options.all_users { SessionACL::All } else { SessionACL::Owner };
        let threads = options.threads.max(1);
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let kernel = Arc::new(Kernel::default());
        let adapter = Adapter::new(files.clone(), Crew::new(threads), runtime, options.cache, kernel.clone());
        let session = fuser::spawn_mount(adapter, dir, &config)?;
        kernel.begin(session.notifier());
        let mount = Mount { session, files, dir: dir.to_path_buf() };
        mount.read_ahead();
        Ok(mount)
    }

    /// Lets the kernel read further ahead than it does by default. Only root may; without it reads are smaller.
    fn read_ahead(&self) {
        let Ok(meta) = std::fs::metadata(&self.dir) else { return };
        let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
            tracing::debug!("{path}: {error}");
        }
    }

    /// The file system.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Waits until somebody unmounts it.
    pub fn join(self) -> io::Result<()> {
        let mut session = self.session;
        let guard = std::mem::replace(&mut session.guard, std::thread::spawn(|| Ok(())));
        let panicked = |_| io::Error::other("a thread of the mount panicked");
        let served = ended(guard.join().map_err(panicked).flatten());
        if served.is_ok() {
            // The library takes a mount that is gone for one that is there and unmounts once more: by then that is whatever somebody else
            // mounted on the same directory.
            std::mem::forget(session);
        }
        served
    }

    /// Unmounts it. Fails while it is in use.
    pub fn unmount(self) -> io::Result<()> {
        ended(self.session.umount_and_join())
    }
}

/// The kernel has two words for the end: the second is for who was about to take a request, of those that nobody waits for.
fn ended(session: io::Result<()>) -> io::Result<()> {
    match session {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        ended => ended,
    }
}
