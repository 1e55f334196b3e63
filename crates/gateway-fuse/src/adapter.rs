//! The file system as the kernel asks for it. A thread of the session works on one request at a time.

mod filesystem;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{FileHandle, FopenFlags, Generation, ReplyAttr, ReplyEntry, Request};
use stoker_files::{Attr, Change, Errno, Files, Handle, Listing, Result, alone};
use tokio::runtime;

use crate::convert;
use crate::crew::Crew;
use crate::kernel::{Call, Kernel};
use crate::locks::Lockers;
use crate::passes::{Passes, Use};

/// Permissions that end when somebody else writes to a file, and the attribute that stands for others of the kind.
const PRIVILEGES: u32 = 0o6000;
const SET_GROUP: u32 = 0o2000;
const CAPABILITIES: &[u8] = b"security.capability";

/// A `stat` by name is a lookup and then a question for properties, by the same thread and at once. What the lookup found
/// this short ago answers it.
const LOOKED_NS: i64 = 1_000_000;
/// Threads whose last lookup is remembered.
const LOOKED: usize = 64;

/// The last lookup of a thread.
#[derive(Clone, Copy, Default)]
struct Looked {
    thread: u32,
    ino: u64,
    at_ns: i64,
}

pub(crate) struct Adapter {
    pub(crate) files: Files,
    crew: Crew,
    looked: [Mutex<Looked>; LOOKED],
    pub(crate) runtime: runtime::Handle,
    cache: Duration,
    listings: Mutex<HashMap<u64, Arc<Listing>>>,
    listing_next: AtomicU64,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) lockers: Lockers,
    /// None if the kernel cannot map a file that is open past its cache.
    passes: Option<Passes>,
}

impl Adapter {
    pub fn new(
        files: Files,
        crew: Crew,
        runtime: runtime::Handle,
        cache: Duration,
        kernel: Arc<Kernel>,
    ) -> Adapter {
        let looked = std::array::from_fn(|_| Mutex::default());
        let (listings, listing_next) = (Mutex::default(), AtomicU64::new(1));
        Adapter {
            files,
            crew,
            looked,
            runtime,
            cache,
            listings,
            listing_next,
            kernel,
            lockers: Lockers::default(),
            passes: None,
        }
    }

