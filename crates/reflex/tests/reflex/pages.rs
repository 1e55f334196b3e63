//! `docs/slo.md` says what the code does. `STOKER_BLESS=1` writes the parts that are made from it.

use stoker_reflex::config::HookKind;
use stoker_reflex::objective::{Measure, Reaction, SPECS, Threshold};
use stoker_reflex::table::picture;
use stoker_reflex::{PartKind, Slo};

fn path() -> String {
    format!("{}/../../docs/slo.md", env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    std::fs::read_to_string(path()).expect("docs/slo.md is there")
}

/// Compares what is between two markers, or writes it.
fn check(name: &str, expect: &str) {
    let (start, end) = (format!("<!-- {name}: made from the code -->\n"), format!("<!-- end of {name} -->"));
    let page = page();
    let (before, rest) = page.split_once(&start).unwrap_or_else(|| panic!("no marker {start}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no marker {end}"));
    if std::env::var_os("STOKER_BLESS").is_some() && found != expect {
        std::fs::write(path(), format!("{before}{start}{expect}{end}{after}"))
            .expect("docs/slo.md is writable");
        return;
    }
    assert_eq!(found, expect, "{name} in docs/slo.md: STOKER_BLESS=1 writes it anew");
}

fn objectives() -> String {
    let slo = Slo::default();
    let mut rows = "| indicator | of | bad is | what follows | aim | target | fewer than say nothing |\n|---|---|---|---|---|---|---|\n".to_owned();
    for spec in &SPECS {
        let objective = slo.objective(spec.indicator);
        let parts: Vec<&str> = spec.parts.iter().map(|kind| kind.word()).collect();
        let bad = match (spec.measure, objective.as_ref().map(|objective| objective.threshold)) {
            (Measure::Latency, Some(Threshold::Set(us))) | (Measure::Age, Some(Threshold::Set(us))) => {
                format!("longer than {} s", us as f64 / 1e6)
            }
            (Measure::Latency | Measure::Age, _) => "longer than 1.5 times what the gate measured".to_owned(),
            (Measure::Share, _) => "an operation that failed".to_owned(),
            (Measure::Flag, _) => "that it is so".to_owned(),
        };
        let follows = match spec.reaction {
            Reaction::Slow => "`slow`",
            Reaction::Sick => "`sick`",
            Reaction::Tell => "persons are told",
        };
        let (target, samples) = objective.map_or((String::new(), String::new()), |objective| {
            (format!("{} % good", objective.target * 100.0), objective.samples_min.to_string())
        });
        rows += &format!(
            "| `{}` | {} | {bad} | {follows} | {} | {target} | {samples} |\n",
            spec.word,
            parts.join(", "),
            spec.aim
        );
    }
    rows
}

#[test]
fn the_objectives_are_those_of_the_code() {
    check("objectives", &objectives());
}

#[test]
fn the_pictures_are_the_table() {
    for kind in [PartKind::Drive, PartKind::Node, PartKind::Port, PartKind::Switch, PartKind::Rack] {
        check(&format!("picture of a {}", kind.word()), &format!("```mermaid\n{}```\n", picture(kind)));
    }
}

/// Every example is read as it stands, and the first one is the defaults.
#[test]
fn the_examples_work() {
    let page = page();
    let examples: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 2);
    for example in &examples {
        Slo::parse(example).unwrap_or_else(|told| panic!("{told}\n{example}"));
    }
    assert_eq!(Slo::parse(examples[0]).unwrap(), Slo::default());
    // It says every setting: without its values, none is left that it does not name.
    for name in ["enabled", "act", "period_s", "rack_percent_max", "peers_min", "drain_lag", "flaps_max"] {
        assert!(examples[0].contains(&format!("{name} = ")), "{name}");
    }
    assert_eq!(Slo::parse(examples[1]).unwrap().target.len(), 4);
    let hooks: Vec<HookKind> =
        examples.iter().filter_map(|text| Some(*Slo::parse(text).unwrap().hook?.kind.get_ref())).collect();
    assert_eq!(hooks, [HookKind::Slurm, HookKind::Command]);
}
