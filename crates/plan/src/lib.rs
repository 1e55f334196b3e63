//! `stoker plan`: what to buy, what to expect, and whether it came true.
//!
//! The models are in the crate `planner`; here are the words of the command line, the node that is asked for what it measured, and files.
//!
//! It must not hold a model, nor be linked by what serves.

mod given;
mod keep;
mod ledger;
mod measured;
mod slow;
mod tell;
mod what_if;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stoker_planner::{Calibration, Constants, Inputs, Misfit, Model, Plan, report};

use given::{Design, Given, Gravity, Io, Kv, Sim, Slo, Which};
pub use slow::Args as SlowArgs;
pub use slow::run as slow;
use stoker_command::connect::{self, Target};
use stoker_command::show;
use stoker_terminal::failure::Failure;
use stoker_terminal::{clock, failure, out, paint};

/// Bytes of a document that somebody wrote; a ledger has its own limit.
const DOCUMENT_LEN_MAX: u64 = 16 << 20;

/// What is planned.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Predict GPU utilization: who keeps a job waiting, and which change gives most.
    Io(PlanArgs<Io>),
    /// Design storage: bandwidth, checkpoints and their cost, rebuild, losses per year, wear.
    Design(PlanArgs<Design>),
    /// Simulate days of a cluster: checkpoints, drains and rings while nodes, drives and the lake fail.
    Sim(PlanArgs<Sim>),
    /// Decide whether to move the data or the job.
    Gravity(PlanArgs<Gravity>),
    /// Size a KV cache: hit rate by tier, sizes, latency.
    Kv(PlanArgs<Kv>),
    /// Compare the architecture's targets for a tray with what named hardware would reach.
    Slo(PlanArgs<Slo>),
    /// Show what a change would do: lose a rack, double the GPUs, another class.
    WhatIf(what_if::Args),
    /// Write down what this cluster measured, in the place of constants.
    Calibrate(measured::Args),
    /// Predictions and what came of them.
    #[command(subcommand)]
    Ledger(ledger::Verb),
}

/// Arguments of a plan.
#[derive(clap::Args)]
pub struct PlanArgs<W: Which> {
    #[command(flatten)]
    given: Given<W>,
    /// Whose model: `stoker`, or `lab` for the model of the I/O lab with its own inputs.
    #[arg(long, default_value = "stoker")]
    model: String,
    /// Take inputs from a JSON object in a file; flags count more.
    #[arg(long, value_name = "PATH")]
    input: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    /// Keep the prediction in the design ledger of the cluster, for this job.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Keep it in this file instead of the catalog; needs --job.
    #[arg(long, value_name = "PATH", requires = "job")]
    ledger: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    target: Target,
}

/// How it is told.
#[derive(clap::Args)]
struct Output {
    /// Print one object: form, kind, model, inputs, title, tone, reasons, figures, changes, curves, constants, assumptions.
    #[arg(long)]
    json: bool,
    /// Write a page of HTML that needs nothing else, and prints well.
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Show every constant, assumed and measured, and every assumption.
    #[arg(long, short)]
    verbose: bool,
}

/// What takes the place of constants.
#[derive(clap::Args)]
struct Measured {
    /// Ask the node for what the cluster measured, and use it in the place of constants.
    #[arg(long)]
    calibrate: bool,
    /// Use what `stoker plan calibrate` wrote; counts more than --calibrate.
    #[arg(long, value_name = "PATH")]
    calibration: Option<PathBuf>,
}

/// Acts.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Io(args) => plan(args),
        Verb::Design(args) => plan(args),
        Verb::Sim(args) => plan(args),
        Verb::Gravity(args) => plan(args),
        Verb::Kv(args) => plan(args),
        Verb::Slo(args) => plan(args),
        Verb::WhatIf(args) => what_if::run(args),
        Verb::Calibrate(args) => measured::run(args),
        Verb::Ledger(verb) => ledger::run(verb),
    }
}

