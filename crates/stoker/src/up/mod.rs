//! `stoker up`: a node on this machine by one command, without a configuration.

mod greeting;
pub mod kept;
mod nodes;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stoker_gateway_nfs::Export;
use stoker_lake::LakeOptions;
use stoker_node::{CatalogChoice, JoinAs, Labels, LakePrices};
use stoker_store::{LakeMode, VolumePolicy};

use crate::config::Config;
use crate::daemon::place::Place;
use crate::daemon::{
    self, FirstVolume, Hangup, LakePlan, Listen, NfsPlan, PeersPlan, Plan, Promotion, S3Plan, TelemetryPlan,
    Traces, TracesPlan, drives, limits,
};
use crate::failure::Failure;
use crate::{log, out, size, span, sys};
use kept::Kept;

/// The volume that a new node begins with.
const VOLUME: &str = "data";

/// Arguments of `up`.
#[derive(clap::Args)]
pub struct Args {
    /// Where everything is kept that has no other place.
    #[arg(long, value_name = "PATH", env = "STOKER_DIR", default_value = "stoker-data")]
    dir: PathBuf,
    /// Where files end up as plain objects: s3://bucket/prefix, gs://…, az://…, or a directory; by default `lake` in
    /// the directory.
    #[arg(long, value_name = "URL")]
    lake: Option<String>,
    /// A drive: a directory, a file or a block device; may be given many times. By default `ring` in the directory.
    #[arg(long, value_name = "PATH")]
    drive: Vec<PathBuf>,
    /// The drive that was here is gone for good: use what is there, or make a new ring; may be given many times.
    #[arg(long, value_name = "PATH")]
    new_drive: Vec<PathBuf>,
    /// Size of a ring that has to be made; by default half of the free space, at least 2GiB, at most 256GiB; rings on
    /// one file system share it.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Address of the S3 door; by default 127.0.0.1:9000, or a free port that is kept.
    #[arg(long, value_name = "ADDR")]
    s3: Option<SocketAddr>,
    /// Address of the NFS door, usually port 2049; without it there is none.
    #[arg(long, value_name = "ADDR", conflicts_with = "nodes")]
    nfs: Option<SocketAddr>,
    /// A volume that the NFS door shows, and to whom: VOLUME[:allow=NETWORK,…,read-only,keep-root,anonymous=UID:GID]; may
    /// be given many times. By default every volume, to this machine.
    #[arg(long, value_name = "EXPORT", requires = "nfs")]
    nfs_export: Vec<Export>,
    /// Address for the console, the admin API, health and metrics; by default 127.0.0.1:9001, or a free port that is kept.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Address for other nodes; by default 127.0.0.1:9002, or a free port that is kept.
    #[arg(long, value_name = "ADDR", conflicts_with = "nodes")]
    peers: Option<SocketAddr>,
    /// What people call this node; by default the name of the machine.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where the node stands: cell=NAME,tor=SWITCH,power=FEED. Copies stay in the cell as long as they can, and are kept
    /// apart by the others.
    #[arg(long, value_name = "LABELS", default_value = "", value_parser = parse_labels)]
    domain: Labels,
    /// How long a node may be silent before it is declared down and its files are protected again.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    grace: Duration,
    /// Who else writes to the lake of the first volume; by default nobody, or read-only if the lake is not empty.
    #[arg(long, value_name = "MODE")]
    lake_mode: Option<Mode>,
    /// Start so many nodes on this machine, each in a directory of its own below --dir.
    #[arg(long, value_name = "N")]
    nodes: Option<NonZeroUsize>,
    /// Put these nodes into so many cells: copies stay within a cell, reads go everywhere.
    #[arg(long, value_name = "N", requires = "nodes", default_value = "1")]
    cells: NonZeroUsize,
    /// Cores to use at most.
    #[arg(long, value_name = "N", default_value = "2")]
    cores: NonZeroUsize,
    /// Memory to use at most; by default 8GiB, or half of the machine's if that is less.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    promote: Promotion,
    /// What to log on stderr.
    #[arg(long, value_name = "LEVEL", env = "STOKER_LOG", default_value = "warn")]
    log: log::Level,
    /// Print one line of JSON when ready: s3, access_key, secret_key, region, nfs, admin, token, view_token, lake, dir,
    /// socket, pid, volume.
    #[arg(long)]
    json: bool,
    /// Start everything, say what is there, and stop.
    #[arg(long, conflicts_with = "nodes")]
    check: bool,
}

fn parse_labels(text: &str) -> Result<Labels, String> {
    let mut labels = Labels::default();
    for label in text.split(',').filter(|label| !label.is_empty()) {
        match label.split_once('=') {
            Some(("cell", value)) => labels.cell = value.to_owned(),
            Some(("tor", value)) => labels.tor = value.to_owned(),
            Some(("power", value)) => labels.power = value.to_owned(),
            _ => return Err(format!("`{label}`: expected cell=NAME, tor=SWITCH or power=FEED")),
        }
    }
    Ok(labels)
}

/// A lake mode as people write it.
#[derive(clap::ValueEnum, Clone, Copy)]
enum Mode {
    /// Nobody else writes there.
    Owned,
    /// Others write there too.
    Shared,
    /// Others write there, and we must not.
    ReadOnly,
}

impl From<Mode> for LakeMode {
    fn from(mode: Mode) -> LakeMode {
        match mode {
            Mode::Owned => LakeMode::Owned,
            Mode::Shared => LakeMode::Shared,
            Mode::ReadOnly => LakeMode::ReadOnly,
        }
    }
}

