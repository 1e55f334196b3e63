//! Who gets which part of a policy, and the schedulers that hold it. (D231)
//!
//! A floor and a ceiling are of the whole cluster. Once a second the node with the lowest id of those that answer asks the others what was asked of
//! them, splits each rate by that ([`split`]), and tells every node its part. A part that nobody renewed for [`STALE`] is an even one: whoever leads
//! may be gone, and what was promised is still due. A node splits its part of a floor over its drives in the same way.
//!
//! What a policy gets here may be less than its part (a drive does less than it did, or a node is gone): `stoker qos ls` shows what is given.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_format::{DriveId, NodeId};
use stoker_qos::{
    Capacity, Demand, JobId, Latency, Match, Rate, Refusal, ReservationId, Spec, Tag, TenantId, VolumeId,
    split,
};
use stoker_qos_driver::Resource;
use stoker_schema::rows::keys;
use stoker_store::{Order, QosFlow, QosRate, QosSeen, QosShare, Report, Result};
use tokio::time::Instant;

use super::policies::{Policy, rate_of, told};
use super::{Width, work};
use crate::core::Core;
use crate::identity::write_durable;
use crate::rings::Drive;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Rounds after which it is looked whether somebody made another policy elsewhere.
const RELOAD_EVERY: u64 = 5;

/// A part of a policy that nobody renewed for so long is replaced by an even one.
const STALE: Duration = Duration::from_secs(15);

/// Rounds after which it is written down what drives do.
const KEEP_EVERY: u64 = 60;

/// Of what drives do so much may be promised; as a scheduler has it.
pub(super) const PROMISED_PERCENT_MAX: u32 = 90;

/// A capacity that changed by less than one part in so many is the same.
const SAME_PARTS: u64 = 16;

/// What drives did in earlier boots.
const KEPT: &str = "capacities.json";

/// A policy on one resource.
struct Held {
    reservation: ReservationId,
    spec: Spec,
}

/// What policies are known, which part of them is here, and what came of it.
#[derive(Default)]
pub(crate) struct Shares {
    /// The commit of the last change that is known.
    round: Mutex<Option<u64>>,
    policies: Mutex<Arc<Vec<Policy>>>,
    /// What the node that leads said last.
    parts: Mutex<Option<(Instant, HashMap<String, QosShare>)>>,
    /// Held while policies are applied.
    applying: Mutex<()>,
    held: Mutex<HashMap<(DriveId, String), Held>>,
    front: Mutex<HashMap<String, Held>>,
    /// What was asked and done by the last round.
    counted: Mutex<HashMap<(Option<DriveId>, String), Rates>>,
    flows: Mutex<Vec<QosFlow>>,
    /// What was known of drives before this boot.
    kept: Mutex<Option<BTreeMap<String, Kept>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    bytes_per_s: Option<u64>,
    ops_per_s: Option<u64>,
}

/// Counters, and when they were so.
#[derive(Clone, Copy)]
struct Rates {
    at: Instant,
    asked: (u64, u64),
    used: (u64, u64),
}

fn plus(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    }
}

pub(super) fn sum(a: QosRate, b: QosRate) -> QosRate {
    QosRate { bytes_per_s: plus(a.bytes_per_s, b.bytes_per_s), ops_per_s: plus(a.ops_per_s, b.ops_per_s) }
}

/// What all these nodes do.
pub(super) fn capacity_of(seen: &[(NodeId, QosSeen)]) -> Capacity {
    let all = seen.iter().fold(QosRate::default(), |all, (_, seen)| sum(all, seen.capacity));
    Rate { bytes_per_s: all.bytes_per_s, ops_per_s: all.ops_per_s }
}

/// The work that a policy is about, as drives see it.
fn rule_of(policy: &Policy) -> Match {
    let id = |name: &Option<String>| name.as_deref().map(work::id_of);
    Match {
        tenant: id(&policy.row.tenant).map(TenantId),
        job: id(&policy.row.job).map(JobId),
        ..Match::default()
    }
}

/// Splits a rate, or as much of it as there is.
fn split_rate(total: Option<u64>, demands: &[Demand]) -> Vec<Option<u64>> {
    let Some(total) = total else { return vec![None; demands.len()] };
    let free = demands.iter().fold(0_u64, |sum, one| sum.saturating_add(one.free));
    let parts = split(total.min(free), demands).unwrap_or_else(|_| vec![0; demands.len()]);
    // No promise is none, not one of nothing.
    parts.into_iter().map(|part| Some(part).filter(|part| *part > 0)).collect()
}

