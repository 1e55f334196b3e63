//! What the caller keeps in caches of its own, as a kernel does.
//!
//! A caller is told names and properties and believes them for a while. Others change them meanwhile, on another mount or at
//! another door, so whoever opens a file asks here first: [`Files::refresh`] brings what is known up to what is published, and
//! then [`Files::is_told`] and [`Files::is_doubtful`] say whether the caller still believes something else. What the caller
//! changed itself it knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Errno, Result};
use crate::files::{Core, Files, patiently};
use crate::inode::{Attr, Inode, Kind, ROOT};

/// Names of one file that are asked for at an open. One with more is always doubtful.
const NAMES_ASKED: usize = 4;

/// The properties that the caller was told.
#[derive(Default)]
pub(crate) struct Told {
    last: Option<Attr>,
    /// Different ones, and answers may overtake each other: nobody knows which the caller believes.
    is_mixed: bool,
}

impl Told {
    fn note(&mut self, attr: &Attr) {
        self.is_mixed |= self.last.is_some_and(|last| !is_same(&last, attr));
        self.last = Some(*attr);
    }

    /// Whether the caller believes nothing but this.
    fn is(&self, attr: &Attr) -> bool {
        self.last.is_none_or(|last| !self.is_mixed && is_same(&last, attr))
    }

    /// The caller changes these properties itself, and drops what it was told of them.
    pub fn change(&mut self, before: &Attr) {
        if self.is(before) {
            *self = Told::default();
        }
    }
}

/// The time of the last change of anything is the catalog's after a publish, and what is stored is an upper bound before it.
/// Nothing depends on them.
fn is_same(one: &Attr, other: &Attr) -> bool {
    Attr { ctime_ns: 0, allocated: 0, ..*one } == Attr { ctime_ns: 0, allocated: 0, ..*other }
}

impl Files {
    /// The caller is told these properties. Said before it hears them.
    pub fn note_told(&self, attr: &Attr) {
        if let Ok(inode) = self.0.table.get(attr.ino) {
            inode.told.lock().unwrap().note(attr);
        }
    }

    /// The caller does not believe what it was told of an inode any more.
    pub fn forget_told(&self, ino: u64) {
        if let Ok(inode) = self.0.table.get(ino) {
            *inode.told.lock().unwrap() = Told::default();
        }
    }

    /// Whether all that the caller believes of an inode's properties is so.
    pub fn is_told(&self, ino: u64) -> bool {
        self.0.table.get(ino).is_ok_and(|inode| {
            let meta = inode.meta.lock().unwrap();
            inode.told.lock().unwrap().is(&meta.attr)
        })
    }

    /// Whether somebody else took a name from this, or from a directory above it, that the caller may still believe after so
    /// much time.
    pub fn is_doubtful(&self, ino: u64, within: Duration) -> bool {
        let is_lost =
            |inode: &Inode| inode.name_lost_at.lock().unwrap().is_some_and(|at| at.elapsed() < within);
        let has_many = self.0.table.get(ino).is_ok_and(|inode| {
            inode.kind != Kind::Directory && inode.place.lock().unwrap().names().len() > NAMES_ASKED
        });
        has_many || self.0.table.any_above(ino, is_lost)
    }

    /// Finds out what an inode is now, for somebody who opens it by a name that was looked up before. ESTALE if it has none any
    /// more and is not open.
    pub async fn refresh(&self, ino: u64) -> Result<()> {
        let inode = self.0.table.get(ino)?;
        if ino == ROOT || inode.is_unlinked() {
            return Ok(());
        }
        if inode.kind == Kind::File && inode.is_dirty() {
            if inode.is_published() {
                return self.0.refresh_dirty(&inode).await;
            }
            return Ok(());
        }
        let _still = self.0.moves.read().await;
        let names = inode.place.lock().unwrap().names();
        let mut is_there = false;
        for (parent, name) in names.into_iter().take(NAMES_ASKED) {
            match self.0.look(parent, &name).await {
                Ok(found) => is_there |= found.ino == ino,
                Err(Errno::ENOENT) => {}
                // Its directory is gone.
                Err(Errno::ESTALE) => self.0.table.take(&inode, parent, &name),
                Err(errno) => return Err(errno),
            }
        }
        if is_there || inode.is_open() { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

impl Core {
    /// The same for one whose changes wait: they are laid over what others published since.
    async fn refresh_dirty(&self, inode: &Arc<Inode>) -> Result<()> {
        let _still = self.moves.read().await;
        let names = inode.place.lock().unwrap().names();
        let mut is_there = false;
        for (parent, name) in names.into_iter().take(NAMES_ASKED) {
            let Ok(key) = self.table.get(parent).and_then(|parent| self.table.key_in(&parent, &name)) else {
                self.table.take(inode, parent, &name);
                continue;
            };
            let moment = self.moment();
            let entry = patiently!(self, self.store.entry(&self.volume, &key))?;
            if inode.is_newer(moment) {
                return Ok(());
            }
            let info = entry.file.filter(|_| entry.directory.is_none());
            let Some(info) = info.filter(|info| !inode.is_another(info)) else {
                self.table.take(inode, parent, &name);
                continue;
            };
            is_there = true;
            let mut content = self.still(inode).await;
            let is_same = content.base.as_ref().is_some_and(|base| base.version == info.version);
            if inode.is_newer(moment) || !inode.is_dirty() || content.is_unsure || is_same {
                continue;
            }
            content.rebase(&info, inode.attr().mtime_ns);
            let mut meta = inode.meta.lock().unwrap();
            inode.seen_at.fetch_max(moment, Ordering::AcqRel);
            meta.version = Some(info.version);
            meta.attr.size = content.overlay.size();
        }
        if is_there || inode.is_open() { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

/// Somebody else took a name of an inode.
pub(crate) fn note_lost(inode: &Inode) {
    *inode.name_lost_at.lock().unwrap() = Some(Instant::now());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size: u64) -> Attr {
        let (kind, mode, nlink) = (Kind::File, 0o644, 1);
        Attr {
            ino: 5,
            kind,
            size,
            allocated: size,
            mode,
            uid: 0,
            gid: 0,
            nlink,
            mtime_ns: 7,
            ctime_ns: size as i64,
            atime_ns: 7,
            rdev: 0,
        }
    }

    #[test]
    fn what_the_caller_believes_is_known() {
        let mut told = Told::default();
        assert!(told.is(&attr(1)), "it was told nothing");
        told.note(&attr(1));
        told.note(&Attr { ctime_ns: 99, ..attr(1) });
        assert!(told.is(&attr(1)) && !told.is(&attr(2)));
        told.change(&attr(1));
        assert!(told.is(&attr(2)), "it made the change itself");
        told.note(&attr(2));
        told.note(&attr(3));
        assert!(!told.is(&attr(3)) && !told.is(&attr(2)), "either answer may have come last");
        told.change(&attr(3));
        assert!(!told.is(&attr(4)), "its own change ends nothing that it is wrong about");
    }
}
