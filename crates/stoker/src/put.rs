//! `stoker put`: a file, a tree or stdin into Stoker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use stoker_client::Client;
use stoker_store::{Attributes, Key, Receipt};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::{self, upload, walk};
use crate::{clock, out, show};

/// Arguments of `put`.
#[derive(clap::Args)]
pub struct Args {
    /// A file, a folder with everything below it, or `-` for stdin.
    source: PathBuf,
    /// VOLUME/KEY; with a slash at its end (or only VOLUME) the name of the file is added. A folder's files go below it.
    dest: Address,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    target: Target,
}

/// How files are put; also for `cp`.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// Files at once, for a folder.
    #[arg(short, long, value_name = "N", default_value_t = transfer::JOBS_DEFAULT, value_parser = transfer::parse_jobs)]
    pub jobs: usize,
    /// Do not replace a file.
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Keep mode and modification time.
    #[arg(short, long)]
    pub preserve: bool,
    /// MIME type.
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// A property of the file, as S3 user metadata; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub meta: Vec<(String, String)>,
    /// Print each receipt as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Reads `name=value`.
fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let sound = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(sound) {
        return Err("a name has letters, digits, `-`, `_` and `.`".into());
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

/// Puts.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| put(&client, &args.source, &args.dest, &args.options).await)
}

/// Puts a file, a tree or stdin.
pub async fn put(
    client: &Client,
    source: &Path,
    dest: &Address,
    options: &Options,
) -> Result<ExitCode, Failure> {
    let attributes = Attributes {
        content_type: options.content_type.clone(),
        meta: options.meta.clone(),
        ..Attributes::default()
    };
    let how =
        upload::UploadOptions { attributes, preserve: options.preserve, no_clobber: options.no_clobber };
    if source == Path::new("-") {
        if dest.is_folder() {
            let cause = format!("stdin has no name to put below {dest}");
            return Err(Failure::new(cause).hint("name the file: VOLUME/KEY"));
        }
        let progress = Progress::over_bytes(0, true);
        let receipt = upload::stdin(client, &dest.volume, &dest.key()?, &how, &progress).await?;
        return tell(&receipt, options.json).map(|()| ExitCode::SUCCESS);
    }
    let meta = source.metadata().map_err(|error| Failure::io(source.display(), &error))?;
    if meta.is_dir() {
        return put_tree(client, source, dest, options, how).await;
    }
    let dest = with_name(dest, source)?;
    let progress = Progress::over_bytes(meta.len(), options.json);
    let begun = clock::now();
    let receipt = upload::file(client, source, &dest.volume, &dest.key()?, &how, &progress).await?;
    drop(progress);
    tell(&receipt, options.json)?;
    if transfer::is_shown() && !options.json {
        out::say(transfer::rate(receipt.size, clock::now().duration_since(begun)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The destination with the name of the source if it is a folder.
fn with_name(dest: &Address, source: &Path) -> Result<Address, Failure> {
    if !dest.is_folder() {
        return Ok(dest.clone());
    }
    match source.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(dest.with_path(format!("{}{name}", dest.path))),
        None => Err(Failure::new(format!("{} has no name in UTF-8", source.display())).hint("name the key")),
    }
}

fn tell(receipt: &Receipt, json: bool) -> Result<(), Failure> {
    if json { out::json(&show::receipt_json(receipt)) } else { out::line(show::receipt(receipt)) }
}

async fn put_tree(
    client: &Client,
    source: &Path,
    dest: &Address,
    options: &Options,
    how: upload::UploadOptions,
) -> Result<ExitCode, Failure> {
    let total = if transfer::is_shown() && !options.json { walk::bytes(source) } else { 0 };
    let progress = Arc::new(Progress::over_bytes(total, options.json));
    let context = Arc::new((client.clone(), dest.volume.clone(), how, progress.clone()));
    let (prefix, json) = (dest.folder(), options.json);
    let work = |found: walk::Found| {
        let (context, prefix) = (context.clone(), prefix.clone());
        async move {
            let (client, volume, how, progress) = &*context;
            let key = Key::new([prefix.as_bytes(), &found.relative].concat())?;
            let receipt = upload::file(client, &found.path, volume, &key, how, progress).await?;
            if json {
                out::json(&show::receipt_json(&receipt))?;
            }
            Ok(receipt.size)
        }
    };
    let tally = transfer::run(walk::files(source.to_owned()), options.jobs, &progress, work).await?;
    drop((context, progress));
    Ok(tally.report("put"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read() {
        assert_eq!(parse_pair("Step=a=b"), Ok(("step".into(), "a=b".into())));
        for text in ["", "a", "=b", "a b=c"] {
            assert!(parse_pair(text).is_err(), "{text}");
        }
    }
}
