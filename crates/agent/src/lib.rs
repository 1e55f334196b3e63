//! A running node with its doors, from the first byte read to the last one written: configuration, ports, limits, signals, the log.
//! `up` and `serve` differ only in where their [`Plan`] comes from and in what they tell.
//!
//! It must not hold logic of others: it starts parts, hands them to each other and stops them. It must not link the benches.

mod audit;
#[expect(missing_docs, reason = "fields are the settings that deploy/stoker.toml explains")]
pub mod config;
pub mod configured;
mod drain_policy;
pub mod drives;
mod health;
mod joined;
mod keys;
mod lake;
pub mod limits;
pub mod log;
pub mod nfs;
mod notify;
mod numbers;
pub mod place;
#[expect(missing_docs, reason = "fields are named after the settings that deploy/stoker.toml explains")]
mod plan;
pub mod ports;
mod registry;
mod s3;
pub mod settings;
mod signals;
mod telemetry;
pub mod tls;
mod volume;

use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::Duration;

use stoker_access::{Guard, Peers};
use stoker_admin::{Admin, AdminOptions};
use stoker_audit::Log;
use stoker_client::{Endpoint, Server, ServerOptions};
use stoker_node::{ClusterOptions, Lost, Member, Node, NodeOptions, Promote, RebuildOptions};
use stoker_oidc::Login;
use stoker_registry::Registry;
use stoker_store::{
    ErrorKind, JOIN_TOKEN_TTL_MS_DEFAULT, NodeStatus, Order, Report, Store, StoreError, Subject,
    VolumeProtection,
};

use stoker_reflex_driver::PartGate;
use stoker_terminal::{clock, failure, journal, out, shell, size, small_file, span, sys};
use stoker_tls::Certificate;

pub use audit::{AUDIT_DIR, audit_keys};
pub use drain_policy::parse_drain;
use failure::Failure;
use health::health;
pub use joined::{FILE as JOINED, default_host, default_name, join};
pub use keys::{CREDENTIALS, Credentials, replace_credentials};
use limits::Cores;
use nfs::NfsDoor;
use notify::Notify;
use numbers::numbers;
use place::Place;
pub use plan::{FirstVolume, LakePlan, Listen, NfsPlan, PeersPlan, Plan, RegistryPlan, S3Plan};
use ports::Ports;
use s3::S3Door;
pub use signals::Hangup;
use signals::{Signals, Wish};
use stoker_telemetry::trace_parent;
pub use stoker_telemetry::{EventsPlan, KafkaPlan, TRACE, Traces, TracesPlan, Wear, check_url};
use telemetry::Telemetry;
pub use telemetry::TelemetryPlan;
use tls::Certificates;
pub use tls::TlsPlan;

/// A rebuild that is slower would never end.
const REBUILD_MIN: u64 = 1 << 20;

/// The socket that the command line looks for in a node's directory.
pub const SOCKET: &str = "stoker.sock";

/// What a node says that stops because it was removed.
const REMOVED: &str = "this node was removed from its cluster for good, and stops; to use this machine again, join as a new node with an \
                       empty directory";

/// Set by a node that starts again: whoever started it was told already.
const AGAIN: &str = "STOKER_STARTED_AGAIN";

/// How long a node that was replaced takes leave. What it acknowledged is durable, and what is under way is refused anyway.
const REPLACED_STOP_MAX: Duration = Duration::from_secs(5);

/// How long a node that joins waits for others to dial it back before it says that they cannot.
const REACHED_MAX: Duration = Duration::from_secs(10);

const ADMIN_PORT: u16 = 9001;
const PEERS_PORT: u16 = 9002;
/// How long requests that are under way may take to end after a stop was asked for.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// Threads for what is not the doors' work; the rings and the S3 door have their own.
const WORKERS_MAX: usize = 2;

/// Whether a node takes over the catalog when it starts.
#[derive(clap::Args, Clone, Copy)]
pub struct Promotion {
    /// Take over the catalog of the cluster, because the node that kept it is lost.
    #[arg(long)]
    promote_catalog: bool,
    /// With --promote-catalog: go on although acknowledged changes may be lost.
    #[arg(long, requires = "promote_catalog")]
    accept_loss: bool,
}

