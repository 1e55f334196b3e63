//! The scheduler of one resource. The module doc of the crate says what it decides, and in which order.
//!
//! Whoever drives it calls [`Scheduler::next`] until it grants no more, after everything that may let somebody go on: a request that
//! was queued, one that is done, one that was withdrawn, and the time that `next` said.

use std::collections::BTreeSet;

use crate::bucket::{Bucket, SECOND};
use crate::counters::Counters;
use crate::flow::{Flow, Place};
use crate::group::{FINE, GROUPS, Group, Groups, virtual_of};
use crate::meter::Meter;
use crate::requests::{Asked, Requests, Ticket};
use crate::reservation::Reservations;
use crate::rules::{Match, Rules};
use crate::settings::{Capacity, Cost, OP_BYTES, Settings, Spec};
use crate::table::Table;
use crate::tag::{CLASSES, Class, Tag};

/// How far a flow may get ahead of its share by what it was promised, in work: nanoseconds of the resource, or bytes. When the promise
/// ends it waits for no more than this.
const AHEAD_MAX: u64 = 100_000_000;

/// What promises may owe to all others at most.
const OWED_MAX: u64 = 100_000_000;

/// What was granted; given back by [`Scheduler::complete`].
#[derive(Debug)]
#[must_use = "what is not completed stays in flight"]
pub struct Granted {
    flow: u32,
    stamp: u32,
    cost: Cost,
}

impl Granted {
    /// What it was granted for.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Submitted {
    /// It may begin.
    Granted(Granted),
    /// It waits; [`Scheduler::next`] will name it.
    Queued(Ticket),
}

/// What may happen now.
#[derive(Debug)]
pub enum Next {
    /// This request may begin.
    Grant(Ticket, Granted),
    /// Nothing before this time, unless something is done, withdrawn or asked for; then probably this request.
    At(u64, Ticket),
    /// Nothing, until something is done or asked for.
    Idle,
}

/// Why a request cannot even wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overload {
    /// As many requests of this flow wait as may: ask again later, and ask for less at once.
    Flow,
    /// As many requests of all flows wait as may.
    All,
    /// It is larger than any request may be, or no operation: ask for parts of it.
    Size,
}

impl std::fmt::Display for Overload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Overload::Flow => "too many requests of this flow wait",
            Overload::All => "too many requests wait",
            Overload::Size => "a request of this size is not granted: ask for parts of it",
        })
    }
}

impl std::error::Error for Overload {}

/// A flow as it is now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowReport {
    /// What it is promised and allowed.
    pub spec: Spec,
    /// What it got.
    pub counters: Counters,
    /// Operations of it in flight.
    pub in_flight: u32,
}

/// Who may use one resource now.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    pub(crate) flows: Table<Flow>,
    pub(crate) reservations: Reservations,
    requests: Requests,
    groups: Groups,
    /// Flows with a promise that could go, by when it is due.
    promised: BTreeSet<(u64, u32)>,
    /// Lanes at their ceiling, by when they may go on.
    blocked: BTreeSet<(u64, u32, u8)>,
    /// Lanes that could go.
    ready: usize,
    pacer: Option<Bucket>,
    in_flight: (u32, u64),
    meter: Meter,
    /// What promises took while others waited, and others did not get yet.
    owed: u64,
    classes: [Counters; 6],
    /// Flows of work that no rule is about and that belongs to nobody, per class.
    others: [u32; 6],
}

impl Scheduler {
    /// Nothing is promised, and nobody waits.
    pub fn new(settings: Settings) -> Scheduler {
        let mut flows = Table::default();
        let others = CLASSES.map(|_| flows.insert(Flow::new(Spec::default(), true, 0)).0);
        let mut scheduler = Scheduler {
            settings,
            rules: Rules::new(settings.flows_max.saturating_mul(4)),
            flows,
            reservations: Reservations::default(),
            requests: Requests::default(),
            groups: Groups::new(settings.weights),
            promised: BTreeSet::new(),
            blocked: BTreeSet::new(),
            ready: 0,
            pacer: None,
            in_flight: (0, 0),
            meter: Meter::default(),
            owed: 0,
            classes: Default::default(),
            others,
        };
        scheduler.set_pacer();
        scheduler
    }

