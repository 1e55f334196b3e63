//! Drives are slow, full, fail, rot, and go with their machine.

use super::{CatalogFaults, Faulter, wait};
use crate::cell::machine::Vanish;
use crate::rng::Rng;

/// The catalog answers so late while a drive fails.
const SLOW_CATALOG_MS: usize = 400;

/// Most bits that rot on a drive.
const ROT_MAX: usize = 400;

impl Faulter {
    pub(super) async fn slow_drive(&self, at: usize, ms: u64, rng: &mut Rng) {
        self.cluster.machines[at].set_slow_ms(rng.between(20, 400));
        wait(ms).await;
        self.cluster.machines[at].set_slow_ms(0);
    }

    pub(super) async fn fill_drive(&self, at: usize, ms: u64) {
        self.cluster.trace.note(format_args!("m{at} has no room for another segment"));
        self.cluster.machines[at].set_full(true);
        wait(ms).await;
        self.cluster.machines[at].set_full(false);
    }

    /// Copies are lost, as many as the class covers.
    pub(super) async fn lose(&self, at: usize, ms: u64, rng: &mut Rng) {
        let cluster = &self.cluster;
        match rng.below(4) {
            0 => {
                cluster.trace.note(format_args!("m{at} is lost"));
                cluster.lose(at);
            }
            1 => {
                cluster.trace.note(format_args!("the drive of m{at} fails"));
                // Publishes that count on the drive are under way for long, and the news that it failed may overtake them.
                let slow_ms = if ms.is_multiple_of(4) { 0 } else { SLOW_CATALOG_MS };
                cluster.catalog.set_faults(CatalogFaults { slow_ms, ..CatalogFaults::default() });
                wait(ms % SLOW_CATALOG_MS as u64).await;
                cluster.machines[at].fail_drive();
                wait(ms).await;
                cluster.catalog.set_faults(CatalogFaults::default());
                cluster.replace_drive(at);
                wait(ms).await;
                cluster.boot(at);
            }
            2 => {
                cluster.vanish(at, Vanish::some(rng), rng.between(1, 100) as u64);
                wait(ms).await;
                cluster.boot(at);
            }
            _ => cluster.rot(at, rng.between(1, ROT_MAX)),
        }
    }
}
