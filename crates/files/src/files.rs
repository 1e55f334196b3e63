//! The file system.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_format::{VolumeId, crc64};
use stoker_store::{
    Condition, DirectoryInfo, ErrorKind, FileInfo, Key, ListRequest, Store, StoreError, Subject,
};
use tokio::sync::{RwLock, Semaphore};

use crate::ahead::{Ahead, BLOCK};
use crate::content::Content;
use crate::error::{Errno, Result};
use crate::inode::{Attr, Inode, Kind, Meta, ROOT};
use crate::locks::Locks;
use crate::options::{Newer, Options};
use crate::table::{self, Table};

/// Inodes that are taken from the catalog at once.
const INODES: u32 = 4096;

/// Numbers of directories that the catalog does not know. Those in front of them are the catalog's, those behind the
/// lake's.
pub(crate) const SPARE_FIRST: u64 = 1 << 61;
const IMPLIED_FIRST: u64 = 1 << 62;
const IMPLIED_END: u64 = 1 << 63;

/// Directory of keys that the file system uses itself. No program sees it.
pub(crate) const OWN: &[u8] = b".stoker";

/// Names that are remembered as absent, and for how long.
const ABSENT_MAX: usize = 4096;
const ABSENT_NS: i64 = 50_000_000;

/// Times that a name is looked for whose file is changed here all the time.
const LOOKS_MAX: usize = 20;

/// First pause before a node that is away is asked again; doubles.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Asks until a node that is away is back. A macro, because the futures of closures are not known to be sendable.
macro_rules! patiently {
    ($core:expr, $ask:expr) => {{
        let mut waiting = $crate::files::Waiting::default();
        loop {
            match $ask.await {
                Ok(answer) => break Ok(answer),
                Err(fault) => {
                    if let Err(fault) = waiting.after(fault, &$core.options).await {
                        break Err(fault);
                    }
                }
            }
        }
    }};
}
pub(crate) use patiently;

/// A volume as a file system. Clones are the same one.
#[derive(Clone)]
pub struct Files(pub(crate) Arc<Core>);

pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub volume: String,
    volume_id: VolumeId,
    pub options: Options,
    pub table: Table,
    pub locks: Locks,
    /// Held while names are used; alone while one moves.
    pub moves: Arc<RwLock<()>>,
    /// Bytes of all files that wait.
    pub waiting: AtomicUsize,
    pub ahead: Arc<Semaphore>,
    inodes: tokio::sync::Mutex<std::ops::Range<u64>>,
    /// Numbers for directories whose own one is in use.
    spare: AtomicU64,
    /// Names that were looked for and not found, and when: they are often made next.
    absent: Mutex<HashMap<(u64, Vec<u8>), i64>>,
    /// Counts changes that were made here and questions, so that an answer is known to be older than a change, or than another answer.
    changes: AtomicU64,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    handle_next: AtomicU64,
}

/// An open file.
pub struct Handle {
    /// Its number.
    pub id: u64,
    pub(crate) inode: Arc<Inode>,
    pub(crate) ahead: Mutex<Ahead>,
    /// The file may be kept in caches of the caller: it is the version that was open last.
    pub is_unchanged: bool,
}

impl Handle {
    /// The inode that is open.
    pub fn ino(&self) -> u64 {
        self.inode.ino
    }
}

/// How much fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// All bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Files that are there.
    pub files: u64,
}

impl Files {
    /// The file system of a volume. Lives in a tokio runtime.
    pub async fn open(
        store: Arc<dyn Store>,
        volume: &str,
        options: Options,
    ) -> std::result::Result<Files, StoreError> {
        let info = store.volume(volume).await?;
        let now_ns = (options.now_ns)();
        let mut root = Meta::fresh(
            ROOT,
            Kind::Directory,
            Some(0o755),
            options.owner,
            info.created_ms as i64 * 1_000_000,
        );
        root.attr.ctime_ns = root.attr.ctime_ns.min(now_ns);
        let ahead = Arc::new(Semaphore::new(options.ahead_bytes_max / BLOCK as usize));
        let core = Core {
            store,
            volume: volume.to_owned(),
            volume_id: info.id,
            locks: Locks::new(options.locks),
            options,
            table: Table::default(),
            moves: Arc::default(),
            waiting: AtomicUsize::new(0),
            ahead,
            inodes: tokio::sync::Mutex::new(0..0),
            spare: AtomicU64::new(SPARE_FIRST),
            absent: Mutex::default(),
            changes: AtomicU64::new(0),
            handles: Mutex::default(),
            handle_next: AtomicU64::new(1),
        };
        let root = core.table.put(Inode::new(ROOT, b"", root, Content::default(), true));
        core.table.tell(&root);
        let files = Files(Arc::new(core));
        files.0.sweep().await?;
        let core = Arc::downgrade(&files.0);
        tokio::spawn(crate::publish::flusher(core));
        Ok(files)
    }

