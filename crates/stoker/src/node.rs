//! `stoker node`: about single nodes of a cluster.

use std::process::ExitCode;

use serde_json::json;
use stoker_store::{Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::out;

/// What to do with a node.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Say whether a node can stop without a client noticing; the exit code is 0 if it can. For hooks before a stop.
    CanStop(CanStopArgs),
}

/// Arguments of `node can-stop`.
#[derive(clap::Args)]
pub struct CanStopArgs {
    /// The node, by its id or its name; by default the one that is asked.
    node: Option<String>,
    /// Print one object: node, name, can_stop, reasons.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let Verb::CanStop(args) = verb;
    connect::run(&args.target, async |client| {
        let Report::CanStop(verdict) = client.operate(Order::CanStop { node: args.node.clone() }).await?
        else {
            return Err(Failure::confused());
        };
        let can_stop = verdict.reasons.is_empty();
        let name = if verdict.name.is_empty() { &verdict.node } else { &verdict.name };
        if args.json {
            out::json(&json!({
                "node": verdict.node,
                "name": verdict.name,
                "can_stop": can_stop,
                "reasons": verdict.reasons,
            }))?;
        } else if can_stop {
            out::line(format!("{name} can stop"))?;
        } else {
            out::line(format!("{name} should not stop now:"))?;
            verdict.reasons.iter().try_for_each(|reason| out::line(format!("  {reason}")))?;
        }
        Ok(if can_stop { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}
