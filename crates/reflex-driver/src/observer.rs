//! Makes observations of what nodes measured. It compares with the last look and brings figures into a form that can be compared with
//! what the gate found; it does not judge.

use std::collections::{BTreeMap, BTreeSet};

use stoker_node::PeerSeen;
use stoker_reflex::{
    Duty, Fact, Indicator, Inventory, Latencies, NodePlace, Observation, PartId, PartKind, Piece, Presence,
    Time,
};
use stoker_store::{Calibration, DriveFacts, DriveMeasures, Measures, PartFacts, Times};

use super::hands::Target;

const FLOOR_US: u64 = crate::part_gate::SHORT_US;

/// Operations between two looks by which a drive is judged without being tried.
const BUSY_OPS: u64 = 20;

/// Counters at the last look.
#[derive(Default)]
struct Before {
    at_ms: u64,
    times: Times,
}

/// What was seen at the last look, by part and indicator.
#[derive(Default)]
pub struct Observer {
    times: BTreeMap<(PartId, Indicator), Before>,
    counts: BTreeMap<(PartId, Indicator), (u64, u64)>,
    /// Drives beside which no other one of their node takes chunks.
    sole: BTreeSet<PartId>,
    /// Ids of drives by their places.
    ids: BTreeMap<PartId, String>,
}

/// What is known of the cluster at one look.
pub struct Look<'a> {
    pub now: Time,
    pub cluster: &'a str,
    pub copies_needed: u32,
    pub peers: &'a [PeerSeen],
    /// Of the nodes that answered.
    pub measures: &'a [Measures],
    /// Evacuations of nodes that are under way: node, files left, done.
    pub evacuations: &'a [(String, u64, bool)],
    /// Parts that are not healthy.
    pub troubled: &'a [PartId],
    /// What parts that are out were taken out as.
    pub ordered: &'a BTreeMap<PartId, Target>,
}

impl Look<'_> {
    fn of(&self, node: &str) -> Option<&Measures> {
        self.measures.iter().find(|one| one.node == node)
    }

    /// Drives of a node that count: at one path may be one that failed and a new one in its place, and then the new one does.
    fn drives<'m>(&self, measures: &'m Measures) -> impl Iterator<Item = &'m DriveMeasures> {
        measures.drives.iter().filter(|drive| {
            let is_other = |other: &&DriveMeasures| other.path == drive.path && other.state != "failed";
            drive.state != "failed" || !measures.drives.iter().any(|other| is_other(&other))
        })
    }

    /// Whether a decision about a drive is one about its node: it was one when it was taken out, or it is the only one.
    fn stands_for_node(&self, part: &PartId, measures: &Measures) -> bool {
        match self.ordered.get(part) {
            Some(target) => target.drive.is_none(),
            None => is_sole(part, measures),
        }
    }

    /// Whether a part is known to be no part of the cluster any more. Of what a node has only that node knows.
    fn is_removed(&self, part: &PartId) -> bool {
        let has = |named: &dyn Fn(&PeerSeen) -> bool| self.peers.iter().any(named);
        match part.kind {
            _ if self.peers.is_empty() => false,
            PartKind::Rack => !has(&|peer| {
                let is_feed = !peer.power.is_empty() && PartId::power(&peer.power) == *part;
                is_feed || PartId::rack(&peer.cell) == *part
            }),
            PartKind::Switch => !has(&|peer| peer.tor == part.name),
            PartKind::Node => !has(&|peer| peer.node == part.name),
            PartKind::Drive | PartKind::Port => {
                let Some((node, name)) = part.name.split_once(':') else { return true };
                match self.of(node).filter(|_| part.kind == PartKind::Drive) {
                    Some(measures) => !measures.drives.iter().any(|drive| drive.path == name),
                    // A port without a link may have lost the address by which its node knows it.
                    None => !has(&|peer| peer.node == node),
                }
            }
        }
    }
}

impl Observer {
    /// Drives beside which no other one of their node takes chunks, as far as is known.
    pub fn sole(&self) -> &BTreeSet<PartId> {
        &self.sole
    }

    /// Ids of drives by their places.
    pub fn ids(&self) -> &BTreeMap<PartId, String> {
        &self.ids
    }

