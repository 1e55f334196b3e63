//! `stoker drain`: files leave for the lake now.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{Awaited, DrainState, Key, ListEntry, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::transfer::listing::Pages;
use crate::waiting::{self, Sight};
use crate::{out, show, span};

/// Arguments of `drain`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME, or VOLUME/PREFIX for the keys that start with it.
    address: Address,
    /// Wait until they are in the lake.
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this long, such as 30s or 5m; exit code 1.
    #[arg(long, value_name = "SPAN", value_parser = span::parse, requires = "wait")]
    timeout: Option<Duration>,
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
            wait(&client, args, files).await?;
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

/// What is known of the files that are waited for.
#[derive(Default)]
struct Seen {
    done: u64,
    /// The file that is waited for now.
    now: Option<Key>,
}

async fn wait(client: &Client, args: &Args, files: u64) -> Result<(), Failure> {
    let address = &args.address;
    let seen = RefCell::new(Seen::default());
    let work = async {
        let mut pages = Pages::new(client, &address.volume, address.path.as_bytes(), true);
        while let Some(entries) = pages.next().await? {
            for entry in entries {
                let ListEntry::File(info) = entry else { continue };
                match info.drain {
                    DrainState::Clean | DrainState::Never => {}
                    // One that was put aside says why.
                    DrainState::Dirty | DrainState::Conflict => {
                        seen.borrow_mut().now = Some(info.key.clone());
                        client.wait(&address.volume, &info.key, Some(info.version), Awaited::Drained).await?;
                        seen.borrow_mut().done += 1;
                    }
                }
            }
        }
        Ok(())
    };
    let look = async || {
        let (done, now) = {
            let seen = seen.borrow();
            (seen.done, seen.now.clone())
        };
        let Some(key) = now else {
            return Ok(Sight { text: format!("0 of {files} files drained"), why: None });
        };
        let why = waiting::why(client, &address.volume, &key, None).await?;
        let text = format!("{done} of {} drained", show::count(files.max(done), "file"));
        let name = show::name(key.as_bytes());
        Ok(Sight {
            text,
            why: Some(why.map_or_else(|| format!("waits for {name}"), |why| format!("{name} is {why}"))),
        })
    };
    waiting::wait(work, args.timeout, args.json, look).await.map_err(|failure| {
        let hint = match &seen.borrow().now {
            Some(key) => {
                format!("`stoker explain {}/{}` says more; ", address.volume, show::name(key.as_bytes()))
            }
            None => String::new(),
        };
        match failure.cause().starts_with(waiting::TOO_LATE) {
            true => failure.hint(format!("{hint}the drain goes on without this command")),
            false => failure,
        }
    })
}
