//! Making, moving and removing names.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stoker_store::{
    Attributes, Condition, CopyRequest, EditRequest, ErrorKind, FileInfo, Key, ListRequest, RenameMode,
    StoreError,
};

use crate::acl;
use crate::content::{Base, Content};
use crate::error::{Errno, Result};
use crate::extras;
use crate::files::{Core, Files, Handle, OWN, Waiting, check_name, patiently};
use crate::inode::{Attr, Inode, Kind, Meta, ROOT};
use crate::overlay::Overlay;

/// Longest target of a symbolic link.
const TARGET_LEN_MAX: usize = 4095;

/// Something to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Make {
    /// Permissions.
    pub mode: u32,
    /// Permissions that it does not get, unless the directory has a list that says what it gets.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory says which one.
    pub gid: u32,
    /// Number of a device, as the kernel has it.
    pub rdev: u32,
}

/// The bit of a directory that says: what is made in it belongs to its group.
const SET_GROUP: u32 = 0o2000;

impl Make {
    /// The same in a directory.
    fn within(self, directory: &Inode, kind: Kind) -> Make {
        let directory = directory.attr();
        if directory.mode & SET_GROUP == 0 {
            return self;
        }
        let inherited = if kind == Kind::Directory { SET_GROUP } else { 0 };
        Make { mode: self.mode | inherited, gid: directory.gid, ..self }
    }

    /// What is known of it as it is made in a directory.
    fn meta(self, ino: u64, kind: Kind, directory: &Inode, now_ns: i64) -> Meta {
        let make = self.within(directory, kind);
        let mut attributes = Attributes::default();
        let mode = match kind {
            Kind::Symlink => make.mode,
            _ => acl::inherit(
                &directory.meta.lock().unwrap().attributes,
                kind,
                (make.mode, make.umask),
                &mut attributes,
            ),
        };
        let mut meta = Meta::fresh(ino, kind, Some(mode), (make.uid, make.gid), now_ns);
        meta.attributes = attributes;
        meta
    }
}

/// What making a file does when its name is taken, here or by somebody whose file is not seen yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Create {
    /// Fails: the name is taken on every node at once.
    Exclusive,
    /// It is emptied.
    Empty,
    /// It is opened as it is.
    Join,
}

/// What a rename does when the new name is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameFlag {
    /// Replaces a file, or an empty directory.
    Replace,
    /// Fails.
    NoReplace,
    /// Has the old one from then on.
    Exchange,
}