impl Promotion {
    /// What the command line asks for.
    pub fn wish(self) -> Option<Promote> {
        self.promote_catalog.then_some(Promote { accept_loss: self.accept_loss })
    }
}

/// What runs, for those who tell it.
pub struct Ready {
    /// Its directory.
    pub dir: PathBuf,
    /// URLs of the S3 door.
    pub s3: Vec<String>,
    /// Of S3.
    pub region: String,
    /// Addresses of the NFS door.
    pub nfs: Vec<SocketAddr>,
    /// URLs of the registry door.
    pub registry: Vec<String>,
    /// Where the admin API and the console are.
    pub admin: String,
    /// The certificate of the cluster's authority, if its ports have certificates of it.
    pub ca: Option<PathBuf>,
    /// Where clients on this machine connect.
    pub socket: PathBuf,
    /// TCP addresses of the door.
    pub door: Vec<String>,
    /// The first access key, if it was made by this start.
    pub credentials: Option<Credentials>,
    /// For operators, and for those who look.
    pub tokens: Tokens,
    /// Where other nodes join.
    pub peers: Vec<String>,
    /// What the next one needs for it, if that is to be told.
    pub join_token: Option<String>,
    /// The volume to begin with, if there is one.
    pub volume: Option<String>,
    /// The URL of the lake.
    pub lake: String,
    /// What volumes commit to, if that is to be told.
    pub protection: Vec<VolumeProtection>,
    /// Why others do not reach this node, if so.
    pub unreachable: Option<String>,
    /// Copies that a write to the volume to begin with makes now.
    pub copies: u32,
    /// Why the lake does not answer, if so.
    pub lake_trouble: Option<String>,
    /// What the node says of itself.
    pub status: NodeStatus,
    /// Cores that it uses.
    pub cores: Cores,
    /// Memory that it uses at most.
    pub memory_bytes: u64,
    /// Seconds without a change after which a file drains.
    pub drain_quiet_s: u32,
}

/// What opens the admin door; the first one opens the TCP door, too.
#[derive(Clone)]
pub struct Tokens {
    /// For operators.
    pub operator: String,
    /// For those who only look.
    pub view: String,
}

/// Starts everything in a directory, tells that it runs, and waits to be stopped.
pub fn run(
    place: &Place,
    plan: &Plan,
    gate: Arc<dyn PartGate>,
    tell: impl FnOnce(&Ready) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    // Before any thread starts, so that all of them keep to it.
    let cores = limits::keep_to(plan.cores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.count.clamp(1, WORKERS_MAX))
        .thread_name("stoker-worker")
        .enable_all()
        .build()
        .map_err(|e| Failure::io("runtime", &e))?;
    let done = runtime.block_on(serve(place, plan, cores, gate, tell));
    // Tasks that ignore the stop must not keep the process; everything that counts is durable.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match done? {
        Ended::Asked => Ok(ExitCode::SUCCESS),
        Ended::Lost(Lost::Duplicate) => Err(Failure::new(
            "another process runs as this node and took over; this one stops, and what it acknowledged is durable",
        )
        .hint("a copy of a node's directory is not another node: remove one of them, and join with a new directory")),
        Ended::Lost(Lost::Removed) => {
            out::say(REMOVED);
            Ok(ExitCode::SUCCESS)
        }
        Ended::Lost(Lost::Replaced(why)) => {
            out::say(format!("this node starts again: {why}"));
            Err(start_again())
        }
    }
}

/// Becomes the same program again, as the same process for whoever watches it; comes back only if that fails.
fn start_again() -> Failure {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::io("this program", &error),
    };
    let mut command = std::process::Command::new(program);
    command.args(std::env::args_os().skip(1)).env(AGAIN, "1");
    Failure::io("starting again", &command.exec())
}

fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

