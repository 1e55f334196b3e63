//! Days of a cluster, event by event. Between two events every amount changes at a constant rate, so nothing is stepped through that
//! does not change: a week of a thousand nodes is some thousands of events.
//!
//! Undrained bytes are counted by how many copies they have left. Copies lie on nodes drawn evenly, so a lost node takes its share of
//! each count one copy further down; what has none left and is not in the lake is lost. Whether that share is a whole chunk at all is
//! drawn, since few bytes on many nodes often share no pair.

use std::collections::VecDeque;

use super::chance::Chance;

/// Bytes of a chunk: nothing smaller than one is lost.
const CHUNK: f64 = 4_194_304.0;
/// Below this many bytes nothing is left; sums of rates are never exact.
const LEAST: f64 = 1.0;
/// Far above what sums of seconds are off by within ten years, far below what anybody reads.
const HAIR_S: f64 = 1e-6;
const COPIES_MAX: usize = 3;
/// Of the timeline.
pub const POINTS: usize = 200;

/// What happens for certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    None,
    Node,
    Rack,
    Lake,
}

/// A cluster and its work.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: f64,
    pub drives: f64,
    pub nodes_per_rack: f64,
    pub copies: usize,
    pub is_spread_over_racks: bool,
    /// Bytes that may wait for the lake, all copies together.
    pub ring: f64,
    /// Bytes per second of a checkpoint with all nodes, each byte counted once.
    pub commit_rate: f64,
    /// Bytes per second that one node copies for those that lost copies.
    pub repair_rate: f64,
    pub lake_rate: f64,
    pub checkpoint: f64,
    /// Seconds of a checkpoint beside its bytes.
    pub begin_s: f64,
    pub every_s: f64,
    pub blocked_share: f64,
    pub quiet_s: f64,
    pub detect_s: f64,
    pub restart_s: f64,
    pub replace_s: f64,
    /// Per second and node.
    pub crash_rate: f64,
    /// Per second and node.
    pub loss_rate: f64,
    /// Per second and drive.
    pub drive_rate: f64,
    /// Per second.
    pub outage_rate: f64,
    pub outage_s: f64,
    pub strike: Strike,
    pub strike_s: f64,
    pub end_s: f64,
}

/// What came of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds that each checkpoint took.
    pub saves: Vec<f64>,
    /// Seconds from its first byte until its last one was in the lake.
    pub drains: Vec<f64>,
    pub dirty_max: f64,
    pub ring_max: f64,
    /// Seconds in which writers waited for room.
    pub held_s: f64,
    /// Most bytes that lacked copies.
    pub hurt_max: f64,
    /// Longest time that some did.
    pub hurt_longest_s: f64,
    pub lost: f64,
    pub failures: u32,
    /// Seconds of training that counted in the end.
    pub trained_s: f64,
    /// Seconds, undrained bytes, bytes that lack copies; of moments that fall together the largest.
    pub timeline: Vec<(f64, f64, f64)>,
}

/// What the job does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Job {
    Trains { next_s: f64 },
    Begins { started_s: f64, until_s: f64 },
    Writes { started_s: f64, left: f64 },
    Restarts { until_s: f64 },
}

struct Batch {
    first_s: f64,
    ready_s: f64,
    bytes: f64,
}

pub struct World<'s> {
    setup: &'s Setup,
    chance: Chance,
    now: f64,
    alive: f64,
    job: Job,
    progress: f64,
    saved: f64,
    queue: VecDeque<Batch>,
    /// Bytes of the checkpoint that is written, which the lake does not have.
    pending: f64,
    /// Undrained bytes with so many copies left.
    dirty: [f64; COPIES_MAX + 1],
    hurt_since: Option<f64>,
    repair_from: f64,
    lake_back: f64,
    /// When lost nodes are made up for, in order.
    replaced: VecDeque<f64>,
    crash: f64,
    loss: f64,
    drive: f64,
    outage: f64,
    is_struck: bool,
    out: Outcome,
}

