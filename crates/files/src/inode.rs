//! One file or directory as this file system knows it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stoker_format::VersionId;
use stoker_store::{Attributes, FileInfo, Key};

use crate::caches::Told;
use crate::content::Content;
use crate::error::{Errno, Result};
use crate::extras;

/// The inode of the root.
pub const ROOT: u64 = 1;

/// Numbers from here on are those of objects in a lake, which get another one whenever they are changed.
const NUMBERS_OF_LAKE: u64 = 1 << 63;

const TYPE_MASK: u32 = 0o170_000;
const MODE_MASK: u32 = 0o7777;

/// What something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// A file with bytes.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; its bytes are its target.
    Symlink,
    /// A pipe; only its name is here.
    Fifo,
    /// A socket; only its name is here.
    Socket,
    /// A device that is read and written in blocks; only its name and number are here.
    BlockDevice,
    /// Any other device.
    CharDevice,
}

impl Kind {
    /// The kind that a mode says, if it is one of ours.
    pub fn of_mode(mode: u32) -> Option<Kind> {
        match mode & TYPE_MASK {
            0 | 0o100_000 => Some(Kind::File),
            0o040_000 => Some(Kind::Directory),
            0o120_000 => Some(Kind::Symlink),
            0o010_000 => Some(Kind::Fifo),
            0o140_000 => Some(Kind::Socket),
            0o060_000 => Some(Kind::BlockDevice),
            0o020_000 => Some(Kind::CharDevice),
            _ => None,
        }
    }

    /// Its bits of a mode.
    pub fn bits(self) -> u32 {
        match self {
            Kind::File => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Symlink => 0o120_000,
            Kind::Fifo => 0o010_000,
            Kind::Socket => 0o140_000,
            Kind::BlockDevice => 0o060_000,
            Kind::CharDevice => 0o020_000,
        }
    }

    /// Whether it stands for a device.
    pub fn is_device(self) -> bool {
        matches!(self, Kind::BlockDevice | Kind::CharDevice)
    }

    fn mode_default(self) -> u32 {
        match self {
            Kind::Directory => 0o755,
            Kind::Symlink => 0o777,
            _ => 0o644,
        }
    }
}

/// What `stat` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Number.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// Length in bytes.
    pub size: u64,
    /// Bytes that are stored: all but those in holes. Of what waits to be published, at most so many.
    pub allocated: u64,
    /// Permissions, without the kind.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u32,
    /// Last change of the bytes, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of anything.
    pub ctime_ns: i64,
    /// The time of access that was set, or that of the last change: reading is not noted.
    pub atime_ns: i64,
    /// Number of a device, as the kernel has it.
    pub rdev: u32,
}

/// What is known besides the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    pub attr: Attr,
    /// Everything else that travels with it.
    pub attributes: Attributes,
    /// The published version.
    pub version: Option<VersionId>,
    /// When it was published, by the catalog; none if it was published here and not looked up since. The time of the last change
    /// is that of this moment, or of what was done here.
    pub modified_ms: Option<u64>,
    /// Bytes of it that are stored.
    pub stored: u64,
    /// Properties were changed and not published.
    pub is_changed: bool,
    /// Counts changes of properties: those that came while others were being published are published after them.
    pub changes: u64,
}

impl Meta {
    /// Of something that is published.
    pub fn of(info: &FileInfo, kind: Kind, owner: (u32, u32)) -> Meta {
        let modified_ns = info.modified_ms as i64 * 1_000_000;
        let (uid, gid) = info.attributes.owner.unwrap_or(owner);
        let mtime_ns = info.attributes.mtime_ns.unwrap_or(modified_ns);
        let attr = Attr {
            ino: info.inode,
            kind,
            size: if kind == Kind::Directory { 4096 } else { info.size },
            allocated: if kind == Kind::Directory { 4096 } else { info.allocated_bytes() },
            mode: info.attributes.mode.map_or(kind.mode_default(), |mode| mode & MODE_MASK),
            uid,
            gid,
            nlink: if kind == Kind::Directory { 2 } else { info.links.max(1) },
            mtime_ns,
            ctime_ns: modified_ns,
            atime_ns: extras::accessed_ns(&info.attributes).unwrap_or(mtime_ns),
            rdev: if kind.is_device() { extras::device(&info.attributes) } else { 0 },
        };
        let version = Some(info.version).filter(|_| kind != Kind::Directory);
        let stored = attr.allocated;
        Meta {
            attr,
            attributes: info.attributes.clone(),
            version,
            modified_ms: Some(info.modified_ms),
            stored,
            is_changed: false,
            changes: 0,
        }
    }

    /// The same publish of the same thing, seen again: it changed last when it did so here.
    pub fn keep_ctime(&mut self, held: &Meta) {
        if held.modified_ms.is_none_or(|held| Some(held) == self.modified_ms) {
            self.attr.ctime_ns = held.attr.ctime_ns;
        }
    }