    /// What a name in a directory is. The caller is told of the inode, and says when it forgets it.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr> {
        let _still = self.0.moves.read().await;
        match self.0.look(parent, name).await {
            Ok(inode) => {
                self.0.table.tell(&inode);
                Ok(inode.attr())
            }
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.0.note_absent(parent, name);
                }
                Err(errno)
            }
        }
    }

    /// The caller forgets an inode that it was told of so many times.
    pub fn forget(&self, ino: u64, count: u64) {
        self.0.table.forget(ino, count);
    }

    /// What an inode is now, wherever it was changed.
    pub async fn getattr(&self, ino: u64) -> Result<Attr> {
        let inode = self.0.table.get(ino)?;
        let is_own = inode.is_dirty() && self.0.options.newer == Newer::Merge;
        if ino == ROOT || is_own || inode.is_unlinked() {
            return Ok(inode.attr());
        }
        let _still = self.0.moves.read().await;
        let names = inode.place.lock().unwrap().names();
        for (parent, name) in names {
            match self.0.look(parent, &name).await {
                Ok(found) if found.ino == ino => return Ok(found.attr()),
                // Somebody else took the name away, on another node; the file may have others.
                Ok(_) | Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        // Who has it open goes on.
        if inode.is_open() { Ok(inode.attr()) } else { Err(Errno::ESTALE) }
    }

    /// Opens a file. What others published before is seen from here on.
    pub async fn open_file(&self, ino: u64, is_fresh: bool) -> Result<Arc<Handle>> {
        let inode = self.0.table.get(ino)?;
        match inode.kind {
            Kind::Directory => return Err(Errno::EISDIR),
            Kind::File => {}
            _ => return Err(Errno::EINVAL),
        }
        if !is_fresh {
            self.refresh(ino).await?;
        }
        let version = inode.meta.lock().unwrap().version;
        let shown = std::mem::replace(&mut *inode.shown.lock().unwrap(), version);
        let is_unchanged = version.is_some() && version == shown;
        Ok(self.0.handle(&inode, is_unchanged))
    }

    /// The caller's caches of a file are not to be trusted any more.
    pub fn forget_pages(&self, ino: u64) {
        if let Ok(inode) = self.0.table.get(ino) {
            *inode.shown.lock().unwrap() = None;
        }
    }

    /// The handle of a number.
    pub fn handle(&self, id: u64) -> Result<Arc<Handle>> {
        self.0.handles.lock().unwrap().get(&id).cloned().ok_or(Errno::EBADF)
    }

    /// Ends a handle. What waits is published, unless the file has no name any more; then it is gone.
    pub async fn release(&self, id: u64) {
        let Some(handle) = self.0.handles.lock().unwrap().remove(&id) else { return };
        let inode = handle.inode.clone();
        if inode.is_awaited() {
            // Whoever wanted to know of a failure asked with a flush. As elsewhere, what cannot be kept is dropped.
            if let Err(errno) = self.0.flush(&inode).await {
                tracing::error!("what was written last to inode {} is lost: {errno:?}", inode.ino);
                self.0.give_up(&inode).await;
            }
        }
        handle.ahead.lock().unwrap().clear();
        let _still = self.0.moves.read().await;
        let mut content = self.0.still(&inode).await;
        if inode.opens.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        content.file = None;
        // Everybody who could want to know was told.
        inode.is_lost.store(false, Ordering::Relaxed);
        if inode.is_unlinked() {
            self.0.forget_bytes(&inode, &mut content);
        }
        let hidden = inode.place.lock().unwrap().hidden.take();
        if let Some(key) = hidden {
            let _ = self.0.delete(&key).await;
        }
        drop(content);
        self.0.table.tidy(inode.ino);
    }

    /// How much fits.
    pub async fn space(&self) -> Result<Space> {
        let info = patiently!(self.0, self.0.store.volume(&self.0.volume))?;
        let bytes = if info.policy.quota_bytes > 0 { info.policy.quota_bytes } else { 1 << 50 };
        Ok(Space { bytes, free: bytes.saturating_sub(info.bytes), files: info.files })
    }

    /// Publishes everything that waits. What cannot be published keeps nothing else from it.
    pub async fn sync(&self) -> Result<()> {
        let mut done = Ok(());
        for inode in self.0.table.dirty() {
            done = done.and(self.0.flush(&inode).await);
        }
        done
    }

    /// Inodes that are known and bytes that wait, for those who watch.
    pub fn load(&self) -> (usize, usize) {
        (self.0.table.len(), self.0.waiting.load(Ordering::Relaxed))
    }
}

impl Core {
    pub fn now_ns(&self) -> i64 {
        (self.options.now_ns)()
    }

    pub fn handle(&self, inode: &Arc<Inode>, is_unchanged: bool) -> Arc<Handle> {
        inode.opens.fetch_add(1, Ordering::Relaxed);
        let id = self.handle_next.fetch_add(1, Ordering::Relaxed);
        let handle = Arc::new(Handle { id, inode: inode.clone(), ahead: Mutex::default(), is_unchanged });
        self.handles.lock().unwrap().insert(id, handle.clone());
        handle
    }

    /// The moment before something is asked, another one each time. The answer says nothing of what is changed here after it, nor of what
    /// is asked after it.
    pub fn moment(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Something of an inode was published, or its name taken away, from here. Said before anybody can see it.
    pub fn note_change(&self, inode: &Inode) {
        let moment = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        inode.changed_at.fetch_max(moment, Ordering::AcqRel);
    }

    fn note_absent(&self, parent: u64, name: &[u8]) {
        let mut absent = self.absent.lock().unwrap();
        if absent.len() >= ABSENT_MAX {
            absent.clear();
        }
        absent.insert((parent, name.to_vec()), self.now_ns());
    }

    /// Whether a name was looked for just now, and not found. Said once.
    pub fn was_absent(&self, parent: u64, name: &[u8]) -> bool {
        let noted = self.absent.lock().unwrap().remove(&(parent, name.to_vec()));
        noted.is_some_and(|at_ns| self.now_ns() - at_ns < ABSENT_NS)
    }

    /// A number for a new file.
    pub async fn new_ino(&self) -> Result<u64> {
        let mut block = self.inodes.lock().await;
        if block.is_empty() {
            let first = patiently!(self, self.store.inodes(INODES))?;
            *block = first..first + u64::from(INODES);
        }
        block.next().ok_or(Errno::EIO)
    }

    /// The inode of a name, as the catalog has it now.
    pub async fn look(&self, parent: u64, name: &[u8]) -> Result<Arc<Inode>> {
        for _ in 0..LOOKS_MAX {
            if let Some(found) = self.look_once(parent, name).await? {
                return Ok(found);
            }
        }
        Err(Errno::ENOENT)
    }

    /// The same; none if the answer is of a file that was changed here meanwhile, and its name is not known: it was taken away, or
    /// is one of several that nobody looked for yet.
    async fn look_once(&self, parent: u64, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let directory = self.table.get(parent)?;
        if directory.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        check_name(parent, name)?;
        let known = self.table.child(parent, name);
        if let Some(known) = known.as_ref().filter(|known| known.is_dirty() && known.kind == Kind::File) {
            if self.options.newer == Newer::Drop && known.is_published() {
                self.check_current(known).await?;
            }
            if known.is_dirty() {
                return Ok(Some(known.clone()));
            }
        }
        let key = self.table.key_in(&directory, name)?;
        let moment = self.moment();
        let entry = patiently!(self, self.store.entry(&self.volume, &key))?;
        if let Some(found) = entry.directory {
            return Ok(Some(self.see_directory(parent, name, &found, moment)));
        }
        match entry.file {
            Some(info) => {
                let inode = self.see_file(parent, name, &info, moment).await?;
                Ok(inode.has_name(parent, name).then_some(inode))
            }
            None => {
                // One that waits, or is newer, was made meanwhile.
                if let Some(known) = self.table.child(parent, name) {
                    if !known.is_published() || known.is_newer(moment) {
                        return Ok(Some(known));
                    }
                    known.seen_at.fetch_max(moment, Ordering::AcqRel);
                    self.table.take(&known, parent, name);
                }
                Err(Errno::ENOENT)
            }
        }
    }

    /// Takes note of a directory, as it was at a moment.
    pub fn see_directory(&self, parent: u64, name: &[u8], found: &DirectoryInfo, moment: u64) -> Arc<Inode> {
        let known = self.table.child(parent, name);
        if let Some(known) = known.as_ref().filter(|known| known.is_newer(moment)) {
            return known.clone();
        }
        let known = known.filter(|known| known.kind == Kind::Directory);
        let marker = found.marker.as_deref();
        let ino = match (found.inode, &known) {
            // One that the catalog did not know keeps the number that it was given here: files hang in it.
            (_, Some(known)) if found.inode == 0 || is_implied(known.ino) => known.ino,
            (0, None) => marker.map_or_else(|| self.implied(parent, name), |marker| marker.inode),
            (ino, _) => ino,
        };
        if let Some(known) = known.as_ref().filter(|_| found.inode != 0) {
            known.number.store(found.inode, Ordering::Relaxed);
        }
        let owner = self.options.owner;
        let Some(marker) = marker else {
            return known.filter(|known| known.ino == ino).unwrap_or_else(|| {
                let meta = Meta::fresh(ino, Kind::Directory, None, owner, 0);
                self.table.put(Inode::new(parent, name, meta, Content::default(), true))
            });
        };
        let mut meta = Meta::of(marker, Kind::Directory, owner);
        meta.attr.ino = ino;
        if let Some(known) = self.table.get(ino).ok().filter(|known| known.kind == Kind::Directory) {
            if known.is_newer(moment) {
                return known;
            }
            let mut held = known.meta.lock().unwrap();
            known.seen_at.fetch_max(moment, Ordering::AcqRel);
            // Changes of entries are not written to the directory, but who made them here sees them, until somebody sets another time.
            if held.attributes.mtime_ns == meta.attributes.mtime_ns {
                meta.set_mtime(meta.attr.mtime_ns.max(held.attr.mtime_ns));
            }
            meta.keep_ctime(&held);
            *held = Meta { changes: held.changes, ..meta.clone() };
        }
        self.table.put(Inode::new(parent, name, meta, Content::default(), true))
    }

    /// The number of a directory that nobody made and that the catalog does not know: by its path, so that it is the same
    /// on every node and after a restart.
    fn implied(&self, parent: u64, name: &[u8]) -> u64 {
        let path = self.table.get(parent).and_then(|directory| self.table.path(&directory));
        let number = path.map(|path| self.number_of_path(&[&path, name, b"/"].concat()));
        let is_free =
            |number: &u64| self.table.get(*number).is_err() || self.table.is_at(*number, parent, name);
        number.ok().filter(is_free).unwrap_or_else(|| self.spare.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a directory has the number of its path, if it has one of those that are not in the catalog.
    pub fn is_in_place(&self, inode: &Inode) -> bool {
        !is_implied(inode.ino)
            || self.table.path(inode).is_ok_and(|path| self.number_of_path(&path) == inode.ino)
    }

    fn number_of_path(&self, path: &[u8]) -> u64 {
        let sum = crc64(&[&self.volume_id.0.to_be_bytes()[..], path].concat());
        IMPLIED_FIRST | sum & (IMPLIED_FIRST - 1)
    }

    /// Takes note of a file, as it was at a moment. One that was changed here since is what it is here.
    pub async fn see_file(
        &self,
        parent: u64,
        name: &[u8],
        info: &FileInfo,
        moment: u64,
    ) -> Result<Arc<Inode>> {
        let known = [self.table.child(parent, name), self.table.get(info.inode).ok()];
        if let Some(known) = known.into_iter().flatten().find(|known| known.is_newer(moment)) {
            return Ok(known);
        }
        let kind = info.attributes.mode.and_then(Kind::of_mode).filter(|kind| *kind != Kind::Directory);
        let mut meta = Meta::of(info, kind.unwrap_or(Kind::File), self.options.owner);
        let known = self.table.child(parent, name).filter(|known| known.kind == Kind::File);
        let inode = match known.filter(|known| known.is_dirty() || is_known_as(known, info)) {
            Some(known) => known,
            None => self.table.put(Inode::new(parent, name, meta.clone(), Content::of(info), true)),
        };
        if inode.is_dirty() {
            // If another made the name, this is published over it: who closes last is seen.
            return Ok(inode);
        }
        inode.number.store(info.inode, Ordering::Relaxed);
        meta.attr.ino = inode.ino;
        let same = {
            let mut held = inode.meta.lock().unwrap();
            if inode.is_newer(moment) {
                return Ok(inode.clone());
            }
            inode.seen_at.fetch_max(moment, Ordering::AcqRel);
            let same = held.version == Some(info.version);
            if same && !held.is_changed {
                meta.keep_ctime(&held);
                *held = Meta { changes: held.changes, ..meta.clone() };
            }
            same
        };
        if !same {
            let mut content = inode.content.lock().await;
            if !inode.is_dirty() && !inode.is_newer(moment) {
                content.replace(info, inode.is_open());
                let mut held = inode.meta.lock().unwrap();
                *held = Meta { changes: held.changes, ..meta };
            }
        }
        Ok(inode)
    }

    /// Deletes a key; false if it was not there.
    pub async fn delete(&self, key: &Key) -> Result<bool> {
        self.delete_if(key, Condition::default()).await
    }

    /// The same under a condition.
    pub async fn delete_if(&self, key: &Key, condition: Condition) -> Result<bool> {
        Ok(patiently!(self, async {
            let keys = vec![(key.clone(), condition.clone())];
            self.store.delete(&self.volume, keys).await?.pop().unwrap_or(Ok(false))
        })?)
    }

    /// The directory of our own keys, for this file system alone.
    pub fn own_key(&self, name: &str) -> Result<Key> {
        table::key([OWN, b"/unlinked/", self.options.place.as_bytes(), b"/", name.as_bytes()].concat())
    }

    /// Removes what a file system left here that ended without being asked.
    async fn sweep(&self) -> std::result::Result<(), StoreError> {
        let prefix = [OWN, b"/unlinked/", self.options.place.as_bytes(), b"/"].concat();
        loop {
            let request = ListRequest { prefix: prefix.clone(), limit: 1000, ..ListRequest::default() };
            let page = self.store.list(&self.volume, request).await?;
            let keys: Vec<_> = page
                .entries
                .iter()
                .filter_map(|entry| Some((entry.key()?.clone(), Condition::default())))
                .collect();
            if keys.is_empty() {
                return Ok(());
            }
            match self.store.delete(&self.volume, keys).await {
                // A volume that cannot be written to has nothing of ours.
                Err(fault) if fault.kind == ErrorKind::Denied => return Ok(()),
                deleted => deleted?.into_iter().collect::<std::result::Result<Vec<_>, _>>()?,
            };
        }
    }

    /// Something in a directory changed.
    pub fn touch(&self, directory: u64) {
        if let Ok(inode) = self.table.get(directory) {
            let (now_ns, mut meta) = (self.now_ns(), inode.meta.lock().unwrap());
            meta.set_mtime(now_ns);
            meta.attr.ctime_ns = now_ns;
        }
    }
}

/// Whether a number is that of a directory that the catalog did not know when it was found.
pub(crate) fn is_implied(ino: u64) -> bool {
    (SPARE_FIRST..IMPLIED_END).contains(&ino)
}

/// Whether something is what has its name, although it has another number: two made it at once, or it was in the lake only.
fn is_known_as(known: &Inode, info: &FileInfo) -> bool {
    known.number() == info.inode || known.meta.lock().unwrap().version == Some(info.version)
}

/// Refuses names that no file can have here.
pub(crate) fn check_name(parent: u64, name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    if parent == ROOT && name == OWN {
        return Err(Errno::ENOENT);
    }
    Ok(())
}

/// Pauses while a node is away or full.
pub(crate) struct Waiting {
    pause: Duration,
    waited: Duration,
    /// The same for conflicts; none before the first.
    conflicted: Option<(Duration, Duration)>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { pause: PAUSE, waited: Duration::ZERO, conflicted: None }
    }
}

impl Waiting {
    /// Waits a little if asking again may help.
    pub async fn after(
        &mut self,
        fault: StoreError,
        options: &Options,
    ) -> std::result::Result<(), StoreError> {
        let patience = match (fault.kind, fault.subject) {
            (ErrorKind::Unavailable | ErrorKind::Closed, _) => options.patience,
            (ErrorKind::Full, Subject::Key) => options.full_patience,
            _ => return Err(fault),
        };
        if self.waited >= patience {
            return Err(fault);
        }
        if self.waited.is_zero() {
            tracing::warn!("waiting: {fault}");
        }
        tokio::time::sleep(self.pause).await;
        self.waited += self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    /// Waits a little before what is there now is looked at, and the same is tried again. The first time that is of use at
    /// once: somebody else published. What goes on is a lake that others wrote to.
    pub async fn after_conflict(&mut self, fault: StoreError, options: &Options) -> Result<()> {
        let Some((pause, waited)) = self.conflicted else {
            self.conflicted = Some((PAUSE, Duration::ZERO));
            return Ok(());
        };
        if waited >= options.conflict_patience {
            tracing::error!("given up: {fault}");
            return Err(Errno::EIO);
        }
        tokio::time::sleep(pause).await;
        self.conflicted = Some(((pause * 2).min(PAUSE_MAX), waited + pause));
        Ok(())
    }
}
