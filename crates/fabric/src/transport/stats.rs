//! Counters and latencies of peers and their rails, as the readers of a chunk choose by them.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_format::NodeId;

/// Weight of a new sample in the moving average, as 1 of this many.
const EWMA_PART: u64 = 8;
/// Two buckets for each power of two, from a microsecond to about an hour.
const BUCKETS: usize = 64;
/// After so many samples old ones count half.
const SAMPLES_MAX: u32 = 1024;

/// What is known of a peer.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The peer.
    pub node: NodeId,
    /// Each of its addresses.
    pub rails: Vec<RailStatus>,
}

/// What is known of one address of a peer.
#[derive(Clone, Debug)]
pub struct RailStatus {
    /// The address.
    pub address: SocketAddr,
    /// Connections that are up.
    pub connections: u64,
    /// Times that a connection was lost and made again.
    pub reconnects: u64,
    /// Bytes that left, frames included.
    pub sent_bytes: u64,
    /// Bytes that came, frames included.
    pub received_bytes: u64,
    /// Bytes of bodies that calls under way or in line send or expect.
    pub load_bytes: u64,
    /// Calls that were begun.
    pub calls: u64,
    /// Calls that ended without an answer of the service, and were given up or sent elsewhere.
    pub errors: u64,
    /// Moving average of the time from ping to pong.
    pub rtt: Option<Duration>,
    /// Moving average of the time from a request to its answer.
    pub latency: Option<Duration>,
    /// Most answers, 95 of 100, come within this.
    pub latency_p95: Option<Duration>,
}

/// The counters of one rail.
#[derive(Default)]
pub(super) struct Rail {
    pub connections: AtomicU64,
    pub reconnects: AtomicU64,
    /// Of connections that ended.
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub load_bytes: AtomicU64,
    pub calls: AtomicU64,
    pub errors: AtomicU64,
    pub rtt: Latency,
    pub latency: Latency,
}

impl Rail {
    /// What is known now.
    pub fn status(&self, address: SocketAddr) -> RailStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RailStatus {
            address,
            connections: get(&self.connections),
            reconnects: get(&self.reconnects),
            sent_bytes: get(&self.sent_bytes),
            received_bytes: get(&self.received_bytes),
            load_bytes: get(&self.load_bytes),
            calls: get(&self.calls),
            errors: get(&self.errors),
            rtt: self.rtt.average(),
            latency: self.latency.average(),
            latency_p95: self.latency.p95(),
        }
    }
}

/// A moving average and a fading histogram of durations.
#[derive(Default)]
pub(super) struct Latency {
    state: Mutex<Samples>,
}

struct Samples {
    ewma_ns: u64,
    count: u32,
    buckets: [u32; BUCKETS],
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { ewma_ns: 0, count: 0, buckets: [0; BUCKETS] }
    }
}

impl Latency {
    /// Takes a sample.
    pub fn record(&self, sample: Duration) {
        let ns = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX / 2);
        let mut state = self.state.lock().unwrap();
        state.ewma_ns = match state.count {
            0 => ns,
            _ => state.ewma_ns - state.ewma_ns / EWMA_PART + ns / EWMA_PART,
        };
        state.buckets[bucket(sample)] += 1;
        state.count += 1;
        if state.count >= SAMPLES_MAX {
            state.buckets.iter_mut().for_each(|count| *count /= 2);
            state.count = state.buckets.iter().sum::<u32>().max(1);
        }
    }

    /// The moving average.
    pub fn average(&self) -> Option<Duration> {
        let state = self.state.lock().unwrap();
        (state.count > 0).then(|| Duration::from_nanos(state.ewma_ns))
    }

    /// Upper edge of the bucket that the 95th of 100 samples is in.
    pub fn p95(&self) -> Option<Duration> {
        let state = self.state.lock().unwrap();
        let total: u32 = state.buckets.iter().sum();
        let mut left = (total > 0).then(|| total - total / 20)?;
        for (at, &count) in state.buckets.iter().enumerate() {
            if count >= left {
                return Some(upper_edge(at));
            }
            left -= count;
        }
        None
    }
}

fn bucket(sample: Duration) -> usize {
    let us = u64::try_from(sample.as_micros()).unwrap_or(u64::MAX).max(1);
    let octave = us.ilog2() as usize;
    let half = (octave > 0 && us >> (octave - 1) & 1 == 1) as usize;
    (2 * octave + half).min(BUCKETS - 1)
}

fn upper_edge(bucket: usize) -> Duration {
    let base = 1u64 << (bucket / 2);
    Duration::from_micros(if bucket.is_multiple_of(2) { base + base / 2 } else { 2 * base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_and_percentiles_follow_the_samples() {
        let latency = Latency::default();
        assert_eq!((latency.average(), latency.p95()), (None, None));
        for us in 1..=100 {
            latency.record(Duration::from_micros(us));
        }
        assert_eq!(latency.p95(), Some(Duration::from_micros(96)));
        for _ in 0..10 * SAMPLES_MAX {
            latency.record(Duration::from_millis(10));
        }
        let average = latency.average().unwrap();
        assert!(
            average > Duration::from_micros(9_990) && average <= Duration::from_millis(10),
            "{average:?}"
        );
        let p95 = latency.p95().unwrap();
        assert!(p95 >= Duration::from_millis(10) && p95 <= Duration::from_millis(15), "{p95:?}");
        latency.record(Duration::MAX);
        latency.record(Duration::ZERO);
    }

    #[test]
    fn buckets_hold_what_is_below_their_edge() {
        for us in 1..100_000u64 {
            let sample = Duration::from_micros(us);
            let at = bucket(sample);
            assert!(sample < upper_edge(at) || us == 1, "{us}");
            assert!(at == 0 || sample >= upper_edge(at - 1) || us < 3, "{us}");
        }
    }
}
