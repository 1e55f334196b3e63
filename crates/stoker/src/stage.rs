//! `stoker stage`: brings bytes from the lake onto drives before somebody needs them.

use std::process::ExitCode;
use std::sync::Arc;

use stoker_store::{FileInfo, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::{self, listing};
use crate::{out, size};

/// Arguments of `stage`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY of a file; VOLUME or VOLUME/PREFIX/ for everything below it.
    address: Address,
    /// Everything below VOLUME/PREFIX, even without a slash at its end.
    #[arg(short, long)]
    recursive: bool,
    /// Files at once, for a tree.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// For a single file: print one object: bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Stages.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let address = &args.address;
    connect::run(&args.target, async |client| {
        if args.recursive || address.is_folder() {
            client.volume(&address.volume).await?;
            let progress = Arc::new(Progress::over_bytes(0, true));
            let volume = Arc::new(address.volume.clone());
            let work = |info: Box<FileInfo>| {
                let (client, volume) = (client.clone(), volume.clone());
                async move { Ok(client.stage(&volume, &info.key).await?) }
            };
            let items = listing::files(&client, &address.volume, address.folder());
            return Ok(transfer::run(items, args.jobs, &progress, work).await?.report("staged"));
        }
        let bytes = client.stage(&address.volume, &address.key()?).await?;
        if args.json {
            out::json(&serde_json::json!({"bytes": bytes}))?;
        } else {
            out::line(format!("{} came from the lake", size::human(bytes)))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
