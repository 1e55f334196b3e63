//! `stoker stage`: brings bytes from the lake onto drives before somebody needs them.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{FileInfo, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::{self, listing};
use crate::waiting::{self, Sight};
use crate::{out, show, size, span};

/// Arguments of `stage`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY of a file; VOLUME or VOLUME/PREFIX/ for everything below it.
    address: Address,
    /// Everything below VOLUME/PREFIX, even without a slash at its end.
    #[arg(short, long)]
    recursive: bool,
    /// Files at once, for a tree.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// Give up after this long, such as 30s or 5m; exit code 1.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// For a single file: print one object: bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Stages.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| match args.recursive || args.address.is_folder() {
        true => tree(args, &client).await,
        false => file(args, &client).await,
    })
}

/// Everything below a prefix.
async fn tree(args: &Args, client: &Client) -> Result<ExitCode, Failure> {
    let address = &args.address;
    client.volume(&address.volume).await?;
    let progress = Arc::new(Progress::over_bytes(0, true));
    let volume = Arc::new(address.volume.clone());
    let done = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let work = |info: Box<FileInfo>| {
        let (client, volume, done) = (client.clone(), volume.clone(), done.clone());
        async move {
            let bytes = client.stage(&volume, &info.key).await?;
            done.0.fetch_add(1, Ordering::Relaxed);
            done.1.fetch_add(bytes, Ordering::Relaxed);
            Ok(bytes)
        }
    };
    let items = listing::files(client, &address.volume, address.folder());
    let look = async || {
        let (files, bytes) = (done.0.load(Ordering::Relaxed), done.1.load(Ordering::Relaxed));
        let text =
            format!("{} staged, {} of it from the lake", show::count(files, "file"), size::human(bytes));
        let trouble = client.status().await?.lake_trouble;
        Ok(Sight { text, why: trouble.map(|trouble| format!("the lake does not answer: {trouble}")) })
    };
    let work = transfer::run(items, args.jobs, &progress, work);
    let tally = waiting::wait(work, args.timeout, args.json, look).await.map_err(late)?;
    Ok(tally.report("staged"))
}

/// One file.
async fn file(args: &Args, client: &Client) -> Result<ExitCode, Failure> {
    let (volume, key) = (&args.address.volume, args.address.key()?);
    let work = async { Ok(client.stage(volume, &key).await?) };
    let look = async || {
        let explained = client.explain(volume, &key).await?;
        let text = format!(
            "{} of {} on drives here",
            explained.chunks_local,
            show::count(explained.chunks, "chunk")
        );
        let trouble = client.status().await?.lake_trouble;
        Ok(Sight { text, why: trouble.map(|trouble| format!("the lake does not answer: {trouble}")) })
    };
    let bytes = waiting::wait(work, args.timeout, args.json, look).await.map_err(late)?;
    if args.json {
        out::json(&serde_json::json!({"bytes": bytes}))?;
    } else {
        out::line(format!("{} came from the lake", size::human(bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a wait that was too short leaves behind.
fn late(failure: Failure) -> Failure {
    match failure.cause().starts_with(waiting::TOO_LATE) {
        true => failure.hint("what came is kept: the same command goes on from there"),
        false => failure,
    }
}
