//! Admission: whatever this node does with a drive, a link to another node or a lake is granted by the scheduler of that resource. (R16, D230)
//!
//! - Each drive has a [`Resource`] for its reads and writes, each peer one for the bytes that are sent to it and asked of it, each lake one for
//!   the requests to it. What asks carries a tag: tenant, job, volume and class. It is said once where work begins ([`Core::work_on`], and
//!   [`Class`] at the loops), goes with tasks by [`inherit`], and to other nodes with the question ([`WireWork`]).
//! - As long as nobody has a policy, what is in flight is bounded far beyond what a resource needs, and nobody waits. A policy narrows drives to what
//!   keeps them busy ([`Width::Narrow`]), so that who goes first is decided here and not in the queue of a device.
//! - Ceilings are held in front of all that, where clients ask ([`Core::pass`]): once, before anything is taken.
//!
//! **The order.** In front of a resource nothing is held but what was granted by one that comes before it:
//!
//! ```text
//! ceiling (held by nobody)  ->  link to a peer  ->  [that peer: link to another cell  ->]  drive or lake
//! ```
//!
//! A ceiling is passed and not held. Whoever holds a drive or a lake asks for nothing else until its one operation is over. A link is held while
//! the other node works, and that node asks for its drives and lakes, or once for a link to another cell, which sends it on no further. So a chain
//! of those who wait for each other has an end, whoever waits for whom. A question that another node may have to ask a lake for pays for its link
//! and does not hold it: a lake that hangs must not stop the way between two nodes.
//!
//! Memory is no part of the chain either: what is written has its buffer before it asks for a drive, and an eighth of all buffers is left to reads
//! ([`crate::rings::Rings::write_buffer`]), which ask for theirs while they hold one.
//!
//! A permit goes with the future that has it: who gives up, is cancelled or dies gives it back.

mod lakes;
mod links;
mod of_jobs;
mod policies;
pub(crate) mod share;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stoker_qos::{Capacity, Class, Cost, Counters, Settings, Tag};
use stoker_qos_driver::{Permit, Resource};
use stoker_store::{Counter, ErrorKind, Result, StoreError};

use crate::core::Core;
use crate::rings::Drive;

pub(crate) use lakes::{AdmittedLake, LakeGates};
pub(crate) use links::Links;
pub(crate) use of_jobs::{Known as KnownPolicy, Promises};
pub(crate) use stoker_qos_driver::{inherit, working};
pub(crate) use work::{Names, WireWork, tag};

/// In flight at most while nobody has a policy: more than any device makes use of, and a bound on what can pile up.
const WIDE_OPS: u32 = 4_096;
const WIDE_BYTES: u64 = 1 << 30;

/// Of a resource whose capacity is known so much is in flight while somebody has a policy: what it does in this time, and no less than it
/// needs to have several operations at work at once.
const NARROW_NS: u64 = 8_000_000;
const NARROW_BYTES_MIN: u64 = 8 << 20;
const NARROW_OPS_MIN: u32 = 16;

/// Links and lakes that have a scheduler of their own; all others share one.
const GATES_MAX: usize = 1_024;

/// How much a resource has in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    /// As much as is asked for.
    Wide,
    /// As much as keeps it busy.
    Narrow,
}

/// A resource that nobody has a policy for.
pub(crate) fn gate() -> Resource {
    Resource::new(Settings {
        is_paced: false,
        depth_ops: WIDE_OPS,
        depth_bytes: WIDE_BYTES,
        ..Settings::default()
    })
}

/// Bounds what is in flight.
pub(crate) fn set_width(gate: &Resource, width: Width) {
    let (ops, bytes) = match width {
        Width::Wide => (WIDE_OPS, WIDE_BYTES),
        Width::Narrow => narrow(gate.seen()),
    };
    gate.set_depth(ops, bytes);
}

fn narrow(seen: Capacity) -> (u32, u64) {
    let part = |rate: u64| (u128::from(rate) * u128::from(NARROW_NS) / 1_000_000_000) as u64;
    let bytes =
        seen.bytes_per_s.map_or(NARROW_BYTES_MIN, |rate| part(rate).clamp(NARROW_BYTES_MIN, WIDE_BYTES));
    let ops = seen.ops_per_s.map_or(0, |rate| part(rate).min(u64::from(WIDE_OPS)) as u32);
    // Operations that are small count by their number, and a flush that many share must find many.
    (ops.max(NARROW_OPS_MIN), bytes)
}

/// Waits until the work that runs now may use a resource.
pub(crate) async fn admit(gate: &Resource, tag: Tag, cost: Cost) -> Result<Permit> {
    gate.acquire(tag, cost).await.map_err(|refused| {
        StoreError::new(
            ErrorKind::Unavailable,
            format!("this node has more to do than it can queue: {refused}; try again"),
        )
    })
}

impl Drive {
    /// Waits until the work that runs now may use the drive.
    pub async fn admit(&self, cost: Cost) -> Result<Permit> {
        admit(&self.gate, tag(), cost).await
    }
}

/// What a node has beside the schedulers of its drives ([`Drive`]) and links ([`Links`], of its cell).
pub(crate) struct Admission {
    pub lakes: Arc<LakeGates>,
    /// Where ceilings are held.
    pub front: Resource,
    /// Somebody has one.
    pub has_ceilings: AtomicBool,
    pub names: Names,
    pub shares: share::Shares,
}

