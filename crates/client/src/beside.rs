//! What is known of files and not in their encoding, which older releases know: beside it in answers to whom understands it.

use serde::{Deserialize, Serialize};
use stoker_store::{FileInfo, ListEntry, ListPage, StoreError, Subject};

use crate::message::Response;

/// The first protocol that tells how many names files have.
const LINKS_SINCE: u16 = 5;

/// The first protocol that knows of holes.
pub(crate) const HOLES_SINCE: u16 = 8;

/// The first protocol whose errors are about nodes, chunks and the like.
const SUBJECTS_SINCE: u16 = 9;

/// What is known of a file and not in its encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// Its names.
    pub links: u32,
    /// Bytes that are stored, if it has holes.
    pub allocated: Option<u64>,
}

impl Beside {
    fn of(info: &FileInfo) -> Beside {
        Beside { links: info.links, allocated: info.allocated }
    }

    fn put(self, info: &mut FileInfo) {
        (info.links, info.allocated) = (self.links, self.allocated);
    }
}

/// An error about something that older releases do not know is about the request as a whole for them.
fn plainer(error: &mut StoreError, version: u16) {
    match error.subject {
        // No protocol tells of versions yet.
        Subject::Version | Subject::Lock => error.subject = Subject::Key,
        _ if version >= SUBJECTS_SINCE => {}
        Subject::Catalog
        | Subject::Node
        | Subject::PeerAddress
        | Subject::Promotion
        | Subject::Chunk
        | Subject::Holders
        | Subject::Source => error.subject = Subject::Key,
        _ => {}
    }
}

impl Response {
    /// The same for whom does not know what some errors are about; none if it is the same.
    pub fn plainer(&self, version: u16) -> Option<Response> {
        let is_newer = |error: &StoreError| matches!(error.subject, Subject::Version | Subject::Lock);
        let is_known = version >= SUBJECTS_SINCE
            && match self {
                Response::Error(error) => !is_newer(error),
                Response::Deleted(all) => !all.iter().filter_map(|one| one.as_ref().err()).any(is_newer),
                _ => true,
            };
        if is_known || !matches!(self, Response::Error(_) | Response::Deleted(_)) {
            return None;
        }
        let mut plain = self.clone();
        match &mut plain {
            Response::Error(error) => plainer(error, version),
            Response::Deleted(all) => {
                all.iter_mut().filter_map(|one| one.as_mut().err()).for_each(|error| plainer(error, version))
            }
            _ => {}
        }
        Some(plain)
    }

    /// With the number of names beside files that have several, for whom understands it.
    pub fn linked(self, version: u16) -> Response {
        if version < LINKS_SINCE {
            return self;
        }
        match self.sparse(version) {
            Response::File(info) if info.links != 1 => {
                let links = info.links;
                Response::LinkedFile(info, links)
            }
            Response::Entry(entry) => match entry.file.as_ref().map(|info| info.links) {
                Some(links) if links != 1 => Response::LinkedEntry(entry, links),
                _ => Response::Entry(entry),
            },
            Response::Page(page) => {
                let links: Vec<u32> = files(&page).map(|info| info.links).collect();
                match links.iter().all(|links| *links == 1) {
                    true => Response::Page(page),
                    false => Response::LinkedPage(page, links),
                }
            }
            other => other,
        }
    }

    /// With all that is known beside files if one has holes, for whom understands it.
    pub fn sparse(self, version: u16) -> Response {
        if version >= HOLES_SINCE && self.is_sparse() { self.beside() } else { self }
    }

    /// Whether there is a file with holes in it.
    fn is_sparse(&self) -> bool {
        match self {
            Response::File(info) => info.allocated.is_some(),
            Response::Entry(entry) => entry.file.as_ref().is_some_and(|info| info.allocated.is_some()),
            Response::Page(page) => files(page).any(|info| info.allocated.is_some()),
            _ => false,
        }
    }

    /// With all that is known beside the files.
    fn beside(self) -> Response {
        match self {
            Response::File(info) => {
                let beside = Beside::of(&info);
                Response::SparseFile(info, beside)
            }
            Response::Entry(entry) => match entry.file.as_deref().map(Beside::of) {
                Some(beside) => Response::SparseEntry(entry, beside),
                None => Response::Entry(entry),
            },
            Response::Page(page) => {
                let beside = files(&page).map(Beside::of).collect();
                Response::SparsePage(page, beside)
            }
            other => other,
        }
    }

    /// The same answer with these numbers where they belong.
    pub fn unlinked(self) -> Response {
        match self {
            Response::SparseFile(mut info, beside) => {
                beside.put(&mut info);
                Response::File(info)
            }
            Response::SparseEntry(mut entry, beside) => {
                entry.file.iter_mut().for_each(|info| beside.put(info));
                Response::Entry(entry)
            }
            Response::SparsePage(mut page, all) => {
                files_mut(&mut page).zip(all).for_each(|(info, beside)| beside.put(info));
                Response::Page(page)
            }
            Response::LinkedFile(mut info, links) => {
                info.links = links;
                Response::File(info)
            }
            Response::LinkedEntry(mut entry, links) => {
                entry.file.iter_mut().for_each(|info| info.links = links);
                Response::Entry(entry)
            }
            Response::LinkedPage(mut page, links) => {
                files_mut(&mut page).zip(links).for_each(|(info, links)| info.links = links);
                Response::Page(page)
            }
            other => other,
        }
    }
}

fn files(page: &ListPage) -> impl Iterator<Item = &FileInfo> {
    page.entries.iter().filter_map(|entry| match entry {
        ListEntry::File(info) => Some(&**info),
        ListEntry::Prefix(_) => None,
    })
}

fn files_mut(page: &mut ListPage) -> impl Iterator<Item = &mut FileInfo> {
    page.entries.iter_mut().filter_map(|entry| match entry {
        ListEntry::File(info) => Some(&mut **info),
        ListEntry::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::ErrorKind;

    #[test]
    fn errors_are_about_what_the_other_side_knows() {
        let about = |subject| StoreError::about(ErrorKind::NotFound, subject, "no");
        let check = |version, subject, expect| {
            let response = Response::Error(about(subject));
            let told = response.plainer(version).unwrap_or(response);
            assert_eq!(told, Response::Error(about(expect)), "{version} {subject:?}");
            let all = Response::Deleted(vec![Ok(true), Err(about(subject))]);
            let told = all.plainer(version).unwrap_or(all);
            assert_eq!(told, Response::Deleted(vec![Ok(true), Err(about(expect))]));
        };
        check(9, Subject::Node, Subject::Node);
        check(8, Subject::Node, Subject::Key);
        check(1, Subject::Source, Subject::Key);
        check(1, Subject::Volume, Subject::Volume);
        assert_eq!(Response::Hatch.plainer(1), None);
    }
}
