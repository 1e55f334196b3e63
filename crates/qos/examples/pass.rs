//! What a request costs where nobody waits, and where many do: `cargo run --release -p stoker-qos --example pass`.

use std::time::Instant;

use stoker_qos::{Class, Cost, Match, Next, Rate, Scheduler, Settings, Spec, Submitted, Tag};

const ROUNDS: u64 = 5_000_000;

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::print_stdout, reason = "a program that tells what it found")]
fn tell(what: &str, rounds: u64, since: Instant) {
    println!("{what}: {:.0} ns", since.elapsed().as_nanos() as f64 / rounds as f64);
}

fn main() {
    let settings = Settings {
        capacity: Rate { bytes_per_s: Some(100_000_000_000), ops_per_s: Some(50_000_000) },
        ..Settings::default()
    };
    let mut scheduler = Scheduler::new(settings);
    let spec = Spec {
        floor: Rate::bytes(10_000_000_000),
        ceiling: Rate { bytes_per_s: Some(90_000_000_000), ops_per_s: Some(40_000_000) },
        ..Spec::default()
    };
    let promised = scheduler.reserve(0, Match::job(7), spec, None);
    assert!(promised.is_ok(), "{promised:?}");
    let cases = [
        ("nobody waits, no rule", Tag::of(Class::Client).job(8)),
        ("nobody waits, floor and ceiling", Tag::of(Class::Client).job(7)),
    ];
    let mut time = 1_000_000_000;
    for (what, tag) in cases {
        let since = now();
        for _ in 0..ROUNDS {
            time += 1_000;
            match scheduler.submit(time, tag, Cost::bytes(65_536)) {
                Ok(Submitted::Granted(granted)) => scheduler.complete(time, granted),
                other => panic!("{other:?}"),
            }
        }
        tell(what, ROUNDS, since);
    }
    for flows in [10, 100, 1_000, 10_000] {
        let settings = Settings { depth_ops: 1, flows_max: 20_000, ..Settings::default() };
        let mut scheduler = Scheduler::new(settings);
        let mut held = None;
        for job in 1..=flows {
            match scheduler.submit(0, Tag::of(Class::Client).job(job), Cost::bytes(65_536)) {
                Ok(Submitted::Granted(granted)) => held = Some(granted),
                other => drop(other),
            }
        }
        let rounds = ROUNDS / 10;
        let since = now();
        for round in 0..rounds {
            if let Some(granted) = held.take() {
                scheduler.complete(round, granted);
            }
            if let Next::Grant(_, granted) = scheduler.next(round) {
                held = Some(granted);
            }
            let _ =
                scheduler.submit(round, Tag::of(Class::Client).job(1 + round % flows), Cost::bytes(65_536));
        }
        tell(&format!("{flows} flows wait: queue, choose, complete"), rounds, since);
    }
}
