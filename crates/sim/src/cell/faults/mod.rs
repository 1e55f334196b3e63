//! What goes wrong, and when: one fault after the other, each of which ends by itself after a while.

mod drives;
mod processes;
mod vanish;

pub use vanish::vanish_and_lose;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_lake::Faults as LakeFaults;

use super::catalog::CatalogFaults;
use super::world::Cluster;
use crate::rng::Rng;

/// Somebody who breaks things.
pub struct Faulter {
    cluster: Arc<Cluster>,
    struck: AtomicU64,
}

impl Faulter {
    /// Somebody who breaks this cluster.
    pub fn new(cluster: Arc<Cluster>) -> Faulter {
        Faulter { cluster, struck: AtomicU64::new(0) }
    }

    /// Faults so far.
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// Breaks things until nobody polls it any more.
    pub async fn run(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        // A run without faults now and then shows what the faults of the others change.
        if rng.percent(5) {
            std::future::pending::<()>().await;
        }
        let pause_ms = rng.between(100, 3_000);
        let may_lose = rng.percent(30);
        self.cluster.machines.iter().for_each(|machine| {
            if rng.percent(30) {
                machine.set_skew_ms(rng.between(0, 60_000) as i64 - 30_000);
            }
        });
        loop {
            tokio::time::sleep(Duration::from_millis(rng.below(pause_ms) as u64)).await;
            self.strike(&mut rng, may_lose).await;
            self.struck.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn strike(&self, rng: &mut Rng, may_lose: bool) {
        let cluster = &self.cluster;
        let at = rng.below(cluster.machines.len());
        let other = (at + 1 + rng.below(cluster.machines.len() - 1)) % cluster.machines.len();
        let short_ms = rng.between(50, 3_000) as u64;
        // Longer than the grace period, some of them.
        let long_ms = rng.between(500, 14_000) as u64;
        match rng.below(100) {
            0..16 => self.restart(at, short_ms, rng).await,
            16..23 => self.restart(at, long_ms, rng).await,
            23..27 => self.restart_all(short_ms, rng).await,
            27..31 => self.cut_power_of_slow_drives(short_ms, rng).await,
            31..40 => self.stop(at, long_ms).await,
            40..46 => self.stop_in_a_write(short_ms, rng).await,
            46..50 => self.leave(at, short_ms).await,
            50..58 => {
                cluster.trace.note(format_args!("m{at} is cut off for {long_ms} ms"));
                cluster.net.cut_off(at);
                wait(long_ms).await;
                cluster.net.heal();
            }
            58..64 => {
                cluster.trace.note(format_args!("{at}>{other} is cut for {long_ms} ms"));
                cluster.net.cut(at, other);
                wait(long_ms).await;
                cluster.net.heal();
            }
            64..70 => {
                cluster.trace.note(format_args!("messages get lost, late and doubled"));
                cluster.net.set_faults(rng.between(1, 30) as u64, rng.below(200), rng.below(30) as u64);
                wait(short_ms).await;
                cluster.net.set_faults(0, 0, 0);
            }
            70..80 => self.trouble_catalog(rng, short_ms).await,
            80..89 => self.trouble_lake(rng, long_ms).await,
            89..92 => {
                let skew_ms = rng.between(0, 120_000) as i64 - 60_000;
                cluster.trace.note(format_args!("the clock of m{at} is wrong by {skew_ms} ms"));
                cluster.machines[at].set_skew_ms(skew_ms);
            }
            92..95 => self.slow_drive(at, long_ms, rng).await,
            95..97 => self.fill_drive(at, long_ms).await,
            _ if may_lose && cluster.take_loss() => self.lose(at, long_ms, rng).await,
            _ => {}
        }
    }

    async fn trouble_lake(&self, rng: &mut Rng, ms: u64) {
        let cluster = &self.cluster;
        cluster.trace.note(format_args!("the lake has trouble"));
        let is_refusing = rng.percent(30);
        cluster.lake.refuse_all(is_refusing);
        // What is late here is so by time, not by the number of calls since.
        let faults = LakeFaults::evenly(rng.between(1, 40) as f64 / 100.0);
        cluster.lake.set_faults(LakeFaults { late: 0.0, ..faults });
        cluster.lake_way.set_late_percent(rng.below(15) as u64);
        cluster.lake_way.set_slow_ms(rng.between(1, 500));
        if rng.percent(30) {
            cluster.lake_way.set_rot_percent(rng.between(5, 60) as u64);
        }
        wait(ms).await;
        cluster.lake.refuse_all(false);
        cluster.lake.set_faults(LakeFaults::default());
        cluster.lake_way.heal();
    }

    async fn trouble_catalog(&self, rng: &mut Rng, ms: u64) {
        let faults = match rng.below(3) {
            0 => CatalogFaults { is_down: true, ..CatalogFaults::default() },
            1 => CatalogFaults { slow_ms: rng.between(5, 300), ..CatalogFaults::default() },
            _ => CatalogFaults {
                ambiguous_percent: rng.between(5, 60) as u64,
                slow_ms: rng.below(50),
                ..CatalogFaults::default()
            },
        };
        self.cluster.trace.note(format_args!("the catalog has trouble: {faults:?}"));
        self.cluster.catalog.set_faults(faults);
        wait(ms).await;
        self.cluster.catalog.set_faults(CatalogFaults::default());
    }
}

fn wait(ms: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(ms))
}
