//! `stoker catalog restore`, `salvage` and `compare`: the catalog of nodes that are stopped.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use serde_json::json;
use stoker_lake::LakeOptions;
use stoker_salvage::{
    self as salvaging, RestoreOptions, RestoreReport, SalvageOptions, SalvageReport, StoppedNode, Target,
};

use stoker_agent::configured;

use crate::config::{CatalogKind, Config};
use crate::daemon::drives;
use crate::daemon::place::Place;
use crate::failure::Failure;
use crate::home::Home;
use crate::progress::Progress;
use crate::up::settings;
use crate::{clock, out, size};

/// Most differences that are shown.
const DIFFERENCES_MAX: usize = 10_000;

/// Which stopped node is meant.
#[derive(clap::Args)]
pub struct Stopped {
    #[command(flatten)]
    home: Home,
    /// The database that all nodes use, if they do; its address as in the configuration.
    #[arg(long, value_name = "URL", env = "STOKER_POSTGRES", hide_env_values = true)]
    postgres: Option<String>,
}

/// Arguments of `catalog restore`.
#[derive(clap::Args)]
pub struct RestoreArgs {
    /// The backup.
    file: PathBuf,
    /// Replace a catalog that is not empty. Its file gets another name; rows in a database are gone.
    #[arg(long)]
    force: bool,
    /// Do without what came after the backup: nodes that know of it start all the same.
    #[arg(long)]
    accept_loss: bool,
    /// Print one object: rows, taken_ms, seq, seen_seq, base_seq, aside.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Stopped,
}

/// Arguments of `catalog salvage`.
#[derive(clap::Args)]
pub struct SalvageArgs {
    /// A drive of the node, if not those that it had; can be repeated.
    #[arg(long, value_name = "PATH")]
    drive: Vec<PathBuf>,
    /// The directory of another stopped node of the cluster, whose drives are read, too; can be repeated.
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// Begin with what this backup knows, instead of the catalog that is there.
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    /// Print one object: records, volumes, files, bytes, dirty_files, dirty_bytes, sets, deletes, lost_files, lost,
    /// untold_files, untold, base_seq, aside, notes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Stopped,
}

/// Arguments of `catalog compare`.
#[derive(clap::Args)]
pub struct CompareArgs {
    /// A backup, or the directory of a stopped node.
    first: PathBuf,
    /// Another one.
    second: PathBuf,
    /// Print one object per line: volume, key, what.
    #[arg(long)]
    json: bool,
}

/// A stopped node that nobody starts meanwhile.
struct Held {
    place: Place,
    drives: Vec<PathBuf>,
    lake_options: LakeOptions,
    target: Target,
}

impl Stopped {
    fn hold(&self, drives: &[PathBuf]) -> Result<Held, Failure> {
        let config = self.home.config.as_deref().map(Config::read).transpose()?;
        let dir = config.as_ref().map_or_else(|| self.home.dir(), |config| config.node.dir.clone());
        let place = Place::of_node(&dir)?;
        let named = match (drives, &config) {
            ([], Some(config)) => config.drive.iter().map(|drive| drive.path.clone()).collect(),
            ([], None) => settings::file::read(place.dir())?.drives(),
            (drives, _) => drives.to_vec(),
        };
        let url = config.as_ref().and_then(|config| match config.catalog.kind() {
            CatalogKind::Postgres => config.catalog.url.clone(),
            _ => None,
        });
        let target = match self.postgres.clone().or(url) {
            Some(url) => Target::Postgres(url),
            None => Target::Embedded,
        };
        let lake_options = match &config {
            Some(config) => configured::lake(&config.lake, place.dir()).options,
            None => LakeOptions::default(),
        };
        let drives = match drives {
            [] => drive_paths(place.dir(), &named)?,
            // A person says which ones.
            drives => drives.iter().map(|path| ring_at(path)).collect::<Result<_, _>>()?,
        };
        Ok(Held { drives, place, lake_options, target })
    }
}

/// The rings of a node by what it was started with, without those that were taken out since, and with those that were added.
fn drive_paths(dir: &Path, named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let configured = match named {
        [] => vec![dir.join("ring")],
        named => {
            let removed = stoker_node::drives_removed(dir)?;
            let is_removed =
                |path: &PathBuf| removed.iter().any(|ring| ring == path || ring.parent() == Some(path));
            named
                .iter()
                .filter(|path| !is_removed(path))
                .map(|path| ring_at(path))
                .collect::<Result<_, _>>()?
        }
    };
    Ok(stoker_node::drives_kept(dir, configured)?)
}

fn ring_at(path: &Path) -> Result<PathBuf, Failure> {
    Ok(drives::named(path, Some(0))?.path)
}