    /// Asks for the resource.
    pub fn submit(&mut self, now: u64, tag: Tag, cost: Cost) -> Result<Submitted, Overload> {
        if !cost.is_valid() {
            return Err(Overload::Size);
        }
        if self.reservations.is_any_over(now) {
            self.expire(now);
        }
        let at = match self.rules.known(&tag) {
            Some(at) => at,
            None => self.find(now, tag),
        };
        let class = tag.class as usize;
        self.classes[class].ask(u64::from(cost.ops), cost.bytes);
        let is_free = self.ready == 0 && self.blocked.first().is_none_or(|(until, ..)| *until > now);
        let Some(flow) = self.flows.get_mut(at) else { return Err(Overload::Flow) };
        flow.counters.ask(u64::from(cost.ops), cost.bytes);
        let group = Group::of(tag.class, flow.spec.latency);
        if is_free
            && flow.lane(group).line.len == 0
            && flow.has_depth()
            && flow.ready_at(cost) <= now
            && has_room(&self.settings, self.in_flight, cost)
        {
            let work = self.settings.work(cost);
            if self.pacer.as_ref().is_none_or(|pacer| pacer.ready_at(work) <= now) {
                self.classes[class].grant(u64::from(cost.ops), cost.bytes);
                return Ok(Submitted::Granted(self.give(now, at, cost, work)));
            }
        }
        let counters = &mut flow.counters;
        let is_full = match () {
            _ if self.requests.len() >= self.settings.waiting_max => Some(Overload::All),
            _ if counters.waiting as usize >= self.settings.flow_waiting_max => Some(Overload::Flow),
            _ => None,
        };
        if let Some(refused) = is_full {
            counters.refused += 1;
            self.classes[class].refused += 1;
            return Err(refused);
        }
        counters.waiting += 1;
        self.classes[class].waiting += 1;
        if counters.waiting == 1 {
            let burst_ns = flow.spec.burst_ns;
            if let Some(floor) = &mut flow.floor {
                floor.wake(now, burst_ns);
            }
        }
        let line = &mut flow.lane_mut(group).line;
        let ticket = self.requests.push(line, Asked { flow: at, cost, class: tag.class, group, since: now });
        self.refresh(now, at);
        Ok(Submitted::Queued(ticket))
    }

    /// What may happen now. A request that it grants waits no more.
    pub fn next(&mut self, now: u64) -> Next {
        if self.reservations.is_any_over(now) {
            self.expire(now);
        }
        self.unblock(now);
        let Some((group, at, is_promised)) = self.choose(now) else {
            return match self.blocked.first() {
                Some(&(until, at, group)) => match self.head(at, GROUPS[group as usize]) {
                    Some((ticket, ..)) => Next::At(until, ticket),
                    None => Next::Idle,
                },
                None => Next::Idle,
            };
        };
        let Some((ticket, cost, since)) = self.head(at, group) else { return Next::Idle };
        let work = self.settings.work(cost);
        if !has_room(&self.settings, self.in_flight, cost) {
            return Next::Idle;
        }
        if let Some(until) =
            self.pacer.as_ref().map(|pacer| pacer.ready_at(work)).filter(|until| *until > now)
        {
            // Whoever is at a ceiling until then may be somebody who goes first.
            return match self.blocked.first() {
                Some(&(earlier, ..)) if earlier < until => Next::At(earlier, ticket),
                _ => Next::At(until, ticket),
            };
        }
        self.account(group, work, is_promised);
        let Some(class) = self.take_out(ticket) else { return Next::Idle };
        let class = class as usize;
        let waited = now.saturating_sub(since);
        self.classes[class].wait(waited);
        self.classes[class].grant(u64::from(cost.ops), cost.bytes);
        self.charge(at, group, work);
        if let Some(flow) = self.flows.get_mut(at) {
            flow.counters.wait(waited);
        }
        let granted = self.give(now, at, cost, work);
        self.refresh(now, at);
        Next::Grant(ticket, granted)
    }

