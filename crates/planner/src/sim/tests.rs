//! The simulation against what can be computed, and against what is obvious.

use super::*;
use crate::{Model, spec};

fn simulated(given: &[(&str, &str)]) -> Plan {
    let inputs = Inputs::from_texts(spec("sim", Model::Stoker).unwrap(), given.iter().copied()).unwrap();
    plan(&inputs, &Constants::default())
}

fn value(plan: &Plan, name: &str) -> f64 {
    plan.value(name).unwrap_or_else(|| panic!("no figure {name}"))
}

fn is_near(left: f64, right: f64, share: f64) -> bool {
    (left - right).abs() <= share * right.abs().max(1e-9)
}

/// Nothing fails by chance.
const QUIET: [(&str, &str); 5] = [
    ("drive_failures", "0"),
    ("node_losses", "0"),
    ("lake_outages", "0"),
    ("node_mtbf", "1e11"),
    ("checkpoint_every", "30m"),
];

fn quiet(more: &[(&'static str, &'static str)]) -> Plan {
    let given: Vec<(&str, &str)> = QUIET.iter().chain(more).copied().collect();
    simulated(&given)
}

#[test]
fn without_failures_a_checkpoint_takes_what_the_designer_computes() {
    let made = quiet(&[("days", "1"), ("runs", "1")]);
    let inputs = Inputs::defaults(spec("design", Model::Stoker).unwrap());
    let computed = design::checkpoints(&inputs, &Constants::default());
    for name in ["checkpoint_p50", "checkpoint_max"] {
        assert!(
            is_near(value(&made, name), computed.time_s, 1e-5),
            "{name}: {} {computed:?}",
            value(&made, name)
        );
    }
    // 2 TB wait at most, for the time that they take to drain and 10 s.
    assert!(is_near(value(&made, "dirty_max"), 2e12, 1e-6));
    assert!(is_near(value(&made, "drained_max"), computed.time_s + 10.0 + 2e12 / 20e9, 1e-3));
    assert_eq!(value(&made, "runs_with_loss"), 0.0);
    assert_eq!(value(&made, "held"), 0.0);
    assert_eq!(made.tone, Tone::Ok);
}

#[test]
fn rings_fill_when_computed_and_then_the_lake_sets_the_pace() {
    // 2 TB every 30 minutes, and a lake that takes 0.5 GB/s: 1.1 TB stay each time.
    let slow = [("lake_rate", "500MB/s"), ("drive_size", "100GB"), ("days", "2"), ("runs", "1")];
    let made = quiet(&slow);
    assert!(value(&made, "ring_max") > 0.999, "{}", value(&made, "ring_max"));
    // All that is written leaves at the rate of the lake at last: 2 TB in 4,000 s.
    assert!(is_near(value(&made, "checkpoint_max"), 4000.0, 0.05), "{}", value(&made, "checkpoint_max"));
    assert!(value(&made, "held") > 0.1);
    assert_eq!(made.tone, Tone::Bad);
    // 64 nodes x 8 drives x 100 GB x half, in two copies, is 12.8 TB: the twelfth checkpoint finds no room, none before the tenth.
    let first = quiet(&[slow[0], slow[1], ("days", "0.2"), slow[3]]);
    assert_eq!(value(&first, "held"), 0.0);
    let later = quiet(&[slow[0], slow[1], ("days", "0.3"), slow[3]]);
    assert!(value(&later, "held") > 0.0);
}

#[test]
fn a_checkpoint_larger_than_the_rings_goes_through_at_the_rate_of_the_lake() {
    let made = quiet(&[("drive_size", "1GB"), ("checkpoint_every", "1h"), ("days", "1"), ("runs", "1")]);
    assert!(value(&made, "checkpoint_p50") > 2e12 / 20e9 * 0.8, "{}", value(&made, "checkpoint_p50"));
    assert!(value(&made, "ring_max") <= 1.0 + 1e-3);
    assert!(value(&made, "trained") > 0.5);
}

