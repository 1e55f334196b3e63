//! `stoker get`: a file or a tree out of Stoker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use stoker_client::Client;
use stoker_store::{FileInfo, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::{self, download, listing, local};
use crate::{clock, out, show};

/// Arguments of `get`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY of a file; VOLUME or VOLUME/PREFIX/ for everything below it.
    source: Address,
    /// A file, a folder, or `-` for stdout.
    #[arg(default_value = ".")]
    dest: PathBuf,
    /// Everything below VOLUME/PREFIX, even without a slash at its end.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    target: Target,
}

/// How files are got; also for `cp`.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// Files at once, for a tree.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    pub jobs: usize,
    /// Do not replace a file.
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Set mode and modification time, where they were kept.
    #[arg(short, long)]
    pub preserve: bool,
    /// Print one line of JSON for each file: volume, key, path, size.
    #[arg(long)]
    pub json: bool,
}

/// Gets.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        get(&client, &args.source, &args.dest, args.recursive, &args.options).await
    })
}

/// Gets a file or a tree.
pub async fn get(
    client: &Client,
    source: &Address,
    dest: &Path,
    recursive: bool,
    options: &Options,
) -> Result<ExitCode, Failure> {
    let to_stdout = dest == Path::new("-");
    if recursive || source.is_folder() {
        if to_stdout {
            return Err(Failure::new("a tree cannot go to stdout").hint("name a folder, or a single file"));
        }
        return get_tree(client, source, dest, options).await;
    }
    let key = source.key()?;
    if to_stdout {
        download::stdout(client, &source.volume, &key, &Progress::over_bytes(0, true)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_folder = dest.is_dir() || dest.as_os_str().as_encoded_bytes().ends_with(b"/");
    let path = if is_folder {
        local::path_of(dest, source.name().as_bytes()).map_err(Failure::new)?
    } else {
        dest.to_owned()
    };
    let begun = clock::now();
    let size = if transfer::is_shown() { client.stat(&source.volume, &key).await?.size } else { 0 };
    let progress = Progress::over_bytes(size, options.json);
    let how = download::DownloadOptions { preserve: options.preserve, no_clobber: options.no_clobber };
    let info = download::file(client, &source.volume, &key, &path, how, &progress).await?;
    drop(progress);
    if options.json {
        out::json(&got(&source.volume, &info, &path))?;
    } else {
        let rate = transfer::rate(info.size, clock::now().duration_since(begun));
        out::say(format!("{}: {rate}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn got(volume: &str, info: &FileInfo, path: &Path) -> Value {
    let mut object = serde_json::Map::new();
    object.insert("volume".to_owned(), volume.into());
    show::put_name(&mut object, "key", info.key.as_bytes());
    object.insert("path".to_owned(), json!(path.to_string_lossy()));
    object.insert("size".to_owned(), info.size.into());
    Value::Object(object)
}

async fn get_tree(
    client: &Client,
    source: &Address,
    dest: &Path,
    options: &Options,
) -> Result<ExitCode, Failure> {
    let prefix = source.folder();
    // A volume that is not there is one clear failure, not a trouble among others.
    client.volume(&source.volume).await?;
    std::fs::create_dir_all(dest).map_err(|error| Failure::io(dest.display(), &error))?;
    let shown = transfer::is_shown() && !options.json;
    let total = if shown { listing::bytes(client, &source.volume, &prefix).await? } else { 0 };
    let progress = Arc::new(Progress::over_bytes(total, options.json));
    let how = download::DownloadOptions { preserve: options.preserve, no_clobber: options.no_clobber };
    let context = Arc::new((client.clone(), source.volume.clone(), dest.to_owned(), progress.clone()));
    let (skip, json) = (prefix.len(), options.json);
    let work = |listed: Box<FileInfo>| {
        let context = context.clone();
        async move {
            let (client, volume, dest, progress) = &*context;
            let relative = &listed.key.as_bytes()[skip..];
            if let Some(folder) = relative.strip_suffix(b"/").or((relative.is_empty()).then_some(b"")) {
                return make_folder(dest, folder, listed.size);
            }
            let path = local::path_of(dest, relative).map_err(Failure::new)?;
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(|error| Failure::io(folder.display(), &error))?;
            }
            let info = download::file(client, volume, &listed.key, &path, how, progress).await?;
            if json {
                out::json(&got(volume, &info, &path))?;
            }
            Ok(info.size)
        }
    };
    let items = listing::files(client, &source.volume, prefix.clone());
    let tally = transfer::run(items, options.jobs, &progress, work).await?;
    drop((context, progress));
    if tally.files == 0 && tally.failed == 0 && !source.path.is_empty() {
        let cause = format!("{}/{prefix}: nothing is below it", source.volume);
        return Err(Failure::new(cause).hint("see what is there with `stoker ls`"));
    }
    Ok(tally.report("got"))
}

/// A key that ends with a slash stands for a folder.
fn make_folder(dest: &Path, relative: &[u8], size: u64) -> Result<u64, Failure> {
    if size > 0 {
        return Err(Failure::new(
            "the key ends with a slash and has bytes; get it by itself under another name",
        ));
    }
    if relative.is_empty() {
        return Ok(0);
    }
    let path = local::path_of(dest, relative).map_err(Failure::new)?;
    std::fs::create_dir_all(&path).map_err(|error| Failure::io(path.display(), &error))?;
    Ok(0)
}
