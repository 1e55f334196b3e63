//! `stoker plan calibrate`: what the nodes measured.

use std::path::PathBuf;
use std::process::ExitCode;

use stoker_client::Client;
use stoker_planner::{CONSTANTS, Calibration, Constants, human};
use stoker_store::{Order, Report, Store};

use super::{document, in_file};
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show};

/// Arguments of `plan calibrate`.
#[derive(clap::Args)]
pub struct Args {
    /// Begin with what is in this file; what the nodes measured now counts more.
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Take what `stoker bench ring --json` found on a drive: the bare drive, and which share of it comes through.
    #[arg(long, value_name = "PATH")]
    bench: Option<PathBuf>,
    /// Ask no node: what the files say is all.
    #[arg(long)]
    offline: bool,
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

/// What files say.
fn read(args: &Args) -> Result<Calibration, Failure> {
    let mut calibration = match &args.from {
        Some(path) => super::calibration_in(path)?,
        None => Calibration::default(),
    };
    if let Some(path) = &args.bench {
        let found = Calibration::of_bench(&document(path)?, clock::unix_ms());
        calibration.merge(found.map_err(|misfits| in_file(path, &misfits))?);
    }
    Ok(calibration)
}

/// Shows and writes.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let calibration = read(args)?;
    if args.offline {
        return tell(args, calibration);
    }
    connect::run(&args.target, async |client| {
        let mut whole = calibration;
        let mut asked = ask(&client).await?;
        if args.bench.is_some() {
            // A bench asked a drive for all it can; what nodes say of themselves fills the gaps.
            std::mem::swap(&mut whole, &mut asked);
        }
        whole.merge(asked);
        tell(args, whole)
    })
}

fn tell(args: &Args, calibration: Calibration) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.out {
        let text =
            serde_json::to_string_pretty(&calibration).map_err(|error| Failure::new(error.to_string()))?;
        std::fs::write(path, text).map_err(|error| Failure::io(path.display(), &error))?;
    }
    if args.json {
        out::json(&show::plain(&calibration))?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_empty = calibration.values.is_empty();
    let constants = Constants::with(calibration);
    let mut rows = vec![["constant", "assumed", "measured", "from"].map(String::from).to_vec()];
    for constant in CONSTANTS {
        let shown = constants.show(constant.name);
        let measured = shown.measured.map_or_else(|| "-".into(), |value| human(value, shown.unit));
        rows.push(vec![shown.name.to_owned(), human(shown.assumed, shown.unit), measured, shown.from]);
    }
    out::table(&rows)?;
    if is_empty {
        out::say(
            "nothing was measured yet: `stoker gate --record` measures drives, and live counters need some traffic",
        );
    }
    Ok(ExitCode::SUCCESS)
}