    /// Everything that this look tells.
    pub fn observe(&mut self, look: &Look<'_>, known: &mut Inventory) -> Vec<Observation> {
        *known = inventory(look, known);
        let mut all = vec![Observation::Inventory(known.clone())];
        for peer in look.peers {
            let part = PartId::node(&peer.node);
            let mut tell = |fact: Fact| all.push(Observation::fact(part.clone(), look.now, fact));
            tell(Fact::Presence(match (peer.state, peer.is_suspect) {
                ("down", _) => Presence::Down,
                ("leaving", _) => Presence::Left,
                (_, true) => Presence::Suspect,
                _ => Presence::Up,
            }));
            tell(Fact::Duty(duty_of(peer.duty)));
        }
        for (node, files_left, done) in look.evacuations {
            let fact = Fact::Evacuation { files_left: *files_left, done: *done };
            all.push(Observation::fact(PartId::node(node), look.now, fact.clone()));
            if let Some(measures) = look.of(node) {
                let parts = look.drives(measures).map(|drive| PartId::drive(node, &drive.path));
                for part in parts.filter(|part| look.stands_for_node(part, measures)) {
                    all.push(Observation::fact(part, look.now, fact.clone()));
                }
            }
        }
        for part in look.troubled.iter().filter(|part| look.is_removed(part)) {
            all.push(Observation::fact(part.clone(), look.now, Fact::Presence(Presence::Removed)));
        }
        for measures in look.measures {
            self.observe_node(look, measures, &mut all);
            for drive in look.drives(measures) {
                let part = PartId::drive(&measures.node, &drive.path);
                self.ids.insert(part.clone(), drive.drive.clone());
                match is_sole(&part, measures) {
                    true => self.sole.insert(part),
                    false => self.sole.remove(&part),
                };
            }
        }
        self.forget(look);
        all
    }

    fn observe_node(&mut self, look: &Look<'_>, measures: &Measures, all: &mut Vec<Observation>) {
        let (now, node) = (look.now, measures.node.as_str());
        let part = PartId::node(node);
        let reads = self.latencies(&part, Indicator::ReadP99, now, &measures.reads, None);
        push(all, now, &part, reads);
        let age_us = measures.drain_age_ms.saturating_mul(1_000);
        push(all, now, &part, Some(Fact::Age { indicator: Indicator::DrainLag, age_us }));
        for drive in look.drives(measures) {
            let facts = measures.facts.drives.iter().find(|facts| facts.path == drive.path);
            let fallback = DriveFacts::default();
            self.observe_drive(look, measures, drive, facts.unwrap_or(&fallback), all);
        }
        self.observe_copies(look, measures, all);
        for port in &measures.facts.ports {
            let presence = if port.is_up { Presence::Up } else { Presence::Down };
            push(all, now, &PartId::port(node, &port.name), Some(Fact::Presence(presence)));
        }
        for gate in &measures.facts.gates {
            let Ok(part) = gate.part.parse::<PartId>() else { continue };
            let fact = Fact::Gate { run: gate.run, passed: gate.passed, words: gate.words.clone() };
            push(all, now, &part, Some(fact));
        }
    }