impl Admission {
    pub fn new(lakes: Arc<LakeGates>) -> Admission {
        let (names, shares) = Default::default();
        Admission { lakes, front: gate(), has_ceilings: AtomicBool::new(false), names, shares }
    }
}

/// Classes of resources, as numbers call them.
const KINDS: [&str; 4] = ["drive", "link", "lake", "ceiling"];

impl Core {
    /// Lets work of a client pass its ceiling, if it has one: before anything is taken for it, and held by nobody.
    pub async fn pass(&self, tag: Tag, bytes: u64) -> Result<()> {
        if !self.admission.has_ceilings.load(Ordering::Relaxed)
            || !matches!(tag.class, Class::Client | Class::Checkpoint)
        {
            return Ok(());
        }
        admit(&self.admission.front, tag, Cost::bytes(bytes)).await.map(drop)
    }

    /// Every drive, link and lake, with its kind.
    pub fn gates(&self) -> Vec<(&'static str, Resource)> {
        let drives = self.rings.drives().into_iter().map(|drive| ("drive", drive.gate.clone()));
        let links = self.cell.links.all().into_iter().map(|link| ("link", link));
        let lakes = self.admission.lakes.all().into_iter().map(|lake| ("lake", lake));
        drives.chain(links).chain(lakes).collect()
    }

    /// Narrows drives, or widens them. Links and lakes stay wide: promises are about drives, and what keeps a lake busy is hundreds of
    /// milliseconds of requests, which nobody measures.
    pub fn set_widths(&self, width: Width) {
        for (kind, gate) in self.gates() {
            set_width(&gate, if kind == "drive" { width } else { Width::Wide });
        }
    }

    /// Numbers of admission for `/metrics`: by kind of resource and class, so that there are few of them however many ask.
    pub fn admission_numbers(&self) -> Vec<Counter> {
        let gates = self.gates();
        let mut sums: HashMap<(&str, Class), Counters> = HashMap::new();
        let front = [("ceiling", self.admission.front.clone())];
        for (kind, gate) in gates.iter().chain(&front) {
            for (class, counters) in gate.classes() {
                let sum = sums.entry((kind, class)).or_default();
                sum.granted_ops += counters.granted_ops;
                sum.granted_bytes += counters.granted_bytes;
                sum.waited += counters.waited;
                sum.waited_ns += counters.waited_ns;
                sum.refused += counters.refused;
                sum.waiting += counters.waiting;
            }
        }
        type Of = fn(&Counters) -> f64;
        let numbers: [(&str, &str, Of); 6] = [
            ("admission_ops_total", "Operations that were admitted.", |sum| sum.granted_ops as f64),
            ("admission_bytes_total", "Bytes that were admitted.", |sum| sum.granted_bytes as f64),
            ("admission_waits_total", "Operations that had to wait for admission.", |sum| sum.waited as f64),
            ("admission_wait_seconds_total", "Time that they waited, together.", |sum| {
                sum.waited_ns as f64 / 1e9
            }),
            ("admission_refused_total", "Operations that were refused because too many wait.", |sum| {
                sum.refused as f64
            }),
            ("admission_waiting", "Operations that wait for admission now.", |sum| sum.waiting as f64),
        ];
        let mut all = Vec::new();
        for (name, help, of) in numbers {
            for kind in KINDS {
                for class in stoker_qos::CLASSES {
                    // Most pairs never happen.
                    let Some(sum) = sums.get(&(kind, class)).filter(|sum| sum.granted_ops + sum.waiting > 0)
                    else {
                        continue;
                    };
                    let labels = [("resource", kind), ("class", class.name())];
                    all.push(Counter::new(name, help, &labels, of(sum)));
                }
            }
        }
        // There are at most so many policies, and each has one number of a kind.
        for flow in self.admission.shares.flows() {
            let labels = [("policy", flow.id.as_str())];
            let rates: [(&str, &str, Option<u64>); 3] = [
                (
                    "qos_given_bytes_per_second",
                    "Of the floor of a policy so much is promised by drives here.",
                    flow.given.bytes_per_s,
                ),
                (
                    "qos_used_bytes_per_second",
                    "What drives here did for a policy in the last second.",
                    flow.used.bytes_per_s,
                ),
                ("qos_waiting", "Operations of a policy that wait.", Some(flow.waiting)),
            ];
            all.extend(
                rates
                    .into_iter()
                    .map(|(name, help, value)| Counter::new(name, help, &labels, value.unwrap_or(0) as f64)),
            );
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for drive in self.rings.drives() {
            if let Some(rate) = drive.gate.seen().bytes_per_s {
                let labels = [("drive", drive.path.to_str().unwrap_or_default())];
                let help = "Bytes per second that a drive was seen to move while it was busy: the best half second of the last minutes.";
                all.push(Counter::new("drive_capacity_bytes_per_second", help, &labels, rate as f64));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use stoker_qos::Rate;

    use super::*;

    #[test]
    fn a_narrow_resource_is_busy_and_no_more() {
        assert_eq!(narrow(Rate::default()), (NARROW_OPS_MIN, NARROW_BYTES_MIN));
        let fast = Rate { bytes_per_s: Some(10_000_000_000), ops_per_s: Some(1_000_000) };
        assert_eq!(narrow(fast), (4_096, 80_000_000));
        assert_eq!(
            narrow(Rate { bytes_per_s: Some(100), ops_per_s: Some(100) }),
            (NARROW_OPS_MIN, NARROW_BYTES_MIN)
        );
    }
}
