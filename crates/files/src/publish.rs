//! What waits becomes a new version.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use stoker_store::{
    AttributesChange, EDIT_NOW_LEN_MAX, ErrorKind, FileInfo, Filler, Finish, Receipt, StoreError,
};
use tokio::time::Instant;

use crate::content::{Base, Content, Sent};
use crate::error::{Errno, Result};
use crate::extras;
use crate::files::{Core, Files, Handle, Waiting, patiently};
use crate::inode::{Inode, Kind, Meta, ROOT};
use crate::options::Newer;

/// How often changes that nobody asks for are looked for.
const ROUND: Duration = Duration::from_secs(1);

/// Changes that are not published this long after they should have been are late, and so is a publish that takes as long:
/// whoever wrote them may have gone on elsewhere.
pub(crate) const LATE: Duration = Duration::from_secs(30);

impl Files {
    /// Everything that was written to the file survives what the volume's class promises.
    pub async fn fsync(&self, handle: &Handle) -> Result<()> {
        self.0.flush(&handle.inode).await
    }

    /// The same for the names in a directory; in the root, for everything that waits.
    pub async fn fsync_directory(&self, ino: u64) -> Result<()> {
        if ino == ROOT {
            // What a `sync` of the whole file system would do: kernels do not say that one was asked for.
            return self.sync().await;
        }
        // Names are published at once, but for those of files that are.
        for inode in self.0.table.unpublished(ino) {
            self.0.flush(&inode).await?;
        }
        Ok(())
    }
}

/// Publishes changes that nobody asks for, until the file system is gone.
pub(crate) async fn flusher(core: Weak<Core>) {
    loop {
        tokio::time::sleep(ROUND).await;
        let Some(core) = core.upgrade() else { return };
        let old_ns = core.now_ns() - core.options.dirty_max.as_nanos() as i64;
        for inode in core.table.dirty() {
            // What is being renamed or written to right now will be there in the next round.
            let Ok(_still) = core.moves.try_read() else { continue };
            let Ok(mut content) = inode.content.try_lock() else { continue };
            if content.flight.as_ref().is_some_and(|flight| flight.task.is_finished()) {
                core.land(&inode, &mut content).await;
            }
            let is_old = content.dirty_since_ns.is_none_or(|since| since < old_ns);
            // A file that grows is on its way already, and would fall to pieces.
            let grows = content.stream.is_some() && !content.overlay.is_clean();
            if is_old && !grows && inode.is_awaited() {
                // Who has a file open whose name was taken hears of it when it asks.
                if !inode.is_taken() || !inode.is_open() {
                    let _ = core.publish(&inode, &mut content).await;
                }
            }
        }
    }
}

/// Whoever publishes holds the right to use names, so that the name stays until that is done, and the content of the file.
/// The right comes first: a rename waits for contents.
impl Core {
    /// Publishes a file if something waits.
    pub async fn flush(&self, inode: &Arc<Inode>) -> Result<()> {
        inode.check_lost()?;
        if !inode.is_awaited() || inode.kind == Kind::Directory {
            return Ok(());
        }
        let _still = self.moves.read().await;
        let mut content = inode.content.lock().await;
        // It may have been lost while another one had it.
        inode.check_lost()?;
        self.publish(inode, &mut content).await
    }

    /// The same for those who hold the content already.
    pub async fn publish(&self, inode: &Arc<Inode>, content: &mut Content) -> Result<()> {
        self.publish_as(inode, content, true).await
    }

    /// Makes room: the bytes are published, and the time of the file with those that come last.
    pub async fn publish_bytes(&self, inode: &Arc<Inode>, content: &mut Content) -> Result<()> {
        if content.overlay.is_clean() {
            return Ok(());
        }
        self.publish_as(inode, content, false).await
    }

