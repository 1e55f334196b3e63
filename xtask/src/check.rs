//! The one gate, the same locally and in CI. It stops at the first failure and prints the one command
//! that repeats it. A new step is one line in `STEPS`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::suites::{
    API, APPS, CLIENTS, COLLECTORS, CONSOLE, GUEST, LARGE, OIDC, OPEN, PACKAGES, PATRONI, PYTHON, Suite,
    TELEMETRY, WALK, Without,
};
use crate::workspace::{cargo, in_ci, succeeds};
use crate::{Failure, programs, sim, tidy, upgrade};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Before every push.
    Normal,
    /// Before a merge that touches what several crates agree on.
    Full,
    /// Before a release, or overnight.
    Long,
}

impl Tier {
    const fn name(self) -> &'static str {
        match self {
            Tier::Normal => "normal",
            Tier::Full => "full",
            Tier::Long => "long",
        }
    }
}

enum Action {
    /// Arguments of cargo, split at spaces.
    Cargo(&'static str),
    /// `sim ring`, `sim cell` or `sim mutations` over that many seeds, starting at the first.
    Sim {
        what: &'static str,
        seeds: &'static str,
    },
    Tidy,
    /// From the release before to this one.
    Upgrade,
    /// Every test of the workspace.
    Tests,
    /// Programs of others, as many as the arguments ask for. Where they cannot be had, a step passes that says so.
    Suite {
        suite: &'static Suite,
        args: &'static str,
        without: Without,
    },
    /// Suites that wait more than they compute, at the same time, but one after the other within a lane.
    Lanes(&'static [&'static [Action]]),
}

struct Step {
    name: &'static str,
    tiers: &'static [Tier],
    action: Action,
}

const fn step(name: &'static str, tiers: &'static [Tier], action: Action) -> Step {
    Step { name, tiers, action }
}

/// Real S3 clients: the normal gate passes without them.
const fn clients(args: &'static str, without: Without) -> Action {
    Action::Suite { suite: &CLIENTS, args, without }
}

/// Applications: what a machine lacks for them, or FUSE, is said and passes.
const fn apps(args: &'static str) -> Action {
    Action::Suite { suite: &APPS, args, without: Without::Skip }
}

/// The Python package: the normal gate passes where pip gets nothing.
const fn python(args: &'static str, without: Without) -> Action {
    Action::Suite { suite: &PYTHON, args, without }
}

/// Prometheus and Alertmanager: passes where they cannot be had.
const fn telemetry() -> Action {
    Action::Suite { suite: &TELEMETRY, args: "", without: Without::Skip }
}

/// Files larger than the rings, small ones of those: the figures are for a release and by hand.
const fn large() -> Action {
    Action::Suite { suite: &LARGE, args: "--size 1GiB", without: Without::Skip }
}

const fn open(args: &'static str) -> Action {
    Action::Suite { suite: &OPEN, args, without: Without::Skip }
}

const EVERY: &[Tier] = &[Tier::Normal, Tier::Full, Tier::Long];

/// About as long each.
const QUICK_SUITES: &[&[Action]] = &[
    &[clients("--tier quick", Without::Skip)],
    &[apps("--tier quick"), python("--tier quick", Without::Skip)],
];

