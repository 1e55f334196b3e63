//! Counters of volumes, of a bounded number of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use stoker_format::VolumeId;
use stoker_store::Counter;

use crate::volumes::Volume;

/// Volumes that are shown by name; more are `other`.
pub(crate) const VOLUMES_MAX: usize = 50;

/// What volumes beyond the bound are called. No volume can have that name and be mistaken for them: it would be one of many.
pub(super) const OTHER: &str = "other";

/// Counters of one volume, or of all that have none of their own.
#[derive(Default)]
pub(crate) struct Tally {
    pub publishes: AtomicU64,
    pub publish_bytes: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
}

/// Counters of all volumes.
#[derive(Default)]
pub(crate) struct Tallies {
    own: RwLock<HashMap<u32, Arc<Tally>>>,
    others: Arc<Tally>,
    pub(super) lakes: super::lakes::LakePast,
}

impl Tallies {
    /// The counters that a volume adds to.
    pub fn of(&self, volume: VolumeId) -> Arc<Tally> {
        if let Some(tally) = self.own.read().unwrap().get(&volume.0) {
            return tally.clone();
        }
        let mut own = self.own.write().unwrap();
        if own.len() >= VOLUMES_MAX && !own.contains_key(&volume.0) {
            return self.others.clone();
        }
        own.entry(volume.0).or_default().clone()
    }

    pub(super) fn list(&self, volumes: &[Arc<Volume>]) -> Vec<Counter> {
        let mut own = self.own.write().unwrap();
        // Volumes that are gone make room for others.
        own.retain(|id, _| volumes.iter().any(|volume| volume.id.0 == *id));
        let mut named: Vec<(&str, Arc<Tally>)> = Vec::new();
        for volume in volumes {
            if own.len() < VOLUMES_MAX {
                own.entry(volume.id.0).or_default();
            }
            named.extend(own.get(&volume.id.0).map(|tally| (volume.name.as_str(), tally.clone())));
        }
        drop(own);
        if volumes.len() > VOLUMES_MAX && !named.iter().any(|(name, _)| *name == OTHER) {
            named.push((OTHER, self.others.clone()));
        }
        let mut all = Vec::new();
        for (name, tally) in named {
            for (metric, help, value) in [
                ("volume_publishes_total", "Versions of a volume made visible.", &tally.publishes),
                ("volume_publish_bytes_total", "Their bytes.", &tally.publish_bytes),
                ("volume_reads_total", "Pieces of files of a volume that were read.", &tally.reads),
                ("volume_read_bytes_total", "Their bytes.", &tally.read_bytes),
            ] {
                let value = value.load(Ordering::Relaxed) as f64;
                all.push(Counter::new(metric, help, &[("volume", name)], value));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_beyond_the_bound_share_one_tally() {
        let tallies = Tallies::default();
        let first = tallies.of(VolumeId(1));
        for id in 2..=VOLUMES_MAX as u32 {
            assert!(!Arc::ptr_eq(&tallies.of(VolumeId(id)), &first));
        }
        let beyond = [1_000, 1_001].map(|id| tallies.of(VolumeId(id)));
        assert!(Arc::ptr_eq(&beyond[0], &beyond[1]) && Arc::ptr_eq(&beyond[0], &tallies.others));
        assert!(Arc::ptr_eq(&tallies.of(VolumeId(1)), &first));
        // All volumes are gone: there is room again.
        assert!(tallies.list(&[]).is_empty());
        assert!(!Arc::ptr_eq(&tallies.of(VolumeId(1_000)), &tallies.others));
    }
}
