//! What goes wrong, and when: one fault after the other, each of which ends by itself after a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_lake::Faults as LakeFaults;

use super::catalog::CatalogFaults;
use super::machine::Death;
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
        let wait = |ms| tokio::time::sleep(Duration::from_millis(ms));
        match rng.below(100) {
            0..20 => {
                self.end(at, rng);
                wait(short_ms).await;
                cluster.boot(at);
            }
            20..28 => {
                self.end(at, rng);
                wait(long_ms).await;
                cluster.boot(at);
            }
            28..34 => {
                (0..cluster.machines.len()).for_each(|at| self.end(at, rng));
                wait(short_ms).await;
                (0..cluster.machines.len()).for_each(|at| cluster.boot(at));
            }
            34..46 => {
                cluster.trace.note(format_args!("m{at} is stopped for {long_ms} ms"));
                cluster.machines[at].stop();
                wait(long_ms).await;
                cluster.trace.note(format_args!("m{at} goes on"));
                cluster.machines[at].go_on();
            }
            46..56 => {
                cluster.trace.note(format_args!("m{at} is cut off for {long_ms} ms"));
                cluster.net.cut_off(at);
                wait(long_ms).await;
                cluster.net.mend();
            }
            56..62 => {
                cluster.trace.note(format_args!("{at}>{other} is cut for {long_ms} ms"));
                cluster.net.cut(at, other);
                wait(long_ms).await;
                cluster.net.mend();
            }
            62..68 => {
                cluster.trace.note(format_args!("messages get lost"));
                cluster.net.set_faults(rng.between(1, 30) as u64, rng.below(200));
                wait(short_ms).await;
                cluster.net.set_faults(0, 0);
            }
            68..80 => self.trouble_catalog(rng, short_ms).await,
            80..90 => {
                cluster.trace.note(format_args!("the lake has trouble"));
                let is_refusing = rng.percent(30);
                cluster.lake.refuse_all(is_refusing);
                cluster.lake.set_faults(LakeFaults::evenly(rng.between(1, 40) as f64 / 100.0));
                cluster.lake_way.set_slow_ms(rng.between(1, 500));
                wait(long_ms).await;
                cluster.lake.refuse_all(false);
                cluster.lake.set_faults(LakeFaults::default());
                cluster.lake_way.set_slow_ms(20);
            }
            90..94 => {
                let skew_ms = rng.between(0, 120_000) as i64 - 60_000;
                cluster.trace.note(format_args!("the clock of m{at} is wrong by {skew_ms} ms"));
                cluster.machines[at].set_skew_ms(skew_ms);
            }
            94..97 => {
                cluster.machines[at].set_slow_ms(rng.between(20, 400));
                wait(long_ms).await;
                cluster.machines[at].set_slow_ms(0);
            }
            _ if may_lose && cluster.lost.lock().unwrap().is_empty() => {
                cluster.trace.note(format_args!("m{at} is lost"));
                cluster.lose(at);
            }
            _ => {}
        }
    }

    fn end(&self, at: usize, rng: &mut Rng) {
        let death = match rng.below(4) {
            0 | 1 => Death::Kill,
            2 => Death::Power { survive_percent: 0 },
            _ => Death::Power { survive_percent: rng.below(100) as u64 },
        };
        if self.cluster.machines[at].is_up() {
            self.cluster.end(at, death);
        }
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
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.cluster.catalog.set_faults(CatalogFaults::default());
    }
}