fn is_same(one: Capacity, other: Capacity) -> bool {
    let near = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= a.max(b) / SAME_PARTS,
        (a, b) => a == b,
    };
    near(one.bytes_per_s, other.bytes_per_s) && near(one.ops_per_s, other.ops_per_s)
}

/// Reserves, or changes what is reserved; a floor that cannot be held is held as far as it can.
fn hold(gate: &Resource, held: Option<&Held>, rule: Match, mut spec: Spec) -> Option<Held> {
    if let Some(held) = held.filter(|held| held.spec == spec) {
        return Some(Held { reservation: held.reservation, spec: held.spec });
    }
    loop {
        let done = match held {
            Some(held) => gate.change(held.reservation, spec).map(|()| held.reservation),
            None => gate.reserve(rule, spec, None),
        };
        match done {
            Ok(reservation) => return Some(Held { reservation, spec }),
            Err(Refusal::Floor { free, .. }) if !spec.floor.is_none() => {
                let least = |asked: Option<u64>, free: Option<u64>| {
                    asked.map(|asked| asked.min(free.unwrap_or(0)) / 16 * 15).filter(|rate| *rate > 0)
                };
                spec.floor = Rate {
                    bytes_per_s: least(spec.floor.bytes_per_s, free.bytes_per_s),
                    ops_per_s: least(spec.floor.ops_per_s, free.ops_per_s),
                };
            }
            Err(Refusal::CapacityUnknown) if !spec.floor.is_none() => spec.floor = Rate::default(),
            Err(refused) => {
                tracing::warn!("a policy is not held: {refused}");
                return None;
            }
        }
    }
}

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut rounds = 0_u64;
    while !core.closing.load(Ordering::Relaxed) {
        if rounds.is_multiple_of(RELOAD_EVERY)
            && let Err(fault) = core.qos_reload().await
        {
            tracing::debug!("policies are not looked up: {}", fault.message);
        }
        core.recall_capacities();
        if !core.admission.shares.policies().is_empty() {
            core.measure_flows();
            core.lead().await;
            core.apply_policies();
        }
        rounds += 1;
        if rounds.is_multiple_of(KEEP_EVERY) {
            core.keep_capacities().await;
        }
        tokio::time::sleep(ROUND).await;
    }
}

impl Shares {
    fn policies(&self) -> Arc<Vec<Policy>> {
        self.policies.lock().unwrap().clone()
    }

    /// Whether a policy may hold this work below a ceiling. One about a volume may be about that of another name.
    pub fn has_ceiling(&self, work: Tag) -> bool {
        let fits = |policy: &Policy| {
            let rule = rule_of(policy);
            policy.row.ceiling != (None, None)
                && rule.tenant.is_none_or(|tenant| tenant == work.tenant)
                && rule.job.is_none_or(|job| job == work.job)
        };
        self.policies().iter().any(fits)
    }

    /// What is known of each flow, by the last round.
    pub fn flows(&self) -> Vec<QosFlow> {
        self.flows.lock().unwrap().clone()
    }

    /// What the node that leads says is this node's part.
    pub fn take_parts(&self, parts: Vec<QosShare>) {
        let parts =
            parts.into_iter().take(stoker_store::QOS_POLICIES_MAX).map(|part| (part.id.clone(), part));
        *self.parts.lock().unwrap() = Some((Instant::now(), parts.collect()));
    }

    /// The part of a policy that is here: what was said, or an even one.
    fn part(&self, policy: &Policy, nodes: u64) -> (Rate, Rate) {
        let (floor, ceiling) = (rate_of(policy.row.floor), rate_of(policy.row.ceiling));
        if nodes <= 1 {
            return (floor, ceiling);
        }
        let parts = self.parts.lock().unwrap();
        let fresh = parts.as_ref().filter(|(at, _)| at.elapsed() < STALE);
        if let Some(part) = fresh.and_then(|(_, parts)| parts.get(&policy.id)) {
            let rate = |rate: QosRate| Rate { bytes_per_s: rate.bytes_per_s, ops_per_s: rate.ops_per_s };
            return (rate(part.floor), rate(part.ceiling));
        }
        let even = |rate: Option<u64>| rate.map(|rate| (rate / nodes).max(1));
        let even = |rate: Rate| Rate { bytes_per_s: even(rate.bytes_per_s), ops_per_s: even(rate.ops_per_s) };
        (even(floor), even(ceiling))
    }
}