    async fn publish_as(&self, inode: &Arc<Inode>, content: &mut Content, is_all: bool) -> Result<()> {
        let mut waiting = Waiting::default();
        self.land(inode, content).await;
        content.is_late |= self.is_overdue(content);
        while inode.is_dirty() {
            self.check_locks_of(inode, content).await?;
            if inode.is_taken() {
                return Err(self.lose(inode, content));
            }
            if inode.is_unlinked() && inode.place.lock().unwrap().hidden.is_none() {
                self.hide(inode)?;
            }
            let begun = Instant::now();
            let published = self.publish_once(inode, content, is_all).await;
            content.is_late |= published.is_err() && begun.elapsed() >= LATE;
            match published {
                Ok(()) => return Ok(()),
                Err(fault) if matches!(fault.kind, ErrorKind::Conflict | ErrorKind::NotFound) => {
                    content.stream = None;
                    waiting.after_conflict(fault, &self.options).await?;
                    self.rebase(inode, content).await?;
                }
                Err(fault) => {
                    content.stream = None;
                    content.is_late |= fault.is_unknown();
                    waiting.after(fault, &self.options).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether changes should have been published long ago; those of a file that grows are on their way.
    fn is_overdue(&self, content: &Content) -> bool {
        let late_ns = (self.options.dirty_max + LATE).as_nanos() as i64;
        let since = content.dirty_since_ns.filter(|_| content.stream.is_none());
        since.is_some_and(|since_ns| self.now_ns() - since_ns > late_ns)
    }

    /// A file without a name that needs room gets one that nobody sees.
    fn hide(&self, inode: &Inode) -> Result<()> {
        let key = self.own_key(&inode.ino.to_string())?;
        inode.place.lock().unwrap().hidden = Some(key);
        Ok(())
    }

    async fn publish_once(
        &self,
        inode: &Inode,
        content: &mut Content,
        is_all: bool,
    ) -> std::result::Result<(), StoreError> {
        if content.base.is_some() && content.overlay.is_clean() {
            content.stream = None;
            return self.publish_properties(inode).await;
        }
        let key = self.table.key(inode).map_err(stale)?;
        if content.stream.as_ref().is_some_and(|stream| stream.key != key) {
            // Renamed since its first bytes were sent: they are sent again, under the new name.
            content.stream = None;
        }
        let changes = inode.meta.lock().unwrap().changes;
        let is_stream = content.stream.is_some();
        let receipt = match is_stream {
            true => {
                self.push(content, true).await?;
                let Some(stream) = content.stream.take() else { return Ok(()) };
                let sent = Sent { mtime_ns: stream.mtime_ns, size: stream.sent };
                let finished = stream.finish(content.base.as_ref()).await;
                note_answer(content, sent, finished)?
            }
            false => self.publish_edit(inode, content).await?,
        };
        self.waiting.fetch_sub(content.overlay.bytes(), Ordering::Relaxed);
        content.overlay.settle();
        self.note_published(inode, content, receipt);
        let is_changed = {
            let mut meta = inode.meta.lock().unwrap();
            // Properties were sent with the first bytes of a stream; the time has changed since.
            meta.is_changed = is_stream || meta.changes != changes;
            if !meta.is_changed {
                inode.is_dirty.store(false, Ordering::Relaxed);
            }
            meta.is_changed
        };
        content.dirty_since_ns = None;
        if is_changed && !is_all {
            content.dirty_since_ns = Some(self.now_ns());
            return Ok(());
        }
        if is_changed { self.publish_properties(inode).await } else { Ok(()) }
    }

    /// The content lies over this version now.
    pub fn note_published(&self, inode: &Inode, content: &mut Content, receipt: Receipt) {
        self.note_change(inode);
        content.file = None;
        (content.is_unsure, content.is_late) = (false, false);
        content.unanswered.clear();
        content.base = Some(Base { version: receipt.version, etag: receipt.etag });
        inode.is_published.store(true, Ordering::Relaxed);
        let mut meta = inode.meta.lock().unwrap();
        let mut shown = inode.shown.lock().unwrap();
        if *shown == meta.version {
            // Who wrote the bytes has them.
            *shown = Some(receipt.version);
        }
        meta.version = Some(receipt.version);
        meta.modified_ms = None;
        meta.stored = meta.attr.allocated;
    }

    async fn publish_edit(
        &self,
        inode: &Inode,
        content: &mut Content,
    ) -> std::result::Result<Receipt, StoreError> {
        let (key, request) = self.edit_request(inode, content, content.overlay.pieces())?;
        let sent = Sent { mtime_ns: request.attributes.mtime_ns, size: content.overlay.size() };
        if content.overlay.bytes() <= EDIT_NOW_LEN_MAX {
            let mut bytes = BytesMut::with_capacity(content.overlay.bytes());
            content.overlay.fresh().for_each(|fresh| bytes.extend_from_slice(fresh));
            let edited = self.store.edit_now(&self.volume, &key, request, bytes.freeze()).await;
            return note_answer(content, sent, edited);
        }
        let mut filler = Filler::new(self.store.edit(&self.volume, &key, request).await?);
        for fresh in content.overlay.fresh() {
            filler.put(fresh).await?;
        }
        let finished = filler.finish(Finish::default()).await;
        note_answer(content, sent, finished)
    }

    async fn publish_properties(&self, inode: &Inode) -> std::result::Result<(), StoreError> {
        let key = self.table.key(inode).map_err(stale)?;
        loop {
            let (changes, change) = {
                let meta = inode.meta.lock().unwrap();
                (meta.changes, properties(&meta))
            };
            let info = self.store.set_attributes(&self.volume, &key, change).await?;
            if inode.is_another(&info) && !inode.is_unlinked() {
                return Err(StoreError::new(ErrorKind::Conflict, "the file was replaced"));
            }
            self.note_change(inode);
            let mut meta = inode.meta.lock().unwrap();
            if meta.changes == changes {
                meta.attributes = info.attributes;
                meta.is_changed = false;
                inode.is_dirty.store(false, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Somebody else published, or an answer of ours was lost: the changes are laid over what is there, unless they have to
    /// stand back. If the file is gone they are gone with it.
    async fn rebase(&self, inode: &Arc<Inode>, content: &mut Content) -> Result<()> {
        let key = self.table.key(inode)?;
        let found = patiently!(self, self.store.stat(&self.volume, &key));
        let info = match found {
            Ok(info) => info,
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                let is_ours = !inode.is_published() || inode.is_unlinked();
                if !is_ours {
                    // A file with several names goes on under another one.
                    let goes_on = self.table.take_used(inode);
                    return if goes_on { Ok(()) } else { Err(self.lose(inode, content)) };
                }
                if !inode.is_unlinked() && !self.has_directory(inode).await? {
                    self.table.take_used(inode);
                    return Err(self.lose(inode, content));
                }
                content.base = None;
                content.file = None;
                return Ok(());
            }
            Err(fault) => return Err(fault.into()),
        };
        if inode.is_published() && !inode.is_unlinked() && inode.is_another(&info) {
            let goes_on = self.table.take_used(inode);
            return if goes_on { Ok(()) } else { Err(self.lose(inode, content)) };
        }
        if self.is_outdated(inode, content, &info) {
            return Err(self.stand_back(inode, content, &info));
        }
        content.rebase(&info, inode.attr().mtime_ns);
        inode.number.store(info.inode, Ordering::Relaxed);
        inode.is_published.store(true, Ordering::Relaxed);
        let mut meta = inode.meta.lock().unwrap();
        meta.version = Some(info.version);
        meta.stored = info.allocated_bytes();
        meta.resize(content.overlay.size(), content.overlay.bytes());
        Ok(())
    }

    /// Whether the directory of a file is still there.
    async fn has_directory(&self, inode: &Inode) -> Result<bool> {
        let parent = inode.place.lock().unwrap().parent;
        if parent == ROOT {
            return Ok(true);
        }
        let path = self.table.path(&*self.table.get(parent)?)?;
        let key = crate::table::key(path.strip_suffix(b"/").unwrap_or(&path).to_vec())?;
        let entry = patiently!(self, self.store.entry(&self.volume, &key))?;
        Ok(entry.directory.is_some())
    }

    /// Somebody else took the name of a file that was written to: the bytes have no place, and whoever wrote them is told.
    fn lose(&self, inode: &Inode, content: &mut Content) -> Errno {
        tracing::warn!("inode {} lost its name elsewhere, and with it what was written here", inode.ino);
        self.lose_bytes(inode, content)
    }

    pub fn lose_bytes(&self, inode: &Inode, content: &mut Content) -> Errno {
        self.options.losses.fetch_add(1, Ordering::AcqRel);
        self.forget_bytes(inode, content);
        // Who reads the count of losses needs no other word.
        let is_told = self.options.newer == Newer::Drop;
        inode.is_lost.store(inode.is_open() && !is_told, Ordering::Relaxed);
        inode.is_dirty.store(false, Ordering::Release);
        Errno::ESTALE
    }

    /// Whether changes must not be laid over a version that somebody else published.
    pub fn is_outdated(&self, inode: &Inode, content: &Content, info: &FileInfo) -> bool {
        // What has no name is under a key of ours.
        if inode.is_unlinked() || content.overlay.is_clean() {
            return false;
        }
        let is_base = content.base.as_ref().is_some_and(|base| base.version == info.version);
        let is_old = content.is_late || self.options.newer == Newer::Drop;
        is_old && !is_base && !content.is_own(info, inode.attr().mtime_ns)
    }

    /// Drops changes: what somebody else published meanwhile stays as it is.
    pub fn stand_back(&self, inode: &Inode, content: &mut Content, info: &FileInfo) -> Errno {
        tracing::warn!(
            "inode {} was changed elsewhere while {} bytes waited here: they are dropped, and their writer is told",
            inode.ino,
            content.overlay.bytes()
        );
        if self.options.newer == Newer::Merge {
            return self.lose_bytes(inode, content);
        }
        self.options.losses.fetch_add(1, Ordering::AcqRel);
        self.waiting.fetch_sub(content.overlay.bytes(), Ordering::Relaxed);
        *content = Content::of(info);
        self.note_change(inode);
        inode.number.store(info.inode, Ordering::Relaxed);
        inode.is_published.store(true, Ordering::Relaxed);
        let mut held = inode.meta.lock().unwrap();
        let mut meta = Meta::of(info, inode.kind, self.options.owner);
        (meta.attr.ino, meta.changes) = (inode.ino, held.changes);
        if held.is_changed {
            // Mode and owner that were set here are no bytes: nobody would set them again.
            (meta.attr.mode, meta.attr.uid, meta.attr.gid) = (held.attr.mode, held.attr.uid, held.attr.gid);
            meta.set_mtime(meta.attr.mtime_ns.max(held.attr.mtime_ns));
            meta.is_changed = true;
            content.dirty_since_ns = Some(self.now_ns());
        }
        inode.is_dirty.store(meta.is_changed, Ordering::Release);
        *held = meta;
        Errno::EAGAIN
    }

    /// Drops changes of a file whose bytes somebody else published meanwhile, before they are shown or added to.
    pub async fn check_current(&self, inode: &Arc<Inode>) -> Result<()> {
        // Before it is asked: what is published here after this is newer than the answer.
        let moment = self.moment();
        let key = self.table.key(inode)?;
        let found = patiently!(self, self.store.stat(&self.volume, &key));
        let info = match found {
            Ok(info) => info,
            // Whoever publishes hears of it.
            Err(fault) if fault.kind == ErrorKind::NotFound => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        let mut content = self.still(inode).await;
        let is_same = inode.is_dirty() && !inode.is_newer(moment) && !inode.is_another(&info);
        if is_same && self.is_outdated(inode, &content, &info) {
            self.stand_back(inode, &mut content, &info);
        }
        Ok(())
    }

    /// Drops what cannot be published; the file is again what the catalog says.
    pub async fn give_up(&self, inode: &Arc<Inode>) {
        let mut content = self.still(inode).await;
        self.options.losses.fetch_add(1, Ordering::AcqRel);
        self.forget_bytes(inode, &mut content);
        inode.is_dirty.store(false, Ordering::Release);
        if !inode.is_published() {
            self.table.unlink_all(inode);
        }
    }

    /// Nobody will ask for what waits.
    pub fn forget_bytes(&self, inode: &Inode, content: &mut Content) {
        self.waiting.fetch_sub(content.overlay.bytes(), Ordering::Relaxed);
        *content = Content::default();
        // Whoever sees the file again begins with what is published.
        inode.meta.lock().unwrap().version = None;
    }
}

/// Takes note of a publish that may have happened although its answer is an error.
fn note_answer(
    content: &mut Content,
    sent: Sent,
    answer: std::result::Result<Receipt, StoreError>,
) -> std::result::Result<Receipt, StoreError> {
    if answer.as_ref().is_err_and(StoreError::is_unknown) {
        content.note_unanswered(sent);
    }
    answer
}

/// All properties, as a change.
fn properties(meta: &Meta) -> AttributesChange {
    let xattrs = meta.attributes.xattrs.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
    // It may have been forgotten since the rest was sent.
    let xattrs = xattrs.chain([extras::accessed_change(&meta.attributes)]);
    AttributesChange {
        mode: Some(meta.attr.mode | meta.attr.kind.bits()),
        owner: Some((meta.attr.uid, meta.attr.gid)),
        mtime_ns: Some(meta.attr.mtime_ns),
        xattrs: xattrs.collect(),
        tags: None,
    }
}

/// A file that has no key any more.
pub(crate) fn stale(errno: Errno) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("{errno:?}"))
}
