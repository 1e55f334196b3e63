//! Where reads go. Each drive of this node, each peer and each lake has an estimate of how long it takes; a read goes to the
//! best that has the bytes, and to a second one if that is late ([`race`]). Nothing else decides where a read goes. (D41)

mod estimate;
mod race;
mod racer;
mod slow;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use stoker_format::{NodeId, VersionId, VolumeId};
use stoker_store::{Counter, SourceStatus};
use tokio::time::Instant;

use crate::clock;
use crate::core::add;
use crate::numbers::VOLUMES_MAX;
use estimate::Estimate;
use race::{Budget, Entrant};
use slow::{SLOW_US, SlowRead, SlowReads, Trail};

pub(crate) use racer::Wish;

/// Reads up to this long are of one kind, longer ones of another.
const SMALL_MAX: usize = 64 << 10;

/// Sources that are remembered; of more than these nothing is known.
const TRACKS_MAX: usize = 4_096;

/// A source that failed counts as one that took this long.
const FAILED_US: u64 = 1_000_000;

/// Who can be asked for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    /// A drive of this node.
    Drive(usize),
    /// Another node, for what it has.
    Peer(NodeId),
    /// The node whose turn it is to have a chunk of a lake: it gets what it does not have, so that the cluster asks the lake
    /// once.
    Turn(NodeId),
    /// The lake of a volume.
    Lake(VolumeId),
}

/// What is assumed of a kind of sources, and how much sooner it must be expected to answer than a drive here.
struct Nature {
    /// Expected as long as nothing was seen.
    prior_us: u64,
    /// Late as long as nothing was seen.
    late_prior_us: u64,
    late_min_us: u64,
    late_max_us: u64,
    hopeless_us: u64,
    /// What an answer costs others, as time.
    handicap_us: u64,
}

const DRIVE: Nature = Nature {
    prior_us: 200,
    late_prior_us: 50_000,
    late_min_us: 5_000,
    late_max_us: 500_000,
    hopeless_us: 2_000_000,
    handicap_us: 0,
};

const PEER: Nature = Nature {
    prior_us: 1_000,
    late_prior_us: 50_000,
    late_min_us: 2_000,
    late_max_us: 500_000,
    hopeless_us: 2_000_000,
    handicap_us: 2_000,
};

const LAKE: Nature = Nature {
    prior_us: 50_000,
    late_prior_us: 2_000_000,
    late_min_us: 50_000,
    late_max_us: 5_000_000,
    hopeless_us: 10_000_000,
    handicap_us: 20_000,
};

impl Source {
    fn kind(self) -> &'static str {
        match self {
            Source::Drive(_) => "drive",
            Source::Peer(_) => "peer",
            Source::Turn(_) => "turn",
            Source::Lake(_) => "lake",
        }
    }

    fn nature(self) -> &'static Nature {
        match self {
            Source::Drive(_) => &DRIVE,
            Source::Peer(_) => &PEER,
            Source::Turn(_) | Source::Lake(_) => &LAKE,
        }
    }
}

/// How much is read at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    Small,
    Large,
}

impl Size {
    pub fn of(len: usize) -> Size {
        if len <= SMALL_MAX { Size::Small } else { Size::Large }
    }
}

#[derive(Default)]
struct Track {
    small: Mutex<Estimate>,
    large: Mutex<Estimate>,
    reads: AtomicU64,
    failures: AtomicU64,
    /// What is not asked of it for now, in percent of the usual.
    weight_off_percent: AtomicU8,
}

impl Track {
    fn of(&self, size: Size) -> &Mutex<Estimate> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }
}

/// What is known of all sources.
pub(crate) struct Sources {
    begun: Instant,
    /// By their number.
    drives: RwLock<Vec<Arc<Track>>>,
    others: RwLock<HashMap<Source, Arc<Track>>>,
    budget: Budget,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
    slow: SlowReads,
}

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            begun: Instant::now(),
            drives: RwLock::default(),
            others: RwLock::default(),
            budget: Budget::default(),
            hedges: AtomicU64::new(0),
            hedges_won: AtomicU64::new(0),
            slow: SlowReads::default(),
        }
    }
}

impl Sources {
    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn at(&self, us: u64) -> Instant {
        self.begun + std::time::Duration::from_micros(us)
    }