impl<'s> World<'s> {
    pub fn new(setup: &'s Setup, seed: u64, run: u64) -> World<'s> {
        let mut chance = Chance::new(seed, run);
        let crash = chance.wait(setup.nodes * setup.crash_rate);
        let loss = chance.wait(setup.nodes * setup.loss_rate);
        let drive = chance.wait(setup.nodes * setup.drives * setup.drive_rate);
        let outage = chance.wait(setup.outage_rate);
        World {
            setup,
            chance,
            now: 0.0,
            alive: setup.nodes,
            job: Job::Trains { next_s: setup.every_s },
            progress: 0.0,
            saved: 0.0,
            queue: VecDeque::new(),
            pending: 0.0,
            dirty: [0.0; COPIES_MAX + 1],
            hurt_since: None,
            repair_from: 0.0,
            lake_back: 0.0,
            replaced: VecDeque::new(),
            crash,
            loss,
            drive,
            outage,
            is_struck: setup.strike == Strike::None,
            out: Outcome::default(),
        }
    }

    /// Runs to the end, or until so many events have passed.
    pub fn run(mut self, events_max: usize) -> Outcome {
        for _ in 0..events_max {
            let next = self.next_event();
            self.advance(next.min(self.setup.end_s));
            if self.now >= self.setup.end_s {
                break;
            }
            self.act();
        }
        self.out.trained_s = self.progress;
        if let Some(since) = self.hurt_since {
            self.out.hurt_longest_s = self.out.hurt_longest_s.max(self.now - since);
        }
        self.out
    }

    fn undrained(&self) -> f64 {
        self.dirty[1..].iter().sum()
    }

    fn hurt(&self) -> f64 {
        self.dirty[1..self.setup.copies].iter().sum()
    }

    /// Bytes on drives that have to stay.
    fn held(&self) -> f64 {
        self.dirty.iter().enumerate().map(|(copies, bytes)| copies as f64 * bytes).sum()
    }

    fn room(&self) -> f64 {
        self.setup.ring * self.alive / self.setup.nodes - self.held()
    }

    fn is_lake_there(&self) -> bool {
        self.now >= self.lake_back
    }

    fn drain_rate(&self) -> f64 {
        let is_due = self.queue.front().is_some_and(|batch| batch.ready_s <= self.now);
        if is_due && self.is_lake_there() { self.setup.lake_rate } else { 0.0 }
    }

    fn is_full(&self) -> bool {
        self.room() <= self.setup.copies as f64 * LEAST
    }

    /// Bytes per second of the checkpoint that is written. With full rings it goes as fast as the lake makes room.
    fn write_rate(&self) -> f64 {
        let Job::Writes { .. } = self.job else { return 0.0 };
        let most = self.setup.commit_rate * self.alive / self.setup.nodes;
        match self.is_full() {
            false => most,
            true if self.is_lake_there() => most.min(self.setup.lake_rate),
            true => 0.0,
        }
    }

    fn repair_rate(&self) -> f64 {
        let can = self.now >= self.repair_from && self.alive >= self.setup.copies as f64;
        if can { self.alive * self.setup.repair_rate } else { 0.0 }
    }

    /// When something changes next.
    fn next_event(&self) -> f64 {
        let mut next = self.crash.min(self.loss).min(self.drive).min(self.outage);
        // The job acts at once on what is due; of the others, what is past has acted.
        let job = match self.job {
            Job::Trains { next_s } => next_s,
            Job::Begins { until_s, .. } | Job::Restarts { until_s } => until_s,
            Job::Writes { left, .. } if left <= LEAST => self.now,
            Job::Writes { left, .. } => self.now + left / self.write_rate(),
        };
        next = next.min(job.max(self.now));
        let mut at = |time: f64| {
            if time > self.now {
                next = next.min(time);
            }
        };
        at(self.lake_back);
        at(self.repair_from);
        if let Some(time) = self.replaced.front() {
            at(*time);
        }
        if !self.is_struck {
            at(self.setup.strike_s);
        }
        let drains = self.drain_rate();
        if let Some(batch) = self.queue.front() {
            at(if drains > 0.0 { self.now + batch.bytes / drains } else { batch.ready_s });
        }
        if self.hurt() > LEAST && self.repair_rate() > 0.0 {
            at(self.now + self.hurt() / (self.repair_rate() + drains));
        }
        let fills = self.setup.copies as f64 * (self.write_rate() - drains);
        if fills > 0.0 && !self.is_full() {
            at(self.now + self.room() / fills);
        }
        // A hair further, so that what ends then has ended.
        next + HAIR_S
    }

    /// Moves everything on to a time.
    fn advance(&mut self, to: f64) {
        let span = (to - self.now).max(0.0);
        let (writes, drains, repairs) = (self.write_rate(), self.drain_rate(), self.repair_rate());
        let is_full = self.is_full();
        if matches!(self.job, Job::Writes { .. }) && is_full {
            self.out.held_s += span;
        }
        let trains = match self.job {
            Job::Trains { .. } => 1.0,
            Job::Begins { .. } | Job::Writes { .. } => 1.0 - self.setup.blocked_share,
            Job::Restarts { .. } => 0.0,
        };
        self.progress += trains * span;
        self.now = to;
        if let Job::Writes { started_s, left } = self.job {
            let wrote = (writes * span).min(left);
            // With full rings and nothing to drain, parts of the file leave while it is written.
            if !(is_full && drains == 0.0) {
                self.dirty[self.setup.copies] += wrote;
                self.pending += wrote;
            }
            self.job = Job::Writes { started_s, left: left - wrote };
        }
        self.drained(drains * span);
        // Those with the fewest copies first.
        let mut can = repairs * span;
        for copies in 1..self.setup.copies {
            let moved = self.dirty[copies].min(can);
            self.dirty[copies] -= moved;
            self.dirty[copies + 1] += moved;
            can -= moved;
        }
        self.note();
    }

    /// The oldest leave the queue; those with the fewest copies are drained before others.
    fn drained(&mut self, bytes: f64) {
        let mut left = bytes;
        while left > 0.0 {
            let Some(front) = self.queue.front_mut() else { break };
            let took = front.bytes.min(left);
            front.bytes -= took;
            left -= took;
            if front.bytes > LEAST {
                break;
            }
            self.out.drains.push(self.now - front.first_s);
            self.queue.pop_front();
        }
        let mut gone = bytes - left;
        for copies in 1..=self.setup.copies {
            let took = self.dirty[copies].min(gone);
            self.dirty[copies] -= took;
            gone -= took;
        }
    }

    fn note(&mut self) {
        let (undrained, hurt) = (self.undrained(), self.hurt());
        self.out.dirty_max = self.out.dirty_max.max(undrained);
        self.out.ring_max = self.out.ring_max.max(self.held() / self.setup.ring);
        self.out.hurt_max = self.out.hurt_max.max(hurt);
        match self.hurt_since {
            None if hurt > LEAST => self.hurt_since = Some(self.now),
            Some(since) if hurt <= LEAST => {
                self.out.hurt_longest_s = self.out.hurt_longest_s.max(self.now - since);
                self.hurt_since = None;
            }
            _ => {}
        }
        let step = self.setup.end_s / POINTS as f64;
        let at = (self.now / step).floor() * step;
        match self.out.timeline.last_mut() {
            Some(last) if last.0 >= at => *last = (last.0, last.1.max(undrained), last.2.max(hurt)),
            _ => self.out.timeline.push((at, undrained, hurt)),
        }
    }

    /// What is due now.
    fn act(&mut self) {
        self.job_acts();
        let now = self.now;
        while self.replaced.front().is_some_and(|time| *time <= now) {
            self.replaced.pop_front();
            self.alive += 1.0;
        }
        if !self.is_struck && now >= self.setup.strike_s {
            self.is_struck = true;
            match self.setup.strike {
                Strike::Node => self.lose_nodes(1.0),
                Strike::Rack => self.lose_rack(),
                Strike::Lake => self.lake_back = self.lake_back.max(now + self.setup.outage_s),
                Strike::None => {}
            }
        }
        if now >= self.crash {
            self.crash = now + self.chance.wait(self.setup.nodes * self.setup.crash_rate);
            self.job_fails();
        }
        if now >= self.loss {
            self.loss = now + self.chance.wait(self.setup.nodes * self.setup.loss_rate);
            self.lose_nodes(1.0);
        }
        if now >= self.drive {
            self.drive = now + self.chance.wait(self.setup.nodes * self.setup.drives * self.setup.drive_rate);
            self.lose_copies(1.0 / self.setup.drives, self.alive);
        }
        if now >= self.outage {
            self.lake_back = self.lake_back.max(now + self.setup.outage_s);
            self.outage = self.lake_back + self.chance.wait(self.setup.outage_rate);
        }
        self.note();
    }

    fn job_acts(&mut self) {
        let now = self.now;
        self.job = match self.job {
            Job::Trains { next_s } if now >= next_s => {
                Job::Begins { started_s: now, until_s: now + self.setup.begin_s }
            }
            Job::Begins { started_s, until_s } if now >= until_s => {
                Job::Writes { started_s, left: self.setup.checkpoint }
            }
            Job::Writes { started_s, left } if left <= LEAST => {
                self.out.saves.push(now - started_s);
                self.saved = self.progress;
                let ready_s = now + self.setup.quiet_s;
                self.queue.push_back(Batch { first_s: started_s, ready_s, bytes: self.pending.max(LEAST) });
                self.pending = 0.0;
                // The next one is due by the clock; one that took too long is followed at once.
                Job::Trains { next_s: (started_s + self.setup.every_s).max(now) }
            }
            Job::Restarts { until_s } if now >= until_s => Job::Trains { next_s: now + self.setup.every_s },
            other => other,
        };
    }

    /// Training goes back to the last checkpoint; one that was being written is given up.
    fn job_fails(&mut self) {
        self.out.failures += 1;
        self.progress = self.saved;
        let mut gone = std::mem::take(&mut self.pending);
        for copies in (1..=self.setup.copies).rev() {
            let took = self.dirty[copies].min(gone);
            self.dirty[copies] -= took;
            gone -= took;
        }
        self.job = Job::Restarts { until_s: self.now + self.setup.restart_s };
    }

    fn lose_nodes(&mut self, count: f64) {
        let mut left = count.min(self.alive);
        while left >= 1.0 {
            self.lose_copies(1.0, self.alive);
            self.gone();
            left -= 1.0;
        }
        self.job_fails();
    }

    /// A rack at once: of bytes that are spread over racks it has one copy at most.
    fn lose_rack(&mut self) {
        let count = self.setup.nodes_per_rack.min(self.alive);
        if !self.setup.is_spread_over_racks {
            return self.lose_nodes(count);
        }
        self.lose_copies(count, self.alive);
        (0..count as u64).for_each(|_| self.gone());
        self.job_fails();
    }

    fn gone(&mut self) {
        self.alive -= 1.0;
        self.replaced.push_back(self.now + self.setup.replace_s);
    }

    /// A share of one of so many nodes is gone, with its copies.
    fn lose_copies(&mut self, nodes: f64, of: f64) {
        for copies in 1..=self.setup.copies {
            let share = (copies as f64 * nodes / of.max(1.0)).min(1.0);
            let moved = self.dirty[copies] * share;
            self.dirty[copies] -= moved;
            if copies > 1 {
                self.dirty[copies - 1] += moved;
            } else {
                self.lose(moved);
            }
        }
        self.repair_from = self.repair_from.max(self.now + self.setup.detect_s);
    }

    fn lose(&mut self, bytes: f64) {
        let is_one = bytes >= CHUNK || self.chance.share() <= bytes / CHUNK;
        if bytes > 0.0 && is_one {
            self.out.lost += bytes.max(CHUNK);
        }
        // They drain no more.
        let mut left = bytes;
        while left > 0.0 {
            let Some(back) = self.queue.back_mut() else { break };
            let took = back.bytes.min(left);
            back.bytes -= took;
            left -= took;
            if back.bytes > LEAST {
                break;
            }
            self.queue.pop_back();
        }
    }
}