/// Runs something that tells how far it is.
fn run<T>(
    json: bool,
    work: impl AsyncFnOnce(salvaging::Tell<'_>) -> stoker_store::Result<T>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::io("runtime", &error))?;
    let progress = Progress::over_steps(0, json);
    let told = Mutex::new(0);
    let tell = |what: &str, done: u64| {
        let mut told = told.lock().expect("nobody panics while telling");
        progress.say(what);
        progress.add(done.saturating_sub(*told));
        *told = done;
    };
    Ok(runtime.block_on(work(&tell))?)
}

/// Restores a backup.
pub fn restore(args: &RestoreArgs) -> Result<ExitCode, Failure> {
    let held = args.node.hold(&[])?;
    let options = RestoreOptions {
        dir: held.place.dir().to_owned(),
        target: held.target.clone(),
        file: args.file.clone(),
        force: args.force,
        accept_loss: args.accept_loss,
    };
    let report = run(args.json, async |tell| salvaging::restore(&options, tell).await)?;
    match args.json {
        true => out::json(&json!(report))?,
        false => tell_restored(&report, args.accept_loss)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tell_restored(report: &RestoreReport, accept_loss: bool) -> Result<(), Failure> {
    let taken = clock::rfc3339(report.taken_ms);
    out::line(format!(
        "restored {} rows of a backup taken {taken}, with everything up to commit {}",
        out::count(report.rows),
        report.seq
    ))?;
    if let Some(aside) = &report.aside {
        out::line(format!("what was there before is {}", aside.display()))?;
    }
    if accept_loss {
        out::line("what came after the backup is given up")
    } else if report.seen_seq > report.seq {
        out::line(format!(
            "this node saw commit {}: the backup does not know {} commits, and the node does not start without them; find \
             them with `stoker catalog salvage`",
            report.seen_seq,
            report.seen_seq - report.seq
        ))
    } else {
        out::line(
            "this node saw nothing later; a node that did does not start before `stoker catalog salvage` was run",
        )
    }
}

fn stopped(place: &Place, drives: Vec<PathBuf>) -> Result<StoppedNode, Failure> {
    let secrets = stoker_node::secrets_kept(place.dir())?;
    Ok(StoppedNode { dir: place.dir().to_owned(), drives, secrets })
}

/// Rebuilds a catalog.
pub fn salvage(args: &SalvageArgs) -> Result<ExitCode, Failure> {
    let held = args.node.hold(&args.drive)?;
    let mut places = Vec::new();
    let mut others = Vec::new();
    for dir in &args.with {
        let place = Place::of_node(dir)?;
        let drives = drive_paths(place.dir(), &settings::file::read(place.dir())?.drives())?;
        others.push(stopped(&place, drives)?);
        places.push(place);
    }
    let options = SalvageOptions {
        home: stopped(&held.place, held.drives.clone())?,
        others,
        target: held.target.clone(),
        backup: args.backup.clone(),
        lake_options: held.lake_options.clone(),
        lake_opener: None,
    };
    let report = run(args.json, async |tell| salvaging::salvage(&options, tell).await)?;
    match args.json {
        true => out::json(&json!(report))?,
        false => tell_salvaged(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tell_salvaged(report: &SalvageReport) -> Result<(), Failure> {
    out::fields(&[
        ("name records", out::count(report.records)),
        ("volumes", out::count(report.volumes)),
        ("files", format!("{}, {}", out::count(report.files), size::human(report.bytes))),
        (
            "not in the lake",
            format!("{}, {}", out::count(report.dirty_files), size::human(report.dirty_bytes)),
        ),
        ("sets", out::count(report.sets)),
        ("deletes to finish", out::count(report.deletes)),
        ("lost", out::count(report.lost_files)),
        ("deleted since, or lost", out::count(report.untold_files)),
    ])?;
    report.lost.iter().try_for_each(|key| out::line(format!("  lost: {key}")))?;
    // The older catalog has them, and neither drives nor lake know of them.
    report.untold.iter().try_for_each(|key| out::line(format!("  in the older catalog alone: {key}")))?;
    report.notes.iter().try_for_each(|note| out::line(format!("note: {note}")))?;
    if let Some(aside) = &report.aside {
        out::line(format!("what was there before is {}", aside.display()))?;
    }
    out::line("the node can start")
}

/// Compares two catalogs.
pub fn compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    // Held as long as it is read, if it is a node.
    let _places = [&args.first, &args.second]
        .into_iter()
        .filter(|path| path.is_dir())
        .map(|dir| Place::of_node(dir))
        .collect::<Result<Vec<_>, _>>()?;
    let scratch = std::env::temp_dir().join(format!("stoker-compare-{}", std::process::id()));
    // Catalogs hold secrets.
    let made = std::fs::DirBuilder::new().mode(0o700).create(&scratch);
    made.map_err(|error| Failure::io(scratch.display(), &error))?;
    let compared = run(args.json, async |_| {
        salvaging::compare(&args.first, &args.second, &scratch, DIFFERENCES_MAX).await
    });
    // Copies of ours; what cannot be removed is in nobody's way.
    let _ = std::fs::remove_dir_all(&scratch);
    let differences = compared?;
    for difference in &differences {
        match args.json {
            true => out::json(&json!(difference))?,
            false => out::line(format!("{}/{}  {}", difference.volume, difference.key, difference.what))?,
        }
    }
    if differences.is_empty() && !args.json {
        out::line("they say the same")?;
    }
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