    fn observe_drive(
        &mut self,
        look: &Look<'_>,
        measures: &Measures,
        drive: &DriveMeasures,
        facts: &DriveFacts,
        all: &mut Vec<Observation>,
    ) {
        let node = measures.node.as_str();
        let (now, part) = (look.now, PartId::drive(node, &drive.path));
        let is_failed = drive.state == "failed";
        let presence = if is_failed { Presence::Down } else { Presence::Up };
        push(all, now, &part, Some(Fact::Presence(presence)));
        // One that was taken out with its whole node is put back with it.
        let was = look.ordered.get(&part).filter(|target| target.drive.is_some());
        let is_another = was.and_then(|target| target.id.as_ref()).is_some_and(|id| *id != drive.drive);
        push(all, now, &part, (is_another && !is_failed).then_some(Fact::Replaced));
        let node_duty = look.peers.iter().find(|peer| peer.node == node).map_or("full", |peer| peer.duty);
        let duty = match drive.state.as_str() {
            // What was decided about it is known again when it, or another one in its place, is there.
            "failed" => None,
            "cordoned" | "leaving" => Some(Duty::Evacuating),
            _ if look.stands_for_node(&part, measures) => Some(duty_of(node_duty)),
            _ => Some(Duty::Full),
        };
        push(all, now, &part, duty.map(Fact::Duty));
        let evacuation = drive.is_empty.map(|done| Fact::Evacuation { files_left: u64::from(!done), done });
        push(all, now, &part, evacuation);
        let mut busy = Vec::new();
        for (indicator, times, calibration) in [
            (Indicator::DriveReadP99, &drive.reads, facts.read),
            (Indicator::DriveWriteP99, &drive.writes, facts.write),
        ] {
            let baseline = calibration
                .map(|known| Fact::Baseline { indicator, p99_us: known.small_p99_us.max(FLOOR_US) });
            push(all, now, &part, baseline);
            let fact = self.latencies(&part, indicator, now, times, calibration);
            if let Some(Fact::Latencies { latencies, .. }) = &fact
                && latencies.count() >= BUSY_OPS
            {
                busy.push(indicator);
            }
            push(all, now, &part, fact);
        }
        // One that gets little or nothing new does little else.
        let tried = PartId::drive(node, &format!("{} tried", drive.path));
        for (indicator, times) in
            [(Indicator::DriveReadP99, &facts.tried_reads), (Indicator::DriveWriteP99, &facts.tried_writes)]
        {
            let fact = self.latencies(&tried, indicator, now, times, None);
            // Beside work of its own a small operation waits, and says little.
            push(all, now, &part, fact.filter(|_| !busy.contains(&indicator)));
        }
        let counts = self.counts(&part, Indicator::DriveErrors, drive.good, drive.bad);
        push(all, now, &part, counts);
        let count = |times: &Times| times.buckets.iter().map(|(_, count)| count).sum::<u64>();
        let good = count(&facts.tried_reads) + count(&facts.tried_writes);
        let counts = self.counts(&tried, Indicator::DriveErrors, good, facts.tried_bad);
        push(all, now, &part, counts);
        let smart =
            facts.critical.clone().map(|critical| Fact::Smart { critical, used_percent: facts.used_percent });
        push(all, now, &part, smart);
    }

    /// How others take copies says how they are, whoever asks.
    fn observe_copies(&mut self, look: &Look<'_>, measures: &Measures, all: &mut Vec<Observation>) {
        for copies in &measures.copies {
            // By pair, because each node counts its own.
            let pair = PartId::node(format!("{} from {}", copies.node, measures.node));
            let taken: u64 = copies.times.buckets.iter().map(|(_, count)| count).sum();
            let latencies = self.latencies(&pair, Indicator::CommitP99, look.now, &copies.times, None);
            let counts = self.counts(&pair, Indicator::CopyErrors, taken, copies.bad);
            for fact in [latencies, counts] {
                push(all, look.now, &PartId::node(&copies.node), fact);
            }
        }
    }

    fn latencies(
        &mut self,
        part: &PartId,
        indicator: Indicator,
        now: Time,
        times: &Times,
        calibration: Option<Calibration>,
    ) -> Option<Fact> {
        let key = (part.clone(), indicator);
        let before = self.times.insert(key, Before { at_ms: now.0, times: times.clone() })?;
        let elapsed_ms = now.0.checked_sub(before.at_ms)?;
        let latencies = comparable(times, &before.times, elapsed_ms, calibration);
        (latencies.count() > 0).then_some(Fact::Latencies { indicator, latencies })
    }

    fn counts(&mut self, part: &PartId, indicator: Indicator, good: u64, bad: u64) -> Option<Fact> {
        let before = self.counts.insert((part.clone(), indicator), (good, bad))?;
        // A node that began anew counts from zero.
        let since = |now: u64, before: u64| if now < before { now } else { now - before };
        let (good, bad) = (since(good, before.0), since(bad, before.1));
        (good + bad > 0).then_some(Fact::Counts { indicator, good, bad })
    }