async fn serve(
    place: &Place,
    plan: &Plan,
    cores: Cores,
    gate: Arc<dyn PartGate>,
    tell: impl FnOnce(&Ready) -> Result<(), Failure>,
) -> Result<Ended, Failure> {
    let mut signals = Signals::listen(plan.hangup)?;
    let notify = Arc::new(Notify::from_env());
    notify.starting();
    notify.keep_alive(is_again());
    let started = tokio::select! {
        started = Daemon::start(place, plan, &cores, gate) => started?,
        wish = stop_wish(&mut signals) => {
            out::say(format!("{wish}: stopped before everything ran"));
            return Ok(Ended::Asked);
        }
    };
    let (daemon, ready) = started;
    let told = if is_again() { Ok(()) } else { tell(&ready) };
    let doors = format!("S3 at {}, console at {}", ready.s3.join(" "), ready.admin);
    notify.ready(&doors, health(daemon.member.node()));
    let ended = match told.is_ok() && !plan.check_only {
        true => daemon.watch(&mut signals, &plan.peers.name).await,
        false => Ended::Asked,
    };
    let patience = match ended {
        Ended::Asked => Duration::MAX,
        Ended::Lost(_) => REPLACED_STOP_MAX,
    };
    // One that starts again is the same service.
    if let Ended::Asked = ended {
        notify.stopping();
    }
    tokio::select! {
        _ = tokio::time::timeout(patience, daemon.stop()) => {
            if matches!(ended, Ended::Asked) && told.is_ok() && !plan.check_only {
                out::say(format!("{} stopped", plan.peers.name));
            }
        }
        wish = stop_wish(&mut signals) => {
            out::say(format!("{wish} again: stopped at once; the next start recovers"));
            return told.map(|()| Ended::Asked);
        }
    }
    told.map(|()| ended)
}

/// Why a node stops.
enum Ended {
    /// Somebody asked for it.
    Asked,
    /// Its boot is over.
    Lost(Lost),
}

/// Waits for a signal that means to stop; its name.
async fn stop_wish(signals: &mut Signals) -> &'static str {
    loop {
        if let Wish::Stop(name) = signals.next().await {
            return name;
        }
    }
}

/// The parts, in the order in which they are stopped.
struct Daemon {
    s3: Option<Arc<S3Door>>,
    nfs: Option<Arc<NfsDoor>>,
    registry: Option<Arc<Registry>>,
    door: Server,
    admin: Admin,
    /// Of the admin and client ports.
    certificates: Vec<(&'static str, Arc<Certificate>)>,
    telemetry: Telemetry,
    member: Arc<Member>,
    log: Option<Arc<Log>>,
}

/// What the doors are given.
struct Given {
    tokens: Tokens,
    lake_trouble: Option<String>,
    gate: Arc<dyn PartGate>,
}

impl Daemon {
    async fn start(
        place: &Place,
        plan: &Plan,
        cores: &Cores,
        gate: Arc<dyn PartGate>,
    ) -> Result<(Daemon, Ready), Failure> {
        let tokens = Tokens {
            operator: keys::token(place, plan.token_file.as_deref())?,
            view: keys::view_token(place, plan.view_token_file.as_deref())?,
        };
        if tokens.operator == tokens.view {
            return Err(Failure::new("operators and those who look have the same token")
                .hint("choose another word for one of them"));
        }
        if plan.is_witness() && !stoker_node::is_node(place.dir()) {
            return Err(Failure::new(format!("{} is no witness yet", place.dir().display())).hint(
                "a witness joins a cluster: `stoker join-token create` on one of its nodes, then `stoker join HOST:PORT --config FILE` here",
            ));
        }
        let lake_trouble = match plan.is_witness() {
            true => None,
            false => ask_lake(&plan.lake).await?,
        };
        let mut ports = Ports::read(place)?;
        let promote = plan.promote.filter(|_| !is_again());
        let member = start_member(place, plan, promote, &mut ports).await?;
        // What is said from here on names nodes.
        log::set_names(member.node().names());
        let given = Given { tokens, lake_trouble, gate };
        let started = Daemon::start_doors(place, plan, cores.clone(), given, &member, ports).await;
        if started.is_err() {
            member.stop().await;
        }
        started
    }

