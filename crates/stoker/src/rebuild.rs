//! `stoker rebuild`: how far the protection of what lost a copy is.

use std::process::ExitCode;

use stoker_store::{Order, Rebuild, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show, size, span};

/// What to do.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Show what is left, how fast it goes and when it ends.
    Status(StatusArgs),
}

/// Arguments of `rebuild status`.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// Print one object: files_left, bytes_left, one_copy_files, one_copy_bytes, lost_files, lost_bytes, files_done,
    /// bytes_done, bytes_per_s, bytes_per_s_max, workers, end_in_ms, losses, trouble.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let Verb::Status(args) = verb;
    connect::run(&args.target, async |client| {
        let Report::Rebuild(rebuild) = client.operate(Order::Rebuild).await? else {
            return Err(Failure::confused());
        };
        if args.json {
            out::json(&show::plain(&rebuild))?;
        } else {
            tell(&rebuild)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn tell(rebuild: &Rebuild) -> Result<(), Failure> {
    let files = |files: u64, bytes: u64| format!("{}, {}", show::count(files, "file"), size::human(bytes));
    let left = match rebuild.files_left {
        0 => "nothing: every file that can be read has its copies".to_owned(),
        count => files(count, rebuild.bytes_left),
    };
    let mut rows: Vec<(&str, String)> = rebuild.losses.iter().map(|loss| ("because", loss.clone())).collect();
    rows.push(("left", left));
    if rebuild.one_copy_files > 0 {
        rows.push(("one copy", files(rebuild.one_copy_files, rebuild.one_copy_bytes)));
    }
    if rebuild.lost_files > 0 {
        let files = files(rebuild.lost_files, rebuild.lost_bytes);
        rows.push(("unreadable", format!("{files}; `stoker risk --lost` names them")));
    }
    rows.push(("done", files(rebuild.files_done, rebuild.bytes_done)));
    if rebuild.files_left > 0 {
        let end = match rebuild.end_in_ms {
            Some(ms) => format!("ends in about {}", span::human(ms)),
            None => "nothing moves".to_owned(),
        };
        rows.push(("rate", format!("{}/s, {end}", size::human(rebuild.bytes_per_s))));
    }
    let most = size::human(rebuild.bytes_per_s_max);
    rows.push((
        "at most",
        format!("{most}/s and {} at a time, each node", show::count(rebuild.workers.into(), "file")),
    ));
    rows.extend(rebuild.trouble.iter().map(|trouble| ("trouble", trouble.clone())));
    out::fields(&rows)
}
