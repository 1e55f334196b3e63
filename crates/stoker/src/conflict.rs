//! `stoker conflict`: files that were not drained because somebody else changed the lake, or because it refuses them.

use std::process::ExitCode;

use serde_json::json;
use stoker_store::{Conflict, Resolution, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show};

/// What to do with conflicts.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List conflicts.
    Ls(LsArgs),
    /// End a conflict.
    Resolve(ResolveArgs),
}

/// Arguments of `conflict ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Only of this volume.
    volume: Option<String>,
    /// Print one object per line: file, lake_etag_expected, lake_etag_found, since, refused.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `conflict resolve`.
#[derive(clap::Args)]
pub struct ResolveArgs {
    /// VOLUME/KEY.
    address: Address,
    /// ours: our file replaces the lake's. theirs: the lake's replaces ours. keep-both: ours gets another name.
    #[arg(value_name = "ours|theirs|keep-both", value_parser = parse)]
    resolution: Resolution,
    #[command(flatten)]
    target: Target,
}

fn parse(text: &str) -> Result<Resolution, String> {
    match text {
        "ours" => Ok(Resolution::Ours),
        "theirs" => Ok(Resolution::Theirs),
        "keep-both" => Ok(Resolution::KeepBoth),
        _ => Err("expected ours, theirs or keep-both".into()),
    }
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let conflicts = client.conflicts(args.volume.as_deref()).await?;
            if conflicts.is_empty() && !args.json {
                out::say("no conflicts");
            }
            conflicts.iter().try_for_each(|conflict| tell(conflict, args.json))?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Resolve(args) => {
            let key = args.address.key()?;
            connect::run(&args.target, async |client| {
                client.conflict_resolve(&args.address.volume, &key, args.resolution).await?;
                Ok(ExitCode::SUCCESS)
            })
        }
    }
}

fn tell(conflict: &Conflict, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&json!({
            "file": show::file_json(&conflict.volume, &conflict.file),
            "lake_etag_expected": conflict.lake_etag_expected,
            "lake_etag_found": conflict.lake_etag_found,
            "since": clock::rfc3339(conflict.since_ms),
            "refused": conflict.refused,
        }));
    }
    let name = show::name(conflict.file.key.as_bytes());
    let since = clock::rfc3339(conflict.since_ms);
    if let Some(reason) = &conflict.refused {
        return out::line(format!("{}/{name}  since {since}: it does not drain: {reason}", conflict.volume));
    }
    let etag = |etag: &Option<String>| etag.clone().unwrap_or_else(|| "nothing".to_owned());
    out::line(format!(
        "{}/{name}  since {since}: expected {} in the lake, found {}",
        conflict.volume,
        etag(&conflict.lake_etag_expected),
        etag(&conflict.lake_etag_found)
    ))
}
