//! The inodes that are known, by number and by name.
//!
//! An inode stays while the caller may ask for it by number, it is open, it waits to be published, or others hang in
//! it: paths are made by going from parent to parent.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use stoker_store::{Key, PATH_LEN_MAX};

use crate::caches::note_lost;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Kind, Place, ROOT};

#[derive(Default)]
struct Maps {
    inodes: HashMap<u64, Arc<Inode>>,
    names: HashMap<u64, HashMap<Vec<u8>, u64>>,
}

/// All that is known.
#[derive(Default)]
pub(crate) struct Table {
    maps: Mutex<Maps>,
}

impl Table {
    pub fn get(&self, ino: u64) -> Result<Arc<Inode>> {
        self.maps.lock().unwrap().inodes.get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    pub fn len(&self) -> usize {
        self.maps.lock().unwrap().inodes.len()
    }

    pub fn child(&self, parent: u64, name: &[u8]) -> Option<Arc<Inode>> {
        let maps = self.maps.lock().unwrap();
        let ino = maps.names.get(&parent)?.get(name)?;
        maps.inodes.get(ino).cloned()
    }

    /// Whether a number is that of what hangs here, or hung here last.
    pub fn is_at(&self, ino: u64, parent: u64, name: &[u8]) -> bool {
        let maps = self.maps.lock().unwrap();
        maps.inodes.get(&ino).is_some_and(|inode| inode.place.lock().unwrap().has(parent, name))
    }

    /// Those who hang in a directory and wait to be published.
    pub fn unpublished(&self, parent: u64) -> Vec<Arc<Inode>> {
        let maps = self.maps.lock().unwrap();
        let Some(names) = maps.names.get(&parent) else { return Vec::new() };
        let inodes = names.values().filter_map(|ino| maps.inodes.get(ino));
        inodes.filter(|inode| !inode.is_published() && inode.kind != Kind::Directory).cloned().collect()
    }

    pub fn dirty(&self) -> Vec<Arc<Inode>> {
        let maps = self.maps.lock().unwrap();
        maps.inodes.values().filter(|inode| inode.is_dirty() && inode.kind == Kind::File).cloned().collect()
    }

    /// Adds an inode, or gives the one that is known by this number. The name leads to it from now on.
    pub fn put(&self, inode: Inode) -> Arc<Inode> {
        let mut maps = self.maps.lock().unwrap();
        let (parent, name) = {
            let place = inode.place.lock().unwrap();
            (place.parent, place.name.clone())
        };
        let known = maps.inodes.get(&inode.ino).cloned();
        let inode = match known {
            Some(known) => {
                // The second link of a directory is its own `.`: it has one name.
                let names_max = match inode.kind {
                    Kind::Directory => 1,
                    _ => inode.meta.lock().unwrap().attr.nlink.max(1) as usize,
                };
                let old = known.place.lock().unwrap().clone();
                // One whose name came back hangs there again.
                if old.is_unlinked || !old.has(parent, &name) {
                    if names_max == 1 {
                        // It was renamed elsewhere.
                        if !old.is_unlinked {
                            note_lost(&known);
                        }
                        maps.leave(&known);
                        *known.place.lock().unwrap() =
                            Place { hidden: old.hidden, ..Place::new(parent, &name) };
                    } else {
                        known.place.lock().unwrap().gain(parent, &name);
                    }
                    maps.enter(&known, parent, name);
                    maps.shed(&known, names_max);
                }
                return known;
            }
            None => Arc::new(inode),
        };
        maps.inodes.insert(inode.ino, inode.clone());
        maps.enter(&inode, parent, name);
        inode
    }

    /// A name leads nowhere from now on; whoever has the inode goes on with it.
    pub fn unlink(&self, inode: &Arc<Inode>, parent: u64, name: &[u8]) {
        let mut maps = self.maps.lock().unwrap();
        maps.part(inode, parent, name);
        maps.tidy(inode.ino);
    }

    /// The same of all names.
    pub fn unlink_all(&self, inode: &Arc<Inode>) {
        let mut maps = self.maps.lock().unwrap();
        maps.leave(inode);
        let mut place = inode.place.lock().unwrap();
        (place.is_unlinked, place.others) = (true, Vec::new());
        drop(place);
        maps.tidy(inode.ino);
    }

    /// The same if somebody else took the name. Whoever loses the last one cannot publish any more.
    pub fn take(&self, inode: &Arc<Inode>, parent: u64, name: &[u8]) {
        note_lost(inode);
        let mut maps = self.maps.lock().unwrap();
        maps.part(inode, parent, name);
        {
            let mut place = inode.place.lock().unwrap();
            place.is_taken = place.is_unlinked && place.hidden.is_none();
        }
        maps.tidy(inode.ino);
    }

    /// The same of the name that is used for an inode, and whether it has another one.
    pub fn take_used(&self, inode: &Arc<Inode>) -> bool {
        let (parent, name) = {
            let place = inode.place.lock().unwrap();
            (place.parent, place.name.clone())
        };
        self.take(inode, parent, &name);
        !inode.is_taken()
    }

    /// A file has one name more.
    pub fn link(&self, inode: &Arc<Inode>, parent: u64, name: &[u8]) {
        let mut maps = self.maps.lock().unwrap();
        inode.place.lock().unwrap().gain(parent, name);
        maps.enter(inode, parent, name.to_vec());
    }

    /// Hangs an inode elsewhere.
    pub fn rename(&self, inode: &Arc<Inode>, from: (u64, &[u8]), to: (u64, &[u8])) {
        let mut maps = self.maps.lock().unwrap();
        maps.part(inode, from.0, from.1);
        inode.place.lock().unwrap().gain(to.0, to.1);
        maps.enter(inode, to.0, to.1.to_vec());
        maps.tidy(from.0);
    }

    /// Two inodes hang where the other one did.
    pub fn exchange(&self, first: (&Arc<Inode>, u64, &[u8]), second: (&Arc<Inode>, u64, &[u8])) {
        let mut maps = self.maps.lock().unwrap();
        for (inode, parent, name) in [first, second] {
            maps.part(inode, parent, name);
        }
        for (inode, (_, parent, name)) in [(first.0, second), (second.0, first)] {
            inode.place.lock().unwrap().gain(parent, name);
            maps.enter(inode, parent, name.to_vec());
        }
    }

    /// The caller was told of an inode.
    pub fn tell(&self, inode: &Inode) {
        inode.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// The caller forgets what it was told so many times.
    pub fn forget(&self, ino: u64, count: u64) {
        let mut maps = self.maps.lock().unwrap();
        if let Some(inode) = maps.inodes.get(&ino) {
            let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
            inode.lookups.store(left, Ordering::Relaxed);
            maps.tidy(ino);
        }
    }

    /// Lets go of an inode if nobody needs it.
    pub fn tidy(&self, ino: u64) {
        self.maps.lock().unwrap().tidy(ino);
    }

    /// The key of something; that of a directory ends with `/`. The root has none.
    pub fn path(&self, inode: &Inode) -> Result<Vec<u8>> {
        {
            let place = inode.place.lock().unwrap();
            if let Some(hidden) = place.hidden.as_ref().filter(|_| place.is_unlinked) {
                return Ok(hidden.as_bytes().to_vec());
            }
        }
        let maps = self.maps.lock().unwrap();
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut at, mut place) = (inode.ino, inode.place.lock().unwrap().clone());
        while at != ROOT {
            if place.is_unlinked {
                return Err(Errno::ESTALE);
            }
            names.push(place.name);
            at = place.parent;
            let parent = maps.inodes.get(&at).ok_or(Errno::ESTALE)?;
            place = parent.place.lock().unwrap().clone();
            if names.len() > PATH_LEN_MAX {
                return Err(Errno::ELOOP);
            }
        }
        names.reverse();
        let mut path = names.join(&b'/');
        if inode.kind == Kind::Directory && inode.ino != ROOT {
            path.push(b'/');
        }
        Ok(path)
    }

    /// The same as a key.
    pub fn key(&self, inode: &Inode) -> Result<Key> {
        key(self.path(inode)?)
    }

    /// The key that a name in a directory has, without a `/` at its end.
    pub fn key_in(&self, parent: &Inode, name: &[u8]) -> Result<Key> {
        key([self.path(parent)?.as_slice(), name].concat())
    }

    /// Whether something is so of an inode, or of a directory above it.
    pub fn any_above(&self, mut ino: u64, is_so: impl Fn(&Inode) -> bool) -> bool {
        let maps = self.maps.lock().unwrap();
        for _ in 0..PATH_LEN_MAX {
            match maps.inodes.get(&ino) {
                Some(inode) if ino != ROOT => {
                    if is_so(inode) {
                        return true;
                    }
                    ino = inode.place.lock().unwrap().parent;
                }
                _ => return false,
            }
        }
        false
    }

    /// Whether an inode is this directory or hangs below it.
    pub fn is_below(&self, mut ino: u64, directory: u64) -> bool {
        let maps = self.maps.lock().unwrap();
        loop {
            if ino == directory {
                return true;
            }
            match maps.inodes.get(&ino) {
                Some(inode) if ino != ROOT => ino = inode.place.lock().unwrap().parent,
                _ => return false,
            }
        }
    }
}

/// A key, or the error of a name that is too long.
pub(crate) fn key(path: Vec<u8>) -> Result<Key> {
    // Room for the `/` of a directory is not room for a longer name.
    let len = path.strip_suffix(b"/").unwrap_or(&path).len();
    if len >= PATH_LEN_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    Key::new(path).map_err(|_| Errno::EINVAL)
}

impl Maps {
    fn enter(&mut self, inode: &Arc<Inode>, parent: u64, name: Vec<u8>) {
        if inode.ino == ROOT {
            return;
        }
        if let Some(parent) = self.inodes.get(&parent) {
            parent.children.fetch_add(1, Ordering::Relaxed);
        }
        let taken = name.clone();
        let other = self.names.entry(parent).or_default().insert(name, inode.ino);
        // Somebody else had the name: it is gone, and whoever has it open goes on.
        if let Some(other) =
            other.filter(|other| *other != inode.ino).and_then(|ino| self.inodes.get(&ino).cloned())
        {
            note_lost(&other);
            {
                let mut place = other.place.lock().unwrap();
                place.lose(parent, &taken);
                place.is_taken = place.is_unlinked && place.hidden.is_none();
            }
            if let Some(parent) = self.inodes.get(&parent) {
                parent.children.fetch_sub(1, Ordering::Relaxed);
            }
            self.tidy(other.ino);
        }
    }

