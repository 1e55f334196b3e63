//! `stoker up`: a node on this machine by one command, without a configuration.

mod greeting;
mod nodes;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use stoker_gateway_nfs::Export;
use stoker_lake::LakeOptions;
use stoker_node::{CatalogChoice, JoinAs, Labels, LakePrices};
use stoker_store::VolumePolicy;

use crate::config::{Config, Registry, RegistryUpstream, Size};
use crate::daemon::place::Place;
use crate::daemon::{
    self, FirstVolume, Hangup, LakePlan, Listen, NfsPlan, PeersPlan, Plan, Promotion, RegistryPlan, S3Plan,
    TelemetryPlan, TlsPlan, Traces, TracesPlan, drives, limits,
};
use crate::failure::Failure;
use crate::{log, out, size, span, sys};
use settings::{Effective, Mode, Setting, Values, labels_text, parse_labels};
pub use stoker_agent::settings;
use stoker_gate::part::PartsOfNode;

/// The volume that a new node begins with.
const VOLUME: &str = "data";

/// How long a node may be silent, if nobody says otherwise.
pub const GRACE: Duration = Duration::from_secs(30);

/// Arguments of `up`.
#[derive(clap::Args)]
pub struct Args {
    /// Where everything is kept that has no other place.
    #[arg(long, value_name = "PATH", env = "STOKER_DIR", default_value = Args::DIR)]
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
    #[arg(long, value_name = "EXPORT")]
    nfs_export: Vec<Export>,
    /// Address of the registry door, which pulls OCI images through; without it there is none.
    #[arg(long, value_name = "ADDR", conflicts_with = "nodes")]
    registry: Option<SocketAddr>,
    /// A registry that images come from, such as https://registry-1.docker.io; may be given many times, the first is meant where
    /// a client names none.
    #[arg(long, value_name = "URL")]
    registry_upstream: Vec<String>,
    /// How much of images is kept, in the volume `images`; by default 100GiB.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    registry_size: Option<u64>,
    /// Address for the console, the admin API, health and metrics; by default 127.0.0.1:9001, or a free port that is kept.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Address for other nodes; by default 127.0.0.1:9002, or a free port that is kept.
    #[arg(long, value_name = "ADDR", conflicts_with = "nodes")]
    peers: Option<SocketAddr>,
    /// TLS at the S3 and admin ports, with certificates of the cluster's own authority, made and renewed by themselves; `--tls
    /// off` ends it.
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    tls: Option<String>,
    /// With --tls: a name or an address that people use, beside those of this machine; may be given many times.
    #[arg(long, value_name = "NAME")]
    tls_name: Vec<String>,
    /// With --tls-key: a certificate of your own (PEM, with those that lead to its root), read again when the file changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// What people call this node; by default the name of the machine.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where the node stands: cell=NAME,tor=SWITCH,power=FEED. Copies stay in the cell as long as they can, and are kept
    /// apart by the others.
    #[arg(long, value_name = "LABELS", value_parser = parse_labels)]
    domain: Option<Labels>,
    /// How long a node may be silent before it is declared down and its files are protected again; by default 30s.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    grace: Option<Duration>,
    /// Who else writes to the lake of the first volume; by default nobody, or read-only if the lake is not empty.
    #[arg(long, value_name = "MODE")]
    lake_mode: Option<Mode>,
    /// Start so many nodes on this machine, each in a directory of its own below --dir.
    #[arg(long, value_name = "N")]
    nodes: Option<NonZeroUsize>,
    /// Put these nodes into so many cells: copies stay within a cell, reads go everywhere.
    #[arg(long, value_name = "N")]
    cells: Option<NonZeroUsize>,
    /// Cores to use at most; by default 2.
    #[arg(long, value_name = "N")]
    cores: Option<NonZeroUsize>,
    /// Memory to use at most; by default 8GiB, or half of the machine's if that is less.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    promote: Promotion,
    /// What to log on stderr.
    #[arg(long, alias = "log-level", value_name = "LEVEL", env = "STOKER_LOG", default_value = "warn")]
    log: log::Level,
    /// Print one line of JSON when ready: s3, access_key, secret_key, region, nfs, admin, token, view_token, lake, dir,
    /// socket, pid, volume, ca (the authority to trust, with --tls).
    #[arg(long)]
    json: bool,
    /// Start everything, say what is there, and stop.
    #[arg(long, conflicts_with = "nodes")]
    check: bool,
}

impl Args {
    /// Where a node is, if nobody says otherwise.
    pub const DIR: &str = "stoker-data";

