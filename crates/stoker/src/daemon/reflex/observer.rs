//! Makes observations of what nodes measured. It compares with the last look and brings figures into a form that can be compared with
//! what the gate found; it does not judge.

use std::collections::{BTreeMap, BTreeSet};

use stoker_node::PeerSeen;
use stoker_reflex::{
    Duty, Fact, Indicator, Inventory, Latencies, NodePlace, Observation, PartId, Piece, Presence, Time,
};
use stoker_store::{Calibration, DriveFacts, DriveMeasures, Measures, PartFacts, Times};

/// What is shorter than this is no sign of a broken drive, whatever the gate measured: a busy processor is as long.
const FLOOR_US: u64 = 1_000;

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
}

impl Look<'_> {
    fn of(&self, node: &str) -> Option<&Measures> {
        self.measures.iter().find(|one| one.node == node)
    }

    /// Whether a node has one drive only, so that a decision about the drive is one about the node.
    pub fn is_sole_drive(&self, node: &str) -> bool {
        self.of(node).is_some_and(|measures| measures.drives.len() == 1)
    }
}

impl Observer {
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
            tell(Fact::Duty(duty_of(peer.state)));
        }
        for (node, files_left, done) in look.evacuations {
            let fact = Fact::Evacuation { files_left: *files_left, done: *done };
            all.push(Observation::fact(PartId::node(node), look.now, fact.clone()));
            if let Some(drive) = look.of(node).filter(|one| one.drives.len() == 1).map(|one| &one.drives[0]) {
                all.push(Observation::fact(PartId::drive(node, &drive.path), look.now, fact));
            }
        }
        for measures in look.measures {
            self.observe_node(look, measures, &mut all);
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
        for drive in &measures.drives {
            let facts = measures.facts.drives.iter().find(|facts| facts.path == drive.path);
            let fallback = DriveFacts::default();
            self.observe_drive(look, node, drive, facts.unwrap_or(&fallback), all);
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
        node: &str,
        drive: &DriveMeasures,
        facts: &DriveFacts,
        all: &mut Vec<Observation>,
    ) {
        let (now, part) = (look.now, PartId::drive(node, &drive.path));
        let is_failed = drive.state == "failed";
        let presence = if is_failed { Presence::Down } else { Presence::Up };
        push(all, now, &part, Some(Fact::Presence(presence)));
        let node_state = look.peers.iter().find(|peer| peer.node == node).map_or("up", |peer| peer.state);
        let duty = match drive.state.as_str() {
            "resting" | "leaving" => Duty::Evacuating,
            _ if look.is_sole_drive(node) => duty_of(node_state),
            _ => Duty::Full,
        };
        push(all, now, &part, Some(Fact::Duty(duty)));
        let evacuation = drive.is_empty.map(|done| Fact::Evacuation { files_left: u64::from(!done), done });
        push(all, now, &part, evacuation);
        for (indicator, times, calibration) in [
            (Indicator::DriveReadP99, &drive.reads, facts.read),
            (Indicator::DriveWriteP99, &drive.writes, facts.write),
        ] {
            let baseline = calibration
                .map(|known| Fact::Baseline { indicator, p99_us: known.small_p99_us.max(FLOOR_US) });
            push(all, now, &part, baseline);
            let fact = self.latencies(&part, indicator, now, times, calibration);
            push(all, now, &part, fact);
        }
        // One that is out does nothing else.
        let tried = PartId::drive(node, &format!("{} tried", drive.path));
        for (indicator, times) in
            [(Indicator::DriveReadP99, &facts.tried_reads), (Indicator::DriveWriteP99, &facts.tried_writes)]
        {
            let fact = self.latencies(&tried, indicator, now, times, None);
            push(all, now, &part, fact);
        }
        let counts = self.counts(&part, Indicator::DriveErrors, drive.good, drive.bad);
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
        self.times.retain(|(part, _), _| is_known(part));
        self.counts.retain(|(part, _), _| is_known(part));
    }
}

fn push(all: &mut Vec<Observation>, now: Time, part: &PartId, fact: Option<Fact>) {
    all.extend(fact.map(|fact| Observation::fact(part.clone(), now, fact)));
}

fn duty_of(state: &str) -> Duty {
    match state {
        "quarantined" => Duty::Quarantined,
        "evacuating" => Duty::Evacuating,
        _ => Duty::Full,
    }
}

