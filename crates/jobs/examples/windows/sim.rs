//! Jobs that checkpoint, drives that they share, and drains behind them: hours of it, from a seed.
//!
//! Drives are a fluid: they do so many bytes a second, of which each writer takes no more than its nodes can send. Drains of what was
//! written take the rest; when there is more to do than drives can, drains have a third, as their class has in admission.

use stoker_jobs::broker::{Ask, Broker};

pub const JOBS: usize = 32;
/// Checkpoints of each job.
pub const ROUNDS: usize = 12;
/// What drives do, and what the lake takes, in bytes per second.
const DRIVES: f64 = 8e9;
const LAKE: f64 = 5e9;
/// A drain that is so late waits for nobody.
pub const LAG_S_MAX: f64 = 600.0;
/// A job trains on for so long at most before it writes.
pub const WAIT_MS_MAX: u64 = 300_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Jobs write when they are due, and drains go on all the while.
    Without,
    /// Jobs ask for a window, and train on until it begins.
    Windows,
    /// Jobs ask for a window, and stand still until it begins.
    Standing,
}

/// What was seen of all jobs.
#[derive(Default)]
pub struct Seen {
    /// How long jobs stood still for a checkpoint, against one alone.
    pub stood: Vec<f64>,
    /// How much later than it was due each began, in seconds.
    pub later_s: Vec<f64>,
    /// How long after a checkpoint the last byte of it was in the lake, in seconds.
    pub lag_s: Vec<f64>,
}

struct Random(u64);

impl Random {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + (high - low) * ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

enum State {
    /// Until it is due.
    Trains(f64),
    /// Until the end of the step in which its window begins.
    Waits(f64),
    Writes {
        left: f64,
    },
    Over,
}

struct Job {
    rate: f64,
    bytes: f64,
    train_s: f64,
    step_s: f64,
    state: State,
    due: f64,
    begun: f64,
    rounds: usize,
}

/// Every other seed is a cluster whose jobs were started together and have the same rhythm.
fn jobs(random: &mut Random, seed: u64) -> Vec<Job> {
    let is_together = seed.is_multiple_of(2);
    let one = |_| {
        let rate = random.between(0.5e9, 1.5e9);
        let write_s = if is_together { 40.0 } else { random.between(20.0, 60.0) };
        // A tenth of its time.
        let train_s = 9.0 * write_s;
        let first = if is_together { train_s } else { random.between(0.0, train_s) };
        Job {
            rate,
            bytes: rate * write_s,
            train_s,
            step_s: random.between(0.2, 4.0),
            state: State::Trains(first),
            due: first,
            begun: 0.0,
            rounds: 0,
        }
    };
    (0..JOBS).map(one).collect()
}

/// What is written and not drained yet, oldest first: when it was written, and bytes.
#[derive(Default)]
struct Backlog(std::collections::VecDeque<(f64, f64)>);

struct Sim {
    now: f64,
    jobs: Vec<Job>,
    broker: Broker,
    backlog: Backlog,
    mode: Mode,
    seen: Seen,
}

/// Plays a seed.
pub fn play(seed: u64, mode: Mode) -> Seen {
    let mut random = Random(seed);
    let jobs = jobs(&mut random, seed);
    let (broker, backlog, seen) = Default::default();
    let mut sim = Sim { now: 0.0, jobs, broker, backlog, mode, seen };
    while sim.jobs.iter().any(|job| !matches!(job.state, State::Over)) {
        sim.step(&mut random);
    }
    sim.seen
}

fn ms(s: f64) -> u64 {
    1_000 + (s * 1_000.0).ceil() as u64
}

impl Sim {
    fn drains(&self) -> bool {
        let Some((since, _)) = self.backlog.0.front() else { return false };
        let is_late = self.now - since > LAG_S_MAX / 2.0;
        self.mode == Mode::Without || is_late || !self.broker.is_crowded(ms(self.now))
    }