    /// What the command line says of settings that last.
    fn flags(&self) -> Result<Values, Failure> {
        let mut flags = Values::default();
        let mut take = |setting: Setting, texts: Vec<String>| {
            flags.set(setting, &texts).map_err(|wrong| {
                Failure::new(format!("--{}: {wrong}", setting.name()))
                    .hint("`stoker up --help` says what it can be")
            })
        };
        fn text<T: ToString>(value: Option<&T>) -> Vec<String> {
            value.map(T::to_string).into_iter().collect()
        }
        let mode = |mode: Mode| mode.to_possible_value().map(|value| value.get_name().to_owned());
        take(Setting::Name, text(self.name.as_ref()))?;
        take(Setting::Domain, self.domain.iter().map(labels_text).filter(|text| !text.is_empty()).collect())?;
        take(Setting::Lake, text(self.lake.as_ref()))?;
        take(Setting::LakeMode, self.lake_mode.and_then(mode).into_iter().collect())?;
        take(Setting::Drive, self.drive.iter().map(|path| path.display().to_string()).collect())?;
        take(Setting::Size, self.size.map(size::exact).into_iter().collect())?;
        take(Setting::Cores, text(self.cores.as_ref()))?;
        take(Setting::Memory, self.memory.map(size::exact).into_iter().collect())?;
        take(Setting::S3, text(self.s3.as_ref()))?;
        take(Setting::Nfs, text(self.nfs.as_ref()))?;
        take(Setting::NfsExport, self.nfs_export.iter().map(Export::to_string).collect())?;
        take(Setting::Registry, text(self.registry.as_ref()))?;
        take(Setting::RegistryUpstream, self.registry_upstream.clone())?;
        take(Setting::RegistrySize, self.registry_size.map(size::exact).into_iter().collect())?;
        take(Setting::Admin, text(self.admin.as_ref()))?;
        take(Setting::Peers, text(self.peers.as_ref()))?;
        take(Setting::Grace, self.grace.map(span::exact).into_iter().collect())?;
        take(Setting::Tls, text(self.tls.as_ref()))?;
        take(Setting::TlsName, self.tls_name.clone())?;
        take(Setting::TlsCert, self.tls_cert.iter().map(|path| path.display().to_string()).collect())?;
        take(Setting::TlsKey, self.tls_key.iter().map(|path| path.display().to_string()).collect())?;
        take(Setting::Nodes, text(self.nodes.as_ref()))?;
        take(Setting::Cells, text(self.cells.as_ref()))?;
        Ok(flags)
    }
}

/// Starts a node and its doors, or several, and waits to be stopped.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match nodes::Cell::of(args)? {
        None => run_member(args, None),
        Some(cell) => cell.run(args),
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
    let file = settings::file::read(place.dir())?;
    let mut settings = Effective::of(&args.flags()?, &Values::of_environment()?, &file);
    let peers: Option<SocketAddr> = settings.values.parsed(Setting::Peers);
    check_peers(peers)?;
    if let Some(Cluster { address, token }) = cluster {
        let name = settings.values.one(Setting::Name).map(str::to_owned);
        let wanted =
            JoinAs { is_name_chosen: name.is_some(), name: name.unwrap_or_else(sys::host_name), peers };
        if let Some(lake) = daemon::join(&place, address, token, &wanted)? {
            settings.take_lake_of_cluster(&lake)?;
        }
    }
    if let Some(summary) = settings.summary(place.dir()) {
        out::say(summary);
    }
    let dir = place.dir();
    let size = settings.values.bytes(Setting::Size);
    let drives = match settings.values.drives().as_slice() {
        [] => vec![drives::own(dir, size)?],
        paths => drives::configured(dir, paths.iter().map(|path| (path.as_path(), size)))?,
    };
    let mut plan = Plan {
        drives,
        new_drives: drives::given_up(&args.new_drive)?,
        tells_protection: cluster.is_some(),
        promote: args.promote.wish(),
        check_only: args.check,
        ..plan(dir, &settings.values)?
    };
    plan.telemetry.traces = traces;
    for (door, advice) in
        [(Setting::S3, "`stoker serve` has TLS"), (Setting::Admin, "put a proxy with TLS before it")]
    {
        let address: Option<SocketAddr> = settings.values.parsed(door);
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            let door = door.name();
            out::say(format!("--{door} {address} is plain HTTP: everybody on the way can read it; {advice}"));
        }
    }
    daemon::run(&place, &plan, Arc::new(PartsOfNode), |ready| {
        // Only now: a choice that does not work is not one to come back to.
        settings::file::write(place.dir(), &settings.values)?;
        if cluster.is_some() {
            greeting::joined(ready);
        }
        if args.json { greeting::json(ready) } else { greeting::words(ready, args.check) }
    })
}

/// Refuses an address for peers that nobody can dial: it is told to the others as it is.
pub fn check_peers(peers: Option<SocketAddr>) -> Result<(), Failure> {
    match peers.filter(|address| address.ip().is_unspecified()) {
        None => Ok(()),
        Some(address) => {
            let example = greeting::reachable(address.port()).unwrap_or_else(|| "10.0.0.5:9002".to_owned());
            Err(Failure::new(format!("--peers {address} is no address that other nodes can dial"))
                .hint(format!("give one that this machine has in their network, such as --peers {example}")))
        }
    }
}