impl Files {
    /// Makes a file and opens it. With `exclusive` the name is taken on every node at once; otherwise it is published
    /// with the bytes. The caller is told of the inode.
    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        make: Make,
        exclusive: bool,
    ) -> Result<(Attr, Arc<Handle>)> {
        let how = if exclusive { Create::Exclusive } else { Create::Empty };
        self.create_as(parent, name, make, how).await
    }

    /// The same, and what becomes of a file that somebody else makes at the same time.
    pub async fn create_as(
        &self,
        parent: u64,
        name: &[u8],
        make: Make,
        how: Create,
    ) -> Result<(Attr, Arc<Handle>)> {
        let exclusive = how == Create::Exclusive;
        let _still = self.0.moves.read().await;
        // Who takes the name meanwhile is noticed when the file is published.
        let found = match self.0.was_absent(parent, name) && self.0.table.child(parent, name).is_none() {
            true => Err(Errno::ENOENT),
            false => self.0.look(parent, name).await,
        };
        match found {
            Ok(_) if exclusive => return Err(Errno::EEXIST),
            Ok(known) if known.kind == Kind::Directory => return Err(Errno::EISDIR),
            Ok(known) => {
                self.0.table.tell(&known);
                return Ok((known.attr(), self.0.handle(&known, false)));
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        check_new(parent, name)?;
        let directory = self.0.table.get(parent)?;
        let key = self.0.table.key_in(&directory, name)?;
        let ino = self.0.new_ino().await?;
        let mut meta = make.meta(ino, Kind::File, &directory, self.0.now_ns());
        let overlay = match how {
            Create::Empty => Overlay::emptied(),
            Create::Exclusive | Create::Join => Overlay::new(0),
        };
        let mut content = Content { overlay, ..Content::default() };
        if exclusive {
            let base = self.0.make(&key, &meta, b"").await?;
            meta.version = Some(base.version);
            content.base = Some(base);
        }
        let inode = Inode::new(parent, name, meta, content, exclusive);
        self.0.note_change(&inode);
        let inode = self.0.table.put(inode);
        self.0.table.tell(&inode);
        self.0.touch(parent);
        Ok((inode.attr(), self.0.handle(&inode, false)))
    }

    /// Makes a directory, a symbolic link (with its target), a pipe, a socket, a device or an empty file.
    pub async fn make(
        &self,
        parent: u64,
        name: &[u8],
        kind: Kind,
        make: Make,
        target: &[u8],
    ) -> Result<Attr> {
        let _still = self.0.moves.read().await;
        match self.0.look(parent, name).await {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        check_new(parent, name)?;
        if target.len() > TARGET_LEN_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let directory = self.0.table.get(parent)?;
        let name_key = match kind {
            Kind::Directory => [name, b"/"].concat(),
            _ => name.to_vec(),
        };
        let key = self.0.table.key_in(&directory, &name_key)?;
        let ino = self.0.new_ino().await?;
        let mut meta = make.meta(ino, kind, &directory, self.0.now_ns());
        if kind.is_device() {
            meta.attr.rdev = make.rdev;
            extras::set_device(&mut meta.attributes, make.rdev);
        }
        let base = self.0.make(&key, &meta, target).await?;
        let mut content = Content::default();
        if kind == Kind::Directory {
            meta.attributes = meta.properties();
            // Its number is the catalog's, which stays the same wherever it is asked for.
            meta.attr.ino = self.0.directory_ino(&directory, name).await?.unwrap_or(ino);
        } else {
            meta.resize(target.len() as u64, target.len());
            meta.version = Some(base.version);
            content.overlay = Overlay::new(meta.attr.size);
            content.base = Some(base);
        }
        let inode = Inode::new(parent, name, meta, content, true);
        self.0.note_change(&inode);
        let inode = self.0.table.put(inode);
        self.0.table.tell(&inode);
        self.0.touch(parent);
        Ok(inode.attr())
    }

    /// Takes the name of a file away. Whoever has it open goes on with it.
    pub async fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        let _still = self.0.moves.read().await;
        let inode = self.0.look(parent, name).await?;
        if inode.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let mut content = self.0.still(&inode).await;
        let key = self.0.table.key_in(&*self.0.table.get(parent)?, name)?;
        if content.is_unsure && !inode.is_published() {
            self.0.find_out(&inode, &key).await?;
        }
        if inode.is_published() {
            self.0.count_names(&inode, &key).await?;
            if inode.is_open() && !self.0.is_kept(&inode) {
                // What others have of it here is seen under names that are not known here, if there are any.
                let hidden = self.0.own_key(&inode.ino.to_string())?;
                self.0.move_key(&key, &hidden, RenameMode::Replace, inode.number()).await?;
                inode.place.lock().unwrap().hidden = Some(hidden);
            } else {
                if inode.is_dirty() && inode.attr().nlink > 1 {
                    self.0.publish(&inode, &mut content).await?;
                }
                if !self.0.delete(&key).await? {
                    self.0.table.unlink(&inode, parent, name);
                    return Err(Errno::ENOENT);
                }
            }
        }
        self.0.note_change(&inode);
        self.0.table.unlink(&inode, parent, name);
        inode.lose_name(self.0.now_ns());
        // Only now: whoever writes to it publishes nothing under the name any more.
        drop(content);
        self.0.touch(parent);
        Ok(())
    }

    /// Gives a file one more name. The caller is told of the inode.
    pub async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        let _still = self.0.moves.read().await;
        let inode = self.0.table.get(ino)?;
        if inode.kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        inode.check_kept()?;
        if inode.place.lock().unwrap().is_unlinked {
            return Err(Errno::ENOENT);
        }
        match self.0.look(parent, name).await {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        check_new(parent, name)?;
        let to = self.0.table.key_in(&*self.0.table.get(parent)?, name)?;
        if !inode.is_published() {
            let mut content = inode.content.lock().await;
            self.0.publish(&inode, &mut content).await?;
        }
        let info = loop {
            let from = self.0.table.key(&inode)?;
            match self.0.link_key(&from, &to, inode.number()).await {
                Ok(info) if !inode.is_another(&info) => break info,
                Ok(_) => {
                    // Somebody else's file took the name that was used for this one.
                    self.0.delete(&to).await?;
                }
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
            if !self.0.table.take_used(&inode) {
                return Err(Errno::ESTALE);
            }
        };
        self.0.note_change(&inode);
        inode.number.store(info.inode, Ordering::Relaxed);
        {
            let mut meta = inode.meta.lock().unwrap();
            meta.attr.nlink = info.links.max(1);
            meta.attr.ctime_ns = self.0.now_ns();
        }
        self.0.table.link(&inode, parent, name);
        self.0.table.tell(&inode);
        self.0.touch(parent);
        Ok(inode.attr())
    }

    /// Removes a directory that is empty.
    pub async fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        let _still = self.0.moves.read().await;
        let inode = self.0.look(parent, name).await?;
        if inode.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.0.remove_empty(&inode).await?;
        self.0.note_change(&inode);
        self.0.table.unlink(&inode, parent, name);
        inode.meta.lock().unwrap().attr.nlink = 0;
        self.0.touch(parent);
        Ok(())
    }

    /// Moves a name, in one transaction.
    pub async fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flag: RenameFlag,
    ) -> Result<()> {
        let _alone = self.0.moves.write().await;
        if flag == RenameFlag::Exchange {
            return self.0.exchange(parent, name, new_parent, new_name).await;
        }
        let source = self.0.look(parent, name).await?;
        let target = match self.0.look(new_parent, new_name).await {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        check_new(new_parent, new_name)?;
        if source.kind == Kind::Directory && self.0.table.is_below(new_parent, source.ino) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target {
            if target.ino == source.ino {
                return Ok(());
            }
            if flag == RenameFlag::NoReplace {
                return Err(Errno::EEXIST);
            }
            match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) => self.0.remove_empty(target).await?,
                (false, false) => {}
            }
        }
        let mode = match flag {
            RenameFlag::Replace => RenameMode::Replace,
            RenameFlag::NoReplace | RenameFlag::Exchange => RenameMode::NoReplace,
        };
        if !source.is_published() {
            let mut content = source.content.lock().await;
            self.0.publish(&source, &mut content).await?;
        }
        let directory = self.0.table.get(new_parent)?;
        let slash: &[u8] = if source.kind == Kind::Directory { b"/" } else { b"" };
        let old_directory = self.0.table.get(parent)?;
        let from = self.0.table.key_in(&old_directory, &[name, slash].concat())?;
        let to = self.0.table.key_in(&directory, &[new_name, slash].concat())?;
        if let Some(target) = &target {
            self.0.keep_open(target, &to).await?;
        }
        if let Err(errno) = self.0.move_key(&from, &to, mode, source.number()).await {
            if let Some(target) = &target {
                self.0.keep_name(target).await;
            }
            return Err(errno);
        }
        if let Some(target) = &target {
            self.0.table.unlink(target, new_parent, new_name);
            match target.kind {
                Kind::Directory => target.meta.lock().unwrap().attr.nlink = 0,
                _ => target.lose_name(self.0.now_ns()),
            }
        }
        self.0.table.rename(&source, (parent, name), (new_parent, new_name));
        source.meta.lock().unwrap().attr.ctime_ns = self.0.now_ns();
        self.0.touch(parent);
        self.0.touch(new_parent);
        Ok(())
    }
}

