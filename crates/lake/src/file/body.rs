//! The file in which the parts of an upload come to lie one behind the other, so that nothing is copied when it is completed. (D119)
//!
//! A part in a file of its own has to be copied when the upload is completed: every byte would be written twice, and a long
//! object would seem to hang at its end. So a part is written where it will be in the object, as far as that can be known: behind
//! the part before it, or, if that one has not come yet, where it would be if all between them had the same length. An empty
//! file beside tells where it is. Guesses may be wrong, and parts may be sent twice; what does not fit together in the end is copied.
//!
//! A body is written to by one open lake alone and has a name that no other one uses: somebody who was thought dead and goes on
//! with the same upload cannot change an object that was made of another body.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::{Mode, OFlags};

/// Bodies that are open at the same time. Parts of other uploads are files of their own.
const BODIES_MAX: usize = 256;

/// The bodies that this lake writes to, by upload.
pub(super) struct Bodies {
    open: Mutex<HashMap<String, Arc<Body>>>,
    /// Tells the bodies of this lake from those of others.
    own: u64,
    made: AtomicU64,
}

/// Which lake made a body, and how many it had made before.
pub(super) type BodyId = (u64, u64);

/// What the name of a body begins with.
pub(super) const BODY_PREFIX: &str = "body-";

/// The name of a body in the directory of its upload.
pub(super) fn body_name((lake, count): BodyId) -> String {
    format!("{BODY_PREFIX}{lake:016x}-{count:x}")
}

/// A body that parts are written to.
pub(super) struct Body {
    pub file: File,
    pub id: BodyId,
    /// By number of the part: where it begins and how long it is.
    places: Mutex<BTreeMap<u32, (u64, u64)>>,
    /// Whether it has become an object. Whoever writes holds it for reading.
    pub is_object: RwLock<bool>,
}

impl Bodies {
    pub fn new(own: u64) -> Bodies {
        Bodies { open: Mutex::default(), own, made: AtomicU64::new(0) }
    }

    /// The body of an upload, made if there is room for one more.
    pub fn of(&self, upload: &str, dir: &OwnedFd) -> io::Result<Option<Arc<Body>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(body) = open.get(upload) {
            return Ok(Some(body.clone()));
        }
        if open.len() >= BODIES_MAX {
            // Uploads that others ended leave one behind. Whoever goes on with one begins another body.
            open.retain(|_, body| Arc::strong_count(body) > 1);
        }
        if open.len() >= BODIES_MAX {
            return Ok(None);
        }
        let id = (self.own, self.made.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, body_name(id), flags, Mode::RUSR | Mode::WUSR)?);
        let body = Body { file, id, places: Mutex::default(), is_object: RwLock::new(false) };
        let body = Arc::new(body);
        open.insert(upload.to_owned(), body.clone());
        Ok(Some(body))
    }

    /// The body of an upload, if this lake has one open.
    pub fn get(&self, upload: &str) -> Option<Arc<Body>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(upload).cloned()
    }

    /// The upload is over.
    pub fn close(&self, upload: &str) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(upload);
    }
}

impl Body {
    /// A place for a part, if it is the first with that number and none is in its way.
    pub fn reserve(&self, number: u32, size: u64) -> Option<u64> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = place_of(&places, number, size)?;
        places.insert(number, (offset, size));
        Some(offset)
    }

    /// What was reserved was not written.
    pub fn release(&self, number: u32) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Writes pieces and gives the CRC-64/NVME of all; they are on the disk then.
    pub fn write(&self, mut offset: u64, pieces: &[Bytes]) -> io::Result<u64> {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        for piece in pieces {
            self.file.write_all_at(piece, offset)?;
            offset += piece.len() as u64;
            digest.update(piece);
        }
        self.file.sync_data()?;
        Ok(digest.finalize())
    }
}

/// Where a part probably begins.
fn place_of(places: &BTreeMap<u32, (u64, u64)>, number: u32, size: u64) -> Option<u64> {
    if places.contains_key(&number) {
        return None;
    }
    let offset = match places.range(..number).next_back() {
        Some((before, (offset, len))) => {
            let between = u64::from(number - before - 1).checked_mul(*len)?;
            offset.checked_add(*len)?.checked_add(between)?
        }
        None => u64::from(number - 1).checked_mul(size)?,
    };
    let end = offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok())?;
    let is_free = places.range(number..).next().is_none_or(|(_, (next, _))| end <= *next);
    is_free.then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(parts: &[(u32, u64)]) -> Vec<Option<u64>> {
        let mut places = BTreeMap::new();
        let mut place = |(number, size): &(u32, u64)| {
            let offset = place_of(&places, *number, *size)?;
            places.insert(*number, (offset, *size));
            Some(offset)
        };
        parts.iter().map(&mut place).collect()
    }

    #[test]
    fn parts_come_to_lie_where_the_object_has_them() {
        assert_eq!(placed(&[(1, 5), (2, 5), (3, 2)]), [Some(0), Some(5), Some(10)]);
        assert_eq!(placed(&[(1, 5), (2, 10), (3, 10), (4, 1)]), [Some(0), Some(5), Some(15), Some(25)]);
        assert_eq!(placed(&[(3, 5), (1, 5), (2, 5), (4, 2)]), [Some(10), Some(0), Some(5), Some(15)]);
        assert_eq!(placed(&[(2, 5), (4, 5), (3, 5)]), [Some(5), Some(15), Some(10)]);
    }

    #[test]
    fn what_comes_twice_or_is_in_the_way_is_elsewhere() {
        assert_eq!(placed(&[(1, 5), (1, 5), (1, 4)]), [Some(0), None, None]);
        // The last one came first, and the others are longer than it made believe.
        assert_eq!(placed(&[(3, 2), (2, 5), (1, 5)]), [Some(4), None, None]);
        assert_eq!(placed(&[(10_000, u64::MAX), (2, u64::MAX / 2)]), [None, None]);
    }
}
