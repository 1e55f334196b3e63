//! Numbers of the drives of this node and of the rings on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_ring::{Histogram, Status};
use stoker_store::Counter;

use crate::core::Core;
use crate::node::Node;
use crate::rings::Drive;

/// Exponents of the bounds of latencies: powers of two of a microsecond, from 32 µs to 8 s. The ring's finer buckets end there,
/// so nothing is counted on the wrong side.
const BOUNDS_LOG2_US: std::ops::RangeInclusive<u32> = 5..=23;

/// Longest wait for the state of a ring. One whose drive hangs says nothing, and the numbers of all others are wanted then.
const STATE_MAX: Duration = Duration::from_secs(1);

/// Of the ring's counters, those that go up and down.
const GAUGES: [&str; 2] = ["in_flight", "queued_bytes"];

/// Bytes that were written to a drive since it was opened: what wears it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveLedger {
    /// Its id.
    pub drive: String,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its ring.
    pub ring_bytes: u64,
    /// Bytes written: for users, moved, headers and alignment, prepared.
    pub written_bytes: u64,
}

fn written_bytes(drive: &Drive) -> u64 {
    let stats = drive.ring.stats();
    let parts = [&stats.user_bytes, &stats.relocated_bytes, &stats.padding_bytes, &stats.prepared_bytes];
    parts.iter().map(|part| part.get()).sum()
}

impl Node {
    /// What was written to each drive since it was opened.
    pub fn drive_ledgers(&self) -> Vec<DriveLedger> {
        let one = |drive: &Arc<Drive>| DriveLedger {
            drive: drive.id.to_string(),
            path: drive.path.clone(),
            ring_bytes: drive.bytes,
            written_bytes: written_bytes(drive),
        };
        self.core.rings.drives().iter().map(one).collect()
    }
}

impl Core {
    pub(super) async fn drive_numbers(&self) -> Vec<Counter> {
        let drives = self.rings.drives();
        // All at once: they hang together if they hang.
        let states = futures_util::future::join_all(drives.iter().map(|drive| state(drive))).await;
        drives.iter().zip(&states).flat_map(|(drive, state)| numbers(drive, state.as_ref())).collect()
    }
}

/// What a ring says of itself; none if it does not.
async fn state(drive: &Drive) -> Option<Status> {
    tokio::time::timeout(STATE_MAX, drive.ring.status()).await.ok()?.ok()
}

fn numbers(drive: &Drive, state: Option<&Status>) -> Vec<Counter> {
    let mut all = Vec::new();
    let id = drive.id.to_string();
    let labels = [("drive", id.as_str())];
    let mut push = |name: &str, help: &str, value: f64| {
        all.push(Counter::new(name, help, &labels, value));
    };
    let is_poisoned = state.is_some_and(|state| state.poisoned.is_some()) || drive.is_failed();
    push("ring_bytes", "Bytes that a ring holds at most.", drive.bytes as f64);
    push("ring_poisoned", "1 if the drive failed and takes no more.", f64::from(is_poisoned));
    push("ring_answers", "1 if a ring told its state for this answer.", f64::from(state.is_some()));
    if let Some(state) = state {
        push("ring_keep_bytes", "Bytes of a ring that must stay.", state.keep_bytes as f64);
        push("ring_clean_bytes", "Bytes of a ring that may go.", state.clean_bytes as f64);
        push("ring_records", "Records of a ring.", state.records as f64);
        push("ring_segments_free", "Segments of a ring that are free.", state.segments.free as f64);
    }
    let stats = drive.ring.stats();
    for (name, help, value) in stats.told() {
        let name = match GAUGES.contains(&name) {
            true => format!("ring_{name}"),
            false => format!("ring_{name}_total"),
        };
        push(&name, help, value as f64);
    }
    let seconds = |us: u64| us as f64 / 1e6;
    let read_busy = "Time during which at least one read was under way.";
    push("ring_read_busy_seconds_total", read_busy, seconds(stats.read_busy_us.get()));
    let write_busy = "Time during which at least one write was under way.";
    push("ring_write_busy_seconds_total", write_busy, seconds(stats.write_busy_us.get()));
    for (name, help, times) in [
        ("ring_append_seconds", "From hand-over to durable.", &stats.append_latency),
        ("ring_read_seconds", "From hand-over to verified bytes.", &stats.read_latency),
        ("ring_write_seconds", "Writes of the drive itself.", &stats.write_latency),
    ] {
        all.extend(histogram(name, help, &labels, times));
    }
    all
}

/// A histogram of the ring in fewer buckets.
fn histogram(name: &str, help: &str, labels: &[(&str, &str)], times: &Histogram) -> Vec<Counter> {
    let fine = times.snapshot();
    let below = |bound_us: u64| fine.iter().take_while(|(upper, _)| *upper < bound_us).map(|(_, n)| n).sum();
    let coarse: Vec<(f64, u64)> =
        BOUNDS_LOG2_US.map(|log2| (f64::from(1u32 << log2) / 1e6, below(1 << log2))).collect();
    let count = fine.iter().map(|(_, n)| n).sum();
    Counter::histogram(name, help, labels, &coarse, count, times.sum_us() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use stoker_ring::{InitOptions, OpenOptions, Ring};
    use stoker_schema::rows::{DriveRow, DriveState};

    use super::*;

    #[tokio::test]
    async fn a_drive_that_hangs_still_has_its_other_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let options = InitOptions { size: 16 << 20, segment_size: 1 << 20, ..InitOptions::default() };
        stoker_ring::Drive::init(&path, &options, 1).unwrap();
        // Nobody drives it: whoever asks for its state waits for ever.
        let (ring, driver) = Ring::open_local(&path, OpenOptions::default()).unwrap();
        let row = DriveRow { node: [0; 16], ring: [0; 16], incarnation: 1, state: DriveState::Live };
        let drive = Drive::new(ring, path, stoker_format::DriveId([7; 16]), row, 16 << 20);
        let value = |numbers: &[Counter], name: &str| {
            numbers.iter().find(|counter| counter.name == name).map(|counter| counter.value)
        };
        let hangs = numbers(&drive, state(&drive).await.as_ref());
        assert_eq!((value(&hangs, "ring_answers"), value(&hangs, "ring_poisoned")), (Some(0.0), Some(0.0)));
        assert_eq!(
            (value(&hangs, "ring_bytes"), value(&hangs, "ring_keep_bytes")),
            (Some(16_777_216.0), None)
        );
        assert_eq!(value(&hangs, "ring_io_errors_total"), Some(0.0));
        let driven = tokio::spawn(driver);
        let well = numbers(&drive, state(&drive).await.as_ref());
        assert_eq!((value(&well, "ring_answers"), value(&well, "ring_keep_bytes")), (Some(1.0), Some(0.0)));
        drop(drive);
        driven.await.unwrap().unwrap();
    }

    #[test]
    fn bounds_lie_where_the_finer_buckets_end() {
        let times = Histogram::default();
        for us in [0, 31, 32, 1_023, 1_024, 8_388_607, 8_388_608, u64::MAX / 4] {
            times.record_us(us);
        }
        let list = histogram("x_seconds", "About x.", &[], &times);
        let below = |bound: &str| {
            let is_it = |counter: &&Counter| counter.labels.iter().any(|(_, value)| value == bound);
            list.iter().find(is_it).map(|counter| counter.value)
        };
        assert_eq!(below("0.000032"), Some(2.0));
        assert_eq!(below("0.001024"), Some(4.0));
        assert_eq!(below("8.388608"), Some(6.0));
        assert_eq!(below("+Inf"), Some(8.0));
    }
}