    pub(crate) fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        // The session's threads wait for nothing else.
        alone(|| self.runtime.block_on(call))
    }

    fn entry(&self, made: Result<Attr>, reply: ReplyEntry) {
        match made {
            Ok(attr) => {
                self.files.note_told(&attr);
                reply.entry(&self.cache, &convert::attr(&attr), Generation(0));
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn attr(&self, found: Result<Attr>, reply: ReplyAttr) {
        match found {
            Ok(attr) => {
                self.files.note_told(&attr);
                reply.attr(&self.cache, &convert::attr(&attr));
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    /// Finds out what is published now of something that a thread opens, or changes by its name, and whether the kernel came to it by
    /// names and properties that are so. If not: ESTALE, and the kernel looks all names of the path up again and comes back.
    fn check(&self, req: &Request, ino: u64) -> Result<()> {
        self.refresh(req, ino)?;
        if !self.cache.is_zero() && !self.files.is_told(ino) {
            // Also if it is not refused: then the kernel asks when it needs the length.
            self.kernel.forget_attr(ino);
            self.files.forget_told(ino);
            return self.refuse(req, &[ino], Call::Open);
        }
        self.check_names(req, &[ino], Call::Open)
    }

    /// Finds out what is published now, unless the kernel has just looked it up.
    fn refresh(&self, req: &Request, ino: u64) -> Result<()> {
        let found = match self.was_looked(req, ino) {
            Some(_) => Ok(()),
            None => self.wait(self.files.refresh(ino)),
        };
        self.heard(req, &[ino], found)
    }

    /// A thread that hears ESTALE comes back.
    fn heard<T>(&self, req: &Request, inos: &[u64], done: Result<T>) -> Result<T> {
        if matches!(done, Err(Errno::ESTALE)) {
            self.kernel.note_refused(req.pid(), inos);
        }
        done
    }

    /// The same for names alone, of these and of the directories above them, as far as is known without asking.
    fn check_names(&self, req: &Request, inos: &[u64], call: Call) -> Result<()> {
        let window = self.cache + Kernel::DELAY_MAX;
        let is_doubtful = |ino: &u64| self.files.is_doubtful(*ino, window);
        if !self.cache.is_zero() && inos.iter().any(is_doubtful) {
            return self.refuse(req, inos, call);
        }
        self.kernel.settle(req.pid());
        Ok(())
    }

    fn refuse(&self, req: &Request, inos: &[u64], call: Call) -> Result<()> {
        if self.kernel.refuse(req.pid(), inos, call) { Err(Errno::ESTALE) } else { Ok(()) }
    }

    /// Calls the file system for a change of names in these directories.
    fn in_directory<T>(
        &self,
        req: &Request,
        directories: &[u64],
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.check_names(req, directories, Call::Name)?;
        self.heard(req, directories, self.wait(change))
    }

    /// Remembers what a thread looked up, where the kernel will ask for it again.
    fn note_looked(&self, req: &Request, found: &Result<Attr>) {
        if let (true, Ok(attr)) = (self.cache.is_zero(), found) {
            let looked = Looked { thread: req.pid(), ino: attr.ino, at_ns: convert::now_ns() };
            *self.looked[req.pid() as usize % LOOKED].lock().unwrap() = looked;
        }
    }

    /// What a thread looked up just now. Said once.
    fn was_looked(&self, req: &Request, ino: u64) -> Option<Attr> {
        if !self.cache.is_zero() {
            return None;
        }
        let last = std::mem::take(&mut *self.looked[req.pid() as usize % LOOKED].lock().unwrap());
        let is_it = last.thread == req.pid() && last.ino == ino;
        let is_fresh = (0..LOOKED_NS).contains(&(convert::now_ns() - last.at_ns));
        if is_it && is_fresh { self.files.peek(ino).ok() } else { None }
    }

    fn listing(&self, fh: FileHandle) -> Result<Arc<Listing>> {
        self.listings.lock().unwrap().get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    fn open_with(&self, handle: &Handle, flags: i32) -> Result<FopenFlags> {
        if flags & libc::O_TRUNC != 0 {
            self.wait(self.files.truncate(handle.ino(), 0))?;
        }
        let keeps = handle.is_unchanged && flags & libc::O_TRUNC == 0;
        let mut fopen = if keeps { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        if let Some(passes) = &self.passes {
            let what = match flags & libc::O_ACCMODE {
                libc::O_RDONLY => Use::Read,
                libc::O_WRONLY if !self.is_privileged(handle.ino()) => Use::Write,
                _ => Use::Both,
            };
            fopen.set(FopenFlags::FOPEN_DIRECT_IO, passes.open(handle.id, handle.ino(), what));
        }
        Ok(fopen)
    }

    /// Whether a write takes something from a file: the kernel sees to that where it keeps pages, and has to look.
    fn is_privileged(&self, ino: u64) -> bool {
        let has_bits = self.files.peek(ino).is_ok_and(|attr| attr.mode & PRIVILEGES != 0);
        has_bits || self.files.xattr(ino, CAPABILITIES).is_ok()
    }

    /// Takes the bit of its group from a file whose list was set by who is not in the group: as chmod does. Which other groups a
    /// program is in is not said here.
    fn end_set_group(&self, req: &Request, ino: u64) -> Result<()> {
        let attr = self.files.peek(ino)?;
        if req.uid() == 0 || req.gid() == attr.gid || attr.mode & SET_GROUP == 0 {
            return Ok(());
        }
        let change = Change { mode: Some(attr.mode & !SET_GROUP), ..Change::default() };
        self.wait(self.files.set(ino, change)).map(drop)
    }

    /// Takes from a file what a write ends, if it was given while the writer was there.
    async fn end_privileges(&self, ino: u64, ends_bits: bool) -> Result<()> {
        let mode = self.files.peek(ino)?.mode;
        // The bit of a group that may not run the file stands for something else.
        let ended = if mode & 0o010 != 0 { PRIVILEGES } else { PRIVILEGES & !SET_GROUP };
        if ends_bits && mode & ended != 0 {
            let change = Change { mode: Some(mode & !ended), ..Change::default() };
            self.files.set(ino, change).await?;
        }
        match self.files.remove_xattr(ino, CAPABILITIES).await {
            Err(Errno::ENODATA) => Ok(()),
            done => done,
        }
    }
}