/// Refuses names that are ours.
fn check_new(parent: u64, name: &[u8]) -> Result<()> {
    if parent == ROOT && name == OWN {
        return Err(Errno::EPERM);
    }
    check_name(parent, name)
}

impl Core {
    /// Publishes something small under a name that must not be there.
    async fn make(&self, key: &Key, meta: &Meta, bytes: &[u8]) -> Result<Base> {
        let ino = meta.attr.ino;
        let mut waiting = Waiting::default();
        let mut is_lost = false;
        loop {
            match self.make_once(key, meta, bytes).await {
                Ok(base) => return Ok(base),
                Err(fault) if fault.kind == ErrorKind::Conflict && is_lost => {
                    // It may be ours, of which we did not hear.
                    let info = patiently!(self, self.store.stat(&self.volume, key))?;
                    return match info.inode == ino {
                        true => Ok(Base { version: info.version, etag: info.etag }),
                        false => Err(Errno::EEXIST),
                    };
                }
                Err(fault) => {
                    is_lost |= matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed);
                    waiting.after(fault, &self.options).await?;
                }
            }
        }
    }

    async fn make_once(&self, key: &Key, meta: &Meta, bytes: &[u8]) -> std::result::Result<Base, StoreError> {
        let pieces = match bytes.len() as u64 {
            0 => Vec::new(),
            len => vec![stoker_store::Piece::Take(len)],
        };
        let request = EditRequest {
            attributes: meta.properties(),
            condition: Condition::absent_within(),
            base: None,
            pieces,
            inode: Some(meta.attr.ino),
        };
        let bytes = Bytes::copy_from_slice(bytes);
        let receipt = self.store.edit_now(&self.volume, key, request, bytes).await?;
        Ok(Base { version: receipt.version, etag: receipt.etag })
    }

    /// The catalog's number of a directory; none if it is not there or not known to the catalog.
    async fn directory_ino(&self, parent: &Inode, name: &[u8]) -> Result<Option<u64>> {
        let key = self.table.key_in(parent, name)?;
        let entry = patiently!(self, self.store.entry(&self.volume, &key))?;
        Ok(entry.directory.map(|directory| directory.inode).filter(|inode| *inode != 0))
    }

    /// Whether the file or directory of a number is at a key.
    async fn is_at(&self, key: &Key, ino: u64) -> Result<bool> {
        let path = key.as_bytes();
        let Some(path) = path.strip_suffix(b"/") else {
            let found = patiently!(self, self.store.stat(&self.volume, key));
            return Ok(found.is_ok_and(|info| info.inode == ino));
        };
        let path = crate::table::key(path.to_vec())?;
        let entry = patiently!(self, self.store.entry(&self.volume, &path))?;
        // One that the catalog does not know has no number to be told by; then what is gone there is here.
        Ok(entry.directory.is_some_and(|directory| directory.inode == 0 || directory.inode == ino))
    }

    /// Renames a key. An answer that was lost is found out by the number of what is there.
    async fn move_key(&self, from: &Key, to: &Key, mode: RenameMode, ino: u64) -> Result<()> {
        let mut waiting = Waiting::default();
        let mut is_lost = false;
        loop {
            let fault = match self.store.rename(&self.volume, from, to, mode).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let is_gone = matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Conflict);
            if is_lost && is_gone && self.is_at(to, ino).await? {
                return Ok(());
            }
            is_lost |= matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed);
            if fault.kind == ErrorKind::Conflict {
                return Err(Errno::EEXIST);
            }
            waiting.after(fault, &self.options).await?;
        }
    }

    /// Two names swap what they are. The caller has the names for itself.
    async fn exchange(&self, parent: u64, name: &[u8], new_parent: u64, new_name: &[u8]) -> Result<()> {
        check_new(parent, name)?;
        check_new(new_parent, new_name)?;
        let first = self.look(parent, name).await?;
        let second = self.look(new_parent, new_name).await?;
        if first.ino == second.ino {
            return Ok(());
        }
        for (inode, other) in [(&first, new_parent), (&second, parent)] {
            if inode.kind == Kind::Directory && self.table.is_below(other, inode.ino) {
                return Err(Errno::EINVAL);
            }
        }
        for inode in [&first, &second] {
            if !inode.is_published() {
                let mut content = inode.content.lock().await;
                self.publish(inode, &mut content).await?;
            }
        }
        let key = |inode: &Inode, parent: u64, name: &[u8]| {
            let slash: &[u8] = if inode.kind == Kind::Directory { b"/" } else { b"" };
            self.table.key_in(&*self.table.get(parent)?, &[name, slash].concat())
        };
        let (from, to) = (key(&first, parent, name)?, key(&second, new_parent, new_name)?);
        // An object that only the lake knows gets another number when it is changed.
        let number = Some(first.number()).filter(|number| *number < crate::files::SPARE_FIRST);
        let moved = match (first.kind == Kind::Directory, second.kind == Kind::Directory) {
            (true, false) => [to.as_bytes(), b"/"].concat(),
            (false, true) => to.as_bytes().strip_suffix(b"/").unwrap_or(to.as_bytes()).to_vec(),
            _ => to.as_bytes().to_vec(),
        };
        let moved = crate::table::key(moved)?;
        self.swap_keys(&from, &to, &moved, number).await?;
        self.table.exchange((&first, parent, name), (&second, new_parent, new_name));
        for inode in [&first, &second] {
            inode.meta.lock().unwrap().attr.ctime_ns = self.now_ns();
        }
        self.touch(parent);
        self.touch(new_parent);
        Ok(())
    }

    /// Swaps two keys. If an answer was lost, what had this number before is at `moved`, or nothing was done.
    async fn swap_keys(&self, from: &Key, to: &Key, moved: &Key, number: Option<u64>) -> Result<()> {
        let mut waiting = Waiting::default();
        let mut is_lost = false;
        loop {
            let mode = RenameMode::Exchange { inode: number };
            let fault = match self.store.rename(&self.volume, from, to, mode).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let is_elsewhere = matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Conflict);
            if let (true, true, Some(number)) = (is_lost, is_elsewhere, number)
                && self.is_at(moved, number).await?
            {
                return Ok(());
            }
            is_lost |= matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed);
            if is_lost && number.is_none() {
                // Asked again, it might be undone: whoever asked has to look.
                return Err(fault.into());
            }
            waiting.after(fault, &self.options).await?;
        }
    }

    /// Removes a directory's own key if nothing else is in it.
    async fn remove_empty(&self, inode: &Arc<Inode>) -> Result<()> {
        let key = self.table.key(inode)?;
        if !self.table.unpublished(inode.ino).is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let page = patiently!(self, async {
            let request = ListRequest { prefix: key.as_bytes().to_vec(), limit: 2, ..ListRequest::default() };
            self.store.list(&self.volume, request).await
        })?;
        if page.entries.iter().any(|entry| entry.name() != key.as_bytes()) {
            return Err(Errno::ENOTEMPTY);
        }
        // Whoever makes something in it meanwhile, elsewhere, was faster.
        match self.delete_if(&key, Condition::empty_directory()).await {
            Err(Errno::EEXIST | Errno::EBUSY) => Err(Errno::ENOTEMPTY),
            deleted => deleted.map(drop),
        }
    }

    /// A file that is about to be replaced while it is open keeps its bytes under a key that nobody sees.
    async fn keep_open(&self, target: &Arc<Inode>, key: &Key) -> Result<()> {
        if target.kind != Kind::File || !target.is_open() {
            return Ok(());
        }
        let content = self.still(target).await;
        if content.is_unsure && !target.is_published() {
            self.find_out(target, key).await?;
        }
        if !target.is_published() {
            return Ok(());
        }
        self.count_names(target, key).await?;
        if self.is_kept(target) {
            return Ok(());
        }
        let hidden = self.own_key(&target.ino.to_string())?;
        match self.link_key(key, &hidden, target.number()).await {
            // A node of an older release knows no links; there a file has one name.
            Err(Errno::EINVAL) => {
                patiently!(self, async {
                    let request = CopyRequest {
                        from_volume: self.volume.clone(),
                        from: key.clone(),
                        from_condition: Condition::default(),
                        to_volume: self.volume.clone(),
                        to: hidden.clone(),
                        condition: Condition::default(),
                        attributes: None,
                    };
                    self.store.copy(request).await
                })?;
            }
            linked => drop(linked?),
        }
        target.place.lock().unwrap().hidden = Some(hidden);
        Ok(())
    }

    /// Asks whether a version was published of which nobody heard.
    async fn find_out(&self, inode: &Inode, key: &Key) -> Result<()> {
        match patiently!(self, self.store.stat(&self.volume, key)) {
            Ok(info) => inode.is_published.store(!inode.is_another(&info), Ordering::Relaxed),
            Err(fault) if fault.kind == ErrorKind::NotFound => {}
            Err(fault) => return Err(fault.into()),
        }
        Ok(())
    }

    /// Whether a file that is open goes on without one of its names: it has another one here, or a key of ours.
    fn is_kept(&self, inode: &Inode) -> bool {
        let place = inode.place.lock().unwrap();
        place.hidden.is_some() || !place.others.is_empty()
    }

    /// Finds out how many names a file has whose bytes wait: nobody has asked lately.
    async fn count_names(&self, inode: &Inode, key: &Key) -> Result<()> {
        if inode.is_dirty() {
            let info = patiently!(self, self.store.stat(&self.volume, key))?;
            inode.meta.lock().unwrap().attr.nlink = info.links.max(1);
        }
        Ok(())
    }

    /// Gives a key another name. An answer that was lost is found out by the number of what is there.
    async fn link_key(&self, from: &Key, to: &Key, number: u64) -> Result<FileInfo> {
        let mut waiting = Waiting::default();
        let mut is_lost = false;
        loop {
            let fault = match self.store.link(&self.volume, from, to).await {
                Ok(info) => return Ok(info),
                Err(fault) => fault,
            };
            if fault.kind == ErrorKind::Conflict && is_lost {
                let info = patiently!(self, self.store.stat(&self.volume, to))?;
                return if info.inode == number { Ok(info) } else { Err(Errno::EEXIST) };
            }
            is_lost |= matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed);
            waiting.after(fault, &self.options).await?;
        }
    }

    /// It was not replaced after all.
    async fn keep_name(&self, target: &Inode) {
        let hidden = target.place.lock().unwrap().hidden.take();
        if let Some(key) = hidden {
            // What is left of it goes when the next file system begins here.
            let _ = self.delete(&key).await;
        }
    }
}
