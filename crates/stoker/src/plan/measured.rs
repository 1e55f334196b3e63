//! `stoker plan calibrate`: what the nodes measured.

use std::path::PathBuf;
use std::process::ExitCode;

use stoker_client::Client;
use stoker_planner::{CONSTANTS, Calibration, Constants, human};
use stoker_store::{Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show};

/// Arguments of `plan calibrate`.
#[derive(clap::Args)]
pub struct Args {
    /// Begin with what is in this file; what the nodes measured now counts more.
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Write the document here, for --calibration.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Print one object: form, at_ms, machine, values.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Asks every node that is up.
pub async fn ask(client: &Client) -> Result<Calibration, Failure> {
    let Report::Nodes(nodes) = client.operate(Order::Nodes).await? else { return Err(Failure::confused()) };
    let mut measured = Vec::new();
    for node in nodes.iter().filter(|node| node.state == "up") {
        match client.operate(Order::Measures { node: Some(node.node.clone()) }).await {
            Ok(Report::Measures(one)) => measured.push(*one),
            Ok(_) => return Err(Failure::confused()),
            Err(error) => out::say(format!("{} is left out: {}", node.name, error.message)),
        }
    }
    let mut found = Calibration::of_measures(&measured, clock::unix_ms());
    found.machine = format!("{} nodes", measured.len());
    Ok(found)
}

/// Shows and writes.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let mut calibration = match &args.from {
            Some(path) => super::calibration_in(path)?,
            None => Calibration::default(),
        };
        calibration.merge(ask(&client).await?);
        if let Some(path) = &args.out {
            let text = serde_json::to_string_pretty(&calibration)
                .map_err(|error| Failure::new(error.to_string()))?;
            std::fs::write(path, text).map_err(|error| Failure::io(path.display(), &error))?;
        }
        if args.json {
            out::json(&show::plain(&calibration))?;
            return Ok(ExitCode::SUCCESS);
        }
        let constants = Constants::with(calibration.clone());
        let mut rows = vec![["constant", "assumed", "measured", "from"].map(String::from).to_vec()];
        for constant in CONSTANTS {
            let shown = constants.show(constant.name);
            let measured = shown.measured.map_or_else(|| "-".into(), |value| human(value, shown.unit));
            rows.push(vec![shown.name.to_owned(), human(shown.assumed, shown.unit), measured, shown.from]);
        }
        out::table(&rows)?;
        if calibration.values.is_empty() {
            out::say(
                "nothing was measured yet: `stoker gate --record` measures drives, and live counters need some traffic",
            );
        }
        Ok(ExitCode::SUCCESS)
    })
}