/// What came since the last look, as if the operations had been small and one at a time.
///
/// The gate measures small operations one at a time, and large ones by their rate. Operations of a node are of any size and
/// several at once, and then each takes longer although the drive is as good as ever. So each is shortened by what its
/// size costs at the gate's rate, and by how many were under way at once, which is the sum of all times by the time that passed.
fn comparable(now: &Times, before: &Times, elapsed_ms: u64, calibration: Option<Calibration>) -> Latencies {
    let all = |times: &Times| Latencies::new(times.buckets.iter().copied());
    let new = all(now).since(&all(before));
    let count = new.count();
    if count == 0 {
        return new;
    }
    let is_anew = now.sum_us < before.sum_us || now.bytes < before.bytes;
    let (sum_us, bytes) = match is_anew {
        true => (now.sum_us, now.bytes),
        false => (now.sum_us - before.sum_us, now.bytes - before.bytes),
    };
    let at_once = (sum_us as f64 / (elapsed_ms.max(1) as f64 * 1e3)).max(1.0);
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
                let drives =
                    measures.drives.iter().map(|drive| piece(&drive.path, model(&drive.path))).collect();
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
mod tests {
    use super::*;

    fn times(buckets: &[(u64, u64)], bytes: u64) -> Times {
        let sum_us = buckets.iter().map(|(upper, count)| upper * count).sum();
        Times { buckets: buckets.to_vec(), sum_us, bytes }
    }

    #[test]
    fn a_busy_drive_is_not_a_slow_one() {
        let known = Some(Calibration { small_p99_us: 1_000, bytes_per_s: 1 << 30 });
        let none = Times::default();
        // 4 MiB take 3.9 ms at the rate of the gate. Eight at once take eight times as long, for eight seconds of ten.
        let busy = times(&[(32_000, 2_000)], 2_000 * (4 << 20));
        let calm = times(&[(4_900, 200)], 200 * (4 << 20));
        let slow = times(&[(490_000, 20)], 20 * (4 << 20));
        assert!(comparable(&busy, &none, 10_000, known).p99_us() <= 1_500);
        assert!(comparable(&calm, &none, 10_000, known).p99_us() <= 1_500);
        assert!(comparable(&slow, &none, 10_000, known).p99_us() > 50_000);
        // The same load on a drive that does a tenth of it.
        let throttled = times(&[(320_000, 200)], 200 * (4 << 20));
        assert!(comparable(&throttled, &none, 10_000, known).p99_us() > 8_000);
        // Of a drive that nobody measured only the load is known.
        assert!(comparable(&busy, &none, 10_000, None).p99_us() < 10_000);
    }

    #[test]
    fn counters_that_begin_anew_are_no_debt() {
        let mut observer = Observer::default();
        let part = PartId::node("a");
        assert_eq!(observer.counts(&part, Indicator::CopyErrors, 100, 1), None);
        let fact = |good, bad| Some(Fact::Counts { indicator: Indicator::CopyErrors, good, bad });
        assert_eq!(observer.counts(&part, Indicator::CopyErrors, 150, 3), fact(50, 2));
        assert_eq!(observer.counts(&part, Indicator::CopyErrors, 7, 0), fact(7, 0));
        assert_eq!(observer.counts(&part, Indicator::CopyErrors, 7, 0), None);
        let mut look = |ms: u64, times: &Times| {
            observer.latencies(&part, Indicator::ReadP99, Time(ms), times, None).is_some()
        };
        assert!(!look(1_000, &times(&[(50, 10)], 0)));
        assert!(look(2_000, &times(&[(50, 11)], 0)));
        assert!(!look(3_000, &times(&[(50, 11)], 0)));
        // A clock that goes back says nothing.
        assert!(!look(2_500, &times(&[(50, 12)], 0)));
    }

    #[test]
    fn a_node_that_does_not_answer_keeps_its_parts() {
        let peer = |state, is_suspect| PeerSeen {
            node: "a".into(),
            name: "n1".into(),
            cell: String::new(),
            tor: String::new(),
            power: String::new(),
            state,
            is_suspect,
        };
        let drive = DriveMeasures { path: "/d".into(), state: "live".into(), ..DriveMeasures::default() };
        let measures = Measures { node: "a".into(), drives: vec![drive], ..Measures::default() };
        let mut known = Inventory::default();
        let mut observer = Observer::default();
        let mut look = |peers: &[PeerSeen], measures: &[Measures]| {
            let now = Time(1);
            let look = Look { now, cluster: "c", copies_needed: 1, peers, measures, evacuations: &[] };
            observer.observe(&look, &mut known)
        };
        look(&[peer("up", false)], std::slice::from_ref(&measures));
        let seen = look(&[peer("up", true)], &[]);
        let Observation::Inventory(inventory) = &seen[0] else { panic!("{seen:?}") };
        assert_eq!(inventory.nodes[0].drives[0].name, "/d");
        assert!(seen.contains(&Observation::fact(
            PartId::node("a"),
            Time(1),
            Fact::Presence(Presence::Suspect)
        )));
        // The only drive of a node that is out is out.
        let seen = look(&[peer("quarantined", false)], &[measures]);
        let part = PartId::drive("a", "/d");
        assert!(seen.contains(&Observation::fact(part, Time(1), Fact::Duty(Duty::Quarantined))));
    }
}
