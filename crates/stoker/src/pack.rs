//! `stoker pack`: many small files become few tar shards with a seal.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use stoker_dataset::{Fault, Meter, PackOptions, Source};
use stoker_store::{ErrorKind, Subject};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, show, size, transfer};

/// How often the bar is drawn anew.
const TICK: Duration = Duration::from_millis(100);

/// Arguments of `pack`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder of this machine, or stoker://VOLUME/PREFIX for everything below it.
    source: From,
    /// VOLUME/PREFIX: the shards are PREFIX-000000.tar and so on, the seal is PREFIX.seal.
    dest: Address,
    /// About how long shards are; a sample is never divided.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size::parse)]
    shard_bytes: u64,
    /// Shards at once.
    #[arg(short, long, value_name = "N", default_value_t = stoker_dataset::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// Replace a dataset of this name that holds other files.
    #[arg(long)]
    replace: bool,
    /// Print one object: seal, identity, files, samples, shards, bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What is packed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum From {
    Local(PathBuf),
    Stoker(Address),
}

impl FromStr for From {
    type Err = String;

    /// Without `stoker://` it is a path: a folder here is what is packed most often.
    fn from_str(text: &str) -> Result<From, String> {
        match text.strip_prefix("stoker://") {
            Some(_) => text.parse().map(From::Stoker),
            None => Ok(From::Local(text.into())),
        }
    }
}

/// Packs.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let source = match &args.source {
        From::Local(path) => Source::Local(path.clone()),
        From::Stoker(address) => {
            Source::Volume { volume: address.volume.clone(), directory: address.path.clone() }
        }
    };
    let options = PackOptions {
        volume: args.dest.volume.clone(),
        prefix: args.dest.path.clone(),
        shard_bytes: args.shard_bytes,
        jobs: args.jobs,
        replace: args.replace,
    };
    connect::run(&args.target, async |client| {
        let meter = Arc::new(Meter::default());
        let work = stoker_dataset::pack(Arc::new(client), source, options, meter.clone());
        let report = watched(work, &meter, args.json).await.map_err(failure)?;
        if args.json {
            out::json(&show::plain(&report))?;
            return Ok(ExitCode::SUCCESS);
        }
        let kept = if report.resumed == 0 { String::new() } else { format!(" ({} kept)", report.resumed) };
        out::line(format!(
            "{}/{}: {} of {} in {}{kept}, {}, identity {}",
            report.volume,
            report.seal,
            show::count(report.samples, "sample"),
            show::count(report.files, "file"),
            show::count(report.shards, "shard"),
            size::human(report.bytes),
            report.identity,
        ))?;
        if report.skipped_by_webdataset > 0 {
            let files = show::count(report.skipped_by_webdataset, "file");
            out::say(format!("note: {files} without an extension; WebDataset skips such members"));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Draws a bar while the work goes on.
pub async fn watched<T>(work: impl Future<Output = T>, meter: &Meter, quiet: bool) -> T {
    let mut work = std::pin::pin!(work);
    let mut bar: Option<(Progress, u64)> = None;
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => {
                let now = meter.progress();
                if now.bytes_total == 0 {
                    continue;
                }
                // A byte of a shard is written and read back: half of the way each.
                let done = (now.bytes_written + now.bytes_verified) / 2;
                let (bar, drawn) = bar.get_or_insert_with(|| (Progress::over_bytes(now.bytes_total, quiet), 0));
                bar.say(format!("{}/{} shards", now.shards_done, now.shards_total));
                bar.add(done.saturating_sub(*drawn));
                *drawn = done.max(*drawn);
            }
        }
    }
}

/// The failure, with the path that it is about.
pub fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Io { path, error } => Failure::io(path, &error),
        Fault::Store { path, error } => {
            let cause = format!("{path}: {error}");
            match (error.kind, error.subject) {
                (ErrorKind::NotFound, Subject::Volume) => Failure::new(cause)
                    .hint("make one with `stoker volume create`, or see the volumes with `stoker ls`"),
                (ErrorKind::Conflict, _) => Failure::new(cause)
                    .hint("see what is there with `stoker ls`; --replace replaces a dataset of other files"),
                (ErrorKind::Invalid | ErrorKind::NotFound, _) => Failure::new(cause),
                _ => Failure::from(stoker_store::StoreError { message: cause, ..error }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        assert_eq!("data/train".parse(), Ok(From::Local("data/train".into())));
        assert_eq!("/data".parse(), Ok(From::Local("/data".into())));
        assert!(matches!("stoker://data/raw".parse(), Ok(From::Stoker(address)) if address.path == "raw"));
        assert!("stoker://Data/raw".parse::<From>().is_err());
    }
}
