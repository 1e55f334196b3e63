//! Inodes by numbers that were given out long ago, by whichever node: for callers that keep numbers and never say that
//! they forget them.

use crate::directory::{DirEntry, PAGE};
use crate::error::{Errno, Result};
use crate::files::{Files, is_implied, patiently};
use crate::inode::{Attr, Kind, ROOT};

impl Files {
    /// What is known of an inode, without asking anybody.
    pub fn peek(&self, ino: u64) -> Result<Attr> {
        Ok(self.0.table.get(ino)?.attr())
    }

    /// The directory that something hangs in; the root hangs in itself.
    pub fn parent(&self, ino: u64) -> Result<u64> {
        Ok(self.0.table.get(ino)?.place.lock().unwrap().parent)
    }

    /// A directory by its number; it may be known here by another one. The caller is told of it.
    pub async fn recall_directory(&self, ino: u64) -> Result<Attr> {
        if let Some(attr) = self.remember(ino) {
            let is_it = self.0.table.get(ino).is_ok_and(|inode| self.0.is_in_place(&inode));
            return if attr.kind == Kind::Directory && is_it { Ok(attr) } else { self.unsaid(ino) };
        }
        let path = match patiently!(self.0, self.0.store.directory(&self.0.volume, ino)) {
            Err(fault) if fault.kind == stoker_store::ErrorKind::NotFound => return Err(Errno::ESTALE),
            found => found?,
        };
        let (mut at, mut attr) = (ROOT, None);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let found = self.lookup(at, name).await;
            // What hangs below keeps the way to it.
            if attr.is_some() {
                self.forget(at, 1);
            }
            let found = found.map_err(gone)?;
            (at, attr) = (found.ino, Some(found));
        }
        match attr {
            // Known here by the number that it had before the catalog knew it.
            Some(attr) if at == ino || is_implied(at) => Ok(attr),
            Some(_) => self.unsaid(at),
            None => Err(Errno::ESTALE),
        }
    }

    /// Something that is no directory, by its number, where it hung and its name; of a long name the front is enough.
    /// The caller is told of it.
    pub async fn recall(&self, ino: u64, parent: u64, name: &[u8], is_whole: bool) -> Result<Attr> {
        let known = self.0.table.get(ino).ok().filter(|inode| {
            let names = inode.place.lock().unwrap().names();
            names.iter().any(|(at, known)| *at == parent && known.starts_with(name))
        });
        if known.is_some() {
            // Where it was: nothing has to be looked up.
            return self.remember(ino).ok_or(Errno::ESTALE);
        }
        match self.find(ino, parent, name, is_whole).await {
            // Renamed since, and still known.
            Err(Errno::ESTALE) => self.remember(ino).ok_or(Errno::ESTALE),
            found => found,
        }
    }

    async fn find(&self, ino: u64, parent: u64, name: &[u8], is_whole: bool) -> Result<Attr> {
        let parent = self.recall_directory(parent).await?.ino;
        let found = match is_whole {
            true => self.lookup(parent, name).await.map_err(gone),
            false => self.search(ino, parent, name).await,
        };
        self.forget(parent, 1);
        let found = found?;
        if found.ino == ino { Ok(found) } else { self.unsaid(found.ino) }
    }

    /// Entries of a directory behind the end of one, and whether more follow; none only at the end. The caller is told of each.
    pub async fn page(&self, ino: u64, after: Option<&[u8]>, limit: usize) -> Result<(Vec<DirEntry>, bool)> {
        let inode = self.0.table.get(ino)?;
        if inode.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let _still = self.0.moves.read().await;
        let (entries, more) = self.0.page(&inode, after.map(<[u8]>::to_vec), limit).await?;
        let entries = entries.into_iter().map(|(name, inode)| {
            self.0.table.tell(&inode);
            DirEntry { name, attr: inode.attr() }
        });
        Ok((entries.collect(), more))
    }

    /// One that is known and was not taken away.
    fn remember(&self, ino: u64) -> Option<Attr> {
        let inode = self.0.table.get(ino).ok().filter(|inode| !inode.is_unlinked())?;
        self.0.table.tell(&inode);
        Some(inode.attr())
    }

    fn unsaid(&self, ino: u64) -> Result<Attr> {
        self.forget(ino, 1);
        Err(Errno::ESTALE)
    }

    async fn search(&self, ino: u64, parent: u64, front: &[u8]) -> Result<Attr> {
        let mut after = front.to_vec();
        loop {
            let (entries, more) = self.page(parent, Some(&after), PAGE).await?;
            let mut found = None;
            for entry in &entries {
                match entry.attr.ino == ino {
                    true => found = Some(entry.attr),
                    false => self.forget(entry.attr.ino, 1),
                }
            }
            if let Some(attr) = found {
                return Ok(attr);
            }
            match entries.last().filter(|last| more && last.name.starts_with(front)) {
                Some(last) => after = last.end(),
                None => return Err(Errno::ESTALE),
            }
        }
    }
}

/// A name that is gone took the number with it.
fn gone(errno: Errno) -> Errno {
    if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { Errno::ESTALE } else { errno }
}
