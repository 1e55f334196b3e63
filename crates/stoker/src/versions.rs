//! `stoker versions`: shows, brings back and removes what keys had before, in volumes that keep versions.

use std::process::ExitCode;

use serde_json::{Map, Value};
use stoker_client::Client;
use stoker_store::{
    Condition, CopyRequest, FileInfo, Key, Store, VersionDelete, VersionEntry, VersionInfo, VersionsRequest,
};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show, size};

/// Lines of a page.
const PAGE: usize = 1_000;

/// What to do with versions.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List versions and delete markers, of each key the latest first.
    Ls(LsArgs),
    /// Make an older version the present one again: a new version with its bytes, by reference.
    Restore(RestoreArgs),
    /// Remove versions for good. What is locked stays.
    Rm(RmArgs),
}

/// Arguments of `versions ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// VOLUME, VOLUME/KEY, or VOLUME/PREFIX.
    address: Address,
    /// Print one object per line: volume, key, version, size, modified_ms, etag, latest, marker, held, retained_until_ms.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `versions restore`.
#[derive(clap::Args)]
pub struct RestoreArgs {
    /// VOLUME/KEY.
    address: Address,
    /// The version, as `versions ls` shows it; without it the latest one that is not present: that of a deleted key.
    version: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `versions rm`.
#[derive(clap::Args)]
pub struct RmArgs {
    /// VOLUME/KEY.
    address: Address,
    /// Versions, as `versions ls` shows them.
    #[arg(required = true)]
    versions: Vec<String>,
    /// What is retained for governance may go, too.
    #[arg(long)]
    bypass_governance: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            list(&client, args).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Restore(args) => connect::run(&args.target, async |client| {
            restore(&client, args).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Rm(args) => connect::run(&args.target, async |client| remove(&client, args).await),
    }
}

/// Versions of keys with a prefix, page by page.
struct Versions<'c> {
    client: &'c Client,
    volume: &'c str,
    request: VersionsRequest,
    is_done: bool,
}

impl<'c> Versions<'c> {
    fn new(client: &'c Client, volume: &'c str, prefix: &[u8]) -> Versions<'c> {
        let request = VersionsRequest { prefix: prefix.to_vec(), limit: PAGE, ..VersionsRequest::default() };
        Versions { client, volume, request, is_done: false }
    }

    async fn next(&mut self) -> Result<Option<Vec<VersionEntry>>, Failure> {
        if self.is_done {
            return Ok(None);
        }
        let page = self.client.versions(self.volume, self.request.clone()).await?;
        self.is_done = !page.more || page.entries.is_empty();
        if let Some(VersionEntry::Version { info, version, .. }) = page.entries.last() {
            self.request.after = Some(info.key.as_bytes().to_vec());
            self.request.after_version = Some(version.id.clone());
        }
        Ok(Some(page.entries))
    }
}

async fn list(client: &Client, args: &LsArgs) -> Result<(), Failure> {
    let address = &args.address;
    let mut all = Versions::new(client, &address.volume, address.path.as_bytes());
    let mut found = false;
    while let Some(entries) = all.next().await? {
        for entry in entries {
            if let VersionEntry::Version { info, version, is_latest } = entry {
                found = true;
                show_one(&address.volume, &info, (&version, is_latest), args.json)?;
            }
        }
    }
    if found || address.path.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("{address}: no key that starts so has, or had, a version")))
}

fn show_one(
    volume: &str,
    info: &FileInfo,
    (version, is_latest): (&VersionInfo, bool),
    json: bool,
) -> Result<(), Failure> {
    if json {
        let mut object = Map::new();
        object.insert("volume".to_owned(), volume.into());
        show::put_name(&mut object, "key", info.key.as_bytes());
        let until_ms = version.retention.map(|retention| retention.until_ms);
        for (name, value) in [
            ("version", Value::from(version.id.as_str())),
            ("size", info.size.into()),
            ("modified_ms", info.modified_ms.into()),
            ("etag", info.etag.as_str().into()),
            ("latest", is_latest.into()),
            ("marker", version.is_marker.into()),
            ("held", version.is_held.into()),
            ("retained_until_ms", until_ms.into()),
        ] {
            object.insert(name.to_owned(), value);
        }
        return out::json(&Value::Object(object));
    }
    let mut state = String::from(match (is_latest, version.is_marker) {
        (true, true) => "deleted",
        (true, false) => "present",
        (false, true) => "marker",
        (false, false) => "former",
    });
    if version.is_held {
        state.push_str(", held");
    }
    if let Some(retention) = version.retention {
        state.push_str(&format!(", locked until {}", clock::rfc3339(retention.until_ms)));
    }
    let (size, time) = (size::human(info.size), clock::rfc3339(info.modified_ms));
    let (id, name) = (&version.id, show::name(info.key.as_bytes()));
    out::line(format!("{id:40}  {size:>10}  {time}  {state:8}  {name}"))
}

/// The latest version of a key that is not what the key shows.
async fn latest_former(client: &Client, address: &Address, key: &Key) -> Result<String, Failure> {
    let mut all = Versions::new(client, &address.volume, key.as_bytes());
    'pages: while let Some(entries) = all.next().await? {
        for entry in entries {
            let VersionEntry::Version { info, version, is_latest } = entry else { continue };
            // Those of the key itself come first.
            if info.key != *key {
                break 'pages;
            }
            if !is_latest && !version.is_marker {
                return Ok(version.id);
            }
        }
    }
    let cause = format!("{address} has no former version");
    Err(Failure::new(cause).hint(format!("see what there is with `stoker versions ls {address}`")))
}

async fn restore(client: &Client, args: &RestoreArgs) -> Result<(), Failure> {
    let (address, key) = (&args.address, args.address.key()?);
    let id = match &args.version {
        Some(id) => id.clone(),
        None => latest_former(client, address, &key).await?,
    };
    let request = CopyRequest {
        from_volume: address.volume.clone(),
        from: Key::version_of(&key, &id)?,
        from_condition: Condition::default(),
        to_volume: address.volume.clone(),
        to: key,
        condition: Condition::default(),
        attributes: None,
    };
    client.copy(request).await?;
    out::say(format!("{address} is again what it was in version {id}"));
    Ok(())
}

async fn remove(client: &Client, args: &RmArgs) -> Result<ExitCode, Failure> {
    let (address, key) = (&args.address, args.address.key()?);
    let delete = |id: &String| VersionDelete {
        key: key.clone(),
        version: Some(id.clone()),
        condition: Condition::default(),
        bypass: args.bypass_governance,
    };
    let deletes = args.versions.iter().map(delete).collect();
    let mut failed = false;
    for (id, answer) in args.versions.iter().zip(client.delete_versions(&address.volume, deletes).await?) {
        let why = match answer {
            Ok(deleted) if deleted.existed => continue,
            Ok(_) => "no such version".to_owned(),
            Err(fault) => fault.message,
        };
        failed = true;
        out::say(format!("stoker: {address} version {id}: {why}"));
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