    fn with<T>(&self, source: Source, look: impl FnOnce(&Track) -> T) -> Option<T> {
        match source {
            Source::Drive(at) => self.drives.read().unwrap().get(at).map(|track| look(track)),
            _ => self.others.read().unwrap().get(&source).map(|track| look(track)),
        }
    }

    fn know(&self, source: Source) {
        if let Source::Drive(at) = source {
            if at >= self.drives.read().unwrap().len() {
                let mut drives = self.drives.write().unwrap();
                let len = drives.len().max(at + 1);
                drives.resize_with(len, Arc::default);
            }
            return;
        }
        if self.others.read().unwrap().contains_key(&source) {
            return;
        }
        let mut others = self.others.write().unwrap();
        if others.len() < TRACKS_MAX {
            others.entry(source).or_default();
        }
    }

    /// A source answered.
    fn note(&self, source: Source, size: Size, took_us: u64) {
        self.know(source);
        let now_us = self.now_us();
        self.with(source, |track| {
            add(&track.reads, 1);
            track.of(size).lock().unwrap().note(took_us, now_us);
        });
    }

    /// A source did not answer by now, and nobody waits for it any more.
    fn note_late(&self, source: Source, size: Size, waited_us: u64) {
        self.know(source);
        let now_us = self.now_us();
        self.with(source, |track| track.of(size).lock().unwrap().note(waited_us, now_us));
    }

    /// A source could not answer, though it should have.
    fn note_failed(&self, source: Source, size: Size) {
        self.note_late(source, size, FAILED_US);
        self.with(source, |track| add(&track.failures, 1));
    }

    /// A read is over, which began then and went this way.
    fn note_way(&self, version: VersionId, bytes: usize, begun_us: u64, trail: Trail) {
        let took_us = self.now_us().saturating_sub(begun_us);
        if took_us >= SLOW_US {
            self.slow.note(version, SlowRead { at_ms: clock::now_ms(), took_us, bytes, trail });
        }
    }

    /// Why the last slow read of some versions was slow, in words; none if there was none lately.
    pub fn why_slow(
        &self,
        versions: impl Iterator<Item = VersionId>,
        name: impl Fn(Source) -> String,
    ) -> Option<String> {
        let read = self.slow.last(versions)?;
        let (now_us, size) = (self.now_us(), Size::of(read.bytes));
        let mean_us = |track: &Track| track.of(size).lock().unwrap().mean_us(now_us);
        let usual_us = read.trail.answered.and_then(|source| self.with(source, mean_us)).flatten();
        Some(slow::words(&read, clock::now_ms(), usual_us, name))
    }

    /// How long an answer is expected to take; `prior_us` is what is known otherwise.
    fn expected_us(&self, source: Source, size: Size, prior_us: u64) -> u64 {
        let now_us = self.now_us();
        let mean_us = self.with(source, |track| track.of(size).lock().unwrap().mean_us(now_us)).flatten();
        mean_us.unwrap_or_else(|| source.nature().prior_us.max(prior_us))
    }

    /// The same, and what the answer costs others.
    fn cost_us(&self, source: Source, size: Size, prior_us: u64) -> u64 {
        let spared = self.with(source, |track| track.weight_off_percent.load(Ordering::Relaxed)).unwrap_or(0);
        // Less is asked of it: it has to be so much better than others.
        let expected_us = self.expected_us(source, size, prior_us) * 100 / u64::from(100 - spared.min(99));
        match source {
            Source::Drive(_) => expected_us,
            // Not for a small gain: the way there is shared.
            _ => 2 * expected_us + source.nature().handicap_us,
        }
    }

    /// Whether nobody else can be better than this drive.
    fn is_quick(&self, drive: usize, size: Size) -> bool {
        self.cost_us(Source::Drive(drive), size, 0) <= PEER.handicap_us
    }

    fn late_us(&self, source: Source, size: Size) -> u64 {
        let now_us = self.now_us();
        let p95_us = self.with(source, |track| track.of(size).lock().unwrap().p95_us(now_us)).flatten();
        let nature = source.nature();
        p95_us.map_or(nature.late_prior_us, |us| us.clamp(nature.late_min_us, nature.late_max_us))
    }