    /// Nothing is kept of nodes that are no more.
    fn forget(&mut self, look: &Look<'_>) {
        let nodes: BTreeSet<&str> = look.peers.iter().map(|peer| peer.node.as_str()).collect();
        let is_known = |part: &PartId| {
            let node = part.name.split([':', ' ']).next().unwrap_or_default();
            nodes.contains(node)
        };
        self.sole.retain(is_known);
        self.ids.retain(|part, _| is_known(part));
        self.times.retain(|(part, _), _| is_known(part));
        self.counts.retain(|(part, _), _| is_known(part));
    }
}

/// Whether no other drive of its node takes chunks, so that a decision about it is one about the node.
fn is_sole(part: &PartId, measures: &Measures) -> bool {
    let takes = |drive: &DriveMeasures| drive.state == "live";
    !measures.drives.iter().any(|drive| takes(drive) && PartId::drive(&measures.node, &drive.path) != *part)
}

fn push(all: &mut Vec<Observation>, now: Time, part: &PartId, fact: Option<Fact>) {
    all.extend(fact.map(|fact| Observation::fact(part.clone(), now, fact)));
}

fn duty_of(word: &str) -> Duty {
    match word {
        "quarantined" => Duty::Quarantined,
        "evacuating" => Duty::Evacuating,
        _ => Duty::Full,
    }
}

/// What came since the last look, as if the operations had been small and one at a time.
///
/// The gate measures small operations one at a time, and large ones by their rate. Operations of a node are of any size and
/// several at once, and then each takes longer although the drive is as good as ever. So each is shortened by what its
/// size costs at the gate's rate, and by how many were under way at once, which is the sum of all times by the time during which
/// something was under way: operations may come in bursts.
fn comparable(now: &Times, before: &Times, elapsed_ms: u64, calibration: Option<Calibration>) -> Latencies {
    let all = |times: &Times| Latencies::new(times.buckets.iter().copied());
    let new = all(now).since(&all(before));
    let count = new.count();
    if count == 0 {
        return new;
    }
    let is_anew = now.sum_us < before.sum_us || now.bytes < before.bytes;
    let (sum_us, bytes, busy_us) = match is_anew {
        true => (now.sum_us, now.bytes, now.busy_us),
        false => {
            let busy_us = now.busy_us.saturating_sub(before.busy_us);
            (now.sum_us - before.sum_us, now.bytes - before.bytes, busy_us)
        }
    };
    // Not counted of everything.
    let within_us = if busy_us == 0 { elapsed_ms.saturating_mul(1_000) } else { busy_us };
    let at_once = (sum_us as f64 / within_us.max(1) as f64).max(1.0);
    let larger = calibration.filter(|known| known.bytes_per_s > 0).map_or(1.0, |known| {
        let small_us = known.small_p99_us.max(FLOOR_US) as f64;
        let size_us = bytes as f64 / count as f64 / known.bytes_per_s as f64 * 1e6;
        (small_us + size_us) / small_us
    });
    new.scaled(1.0 / (at_once * larger))
}

/// What there is. Of a node that does not answer now the parts are those of the last look.
fn inventory(look: &Look<'_>, known: &Inventory) -> Inventory {
    let piece = |name: &str, detail: &str| Piece { name: name.to_owned(), detail: detail.to_owned() };
    let nodes = look.peers.iter().map(|peer| {
        let before = known.nodes.iter().find(|node| node.node == peer.node);
        let (drives, ports) = match (look.of(&peer.node), before) {
            (Some(measures), _) => {
                let PartFacts { drives: facts, ports, .. } = &measures.facts;
                let model = |path: &str| {
                    let known = facts.iter().find(|facts| facts.path == path);
                    known.map_or("", |facts| facts.model.as_str())
                };
                let drives = look.drives(measures).map(|drive| piece(&drive.path, model(&drive.path)));
                let drives = drives.collect();
                (drives, ports.iter().map(|port| piece(&port.name, &port.detail)).collect())
            }
            (None, Some(before)) => (before.drives.clone(), before.ports.clone()),
            (None, None) => Default::default(),
        };
        NodePlace {
            node: peer.node.clone(),
            name: peer.name.clone(),
            cell: peer.cell.clone(),
            tor: peer.tor.clone(),
            power: peer.power.clone(),
            drives,
            ports,
        }
    });
    Inventory { cluster: look.cluster.to_owned(), nodes: nodes.collect(), copies_needed: look.copies_needed }
}

#[cfg(test)]
mod tests;