#[test]
fn an_outage_of_the_lake_leaves_what_was_written_meanwhile() {
    let away = [("strike", "lake"), ("lake_outage_time", "4h"), ("days", "2"), ("runs", "1")];
    let made = quiet(&away);
    // One every half hour for four hours.
    let kept = value(&made, "dirty_max") / 2e12;
    assert!((7.9..=9.1).contains(&kept), "{kept}");
    assert!(value(&made, "drained_max") > 4.0 * 3600.0);
    assert!(is_near(value(&made, "drained_p50"), value(&quiet(&[]), "drained_p50"), 0.01));
}

#[test]
fn one_copy_dies_with_its_node_and_two_do_not() {
    let struck = |class, strike, spread| {
        // While a checkpoint is being drained: it was begun at 12:00.
        quiet(&[
            ("class", class),
            ("strike", strike),
            ("spread", spread),
            ("strike_at", "43220s"),
            ("lake_rate", "5GB/s"),
            ("days", "1"),
            ("runs", "3"),
        ])
    };
    for (class, strike, spread, loses) in [
        ("one", "node", "node", true),
        ("two", "node", "node", false),
        ("two", "rack", "node", true),
        ("two", "rack", "rack", false),
        ("three", "rack", "rack", false),
    ] {
        let made = struck(class, strike, spread);
        assert_eq!(value(&made, "runs_with_loss") > 0.0, loses, "{class} {strike} {spread}: {made:?}");
        assert!(value(&made, "hurt_max") > 0.0 || class == "one", "{class} {strike} {spread}");
    }
    // A 64th of what was undrained, twice since each byte lies on two nodes.
    let made = struck("two", "node", "node");
    let share = value(&made, "hurt_max") / value(&made, "dirty_max");
    assert!((0.02..=0.04).contains(&share), "{share}");
    // Noticed after 30 s.
    assert!((30.0..=60.0).contains(&value(&made, "hurt_time")), "{}", value(&made, "hurt_time"));
}

/// With one copy every loss of a drive counts while something is undrained, which the designer computes as well.
#[test]
fn losses_come_as_often_as_computed() {
    let made = simulated(&[
        ("class", "one"),
        ("nodes", "4"),
        ("drives", "2"),
        ("drive_failures", "0.9"),
        ("node_losses", "0"),
        ("lake_outages", "0"),
        ("node_mtbf", "1e11"),
        ("checkpoint_every", "1h"),
        ("checkpoint_size", "1TB"),
        ("lake_rate", "1GB/s"),
        ("days", "30"),
        ("runs", "120"),
    ]);
    // 1 TB takes 1,000 s of each hour and some; eight drives of which nine in ten die in a year.
    let dirty_time = (1000.0 + 10.0 + value(&made, "checkpoint_p50")) / 3600.0;
    let computed = design::loss_per_year(1, 8.0, 0.9 * 30.0 / 365.25, dirty_time, 1.0);
    let (runs, seen) = (value(&made, "runs_made"), value(&made, "runs_with_loss"));
    let deviation = (computed * (1.0 - computed) / runs).sqrt();
    assert!((seen - computed).abs() < 4.0 * deviation, "{seen} of runs, {computed} computed, {runs} runs");
}

#[test]
fn the_same_seed_gives_the_same_days() {
    let text = |seed| format!("{:?}", simulated(&[("seed", seed), ("days", "60"), ("runs", "4")]).figures);
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

/// Every corner of the ranges ends, with figures that are numbers and shares that are shares.
#[test]
fn corners_end_with_numbers() {
    let spec = spec("sim", Model::Stoker).unwrap();
    for chosen in 0..spec.fields.len() {
        for is_high in [false, true] {
            let field = &spec.fields[chosen];
            let edge = if is_high { field.max } else { field.min };
            let inputs = match field.kind {
                Kind::Choice(words) => Inputs::defaults(spec).with_word(field.name, words[edge as usize].0),
                _ => Inputs::defaults(spec).with(field.name, edge),
            };
            let made = plan(&inputs, &Constants::default());
            for figure in &made.figures {
                assert!(
                    figure.value.is_finite() && figure.value >= 0.0,
                    "{} at {edge}: {figure:?}",
                    field.name
                );
                if figure.unit == "share" && figure.name != "ring_max" {
                    assert!(figure.value <= 1.0 + 1e-6, "{} at {edge}: {figure:?}", field.name);
                }
            }
            assert!(made.curves.iter().all(|curve| curve.x.len() <= POINTS + 2));
        }
    }
}
