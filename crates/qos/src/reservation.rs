//! Promises: checked when they are made, ended when nobody renews them. (R16)

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::flow::{Flow, PARTS};
use crate::rules::Match;
use crate::scheduler::Scheduler;
use crate::settings::{Capacity, Rate, Spec};

/// What a flow was promised and allowed, until it is released or nobody renews it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReservationId(pub u64);

/// Why nothing was promised, or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// More than there is: this much is free.
    Floor {
        /// What was asked for.
        asked: Rate,
        /// What could be promised now.
        free: Rate,
    },
    /// Nobody said what the resource can do, so nothing of it can be promised.
    CapacityUnknown,
    /// There is a rule about the same work.
    Exists,
    /// There is no such reservation, or not any more.
    NotFound,
    /// As many flows are told apart as may be.
    Full,
    /// It makes no sense, for this reason.
    Invalid(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |rate: Option<u64>| rate.map_or("no".to_owned(), |rate| rate.to_string());
        match self {
            Refusal::Floor { free, .. } => write!(
                f,
                "the floor cannot be promised: {} bytes/s and {} operations/s are free",
                number(free.bytes_per_s),
                number(free.ops_per_s)
            ),
            Refusal::CapacityUnknown => {
                f.write_str("no floor can be promised: the capacity of this resource is not known")
            }
            Refusal::Exists => f.write_str("there is a reservation for this work already"),
            Refusal::NotFound => f.write_str("there is no such reservation"),
            Refusal::Full => f.write_str("there are too many reservations and flows"),
            Refusal::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    rule: Match,
    flow: u32,
    parts: u64,
    until: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_id: BTreeMap<ReservationId, Reservation>,
    ends: BTreeSet<(u64, ReservationId)>,
    /// The first of `ends`, for those who ask often.
    first_end: Option<u64>,
    next: u64,
    /// The sum of all promises.
    parts: u64,
}

impl Reservations {
    pub fn is_any_over(&self, now: u64) -> bool {
        self.first_end.is_some_and(|end| end <= now)
    }

    fn insert(&mut self, id: ReservationId, reservation: Reservation) {
        self.parts += reservation.parts;
        if let Some(until) = reservation.until {
            self.ends.insert((until, id));
        }
        self.by_id.insert(id, reservation);
        self.first_end = self.ends.first().map(|(end, _)| *end);
    }

    fn remove(&mut self, id: ReservationId) -> Option<Reservation> {
        let reservation = self.by_id.remove(&id)?;
        self.parts -= reservation.parts;
        if let Some(until) = reservation.until {
            self.ends.remove(&(until, id));
        }
        self.first_end = self.ends.first().map(|(end, _)| *end);
        Some(reservation)
    }
}

impl Scheduler {
    /// Promises and allows something to all work that a rule is about, until this time if one is given.
    pub fn reserve(
        &mut self,
        now: u64,
        rule: Match,
        spec: Spec,
        until: Option<u64>,
    ) -> Result<ReservationId, Refusal> {
        self.expire(now);
        let parts = self.check(&spec, 0)?;
        if self.rules.get(&rule).is_some() {
            return Err(Refusal::Exists);
        }
        if !self.has_place(now) {
            return Err(Refusal::Full);
        }
        let flow = self.flows.insert(Flow::new(spec, true, parts)).0;
        self.rules.insert(rule, flow);
        let id = ReservationId(self.reservations.next);
        self.reservations.next += 1;
        self.reservations.insert(id, Reservation { rule, flow, parts, until });
        Ok(id)
    }

    /// Promises and allows something else from now on; on a refusal all stays as it was.
    pub fn change(&mut self, now: u64, id: ReservationId, spec: Spec) -> Result<(), Refusal> {
        self.expire(now);
        let old = *self.reservations.by_id.get(&id).ok_or(Refusal::NotFound)?;
        let parts = self.check(&spec, old.parts)?;
        self.reservations.remove(id);
        self.reservations.insert(id, Reservation { parts, ..old });
        self.set(now, old.flow, spec, parts);
        Ok(())
    }

    /// Lets it end later, or earlier.
    pub fn renew(&mut self, now: u64, id: ReservationId, until: Option<u64>) -> Result<(), Refusal> {
        self.expire(now);
        let old = self.reservations.remove(id).ok_or(Refusal::NotFound)?;
        self.reservations.insert(id, Reservation { until, ..old });
        Ok(())
    }

    /// Ends it. What waits goes on as work that was promised nothing.
    pub fn release(&mut self, now: u64, id: ReservationId) -> Result<(), Refusal> {
        let reservation = self.reservations.remove(id).ok_or(Refusal::NotFound)?;
        self.rules.remove(&reservation.rule);
        let weight = self.flows.get(reservation.flow).map(|flow| flow.spec);
        if let Some(spec) = weight {
            let spec = Spec { weight: spec.weight, latency: spec.latency, ..Spec::default() };
            self.set(now, reservation.flow, spec, 0);
        }
        if let Some(flow) = self.flows.get_mut(reservation.flow) {
            flow.is_kept = false;
        }
        Ok(())
    }

    /// Ends what nobody renewed in time; `next` and `submit` do so too.
    pub fn expire(&mut self, now: u64) {
        while let Some(&(_, id)) = self.reservations.ends.first().filter(|(end, _)| *end <= now) {
            let _ = self.release(now, id);
        }
    }

    /// What could be promised now.
    pub fn free(&self) -> Rate {
        self.rate_of(self.promised_max().saturating_sub(self.reservations.parts))
    }

    /// The capacity is another one, or known now. What was promised stays so; false if it is more than can be given, and then
    /// all get less.
    pub fn set_capacity(&mut self, now: u64, capacity: Capacity) -> bool {
        self.settings.capacity = capacity;
        self.set_pacer();
        let ids: Vec<ReservationId> = self.reservations.by_id.keys().copied().collect();
        for id in ids {
            let Some(old) = self.reservations.remove(id) else { continue };
            let spec = self.flows.get(old.flow).map(|flow| flow.spec).unwrap_or_default();
            let parts = self.parts_of(spec.floor).unwrap_or(0);
            self.reservations.insert(id, Reservation { parts, ..old });
            self.set(now, old.flow, spec, parts);
        }
        self.reservations.parts <= self.promised_max()
    }

    fn set(&mut self, now: u64, at: u32, spec: Spec, parts: u64) {
        if let Some(flow) = self.flows.get_mut(at) {
            flow.set(spec, parts);
            let burst_ns = flow.spec.burst_ns;
            if let Some(floor) = &mut flow.floor {
                floor.wake(now, burst_ns);
            }
        }
        self.refresh(now, at);
    }

    /// The part of the resource that a spec is promised, if it can be: `own` of what is promised is the same flow's.
    fn check(&self, spec: &Spec, own: u64) -> Result<u64, Refusal> {
        if let Some(why) = spec.fault() {
            return Err(Refusal::Invalid(why));
        }
        let parts = self.parts_of(spec.floor).ok_or(Refusal::CapacityUnknown)?;
        let free = self.promised_max().saturating_sub(self.reservations.parts - own);
        match parts <= free {
            true => Ok(parts),
            false => Err(Refusal::Floor { asked: spec.floor, free: self.rate_of(free) }),
        }
    }

    fn promised_max(&self) -> u64 {
        PARTS / 100 * u64::from(self.settings.promised_percent_max.min(100))
    }

    /// The part of the resource that is this rate: for large operations the one in bytes counts, for small ones the other.
    fn parts_of(&self, rate: Rate) -> Option<u64> {
        let part = |rate: Option<u64>, capacity: Option<u64>| match (rate, capacity) {
            (None, _) => Some(0),
            (Some(_), None) => None,
            (Some(rate), Some(all)) => {
                let parts = (u128::from(rate) * u128::from(PARTS)).div_ceil(u128::from(all.max(1)));
                Some(parts.min(u128::from(u64::MAX / 1024)) as u64)
            }
        };
        let capacity = self.settings.capacity;
        let bytes = part(rate.bytes_per_s, capacity.bytes_per_s)?;
        Some(bytes.max(part(rate.ops_per_s, capacity.ops_per_s)?))
    }

    fn rate_of(&self, parts: u64) -> Rate {
        let of = |all: u64| (u128::from(all) * u128::from(parts) / u128::from(PARTS)) as u64;
        let capacity = self.settings.capacity;
        Rate { bytes_per_s: capacity.bytes_per_s.map(of), ops_per_s: capacity.ops_per_s.map(of) }
    }
}
