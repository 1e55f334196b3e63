//! `stoker witness`: a node without drives that votes on the names of a cluster. Of two nodes with drives either may be lost then, and
//! names go on. (D195)

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stoker_node::{JoinAs, Labels};

use crate::daemon::place::Place;
use crate::daemon::{self, Listen, NfsPlan, PeersPlan, Plan, Ready, S3Plan, Traces, TracesPlan};
use crate::failure::Failure;
use crate::up::settings::{self, Effective, Setting, Values, labels_text, parse_labels};
use crate::{join, log, out, shell, size, span, sys, up};
use stoker_gate::part::PartsOfNode;

/// Memory that is enough for whoever holds no bytes.
const MEMORY: u64 = 512 << 20;

/// Arguments of `witness`.
#[derive(clap::Args)]
pub struct Args {
    /// Where a node of the cluster listens for others: HOST:PORT, as its `up` prints it; needed the first time.
    #[arg(value_name = "HOST:PORT")]
    address: Option<String>,
    /// File with a join token, - for stdin; by default the token is in STOKER_JOIN_TOKEN. `stoker join-token create` makes one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where its copy of the names is kept. No fast drive is needed; a gibibyte for ten million files.
    #[arg(long, value_name = "PATH", env = "STOKER_DIR", default_value = up::Args::DIR)]
    dir: PathBuf,
    /// What people call it; by default the name of the machine.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Address for other nodes; by default that of this machine by which it joined, port 9002 or a free one that is kept.
    #[arg(long, value_name = "ADDR")]
    peers: Option<SocketAddr>,
    /// Address for the console, the admin API, health and metrics; by default 127.0.0.1:9001, or a free port that is kept.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Where it stands: cell=NAME,tor=SWITCH,power=FEED; best apart from both others.
    #[arg(long, value_name = "LABELS", value_parser = parse_labels)]
    domain: Option<Labels>,
    /// How long a node may be silent before it is declared down; by default 30s.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    grace: Option<Duration>,
    /// Memory to use at most; by default 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// What to log on stderr.
    #[arg(long, alias = "log-level", value_name = "LEVEL", env = "STOKER_LOG", default_value = "warn")]
    log: log::Level,
    /// Print one line of JSON when ready: peers, admin, token, dir, socket, pid, id.
    #[arg(long)]
    json: bool,
    /// Start everything, say what is there, and stop.
    #[arg(long)]
    check: bool,
}

impl Args {
    fn flags(&self) -> Result<Values, Failure> {
        let mut flags = Values::default();
        let given = [
            (Setting::Name, self.name.clone()),
            (Setting::Domain, self.domain.as_ref().map(labels_text).filter(|text| !text.is_empty())),
            (Setting::Memory, self.memory.map(size::exact)),
            (Setting::Admin, self.admin.map(|address| address.to_string())),
            (Setting::Peers, self.peers.map(|address| address.to_string())),
            (Setting::Grace, self.grace.map(span::exact)),
        ];
        for (setting, text) in given {
            let texts: Vec<String> = text.into_iter().collect();
            flags
                .set(setting, &texts)
                .map_err(|wrong| Failure::new(format!("--{}: {wrong}", setting.name())))?;
        }
        Ok(flags)
    }
}

/// Joins, unless the directory is a member already, and votes until it is stopped.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let traces = Traces::open(&TracesPlan::default())?;
    log::start(args.log, log::Format::Text, traces.as_ref());
    let place = Place::take(&args.dir)?;
    let file = settings::file::read(place.dir())?;
    let mut settings = Effective::of(&args.flags()?, &Values::of_environment()?, &file);
    let peers: Option<SocketAddr> = settings.values.parsed(Setting::Peers);
    up::check_peers(peers)?;
    match &args.address {
        Some(address) => {
            let name = settings.values.one(Setting::Name).map(str::to_owned);
            let wanted =
                JoinAs { is_name_chosen: name.is_some(), name: name.unwrap_or_else(sys::host_name), peers };
            let token = join::token(args.token_file.as_deref())?;
            if let Some(lake) = daemon::join(&place, address, token.as_deref(), &wanted)? {
                settings.take_lake_of_cluster(&lake)?;
            }
        }
        None if !stoker_node::is_node(place.dir()) => {
            return Err(Failure::new(format!("{} is no witness yet", place.dir().display())).hint(
                "join a cluster: `stoker join-token create` on one of its nodes, then `STOKER_JOIN_TOKEN=... stoker witness HOST:PORT` here",
            ));
        }
        None => {}
    }
    if let Some(summary) = settings.summary(place.dir()) {
        out::say(summary);
    }
    let mut plan = plan(&place, &settings.values, args.check)?;
    plan.telemetry.traces = traces;
    daemon::run(&place, &plan, Arc::new(PartsOfNode), |ready| {
        settings::file::write(place.dir(), &settings.values)?;
        if args.json { tell_json(ready) } else { tell(ready, &plan.peers.name, args.check) }
    })
}

/// No drives, and no doors for files.
fn plan(place: &Place, settings: &Values, check_only: bool) -> Result<Plan, Failure> {
    let plan = up::plan(place.dir(), settings)?;
    Ok(Plan {
        memory_bytes: settings.bytes(Setting::Memory).unwrap_or(MEMORY),
        first_volume: None,
        s3: S3Plan { listen: Listen::At(Vec::new()), ..plan.s3 },
        nfs: NfsPlan { listen: Vec::new(), exports: Vec::new() },
        registry: Default::default(),
        peers: PeersPlan { weight: 0, ..plan.peers },
        makes_join_token: false,
        check_only,
        ..plan
    })
}

fn tell_json(ready: &Ready) -> Result<(), Failure> {
    out::json(&json!({
        "peers": ready.peers.first(),
        "admin": ready.admin,
        "token": ready.tokens.operator,
        "dir": ready.dir.display().to_string(),
        "socket": ready.socket.display().to_string(),
        "pid": std::process::id(),
        "id": ready.status.node,
    }))
}

fn tell(ready: &Ready, name: &str, is_check: bool) -> Result<(), Failure> {
    let dir = shell::quoted(&ready.dir.display().to_string());
    out::fields(&[
        (
            "witness",
            format!("{name}, of cluster {}: it votes on names, and holds no files", ready.status.cluster),
        ),
        ("peers", ready.peers.join(" ")),
        ("console", format!("{}/  log in with {}", ready.admin, ready.tokens.operator)),
        ("next time", format!("{} witness --dir {dir}", shell::program())),
    ])?;
    for words in &ready.status.words {
        out::say(words);
    }
    out::say(if is_check { "\neverything starts; stopped again" } else { "\nready; stop with Ctrl-C" });
    Ok(())
}