    /// The bytes changed at this time.
    pub fn set_mtime(&mut self, mtime_ns: i64) {
        self.attr.mtime_ns = mtime_ns;
        self.attr.atime_ns = extras::accessed_ns(&self.attributes).unwrap_or(mtime_ns);
    }

    /// Times are set; one that is not stays.
    pub fn set_times(&mut self, mtime_ns: Option<i64>, atime_ns: Option<i64>) {
        let atime_ns = atime_ns.unwrap_or(self.attr.atime_ns);
        let mtime_ns = mtime_ns.unwrap_or(self.attr.mtime_ns);
        extras::set_accessed(&mut self.attributes, Some(atime_ns).filter(|at| *at != mtime_ns));
        self.set_mtime(mtime_ns);
    }

    /// Of something new, or of a directory that only its contents imply.
    pub fn fresh(ino: u64, kind: Kind, mode: Option<u32>, owner: (u32, u32), now_ns: i64) -> Meta {
        let attr = Attr {
            ino,
            kind,
            size: if kind == Kind::Directory { 4096 } else { 0 },
            allocated: if kind == Kind::Directory { 4096 } else { 0 },
            mode: mode.map_or(kind.mode_default(), |mode| mode & MODE_MASK),
            uid: owner.0,
            gid: owner.1,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            atime_ns: now_ns,
            rdev: 0,
        };
        let attributes = Attributes::default();
        let (version, modified_ms) = (None, None);
        Meta { attr, attributes, version, modified_ms, stored: 0, is_changed: false, changes: 0 }
    }

    /// The file has another length, and so many bytes wait.
    pub fn resize(&mut self, size: u64, waiting: usize) {
        self.attr.size = size;
        self.attr.allocated = self.stored.saturating_add(waiting as u64).min(size);
    }

    /// The properties to publish.
    pub fn properties(&self) -> Attributes {
        Attributes {
            mode: Some(self.attr.mode | self.attr.kind.bits()),
            owner: Some((self.attr.uid, self.attr.gid)),
            mtime_ns: Some(self.attr.mtime_ns),
            ..self.attributes.clone()
        }
    }
}

/// Where something hangs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The name that is used for it; the last one that it had if it has none any more.
    pub parent: u64,
    pub name: Vec<u8>,
    /// Other names of a file that are known here.
    pub others: Vec<(u64, Vec<u8>)>,
    /// It has no name any more. While it is open its bytes may be under a key of ours.
    pub is_unlinked: bool,
    /// It was somebody else who took the name, on another node or at another door: nothing can be published any more.
    pub is_taken: bool,
    /// A key of ours that it has as well, as long as it is open.
    pub hidden: Option<Key>,
    /// It has other names, which are not known here: who writes to it is seen there.
    pub is_elsewhere: bool,
}

impl Place {
    pub fn new(parent: u64, name: &[u8]) -> Place {
        let others = Vec::new();
        let (is_unlinked, is_taken, is_elsewhere) = (false, false, false);
        Place { parent, name: name.to_vec(), others, is_unlinked, is_taken, hidden: None, is_elsewhere }
    }

    /// Whether this is one of its names, or the last one that it had.
    pub fn has(&self, parent: u64, name: &[u8]) -> bool {
        (self.parent == parent && self.name == name)
            || self.others.iter().any(|(at, other)| *at == parent && other == name)
    }

    /// All names that it has.
    pub fn names(&self) -> Vec<(u64, Vec<u8>)> {
        if self.is_unlinked {
            return Vec::new();
        }
        let mut names = vec![(self.parent, self.name.clone())];
        names.extend(self.others.iter().cloned());
        names
    }

    /// One name less; without any it is unlinked.
    pub fn lose(&mut self, parent: u64, name: &[u8]) {
        if (self.parent, self.name.as_slice()) != (parent, name) {
            self.others.retain(|(at, other)| *at != parent || other != name);
        } else if self.others.is_empty() {
            self.is_unlinked = true;
        } else {
            (self.parent, self.name) = self.others.remove(0);
        }
    }

    /// One name more, which is the one that is used.
    pub fn gain(&mut self, parent: u64, name: &[u8]) {
        let mut names = self.names();
        names.retain(|(at, other)| *at != parent || other != name);
        (self.parent, self.name, self.others) = (parent, name.to_vec(), names);
        (self.is_unlinked, self.is_taken, self.is_elsewhere) = (false, false, false);
    }
}

