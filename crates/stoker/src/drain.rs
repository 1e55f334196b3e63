//! `stoker drain`: files leave for the lake now.

use std::process::ExitCode;

use stoker_client::Client;
use stoker_store::{Awaited, DrainState, ListEntry, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::listing::Pages;
use crate::{out, show};

/// Arguments of `drain`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME, or VOLUME/PREFIX for the keys that start with it.
    address: Address,
    /// Wait until they are in the lake.
    #[arg(long)]
    wait: bool,
    /// Print one object: files.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Asks for it.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let files = client.drain(&args.address.volume, args.address.path.as_bytes()).await?;
        if args.wait {
            wait(&client, &args.address, files, args.json).await?;
        }
        if args.json {
            out::json(&serde_json::json!({"files": files}))?;
        } else {
            let what = if args.wait { "drained" } else { "on the way to the lake" };
            out::line(format!("{} {what}", show::count(files, "file")))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn wait(client: &Client, address: &Address, files: u64, quiet: bool) -> Result<(), Failure> {
    let progress = Progress::over_steps(files, quiet);
    progress.say("draining");
    let mut pages = Pages::new(client, &address.volume, address.path.as_bytes(), true);
    while let Some(entries) = pages.next().await? {
        for entry in entries {
            let ListEntry::File(info) = entry else { continue };
            match info.drain {
                DrainState::Clean | DrainState::Never => {}
                // One that was put aside says why.
                DrainState::Dirty | DrainState::Conflict => {
                    client.wait(&address.volume, &info.key, Some(info.version), Awaited::Drained).await?;
                    progress.add(1);
                }
            }
        }
    }
    Ok(())
}
