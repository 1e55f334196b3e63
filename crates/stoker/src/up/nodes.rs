//! `stoker up --nodes N`: several real nodes on one machine, each a process with its own directory, ports and drive.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use stoker_node::DriveOptions;

use super::settings::{self, Effective, Origin, Setting, Values};
use super::{Args, limits};
use crate::daemon::place::check_directory;
use crate::failure::Failure;
use crate::join::TOKEN_VARIABLE;
use crate::sys::StopSignals;
use crate::{out, shell, show, size, sys};

/// Most nodes on one machine.
const NODES_MAX: usize = 16;

/// The lake of all of them, if nobody says otherwise.
const LAKE: &str = "lake";

/// Settings that are for one node.
const SINGLE: [Setting; 9] = [
    Setting::Name,
    Setting::Domain,
    Setting::Drive,
    Setting::S3,
    Setting::Nfs,
    Setting::NfsExport,
    Setting::Registry,
    Setting::Admin,
    Setting::Peers,
];

/// Several nodes in one directory.
pub struct Cell {
    dir: PathBuf,
    settings: Effective,
    count: usize,
    cells: usize,
    /// Nodes that were started and not waited for.
    running: Arc<Running>,
}

/// A node that is ready.
struct Node {
    name: String,
    child: Child,
    ready: Value,
}

/// Processes that a signal is for. A number is in here only as long as nobody waited for its process, so that it cannot be
/// another's.
#[derive(Default)]
struct Running(Mutex<Signalled>);

#[derive(Default)]
struct Signalled {
    /// How often a stop was asked for.
    asked: usize,
    pids: BTreeSet<u32>,
}

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, Signalled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, which is stopped at once if that was asked for meanwhile.
    fn add(&self, pid: u32) {
        let mut all = self.lock();
        all.pids.insert(pid);
        all.signal_each();
    }

    fn is_stopping(&self) -> bool {
        self.lock().asked > 0
    }

    /// The first time asks each of them to stop, the next time leaves them no choice.
    fn stop(&self, signal: &str) {
        let mut all = self.lock();
        all.asked += 1;
        match (all.asked, all.pids.len()) {
            (_, 0) => {}
            (1, count) => {
                let nodes = show::count(count as u64, "node");
                out::say(format!("{signal}: stopping {nodes}; once more stops them at once"));
            }
            (_, count) => {
                out::say(format!(
                    "{signal} again: {} killed; the next start recovers",
                    show::count(count as u64, "node")
                ));
            }
        }
        all.signal_each();
    }

    /// Waits for the end of a process and forgets its number before another can have it.
    fn wait(&self, child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
        let seen = sys::wait_until_ended(child.id());
        self.lock().pids.remove(&child.id());
        seen?;
        child.wait()
    }
}

impl Signalled {
    fn signal_each(&self) {
        for pid in &self.pids {
            match self.asked {
                0 => {}
                1 => sys::terminate(*pid),
                _ => sys::kill(*pid),
            }
        }
    }
}

