//! `stoker data-key`: the keys of encrypted volumes.

use std::process::ExitCode;

use serde_json::json;
use stoker_client::Client;
use stoker_store::{DataKeysInfo, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show};

/// What to do with data keys.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List the data keys of encrypted volumes: epochs, age, and the key that wraps them. Never the keys.
    Ls(LsArgs),
    /// Make a new data key, which encrypts what is written to a volume from now on; nothing is written again.
    Rotate(RotateArgs),
    /// Destroy all data keys of a volume: what they encrypted on drives cannot be read again, by anybody.
    Destroy(DestroyArgs),
}

/// Arguments of `data-key ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per volume: volume, cipher, epochs, destroyed_ms, locked.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `data-key rotate`.
#[derive(clap::Args)]
pub struct RotateArgs {
    /// The volume.
    volume: String,
    /// Print one object, as `data-key ls --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `data-key destroy`.
#[derive(clap::Args)]
pub struct DestroyArgs {
    /// The volume.
    volume: String,
    /// Yes, all that is only on drives of this volume is to be lost.
    #[arg(long)]
    lose_data: bool,
    /// Print one object, as `data-key ls --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let keys = ask(&client, Order::DataKeys).await?;
            if keys.is_empty() && !args.json {
                out::say(
                    "no encrypted volume; make one with `stoker volume create NAME --encrypt aes-256-gcm`",
                );
            }
            tell(&keys, args.json)
        }),
        Verb::Rotate(args) => connect::run(&args.target, async |client| {
            tell(&ask(&client, Order::DataKeyRotate { volume: args.volume.clone() }).await?, args.json)
        }),
        Verb::Destroy(args) => {
            if !args.lose_data {
                let volume = &args.volume;
                let message = format!("this loses what volume `{volume}` has on drives, for good");
                return Err(Failure::new(message).hint("if that is what you want, add --lose-data"));
            }
            connect::run(&args.target, async |client| {
                let keys = ask(&client, Order::DataKeyDestroy { volume: args.volume.clone() }).await?;
                let volume = client.volume(&args.volume).await?;
                if let Some(lake) = &volume.lake {
                    out::say(format!(
                        "objects in the lake are not encrypted by these keys, and stay: {lake}"
                    ));
                }
                out::say(
                    "backups of the catalog may have the wrapped keys; they open nothing without the key-encryption key",
                );
                tell(&keys, args.json)
            })
        }
    }
}

async fn ask(client: &Client, order: Order) -> Result<Vec<DataKeysInfo>, Failure> {
    match client.operate(order).await? {
        Report::DataKeys(keys) => Ok(keys),
        _ => Err(Failure::new("the node did not answer what it was asked")),
    }
}

/// The keys of a volume; none if it is plain, or if the node is of a release that knows no encryption.
pub async fn of_volume(client: &Client, volume: &str) -> Option<DataKeysInfo> {
    match client.operate(Order::DataKeys).await {
        Ok(Report::DataKeys(keys)) => keys.into_iter().find(|keys| keys.volume == volume),
        _ => None,
    }
}

/// In a few words.
pub fn summary(keys: Option<&DataKeysInfo>) -> String {
    match keys {
        None => "not encrypted by Stoker".to_owned(),
        Some(DataKeysInfo { destroyed_ms: Some(at_ms), .. }) => {
            format!("its keys were destroyed at {}: nothing on drives can be read", clock::rfc3339(*at_ms))
        }
        Some(DataKeysInfo { locked: Some(why), .. }) => format!("encrypted, and locked: {why}"),
        Some(keys) => {
            let epoch = keys.epochs.last().map_or(0, |key| key.epoch);
            format!("encrypted on drives by {}, data key {epoch}", keys.cipher)
        }
    }
}

fn tell(keys: &[DataKeysInfo], json: bool) -> Result<ExitCode, Failure> {
    if json {
        keys.iter().try_for_each(|keys| out::json(&json!(keys)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |keys: &DataKeysInfo| {
        let newest = keys.epochs.last();
        vec![
            keys.volume.clone(),
            show::count(keys.epochs.len() as u64, "data key"),
            newest.map_or("none".to_owned(), |key| format!("newest {}", clock::rfc3339(key.created_ms))),
            newest.map_or(String::new(), |key| format!("wrapped by {}", key.kek)),
            summary(Some(keys)),
        ]
    };
    out::table(&keys.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}