impl Core {
    /// Looks up the policies, if somebody changed one, and holds them.
    pub async fn qos_reload(&self) -> Result<()> {
        let shares = &self.admission.shares;
        let round =
            self.catalog.get(&[keys::QOS_ROUND]).await.map_err(crate::error::catalog)?.pop().flatten();
        let round = round.map(|row| row.seq);
        if round == *shares.round.lock().unwrap() {
            return Ok(());
        }
        let (round, mut policies) = self.qos_rows().await?;
        policies.sort_by(|a, b| a.id.cmp(&b.id));
        *shares.policies.lock().unwrap() = Arc::new(policies);
        *shares.round.lock().unwrap() = round;
        self.apply_policies();
        Ok(())
    }

    /// Nodes that hold something and answer, this one among them.
    fn sharers(&self) -> Vec<NodeId> {
        if !self.cell.is_joined() {
            return vec![self.node];
        }
        let view = self.cell.view();
        let answers = |node: &NodeId| {
            *node == self.node
                || (!view.is_down(*node) && !view.is_witness(*node) && !self.cell.is_suspect(*node))
        };
        let mut nodes: Vec<NodeId> = view.nodes().filter(answers).collect();
        if !nodes.contains(&self.node) {
            nodes.push(self.node);
        }
        nodes.sort_unstable();
        nodes
    }

    /// What every node sees, and how many say nothing.
    pub(super) async fn seen_by_all(&self) -> (Vec<(NodeId, QosSeen)>, u32) {
        let others: Vec<NodeId> = self.sharers().into_iter().filter(|node| *node != self.node).collect();
        let asked = others.iter().map(|node| self.cell.order_soon(*node, Order::QosSeen));
        let (mut seen, mut silent) = (vec![(self.node, self.seen_here())], 0);
        for (node, told) in others.iter().zip(futures_util::future::join_all(asked).await) {
            match told {
                Ok(Report::QosSeen(told)) => seen.push((*node, told)),
                _ => silent += 1,
            }
        }
        (seen, silent)
    }

    /// What this node sees.
    pub fn seen_here(&self) -> QosSeen {
        let drives = self.rings.drives();
        let serving = drives.iter().filter(|drive| drive.is_serving());
        let capacity = serving.fold(QosRate::default(), |all, drive| sum(all, told(drive.gate.seen())));
        QosSeen { capacity, flows: self.admission.shares.flows() }
    }

    /// If this node leads, tells every node its part.
    async fn lead(&self) {
        let nodes = self.sharers();
        if nodes.len() < 2 || nodes.first() != Some(&self.node) {
            return;
        }
        let policies = self.admission.shares.policies();
        if policies
            .iter()
            .all(|policy| policy.row.floor == (None, None) && policy.row.ceiling == (None, None))
        {
            return;
        }
        let (seen, _) = self.seen_by_all().await;
        let mut parts: Vec<Vec<QosShare>> = vec![Vec::new(); seen.len()];
        for policy in policies.iter() {
            for (part, share) in parts.iter_mut().zip(divide(policy, &seen)) {
                part.push(share);
            }
        }
        let told = seen.iter().zip(parts).map(|((node, _), parts)| async move {
            if *node == self.node {
                self.admission.shares.take_parts(parts);
            } else if let Err(fault) = self.cell.order_soon(*node, Order::QosShares(parts)).await {
                tracing::debug!(%node, "its part of the policies was not heard: {fault}");
            }
        });
        futures_util::future::join_all(told).await;
    }

