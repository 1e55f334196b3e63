//! Random streams of facts against a model that counts by itself.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoker_reflex::*;

use crate::fleet::{Fleet, TICK_MS, short};
use crate::invariants::Invariants;

const NODES: usize = 10;

/// What a node shows in a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Show {
    Good,
    Bad,
    /// Some latencies, and too few to say anything.
    Few,
    Nothing,
}

fn show() -> impl Strategy<Value = Show> {
    prop_oneof![3 => Just(Show::Bad), 2 => Just(Show::Good), 1 => Just(Show::Few), 1 => Just(Show::Nothing)]
}

/// Runs of the same, so that rows come about: what each node shows, and for how many ticks.
fn streams() -> impl Strategy<Value = Vec<([Show; NODES], u64)>> {
    prop::collection::vec((prop::array::uniform10(show()), 1..9_u64), 1..25)
}

fn latencies(show: Show) -> Option<Latencies> {
    match show {
        Show::Good => Some(Latencies::new([(1_000, 200)])),
        Show::Bad => Some(Latencies::new([(9_000, 200)])),
        Show::Few => Some(Latencies::new([(1_000, 5)])),
        Show::Nothing => None,
    }
}

/// Bad ticks in a row, as anybody would count them: ticks that say nothing count for nothing, and too many of them end a row.
#[derive(Clone, Copy, Default)]
struct Row {
    bad: u32,
    silent: u64,
}

impl Row {
    fn note(&mut self, show: Show) {
        match show {
            Show::Good => *self = Row::default(),
            Show::Bad => *self = Row { bad: self.bad + 1, silent: 0 },
            Show::Few | Show::Nothing => self.silent += 1,
        }
        if self.silent > 6 {
            self.bad = 0;
        }
    }
}

fn name(at: usize) -> PartId {
    PartId::node(format!("n0{at}"))
}

struct Run {
    reflex: Reflex,
    invariants: Invariants,
    now: Time,
    tick: u64,
    gates: Vec<(PartId, u64)>,
    /// Seen in the next tick, too.
    more: Vec<Observation>,
    duties: BTreeMap<PartId, Duty>,
}

impl Run {
    fn new() -> Run {
        let inventory = Fleet::new(short(), &[NODES], 1).inventory;
        let mut reflex = Reflex::new(short(), Memory::default());
        let now = Time(1_000_000_000);
        let baseline = |at| {
            let fact = Fact::Baseline { indicator: Indicator::CommitP99, p99_us: 1_000 };
            Observation::fact(name(at), now, fact)
        };
        let invariants = Invariants::new(&short(), &inventory);
        let seen: Vec<Observation> =
            std::iter::once(Observation::Inventory(inventory)).chain((0..NODES).map(baseline)).collect();
        reflex.step(now, &seen);
        Run { reflex, invariants, now, tick: 0, gates: Vec::new(), more: Vec::new(), duties: BTreeMap::new() }
    }