    /// All names of an inode lead nowhere.
    fn leave(&mut self, inode: &Arc<Inode>) {
        let names = inode.place.lock().unwrap().names();
        for (parent, name) in names {
            self.leave_name(inode, parent, &name);
        }
    }

    /// An inode has one name less.
    fn part(&mut self, inode: &Arc<Inode>, parent: u64, name: &[u8]) {
        let is_its = {
            let place = inode.place.lock().unwrap();
            !place.is_unlinked && place.has(parent, name)
        };
        if is_its {
            self.leave_name(inode, parent, name);
            inode.place.lock().unwrap().lose(parent, name);
        }
    }

    /// Forgets the names of an inode that were heard of longest ago: it has only so many.
    fn shed(&mut self, inode: &Arc<Inode>, names_max: usize) {
        let names = inode.place.lock().unwrap().names();
        for (parent, name) in names.iter().skip(names_max) {
            note_lost(inode);
            self.part(inode, *parent, name);
        }
    }

    fn leave_name(&mut self, inode: &Arc<Inode>, parent: u64, name: &[u8]) {
        let Some(names) = self.names.get_mut(&parent) else { return };
        if names.get(name) == Some(&inode.ino) {
            names.remove(name);
            if names.is_empty() {
                self.names.remove(&parent);
            }
            if let Some(parent) = self.inodes.get(&parent) {
                parent.children.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn tidy(&mut self, ino: u64) {
        let Some(inode) = self.inodes.get(&ino).cloned() else { return };
        let is_needed = ino == ROOT
            || inode.lookups.load(Ordering::Relaxed) > 0
            || inode.is_open()
            || inode.children.load(Ordering::Relaxed) > 0
            || inode.is_awaited();
        if is_needed {
            return;
        }
        let mut parents: Vec<u64> =
            inode.place.lock().unwrap().names().iter().map(|(parent, _)| *parent).collect();
        parents.push(inode.place.lock().unwrap().parent);
        self.leave(&inode);
        self.inodes.remove(&ino);
        for parent in parents {
            self.tidy(parent);
        }
    }
}
