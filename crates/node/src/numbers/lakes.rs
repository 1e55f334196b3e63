//! What lakes were asked, and what that is taken to cost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_lake::{LATENCY_MS, LakeErrorKind, LakeStats, Operation};
use stoker_store::Counter;

use super::volumes::{OTHER, VOLUMES_MAX};
use crate::core::Core;
use crate::volumes::Volume;

/// What requests to a lake are taken to cost, in US dollars. The defaults are the list prices of S3 Standard in us-east-1: an
/// estimate, since contracts, regions and other providers differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LakePrices {
    /// A thousand requests that write, copy or list.
    pub put_1000_usd: f64,
    /// A thousand requests that read or look.
    pub get_1000_usd: f64,
    /// A GB (10^9 bytes) that is read. Nothing inside a region; 0.09 out of it, to the internet.
    pub read_gb_usd: f64,
}

impl Default for LakePrices {
    fn default() -> LakePrices {
        LakePrices { put_1000_usd: 0.005, get_1000_usd: 0.0004, read_gb_usd: 0.0 }
    }
}

impl LakePrices {
    fn cost_usd(&self, stats: &LakeStats) -> f64 {
        let of = |operation: Operation| stats.operations[operation as usize].requests as f64;
        let puts = of(Operation::Put) + of(Operation::Upload) + of(Operation::Copy) + of(Operation::List);
        let gets = of(Operation::Get) + of(Operation::Head);
        puts / 1e3 * self.put_1000_usd
            + gets / 1e3 * self.get_1000_usd
            + stats.bytes_read as f64 / 1e9 * self.read_gb_usd
    }
}

/// What one lake did, or several together.
#[derive(Default)]
struct Sum {
    requests: [u64; Operation::ALL.len()],
    bytes_read: u64,
    bytes_written: u64,
    cost_usd: f64,
}

impl Sum {
    fn add(&mut self, stats: &LakeStats, cost_usd: f64) {
        for (sum, operation) in self.requests.iter_mut().zip(&stats.operations) {
            *sum += operation.requests;
        }
        self.bytes_read += stats.bytes_read;
        self.bytes_written += stats.bytes_written;
        self.cost_usd += cost_usd;
    }

    fn list(&self, volume: &str, into: &mut Vec<Counter>) {
        for (operation, requests) in Operation::ALL.iter().zip(self.requests) {
            let labels = [("volume", volume), ("operation", operation.word())];
            let help = "Requests that lakes answered, well or badly.";
            into.push(Counter::new("lake_requests_total", help, &labels, requests as f64));
        }
        for (name, help, value) in [
            ("lake_received_bytes_total", "Bytes that came from lakes.", self.bytes_read as f64),
            ("lake_sent_bytes_total", "Bytes that went to lakes.", self.bytes_written as f64),
            (
                "lake_cost_usd_total",
                "What the requests are taken to cost, by the prices in the configuration: an estimate.",
                self.cost_usd,
            ),
        ] {
            into.push(Counter::new(name, help, &[("volume", volume)], value));
        }
    }
}

/// What lakes of all volumes were asked, also of volumes that are gone: a number that goes back looks like a restart, and then
/// everything that was ever counted like something new.
#[derive(Default)]
pub(crate) struct LakePast(Mutex<Past>);

#[derive(Default)]
struct Past {
    /// By volume, at the last look.
    last: HashMap<u32, LakeStats>,
    gone: LakeStats,
}

impl LakePast {
    /// The sum of these and of those that are gone.
    fn sum(&self, now: HashMap<u32, LakeStats>) -> LakeStats {
        let mut past = self.0.lock().unwrap();
        let last = std::mem::take(&mut past.last);
        for (_, stats) in last.into_iter().filter(|(volume, _)| !now.contains_key(volume)) {
            // Nothing is under way where nobody is.
            join(&mut past.gone, &LakeStats { requests_now: 0, requests_limit: 0, ..stats });
        }
        let mut total = past.gone.clone();
        now.values().for_each(|stats| join(&mut total, stats));
        past.last = now;
        total
    }
}

impl Core {
    /// Numbers of the lakes of these volumes.
    pub(super) fn lake_numbers(&self, volumes: &[Arc<Volume>]) -> Vec<Counter> {
        let mut all = Vec::new();
        let mut known = HashMap::new();
        let (mut shown, mut others) = (0, Sum::default());
        for volume in volumes.iter().filter(|volume| volume.lake_url.is_some()) {
            let stats = volume.lake_stats().unwrap_or_default();
            // A directory costs nothing for each request.
            let is_priced = volume.lake_url.as_ref().is_some_and(|url| !url.starts_with("file:"));
            let cost_usd = if is_priced { self.lake_prices.cost_usd(&stats) } else { 0.0 };
            if shown < VOLUMES_MAX {
                let mut sum = Sum::default();
                sum.add(&stats, cost_usd);
                sum.list(&volume.name, &mut all);
            } else {
                others.add(&stats, cost_usd);
            }
            known.insert(volume.id.0, stats);
            shown += 1;
        }
        if shown > VOLUMES_MAX {
            others.list(OTHER, &mut all);
        }
        list_all(&self.tallies.lakes.sum(known), &mut all);
        all
    }
}