    /// What was asked and done for each policy since the last round.
    fn measure_flows(&self) {
        let shares = &self.admission.shares;
        let (now, mut counted) = (Instant::now(), shares.counted.lock().unwrap());
        let mut rates = |key: (Option<DriveId>, String), asked: (u64, u64), used: (u64, u64)| {
            let before = counted.insert(key, Rates { at: now, asked, used });
            let Some(before) = before else { return Default::default() };
            let ns = now.duration_since(before.at).as_nanos().max(1);
            let rate =
                |now: u64, before: u64| (u128::from(now.saturating_sub(before)) * 1_000_000_000 / ns) as u64;
            let rates = |now: (u64, u64), before: (u64, u64)| QosRate {
                bytes_per_s: Some(rate(now.0, before.0)),
                ops_per_s: Some(rate(now.1, before.1)),
            };
            (rates(asked, before.asked), rates(used, before.used))
        };
        let policies = shares.policies();
        let mut flows = Vec::new();
        for policy in policies.iter() {
            let rule = full_rule(policy, self);
            let mut flow = QosFlow { id: policy.id.clone(), ..QosFlow::default() };
            for drive in self.rings.drives() {
                let Some(report) = rule.and_then(|rule| drive.gate.flow(&rule)) else { continue };
                let counters = report.counters;
                let (asked, used) = rates(
                    (Some(drive.id), policy.id.clone()),
                    (counters.asked_bytes, counters.asked_ops),
                    (counters.granted_bytes, counters.granted_ops),
                );
                flow.asked = sum(flow.asked, asked);
                flow.used = sum(flow.used, used);
                flow.given = sum(flow.given, told(report.spec.floor));
                flow.waiting += counters.waiting;
            }
            if let Some(report) = rule.and_then(|rule| self.admission.front.flow(&rule)) {
                let counters = report.counters;
                let asked = (counters.asked_bytes, counters.asked_ops);
                flow.wanted = rates((None, policy.id.clone()), asked, asked).0;
                flow.waiting += counters.waiting;
            }
            flows.push(flow);
        }
        counted.retain(|(_, id), _| policies.iter().any(|policy| policy.id == *id));
        *shares.flows.lock().unwrap() = flows;
    }

    /// Has every drive, link and lake hold what is here of the policies.
    fn apply_policies(&self) {
        let shares = &self.admission.shares;
        // One at a time: a second one would find what is held taken away, and hold it twice.
        let _one = shares.applying.lock().unwrap();
        let policies = shares.policies();
        let nodes = self.sharers().len() as u64;
        let drives: Vec<Arc<Drive>> =
            self.rings.drives().into_iter().filter(|drive| !drive.is_failed()).collect();
        for drive in &drives {
            let seen = drive.gate.seen();
            if !is_same(seen, drive.gate.capacity()) {
                drive.gate.set_capacity(seen);
            }
        }
        let is_narrow = policies.iter().any(|policy| {
            policy.row.floor != (None, None) || policy.row.is_interactive || policy.row.weight != 100
        });
        self.set_widths(if is_narrow { Width::Narrow } else { Width::Wide });
        let mut held = std::mem::take(&mut *shares.held.lock().unwrap());
        let mut front = std::mem::take(&mut *shares.front.lock().unwrap());
        let (mut drives_hold, mut front_holds) = (HashMap::new(), HashMap::new());
        for policy in policies.iter() {
            let Some(rule) = full_rule(policy, self) else { continue };
            let (floor, ceiling) = shares.part(policy, nodes);
            let base = Spec {
                weight: policy.row.weight,
                latency: if policy.row.is_interactive { Latency::Interactive } else { Latency::Bulk },
                burst_ns: u64::from(policy.row.burst_ms) * 1_000_000,
                ..Spec::default()
            };
            let demands = |of: fn(Rate) -> Option<u64>,
                           asked: fn(&stoker_qos::Counters) -> u64|
             -> Vec<Demand> {
                let one = |drive: &Arc<Drive>| {
                    let own = held.get(&(drive.id, policy.id.clone())).and_then(|held| of(held.spec.floor));
                    let free = of(drive.gate.free()).unwrap_or(0).saturating_add(own.unwrap_or(0));
                    let wanted = drive.gate.flow(&rule).map_or(0, |flow| asked(&flow.counters));
                    Demand { wanted, free }
                };
                drives.iter().map(one).collect()
            };
            let bytes = split_rate(floor.bytes_per_s, &demands(|rate| rate.bytes_per_s, |of| of.asked_bytes));
            let ops = split_rate(floor.ops_per_s, &demands(|rate| rate.ops_per_s, |of| of.asked_ops));
            for ((drive, bytes_per_s), ops_per_s) in drives.iter().zip(bytes).zip(ops) {
                let spec = Spec { floor: Rate { bytes_per_s, ops_per_s }, ..base };
                let key = (drive.id, policy.id.clone());
                let before = held.remove(&key);
                match hold(&drive.gate, before.as_ref(), rule, spec) {
                    Some(now) => drives_hold.insert(key, now),
                    None => before.and_then(|before| drives_hold.insert(key, before)),
                };
            }
            if !ceiling.is_none() {
                let spec = Spec { floor: Rate::default(), ceiling, ..base };
                let before = front.remove(&policy.id);
                let now = hold(&self.admission.front, before.as_ref(), rule, spec).or(before);
                now.and_then(|now| front_holds.insert(policy.id.clone(), now));
            }
        }
        // What nobody has a policy for any more.
        for ((drive, _), gone) in held {
            if let Some(drive) = drives.iter().find(|one| one.id == drive) {
                let _ = drive.gate.release(gone.reservation);
            }
        }
        for (_, gone) in front {
            let _ = self.admission.front.release(gone.reservation);
        }
        self.admission.has_ceilings.store(!front_holds.is_empty(), Ordering::Relaxed);
        *shares.held.lock().unwrap() = drives_hold;
        *shares.front.lock().unwrap() = front_holds;
    }