    /// The work is done, well or not.
    pub fn complete(&mut self, now: u64, granted: Granted) {
        let Granted { flow: at, stamp, cost } = granted;
        self.in_flight.0 = self.in_flight.0.saturating_sub(cost.ops);
        self.in_flight.1 = self.in_flight.1.saturating_sub(cost.bytes);
        self.meter.end(now, cost, self.in_flight.0 == 0);
        if self.flows.stamp(at) != stamp {
            return;
        }
        let Some(flow) = self.flows.get_mut(at) else { return };
        flow.in_flight -= 1;
        if flow.lanes.iter().any(|lane| lane.place == Place::Parked) {
            self.refresh(now, at);
        }
    }

    /// Withdraws a request that waits. False if it does not wait any more.
    pub fn cancel(&mut self, now: u64, ticket: Ticket) -> bool {
        let Some(at) = self.requests.get(ticket).map(|request| request.flow) else { return false };
        let Some(class) = self.take_out(ticket) else { return false };
        self.classes[class as usize].cancelled += 1;
        if let Some(flow) = self.flows.get_mut(at) {
            flow.counters.cancelled += 1;
        }
        self.refresh(now, at);
        true
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Operations and bytes in flight.
    pub fn in_flight(&self) -> (u32, u64) {
        self.in_flight
    }

    /// What it is taken to do, of which floors are parts.
    pub fn capacity(&self) -> Capacity {
        self.settings.capacity
    }

    /// What it was seen to do lately.
    pub fn seen(&self) -> Capacity {
        self.meter.capacity()
    }

    /// What it did before anything was seen.
    pub fn recall(&mut self, capacity: Capacity) {
        self.meter.recall(capacity);
    }

    /// Other limits on what is in flight. More room lets somebody go on; what is in flight beyond less of it stays there.
    pub fn set_depth(&mut self, ops: u32, bytes: u64) {
        (self.settings.depth_ops, self.settings.depth_bytes) = (ops.max(1), bytes.max(1));
    }

    /// What work of this class got.
    pub fn class(&self, class: Class) -> Counters {
        self.classes[class as usize]
    }

    /// The flow of a rule.
    pub fn flow(&self, rule: &Match) -> Option<FlowReport> {
        let flow = self.flows.get(self.rules.get(rule)?)?;
        Some(FlowReport { spec: flow.spec, counters: flow.counters, in_flight: flow.in_flight })
    }

    /// Flows that are told apart now.
    pub fn flows(&self) -> usize {
        self.flows.len() - self.others.len()
    }

    pub(crate) fn set_pacer(&mut self) {
        let Settings { capacity, is_paced, burst_ns, .. } = self.settings;
        // Work of a known resource is its own time.
        self.pacer = (is_paced && !capacity.is_none())
            .then(|| Bucket::new(SECOND, burst_ns).following(self.pacer.as_ref()));
    }

    /// The flow of work that was not seen before.
    fn find(&mut self, now: u64, tag: Tag) -> u32 {
        let at = match self.rules.find(tag) {
            Some(at) => at,
            None if tag.tenant.0 == 0 && tag.job.0 == 0 => self.others[tag.class as usize],
            None => {
                let owner = Tag { volume: Default::default(), ..tag };
                match self.rules.known(&owner) {
                    Some(at) => at,
                    None if self.has_place(now) => {
                        let at = self.flows.insert(Flow::new(Spec::default(), false, 0)).0;
                        self.rules.note(owner, at);
                        at
                    }
                    None => self.others[tag.class as usize],
                }
            }
        };
        self.rules.note(tag, at);
        at
    }

    /// Whether one more flow can be told apart; forgets those that nobody uses.
    pub(crate) fn has_place(&mut self, now: u64) -> bool {
        if self.flows() < self.settings.flows_max {
            return true;
        }
        let times = std::array::from_fn(|group| self.groups.members[group].time);
        let idle = |(at, flow): (u32, &Flow)| (!flow.is_kept && flow.is_idle(now, &times)).then_some(at);
        let idle: Vec<u32> = self.flows.iter().filter_map(idle).collect();
        for at in &idle {
            self.flows.remove(*at);
        }
        if !idle.is_empty() {
            self.rules.forget_tags();
        }
        self.flows() < self.settings.flows_max
    }

    fn head(&self, at: u32, group: Group) -> Option<(Ticket, Cost, u64)> {
        let flow = self.flows.get(at)?;
        let (ticket, request) = self.requests.first(&flow.lane(group).line)?;
        Some((ticket, request.cost, request.since))
    }

    /// Those whose ceiling lets them go on may go on.
    fn unblock(&mut self, now: u64) {
        while let Some(&(until, at, _)) = self.blocked.first() {
            if until > now {
                return;
            }
            self.refresh(now, at);
        }
    }

    /// Who goes next of those who could, and whether it is for a promise.
    fn choose(&mut self, now: u64) -> Option<(Group, u32, bool)> {
        let due = self.promised.first().filter(|(due, _)| *due <= now).map(|(_, flow)| *flow);
        let (requests, flows, settings) = (&self.requests, &self.flows, &self.settings);
        let work_of = |group: Group, at: u32| {
            let head = flows.get(at).and_then(|flow| requests.first(&flow.lane(group).line));
            head.map_or(0, |(_, request)| settings.work(request.cost))
        };
        let Some(at) = due else {
            return self.groups.choose(work_of, None).map(|(group, at)| (group, at, false));
        };
        if self.owed > 0 && self.ready > 1 {
            let others = self.groups.choose(work_of, Some(at));
            if let Some((group, other)) = others.filter(|(group, other)| work_of(*group, *other) <= self.owed)
            {
                return Some((group, other, false));
            }
        }
        let flow = self.flows.get(at)?;
        let is_ready = |group: &&Group| matches!(flow.lane(**group).place, Place::Ready(_));
        GROUPS.iter().find(is_ready).map(|group| (*group, at, true))
    }

    /// Notes for whom it was: promises take nobody's turn, but owe a part to those who wait.
    fn account(&mut self, group: Group, work: u64, is_promised: bool) {
        if is_promised {
            let part = u64::from(self.settings.promised_percent_max.clamp(1, 99));
            let more = if self.ready > 1 { work.saturating_mul(100 - part) / part } else { 0 };
            self.owed = (self.owed.saturating_add(more)).min(OWED_MAX);
        } else {
            self.owed = self.owed.saturating_sub(work);
            self.groups.went(group, work);
        }
    }

    /// Takes a request out of its lane; the lane has to be looked at again.
    fn take_out(&mut self, ticket: Ticket) -> Option<Class> {
        let Asked { flow: at, class, group, .. } = *self.requests.get(ticket)?;
        let flow = self.flows.get_mut(at)?;
        self.requests.remove(&mut flow.lane_mut(group).line, ticket)?;
        flow.counters.waiting -= 1;
        self.classes[class as usize].waiting -= 1;
        Some(class)
    }

    /// A flow used its turn in its group.
    fn charge(&mut self, at: u32, group: Group, work: u64) {
        let Some(flow) = self.flows.get_mut(at) else { return };
        let weight = flow.spec.weight;
        let has_floor = flow.floor.is_some();
        let members = &mut self.groups.members[group as usize];
        let lane = flow.lane_mut(group);
        let start = match lane.place {
            Place::Ready(start) => start,
            _ => lane.end.max(members.time),
        };
        let mut end = start + virtual_of(work, weight);
        if has_floor {
            end = end.min(members.time + u128::from(AHEAD_MAX) * FINE / u128::from(weight)).max(start);
        }
        lane.end = end;
        // A promise that was kept says nothing about whose turn it is.
        let turn = members.ready.first().map_or(start, |(first, _)| *first);
        members.went(turn.min(start), end);
    }

    fn give(&mut self, now: u64, at: u32, cost: Cost, work: u64) -> Granted {
        self.meter.begin(now);
        self.in_flight.0 += cost.ops;
        self.in_flight.1 += cost.bytes;
        if let Some(pacer) = &mut self.pacer {
            pacer.take(now, work);
        }
        if let Some(flow) = self.flows.get_mut(at) {
            if flow.counters.waiting == 0 {
                let burst_ns = flow.spec.burst_ns;
                if let Some(floor) = &mut flow.floor {
                    floor.wake(now, burst_ns);
                }
            }
            flow.give(now, cost, work);
        }
        Granted { flow: at, stamp: self.flows.stamp(at), cost }
    }

    /// Looks at all lanes of a flow again: something of it changed.
    pub(crate) fn refresh(&mut self, now: u64, at: u32) {
        let Some(flow) = self.flows.get_mut(at) else { return };
        let mut is_ready = false;
        for group in GROUPS {
            let lane = flow.lane(group);
            let head = self.requests.first(&lane.line).map(|(_, request)| request.cost);
            let time = self.groups.members[group as usize].time;
            let place = match (head, lane.place) {
                (None, Place::Idle) => continue,
                (None, _) => Place::Idle,
                (Some(_), _) if !flow.has_depth() => Place::Parked,
                (Some(cost), place) => match (flow.ready_at(cost), place) {
                    (until, _) if until > now => Place::Blocked(until),
                    // A turn that did not end yet stays.
                    (_, Place::Ready(start)) if start >= lane.end => Place::Ready(start),
                    _ => Place::Ready(lane.end.max(time)),
                },
            };
            let lane = flow.lane_mut(group);
            let old = std::mem::replace(&mut lane.place, place);
            is_ready |= matches!(place, Place::Ready(_));
            if old == place {
                continue;
            }
            match place {
                Place::Ready(start) => {
                    self.groups.insert(group, start, at);
                    self.ready += 1;
                }
                Place::Blocked(until) => {
                    self.blocked.insert((until, at, group as u8));
                }
                Place::Idle | Place::Parked => {}
            }
            match old {
                Place::Ready(start) => {
                    self.groups.remove(group, start, at);
                    self.ready -= 1;
                }
                Place::Blocked(until) => {
                    self.blocked.remove(&(until, at, group as u8));
                }
                Place::Idle | Place::Parked => {}
            }
        }
        let key = flow.floor.filter(|_| is_ready).map(|floor| floor.due);
        if key != flow.listed {
            if let Some(due) = flow.listed {
                self.promised.remove(&(due, at));
            }
            if let Some(due) = key {
                self.promised.insert((due, at));
            }
            flow.listed = key;
        }
    }
}

fn has_room(settings: &Settings, (ops, bytes): (u32, u64), cost: Cost) -> bool {
    ops == 0
        || (ops.saturating_add(cost.ops) <= settings.depth_ops
            && bytes.saturating_add(cost.bytes) <= settings.depth_bytes)
}

impl Settings {
    /// What a request takes of the resource: its time in nanoseconds if the capacity is known, or bytes.
    pub(crate) fn work(&self, cost: Cost) -> u64 {
        let ops = u64::from(cost.ops);
        let by_bytes = |rate: u64| cost.bytes * SECOND / rate;
        let by_ops = |rate: u64| ops * SECOND / rate;
        match (self.capacity.bytes_per_s, self.capacity.ops_per_s) {
            (Some(bytes), Some(per_s)) => by_bytes(bytes).max(by_ops(per_s)).max(1),
            (Some(bytes), None) => by_bytes(bytes).max(1),
            (None, Some(per_s)) => by_ops(per_s).max(1),
            (None, None) => cost.bytes.max(ops * OP_BYTES),
        }
    }
}
