//! What the scheduler has to keep, whoever comes: the bar of two jobs, and mixes that a seed draws.

use stoker_qos::{CLASSES, Class, Latency, Match, Rate, Settings, Spec, Tag, VolumeId};

use crate::twin::{Asks, Chance, Device, Got, SECOND, Stream, Twin, beyond};

const CAPACITY: u64 = 1_000_000_000;
const FLOOR: u64 = 600_000_000;
const DEVICE: Device = Device { servers: 16, bytes_per_s: CAPACITY, noise_percent: 50 };

/// What came of two jobs, in bytes per second and nanoseconds.
#[derive(Debug)]
pub struct TwoJobs {
    pub alone_p99: u64,
    pub first: u64,
    pub first_asked: u64,
    pub first_p99: u64,
    pub greedy: u64,
    pub greedy_alone: u64,
    pub first_greedy_too: u64,
}

/// One job with a floor of 60 % and interactive, the other as greedy as it can.
pub fn two_jobs(seed: u64) -> TwoJobs {
    let settings = Settings { capacity: Rate::bytes(CAPACITY), depth_ops: 16, ..Settings::default() };
    let spec = Spec { floor: Rate::bytes(FLOOR), latency: Latency::Interactive, ..Spec::default() };
    let bytes = 128 << 10;
    let (from, until) = (0, u64::MAX);
    let every = Asks::Every(bytes * SECOND / FLOOR);
    let first = Stream { tag: Tag::of(Class::Client).job(1), bytes, asks: every, from, until };
    let greedy = Stream { tag: Tag::of(Class::Client).job(2), asks: Asks::Outstanding(64), ..first };
    let full = Stream { asks: Asks::Outstanding(64), ..first };
    let run = |streams: &[Stream]| {
        let twin = Twin::new(settings, &[(Match::job(1), spec)], DEVICE, seed);
        twin.run(streams, SECOND / 2, 3 * SECOND / 2)
    };
    let rate = |got: &Got| got.bytes;
    let alone = run(&[first]);
    let both = run(&[first, greedy]);
    let idle = run(&[greedy]);
    let fights = run(&[full, greedy]);
    TwoJobs {
        alone_p99: alone[0].p99(),
        first: rate(&both[0]),
        first_asked: both[0].asked,
        first_p99: both[0].p99(),
        greedy: rate(&both[1]),
        greedy_alone: rate(&idle[0]),
        first_greedy_too: rate(&fights[0]),
    }
}

impl TwoJobs {
    pub fn check(&self, seed: u64) {
        // Its requests come at random: in some seconds it asks for less than its floor.
        assert!(
            self.first >= FLOOR.min(self.first_asked) / 100 * 95,
            "seed {seed}: the floor is broken: {self:?}"
        );
        assert!(self.first_greedy_too >= FLOOR / 100 * 95, "seed {seed}: the floor is broken: {self:?}");
        assert!(self.first_p99 * 2 <= self.alone_p99 * 3, "seed {seed}: P99 suffers: {self:?}");
        let rest = CAPACITY - self.first;
        assert!(self.greedy >= rest / 100 * 90, "seed {seed}: the rest is not used: {self:?}");
        assert!(self.greedy_alone >= CAPACITY / 100 * 95, "seed {seed}: it idles: {self:?}");
    }
}

