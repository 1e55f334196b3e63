//! Open bundles, a fixed number of them: the ones that were read lately.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_store::{File, Result};
use tokio::sync::OnceCell;

use crate::index::{BundleId, Listed};
use crate::shelf::Shelf;

/// None in it: the bundle was gone when it was to be opened.
type Slot = Arc<OnceCell<Option<Arc<dyn File>>>>;

#[derive(Default)]
struct Open {
    slots: HashMap<BundleId, (Slot, u64)>,
    tick: u64,
}

/// The open bundles of a cache.
pub(crate) struct Files {
    max: usize,
    open: Mutex<Open>,
}

impl Files {
    pub fn new(max: usize) -> Files {
        Files { max, open: Mutex::default() }
    }

    /// A bundle, opened if it is not; none if it is gone. Those who want the same one at once open it once.
    pub async fn get(&self, shelf: &Shelf, id: BundleId, listed: &Listed) -> Result<Option<Arc<dyn File>>> {
        let slot = self.slot(id);
        let open = async || {
            let file = shelf.open(listed).await?;
            // Blocks of it are wanted in any order.
            file.iter().for_each(|file| file.wants_all());
            Ok(file)
        };
        let opened = slot.get_or_try_init(open).await;
        if !matches!(opened, Ok(Some(_))) {
            self.close(id);
        }
        opened.cloned()
    }

    /// Takes a bundle that is open.
    pub fn put(&self, id: BundleId, file: Arc<dyn File>) {
        // Whoever opened it meanwhile has the same version.
        let _ = self.slot(id).set(Some(file));
    }

    fn slot(&self, id: BundleId) -> Slot {
        let mut open = self.open.lock().unwrap();
        open.tick += 1;
        let tick = open.tick;
        let (slot, used) = open.slots.entry(id).or_default();
        *used = tick;
        let slot = slot.clone();
        let mut oldest = None;
        if open.slots.len() > self.max {
            let oldest_id = open.slots.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
            oldest = oldest_id.and_then(|id| open.slots.remove(&id));
        }
        drop(open);
        // Closing a file tells the node so; not with the lock held.
        drop(oldest);
        slot
    }

    /// Forgets a bundle.
    pub fn close(&self, id: BundleId) {
        let slot = self.open.lock().unwrap().slots.remove(&id);
        drop(slot);
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut self.open.lock().unwrap().slots);
        drop(all);
    }
}
