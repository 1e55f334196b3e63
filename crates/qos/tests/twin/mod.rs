//! A simulated resource with service times that vary, streams of work that use it, and the scheduler in front. One seed, one history.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use stoker_qos::{Cost, Granted, Match, Next, Scheduler, Settings, Spec, Submitted, Tag, Ticket};

pub const SECOND: u64 = 1_000_000_000;

/// SplitMix64.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How a stream asks.
#[derive(Clone, Copy, Debug)]
pub enum Asks {
    /// Always has so many requests outstanding.
    Outstanding(u32),
    /// Requests come at random, with this many nanoseconds between them on average, whether earlier ones are done or not.
    Every(u64),
}

/// Work of one tag.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub tag: Tag,
    pub bytes: u64,
    pub asks: Asks,
    /// It asks from here to there.
    pub from: u64,
    pub until: u64,
}

/// What a stream got between the two times that count.
#[derive(Clone, Debug, Default)]
pub struct Got {
    pub asked: u64,
    pub bytes: u64,
    pub latencies: Vec<u64>,
    /// Time and bytes of each grant, of the whole run.
    pub grants: Vec<(u64, u64)>,
}

impl Got {
    pub fn p99(&self) -> u64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or(0)
    }
}

/// A resource: parallel servers with one rate together.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub servers: usize,
    pub bytes_per_s: u64,
    /// Service takes from one minus this to one plus this of what it should, in percent.
    pub noise_percent: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    Done(u64),
    Timer,
}

pub struct Twin {
    pub scheduler: Scheduler,
    device: Device,
    streams: Vec<Stream>,
    chance: Chance,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbers: u64,
    waiting: HashMap<Ticket, (usize, u64)>,
    queue: VecDeque<(u64, usize, u64, Granted)>,
    running: HashMap<u64, (usize, u64, Granted)>,
    timer: u64,
    count: (u64, u64),
    pub got: Vec<Got>,
}

impl Twin {
    pub fn new(settings: Settings, rules: &[(Match, Spec)], device: Device, seed: u64) -> Twin {
        let mut scheduler = Scheduler::new(settings);
        for (rule, spec) in rules {
            scheduler.reserve(0, *rule, *spec, None).expect("the scenario promises what there is");
        }
        Twin {
            scheduler,
            device,
            streams: Vec::new(),
            chance: Chance(seed),
            now: 0,
            events: BinaryHeap::new(),
            numbers: 0,
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            running: HashMap::new(),
            timer: u64::MAX,
            count: (0, 0),
            got: Vec::new(),
        }
    }

    /// Runs until `end`; what is done from `start` on counts.
    pub fn run(mut self, streams: &[Stream], start: u64, end: u64) -> Vec<Got> {
        self.streams = streams.to_vec();
        self.got = vec![Got::default(); streams.len()];
        self.count = (start, end);
        for (at, stream) in streams.iter().enumerate() {
            let first = match stream.asks {
                Asks::Outstanding(count) => count,
                Asks::Every(_) => 1,
            };
            (0..first).for_each(|_| self.at(stream.from, Event::Arrive(at)));
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > end {
                break;
            }
            self.now = time;
            match event {
                Event::Arrive(stream) => self.arrive(stream),
                Event::Done(number) => self.done(number),
                // One that an earlier one took the place of.
                Event::Timer if time != self.timer => continue,
                Event::Timer => self.timer = u64::MAX,
            }
            self.pump();
        }
        self.got
    }

    fn at(&mut self, time: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((time, self.numbers, event)));
    }

    fn arrive(&mut self, at: usize) {
        let stream = self.streams[at];
        if self.now >= stream.until {
            return;
        }
        if let Asks::Every(mean_ns) = stream.asks {
            let gap = -(1.0 - self.chance.unit()).ln() * mean_ns as f64;
            self.at(self.now + gap as u64, Event::Arrive(at));
        }
        if (self.count.0..self.count.1).contains(&self.now) {
            self.got[at].asked += stream.bytes;
        }
        match self.scheduler.submit(self.now, stream.tag, Cost::bytes(stream.bytes)) {
            Ok(Submitted::Granted(granted)) => self.begin(at, self.now, granted),
            Ok(Submitted::Queued(ticket)) => {
                self.waiting.insert(ticket, (at, self.now));
            }
            Err(refused) => panic!("{refused}"),
        }
    }

    fn begin(&mut self, at: usize, since: u64, granted: Granted) {
        self.got[at].grants.push((self.now, granted.cost().bytes));
        self.numbers += 1;
        self.queue.push_back((self.numbers, at, since, granted));
        self.serve();
    }

    fn serve(&mut self) {
        while self.running.len() < self.device.servers {
            let Some((number, at, since, granted)) = self.queue.pop_front() else { return };
            let rate = self.device.bytes_per_s / self.device.servers as u64;
            let takes = granted.cost().bytes * SECOND / rate;
            let noise = self.device.noise_percent;
            let takes = takes * (100 - noise + self.chance.below(2 * noise + 1)) / 100;
            self.running.insert(number, (at, since, granted));
            self.at(self.now + takes, Event::Done(number));
        }
    }

    fn done(&mut self, number: u64) {
        let (at, since, granted) = self.running.remove(&number).expect("it runs");
        if (self.count.0..self.count.1).contains(&self.now) {
            self.got[at].bytes += granted.cost().bytes;
            self.got[at].latencies.push(self.now - since);
        }
        self.scheduler.complete(self.now, granted);
        self.serve();
        if let Asks::Outstanding(_) = self.streams[at].asks {
            self.arrive(at);
        }
    }

    fn pump(&mut self) {
        loop {
            match self.scheduler.next(self.now) {
                Next::Grant(ticket, granted) => {
                    let (at, since) = self.waiting.remove(&ticket).expect("it waits");
                    self.begin(at, since, granted);
                }
                Next::At(time, _) => {
                    assert!(time > self.now, "a timer has to be ahead");
                    if time < self.timer {
                        self.timer = time;
                        self.at(time, Event::Timer);
                    }
                    return;
                }
                Next::Idle => {
                    let in_flight = self.scheduler.in_flight().0;
                    assert!(self.scheduler.waiting() == 0 || in_flight > 0, "somebody waits for nothing");
                    return;
                }
            }
        }
    }
}

/// The most bytes that a flow got beyond its rate in any window, by all its grants.
pub fn beyond(mut grants: Vec<(u64, u64)>, bytes_per_s: u64) -> u64 {
    grants.sort_unstable();
    let (mut level, mut last, mut most) = (0.0_f64, 0, 0.0_f64);
    for (time, bytes) in grants {
        level = (level - (time - last) as f64 * bytes_per_s as f64 / SECOND as f64).max(0.0) + bytes as f64;
        last = time;
        most = most.max(level);
    }
    most as u64
}
