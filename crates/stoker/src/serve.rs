//! `stoker serve`: a node by its configuration file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use stoker_agent::configured::{kafka, plan, traces};

use crate::config::Config;
use crate::daemon::place::Place;
use crate::daemon::{self, CREDENTIALS, KafkaPlan, Plan, Promotion, Ready, Traces, drives};
use crate::failure::Failure;
use crate::{log, out, show, size};
use stoker_gate::part::PartsOfNode;

/// Arguments of `serve`.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, in TOML; deploy/stoker.toml shows every setting.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// What to log on stderr; comes before the configuration's.
    #[arg(long, alias = "log-level", value_name = "LEVEL", env = "STOKER_LOG")]
    log: Option<log::Level>,
    /// Print one line of JSON when ready: s3, region, nfs, admin, door, peers, lake, dir, socket, pid.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    promote: Promotion,
    /// The drive that was here is gone for good: use what is there, or make a new ring; may be given many times.
    #[arg(long, value_name = "PATH")]
    new_drive: Vec<PathBuf>,
    /// Read and check the configuration, and start nothing.
    #[arg(long)]
    check: bool,
}

/// Starts a node and its doors, waits to be stopped.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = Config::read(&args.config)?;
    let traces = traces(&config);
    traces.check()?;
    if kafka(&config).is_some() {
        KafkaPlan::check()?;
    }
    if args.check {
        out::say(format!("{}: fine", args.config.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let traces = Traces::open(&traces)?;
    log::start(args.log.unwrap_or(config.log.level), config.log.format, traces.as_ref());
    let place = Place::take(&config.node.dir)?;
    let mut plan = Plan { promote: args.promote.wish(), ..plan(&config, place.dir())? };
    plan.new_drives = drives::given_up(&args.new_drive)?;
    plan.telemetry.traces = traces;
    daemon::run(
        &place,
        &plan,
        Arc::new(PartsOfNode),
        |ready| if args.json { tell_json(ready) } else { tell(ready) },
    )
}

fn tell_json(ready: &Ready) -> Result<(), Failure> {
    out::json(&json!({
        "s3": ready.s3,
        "region": ready.region,
        "nfs": ready.nfs,
        "registry": ready.registry,
        "admin": ready.admin,
        "ca": ready.ca.as_ref().map(|ca| ca.display().to_string()),
        "door": ready.door,
        "peers": ready.peers,
        "lake": ready.lake,
        "dir": ready.dir.display().to_string(),
        "socket": ready.socket.display().to_string(),
        "pid": std::process::id(),
    }))
}

/// Says what runs where a service's words go. Secrets stay in their files.
fn tell(ready: &Ready) -> Result<(), Failure> {
    let status = &ready.status;
    tracing::info!(node = status.node, cluster = status.cluster, dir = %ready.dir.display(), "ready");
    tracing::info!(s3 = ready.s3.join(" "), admin = ready.admin, door = ready.door.join(" "), "doors");
    for address in &ready.nfs {
        tracing::info!("{}", daemon::nfs::mount_command(*address, "VOLUME"));
    }
    for ring in &status.rings {
        tracing::info!(drive = ring.path, size = size::human(ring.bytes), io = ring.io, "drive");
    }
    tracing::info!(lake = ready.lake, catalog = show::catalog(status), "lake and catalog");
    tracing::info!(cores = %ready.cores, memory = size::human(ready.memory_bytes), "limits; no busy polling");
    if ready.credentials.is_some() {
        tracing::info!("the first access key is in {}", ready.dir.join(CREDENTIALS).display());
    }
    let token = ready.dir.join("token");
    tracing::info!("the console is at {}/; the token to log in with is in {}", ready.admin, token.display());
    tracing::info!(
        peers = ready.peers.join(" "),
        "other machines join with `stoker join HOST:PORT --config FILE`, after `stoker join-token create` here"
    );
    for words in &status.words {
        tracing::info!("{words}");
    }
    Ok(())
}
