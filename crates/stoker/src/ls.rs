//! `stoker ls`: volumes, or the files in one.

use std::process::ExitCode;

use serde_json::{Map, Value};
use stoker_client::Client;
use stoker_store::{ErrorKind, FileInfo, ListEntry, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::transfer::listing::Pages;
use crate::{clock, out, show, size, volume};

/// Arguments of `ls`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME or VOLUME/PREFIX; without it the volumes are listed.
    address: Option<Address>,
    /// Every file below it, not only one level.
    #[arg(short, long)]
    recursive: bool,
    /// Size, drain state and time too.
    #[arg(short, long)]
    long: bool,
    /// Print one object per line: files as in `stat --json`, folders as {"volume", "prefix"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        match &args.address {
            None => volume::list(&client, args.json).await?,
            Some(address) => list(&client, address, args).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn list(client: &Client, address: &Address, args: &Args) -> Result<(), Failure> {
    let mut found = false;
    // A path without a slash at its end may be a file, a folder, or both.
    if !address.is_folder() {
        match client.stat(&address.volume, &address.key()?).await {
            Ok(info) => {
                show_file(&address.volume, &info, args)?;
                found = true;
            }
            Err(error)
                if error.kind == ErrorKind::NotFound && error.subject != stoker_store::Subject::Volume => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut pages = Pages::new(client, &address.volume, address.folder(), args.recursive);
    while let Some(entries) = pages.next().await? {
        found |= !entries.is_empty();
        for entry in entries {
            match entry {
                ListEntry::File(info) => show_file(&address.volume, &info, args)?,
                ListEntry::Prefix(prefix) => show_folder(&address.volume, &prefix, args)?,
            }
        }
    }
    if found || address.path.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("{address}: no such file, and nothing is below it"))
        .hint(format!("see what is there with `stoker ls {}`", address.volume)))
}

fn show_file(volume: &str, info: &FileInfo, args: &Args) -> Result<(), Failure> {
    let name = show::name(info.key.as_bytes());
    if args.json {
        return out::json(&show::file_json(volume, info));
    }
    if !args.long {
        return out::line(name);
    }
    let (size, drain, time) =
        (size::human(info.size), show::drain(&info.drain), clock::rfc3339(info.modified_ms));
    out::line(format!("{size:>10}  {drain:8}  {time}  {name}"))
}

fn show_folder(volume: &str, prefix: &[u8], args: &Args) -> Result<(), Failure> {
    if args.json {
        let mut object = Map::new();
        object.insert("volume".to_owned(), volume.into());
        show::put_name(&mut object, "prefix", prefix);
        return out::json(&Value::Object(object));
    }
    let name = show::name(prefix);
    if args.long { out::line(format!("{:>10}  {:8}  {:20}  {name}", "-", "", "")) } else { out::line(name) }
}
