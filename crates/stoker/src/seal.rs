//! `stoker seal`: a seal for tar shards that are there, from their headers alone.

use std::process::ExitCode;
use std::sync::Arc;

use stoker_dataset::{Meter, SealOptions};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, pack, show, size, transfer};

/// Arguments of `seal`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY.tar, or VOLUME/PREFIX for all .tar whose keys start like it; shards are in this order.
    #[arg(required = true, value_name = "VOLUME/PREFIX")]
    shards: Vec<Address>,
    /// Where the seal goes.
    #[arg(long, value_name = "VOLUME/KEY.seal")]
    to: Address,
    /// Shards at once.
    #[arg(short, long, value_name = "N", default_value_t = stoker_dataset::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// Replace another file of this name.
    #[arg(long)]
    replace: bool,
    /// Print one object: seal, identity, samples, shards, bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Seals.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let volume = args.shards[0].volume.clone();
    if let Some(other) = args.shards.iter().find(|shard| shard.volume != volume) {
        let cause = format!("{other} is not in the volume {volume}; a seal is about shards of one volume");
        return Err(Failure::new(cause).hint("make one seal for each volume"));
    }
    args.to.key()?;
    let options = SealOptions {
        volume,
        prefixes: args.shards.iter().map(|shard| shard.path.clone()).collect(),
        to_volume: args.to.volume.clone(),
        to: args.to.path.clone(),
        jobs: args.jobs,
        replace: args.replace,
    };
    connect::run(&args.target, async |client| {
        let meter = Arc::new(Meter::default());
        let work = stoker_dataset::seal_shards(Arc::new(client), options, meter.clone());
        let report = pack::watched(work, &meter, args.json).await.map_err(pack::failure)?;
        if args.json {
            out::json(&show::plain(&report))?;
        } else {
            out::line(format!(
                "{}/{}: {} in {}, {}, identity {}",
                report.volume,
                report.seal,
                show::count(report.samples, "sample"),
                show::count(report.shards, "shard"),
                size::human(report.bytes),
                report.identity,
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
