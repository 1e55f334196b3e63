//! What happened between two looks at the numbers of a node.

use std::collections::{BTreeMap, BTreeSet};

use stoker_store::Counter;

use super::Severity;

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// How bad it is.
    pub severity: Severity,
    /// A word for programs, as `node_down`.
    pub kind: &'static str,
    /// What it happened to.
    pub subject: String,
    /// What happened, for people.
    pub words: String,
}

impl Change {
    /// A change.
    pub fn new(severity: Severity, kind: &'static str, subject: &str, words: String) -> Change {
        Change { severity, kind, subject: subject.to_owned(), words }
    }
}

/// Numbers that should not grow: name, severity, kind, and what it means if they do.
const RISING: [(&str, Severity, &str, &str); 9] = [
    (
        "conflicts_total",
        Severity::Error,
        "conflict",
        "versions were put aside because somebody else changed the lake: `stoker conflict ls`",
    ),
    ("ring_corrupt_blocks_total", Severity::Error, "corruption", "blocks had a wrong checksum"),
    ("scrub_bad_records_total", Severity::Error, "corruption", "records were found damaged by the scrubber"),
    ("ring_lost_records_total", Severity::Error, "corruption", "records cannot be read any more"),
    ("read_repair_failures_total", Severity::Error, "mend_failed", "bad copies could not be repaired"),
    ("ring_io_errors_total", Severity::Error, "drive_error", "reads, writes or flushes failed"),
    (
        "ring_refused_full_total",
        Severity::Warn,
        "ring_full",
        "appends were refused because the ring is full of bytes that must stay",
    ),
    (
        "alone_publishes_total",
        Severity::Warn,
        "published_alone",
        "versions were acknowledged by the lake's copy, because too few nodes could take one",
    ),
    ("sets_expired_total", Severity::Warn, "set_expired", "checkpoint sets were given up at their deadline"),
];

/// Looks without trouble until it is over: a minute.
const CALM_LOOKS: u32 = 30;

/// What is on or off: name, severity and kind while it is on, what that means, and kind when it is over.
const SWITCHES: [(&str, Severity, &str, &str, &str); 2] = [
    (
        "lake_trouble",
        Severity::Warn,
        "lake_trouble",
        "a lake does not answer as it should; what is written stays on the drives",
        "lake_fine",
    ),
    (
        "rebuild_trouble",
        Severity::Warn,
        "rebuild_trouble",
        "files that lost a copy cannot be protected again: `stoker rebuild status`",
        "rebuild_fine",
    ),
];

/// A node at one moment, as far as events tell of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// The node gave its numbers.
    is_up: bool,
    is_ready: bool,
    /// State of each other node, and whether it answers.
    peers: BTreeMap<String, (String, bool)>,
    /// Drives, and whether they failed.
    drives: BTreeMap<String, bool>,
    /// Lake objects with damaged bytes, and how often that was found.
    objects: BTreeMap<String, f64>,
    switches: [bool; SWITCHES.len()],
    /// For how many looks each has been off again.
    off_for: [u32; SWITCHES.len()],
    rising: [f64; RISING.len()],
}

