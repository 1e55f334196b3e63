//! `stoker plan what-if`: what a change would do to the job and to the cluster.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use stoker_client::Client;
use stoker_planner::{Calibration, Constants, Inputs, Model, spec, what_if};
use stoker_store::{Order, Report, Store};

use super::{Measured, constants_of, measured, refused};
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show};

/// Arguments of `plan what-if`.
#[derive(clap::Args)]
pub struct Args {
    /// What is changed: double-gpus, lose-node, lose-rack, class-one, class-two, class-three, packed, single-samples, files, halve-lake,
    /// cold, double-drives, halve-rails, double-workers.
    #[arg(required = true, value_name = "CHANGE")]
    changes: Vec<String>,
    /// An input of `io`, `design` or `sim`, such as io.gpus=64 or sim.nodes=16.
    #[arg(long, value_name = "PLAN.INPUT=VALUE")]
    set: Vec<String>,
    /// Take nodes, drives and what was measured from the cluster.
    #[arg(long)]
    live: bool,
    /// Print one object per change: change, moved.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    target: Target,
}

/// Asks, if it is to be live, and compares.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.live && !args.measured.calibrate {
        return tell(args, Map::new(), &constants_of(&args.measured, Calibration::default())?);
    }
    connect::run(&args.target, async |client| {
        let live = if args.live { cluster(&client).await? } else { Map::new() };
        let found = measured::ask(&client).await?;
        tell(args, live, &constants_of(&args.measured, found)?)
    })
}

/// Nodes and drives that are there.
async fn cluster(client: &Client) -> Result<Map<String, Value>, Failure> {
    let (Report::Nodes(nodes), Report::Drives(drives)) =
        (client.operate(Order::Nodes).await?, client.operate(Order::Drives { node: None }).await?)
    else {
        return Err(Failure::confused());
    };
    let up = nodes.iter().filter(|node| node.state == "up").count().max(1);
    let live: Vec<_> = drives.iter().filter(|drive| drive.state == "live" && drive.bytes > 0).collect();
    let mut found = Map::new();
    found.insert("nodes".into(), up.into());
    if !live.is_empty() {
        found.insert("drives".into(), live.len().div_ceil(up).into());
        let bytes = live.iter().map(|drive| drive.bytes).sum::<u64>() / live.len() as u64;
        found.insert("drive_size".into(), bytes.max(1_000_000_000).into());
    }
    Ok(found)
}

fn tell(args: &Args, live: Map<String, Value>, constants: &Constants) -> Result<ExitCode, Failure> {
    let mut given = [("io", Map::new()), ("design", live.clone()), ("sim", live)];
    for text in &args.set {
        let parts = text.split_once('=').and_then(|(name, value)| Some((name.split_once('.')?, value)));
        let place = parts.and_then(|((kind, name), value)| {
            let at = given.iter().position(|(known, _)| *known == kind)?;
            Some((at, name.replace('-', "_"), value))
        });
        let Some((at, name, value)) = place else {
            return Err(Failure::new(format!("`{}` sets nothing", text.escape_debug()))
                .hint("write io.NAME=VALUE, design.NAME=VALUE or sim.NAME=VALUE, such as io.gpus=64"));
        };
        given[at].1.insert(name, value.into());
    }
    let mut plans = Vec::new();
    for (kind, given) in &given {
        let spec = spec(kind, Model::Stoker).map_err(|misfit| refused(&[misfit]))?;
        plans.push(Inputs::from_json(spec, given).map_err(|misfits| refused(&misfits))?);
    }
    for change in &args.changes {
        let mut all = Vec::new();
        for inputs in &plans {
            if let Some((_, moved)) =
                what_if::compare(inputs, constants, change).map_err(|misfit| refused(&[misfit]))?
            {
                all.extend(moved);
            }
        }
        if args.json {
            out::json(&json!({ "change": change, "moved": show::plain(&all) }))?;
            continue;
        }
        out::line(format!("{change}:"))?;
        if all.is_empty() {
            out::line("  changes nothing here")?;
        }
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|one| vec![format!("  {} ({})", one.label, one.kind), one.text.clone(), String::new()])
            .collect();
        out::table(&rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