    /// What each writer and the drains get.
    fn rates(&self) -> (Vec<f64>, f64) {
        let wants: f64 = self.writers().map(|job| job.rate).sum();
        let drains = if self.drains() { LAKE } else { 0.0 };
        let for_writers = if drains > 0.0 { (DRIVES - drains).max(DRIVES * 2.0 / 3.0) } else { DRIVES };
        let mut left = wants.min(for_writers);
        let drained = drains.min(DRIVES - left);
        // Equal parts, of which nobody takes more than its rate.
        let mut order: Vec<usize> =
            (0..JOBS).filter(|at| matches!(self.jobs[*at].state, State::Writes { .. })).collect();
        order.sort_by(|a, b| self.jobs[*a].rate.total_cmp(&self.jobs[*b].rate));
        let (mut rates, mut others) = (vec![0.0; JOBS], order.len());
        for at in order {
            rates[at] = self.jobs[at].rate.min(left / others as f64);
            left -= rates[at];
            others -= 1;
        }
        (rates, drained)
    }

    fn writers(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| matches!(job.state, State::Writes { .. }))
    }

    fn step(&mut self, random: &mut Random) {
        let (rates, drained) = self.rates();
        let mut next = f64::INFINITY;
        for (job, rate) in self.jobs.iter().zip(&rates) {
            next = next.min(match job.state {
                State::Trains(at) | State::Waits(at) => at,
                State::Writes { left } => self.now + left / rate,
                State::Over => f64::INFINITY,
            });
        }
        if let Some((_, bytes)) = self.backlog.0.front() {
            let pause = 1.0;
            next = next.min(self.now + if drained > 0.0 { bytes / drained } else { pause });
        }
        let span = next - self.now;
        self.now = next;
        self.drain(drained * span);
        for (at, rate) in rates.iter().enumerate() {
            if let State::Writes { left } = &mut self.jobs[at].state {
                *left -= rate * span;
            }
            self.turn(at, random);
        }
    }

    fn drain(&mut self, mut bytes: f64) {
        while let Some((since, left)) = self.backlog.0.front_mut() {
            if *left > bytes + 1.0 {
                *left -= bytes;
                return;
            }
            bytes -= *left;
            self.seen.lag_s.push(self.now - *since);
            self.backlog.0.pop_front();
        }
    }

    fn turn(&mut self, at: usize, random: &mut Random) {
        let (now, mode, name) = (self.now, self.mode, format!("default/{at}"));
        let job = &mut self.jobs[at];
        match job.state {
            State::Trains(until) if until <= now => {
                job.due = now;
                let mut start = now;
                if mode != Mode::Without {
                    let ask = Ask { bytes: job.bytes as u64, at_ms: None, wait_ms_max: WAIT_MS_MAX };
                    let given = self.broker.ask(&name, ask, Some(DRIVES as u64), ms(now));
                    start = now + (given.start_ms - ms(now)) as f64 / 1_000.0;
                }
                if mode == Mode::Windows && start > now {
                    start += random.between(0.0, job.step_s);
                }
                job.state = State::Waits(start);
                self.turn(at, random);
            }
            State::Waits(until) if until <= now => {
                job.begun = now;
                job.state = State::Writes { left: job.bytes };
            }
            State::Writes { left } if left <= 1.0 => {
                let since = if mode == Mode::Standing { job.due } else { job.begun };
                self.seen.stood.push((now - since) / (job.bytes / job.rate));
                self.seen.later_s.push(job.begun - job.due);
                self.backlog.0.push_back((now, job.bytes));
                if mode != Mode::Without {
                    self.broker.end(&name, job.bytes as u64, ms(now));
                }
                job.rounds += 1;
                job.state = match job.rounds {
                    ROUNDS => State::Over,
                    // Steps are not even.
                    _ => State::Trains(now + job.train_s * random.between(0.95, 1.05)),
                };
            }
            _ => {}
        }
    }
}

/// Of sorted numbers that below which so many of a thousand are.
pub fn quantile(numbers: &mut [f64], permille: usize) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[(numbers.len() * permille / 1_000).min(numbers.len() - 1)]
}