/// Starts a node and its doors, or several, and waits to be stopped.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.nodes.map(NonZeroUsize::get) {
        Some(count) if args.cells.get() > count => {
            Err(Failure::new(format!("{count} nodes cannot be {} cells", args.cells)))
        }
        None | Some(1) => run_member(args, None),
        Some(count) if count <= nodes::NODES_MAX => nodes::run(args, count),
        Some(_) => Err(Failure::new(format!("at most {} nodes run on one machine", nodes::NODES_MAX))),
    }
}

/// Where a node joins, if it is no member yet, and by what.
pub struct Cluster<'a> {
    pub address: &'a str,
    pub token: Option<&'a str>,
}

/// Starts one node; `cluster` says where it joins, if it is no member yet.
pub fn run_member(args: &Args, cluster: Option<Cluster<'_>>) -> Result<ExitCode, Failure> {
    let traces = Traces::open(&TracesPlan::default())?;
    log::start(args.log, log::Format::Text, traces.as_ref());
    let place = Place::take(&args.dir)?;
    let mut kept = Kept::read(&place)?;
    check_peers(args.peers)?;
    if let Some(Cluster { address, token }) = cluster {
        let wanted = JoinAs {
            name: args.name.clone().unwrap_or_else(sys::host_name),
            is_name_chosen: args.name.is_some(),
            peers: args.peers,
        };
        kept.lake = daemon::join(&place, address, token, &wanted)?.or(kept.lake);
    }
    let kept = kept.with(args.lake.as_deref(), &args.drive)?;
    let mut plan = Plan { tells_protection: cluster.is_some(), ..plan(args, place.dir(), &kept)? };
    plan.telemetry.traces = traces;
    for (door, address) in [("--s3", args.s3), ("--admin", args.admin)] {
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            out::say(format!(
                "{door} {address} is plain HTTP: everybody on the way can read it; `stoker serve` has TLS"
            ));
        }
    }
    daemon::run(&place, &plan, |ready| {
        // Only now: a choice that does not work is not one to come back to.
        kept.write(&place)?;
        if cluster.is_some() {
            greeting::joined(ready);
        }
        if args.json { greeting::json(ready) } else { greeting::words(ready, args.check) }
    })
}

/// Refuses an address for peers that nobody can dial: it is told to the others as it is.
fn check_peers(peers: Option<SocketAddr>) -> Result<(), Failure> {
    match peers.filter(|address| address.ip().is_unspecified()) {
        None => Ok(()),
        Some(address) => {
            let example = greeting::reachable(address.port()).unwrap_or_else(|| "10.0.0.5:9002".to_owned());
            Err(Failure::new(format!("--peers {address} is no address that other nodes can dial"))
                .hint(format!("give one that this machine has in their network, such as --peers {example}")))
        }
    }
}

fn plan(args: &Args, dir: &Path, kept: &Kept) -> Result<Plan, Failure> {
    let defaults = Config::default();
    let drives = match kept.drives.as_slice() {
        [] => vec![drives::own(dir, args.size)?],
        paths => drives::configured(dir, paths.iter().map(|path| (path.as_path(), args.size)))?,
    };
    let own_lake = || format!("file://{}", dir.join("lake").display());
    let policy =
        args.lake_mode.map(|mode| VolumePolicy { lake_mode: mode.into(), ..VolumePolicy::default() });
    let at = |address: Option<SocketAddr>| address.map_or(Listen::Kept, |address| Listen::At(vec![address]));
    Ok(Plan {
        drives,
        new_drives: drives::given_up(&args.new_drive)?,
        lake: LakePlan {
            url: kept.lake.clone().unwrap_or_else(own_lake),
            options: LakeOptions::default(),
            prices: LakePrices::default(),
            is_own: kept.lake.is_none(),
        },
        catalog: CatalogChoice::Embedded,
        volume_defaults: VolumePolicy::default(),
        first_volume: Some(FirstVolume { name: VOLUME.into(), policy }),
        cores: args.cores.get(),
        memory_bytes: limits::memory(args.memory)?,
        drains_max: defaults.lake.drains_max.0.get(),
        sparse_bytes_max: defaults.lake.sparse_max.0,
        s3: S3Plan {
            listen: at(args.s3),
            region: defaults.s3.region,
            // Browsers and most resolvers lead every name below `localhost` to this machine.
            domains: vec!["localhost".into()],
            cors_origins: Vec::new(),
            threads: None,
            connections_max: defaults.s3.connections_max.get(),
            tls: None,
        },
        nfs: NfsPlan { listen: args.nfs.into_iter().collect(), exports: args.nfs_export.clone() },
        peers: PeersPlan {
            listen: at(args.peers),
            name: args.name.clone().map_or_else(|| daemon::default_name(dir), Ok)?,
            labels: args.domain.clone(),
            plaintext: false,
            grace: args.grace,
            rebuild_bytes_per_s: defaults.peers.rebuild_rate.0,
        },
        tells_protection: false,
        makes_join_token: true,
        promote: args.promote.wish(),
        admin: at(args.admin),
        token_file: None,
        view_token_file: None,
        metrics_open: false,
        door: Vec::new(),
        telemetry: TelemetryPlan::default(),
        hangup: Hangup::Stop,
        check_only: args.check,
    })
}
