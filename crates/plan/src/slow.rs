//! `stoker explain slow`: why a run waited for data.

use std::path::PathBuf;
use std::process::ExitCode;

use stoker_planner::Calibration;
use stoker_planner::slow::{Recorded, verdict};

use super::{Measured, constants_of, document, in_file, measured};
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show};

/// Arguments of `explain slow`.
#[derive(clap::Args)]
pub struct Args {
    /// What the run measured, as `stoker.data.Recorder` of Python writes it; `-` is stdin.
    run: PathBuf,
    /// Print one object: cause, title, waited, explained, utilization, predicted, advice, evidence.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    target: Target,
}

/// Reads and judges.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let recorded = Recorded::parse(&document(&args.run)?).map_err(|misfits| in_file(&args.run, &misfits))?;
    let tell = |found: Calibration| {
        let found = verdict(&recorded, &constants_of(&args.measured, found)?);
        if args.json {
            out::json(&show::plain(&found))?;
            return Ok(ExitCode::SUCCESS);
        }
        out::line(&found.title)?;
        found.evidence.iter().try_for_each(|line| out::line(format!("  - {line}")))?;
        Ok(ExitCode::SUCCESS)
    };
    if !args.measured.calibrate {
        return tell(Calibration::default());
    }
    connect::run(&args.target, async |client| tell(measured::ask(&client).await?))
}