impl Seen {
    /// From its numbers; without any it is as it was.
    pub fn of(counters: Option<&[Counter]>, before: Option<&Seen>) -> Seen {
        let Some(counters) = counters else {
            return Seen { is_up: false, ..before.cloned().unwrap_or_default() };
        };
        let label = |counter: &Counter, name: &str| -> Option<String> {
            counter.labels.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        let mut seen = Seen { is_up: true, ..Seen::default() };
        for counter in counters {
            let is_on = counter.value != 0.0;
            match counter.name.as_str() {
                "ready" => seen.is_ready = is_on,
                "peer_answers" => {
                    let peer = label(counter, "peer").unwrap_or_default();
                    seen.peers.entry(peer).or_default().1 = is_on;
                }
                "peer_state" if is_on => {
                    let peer = label(counter, "peer").unwrap_or_default();
                    seen.peers.entry(peer).or_default().0 = label(counter, "state").unwrap_or_default();
                }
                "ring_poisoned" => {
                    seen.drives.insert(label(counter, "drive").unwrap_or_default(), is_on);
                }
                "lake_corrupt_reads_total" => {
                    let part = |name: &str| label(counter, name).unwrap_or_default();
                    let object = format!("{}/{}", part("volume"), part("key"));
                    *seen.objects.entry(object).or_default() += counter.value;
                }
                name => {
                    if let Some(at) = SWITCHES.iter().position(|(known, ..)| *known == name) {
                        seen.switches[at] = is_on;
                    }
                    // Numbers of several drives together.
                    if let Some(at) = RISING.iter().position(|(known, ..)| *known == name) {
                        seen.rising[at] += counter.value;
                    }
                }
            }
        }
        if let Some(before) = before {
            seen.settle(before);
        }
        seen
    }

    /// What comes and goes is one trouble, and not an event each time: it is over once it stayed away for a while.
    fn settle(&mut self, before: &Seen) {
        for at in 0..SWITCHES.len() {
            if !self.switches[at] && before.switches[at] {
                self.off_for[at] = before.off_for[at] + 1;
                self.switches[at] = self.off_for[at] < CALM_LOOKS;
            }
        }
    }
}

impl Seen {
    /// The same as if nothing were wrong with what was there at a start: to compare a first look with. Peers are left as they are,
    /// since it takes a moment to hear of them.
    pub fn calm(&self) -> Seen {
        let drives = self.drives.keys().map(|drive| (drive.clone(), false)).collect();
        let (objects, switches) = (BTreeMap::new(), [false; SWITCHES.len()]);
        Seen { drives, objects, switches, rising: [0.0; RISING.len()], ..self.clone() }
    }
}

/// What happened from one look to the next.
pub fn between(before: &Seen, now: &Seen) -> Vec<Change> {
    let mut all = Vec::new();
    let mut push = |severity, kind, subject: &str, words: &str| {
        all.push(Change::new(severity, kind, subject, words.to_owned()));
    };
    match (before.is_up, now.is_up) {
        (true, false) => {
            push(Severity::Error, "node_stuck", "", "the node does not give its numbers in time")
        }
        (false, true) => push(Severity::Info, "node_unstuck", "", "the node gives its numbers again"),
        _ => {}
    }
    match (before.is_ready, now.is_ready) {
        (true, false) => push(Severity::Error, "not_ready", "", "the node takes no requests"),
        (false, true) => push(Severity::Info, "ready", "", "the node takes requests again"),
        _ => {}
    }
    for (at, (_, severity, kind, words, over)) in SWITCHES.iter().enumerate() {
        match (before.switches[at], now.switches[at]) {
            (false, true) => push(*severity, kind, "", words),
            (true, false) => push(Severity::Info, over, "", "that is over"),
            _ => {}
        }
    }
    for (at, (_, severity, kind, words)) in RISING.iter().enumerate() {
        let more = now.rising[at] - before.rising[at];
        if more > 0.0 {
            push(*severity, kind, "", &format!("{more} {words}"));
        }
    }
    for (object, count) in &now.objects {
        if *count > before.objects.get(object).copied().unwrap_or(0.0) {
            let words = "the lake holds other bytes of it than were written there: restore the object";
            all.push(Change::new(Severity::Error, "lake_corruption", object, words.to_owned()));
        }
    }
    all.extend(of_drives(before, now));
    all.extend(of_peers(before, now));
    all
}

fn of_drives(before: &Seen, now: &Seen) -> Vec<Change> {
    let mut all = Vec::new();
    for (drive, failed) in &now.drives {
        let (severity, kind, words) = match (before.drives.get(drive), failed) {
            (Some(false) | None, true) => (
                Severity::Error,
                "drive_failed",
                "the drive failed and takes no more: `stoker drive replace`",
            ),
            (None, false) => (Severity::Info, "drive_added", "the drive is in service"),
            _ => continue,
        };
        all.push(Change::new(severity, kind, drive, words.to_owned()));
    }
    for drive in before.drives.keys().filter(|drive| !now.drives.contains_key(*drive)) {
        all.push(Change::new(Severity::Info, "drive_removed", drive, "the drive was taken out".to_owned()));
    }
    all
}

fn of_peers(before: &Seen, now: &Seen) -> Vec<Change> {
    let mut all = Vec::new();
    let peers: BTreeSet<&String> = before.peers.keys().chain(now.peers.keys()).collect();
    for peer in peers {
        let (was, is) = (before.peers.get(peer), now.peers.get(peer));
        let mut push = |severity, kind, words: String| all.push(Change::new(severity, kind, peer, words));
        match (was, is) {
            (None, Some((state, _))) => {
                push(Severity::Info, "node_joined", format!("{peer} is a node of the cluster now: {state}"));
            }
            (Some(_), None) => {
                push(Severity::Info, "node_removed", format!("{peer} is no node of the cluster any more"))
            }
            (Some((was, answered)), Some((is, answers))) => {
                if was != is {
                    let (severity, kind) = state_kind(is);
                    push(severity, kind, format!("{peer} was {was} and is {is} now"));
                }
                match (answered, answers) {
                    // One that says good-bye, or was declared down, is told of already.
                    (true, false) if matches!(is.as_str(), "up" | "witness") => {
                        push(Severity::Warn, "node_silent", format!("{peer} misses pings of this node"));
                    }
                    (false, true) => {
                        push(Severity::Info, "node_answers", format!("{peer} answers this node"))
                    }
                    _ => {}
                }
            }
            (None, None) => {}
        }
    }
    all
}

fn state_kind(state: &str) -> (Severity, &'static str) {
    match state {
        "up" | "witness" => (Severity::Info, "node_up"),
        "down" => (Severity::Error, "node_down"),
        "leaving" => (Severity::Info, "node_leaving"),
        "quarantined" => (Severity::Warn, "node_quarantined"),
        "evacuating" => (Severity::Warn, "node_evacuating"),
        "unreachable" => (Severity::Warn, "node_unreachable"),
        _ => (Severity::Info, "node_changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, state: &str, answers: bool) -> Vec<Counter> {
        vec![
            Counter::new("peer_answers", "", &[("peer", name)], f64::from(answers)),
            Counter::new("peer_state", "", &[("peer", name), ("state", state)], 1.0),
        ]
    }

    fn one(name: &str, value: f64) -> Vec<Counter> {
        vec![Counter::new(name, "", &[], value)]
    }

    fn drive(id: &str, failed: bool) -> Vec<Counter> {
        vec![Counter::new("ring_poisoned", "", &[("drive", id)], f64::from(failed))]
    }

    fn check(before: Vec<Counter>, now: Option<Vec<Counter>>, expect: &[(&str, &str)]) {
        let before = Seen::of(Some(&before), None);
        let now = Seen::of(now.as_deref(), Some(&before));
        let changes = between(&before, &now);
        let found: Vec<(&str, &str)> =
            changes.iter().map(|change| (change.kind, change.subject.as_str())).collect();
        assert_eq!(found, expect, "{changes:?}");
        assert!(between(&now, &now).is_empty());
    }

    #[test]
    fn nodes() {
        check(peer("b", "up", true), Some(peer("b", "up", true)), &[]);
        check(peer("b", "up", true), Some(peer("b", "up", false)), &[("node_silent", "b")]);
        check(peer("b", "witness", true), Some(peer("b", "witness", false)), &[("node_silent", "b")]);
        check(peer("b", "down", true), Some(peer("b", "witness", true)), &[("node_up", "b")]);
        check(peer("b", "up", false), Some(peer("b", "down", false)), &[("node_down", "b")]);
        check(peer("b", "up", true), Some(peer("b", "down", false)), &[("node_down", "b")]);
        check(
            peer("b", "down", false),
            Some(peer("b", "up", true)),
            &[("node_up", "b"), ("node_answers", "b")],
        );
        check(peer("b", "up", true), Some(peer("b", "quarantined", true)), &[("node_quarantined", "b")]);
        check(vec![], Some(peer("b", "up", true)), &[("node_joined", "b")]);
        check(peer("b", "leaving", true), Some(vec![]), &[("node_removed", "b")]);
    }

    #[test]
    fn drives() {
        check(drive("d", false), Some(drive("d", true)), &[("drive_failed", "d")]);
        check(
            drive("d", true),
            Some([drive("d", true), drive("e", false)].concat()),
            &[("drive_added", "e")],
        );
        check(drive("d", true), Some(vec![]), &[("drive_removed", "d")]);
    }

    #[test]
    fn a_first_look_tells_what_is_wrong_already() {
        let first = |counters: Vec<Counter>| {
            let seen = Seen::of(Some(&counters), None);
            between(&seen.calm(), &seen).iter().map(|change| change.kind).collect::<Vec<_>>()
        };
        assert_eq!(first([drive("d", true), drive("e", false)].concat()), ["drive_failed"]);
        assert_eq!(first(one("lake_trouble", 1.0)), ["lake_trouble"]);
        assert_eq!(first(one("conflicts_total", 2.0)), ["conflict"]);
        let calm = [drive("d", false), peer("b", "down", false), one("lake_trouble", 0.0), one("ready", 1.0)];
        assert_eq!(first(calm.concat()), [""; 0]);
        // Without an answer nothing is known.
        let stuck = Seen::of(None, None);
        assert!(between(&stuck.calm(), &stuck).is_empty());
    }

    #[test]
    fn damaged_lake_objects_are_named() {
        let reads = |count| {
            let labels = [("volume", "data"), ("key", "a/b")];
            vec![Counter::new("lake_corrupt_reads_total", "", &labels, count)]
        };
        check(vec![], Some(reads(1.0)), &[("lake_corruption", "data/a/b")]);
        check(reads(1.0), Some(reads(2.0)), &[("lake_corruption", "data/a/b")]);
        check(reads(2.0), Some(reads(2.0)), &[]);
    }

    #[test]
    fn switches_and_counters() {
        check(one("lake_trouble", 0.0), Some(one("lake_trouble", 1.0)), &[("lake_trouble", "")]);
        check(one("ready", 1.0), Some(one("ready", 0.0)), &[("not_ready", "")]);
        check(one("conflicts_total", 2.0), Some(one("conflicts_total", 5.0)), &[("conflict", "")]);
        // Of two drives.
        let errors = |one: f64, two: f64| {
            [("d", one), ("e", two)]
                .map(|(id, value)| Counter::new("ring_io_errors_total", "", &[("drive", id)], value))
                .to_vec()
        };
        check(errors(1.0, 1.0), Some(errors(1.0, 2.0)), &[("drive_error", "")]);
        check(errors(1.0, 1.0), Some(errors(1.0, 1.0)), &[]);
    }

    #[test]
    fn what_comes_and_goes_is_one_trouble_and_one_end() {
        let mut told = Vec::new();
        let mut seen = Seen::of(Some(&one("rebuild_trouble", 0.0)), None);
        let mut look = |is_on: bool| {
            let now = Seen::of(Some(&one("rebuild_trouble", f64::from(is_on))), Some(&seen));
            told.extend(between(&seen, &now).into_iter().map(|change| change.kind));
            seen = now;
            told.clone()
        };
        for at in 0..500 {
            look(at % 7 < 3);
        }
        assert_eq!(look(false), ["rebuild_trouble"]);
        for _ in 0..CALM_LOOKS {
            look(false);
        }
        assert_eq!(look(false), ["rebuild_trouble", "rebuild_fine"]);
        assert_eq!(look(true), ["rebuild_trouble", "rebuild_fine", "rebuild_trouble"]);
    }

    #[test]
    fn a_node_that_does_not_answer_is_told_of_once_and_nothing_else_is_made_up() {
        let all = [peer("b", "up", true), drive("d", false), one("ready", 1.0), one("conflicts_total", 2.0)]
            .concat();
        check(all.clone(), None, &[("node_stuck", "")]);
        let before = Seen::of(Some(&all), None);
        let stuck = Seen::of(None, Some(&before));
        assert_eq!(
            between(&stuck, &before).iter().map(|change| change.kind).collect::<Vec<_>>(),
            ["node_unstuck"]
        );
    }
}