/// What the gate runs, in this order: cheapest first, so that a slip is told within seconds.
/// Only steps that exist are listed here; the others are in `LATER`.
const STEPS: &[Step] = &[
    step("fmt", EVERY, Action::Cargo("fmt --all --check")),
    step("clippy", EVERY, Action::Cargo("clippy --workspace --all-targets --locked -- -D warnings")),
    step("tidy", EVERY, Action::Tidy),
    step("test", EVERY, Action::Tests),
    step("sim ring, 40 seeds", &[Tier::Normal], Action::Sim { what: "ring", seeds: "40" }),
    step("sim ring, 400 seeds", &[Tier::Full], Action::Sim { what: "ring", seeds: "400" }),
    step("sim ring, 4000 seeds", &[Tier::Long], Action::Sim { what: "ring", seeds: "4000" }),
    step("sim replication, 300 seeds", &[Tier::Normal], Action::Sim { what: "replication", seeds: "300" }),
    step(
        "sim replication, 20000 seeds",
        &[Tier::Full, Tier::Long],
        Action::Sim { what: "replication", seeds: "20000" },
    ),
    step("sim cell, 60 seeds", &[Tier::Normal], Action::Sim { what: "cell", seeds: "60" }),
    step("sim cell, 5000 seeds", &[Tier::Full], Action::Sim { what: "cell", seeds: "5000" }),
    step("sim cell, 100000 seeds", &[Tier::Long], Action::Sim { what: "cell", seeds: "100000" }),
    step("planted bugs", &[Tier::Full, Tier::Long], Action::Sim { what: "mutations", seeds: "10000" }),
    step("clients beside apps and python", &[Tier::Normal], Action::Lanes(QUICK_SUITES)),
    step("clients, SeaweedFS as a lake", &[Tier::Full], clients("--tier full", Without::Fail)),
    step("clients, SeaweedFS and Garage as lakes", &[Tier::Long], clients("--tier long", Without::Fail)),
    step("apps, in the sizes of people", &[Tier::Full], apps("--tier full")),
    step("apps, longer", &[Tier::Long], apps("--tier long")),
    step("python, with torch", &[Tier::Full, Tier::Long], python("--tier full", Without::Fail)),
    step("api", &[Tier::Full, Tier::Long], Action::Suite { suite: &API, args: "", without: Without::Skip }),
    step(
        "console",
        &[Tier::Full, Tier::Long],
        Action::Suite { suite: &CONSOLE, args: "", without: Without::Skip },
    ),
    step("oidc", &[Tier::Full, Tier::Long], Action::Suite { suite: &OIDC, args: "", without: Without::Skip }),
    step("telemetry", &[Tier::Full, Tier::Long], telemetry()),
    step("walk", &[Tier::Full, Tier::Long], Action::Suite { suite: &WALK, args: "", without: Without::Skip }),
    step(
        "patroni",
        &[Tier::Full, Tier::Long],
        Action::Suite { suite: &PATRONI, args: "", without: Without::Skip },
    ),
    step(
        "packages",
        &[Tier::Full, Tier::Long],
        Action::Suite { suite: &PACKAGES, args: "", without: Without::Skip },
    ),
    step("large files", &[Tier::Full, Tier::Long], large()),
    step("open files", &[Tier::Full], open("--minutes 2")),
    step("open files, an hour", &[Tier::Long], open("--minutes 60 --ring 1GiB --restart 90")),
    step("upgrade", &[Tier::Full, Tier::Long], Action::Upgrade),
    // Near the end: the program that these leave behind has more features than the one that the steps before want.
    step(
        "clippy, optional features",
        &[Tier::Full, Tier::Long],
        Action::Cargo("clippy --package stoker --features otel,kafka --all-targets --locked -- -D warnings"),
    ),
    step(
        "test, optional features",
        &[Tier::Full, Tier::Long],
        Action::Cargo("test --package stoker --features otel,kafka --bin stoker --locked"),
    ),
    step(
        "collectors",
        &[Tier::Full, Tier::Long],
        Action::Suite { suite: &COLLECTORS, args: "", without: Without::Skip },
    ),
    step("guest", &[Tier::Long], Action::Suite { suite: &GUEST, args: "", without: Without::Skip }),
];

/// What a tier should hold and does not yet, with the reason. Printed, so that a green gate is not
/// taken for more than it is.
const LATER: &[(&[Tier], &str, &str)] =
    &[(&[Tier::Long], "fuzzing", "needs cargo-fuzz, which the gate must not; run `cargo xtask fuzz`")];

/// Runs the gate.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let tier = parse(args)?;
    announce(tier);

    let steps: Vec<&Step> = STEPS.iter().filter(|step| step.tiers.contains(&tier)).collect();
    let mut total = Duration::ZERO;
    for (index, step) in steps.iter().enumerate() {
        let place = format!("{}/{}", index + 1, steps.len());
        heading(&format!("[{place}] {}: {}", step.name, step.command_line()));
        let (passed, took) = timed(|| step.passes(tier));
        total += took;
        if !passed {
            heading(&format!("[{place}] {}: FAILED after {}", step.name, seconds(took)));
            eprintln!(
                "check: failed at step {place} after {}; repeat it with: {}",
                seconds(total),
                step.command_line()
            );
            return Err(Failure::Failed);
        }
        heading(&format!("[{place}] {}: ok, {}", step.name, seconds(took)));
    }
    eprintln!("check: passed, {} steps of the {} tier in {}", steps.len(), tier.name(), seconds(total));
    Ok(())
}

fn parse(args: &[String]) -> Result<Tier, Failure> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => Ok(Tier::Normal),
        ["--full"] => Ok(Tier::Full),
        ["--long"] => Ok(Tier::Long),
        _ => Err(Failure::Usage(format!("check: cannot make sense of `{}`", args.join(" ")))),
    }
}

/// Says what a tier above the normal one adds and what it still lacks.
fn announce(tier: Tier) {
    if tier == Tier::Normal {
        return;
    }
    for step in STEPS.iter().filter(|step| step.tiers.contains(&tier) && !step.tiers.contains(&Tier::Normal))
    {
        eprintln!("check: {} adds: {}", tier.name(), step.name);
    }
    for (_, name, why) in LATER.iter().filter(|(tiers, ..)| tiers.contains(&tier)) {
        eprintln!("check: skipped: {name} ({why})");
    }
}

impl Step {
    fn command_line(&self) -> String {
        self.action.command_line()
    }

    fn passes(&self, tier: Tier) -> bool {
        self.action.passes(tier)
    }
}

