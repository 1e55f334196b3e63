//! `stoker set put`: a whole set in one command.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{Key, SetId, SetRequest, Store};
use tokio::sync::mpsc;

use super::{name_of, parse_deadline, parse_folder, tell};
use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::upload::{self, ShardAt};
use crate::transfer::{self, Item, Named, source, walk};
use crate::{clock, out, show, sys};

/// How long giving up a set may take when this program ends early.
const ABORT_MAX: Duration = Duration::from_secs(5);

/// Arguments of `set put`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/DIRECTORY/ that the set will be; nothing may have that name.
    #[arg(value_name = "VOLUME/DIRECTORY/", value_parser = parse_folder)]
    dest: Address,
    /// Files, and folders with everything below them; each file is a shard.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Files at once.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    jobs: usize,
    /// It is given up if it is not published by then.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = parse_deadline)]
    deadline: u32,
    /// Keep mode and modification time.
    #[arg(short, long)]
    preserve: bool,
    /// Print the set as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A file that becomes a shard.
struct Shard {
    number: u32,
    found: walk::Found,
}

impl Named for Shard {
    fn name(&self) -> String {
        self.found.name()
    }
}

/// Puts.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| put(&client, args).await)
}

async fn put(client: &Client, args: &Args) -> Result<ExitCode, Failure> {
    let found = gather(&args.files).await?;
    let total = found.iter().map(|found| found.size).sum();
    let shards =
        u32::try_from(found.len()).map_err(|_| Failure::new("these are too many files for one set"))?;
    let request = SetRequest {
        target: args.dest.key()?,
        // Nobody else adds to it, not even this command when it is run once more.
        owner: format!("{} {} {}", sys::host_name(), std::process::id(), clock::unix_ms()),
        shards,
        deadline_s: Some(args.deadline),
    };
    let volume = args.dest.volume.clone();
    let set = client.set_begin(&volume, request).await?.set;
    let mut open = Open { client: client.clone(), volume: volume.clone(), set: Some(set) };
    let progress = Arc::new(Progress::over_bytes(total, args.json));
    let how = upload::UploadOptions { preserve: args.preserve, ..upload::UploadOptions::default() };
    let context = Arc::new((client.clone(), volume.clone(), how, progress.clone()));
    let prefix = args.dest.path.clone();
    let work = |shard: Shard| {
        let (context, prefix) = (context.clone(), prefix.clone());
        async move {
            let (client, volume, how, progress) = &*context;
            let key = Key::new([prefix.as_bytes(), &shard.found.relative].concat())?;
            let place = ShardAt { set, number: shard.number, writer: sys::host_name() };
            let path = &shard.found.path;
            Ok(upload::shard(client, path, volume, &key, place, how, progress).await?.size)
        }
    };
    let tally = transfer::run(items(found), args.jobs, &progress, work).await?;
    drop((context, progress));
    if tally.failed > 0 {
        let code = tally.report("wrote");
        out::say("stoker: nothing was published");
        return Ok(code);
    }
    let published = client.set_publish(&volume, set).await?;
    open.set = None;
    tally.report("published");
    tell(&published, args.json)
}

/// All files, named as they will be below the set's directory.
async fn gather(paths: &[PathBuf]) -> Result<Vec<walk::Found>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let meta = path.metadata().map_err(|error| Failure::io(path.display(), &error))?;
        if !meta.is_dir() {
            all.push(walk::Found { path: path.clone(), relative: name_of(path)?, size: meta.len() });
            continue;
        }
        let mut files = walk::files(path.clone());
        while let Some(item) = files.recv().await {
            all.push(item.map_err(|trouble| Failure::new(format!("{}: {}", trouble.name, trouble.why)))?);
        }
    }
    if all.is_empty() {
        return Err(Failure::new("there are no files to put").hint("folders without files have no shards"));
    }
    let mut names: HashMap<&[u8], &PathBuf> = HashMap::new();
    for found in &all {
        if let Some(other) = names.insert(&found.relative, &found.path) {
            let cause = format!(
                "{} and {} would both be `{}`",
                other.display(),
                found.path.display(),
                show::name(&found.relative)
            );
            return Err(Failure::new(cause).hint("put the folder that holds both"));
        }
    }
    Ok(all)
}

fn items(found: Vec<walk::Found>) -> mpsc::Receiver<Item<Shard>> {
    source(move |items| async move {
        for (number, found) in (0..).zip(found) {
            if items.send(Ok(Shard { number, found })).await.is_err() {
                return;
            }
        }
    })
}

/// A set that is given up unless it is published: the node would keep what was written until the deadline.
struct Open {
    client: Client,
    volume: String,
    set: Option<SetId>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(set) = self.set else { return };
        let abort = async {
            let _ = tokio::time::timeout(ABORT_MAX, self.client.set_abort(&self.volume, set)).await;
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(abort));
    }
}