    /// Tells drives that are new here what they did before this boot.
    fn recall_capacities(&self) {
        let mut kept = self.admission.shares.kept.lock().unwrap();
        let path = self.workshop.dir.join(KEPT);
        let known = kept.get_or_insert_with(|| {
            let known = std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
            known.unwrap_or_default()
        });
        for drive in self.rings.drives() {
            if let Some(Kept { bytes_per_s, ops_per_s }) = known.remove(&drive.id.to_string()) {
                drive.gate.recall(Rate { bytes_per_s, ops_per_s });
            }
        }
    }

    /// Writes down what drives do. What it cannot write is measured again.
    async fn keep_capacities(&self) {
        let of = |drive: &Arc<Drive>| {
            let Rate { bytes_per_s, ops_per_s } = drive.gate.seen();
            (drive.id.to_string(), Kept { bytes_per_s, ops_per_s })
        };
        let seen: BTreeMap<String, Kept> =
            self.rings.drives().iter().map(of).filter(|(_, kept)| kept.bytes_per_s.is_some()).collect();
        if seen.is_empty() {
            return;
        }
        let Ok(text) = serde_json::to_vec_pretty(&seen) else { return };
        let path = self.workshop.dir.join(KEPT);
        let written = self.tasks.blocking(move || write_durable(&path, &text)).await;
        if let Some(Err(fault)) = written {
            tracing::debug!("what drives do is not written down: {fault}");
        }
    }
}

/// The same with the number of its volume; none if that is gone.
fn full_rule(policy: &Policy, core: &Core) -> Option<Match> {
    let rule = rule_of(policy);
    let Some(name) = &policy.row.volume else { return Some(rule) };
    let volume = core.volumes.known().into_iter().find(|volume| volume.name == *name)?;
    Some(Match { volume: Some(VolumeId(volume.id.0)), ..rule })
}

/// The part of each node: of a floor by what its drives were asked, and no more than they have; of a ceiling by what clients wanted.
fn divide(policy: &Policy, seen: &[(NodeId, QosSeen)]) -> Vec<QosShare> {
    let flow =
        |seen: &QosSeen| seen.flows.iter().find(|flow| flow.id == policy.id).cloned().unwrap_or_default();
    let flows: Vec<QosFlow> = seen.iter().map(|(_, seen)| flow(seen)).collect();
    type Of = fn(QosRate) -> Option<u64>;
    let of: [Of; 2] = [|rate| rate.bytes_per_s, |rate| rate.ops_per_s];
    let floors = of.map(|of| {
        let free = |seen: &QosSeen| of(seen.capacity).unwrap_or(0) / 100 * u64::from(PROMISED_PERCENT_MAX);
        let demand = |((_, seen), flow): (&(NodeId, QosSeen), &QosFlow)| Demand {
            wanted: of(flow.asked).unwrap_or(0),
            free: free(seen),
        };
        let demands: Vec<Demand> = seen.iter().zip(&flows).map(demand).collect();
        split_rate(of(QosRate { bytes_per_s: policy.row.floor.0, ops_per_s: policy.row.floor.1 }), &demands)
    });
    let ceilings = of.map(|of| {
        let total = of(QosRate { bytes_per_s: policy.row.ceiling.0, ops_per_s: policy.row.ceiling.1 });
        // At least a little everywhere: a ceiling of nothing would be none.
        let demand =
            |flow: &QosFlow| Demand { wanted: of(flow.wanted).unwrap_or(0), free: total.unwrap_or(0) };
        let parts = split_rate(total, &flows.iter().map(demand).collect::<Vec<_>>());
        parts.into_iter().map(|part| total.map(|_| part.unwrap_or(1))).collect::<Vec<_>>()
    });
    let share = |at: usize| QosShare {
        id: policy.id.clone(),
        floor: QosRate { bytes_per_s: floors[0][at], ops_per_s: floors[1][at] },
        ceiling: QosRate { bytes_per_s: ceilings[0][at], ops_per_s: ceilings[1][at] },
    };
    (0..seen.len()).map(share).collect()
}

