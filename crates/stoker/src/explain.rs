//! `stoker explain`: where a file is, what happens to it next, and why the last slow read of it was slow; why a run was slow.

use std::process::ExitCode;

use serde_json::json;
use stoker_store::{Explanation, HolderInfo, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show, size};

/// Arguments of `explain`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// VOLUME/KEY.
    #[arg(required = true)]
    address: Option<Address>,
    /// Print one object: file, receipt, chunks, chunks_local, chunks_cached, holders, words.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What else is explained.
#[derive(clap::Subcommand)]
enum Verb {
    /// Say why a run waited for data, and what would help: from what the loader and the node measured.
    Slow(stoker_plan::SlowArgs),
}

/// Asks.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let address = match (&args.verb, &args.address) {
        (Some(Verb::Slow(slow)), _) => return stoker_plan::slow(slow),
        (None, Some(address)) => address,
        (None, None) => return Err(Failure::new("no file is named").hint("name one as VOLUME/KEY")),
    };
    let (volume, key) = (&address.volume, address.key()?);
    connect::run(&args.target, async |client| {
        let explanation = client.explain(volume, &key).await?;
        if args.json {
            out::json(&json!({
                "file": show::file_json(volume, &explanation.file),
                "receipt": show::receipt_json(&explanation.receipt),
                "chunks": explanation.chunks,
                "chunks_local": explanation.chunks_local,
                "chunks_cached": explanation.chunks_cached,
                "holders": explanation.holders,
                "words": explanation.words,
            }))?;
        } else {
            tell(volume, &explanation)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn tell(volume: &str, explanation: &Explanation) -> Result<(), Failure> {
    let Explanation { file, receipt, chunks, chunks_local, chunks_cached, holders, words } = explanation;
    let mut rows = vec![
        ("file", format!("{volume}/{}, {}", show::name(file.key.as_bytes()), size::human(file.size))),
        ("receipt", show::receipt(receipt)),
        (
            "chunks",
            format!(
                "{}; {} on drives here, {} in memory",
                out::count(*chunks),
                out::count(*chunks_local),
                out::count(*chunks_cached)
            ),
        ),
    ];
    let held = |holder: &HolderInfo| {
        format!("{}: {}, {}", holder.drive, show::count(holder.chunks, "chunk"), size::human(holder.bytes))
    };
    rows.extend(holders.iter().map(|holder| ("drive", held(holder))));
    // The node says both in words, which releases before this one show as well.
    let label = |(at, words): (usize, &String)| match at {
        _ if words.starts_with("last slow read") => "slow",
        0 => "copies",
        _ => "next",
    };
    rows.extend(words.iter().enumerate().map(|(at, words)| (label((at, words)), words.clone())));
    out::fields(&rows)
}