/// A file or a directory.
pub(crate) struct Inode {
    pub ino: u64,
    pub kind: Kind,
    /// Its number in the catalog: another one than here if two made the file at once and the other one was first.
    pub number: AtomicU64,
    pub place: Mutex<Place>,
    pub meta: Mutex<Meta>,
    pub content: tokio::sync::Mutex<Content>,
    /// Times that the caller was told of it and did not forget it.
    pub lookups: AtomicU64,
    pub opens: AtomicUsize,
    /// Inodes in the table that hang here.
    pub children: AtomicUsize,
    /// The version that the caller's caches are of.
    pub shown: Mutex<Option<VersionId>>,
    /// It has a row in the catalog.
    pub is_published: AtomicBool,
    /// Bytes or properties wait to be published.
    pub is_dirty: AtomicBool,
    /// When something of it was changed here last, by the count of the file system.
    pub changed_at: AtomicU64,
    /// When the last answer was asked for that was taken note of, by the same count.
    pub seen_at: AtomicU64,
    /// What the caller was told, and may believe.
    pub told: Mutex<Told>,
    /// When it was heard last that somebody else took a name of it.
    pub name_lost_at: Mutex<Option<tokio::time::Instant>>,
    /// What was written went with the name that somebody else took. Whoever has it open hears of it at every sync.
    pub is_lost: AtomicBool,
}

impl Inode {
    pub fn new(parent: u64, name: &[u8], meta: Meta, content: Content, is_published: bool) -> Inode {
        Inode {
            ino: meta.attr.ino,
            kind: meta.attr.kind,
            number: AtomicU64::new(meta.attr.ino),
            place: Mutex::new(Place::new(parent, name)),
            meta: Mutex::new(meta),
            content: tokio::sync::Mutex::new(content),
            lookups: AtomicU64::new(0),
            opens: AtomicUsize::new(0),
            children: AtomicUsize::new(0),
            shown: Mutex::new(None),
            is_published: AtomicBool::new(is_published),
            is_dirty: AtomicBool::new(!is_published),
            changed_at: AtomicU64::new(0),
            seen_at: AtomicU64::new(0),
            told: Mutex::default(),
            name_lost_at: Mutex::new(None),
            is_lost: AtomicBool::new(false),
        }
    }

    pub fn attr(&self) -> Attr {
        self.meta.lock().unwrap().attr
    }

    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether what has the name now is another file than this one was.
    pub fn is_another(&self, info: &FileInfo) -> bool {
        let numbers = [self.number(), info.inode];
        numbers[0] != numbers[1] && numbers.iter().all(|number| *number < NUMBERS_OF_LAKE)
    }

    /// Who sees that nothing waits any more also sees the count of losses, if that is why.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    pub fn is_published(&self) -> bool {
        self.is_published.load(Ordering::Relaxed)
    }

    pub fn is_open(&self) -> bool {
        self.opens.load(Ordering::Relaxed) > 0
    }

    /// Whether it has no name any more, here or elsewhere.
    pub fn is_unlinked(&self) -> bool {
        let place = self.place.lock().unwrap();
        place.is_unlinked && !place.is_elsewhere
    }

    /// Whether a name leads to it.
    pub fn has_name(&self, parent: u64, name: &[u8]) -> bool {
        let place = self.place.lock().unwrap();
        !place.is_unlinked && place.has(parent, name)
    }

    /// One of its names is gone; says how many are left.
    pub fn lose_name(&self, now_ns: i64) {
        let left = {
            let mut meta = self.meta.lock().unwrap();
            meta.attr.nlink = meta.attr.nlink.saturating_sub(1);
            meta.attr.ctime_ns = now_ns;
            meta.attr.nlink
        };
        let mut place = self.place.lock().unwrap();
        place.is_elsewhere = place.is_unlinked && left > 0;
    }

    /// Whether it was changed here since a moment, or an answer was heard that was asked for later: what was asked then is no
    /// news.
    pub fn is_newer(&self, moment: u64) -> bool {
        let latest = self.changed_at.load(Ordering::Acquire).max(self.seen_at.load(Ordering::Acquire));
        latest > moment
    }

    pub fn is_taken(&self) -> bool {
        self.place.lock().unwrap().is_taken
    }

    /// Whether what waits will be looked for: nobody sees a file again whose name this file system took away.
    pub fn is_awaited(&self) -> bool {
        let place = self.place.lock().unwrap();
        self.is_dirty() && (!place.is_unlinked || place.is_taken || place.is_elsewhere)
    }

    /// Refuses what would follow on something that is lost.
    pub fn check_lost(&self) -> Result<()> {
        if self.is_lost.load(Ordering::Acquire) { Err(Errno::ESTALE) } else { Ok(()) }
    }

    /// Refuses changes that nobody could ever see.
    pub fn check_kept(&self) -> Result<()> {
        match self.is_lost.load(Ordering::Relaxed) || self.is_taken() {
            true => Err(Errno::ESTALE),
            false => Ok(()),
        }
    }
}