fn join(total: &mut LakeStats, stats: &LakeStats) {
    for (sum, one) in total.operations.iter_mut().zip(&stats.operations) {
        sum.requests += one.requests;
        sum.latency_us_sum += one.latency_us_sum;
        for (sum, one) in sum.latency_buckets.iter_mut().zip(one.latency_buckets) {
            *sum += one;
        }
    }
    for (sum, one) in total.errors.iter_mut().zip(stats.errors) {
        *sum += one;
    }
    total.retries += stats.retries;
    total.retries_refused += stats.retries_refused;
    total.requests_now += stats.requests_now;
    total.requests_limit += stats.requests_limit;
}

/// What is told of all lakes together.
fn list_all(total: &LakeStats, into: &mut Vec<Counter>) {
    for (operation, stats) in Operation::ALL.iter().zip(&total.operations) {
        let mut count = 0;
        let mut below = Vec::new();
        for (bound_ms, bucket) in LATENCY_MS.iter().zip(stats.latency_buckets) {
            count += bucket;
            below.push((*bound_ms as f64 / 1e3, count));
        }
        count += stats.latency_buckets[LATENCY_MS.len()];
        let help = "Time that lakes took to answer.";
        let labels = [("operation", operation.word())];
        let sum_s = stats.latency_us_sum as f64 / 1e6;
        into.extend(Counter::histogram("lake_request_seconds", help, &labels, &below, count, sum_s));
    }
    for (kind, count) in LakeErrorKind::ALL.iter().zip(total.errors) {
        let help = "Requests that lakes did not carry out, by kind; one that a retry healed counts.";
        into.push(Counter::new("lake_errors_total", help, &[("kind", kind.word())], count as f64));
    }
    for (name, help, value) in [
        ("lake_retries_total", "Requests to lakes that were sent again.", total.retries),
        (
            "lake_retries_refused_total",
            "Requests that were not sent again because too many failed before.",
            total.retries_refused,
        ),
        ("lake_requests_now", "Requests to lakes under way.", total.requests_now),
        ("lake_requests_limit", "Requests that may be under way now, over all lakes.", total.requests_limit),
    ] {
        into.push(Counter::new(name, help, &[], value as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_goes_takes_nothing_back() {
        let stats = |requests: u64| {
            let mut stats = LakeStats { retries: requests, requests_now: 1, ..LakeStats::default() };
            stats.operations[Operation::Put as usize].requests = requests;
            stats.errors[0] = requests;
            stats
        };
        let past = LakePast::default();
        let sum = |volumes: &[(u32, u64)]| {
            let total =
                past.sum(volumes.iter().map(|(volume, requests)| (*volume, stats(*requests))).collect());
            let puts = total.operations[Operation::Put as usize].requests;
            assert_eq!((total.retries, total.errors[0]), (puts, puts));
            (puts, total.requests_now)
        };
        assert_eq!(sum(&[(1, 5), (2, 7)]), (12, 2));
        assert_eq!(sum(&[(1, 6)]), (13, 1), "the second one is gone");
        assert_eq!(sum(&[(1, 6)]), (13, 1), "and is counted once");
        assert_eq!(sum(&[(1, 6), (3, 1)]), (14, 2));
        assert_eq!(sum(&[]), (14, 0));
    }

    #[test]
    fn a_request_costs_what_its_kind_costs() {
        let mut stats = LakeStats { bytes_read: 2_000_000_000, ..LakeStats::default() };
        for (operation, requests) in [
            (Operation::Put, 2_000),
            (Operation::Get, 10_000),
            (Operation::Delete, 5_000),
            (Operation::List, 1_000),
        ] {
            stats.operations[operation as usize].requests = requests;
        }
        let cost = LakePrices::default().cost_usd(&stats);
        assert!((cost - (3.0 * 0.005 + 10.0 * 0.0004)).abs() < 1e-9, "{cost}");
        let abroad = LakePrices { read_gb_usd: 0.09, ..LakePrices::default() };
        assert!((abroad.cost_usd(&stats) - cost - 0.18).abs() < 1e-9);
    }
}
