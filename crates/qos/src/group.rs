//! Groups share what is left by weight. There are seven, so each question about them is a walk over seven.
//!
//! The rule is that of WF2Q+: a group whose turn has not come yet does not go although it could, so going first (interactive work)
//! is no way to get more than a burst. Virtual time is the work that was done, divided by the weights of those who wanted it.

use std::collections::BTreeSet;

use crate::settings::{Latency, WEIGHT_MAX};
use crate::tag::Class;

/// Those who share what is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Group {
    /// Interactive work of any class.
    Interactive,
    /// Bulk work of clients.
    Client,
    /// Checkpoints.
    Checkpoint,
    /// Drains.
    Drain,
    /// Staging.
    Stage,
    /// Repair.
    Repair,
    /// Scrubbing.
    Scrub,
}

/// All groups, in the order of their weights in [`crate::Settings`].
pub const GROUPS: [Group; 7] = [
    Group::Interactive,
    Group::Client,
    Group::Checkpoint,
    Group::Drain,
    Group::Stage,
    Group::Repair,
    Group::Scrub,
];

impl Group {
    pub(crate) fn of(class: Class, latency: Latency) -> Group {
        match (latency, class) {
            (Latency::Interactive, _) => Group::Interactive,
            (Latency::Bulk, Class::Client) => Group::Client,
            (Latency::Bulk, Class::Checkpoint) => Group::Checkpoint,
            (Latency::Bulk, Class::Drain) => Group::Drain,
            (Latency::Bulk, Class::Stage) => Group::Stage,
            (Latency::Bulk, Class::Repair) => Group::Repair,
            (Latency::Bulk, Class::Scrub) => Group::Scrub,
        }
    }
}

/// Virtual time is finer than work by this, so that weights can divide it.
pub(crate) const FINE: u128 = 1 << 14;

/// The virtual time that so much work takes somebody of this weight. It does not run over: 2^128 is enough for years at any rate.
pub(crate) fn virtual_of(work: u64, weight: u32) -> u128 {
    // Wide division is slow, and hardly ever needed.
    match work.checked_mul(FINE as u64) {
        Some(fine) => u128::from(fine / u64::from(weight)),
        None => u128::from(work) * FINE / u128::from(weight),
    }
}

/// Interactive work may be ahead of its share by so much, in nanoseconds of the resource or bytes: it comes in bursts, and its share
/// counts over some time, not from one request to the next.
const AHEAD: u64 = 20_000_000;

/// One group: who of it could go now, and where it stands among the groups.
#[derive(Debug, Default)]
pub(crate) struct Members {
    weight: u32,
    /// When its next turn comes, in the virtual time of all groups.
    start: u128,
    /// Flows that could go, by the virtual time of the group at which their turn comes.
    pub ready: BTreeSet<(u128, u32)>,
    /// The virtual time within the group: the turn of who went last.
    pub time: u128,
    /// The end of the last turn of any flow.
    pub end: u128,
}

impl Members {
    /// A flow went whose turn was at `start`, until `end`.
    pub fn went(&mut self, start: u128, end: u128) {
        self.time = self.time.max(start);
        self.end = self.end.max(end);
    }
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    pub members: [Members; 7],
    time: u128,
}

impl Groups {
    pub fn new(weights: [u32; 7]) -> Groups {
        let members =
            weights.map(|weight| Members { weight: weight.clamp(1, WEIGHT_MAX), ..Members::default() });
        Groups { members, time: 0 }
    }

    pub fn insert(&mut self, group: Group, start: u128, flow: u32) {
        let members = &mut self.members[group as usize];
        if members.ready.is_empty() {
            members.start = members.start.max(self.time);
        }
        members.ready.insert((start, flow));
    }

    pub fn remove(&mut self, group: Group, start: u128, flow: u32) {
        let members = &mut self.members[group as usize];
        members.ready.remove(&(start, flow));
        if members.ready.is_empty() {
            // Whoever comes next is even with all who were here.
            members.time = members.time.max(members.end);
        }
    }

    /// Whose turn it is. `work_of` says what the next request of a flow in a group takes; one flow may be left out.
    pub fn choose(
        &mut self,
        work_of: impl Fn(Group, u32) -> u64,
        except: Option<u32>,
    ) -> Option<(Group, u32)> {
        let first = |group: &Group| {
            let mut ready = self.members[*group as usize].ready.iter();
            let found = ready.find(|(_, flow)| Some(*flow) != except);
            found.map(|(_, flow)| (self.members[*group as usize].start, *group, *flow))
        };
        let earliest = GROUPS.iter().filter_map(first).map(|(start, ..)| start).min()?;
        let time = self.time.max(earliest);
        let due = GROUPS.iter().filter_map(first).filter(|(start, group, _)| {
            let ahead =
                if *group == Group::Interactive { virtual_of(AHEAD, self.members[0].weight) } else { 0 };
            *start <= time + ahead
        });
        // False is before true: interactive work first.
        let (_, group, flow) = due.min_by_key(|(start, group, flow)| {
            let weight = self.members[*group as usize].weight;
            (*group != Group::Interactive, start + virtual_of(work_of(*group, *flow), weight))
        })?;
        self.time = time;
        Some((group, flow))
    }

    /// A group used its turn; its flow is still among those that could go.
    pub fn went(&mut self, group: Group, work: u64) {
        let waiting = self.members.iter().filter(|members| !members.ready.is_empty());
        let weights: u32 = waiting.map(|members| members.weight).sum();
        let members = &mut self.members[group as usize];
        members.start += virtual_of(work, members.weight);
        self.time += virtual_of(work, weights.max(members.weight));
    }
}