impl Action {
    fn command_line(&self) -> String {
        match self {
            Action::Cargo(args) => format!("cargo {args}"),
            Action::Sim { what, seeds } => format!("cargo xtask sim {what} --seeds {seeds}"),
            Action::Tidy => "cargo xtask tidy".into(),
            Action::Upgrade => "cargo xtask upgrade".into(),
            Action::Tests => "cargo test --workspace --locked".into(),
            Action::Suite { suite, args: "", .. } => format!("cargo xtask {}", suite.name),
            Action::Suite { suite, args, .. } => format!("cargo xtask {} {args}", suite.name),
            Action::Lanes(lanes) => {
                lanes.iter().copied().flatten().map(Action::command_line).collect::<Vec<_>>().join("; ")
            }
        }
    }

    fn passes(&self, tier: Tier) -> bool {
        match self {
            // Tests that have a larger form take it from the environment.
            Action::Cargo(args) if tier != Tier::Normal => {
                succeeds(cargo().args(args.split(' ')).env("STOKER_FULL", "1"))
            }
            Action::Cargo(args) => succeeds(cargo().args(args.split(' '))),
            Action::Tests => programs::run(tier != Tier::Normal),
            Action::Sim { what, seeds } => sim::run(&[what, "--seeds", seeds].map(String::from)).is_ok(),
            Action::Tidy => tidy::run(&[]).is_ok(),
            Action::Upgrade => upgrade::run(&[]).is_ok(),
            Action::Suite { suite, args, without } => suite.run_or(&words(args), *without).is_ok(),
            Action::Lanes(lanes) => pass_beside(lanes),
        }
    }
}

fn words(args: &str) -> Vec<String> {
    args.split_whitespace().map(String::from).collect()
}

/// Builds first, one after the other, as cargo would wait for itself anyway.
fn pass_beside(lanes: &[&[Action]]) -> bool {
    let is_built = lanes.iter().copied().flatten().all(|action| match action {
        Action::Suite { suite, without, .. } => suite.build(*without).is_ok(),
        _ => false,
    });
    is_built
        && std::thread::scope(|scope| {
            let lanes: Vec<_> =
                lanes.iter().map(|lane| scope.spawn(|| lane.iter().all(passes_quietly))).collect();
            // Each is waited for, also after one that failed: it has something to say, too.
            lanes.into_iter().map(|lane| lane.join().unwrap_or(false)).filter(|passed| !passed).count() == 0
        })
}

/// What it prints is shown when it ends.
fn passes_quietly(action: &Action) -> bool {
    let Action::Suite { suite, args, without } = action else { return false };
    let ((result, printed), took) = timed(|| suite.run_quietly(&words(args), *without));
    let outcome = if result.is_ok() { "ok" } else { "FAILED" };
    let printed = String::from_utf8_lossy(&printed);
    // One write, so that what the other lane says stays apart.
    eprint!("{}: {outcome}, {}\n{printed}", action.command_line(), seconds(took));
    result.is_ok()
}

#[expect(clippy::disallowed_methods, reason = "the gate is the edge: it tells a person how long a step took")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Prints a line that stands out between pages of cargo output, where a person is looking.
fn heading(line: &str) {
    let plain = in_ci() || std::env::var_os("NO_COLOR").is_some() || !std::io::stderr().is_terminal();
    if plain {
        eprintln!("{line}");
    } else {
        eprintln!("\x1b[1m{line}\x1b[0m");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tier: Tier) -> Vec<&'static str> {
        STEPS.iter().filter(|step| step.tiers.contains(&tier)).map(|step| step.name).collect()
    }

    #[test]
    fn every_tier_starts_with_the_cheap_steps_and_does_the_long_ones_once() {
        for tier in EVERY {
            let names = names(*tier);
            assert_eq!(names[..4], ["fmt", "clippy", "tidy", "test"]);
            for once in ["sim ring", "sim replication", "sim cell"] {
                assert_eq!(names.iter().filter(|name| name.starts_with(once)).count(), 1, "{tier:?}: {once}");
            }
            let lines: Vec<String> =
                STEPS.iter().filter(|step| step.tiers.contains(tier)).map(Step::command_line).collect();
            for suite in ["cargo xtask clients", "cargo xtask apps", "cargo xtask python"] {
                assert_eq!(lines.join(";").matches(suite).count(), 1, "{tier:?}: {suite}");
            }
        }
    }

    #[test]
    fn command_lines_split_at_single_spaces() {
        for step in STEPS {
            assert!(step.command_line().split(' ').all(|word| !word.is_empty()), "{}", step.name);
        }
    }

    #[test]
    fn tiers_are_parsed_and_anything_else_is_refused() {
        let parsed = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>()).ok();
        assert_eq!(parsed(&[]), Some(Tier::Normal));
        assert_eq!(parsed(&["--full"]), Some(Tier::Full));
        assert_eq!(parsed(&["--long"]), Some(Tier::Long));
        assert_eq!(parsed(&["--fast"]), None);
        assert_eq!(parsed(&["--full", "--long"]), None);
    }
}