fn plan<W: Which>(args: &PlanArgs<W>) -> Result<ExitCode, Failure> {
    let model = Model::parse(&args.model).map_err(|misfit| refused(&[misfit]))?;
    let spec = stoker_planner::spec(W::KIND, model).map_err(|misfit| refused(&[misfit]))?;
    let inputs = args.given.inputs(spec, args.input.as_deref())?;
    let is_in_catalog = args.job.is_some() && args.ledger.is_none();
    if args.measured.calibrate || is_in_catalog {
        return connect::run(&args.target, async |client| {
            let mut found = Calibration::default();
            if args.measured.calibrate {
                found = measured::ask(&client).await?;
            }
            let (plan, inputs) = tell(args, inputs, found)?;
            if let (Some(job), true) = (&args.job, is_in_catalog) {
                let (id, line) = line(&plan, &inputs, job)?;
                keep::add(&client, &line).await?;
                out::say(format!(
                    "kept as {id} for {job}; `stoker plan ledger record {id}` takes what came of it"
                ));
            }
            Ok(ExitCode::SUCCESS)
        });
    }
    let (plan, inputs) = tell(args, inputs, Calibration::default())?;
    if let (Some(job), Some(path)) = (&args.job, &args.ledger) {
        let (id, line) = line(&plan, &inputs, job)?;
        keep::append(path, &line)?;
        out::say(format!("kept as {id} for {job} in {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn line(plan: &Plan, inputs: &Inputs, job: &str) -> Result<(String, String), Failure> {
    stoker_planner::ledger::prediction(plan, inputs, clock::unix_ms(), job)
        .map_err(|misfit| refused(&[misfit]))
}

fn tell<W: Which>(args: &PlanArgs<W>, inputs: Inputs, found: Calibration) -> Result<(Plan, Inputs), Failure> {
    let mut calibration = found;
    if let Some(path) = &args.measured.calibration {
        calibration.merge(calibration_in(path)?);
    }
    let has_any = !calibration.values.is_empty();
    if args.measured.calibrate && !has_any {
        out::say(
            "the nodes measured nothing that counts yet: `stoker gate --record` measures drives; constants are assumed",
        );
    }
    let plan = stoker_planner::plan(&inputs, &Constants::with(calibration));
    if let Some(path) = &args.output.report {
        let from =
            if has_any { "with what the cluster measured" } else { "with constants that nobody measured" };
        let page = report::html(&plan, &clock::rfc3339(clock::unix_ms()), from);
        std::fs::write(path, page).map_err(|error| Failure::io(path.display(), &error))?;
        out::say(format!("wrote {}", path.display()));
    }
    if args.output.json {
        out::json(&show::plain(&plan))?;
    } else {
        tell::plan(&plan, args.output.verbose)?;
    }
    Ok((plan, inputs))
}

fn constants_of(measured: &Measured, found: Calibration) -> Result<Constants, Failure> {
    let mut calibration = found;
    if let Some(path) = &measured.calibration {
        calibration.merge(calibration_in(path)?);
    }
    Ok(Constants::with(calibration))
}

fn calibration_in(path: &Path) -> Result<Calibration, Failure> {
    Calibration::parse(&document(path)?).map_err(|misfits| in_file(path, &misfits))
}

/// A document, of a file or of stdin.
fn document(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let done = if path == Path::new("-") {
        std::io::stdin().lock().take(DOCUMENT_LEN_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(DOCUMENT_LEN_MAX).read_to_string(&mut text))
    };
    done.map_err(|error| Failure::io(path.display(), &error))?;
    if text.len() as u64 >= DOCUMENT_LEN_MAX {
        return Err(Failure::new(format!("{} has more than 16 MiB", path.display())));
    }
    Ok(text)
}

/// Every input that does not fit, and what to write instead.
fn refused(misfits: &[Misfit]) -> Failure {
    let told: Vec<String> = misfits.iter().map(|one| format!("`{}`: {}", one.field, one.message)).collect();
    let hints: Vec<&str> =
        misfits.iter().map(|one| one.hint.as_str()).filter(|hint| !hint.is_empty()).collect();
    Failure::new(told.join("; ")).hint(hints.join("; "))
}

fn in_file(path: &Path, misfits: &[Misfit]) -> Failure {
    let Failure::Failed { cause, hint } = refused(misfits) else { return refused(misfits) };
    Failure::Failed { cause: format!("{}: {cause}", path.display()), hint }
}
