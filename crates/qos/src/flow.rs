//! A flow: what it is promised and allowed, what it used of that, and its work that waits, apart by group.

use crate::bucket::{Bucket, SECOND};
use crate::counters::Counters;
use crate::group::Group;
use crate::requests::Line;
use crate::settings::{Cost, Spec};

/// Parts of a resource: a promise is a number of these.
pub(crate) const PARTS: u64 = 1_000_000_000;

/// A flow that was not given its floor is owed that for this long; what is older is forgotten, so that a drive that stalled does not
/// belong to one flow afterwards.
const OWED_NS_MAX: u64 = SECOND;

/// A promise: when the next part of it is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// Of [`PARTS`].
    pub parts: u64,
    pub due: u64,
}

impl Floor {
    /// How long a flow with this share of the resource has to wait for so much of it.
    fn takes(&self, work: u64) -> u64 {
        // Wide division is slow, and hardly ever needed.
        match work.checked_mul(PARTS) {
            Some(product) => product / self.parts.max(1),
            None => {
                let takes = u128::from(work) * u128::from(PARTS) / u128::from(self.parts.max(1));
                takes.min(u128::from(u64::MAX / 4)) as u64
            }
        }
    }

    /// Work comes after a pause: some of what was not asked for may be claimed, and no more.
    pub fn wake(&mut self, now: u64, burst_ns: u64) {
        self.due = self.due.max(now.saturating_sub(burst_ns));
    }

    /// It was given so much. What it gets beyond its promise is no debt: from any moment on the promise holds.
    pub fn give(&mut self, now: u64, work: u64) {
        let takes = self.takes(work);
        let due = self.due.max(now.saturating_sub(OWED_NS_MAX)).saturating_add(takes);
        self.due = due.min(now.saturating_add(takes));
    }
}

/// Where the first request of a lane stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Place {
    /// Nothing waits.
    #[default]
    Idle,
    /// It could go; its turn comes at this virtual time.
    Ready(u128),
    /// Its flow is at its ceiling until then.
    Blocked(u64),
    /// Its flow has as many operations in flight as it may.
    Parked,
}

/// The work of a flow in one group, in the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub line: Line,
    pub place: Place,
    /// When its last turn ended, in the virtual time of the group.
    pub end: u128,
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub spec: Spec,
    /// It has a rule of its own; others go when nobody uses them.
    pub is_kept: bool,
    ceilings: [Option<Bucket>; 2],
    pub floor: Option<Floor>,
    /// The key under which its promise is listed.
    pub listed: Option<u64>,
    pub in_flight: u32,
    pub lanes: [Lane; 7],
    pub counters: Counters,
}

impl Flow {
    pub fn new(spec: Spec, is_kept: bool, parts: u64) -> Flow {
        let (ceilings, lanes, counters) = Default::default();
        let mut flow =
            Flow { spec, is_kept, ceilings, floor: None, listed: None, in_flight: 0, lanes, counters };
        flow.set(spec, parts);
        flow
    }

    /// What was used before counts against the new rates.
    pub fn set(&mut self, spec: Spec, parts: u64) {
        let [bytes, ops] = &self.ceilings;
        let bucket = |rate: Option<u64>, old: &Option<Bucket>| {
            rate.map(|rate| Bucket::new(rate, spec.burst_ns).following(old.as_ref()))
        };
        self.ceilings = [bucket(spec.ceiling.bytes_per_s, bytes), bucket(spec.ceiling.ops_per_s, ops)];
        let due = self.floor.map_or(0, |floor| floor.due);
        self.floor = (parts > 0).then_some(Floor { parts, due });
        self.spec = spec;
    }

    /// When its ceilings let this go.
    pub fn ready_at(&self, cost: Cost) -> u64 {
        let [bytes, ops] = &self.ceilings;
        let bytes = bytes.as_ref().map_or(0, |bucket| bucket.ready_at(cost.bytes));
        ops.as_ref().map_or(bytes, |bucket| bytes.max(bucket.ready_at(u64::from(cost.ops))))
    }

    pub fn has_depth(&self) -> bool {
        self.spec.depth.is_none_or(|depth| self.in_flight < depth)
    }

    pub fn give(&mut self, now: u64, cost: Cost, work: u64) {
        let [bytes, ops] = &mut self.ceilings;
        if let Some(bucket) = bytes {
            bucket.take(now, cost.bytes);
        }
        if let Some(bucket) = ops {
            bucket.take(now, u64::from(cost.ops));
        }
        if let Some(floor) = &mut self.floor {
            floor.give(now, work);
        }
        self.in_flight += 1;
        self.counters.grant(u64::from(cost.ops), cost.bytes);
    }

    pub fn lane(&self, group: Group) -> &Lane {
        &self.lanes[group as usize]
    }

    pub fn lane_mut(&mut self, group: Group) -> &mut Lane {
        &mut self.lanes[group as usize]
    }

    /// True if nothing would be lost by forgetting it, but for its counters.
    pub fn is_idle(&self, now: u64, times: &[u128; 7]) -> bool {
        self.in_flight == 0
            && self.counters.waiting == 0
            && self.ceilings.iter().flatten().all(|bucket| bucket.is_full(now))
            && self.lanes.iter().zip(times).all(|(lane, time)| lane.end <= *time)
    }
}
