//! `stoker up --nodes N`: several real nodes on one machine, each a process with its own directory, ports and drive.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::Args;
use crate::failure::Failure;
use crate::join::TOKEN_VARIABLE;
use crate::sys::StopSignals;
use crate::{out, sys};

/// Most nodes on one machine.
pub const NODES_MAX: usize = 16;

/// The lake of all of them, if nobody says otherwise.
const LAKE: &str = "lake";

/// A node that runs.
struct Running {
    name: String,
    child: Child,
    ready: Value,
}

/// Starts them, tells where they are, and stops them when asked to.
pub fn run(args: &Args, count: usize) -> Result<ExitCode, Failure> {
    // Before any thread starts, so that all of them leave the signals to us.
    let signals = StopSignals::hold();
    let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(args.dir.display(), &e))?;
    if args.lake.is_none() {
        let lake = dir.join(LAKE);
        std::fs::create_dir_all(&lake).map_err(|e| Failure::io(lake.display(), &e))?;
    }
    let nodes = start_all(args, &dir, count)?;
    tell(args, &nodes)?;
    let pids: Vec<u32> = nodes.iter().map(|node| node.child.id()).collect();
    let watchers: Vec<JoinHandle<()>> =
        nodes.into_iter().map(|node| std::thread::spawn(|| watch(node))).collect();
    signals.wait();
    pids.iter().for_each(|pid| sys::terminate(*pid));
    for watcher in watchers {
        let _ = watcher.join();
    }
    Ok(ExitCode::SUCCESS)
}

/// Nodes that are members wait for each other, since the catalog is with some of them: they start at the same time. New ones
/// join the first, one after the other.
fn start_all(args: &Args, dir: &Path, count: usize) -> Result<Vec<Running>, Failure> {
    let members = (1..=count).filter(|at| node_dir(dir, *at).join("node.json").exists());
    let spawned: Vec<(usize, Result<Spawned, Failure>)> =
        members.map(|at| (at, spawn(args, dir, at, count, None))).collect();
    let mut nodes: Vec<(usize, Running)> = Vec::new();
    let mut failed = None;
    for (at, spawned) in spawned {
        match spawned.and_then(until_ready) {
            Ok(node) => nodes.push((at, node)),
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    for at in 1..=count {
        if failed.is_some() || nodes.iter().any(|(other, _)| *other == at) {
            continue;
        }
        // A token is for one node, and every node that starts prints one: the last one's was not used yet.
        let last = nodes.last().map(|(_, node)| &node.ready);
        match spawn(args, dir, at, count, last).and_then(until_ready) {
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
                let _ = node.child.wait();
            }
            Err(fault)
        }
    }
}

fn watch(mut node: Running) {
    match node.child.wait() {
        Ok(status) if status.success() => out::say(format!("{} stopped", node.name)),
        Ok(status) => {
            out::say(format!("{} ended: {status}; start it again with `stoker up --dir`", node.name))
        }
        Err(error) => out::say(format!("{}: {error}", node.name)),
    }
}

fn node_dir(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("node-{at}"))
}

/// Where a node stands: each has a switch and a feed of its own, neighbours share a cell.
fn labels(args: &Args, at: usize, count: usize) -> Vec<(&'static str, String)> {
    let cells = args.cells.get();
    let mut labels = vec![("tor", format!("tor-{at}")), ("power", format!("power-{at}"))];
    if cells > 1 {
        labels.push(("cell", format!("cell-{}", (at - 1) * cells / count + 1)));
    }
    labels
}

/// A node that starts.
struct Spawned {
    name: String,
    child: Child,
}

fn spawn(args: &Args, dir: &Path, at: usize, count: usize, last: Option<&Value>) -> Result<Spawned, Failure> {
    let name = format!("node-{at}");
    let program = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
    let mut command = Command::new(program);
    match last.and_then(|ready| Some((ready["peers"].as_str()?, ready["join_token"].as_str()?))) {
        Some((peers, token)) => command.args(["join", peers]).env(TOKEN_VARIABLE, token),
        None => command.arg("up"),
    };
    let lake = args.lake.clone().unwrap_or_else(|| dir.join(LAKE).display().to_string());
    let memory = args.memory.map_or_else(|| super::limits::memory(None), Ok)? / count as u64;
    command
        .args(["--json", "--name", &name, "--lake", &lake])
        // A port of its own, and the same one after a restart: at the usual one another cell of this machine may be by then, and
        // the others would look for this node there.
        .args(["--peers", "127.0.0.1:0"])
        .arg("--dir")
        .arg(node_dir(dir, at))
        .arg("--domain")
        .arg(
            labels(args, at, count)
                .iter()
                .map(|(name, label)| format!("{name}={label}"))
                .collect::<Vec<_>>()
                .join(","),
        )
        .args(["--cores", &args.cores.to_string(), "--memory", &memory.to_string()])
        .args(["--grace", &format!("{}ms", args.grace.as_millis())])
        .args(["--log", args.log.as_str()])
        .env_remove("STOKER_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // Their rings are on one file system, unless they are there already.
    let ring = stoker_node::DriveOptions::sized_among(node_dir(dir, at).join("ring"), args.size, count)?;
    if let Some(size) = ring.size_bytes {
        command.args(["--size", &size.to_string()]);
    }
    sys::stop_with_parent(&mut command);
    let child = command.spawn().map_err(|e| Failure::io(&name, &e))?;
    Ok(Spawned { name, child })
}

fn until_ready(node: Spawned) -> Result<Running, Failure> {
    let Spawned { name, mut child } = node;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).map_err(|e| Failure::io(&name, &e))?;
    }
    match serde_json::from_str::<Value>(&line) {
        Ok(ready) => Ok(Running { name, child, ready }),
        Err(_) => {
            sys::terminate(child.id());
            let _ = child.wait();
            Err(Failure::new(format!("{name} does not start; what it says is above")))
        }
    }
}

fn tell(args: &Args, nodes: &[Running]) -> Result<(), Failure> {
    let entry = |(at, node): (usize, &Running)| {
        let mut ready = node.ready.clone();
        ready["name"] = json!(node.name);
        ready["pid"] = json!(node.child.id());
        ready["domain"] = labels(args, at + 1, nodes.len())
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
    out::line(format!("console: {}/  log in with {}", text(&keys["admin"]), text(&keys["token"])))?;
    out::say("\nready; stop with Ctrl-C");
    Ok(())
}