    /// Everything behind an open node.
    async fn start_doors(
        place: &Place,
        plan: &Plan,
        cores: Cores,
        Given { tokens, lake_trouble, gate }: Given,
        member: &Arc<Member>,
        mut ports: Ports,
    ) -> Result<(Daemon, Ready), Failure> {
        let store: Arc<dyn Store> = Arc::clone(member.node()) as Arc<dyn Store>;
        let (guard, log) = audit::guard(place, &plan.audit, member, &store)?;
        let credentials = keys::credentials(place, store.as_ref(), plan.first_volume.is_some()).await?;
        let volume = volume::first(&store, plan.first_volume.as_ref()).await?;
        let socket = place.dir().join(SOCKET);
        let certificates = Certificates::of(place, plan, member)?;
        let door = start_door(&guard, &socket, plan, &tokens.operator, certificates.door.clone())?;
        let s3 = S3Door::start(&guard, &plan.issuers, &plan.s3, certificates.s3, &cores, &mut ports).await?;
        let s3 = s3.map(Arc::new);
        let status = store.status().await.map_err(refused)?;
        let nfs = NfsDoor::start(member.node(), &guard, &plan.nfs, &status.node, plan.memory_bytes)
            .await?
            .map(Arc::new);
        let registry = registry::start(&store, &guard, &plan.registry).await?.map(Arc::new);
        let mut telemetry =
            Telemetry::start(place, &plan.telemetry, member.node(), &plan.peers.name, &status, gate)?;
        let options = AdminOptions {
            view_tokens: vec![tokens.view.clone()],
            logins: plan.issuers.all().iter().filter_map(Login::of).collect(),
            metrics_open: plan.metrics_open,
            first_line: volume.as_ref().map(|volume| first_line(place.dir(), volume)),
            extra: numbers(&door, s3.clone(), nfs.clone(), registry.clone(), log.as_ref()),
            aside: telemetry.sources(),
            events: Some(telemetry.events()),
            keep_point: Some(telemetry.point_sink()),
            health: Some(health(member.node())),
            tls: certificates.admin.clone(),
            ..AdminOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), tokens.operator.clone())
        };
        let admin = start_admin(&guard, plan, options, &mut ports).await?;
        ports.write(place)?;
        // Whoever joins wants to know whether that helped.
        let unreachable = match plan.tells_protection {
            true => member.node().members().until_reached(REACHED_MAX).await.map(|one| one.to_string()),
            false => None,
        };
        let protection = match store.operate(Order::Protection).await.map_err(refused)? {
            Report::Protection(protection) => protection,
            _ => Vec::new(),
        };
        let of_volume = protection.iter().find(|one| Some(&one.volume) == volume.as_ref());
        let copies = of_volume.or(protection.first()).map_or(1, |one| one.copies);
        let protection = if plan.tells_protection { protection } else { Vec::new() };
        tokio::spawn(keep_known(Arc::downgrade(member.node())));
        let ready = Ready {
            dir: place.dir().to_path_buf(),
            s3: s3.as_ref().map_or_else(Vec::new, |s3| s3.urls()),
            region: plan.s3.region.clone(),
            nfs: nfs.as_ref().map_or_else(Vec::new, |nfs| nfs.addresses()),
            registry: registry.as_ref().map_or_else(Vec::new, |registry| registry::urls(registry)),
            admin: match certificates.admin {
                None => format!("http://{}", admin.address()),
                Some(_) => format!("https://{}", admin.address()),
            },
            ca: certificates.is_own.then(|| place.dir().join(tls::CA)),
            socket,
            door: door
                .addresses()
                .iter()
                .filter(|at| !matches!(at, Endpoint::Unix(_)))
                .map(|at| at.to_string())
                .collect(),
            credentials,
            tokens,
            peers: member.addresses().iter().map(|address| address.to_string()).collect(),
            join_token: if plan.makes_join_token { join_token(member).await } else { None },
            volume,
            lake: plan.lake.url.clone(),
            protection,
            unreachable,
            copies,
            lake_trouble,
            status,
            cores,
            memory_bytes: plan.memory_bytes,
            drain_quiet_s: plan.volume_defaults.drain_quiet_s,
        };
        let both = [("admin", certificates.admin), ("client", certificates.door)];
        let certificates = both.into_iter().filter_map(|(name, one)| Some((name, one?))).collect();
        let member = Arc::clone(member);
        Ok((Daemon { s3, nfs, registry, door, admin, certificates, telemetry, member, log }, ready))
    }

    /// Waits until a stop is asked for, or called for.
    async fn watch(&self, signals: &mut Signals, node: &str) -> Ended {
        loop {
            let wish = tokio::select! {
                wish = signals.next() => wish,
                lost = self.member.lost() => return Ended::Lost(lost),
            };
            match wish {
                Wish::Stop(name) => {
                    let seconds = STOP_GRACE.as_secs();
                    out::say(format!("{name}: stopping {node}; requests under way have {seconds} s"));
                    return Ended::Asked;
                }
                Wish::Reload => {
                    if let Some(s3) = &self.s3 {
                        s3.reload();
                    }
                    for (name, certificate) in &self.certificates {
                        if let Err(error) = certificate.reload() {
                            tracing::error!(
                                "the certificate of the {name} port cannot be read again, the old one stays: {error}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Takes no more requests, finishes those under way, stops the node. What was acknowledged is durable already.
    async fn stop(self) {
        self.admin.set_stopping();
        self.telemetry.stopping();
        let s3 = async {
            if let Some(s3) = &self.s3 {
                s3.stop(STOP_GRACE).await;
            }
        };
        let nfs = async {
            if let Some(nfs) = &self.nfs {
                nfs.stop(STOP_GRACE).await;
            }
        };
        let registry = async {
            if let Some(registry) = &self.registry {
                registry.stop(STOP_GRACE).await;
            }
        };
        tokio::join!(s3, nfs, registry, self.door.stop(STOP_GRACE));
        // While the node is there: it says what was written to its drives.
        self.telemetry.stop().await;
        self.member.stop().await;
        self.admin.stop(Duration::from_secs(1)).await;
        if let Some(log) = self.log {
            log.stop();
        }
    }
}

fn node_options(place: &Place, plan: &Plan) -> NodeOptions {
    NodeOptions {
        drives: plan.drives.clone(),
        new_drives: plan.new_drives.clone(),
        // A witness tells the next node what the lake of the cluster is, if it knows.
        lake: Some(plan.lake.url.clone()).filter(|_| !(plan.is_witness() && plan.lake.is_own)),
        lake_options: plan.lake.options.clone(),
        lake_prices: plan.lake.prices,
        catalog: plan.catalog.clone(),
        volume_defaults: plan.volume_defaults.clone(),
        memory_bytes: plan.memory_bytes,
        drain_concurrency: plan.drains_max,
        drain_sparse_bytes_max: plan.sparse_bytes_max,
        lifecycle_day_ms: plan.s3.lifecycle_day_ms,
        key_files: plan.key_files.clone(),
        rebuild: RebuildOptions {
            bytes_per_s_max: plan.peers.rebuild_bytes_per_s.max(REBUILD_MIN),
            ..RebuildOptions::for_cores(plan.cores)
        },
        ..NodeOptions::new(place.dir())
    }
}

/// A token for the next node. Without one there is only no line that says how to add a node.
async fn join_token(member: &Member) -> Option<String> {
    match member.node().members().join_token_create(JOIN_TOKEN_TTL_MS_DEFAULT, 1).await {
        Ok((token, _)) => Some(token),
        Err(fault) => {
            tracing::warn!("no join token was made: {}", fault.message);
            None
        }
    }
}

/// Opens the node, at the first address for its peers that is free.
async fn start_member(
    place: &Place,
    plan: &Plan,
    promote: Option<Promote>,
    ports: &mut Ports,
) -> Result<Arc<Member>, Failure> {
    let (candidates, is_kept) = match &plan.peers.listen {
        Listen::Kept => {
            let one_each = |address| vec![address];
            let host = default_host(place.dir())?;
            let all = ports::candidates_on(host, "peers", ports.peers, PEERS_PORT);
            (all.into_iter().map(one_each).collect(), true)
        }
        // Any port, but the same one after a restart: nodes that all start at the same time look for each other where they were.
        Listen::At(addresses) if addresses.len() == 1 && addresses[0].port() == 0 => {
            let kept = ports.peers.map(|port| vec![SocketAddr::new(addresses[0].ip(), port)]);
            (kept.into_iter().chain([addresses.clone()]).collect(), true)
        }
        Listen::At(addresses) => (vec![addresses.clone()], false),
    };
    let mut failed = Failure::new("there is no address for peers");
    for listen in candidates {
        let options = ClusterOptions {
            node: node_options(place, plan),
            name: plan.peers.name.clone(),
            listen,
            gossip: Vec::new(),
            labels: plan.peers.labels.clone(),
            weight: plan.peers.weight,
            plaintext: plan.peers.plaintext,
            grace: plan.peers.grace,
            promote,
        };
        match Member::start(options).await {
            Ok(member) => {
                if is_kept {
                    ports.peers = member.addresses().first().map(|address| address.port());
                }
                return Ok(member);
            }
            Err(fault) if fault.subject == Subject::PeerAddress => {
                failed = refused(fault).hint(
                    "no other node can find this one without it; choose an address of this machine with --peers, such as 10.0.0.5:9002",
                );
            }
            // Those who keep the catalog let go of it first, so that it started again before it heard why.
            Err(fault) if is_again() && (fault.kind, fault.subject) == (ErrorKind::Denied, Subject::Node) => {
                return Err(Failure::Over(REMOVED.to_owned()));
            }
            Err(fault) => return Err(refused(fault)),
        }
    }
    Err(failed)
}

/// What is wrong with the lake, if something is that may pass.
async fn ask_lake(plan: &LakePlan) -> Result<Option<String>, Failure> {
    let mut options = plan.options.clone();
    options.create_root |= plan.is_own;
    match lake::ask(&plan.url, &options).await? {
        lake::Answer::Fine => Ok(None),
        lake::Answer::Silent(why) => {
            out::say(format!("the lake {} does not answer: {why}", plan.url));
            out::say("  writes are taken and kept on the drives here; they drain when it answers again");
            Ok(Some(why))
        }
    }
}

/// Keeps what is said of the cluster at hand for when the catalog does not answer: what nodes are called, for the log, and what is at
/// risk. Ends with the node.
async fn keep_known(node: Weak<Node>) {
    for round in 0u64.. {
        let Some(node) = node.upgrade() else { return };
        log::set_names(node.names());
        if round.is_multiple_of(RISK_ROUNDS) {
            // What goes wrong is told to whoever asks.
            let _ = tokio::join!(node.status(), node.operate(Order::Risk), node.operate(Order::Nodes));
        }
        drop(node);
        tokio::time::sleep(KNOWN_EVERY).await;
    }
}

fn start_door(
    guard: &Guard,
    socket: &Path,
    plan: &Plan,
    token: &str,
    certificate: Option<Arc<Certificate>>,
) -> Result<Server, Failure> {
    let tcp = plan.door.iter().map(|address| Endpoint::Tcp(address.to_string()));
    let listen: Vec<Endpoint> = std::iter::once(Endpoint::Unix(socket.to_path_buf())).chain(tcp).collect();
    let options = ServerOptions {
        read_bytes_max: (plan.memory_bytes / 32).min(256 << 20) as usize,
        certificate,
        peers: Peers { users: plan.users.clone() },
        ..ServerOptions::default()
    };
    Server::start(guard.clone(), listen, Some(token.into()), options)
        .map_err(|error| cannot_listen("door", &error))
}

/// How often names are looked up, and after how many of these rounds what is at risk is: that reads what the lake lacks, of all nodes.
const KNOWN_EVERY: Duration = Duration::from_secs(2);
const RISK_ROUNDS: u64 = 15;

/// What a person types to put a first file into a node of this machine.
fn first_line(dir: &Path, volume: &str) -> String {
    let dir = shell::quoted(&dir.display().to_string());
    format!("echo hello > hello.txt && {} put hello.txt {volume}/hello.txt --dir {dir}", shell::program())
}

async fn start_admin(
    guard: &Guard,
    plan: &Plan,
    options: AdminOptions,
    ports: &mut Ports,
) -> Result<Admin, Failure> {
    let (candidates, is_kept) = match &plan.admin {
        Listen::Kept => (ports::candidates("admin", ports.admin, ADMIN_PORT), true),
        Listen::At(addresses) => (addresses.clone(), false),
    };
    match Admin::start_at(guard, options, &candidates).await {
        Ok(admin) => {
            if is_kept {
                ports.admin = Some(admin.address().port());
            }
            Ok(admin)
        }
        Err(error) => Err(cannot_listen("admin", &error)),
    }
}

/// The words of the node when it refuses to start; they say what to do.
fn refused(error: StoreError) -> Failure {
    Failure::new(error.message)
}

/// The words for a door that cannot be opened; the error names the address or the file.
fn cannot_listen(what: &str, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("{what}: {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => failure
            .hint(format!("another program listens there; stop it, or choose another address for {what}")),
        io::ErrorKind::AddrNotAvailable => failure.hint("no network card of this machine has that address"),
        io::ErrorKind::PermissionDenied => failure.hint("check who may use that port or file"),
        _ => failure,
    }
}
