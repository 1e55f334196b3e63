//! `stoker cp`: copies inside Stoker by reference, and between here and there as `put` and `get` do.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use stoker_client::Client;
use stoker_store::{Condition, CopyRequest, FileInfo, Key, Store};

use crate::address::{Address, Place};
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::{self, listing};
use crate::{get, out, put, show};

/// Arguments of `cp`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY, or a path that starts with `/` or `./`, or `-`.
    source: Place,
    /// VOLUME/KEY, or a path that starts with `/` or `./`, or `-`.
    dest: Place,
    /// Everything below the source.
    #[arg(short, long)]
    recursive: bool,
    /// Files at once, for a tree.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// Do not replace a file.
    #[arg(short, long)]
    no_clobber: bool,
    /// Keep mode and modification time.
    #[arg(short, long)]
    preserve: bool,
    /// Print receipts as one line of JSON each.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Copies.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Args { jobs, no_clobber, preserve, json, .. } = *args;
    connect::run(&args.target, async |client| match (&args.source, &args.dest) {
        (Place::Stoker(from), Place::Stoker(to)) => copy(&client, from, to, args).await,
        (Place::Stoker(from), to) => {
            let options = get::Options { jobs, no_clobber, preserve, json };
            get::get(&client, from, local(to), args.recursive, &options).await
        }
        (from, Place::Stoker(to)) => {
            let (content_type, meta) = (None, Vec::new());
            let options = put::Options { jobs, no_clobber, preserve, content_type, meta, json };
            let source = local(from);
            if source.is_dir() && !args.recursive {
                let cause = format!("{} is a folder", source.display());
                return Err(Failure::new(cause).hint("copy a tree with -r"));
            }
            put::put(&client, source, to, &options).await
        }
        _ => Err(Failure::new("neither side is in Stoker").hint("files in Stoker are named VOLUME/KEY")),
    })
}

fn local(place: &Place) -> &Path {
    match place {
        Place::Local(path) => path,
        Place::Stdio | Place::Stoker(_) => Path::new("-"),
    }
}

fn request(from: &Address, to_volume: &str, from_key: Key, to: Key, no_clobber: bool) -> CopyRequest {
    CopyRequest {
        from_volume: from.volume.clone(),
        from: from_key,
        from_condition: Condition::default(),
        to_volume: to_volume.to_owned(),
        to,
        condition: if no_clobber { Condition::absent() } else { Condition::default() },
        attributes: None,
    }
}

async fn copy(client: &Client, from: &Address, to: &Address, args: &Args) -> Result<ExitCode, Failure> {
    if args.recursive {
        return copy_tree(client, from, to, args).await;
    }
    if from.is_folder() {
        return Err(Failure::new(format!("{from} is no single file")).hint("copy a tree with -r"));
    }
    let to = if to.is_folder() { to.with_path(format!("{}{}", to.path, from.name())) } else { to.clone() };
    let request = request(from, &to.volume, from.key()?, to.key()?, args.no_clobber);
    let receipt = client.copy(request).await?;
    if args.json {
        out::json(&show::receipt_json(&receipt))?
    } else {
        out::line(show::receipt(&receipt))?
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy_tree(client: &Client, from: &Address, to: &Address, args: &Args) -> Result<ExitCode, Failure> {
    let (source, dest) = (from.folder(), to.folder());
    if from.volume == to.volume && dest.starts_with(&source) {
        let cause = format!("{to} is inside {from}: the copy would copy itself");
        return Err(Failure::new(cause).hint("choose a destination outside of the source"));
    }
    client.volume(&from.volume).await?;
    let progress = Arc::new(Progress::over_bytes(0, true));
    let (json, no_clobber) = (args.json, args.no_clobber);
    let work = |info: Box<FileInfo>| {
        let (client, from, to) = (client.clone(), from.clone(), to.volume.clone());
        let target = [dest.as_bytes(), &info.key.as_bytes()[source.len()..]].concat();
        async move {
            let request = request(&from, &to, info.key.clone(), Key::new(target)?, no_clobber);
            let receipt = client.copy(request).await?;
            if json {
                out::json(&show::receipt_json(&receipt))?;
            }
            Ok(receipt.size)
        }
    };
    let items = listing::files(client, &from.volume, source.clone());
    let tally = transfer::run(items, args.jobs, &progress, work).await?;
    if tally.files == 0 && tally.failed == 0 && !from.path.is_empty() {
        return Err(
            Failure::new(format!("{from}: nothing is below it")).hint("see what is there with `stoker ls`")
        );
    }
    Ok(tally.report("copied"))
}
