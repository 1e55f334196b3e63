//! Requests of the kernel, each one call of the file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use stoker_files::{Allocate, Change, Create, Errno, Kind, Make, RenameFlag, Result, Seek, XattrMode};

use super::Adapter;
use crate::convert;
use crate::kernel::Call;
use crate::locks::Asked;
use crate::passes::Passes;

/// Longest request of a write, and of a read.
const REQUEST_LEN_MAX: u32 = 1 << 20;

/// Requests that the kernel has under way by itself, reading ahead for example.
const BACKGROUND_MAX: u16 = 64;

/// `.` and `..` come in front of the entries.
const DOTS: u64 = 2;

/// What the file system shows as its block size.
const BLOCK: u32 = 4096;

/// An extended attribute must be there, and must not.
const XATTR_BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;

/// The attribute with the list of who may use a file. Whoever sets it changes the mode.
const ACCESS_LIST: &str = "system.posix_acl_access";

fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(convert::errno(errno)),
    }
}

fn xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(convert::errno(Errno::ERANGE)),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(convert::errno(errno)),
    }
}

fn make(req: &Request, mode: u32, umask: u32) -> Make {
    Make { mode: mode & 0o7777, umask, uid: req.uid(), gid: req.gid(), rdev: 0 }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // FUSE_ATOMIC_O_TRUNC has a cost: the kernel opens, and thereby cuts, a file before it looks whether it may be cut. Without it every
        // file that is written anew is published empty first, and is for a moment so for everybody. (D151)
        let wishes = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            // The kernel asks for lists of who may do what, and decides by them.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for wish in wishes {
            // An older kernel does without.
            let _ = config.add_capabilities(wish);
        }
        if self.files.has_locks() {
            // Without them the kernel keeps locks by itself, among the programs of this machine.
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS);
            let _ = config.add_capabilities(InitFlags::FUSE_FLOCK_LOCKS);
        }
        self.passes =
            config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok().then(Passes::default);
        let _ = config.set_max_write(REQUEST_LEN_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Err(most) = config.set_max_readahead(REQUEST_LEN_MAX) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Err(errno) = self.wait(self.files.sync()) {
            tracing::error!("what was written last could not be published: {errno:?}");
        }
        self.wait(self.files.end_all_locks());
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _at_work = self.crew.begin();
        let found = self.wait(self.files.lookup(parent.0, name.as_bytes()));
        self.note_looked(req, &found);
        if !matches!(found, Err(Errno::ESTALE)) {
            self.kernel.note_lookup(req.pid(), parent.0, found.as_ref().ok().map(|attr| attr.ino));
        }
        self.entry(self.heard(req, &[parent.0], found), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        // One of many that the kernel sent together, and done at once.
        self.files.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _at_work = self.crew.begin();
        let found = match self.was_looked(req, ino.0) {
            Some(attr) => Ok(attr),
            None => self.wait(self.files.getattr(ino.0)),
        };
        self.attr(found, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _at_work = self.crew.begin();
        let now_ns = convert::now_ns();
        let ns = |time: Option<TimeOrNow>| time.map(|time| convert::ns(time, now_ns));
        // A cut comes with the time of the change. It is not to leave an access time that nobody set.
        let is_cut = size.is_some() && atime.is_none() && matches!(mtime, Some(TimeOrNow::Now));
        let follows = is_cut && self.files.peek(ino.0).is_ok_and(|attr| attr.atime_ns == attr.mtime_ns);
        let (mtime_ns, atime_ns) = (ns(mtime), ns(atime));
        let atime_ns = if follows { mtime_ns } else { atime_ns };
        let change = Change { mode, uid, gid, mtime_ns, atime_ns };
        let believed = match (fh, size) {
            (Some(_), _) => Ok(()),
            (None, Some(_)) => self.check(req, ino.0),
            (None, None) => self.check_names(req, &[ino.0], Call::Open),
        };
        let done = believed.and_then(|()| {
            self.wait(async {
                match (size, fh) {
                    (Some(size), Some(_)) => self.files.truncate(ino.0, size).await?,
                    (Some(size), None) => self.files.truncate_closed(ino.0, size).await?,
                    (None, _) => {}
                }
                match change == Change::default() {
                    true => self.files.getattr(ino.0).await,
                    false => self.files.set(ino.0, change).await,
                }
            })
        });
        if done.is_ok() {
            // The kernel takes this answer for the last word.
            self.files.forget_told(ino.0);
        }
        self.attr(done, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _at_work = self.crew.begin();
        match self.wait(self.files.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _at_work = self.crew.begin();
        let made = match Kind::of_mode(mode) {
            Some(kind) if !matches!(kind, Kind::Directory | Kind::Symlink) => {
                let make = Make { rdev, ..make(req, mode, umask) };
                self.in_directory(
                    req,
                    &[parent.0],
                    self.files.make(parent.0, name.as_bytes(), kind, make, b""),
                )
            }
            _ => Err(Errno::EPERM),
        };
        self.entry(made, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _at_work = self.crew.begin();
        let make = make(req, mode, umask);
        let made = self.files.make(parent.0, name.as_bytes(), Kind::Directory, make, b"");
        self.entry(self.in_directory(req, &[parent.0], made), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        empty(self.in_directory(req, &[parent.0], self.files.unlink(parent.0, name.as_bytes())), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        empty(self.in_directory(req, &[parent.0], self.files.rmdir(parent.0, name.as_bytes())), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _at_work = self.crew.begin();
        let target = target.as_os_str().as_bytes();
        let make = make(req, 0o777, 0);
        let made = self.files.make(parent.0, link_name.as_bytes(), Kind::Symlink, make, target);
        self.entry(self.in_directory(req, &[parent.0], made), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        let flag = if flags.is_empty() {
            RenameFlag::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameFlag::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameFlag::Exchange
        } else {
            return reply.error(convert::errno(Errno::EINVAL));
        };
        let (from, to) = (name.as_bytes(), newname.as_bytes());
        let renamed = self.files.rename(parent.0, from, newparent.0, to, flag);
        empty(self.in_directory(req, &[parent.0, newparent.0], renamed), reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _at_work = self.crew.begin();
        let linked = self.refresh(req, ino.0).and_then(|()| {
            let linked = self.files.link(ino.0, newparent.0, newname.as_bytes());
            self.in_directory(req, &[ino.0, newparent.0], linked)
        });
        if linked.is_ok() {
            self.files.forget_told(ino.0);
        }
        self.entry(linked, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _at_work = self.crew.begin();
        let opened = self.check(req, ino.0).and_then(|()| self.wait(self.files.open_file(ino.0, true)));
        let opened = opened.and_then(|handle| {
            let fopen = self.open_with(&handle, flags.0).and_then(|fopen| {
                let is_read = flags.0 & libc::O_ACCMODE != libc::O_WRONLY && flags.0 & libc::O_TRUNC == 0;
                // Whoever opens a file may read it, also if its name is taken away before the first read.
                let held = if is_read { self.wait(self.files.hold(&handle)) } else { Ok(()) };
                self.heard(req, &[ino.0], held).map(|()| fopen)
            });
            if fopen.is_err() {
                self.passes.as_ref().and_then(|passes| passes.close(handle.id));
                self.wait(self.files.release(handle.id));
            }
            Ok((handle.id, fopen?))
        });
        match opened {
            Ok((id, fopen)) => reply.opened(FileHandle(id), fopen),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _at_work = self.crew.begin();
        let read = self
            .files
            .handle(fh.0)
            .and_then(|handle| self.wait(self.files.read(&handle, offset, size as usize)));
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _at_work = self.crew.begin();
        // Pages that were changed in memory have their place, however the file was opened.
        let append = flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let ends_bits = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // O_SYNC has this bit, too; and the kernel sets it for RWF_DSYNC and on a mount with `sync`. Past its pages it does no more than that.
        let is_durable = flags.0 & libc::O_DSYNC != 0;
        // Its pages have the bytes where it takes the end to be.
        let misses_end = append && self.files.peek(ino.0).is_ok_and(|attr| attr.size != offset);
        let written = self.files.handle(fh.0).and_then(|handle| {
            if self.is_privileged(handle.ino()) {
                self.wait(self.end_privileges(handle.ino(), ends_bits))?;
            }
            let len = self.wait(self.files.write(&handle, offset, data, append))?;
            if is_durable {
                self.wait(self.files.fsync(&handle))?;
            }
            Ok(len)
        });
        if misses_end {
            // Elsewhere: the pages are locked until this is answered.
            let (kernel, ino) = (self.kernel.clone(), ino.0);
            self.runtime.spawn_blocking(move || kernel.forget_pages(ino));
        }
        match written {
            Ok(len) => reply.written(len as u32),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        let done = self.files.handle(fh.0).and_then(|handle| self.wait(self.files.fsync(&handle)));
        // Whoever closes any descriptor of a file has no locks on it any more.
        self.end_locks_of(ino.0, owner);
        empty(done, reply);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let _at_work = self.crew.begin();
        self.test_lock(req, ino, Asked { owner, start, end, kind, pid }, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        may_wait: bool,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        self.set_lock(req, (ino, fh), Asked { owner, start, end, kind, pid }, may_wait, reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        self.end_locks_through(ino.0, fh);
        if let Some(ino) = self.passes.as_ref().and_then(|passes| passes.close(fh.0)) {
            // Whoever opens it next begins without the pages that somebody may have mapped meanwhile.
            self.files.forget_pages(ino);
        }
        self.wait(self.files.release(fh.0));
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        let done = self.files.handle(fh.0).and_then(|handle| self.wait(self.files.fsync(&handle)));
        empty(done, reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _at_work = self.crew.begin();
        let is_known = self.refresh(req, ino.0).and_then(|()| self.check_names(req, &[ino.0], Call::Open));
        match is_known.and_then(|()| self.files.list(ino.0)) {
            Ok(listing) => {
                let id = self.listing_next.fetch_add(1, Ordering::Relaxed);
                self.listings.lock().unwrap().insert(id, Arc::new(listing));
                reply.opened(FileHandle(id), FopenFlags::empty());
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _at_work = self.crew.begin();
        let listing = match self.listing(fh) {
            Ok(listing) => listing,
            Err(errno) => return reply.error(convert::errno(errno)),
        };
        let dots = [(ino.0, "."), (listing.parent(), "..")];
        for (at, (ino, name)) in dots.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(ino), at as u64 + 1, fuser::FileType::Directory, name) {
                return reply.ok();
            }
        }
        let read = listing.read(offset.saturating_sub(DOTS), false, |place, entry| {
            let kind = convert::kind(entry.attr.kind);
            !reply.add(INodeNo(entry.attr.ino), place + DOTS, kind, OsStr::from_bytes(&entry.name))
        });
        match self.wait(read) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _at_work = self.crew.begin();
        let listing = match self.listing(fh) {
            Ok(listing) => listing,
            Err(errno) => return reply.error(convert::errno(errno)),
        };
        let dots = [(ino.0, "."), (listing.parent(), "..")];
        for (at, (ino, name)) in dots.into_iter().enumerate().skip(offset as usize) {
            // The kernel takes no note of these two; only their numbers are shown.
            let attr = self.wait(self.files.getattr(ino));
            let Ok(attr) = attr else { continue };
            let attr = convert::attr(&attr);
            if reply.add(INodeNo(ino), at as u64 + 1, name, &self.cache, &attr, Generation(0)) {
                return reply.ok();
            }
        }
        let read = listing.read(offset.saturating_sub(DOTS), true, |place, entry| {
            self.files.note_told(&entry.attr);
            let (name, attr) = (OsStr::from_bytes(&entry.name), convert::attr(&entry.attr));
            !reply.add(attr.ino, place + DOTS, name, &self.cache, &attr, Generation(0))
        });
        match self.wait(read) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        self.listings.lock().unwrap().remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        empty(self.wait(self.files.fsync_directory(ino.0)), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _at_work = self.crew.begin();
        match self.wait(self.files.space()) {
            Ok(space) => {
                let (blocks, free) = (space.bytes / u64::from(BLOCK), space.free / u64::from(BLOCK));
                let inodes = space.files.saturating_add(1 << 32);
                reply.statfs(blocks, free, free, inodes, 1 << 32, BLOCK, 255, BLOCK);
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            // Nothing fulfils both.
            XATTR_BOTH => {
                let fault = self.files.xattr(ino.0, name.as_bytes()).err().unwrap_or(Errno::EEXIST);
                return reply.error(convert::errno(fault));
            }
            _ => return reply.error(convert::errno(Errno::EINVAL)),
        };
        let set = self.files.set_xattr(ino.0, name.as_bytes(), value, mode);
        let done = self.wait(set).and_then(|()| match name == ACCESS_LIST {
            true => self.end_set_group(req, ino.0),
            false => Ok(()),
        });
        empty(done, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _at_work = self.crew.begin();
        xattr(self.files.xattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _at_work = self.crew.begin();
        let names = self
            .files
            .xattrs(ino.0)
            .map(|names| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect());
        xattr(names, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _at_work = self.crew.begin();
        empty(self.wait(self.files.remove_xattr(ino.0, name.as_bytes())), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _at_work = self.crew.begin();
        let make = make(req, mode, umask);
        let how = match (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0) {
            (true, _) => Create::Exclusive,
            (_, true) => Create::Empty,
            _ => Create::Join,
        };
        let made = self.files.create_as(parent.0, name.as_bytes(), make, how);
        let made = self.in_directory(req, &[parent.0], made).and_then(|(_, handle)| {
            let fopen = self.open_with(&handle, flags)?;
            Ok((self.files.peek(handle.ino())?, handle.id, fopen))
        });
        match made {
            Ok((attr, id, fopen)) => {
                self.files.note_told(&attr);
                let attr = convert::attr(&attr);
                reply.created(&self.cache, &attr, Generation(0), FileHandle(id), fopen);
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _at_work = self.crew.begin();
        const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO_INSIDE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let what = match mode {
            0 => Allocate::Grow,
            libc::FALLOC_FL_KEEP_SIZE => Allocate::Reserve,
            HOLE | ZERO_INSIDE => Allocate::Zero { grow: false },
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { grow: true },
            _ => return reply.error(convert::errno(Errno::EOPNOTSUPP)),
        };
        let done = self
            .files
            .handle(fh.0)
            .and_then(|handle| self.wait(self.files.allocate(&handle, offset, length, what)));
        empty(done, reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _at_work = self.crew.begin();
        // All other places the kernel finds itself.
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(convert::errno(Errno::EINVAL)),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(convert::errno(Errno::ENXIO));
        };
        let found =
            self.files.handle(fh.0).and_then(|handle| self.wait(self.files.seek(&handle, offset, what)));
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }
}