    fn entrant(&self, source: Source, size: Size) -> Entrant<Source> {
        Entrant {
            source,
            late_us: self.late_us(source, size),
            hopeless_us: source.nature().hopeless_us,
            is_likely: true,
        }
    }

    /// Less is asked of these sources from now on, in percent of the usual; of all others as much as ever.
    pub fn set_weights(&self, weights: &HashMap<Source, u8>) {
        weights.keys().for_each(|source| self.know(*source));
        let spare = |source: Source, track: &Track| {
            let percent = weights.get(&source).copied().unwrap_or(100).min(100);
            track.weight_off_percent.store(100 - percent, Ordering::Relaxed);
        };
        let (drives, others) = (self.drives.read().unwrap(), self.others.read().unwrap());
        drives.iter().enumerate().for_each(|(at, track)| spare(Source::Drive(at), track));
        others.iter().for_each(|(source, track)| spare(*source, track));
    }

    /// Every source that was read from, for people and programs; `name` knows how they are called.
    pub fn status(&self, name: impl Fn(Source) -> String) -> Vec<SourceStatus> {
        let now_us = self.now_us();
        let (drives, others) = (self.drives.read().unwrap(), self.others.read().unwrap());
        let drives = drives.iter().enumerate().map(|(at, track)| (Source::Drive(at), &**track));
        let others = others.iter().map(|(source, track)| (*source, &**track));
        let one = |(source, track): (Source, &Track)| {
            let mean = |size| track.of(size).lock().unwrap().mean_us(now_us);
            let p95 = |size| track.of(size).lock().unwrap().p95_us(now_us);
            SourceStatus {
                kind: source.kind().to_owned(),
                name: name(source),
                reads: track.reads.load(Ordering::Relaxed),
                failures: track.failures.load(Ordering::Relaxed),
                small_mean_us: mean(Size::Small),
                small_p95_us: p95(Size::Small),
                large_mean_us: mean(Size::Large),
                large_p95_us: p95(Size::Large),
            }
        };
        let mut all: Vec<SourceStatus> = drives.chain(others).map(one).collect();
        all.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        all
    }

    /// The same and more for `/metrics`.
    pub fn counters(&self, name: impl Fn(Source) -> String) -> Vec<Counter> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let counter = |name: &str, help: &str, labels: Vec<(String, String)>, value: f64| Counter {
            name: name.to_owned(),
            help: help.to_owned(),
            labels,
            value,
        };
        let mut all = vec![
            counter(
                "read_hedges_total",
                "Reads for which a second source was asked because the first was late.",
                Vec::new(),
                load(&self.hedges),
            ),
            counter(
                "read_hedges_won_total",
                "Reads that the second source answered first.",
                Vec::new(),
                load(&self.hedges_won),
            ),
        ];
        let mut lakes = 0;
        for status in self.status(name) {
            // Volumes are many, drives and nodes are not.
            lakes += usize::from(status.kind == "lake");
            if status.kind == "lake" && lakes > VOLUMES_MAX {
                continue;
            }
            let labels =
                vec![("kind".to_owned(), status.kind.clone()), ("source".to_owned(), status.name.clone())];
            let sized = |size: &str| [labels.clone(), vec![("size".to_owned(), size.to_owned())]].concat();
            all.push(counter(
                "source_reads_total",
                "Reads answered, by source.",
                labels.clone(),
                status.reads as f64,
            ));
            all.push(counter(
                "source_failures_total",
                "Reads that a source should have answered and could not.",
                labels.clone(),
                status.failures as f64,
            ));
            let gauges = [
                (
                    "source_read_mean_seconds",
                    "Mean time of reads lately, by which sources are chosen.",
                    [("small", status.small_mean_us), ("large", status.large_mean_us)],
                ),
                (
                    "source_read_p95_seconds",
                    "Nineteen of twenty reads took no longer lately.",
                    [("small", status.small_p95_us), ("large", status.large_p95_us)],
                ),
            ];
            for (name, help, sizes) in gauges {
                for (size, value) in sizes {
                    all.extend(value.map(|us| counter(name, help, sized(size), us as f64 / 1e6)));
                }
            }
        }
        // Numbers of one name stand together.
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}