/// A mix that the seed draws: promises, ceilings, weights, classes, streams that never pause and such that come and go.
pub fn mix(seed: u64) {
    let chance = &mut Chance(seed);
    let settings = Settings {
        capacity: Rate::bytes(CAPACITY),
        depth_ops: 16 + chance.below(32) as u32,
        ..Settings::default()
    };
    // What it can do is a little more than what it says.
    let device = Device { servers: 16, bytes_per_s: CAPACITY / 100 * 105, noise_percent: chance.below(60) };
    let jobs = 2 + chance.below(6);
    let (mut rules, mut streams, mut promised) = (Vec::new(), Vec::new(), 0);
    let end = 3 * SECOND / 2;
    for job in 1..=jobs {
        let mut spec = Spec { weight: 50 + chance.below(200) as u32, ..Spec::default() };
        if chance.below(3) == 0 {
            spec.latency = Latency::Interactive;
        }
        if chance.below(3) == 0 {
            let floor = (5 + chance.below(25)) * CAPACITY / 100;
            if promised + floor <= CAPACITY / 100 * 85 {
                promised += floor;
                spec.floor = Rate::bytes(floor);
            }
        } else if chance.below(4) == 0 {
            spec.ceiling = Rate::bytes((2 + chance.below(30)) * CAPACITY / 100);
        }
        let class = CLASSES[chance.below(6) as usize];
        let tag = Tag { volume: VolumeId(job as u32 % 3), ..Tag::of(class).job(job) };
        let bytes = (16 << 10) << chance.below(5);
        let steady = Stream { tag, bytes, asks: Asks::Outstanding(64), from: 0, until: u64::MAX };
        streams.push(match chance.below(4) {
            0 => Stream { asks: Asks::Every(1_000_000 + chance.below(4_000_000)), ..steady },
            1 => Stream { from: chance.below(end), until: chance.below(end), ..steady },
            _ => steady,
        });
        rules.push((Match::job(job), spec));
    }
    let bulk = |class| Stream {
        tag: Tag::of(class),
        bytes: 64 << 10,
        asks: Asks::Outstanding(64),
        from: 0,
        until: u64::MAX,
    };
    streams.push(bulk(Class::Client));
    streams.push(bulk(Class::Scrub));
    let start = SECOND / 2;
    let got = Twin::new(settings, &rules, device, seed).run(&streams, start, end);
    let of_time = |rate: u64| rate / SECOND * (end - start) + rate % SECOND * (end - start) / SECOND;
    let told = || format!("seed {seed}: {rules:?} {streams:?}");

    // Nobody idles: somebody always waits, and no ceiling stops them.
    let all: u64 = got.iter().map(|got| got.bytes).sum();
    assert!(all >= of_time(CAPACITY) / 100 * 95, "{all}: it idles; {}", told());
    let weights: u64 = settings.weights.iter().map(|weight| u64::from(*weight)).sum();
    let scrub = u64::from(settings.weights[6]);
    let is_scrub = |(at, _): &(usize, &(Match, Spec))| streams[*at].tag.class == Class::Scrub;
    let beside: u64 =
        rules.iter().enumerate().filter(is_scrub).map(|(_, (_, spec))| u64::from(spec.weight)).sum();
    let own = u64::from(Spec::default().weight);
    let least = of_time(CAPACITY - promised) * scrub / weights * own / (own + beside);
    let scrubbed = got[streams.len() - 1].bytes;
    assert!(scrubbed >= least / 2, "scrub starves with {scrubbed} of {least}; {}", told());
    for (((_, spec), stream), got) in rules.iter().zip(&streams).zip(&got) {
        let is_steady = stream.from == 0 && stream.until == u64::MAX;
        if let (Some(floor), Asks::Outstanding(_), true) = (spec.floor.bytes_per_s, stream.asks, is_steady) {
            let floor = of_time(floor);
            assert!(got.bytes >= floor / 100 * 95, "{} of a floor of {floor}; {}", got.bytes, told());
        }
        if let Some(ceiling) = spec.ceiling.bytes_per_s {
            let burst = (u128::from(ceiling) * u128::from(spec.burst_ns) / u128::from(SECOND)) as u64;
            let most = beyond(got.grants.clone(), ceiling);
            assert!(most <= burst.max(stream.bytes) + 1, "{most} beyond a burst of {burst}; {}", told());
        } else if let (Asks::Outstanding(_), true) = (stream.asks, is_steady) {
            assert!(!got.latencies.is_empty(), "{:?} starves; {}", stream.tag, told());
        }
    }
}
