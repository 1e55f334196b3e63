//! Reading directories.
//!
//! A place in a directory is a number that counts entries of one listing. Whoever goes back is shown the page that the
//! place is on again, from the name at its front: entries that came or went meanwhile may be missed, others are not.

use std::collections::HashSet;
use std::sync::Arc;

use stoker_store::{ListEntry, ListRequest};

use crate::error::{Errno, Result};
use crate::files::{Core, Files, check_name, patiently};
use crate::inode::{Attr, Inode, Kind};

/// Entries that are fetched at once.
pub(crate) const PAGE: usize = 1000;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub attr: Attr,
}

impl DirEntry {
    /// What the entries behind this one are behind: keys below a directory come with a `/`.
    pub fn end(&self) -> Vec<u8> {
        end(&self.name, self.attr.kind)
    }
}

fn end(name: &[u8], kind: Kind) -> Vec<u8> {
    match kind {
        Kind::Directory => [name, b"/"].concat(),
        _ => name.to_vec(),
    }
}

/// A directory that is being read.
pub struct Listing {
    files: Files,
    inode: Arc<Inode>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For each page the place of its first entry and the name in front of it.
    pages: Vec<(u64, Option<Vec<u8>>)>,
    /// Which page is in memory.
    at: Option<usize>,
    entries: Vec<(Vec<u8>, Arc<Inode>)>,
    is_last: bool,
}

impl Files {
    /// Begins to read a directory.
    pub fn list(&self, ino: u64) -> Result<Listing> {
        let inode = self.0.table.get(ino)?;
        if inode.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let state = State { pages: vec![(0, None)], ..State::default() };
        Ok(Listing { files: self.clone(), inode, state: tokio::sync::Mutex::new(state) })
    }
}

impl Listing {
    /// The directory.
    pub fn ino(&self) -> u64 {
        self.inode.ino
    }

    /// The directory that this one hangs in.
    pub fn parent(&self) -> u64 {
        self.inode.place.lock().unwrap().parent
    }

    /// Entries from a place on, each with the place behind it; none at the end. `take` says how many it wants, by
    /// refusing one; the caller is told of those that it takes if `tell` is set.
    pub async fn read(
        &self,
        place: u64,
        tell: bool,
        mut take: impl FnMut(u64, &DirEntry) -> bool,
    ) -> Result<()> {
        let mut state = self.state.lock().await;
        if place == 0 {
            self.files.0.leave(&mut state);
            *state = State { pages: vec![(0, None)], ..State::default() };
        }
        let page = state.pages.partition_point(|(first, _)| *first <= place) - 1;
        let (mut page, mut place) = (page, place);
        loop {
            if state.at != Some(page) {
                self.load(&mut state, page).await?;
            }
            let first = state.pages[page].0;
            for (name, inode) in state.entries.iter().skip((place - first) as usize) {
                let entry = DirEntry { name: name.clone(), attr: inode.attr() };
                place += 1;
                if tell {
                    self.files.0.table.tell(inode);
                }
                if !take(place, &entry) {
                    if tell {
                        self.files.0.table.forget(inode.ino, 1);
                    }
                    return Ok(());
                }
            }
            if state.is_last {
                return Ok(());
            }
            page += 1;
            if state.pages.len() == page {
                let last = state.entries.last().map(|(name, inode)| end(name, inode.kind));
                state.pages.push((place, last));
            }
            place = state.pages[page].0;
        }
    }

    async fn load(&self, state: &mut State, page: usize) -> Result<()> {
        let core = &self.files.0;
        core.leave(state);
        let _still = core.moves.read().await;
        let after = state.pages[page].1.clone();
        let (entries, more) = core.page(&self.inode, after, PAGE).await?;
        (state.entries, state.is_last, state.at) = (entries, !more, Some(page));
        if !more {
            // What waits to be published comes last.
            let known: HashSet<u64> = state.entries.iter().map(|(_, inode)| inode.ino).collect();
            for inode in core.table.unpublished(self.inode.ino) {
                let name = inode.place.lock().unwrap().name.clone();
                if !known.contains(&inode.ino) {
                    state.entries.push((name, inode));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.files.0.leave(self.state.get_mut());
    }
}

impl Core {
    /// Lets go of a page. Whoever was told of its entries keeps them.
    fn leave(&self, state: &mut State) {
        state.at = None;
        for (_, inode) in state.entries.drain(..) {
            self.table.tidy(inode.ino);
        }
    }

    /// Entries behind a name, about so many, and whether more follow. A page is never empty while more follow.
    pub(crate) async fn page(
        &self,
        directory: &Arc<Inode>,
        mut after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<(Vec<(Vec<u8>, Arc<Inode>)>, bool)> {
        let prefix = self.table.path(directory)?;
        let mut entries = Vec::new();
        loop {
            let moment = self.moment();
            let page = patiently!(self, async {
                let request = ListRequest {
                    prefix: prefix.clone(),
                    delimiter: Some(b"/".to_vec()),
                    after: after.as_ref().map(|after| [prefix.as_slice(), after].concat()),
                    limit,
                };
                self.store.list(&self.volume, request).await
            })?;
            for entry in &page.entries {
                let name = entry.name()[prefix.len().min(entry.name().len())..].to_vec();
                after = Some(name.clone());
                match entry {
                    ListEntry::File(info) if check_name(directory.ino, &name).is_ok() => {
                        let inode = self.see_file(directory.ino, &name, info, moment).await?;
                        if inode.has_name(directory.ino, &name) {
                            entries.push((name.clone(), inode));
                            continue;
                        }
                        // Changed here meanwhile: taken away, or one of several names that nobody looked for yet.
                        match self.look(directory.ino, &name).await {
                            Ok(inode) => entries.push((name.clone(), inode)),
                            Err(Errno::ENOENT) => {}
                            Err(errno) => return Err(errno),
                        }
                    }
                    ListEntry::Prefix(_) => {
                        let name = name.strip_suffix(b"/").unwrap_or(&name);
                        if check_name(directory.ino, name).is_err() {
                            continue;
                        }
                        match self.look(directory.ino, name).await {
                            Ok(inode) => entries.push((name.to_vec(), inode)),
                            // Removed in this moment.
                            Err(Errno::ENOENT) => {}
                            Err(errno) => return Err(errno),
                        }
                    }
                    // S3 may write keys that are no paths, such as `d/../f` and `d//f`.
                    ListEntry::File(_) => {}
                }
            }
            if !page.more || !entries.is_empty() {
                return Ok((entries, page.more));
            }
        }
    }
}
