//! `stoker gate`: whether a node is as fast as it was when it was known to be good. To be run before it takes traffic, and
//! once for every release; safe while it works.
//!
//! A step measures one thing and compares it with a baseline of the same release; whatever it leaves is taken away, however it ends. The break-fix
//! loop asks the same of one part ([`part::PartsOfNode`]).
//!
//! It must not change what a node holds, and must not be linked by what serves.

mod baseline;
mod door;
mod drive;
mod lake;
mod leftovers;
pub mod part;
mod report;
mod site;
mod step;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use self::baseline::{Baseline, Baselines};
use self::door::Door;
use self::leftovers::Leftovers;
use self::site::Site;
use self::step::{Outcome, STEPS, Verdict};
use stoker_agent as daemon;
use stoker_agent::{config, settings};
use stoker_command::connect::Target;
use stoker_command::home::Home;
use stoker_command::{connect, show};
use stoker_terminal::failure::Failure;
use stoker_terminal::{clock, failure, out, progress, rng, size, sys};

const EXIT_CODES: &str =
    "Exit codes: 0 every step passed or was skipped; 1 a step failed; 2 the gate could not run.";

/// What could not be measured at all ends with this.
const COULD_NOT_RUN: u8 = 2;

/// The release whose baselines these are.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Arguments of `gate`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    #[command(flatten)]
    home: Home,
    /// Compare with this file; by default gate.json in the node's directory.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Keep what is measured as the baseline of this release. Only on a node that is known to be good.
    #[arg(long)]
    record: bool,
    /// Only these, comma-separated: device, ring, commit, catalog, fabric, lake, tools.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    steps: Vec<String>,
    /// A short run with small files: it finds what is broken, and less of what is slow. It has baselines of its own.
    #[arg(long)]
    quick: bool,
    /// Print one object: gate, release, node, quick, taken, baseline_file, recorded, steps, machine.
    #[arg(long)]
    json: bool,
}

/// How much is done.
pub struct Extent {
    is_quick: bool,
    /// Of one load of a drive.
    seconds: f64,
    rounds: usize,
    file_bytes: u64,
    ring_bytes: u64,
    files: usize,
    transactions: usize,
    objects: usize,
    tool_seconds: u64,
    ior_mib: u64,
}

const FULL: Extent = Extent {
    is_quick: false,
    seconds: 1.0,
    rounds: 3,
    file_bytes: 1 << 30,
    ring_bytes: 1 << 30,
    files: 64,
    transactions: 200,
    objects: 16,
    tool_seconds: 5,
    ior_mib: 512,
};

const QUICK: Extent = Extent {
    is_quick: true,
    seconds: 0.1,
    rounds: 2,
    file_bytes: 128 << 20,
    ring_bytes: 512 << 20,
    files: 8,
    transactions: 20,
    objects: 4,
    tool_seconds: 1,
    ior_mib: 64,
};

/// Measures, compares and tells.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    // First of all, while there is one thread.
    let leftovers = Leftovers::watch()?;
    match look(args, &leftovers) {
        Ok(code) => Ok(code),
        Err(Failure::PipeClosed) => Err(Failure::PipeClosed),
        Err(failure) => {
            failure.report();
            Ok(ExitCode::from(COULD_NOT_RUN))
        }
    }
}

fn look(args: &Args, leftovers: &Leftovers) -> Result<ExitCode, Failure> {
    let wants = chosen(&args.steps)?;
    let extent = if args.quick { &QUICK } else { &FULL };
    let mut site = Site::find(&args.home.dir(), args.home.config.as_deref())?;
    let path = args.baseline.clone().unwrap_or_else(|| site.dir.join(baseline::FILE));
    let mut baselines = Baselines::read(&path)?;
    let door = Door::open(&Target::in_folder(&site.dir));
    match &door {
        Ok(door) => site.set_drives(door.drives().into_iter()),
        Err(why) => out::say(format!("the node is not asked: {why}")),
    }
    let measured = measure(&site, door.as_ref(), &wants, extent, leftovers);
    let outcomes: Vec<Outcome> =
        measured.into_iter().map(|outcome| outcome.judged(&baselines, RELEASE, extent.is_quick)).collect();
    let mut recorded = 0;
    if args.record {
        recorded = record(&mut baselines, &outcomes, extent.is_quick);
        baselines.write(&path)?;
    }
    let told =
        report::Told { site: &site, outcomes: &outcomes, is_quick: extent.is_quick, path: &path, recorded };
    if args.json {
        told.json()?
    } else {
        told.words()?
    }
    Ok(exit_code(&outcomes))
}

/// The groups of steps that are wanted.
fn chosen(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    let groups = step::groups();
    if let Some(unknown) = names.iter().find(|name| !groups.contains(&name.as_str())) {
        return Err(Failure::new(format!("there is no step `{unknown}`")).hint(groups.join(", ")));
    }
    Ok(groups
        .into_iter()
        .filter(|group| names.is_empty() || names.iter().any(|name| name == group))
        .collect())
}

fn measure(
    site: &Site,
    door: Result<&Door, &String>,
    wants: &[&'static str],
    extent: &Extent,
    leftovers: &Leftovers,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for group in wants {
        out::say(format!("{group} ..."));
        match (*group, door) {
            ("device", _) => {
                let all = site.drives.iter().flat_map(|drive| drive::device(site, drive, extent, leftovers));
                outcomes.extend(all);
            }
            ("ring", _) => {
                let all = site.drives.iter().flat_map(|drive| drive::ring(site, drive, extent, leftovers));
                outcomes.extend(all);
            }
            ("lake", _) => outcomes.extend(lake::run(site, extent, leftovers)),
            ("tools", _) => outcomes.extend(tools::run_all(site, extent, leftovers)),
            ("commit", Ok(door)) => outcomes.extend(door.commit(&site.name(), extent, leftovers)),
            ("catalog", Ok(door)) => outcomes.extend(door.catalog(extent)),
            ("fabric", Ok(door)) => outcomes.extend(door.fabric(extent, |at, of| {
                if at > 0 && at.is_multiple_of(20) {
                    out::say(format!("  {at} of {of} ways"));
                }
            })),
            (group, _) => {
                let steps = STEPS.iter().filter(|step| step.group == group);
                outcomes.extend(
                    steps.map(|step| Outcome::skipped(step.name, &site.node, "the node does not run")),
                );
            }
        }
    }
    outcomes
}

/// Keeps every figure; how many.
fn record(baselines: &mut Baselines, outcomes: &[Outcome], is_quick: bool) -> usize {
    let taken_ms = clock::unix_ms();
    let rows = outcomes.iter().filter_map(|outcome| {
        Some(Baseline {
            release: RELEASE.into(),
            step: outcome.step.name.into(),
            subject: outcome.subject.clone(),
            figure: outcome.figure?,
            unit: outcome.step.unit.into(),
            better: outcome.step.better,
            quick: is_quick,
            taken_ms,
        })
    });
    rows.map(|row| baselines.put(row)).count()
}

fn exit_code(outcomes: &[Outcome]) -> ExitCode {
    if outcomes.iter().any(|outcome| matches!(outcome.verdict, Verdict::Fail(_))) {
        return ExitCode::FAILURE;
    }
    match outcomes.iter().any(|outcome| outcome.verdict == Verdict::Pass) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(COULD_NOT_RUN),
    }
}
