//! `stoker catalog backup`: one state of the catalog in a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stoker_catalog::Row;
use stoker_catalog::backup::{Header, Kind, Summary, Writer};
use stoker_client::Client;
use stoker_store::{CatalogPage, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{clock, out, size};

/// Arguments of `catalog backup`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write it. It holds the secrets of access keys, so only you can read it.
    file: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
    /// Print one object: file, rows, bytes, seq.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Takes a backup.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.file.exists() && !args.force {
        let cause = format!("{} is there already", args.file.display());
        return Err(Failure::new(cause).hint("choose another name, or say --force to replace it"));
    }
    connect::run(&args.target, async |client| {
        let progress = Progress::over_bytes(0, args.json);
        progress.say("catalog");
        let draft = Draft::create(&args.file)?;
        let (summary, seq) = copy(&client, &draft.path, &progress).await?;
        draft.keep(&args.file)?;
        drop(progress);
        let Summary { rows, bytes } = summary;
        match args.json {
            true => out::json(&json!({ "file": args.file, "rows": rows, "bytes": bytes, "seq": seq }))?,
            false => out::line(format!(
                "{}: {} rows, {}, everything up to commit {seq}",
                args.file.display(),
                out::count(rows),
                size::human(bytes)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A file under another name until it is whole.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn create(file: &Path) -> Result<Draft, Failure> {
        let mut name = file.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        // One that a crash left may have another mode.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::io(path.display(), &error));
            }
            _ => {}
        }
        let open = File::options().write(true).create_new(true).mode(0o600).open(&path);
        open.map_err(|error| Failure::io(path.display(), &error))?;
        Ok(Draft { path })
    }

    fn keep(self, file: &Path) -> Result<(), Failure> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let placed = std::fs::rename(&self.path, file).and_then(|()| File::open(folder)?.sync_all());
        placed.map_err(|error| Failure::io(file.display(), &error))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Half of a backup is none; one that is whole has another name by now.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn ask(client: &Client, state: Option<u64>, after: Option<Vec<u8>>) -> Result<CatalogPage, Failure> {
    match client.operate(Order::CatalogRows { state, after }).await? {
        Report::CatalogRows(page) => Ok(page),
        _ => Err(Failure::confused()),
    }
}

async fn copy(client: &Client, path: &Path, progress: &Progress) -> Result<(Summary, u64), Failure> {
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    let mut page = ask(client, None, None).await?;
    let cluster = page.cluster.parse().map_err(|_| Failure::confused())?;
    let header = Header { kind: Kind::Whole, cluster, seq: page.seq, created_ms: clock::unix_ms() };
    let file = File::options().write(true).open(path).map_err(io)?;
    let mut writer = Writer::begin(BufWriter::with_capacity(1 << 20, file), &header).map_err(io)?;
    loop {
        let (state, more) = (page.state, page.more);
        let row = |row: stoker_store::CatalogRow| Row { key: row.key, value: row.value, seq: row.seq };
        let rows: Vec<Row> = page.rows.into_iter().map(row).collect();
        progress.add(rows.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum());
        writer.rows(&rows).map_err(io)?;
        let last = rows.last().map(|row| row.key.clone());
        if !more {
            break;
        }
        page = ask(client, Some(state), last).await?;
    }
    let (mut file, summary) = writer.end().map_err(io)?;
    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(io)?;
    Ok((summary, header.seq))
}
