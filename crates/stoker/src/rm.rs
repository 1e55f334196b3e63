//! `stoker rm`: deletes files, here and in the lake.

use std::process::ExitCode;

use stoker_client::Client;
use stoker_store::{Condition, Key, ListEntry, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::transfer::listing::Pages;
use crate::{out, show};

/// Failures that are told one by one.
const FAILURES_TOLD: u64 = 20;

/// Arguments of `rm`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY, any number of them.
    #[arg(required = true)]
    addresses: Vec<Address>,
    /// Everything below VOLUME/PREFIX too.
    #[arg(short, long)]
    recursive: bool,
    /// With -r: a whole volume may be meant.
    #[arg(long, requires = "recursive")]
    all: bool,
    /// What is not there is no failure.
    #[arg(short, long)]
    force: bool,
    /// Print one object when done: deleted, failed.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Default)]
struct Tally {
    deleted: u64,
    failed: u64,
}

impl Tally {
    fn fail(&mut self, volume: &str, key: &Key, why: &str) {
        self.failed += 1;
        if self.failed <= FAILURES_TOLD {
            out::say(format!("stoker: {volume}/{}: {why}", show::name(key.as_bytes())));
        }
    }
}

/// Deletes.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    for address in &args.addresses {
        if address.path.is_empty() && !args.all {
            let cause = format!("`{address}` is a whole volume");
            return Err(Failure::new(cause).hint("all its files are meant? then say `rm -r --all`"));
        }
    }
    connect::run(&args.target, async |client| {
        let mut tally = Tally::default();
        for address in &args.addresses {
            remove(&client, address, args, &mut tally).await?;
        }
        if args.json {
            out::json(&serde_json::json!({"deleted": tally.deleted, "failed": tally.failed}))?;
        } else if args.recursive {
            out::say(format!("deleted {}", show::count(tally.deleted, "file")));
        }
        if tally.failed > FAILURES_TOLD {
            out::say(format!("stoker: … and {} more", out::count(tally.failed - FAILURES_TOLD)));
        }
        Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

async fn remove(client: &Client, address: &Address, args: &Args, tally: &mut Tally) -> Result<(), Failure> {
    let before = (tally.deleted, tally.failed);
    if !address.path.is_empty() {
        delete(client, &address.volume, vec![address.key()?], tally).await?;
    }
    if args.recursive {
        // A page is deleted before the next is asked for; keys that cannot be deleted are passed by.
        let mut pages = Pages::new(client, &address.volume, address.folder(), true);
        while let Some(entries) = pages.next().await? {
            let keys: Vec<Key> = entries.iter().filter_map(ListEntry::key).cloned().collect();
            delete(client, &address.volume, keys, tally).await?;
        }
    }
    if before == (tally.deleted, tally.failed) && !args.force && !(args.recursive && address.path.is_empty())
    {
        tally.fail(&address.volume, &address.key()?, "no such file");
    }
    Ok(())
}

async fn delete(client: &Client, volume: &str, keys: Vec<Key>, tally: &mut Tally) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let wishes = keys.iter().map(|key| (key.clone(), Condition::default())).collect();
    let answers = client.delete(volume, wishes).await?;
    for (key, answer) in keys.iter().zip(answers) {
        match answer {
            Ok(true) => tally.deleted += 1,
            Ok(false) => {}
            Err(error) => tally.fail(volume, key, &error.message),
        }
    }
    Ok(())
}