    /// A tick in which nodes show this; returns who was taken out.
    fn tick(&mut self, shows: &[Show; NODES], is_present: bool) -> Vec<PartId> {
        self.tick += 1;
        self.now.0 += TICK_MS;
        let mut seen = std::mem::take(&mut self.more);
        for (at, show) in shows.iter().enumerate() {
            let mut say = |fact| seen.push(Observation::fact(name(at), self.now, fact));
            if is_present {
                say(Fact::Presence(Presence::Up));
                say(Fact::Duty(self.duties.get(&name(at)).copied().unwrap_or(Duty::Full)));
            }
            if let Some(latencies) = latencies(*show) {
                say(Fact::Latencies { indicator: Indicator::CommitP99, latencies });
            }
        }
        for (part, run) in self.gates.drain(..) {
            let fact = Fact::Gate { run, passed: true, words: "sound".into() };
            seen.push(Observation::fact(part, self.now, fact));
        }
        let commands = self.reflex.step(self.now, &seen);
        self.invariants.check(self.tick, &commands, &self.reflex);
        let mut taken = Vec::new();
        for command in commands {
            match command {
                Command::Quarantine { part, .. } => {
                    self.duties.insert(part.clone(), Duty::Quarantined);
                    taken.push(part);
                }
                Command::Rejoin { part } => {
                    self.duties.insert(part, Duty::Full);
                }
                Command::RunGate { part, run } => self.gates.push((part, run)),
                _ => {}
            }
        }
        taken
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_taken_out_without_a_row_and_everybody_comes_back(stream in streams()) {
        let mut run = Run::new();
        let mut rows = [Row::default(); NODES];
        for (shows, ticks) in &stream {
            for _ in 0..*ticks {
                shows.iter().zip(&mut rows).for_each(|(show, row)| row.note(*show));
                for part in run.tick(shows, true) {
                    let at = (0..NODES).find(|at| name(*at) == part).unwrap();
                    prop_assert!(rows[at].bad >= 5, "{part} after {} bad ticks", rows[at].bad);
                }
            }
        }
        for _ in 0..200 {
            run.tick(&[Show::Good; NODES], true);
        }
        prop_assert_eq!(run.reflex.parts(), []);
        run.invariants.check_all_closed();
    }

    #[test]
    fn nobody_is_taken_out_when_it_is_not_known_who_is_left(stream in streams()) {
        let mut run = Run::new();
        for (shows, ticks) in &stream {
            for _ in 0..*ticks {
                prop_assert_eq!(run.tick(shows, false), []);
            }
        }
    }

    #[test]
    fn jumps_and_restarts_make_no_row_longer(
        stream in streams(),
        jumps in prop::collection::vec((0..200_usize, -100_000_000_i64..100_000_000), 0..6),
    ) {
        check_jumps(&stream, &jumps)?;
    }
}

/// Nobody is taken out after fewer bad ticks than it takes, however the clock jumps.
fn check_jumps(stream: &[([Show; NODES], u64)], jumps: &[(usize, i64)]) -> Result<(), TestCaseError> {
    let mut run = Run::new();
    let mut rows = [Row::default(); NODES];
    let mut tick = 0;
    for (shows, ticks) in stream {
        for _ in 0..*ticks {
            for (_, jump_ms) in jumps.iter().filter(|(at, _)| *at == tick) {
                run.now.0 = run.now.0.saturating_add_signed(*jump_ms);
                if jump_ms % 2 == 0 {
                    run.reflex = Reflex::new(short(), run.reflex.memory().clone());
                    let inventory = Fleet::new(short(), &[NODES], 1).inventory;
                    run.more.push(Observation::Inventory(inventory));
                }
                // Far enough to be noticed, unless it is a step of the clock that changes nothing.
                if jump_ms.unsigned_abs() > 120_000 {
                    rows = [Row::default(); NODES];
                }
            }
            tick += 1;
            shows.iter().zip(&mut rows).for_each(|(show, row)| row.note(*show));
            for part in run.tick(shows, true) {
                let at = (0..NODES).find(|at| name(*at) == part).unwrap();
                prop_assert!(rows[at].bad >= 5, "{part} after {} bad ticks", rows[at].bad);
            }
        }
    }
    Ok(())
}

fn shows(text: &str) -> [Show; NODES] {
    let one = |c: char| match c {
        'g' => Show::Good,
        'b' => Show::Bad,
        'f' => Show::Few,
        _ => Show::Nothing,
    };
    text.chars().map(one).collect::<Vec<Show>>().try_into().unwrap()
}

/// Found by chance.
#[test]
fn a_step_back_of_the_clock_makes_no_row_longer() {
    let stream = [
        ("bgbbbggggg", 3),
        ("bbbgbbbbbb", 8),
        ("bbbbbbbbbb", 3),
        ("bbbbbbbbbb", 2),
        ("bbbbbbbbbb", 4),
        ("bbbbgbbbbb", 1),
        ("gbggbggbbg", 2),
        ("bgbbbbbbbb", 2),
    ];
    let stream = stream.map(|(text, ticks)| (shows(text), ticks));
    check_jumps(&stream, &[(19, -70_001)]).unwrap();
}