/// The certificates that the settings ask for: files, if there are some.
fn tls(settings: &Values) -> Result<Option<TlsPlan>, Failure> {
    let (names, switch) = (settings.all(Setting::TlsName), settings.one(Setting::Tls));
    let of = |setting| settings.one(setting).map(PathBuf::from);
    match (of(Setting::TlsCert), of(Setting::TlsKey)) {
        _ if switch == Some("off") => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(TlsPlan::Files { cert, key })),
        (Some(_), None) | (None, Some(_)) => {
            Err(Failure::new("a certificate needs its key, and a key its certificate")
                .hint("give both --tls-cert and --tls-key"))
        }
        _ if switch == Some("on") => Ok(Some(TlsPlan::Own { names: names.to_vec() })),
        _ if !names.is_empty() => {
            Err(Failure::new("--tls-name names nothing without --tls").hint("add --tls"))
        }
        _ => Ok(None),
    }
}

/// The registry door that the settings ask for.
fn registry(settings: &Values) -> Result<RegistryPlan, Failure> {
    let listen: Option<SocketAddr> = settings.parsed(Setting::Registry);
    let defaults = Config::default().registry;
    let upstreams = settings.all(Setting::RegistryUpstream).iter();
    let plan = Registry {
        listen: listen.into_iter().collect(),
        upstreams: upstreams.cloned().map(RegistryUpstream).collect(),
        size: settings.bytes(Setting::RegistrySize).map_or(defaults.size, Size),
        ..defaults
    };
    if plan.listen.is_empty() && !plan.upstreams.is_empty() {
        return Err(Failure::new("--registry-upstream is asked for nothing without --registry")
            .hint("add --registry ADDRESS, such as 127.0.0.1:5000"));
    }
    plan.plan().map_err(|why| {
        Failure::new(why).hint("add --registry-upstream URL, such as https://registry-1.docker.io")
    })
}

/// What settings say of a node in a directory, but for its drives.
pub fn plan(dir: &Path, settings: &Values) -> Result<Plan, Failure> {
    let defaults = Config::default();
    let own_lake = || format!("file://{}", dir.join("lake").display());
    let policy =
        settings.lake_mode().map(|mode| VolumePolicy { lake_mode: mode.into(), ..VolumePolicy::default() });
    let at = |setting| settings.parsed(setting).map_or(Listen::Kept, |address| Listen::At(vec![address]));
    let nfs: Option<SocketAddr> = settings.parsed(Setting::Nfs);
    let exports: Vec<Export> =
        settings.all(Setting::NfsExport).iter().filter_map(|text| text.parse().ok()).collect();
    if nfs.is_none() && !exports.is_empty() {
        return Err(Failure::new("--nfs-export shows nothing without --nfs")
            .hint("add --nfs ADDRESS, such as 127.0.0.1:2049"));
    }
    Ok(Plan {
        drives: Vec::new(),
        new_drives: Vec::new(),
        lake: LakePlan {
            url: settings.one(Setting::Lake).map_or_else(own_lake, str::to_owned),
            options: LakeOptions::default(),
            prices: LakePrices::default(),
            is_own: !settings.has(Setting::Lake),
        },
        catalog: CatalogChoice::Embedded,
        volume_defaults: VolumePolicy::default(),
        first_volume: Some(FirstVolume { name: VOLUME.into(), policy }),
        cores: settings.parsed(Setting::Cores).unwrap_or(defaults.node.cores).get(),
        memory_bytes: limits::memory(settings.bytes(Setting::Memory))?,
        drains_max: defaults.lake.drains_max.0.get(),
        sparse_bytes_max: defaults.lake.sparse_max.0,
        key_files: Default::default(),
        s3: S3Plan {
            listen: at(Setting::S3),
            region: defaults.s3.region,
            // Browsers and most resolvers lead every name below `localhost` to this machine.
            domains: vec!["localhost".into()],
            cors_origins: Vec::new(),
            signature_v2: true,
            md5_up_to: defaults.s3.md5_up_to.0,
            lifecycle_day_ms: u64::from(defaults.s3.lifecycle_day_s.get()) * 1_000,
            threads: None,
            connections_max: defaults.s3.connections_max.get(),
            catalog_patience: S3Plan::CATALOG_PATIENCE,
            tls: tls(settings)?,
        },
        nfs: NfsPlan { listen: nfs.into_iter().collect(), exports },
        registry: registry(settings)?,
        peers: PeersPlan {
            listen: at(Setting::Peers),
            name: settings
                .one(Setting::Name)
                .map_or_else(|| daemon::default_name(dir), |name| Ok(name.to_owned()))?,
            labels: settings.labels(),
            weight: 1,
            plaintext: false,
            grace: settings.span(Setting::Grace).unwrap_or(GRACE),
            rebuild_bytes_per_s: defaults.peers.rebuild_rate.0,
        },
        tells_protection: false,
        makes_join_token: true,
        promote: None,
        admin: at(Setting::Admin),
        tls: tls(settings)?,
        token_file: None,
        view_token_file: None,
        metrics_open: false,
        door: Vec::new(),
        users: std::collections::HashMap::new(),
        audit: Default::default(),
        telemetry: TelemetryPlan::default(),
        issuers: Arc::default(),
        hangup: Hangup::Stop,
        check_only: false,
    })
}