impl Cell {
    /// The nodes that are asked for, or that were in this directory before; none for a single node.
    pub fn of(args: &Args) -> Result<Option<Cell>, Failure> {
        let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(args.dir.display(), &e))?;
        check_directory(&dir)?;
        let flags = args.flags()?;
        let is_single = stoker_node::is_node(&dir);
        let file = if is_single { Values::default() } else { settings::file::read(&dir)? };
        let settings = Effective::of(&flags, &Values::of_environment()?, &file);
        let found = || (1..=NODES_MAX).rev().find(|at| is_member(&dir, *at)).filter(|_| !is_single);
        let asked: Option<usize> = settings.values.parsed(Setting::Nodes);
        let cells = settings.values.parsed(Setting::Cells).unwrap_or(1);
        match asked.or_else(found) {
            None if flags.has(Setting::Cells) => {
                Err(Failure::new("--cells divides several nodes").hint("add --nodes N"))
            }
            None | Some(1) => Ok(None),
            Some(count) if cells > count => {
                Err(Failure::new(format!("{count} nodes cannot be {cells} cells")))
            }
            Some(count) if count > NODES_MAX => {
                Err(Failure::new(format!("at most {NODES_MAX} nodes run on one machine")))
            }
            Some(_) if is_single => {
                Err(Failure::new(format!("{} is the directory of a single node", dir.display()))
                    .hint("choose another --dir for several; `stoker join` adds nodes to this one"))
            }
            Some(count) => {
                if args.check {
                    return Err(Failure::new(format!(
                        "{} holds {count} nodes, and --check is for one",
                        dir.display()
                    ))
                    .hint(format!("name one of them: --dir {}", node_dir(&dir, 1).display())));
                }
                if let Some(single) = SINGLE.into_iter().find(|single| flags.has(*single)) {
                    return Err(Failure::new(format!(
                        "--{} is for one node, and these are {count}",
                        single.name()
                    ))
                    .hint(format!(
                        "change one of them alone: `stoker up --dir {}`",
                        node_dir(&dir, 1).display()
                    )));
                }
                Ok(Some(Cell { dir, settings, count, cells, running: Arc::default() }))
            }
        }
    }

    /// Starts them, tells where they are, and stops them when asked to.
    pub fn run(&self, args: &Args) -> Result<ExitCode, Failure> {
        // Before any thread starts, so that all of them leave the signals to us.
        let signals = StopSignals::hold();
        if !self.settings.values.has(Setting::Lake) {
            let lake = self.dir.join(LAKE);
            std::fs::create_dir_all(&lake).map_err(|e| Failure::io(lake.display(), &e))?;
        }
        if let Some(summary) = self.settings.summary(&self.dir) {
            out::say(summary);
        }
        let running = Arc::clone(&self.running);
        // It ends with the process.
        std::thread::spawn(move || {
            loop {
                running.stop(StopSignals::name(signals.wait()));
            }
        });
        let nodes = match self.start_all(args) {
            Ok(nodes) => nodes,
            Err(_) if self.running.is_stopping() => {
                out::say("stopped before everything ran");
                return Ok(ExitCode::SUCCESS);
            }
            Err(failure) => return Err(failure),
        };
        let mut kept = self.settings.values.clone();
        kept.set(Setting::Nodes, &[self.count.to_string()]).map_err(Failure::new)?;
        settings::file::write(&self.dir, &kept)?;
        self.tell(args, &nodes)?;
        let watch = |node: Node| {
            let running = Arc::clone(&self.running);
            std::thread::spawn(move || watch(node, &running))
        };
        let watchers: Vec<JoinHandle<bool>> = nodes.into_iter().map(watch).collect();
        // Each of them, and not only until the first that went badly.
        let ended: Vec<bool> = watchers.into_iter().map(|watcher| watcher.join().unwrap_or(false)).collect();
        let again =
            format!("`{} up --dir {}`", shell::program(), shell::quoted(&self.dir.display().to_string()));
        out::say(format!("all {} nodes have stopped; {again} brings them back", self.count));
        let is_well = self.running.is_stopping() || ended.into_iter().all(|is_well| is_well);
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Nodes that are members wait for each other, since the catalog is with some of them: they start at the same time. New ones
    /// join the first, one after the other.
    fn start_all(&self, args: &Args) -> Result<Vec<Node>, Failure> {
        let members = (1..=self.count).filter(|at| is_member(&self.dir, *at));
        let spawned: Vec<(usize, Result<Spawned, Failure>)> =
            members.map(|at| (at, self.spawn(args, at, None))).collect();
        let mut nodes: Vec<(usize, Node)> = Vec::new();
        let mut failed = None;
        for (at, spawned) in spawned {
            match spawned.and_then(|node| self.until_ready(node)) {
                Ok(node) => nodes.push((at, node)),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        for at in 1..=self.count {
            if failed.is_some() || nodes.iter().any(|(other, _)| *other == at) {
                continue;
            }
            // A token is for one node, and every node that starts prints one: the last one's was not used yet.
            let last = nodes.last().map(|(_, node)| &node.ready);
            match self.spawn(args, at, last).and_then(|node| self.until_ready(node)) {
                Ok(node) => nodes.push((at, node)),
                Err(fault) => failed = Some(fault),
            }
        }
        nodes.sort_by_key(|(at, _)| *at);
        let nodes = nodes.into_iter().map(|(_, node)| node);
        match failed {
            None => Ok(nodes.collect()),
            Some(fault) => {
                for mut node in nodes {
                    sys::terminate(node.child.id());
                    let _ = self.running.wait(&mut node.child);
                }
                Err(fault)
            }
        }
    }

    /// Where a node stands: each has a switch and a feed of its own, neighbours share a cell.
    fn labels(&self, at: usize) -> Vec<(&'static str, String)> {
        let mut labels = vec![("tor", format!("tor-{at}")), ("power", format!("power-{at}"))];
        if self.cells > 1 {
            labels.push(("cell", format!("cell-{}", (at - 1) * self.cells / self.count + 1)));
        }
        labels
    }

    /// What one of them is told, of what it does not know from its last start. What is said now counts for each.
    fn told(&self, at: usize) -> Result<Vec<(Setting, String)>, Failure> {
        let kept = settings::file::read(&node_dir(&self.dir, at))?;
        let ours = &self.settings.values;
        let labels = self.labels(at).into_iter().map(|(name, label)| format!("{name}={label}"));
        let memory = limits::memory(ours.bytes(Setting::Memory))? / self.count as u64;
        let lake =
            ours.one(Setting::Lake).map_or_else(|| self.dir.join(LAKE).display().to_string(), str::to_owned);
        let mut all = vec![
            (Setting::Name, format!("node-{at}")),
            (Setting::Domain, labels.collect::<Vec<_>>().join(",")),
            (Setting::Lake, lake),
            // A port of its own, and the same one after a restart: at the usual one another cell of this machine may be by
            // then, and the others would look for this node there.
            (Setting::Peers, "127.0.0.1:0".to_owned()),
            (Setting::Memory, size::exact(memory)),
        ];
        for setting in [
            Setting::LakeMode,
            Setting::Size,
            Setting::Cores,
            Setting::Grace,
            Setting::Tls,
            Setting::TlsCert,
            Setting::TlsKey,
        ] {
            all.extend(ours.one(setting).map(|text| (setting, text.to_owned())));
        }
        all.extend(ours.all(Setting::TlsName).iter().map(|name| (Setting::TlsName, name.clone())));
        // Their rings are on one file system, unless they are there already.
        if ours.one(Setting::Size).is_none() {
            let ring = DriveOptions::sized_among(node_dir(&self.dir, at).join("ring"), None, self.count)?;
            all.extend(ring.size_bytes.map(|size| (Setting::Size, size::exact(size))));
        }
        let is_said = |setting| matches!(self.settings.origin(setting), Origin::Flag | Origin::Variable);
        let is_labelled_anew = |setting| setting == Setting::Domain && is_said(Setting::Cells);
        all.retain(|(setting, _)| !kept.has(*setting) || is_said(*setting) || is_labelled_anew(*setting));
        Ok(all)
    }

    fn spawn(&self, args: &Args, at: usize, last: Option<&Value>) -> Result<Spawned, Failure> {
        let name = format!("node-{at}");
        let program = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
        let mut command = Command::new(program);
        match last.and_then(|ready| Some((ready["peers"].as_str()?, ready["join_token"].as_str()?))) {
            Some((peers, token)) => command.args(["join", peers]).env(TOKEN_VARIABLE, token),
            None => command.arg("up"),
        };
        command.args(["--json", "--log", args.log.as_str()]).arg("--dir").arg(node_dir(&self.dir, at));
        for (setting, text) in self.told(at)? {
            command.arg(format!("--{}", setting.name())).arg(text);
        }
        // They are told by us.
        Setting::ALL.iter().for_each(|setting| _ = command.env_remove(setting.variable()));
        command.env_remove("STOKER_DIR").stdin(Stdio::null()).stdout(Stdio::piped());
        // Keys that a terminal turns into signals are for us, who pass them on: two would be a hard stop.
        command.process_group(0);
        sys::stop_with_parent(&mut command);
        let child = command.spawn().map_err(|e| Failure::io(&name, &e))?;
        self.running.add(child.id());
        Ok(Spawned { name, child })
    }

    fn until_ready(&self, node: Spawned) -> Result<Node, Failure> {
        let Spawned { name, mut child } = node;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line).map_err(|e| Failure::io(&name, &e))?;
        }
        match serde_json::from_str::<Value>(&line) {
            Ok(ready) => Ok(Node { name, child, ready }),
            Err(_) => {
                sys::terminate(child.id());
                let _ = self.running.wait(&mut child);
                Err(Failure::new(format!("{name} does not start; what it says is above")))
            }
        }
    }

    fn tell(&self, args: &Args, nodes: &[Node]) -> Result<(), Failure> {
        let entry = |(at, node): (usize, &Node)| {
            let mut ready = node.ready.clone();
            ready["name"] = json!(node.name);
            ready["pid"] = json!(node.child.id());
            ready["domain"] = self
                .labels(at + 1)
                .into_iter()
                .map(|(name, label)| (name.to_owned(), json!(label)))
                .collect();
            ready
        };
        let all: Vec<Value> = nodes.iter().enumerate().map(entry).collect();
        if args.json {
            return out::json(&json!(all));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for node in &all {
            out::line(format!(
                "{}  s3 {}  admin {}  pid {}  {}",
                text(&node["name"]),
                text(&node["s3"]),
                text(&node["admin"]),
                node["pid"],
                text(&node["dir"])
            ))?;
        }
        let keys = &all[0];
        out::line(format!(
            "\nevery file is on two nodes before it is acknowledged; any node serves all of them:\n  export AWS_ACCESS_KEY_ID={} \
             AWS_SECRET_ACCESS_KEY={} AWS_DEFAULT_REGION={}\n  aws --endpoint-url {} s3 ls s3://{}/",
            text(&keys["access_key"]),
            text(&keys["secret_key"]),
            text(&keys["region"]),
            text(&all[all.len() - 1]["s3"]),
            text(&keys["volume"]),
        ))?;
        if let Some(ca) = keys["ca"].as_str() {
            out::line(format!("trust: export AWS_CA_BUNDLE={}", shell::quoted(ca)))?;
        }
        out::line(format!("console: {}/  log in with {}", text(&keys["admin"]), text(&keys["token"])))?;
        out::say("\nready; stop with Ctrl-C");
        Ok(())
    }
}

/// Waits for the end of a node; whether it ended well. One that does says so itself.
fn watch(mut node: Node, running: &Running) -> bool {
    match running.wait(&mut node.child) {
        Ok(status) if status.success() => return true,
        Ok(_) if running.is_stopping() => out::say(format!("{} was killed", node.name)),
        Ok(status) => {
            let dir = node.ready["dir"].as_str().unwrap_or_default().to_owned();
            let again = format!("`{} up --dir {}`", shell::program(), shell::quoted(&dir));
            out::say(format!("{} ended: {status}; {again} starts it again", node.name));
        }
        Err(error) => out::say(format!("{}: {error}", node.name)),
    }
    false
}

fn node_dir(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("node-{at}"))
}

fn is_member(dir: &Path, at: usize) -> bool {
    stoker_node::is_node(&node_dir(dir, at))
}

/// A node that starts.
struct Spawned {
    name: String,
    child: Child,
}
