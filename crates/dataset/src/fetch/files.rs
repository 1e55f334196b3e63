//! Open files of a process, the ones used last; each is opened once, however many threads want it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use stoker_store::{ErrorKind, File, Key, Store, StoreError};
use tokio::sync::OnceCell;

use super::spent::{Spent, now};

/// A file as a dataset knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its volume.
    pub volume: String,
    /// Its name there.
    pub key: Key,
    /// Its length.
    pub size: u64,
    /// The version, as receipts print it; empty if only the etag is known.
    pub version: String,
    /// The etag; empty if only the version is known.
    pub etag: String,
}

/// Why bytes of a file could not be had.
#[derive(Debug)]
pub enum Unread {
    /// It is another file than the one that the dataset knows.
    Replaced,
    /// The door says so.
    Failed(StoreError),
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Unread {
        Unread::Failed(error)
    }
}

type Slot = Arc<OnceCell<Arc<dyn File>>>;

/// Open files by number.
pub struct Files {
    max: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    slots: HashMap<u64, (Slot, u64)>,
    /// Numbers by the time of their last use.
    order: BTreeMap<u64, u64>,
    time: u64,
}

impl Known {
    /// The slot of a file, and what is closed for it, to be dropped without a lock.
    fn slot(&mut self, number: u64, max: usize) -> (Slot, Option<Slot>) {
        self.time += 1;
        let time = self.time;
        let (slot, used) = self.slots.entry(number).or_insert_with(|| (Slot::default(), time));
        let slot = slot.clone();
        self.order.remove(&*used);
        *used = time;
        self.order.insert(time, number);
        let oldest = if self.order.len() > max { self.order.pop_first() } else { None };
        let gone = oldest.and_then(|(_, number)| self.slots.remove(&number)).map(|(slot, _)| slot);
        (slot, gone)
    }
}

impl Files {
    pub fn new(max: usize) -> Files {
        Files { max: max.max(1), known: Mutex::default() }
    }

    /// How many are open or about to be.
    pub fn len(&self) -> usize {
        self.known.lock().unwrap().slots.len()
    }

    pub async fn get(
        &self,
        store: &dyn Store,
        number: u64,
        wanted: &Wanted,
        spent: &Spent,
    ) -> Result<Arc<dyn File>, Unread> {
        let (slot, gone) = self.known.lock().unwrap().slot(number, self.max);
        drop(gone);
        let timed = async || {
            let begun = now();
            let file = open(store, wanted).await;
            spent.opened(begun);
            file
        };
        slot.get_or_try_init(timed).await.cloned()
    }
}

async fn open(store: &dyn Store, wanted: &Wanted) -> Result<Arc<dyn File>, Unread> {
    let file = store.open(&wanted.volume, &wanted.key).await?;
    let info = file.info();
    let is_same =
        info.version.to_string() == wanted.version || (!wanted.etag.is_empty() && info.etag == wanted.etag);
    if info.size != wanted.size || !is_same {
        return Err(Unread::Replaced);
    }
    file.wants_all();
    Ok(Arc::from(file))
}

/// The error of a file that ends early.
pub fn cut_off() -> Unread {
    Unread::Failed(StoreError::new(
        ErrorKind::Corrupt,
        "the file ends before the length that it was opened with",
    ))
}

/// The error of a read that was not ended.
pub fn given_up() -> Unread {
    Unread::Failed(StoreError::new(ErrorKind::Closed, "the connection was ended while it was read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_used_last_stay() {
        let mut known = Known::default();
        let (first, _) = known.slot(1, 2);
        let (second, _) = known.slot(2, 2);
        assert!(Arc::ptr_eq(&first, &known.slot(1, 2).0));
        let (_, gone) = known.slot(3, 2);
        assert!(gone.is_some_and(|gone| Arc::ptr_eq(&gone, &second)));
        assert!(Arc::ptr_eq(&first, &known.slot(1, 2).0) && known.slots.len() == 2 && known.order.len() == 2);
    }
}