#[cfg(test)]
mod tests {
    use stoker_schema::rows::QosRow;

    use super::*;

    fn policy(floor: Option<u64>, ceiling: Option<u64>) -> Policy {
        let row = QosRow {
            tenant: None,
            job: Some("train".into()),
            volume: None,
            floor: (floor, None),
            ceiling: (ceiling, None),
            weight: 100,
            is_interactive: false,
            burst_ms: 50,
            export: None,
            request: None,
            created_ms: 0,
        };
        Policy { id: "p".into(), row }
    }

    fn seen(node: u8, capacity: u64, asked: u64, wanted: u64) -> (NodeId, QosSeen) {
        let bytes = |rate: u64| QosRate { bytes_per_s: Some(rate), ops_per_s: None };
        let flow =
            QosFlow { id: "p".into(), asked: bytes(asked), wanted: bytes(wanted), ..QosFlow::default() };
        (NodeId([node; 16]), QosSeen { capacity: bytes(capacity), flows: vec![flow] })
    }

    fn parts(of: &[QosShare], which: fn(&QosShare) -> QosRate) -> Vec<Option<u64>> {
        of.iter().map(|share| which(share).bytes_per_s).collect()
    }

    #[test]
    fn a_floor_goes_where_it_is_asked_for() {
        let nodes = [seen(1, 1_000, 1_000, 0), seen(2, 1_000, 0, 0)];
        let shares = divide(&policy(Some(800), None), &nodes);
        assert_eq!(parts(&shares, |share| share.floor), [Some(750), Some(50)]);
        assert_eq!(parts(&shares, |share| share.ceiling), [None, None]);
        // More than there is by now: all that there is.
        let shares = divide(&policy(Some(5_000), None), &nodes);
        assert_eq!(parts(&shares, |share| share.floor), [Some(900), Some(900)]);
    }

    #[test]
    fn the_parts_of_a_ceiling_are_the_ceiling() {
        let nodes = [seen(1, 0, 0, 900), seen(2, 0, 0, 100), seen(3, 0, 0, 0)];
        let shares = divide(&policy(None, Some(1_000)), &nodes);
        let parts = parts(&shares, |share| share.ceiling);
        assert_eq!(parts.iter().flatten().sum::<u64>(), 1_000);
        assert!(parts[0] > Some(700) && parts[2] > Some(0), "{parts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_not_renewed_is_an_even_one() {
        let shares = Shares::default();
        let policy = policy(Some(900), None);
        assert_eq!(shares.part(&policy, 1).0, Rate::bytes(900), "alone");
        assert_eq!(shares.part(&policy, 3).0, Rate::bytes(300), "nobody said anything yet");
        let floor = QosRate { bytes_per_s: Some(700), ops_per_s: None };
        shares.take_parts(vec![QosShare { id: "p".into(), floor, ceiling: QosRate::default() }]);
        assert_eq!(shares.part(&policy, 3).0, Rate::bytes(700));
        tokio::time::advance(STALE).await;
        assert_eq!(shares.part(&policy, 3).0, Rate::bytes(300), "whoever leads is gone");
    }

    #[tokio::test]
    async fn a_floor_that_cannot_be_held_is_held_as_far_as_it_can() {
        let gate = super::super::gate();
        let spec = Spec { floor: Rate::bytes(800), ..Spec::default() };
        let unknown = hold(&gate, None, Match::job(1), spec).unwrap();
        assert!(unknown.spec.floor.is_none(), "nobody knows what it does");
        gate.set_capacity(Rate::bytes(500));
        let short = hold(&gate, Some(&unknown), Match::job(1), spec).unwrap();
        assert!((300..=450).contains(&short.spec.floor.bytes_per_s.unwrap()), "{:?}", short.spec);
        gate.set_capacity(Rate::bytes(1_000));
        assert_eq!(hold(&gate, Some(&short), Match::job(1), spec).unwrap().spec, spec);
    }
}
