//! Versions in use: the collector leaves them alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_format::VersionId;

/// Counts users of versions on this node.
#[derive(Default)]
pub(crate) struct Pins {
    counts: Mutex<HashMap<VersionId, usize>>,
}

/// One use; ends when dropped.
pub(crate) struct Pin {
    pins: Arc<Pins>,
    version: VersionId,
}

impl Pins {
    pub fn pin(self: &Arc<Pins>, version: VersionId) -> Pin {
        *self.counts.lock().unwrap().entry(version).or_default() += 1;
        Pin { pins: self.clone(), version }
    }

    pub fn is_pinned(&self, version: VersionId) -> bool {
        self.counts.lock().unwrap().contains_key(&version)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut counts = self.pins.counts.lock().unwrap();
        if let Some(count) = counts.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.version);
            }
        }
    }
}
