//! `stoker doctor`: what of this machine would hurt a node, why, and the command that fixes it.
//!
//! The examination is `stoker-doctor`'s. Here a node's configuration becomes its plan, and what only a program on the
//! machine can find out is tried: an io_uring, a write past the page cache, a question to the database.

mod database;
mod probe;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_doctor::{Machine, Plan, examine, examine_kubernetes};

use self::subject::Subject;
use crate::failure::Failure;
use crate::home::Home;
use crate::{clock, out, show};

const EXIT_CODES: &str = "Exit codes: 0 nothing found that is worse than info; 1 warnings, or the examination itself failed; 2 \
                          errors, or wrong usage.";

/// Arguments of `doctor`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// It need not run, nor be there yet.
    #[command(flatten)]
    home: Home,
    /// Look at this drive instead of those of the node; can be repeated.
    #[arg(long, value_name = "PATH")]
    drive: Vec<PathBuf>,
    /// Only what the kubelet has to be told for the node: reservations, policies of its managers, huge pages.
    #[arg(long)]
    kubernetes: bool,
    /// Print one object: node, findings, unseen, checks, reservation.
    #[arg(long)]
    json: bool,
    /// Read /proc, /sys and /etc below this directory, and try nothing.
    #[arg(long, value_name = "PATH", hide = true)]
    root: Option<PathBuf>,
}

/// Examines the machine.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let subject = Subject::find(&args.home.dir(), args.home.config.as_deref(), &args.drive)?;
    let (machine, plan) = match &args.root {
        Some(root) => (Machine::at(root), subject.plan_elsewhere()),
        None => (Machine::at("/"), probe::with_probes(&subject)),
    };
    let report = match args.kubernetes {
        true => examine_kubernetes(&machine, &plan),
        false => examine(&machine, &plan, clock::unix_ms() / 1_000),
    };
    if args.json {
        let mut value = show::plain(&report);
        value["node"] = node(&plan);
        out::json(&value)?;
    } else {
        out::line(format!("{}\n", words(&plan)))?;
        out::bytes(report.text().as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// What is said of the machine of a node, for others to read.
pub fn report(dir: &Path, config: Option<&Path>) -> Result<String, Failure> {
    let subject = Subject::find(dir, config, &[])?;
    let plan = probe::with_probes(&subject);
    let report = examine(&Machine::at("/"), &plan, clock::unix_ms() / 1_000);
    Ok(format!("{}\n\n{}", words(&plan), report.text()))
}

fn node(plan: &Plan) -> Value {
    let drives: Vec<_> = plan.drives.iter().map(|drive| drive.path.display().to_string()).collect();
    json!({ "dir": plan.dir, "process": plan.process, "drives": drives, "cores": plan.cores.as_ref().ok() })
}

fn words(plan: &Plan) -> String {
    let who = match (&plan.dir, plan.process) {
        (Some(dir), Some(process)) => format!("node {}, process {process}", dir.display()),
        (Some(dir), None) => format!("node {}, which does not run", dir.display()),
        (None, _) => "no node yet".to_owned(),
    };
    let drives: Vec<_> = plan.drives.iter().map(|drive| drive.path.display().to_string()).collect();
    format!("{who}; {}: {}", show::count(drives.len() as u64, "drive"), drives.join(", "))
}
