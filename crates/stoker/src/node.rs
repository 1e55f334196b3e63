//! `stoker node`: the nodes of a cluster, and what becomes of single ones.

mod remove;

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stoker_client::Client;
use stoker_store::{Evacuation, NodeInfo, NodeWord, Order, Report, Store, Unreachable};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::waiting::{self, Sight};
use crate::{clock, out, outages, show, size, span};

/// Pause between two looks at an evacuation.
const LOOK: Duration = Duration::from_millis(500);

/// What to do with a node.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List the nodes: where they stand, whether they answer, what they hold that the lake has not.
    Ls(LsArgs),
    /// Put no new chunks on a node; it is still read from, and its clients are still served.
    Quarantine(QuarantineArgs),
    /// End a quarantine or an evacuation.
    Rejoin(RejoinArgs),
    /// Bring everything that is not in the lake from a node to others, and wait until it holds nothing that counts.
    Evacuate(EvacuateArgs),
    /// Remove a node for good: a live one is emptied first and then stops, a lost one goes once what it held is accounted for.
    Remove(remove::RemoveArgs),
    /// Say whether a node can stop without a client noticing; the exit code is 0 if it can. For hooks before a stop.
    CanStop(CanStopArgs),
}

/// Pause between questions of those who wait.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `node ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line: node, name, cell, tor, power, state, since, silent_since, drives, drives_gone,
    /// undrained_files, undrained_bytes, latency_us, unreachable.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `node quarantine`.
#[derive(clap::Args)]
pub struct QuarantineArgs {
    /// The node, by its id or its name.
    node: String,
    /// Although too few nodes are left for the class of some volume: their writes fail, nothing is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `node rejoin`.
#[derive(clap::Args)]
pub struct RejoinArgs {
    /// The node, by its id or its name.
    node: String,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `node evacuate`.
#[derive(clap::Args)]
pub struct EvacuateArgs {
    /// The node, by its id or its name.
    node: String,
    /// Although too few nodes are left for the class of some volume. What could not be moved is named, and is lost with the node.
    #[arg(long)]
    force: bool,
    /// Do not wait; ask again with the same command.
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this long, such as 5m; exit code 1. The evacuation goes on.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// Print one object: node, name, state, files_left, bytes_left, files_only_there, bytes_only_there,
    /// parts_only_there, trouble, done.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `node can-stop`.
#[derive(clap::Args)]
pub struct CanStopArgs {
    /// The node, by its id or its name; by default the one that is asked.
    node: Option<String>,
    /// Ask until it can, for at most this long: for the preStop hook of a container.
    #[arg(long, value_name = "SPAN", value_parser = crate::span::parse)]
    wait: Option<Duration>,
    /// Print one object: node, name, can_stop, reasons.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let Report::Nodes(nodes) = client.operate(Order::Nodes).await? else {
                return Err(Failure::confused());
            };
            // Asked only where there is something to tell: nodes of earlier releases have no word for it.
            let unreachable = match nodes.iter().any(|node| node.state == "unreachable") {
                true => match client.operate(Order::Unreachable).await? {
                    Report::Unreachable(all) => all,
                    _ => return Err(Failure::confused()),
                },
                false => Vec::new(),
            };
            list(&nodes, &unreachable, args.json)?;
            outages::tell(&outages::ask(&client).await, "nodes");
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Quarantine(args) => connect::run(&args.target, async |client| {
            client.operate(Order::Quarantine { node: args.node.clone(), force: args.force }).await?;
            out::say(format!("{} gets no new chunks; `stoker node rejoin {0}` ends that", args.node));
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Rejoin(args) => connect::run(&args.target, async |client| {
            client.operate(Order::Rejoin { node: args.node.clone() }).await?;
            out::say(format!("{} takes chunks again", args.node));
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Evacuate(args) => connect::run(&args.target, async |client| evacuate(args, &client).await),
        Verb::Remove(args) => connect::run(&args.target, async |client| remove::run(args, &client).await),
        Verb::CanStop(args) => can_stop(args),
    }
}

fn list(nodes: &[NodeInfo], unreachable: &[Unreachable], json: bool) -> Result<(), Failure> {
    let why = |node: &NodeInfo| unreachable.iter().find(|one| one.node == node.node);
    if json {
        return nodes.iter().try_for_each(|node| {
            out::json(&json!({
                "node": node.node,
                "name": node.name,
                "cell": node.cell,
                "tor": node.tor,
                "power": node.power,
                "state": node.state,
                "since": clock::rfc3339(node.since_ms),
                "silent_since": node.silent_since_ms.map(clock::rfc3339),
                "drives": node.drives,
                "drives_gone": node.drives_gone,
                "undrained_files": node.undrained_files,
                "undrained_bytes": node.undrained_bytes,
                "latency_us": node.latency_us,
                "unreachable": why(node).map(ToString::to_string),
            }))
        });
    }
    let head = ["NODE", "STATE", "ANSWERS", "DRIVES", "UNDRAINED", "LATENCY", "CELL", "ID"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(nodes.iter().map(|node| row(node, why(node))));
    out::table(&rows)?;
    unreachable.iter().for_each(|one| out::say(one.to_string()));
    Ok(())
}

fn row(node: &NodeInfo, unreachable: Option<&Unreachable>) -> Vec<String> {
    let word = NodeWord::of(&node.state, node.since_ms, node.silent_since_ms, 0);
    let answers = match word {
        _ if unreachable.is_some() => "cannot be reached".to_owned(),
        NodeWord::Answers { .. } => "yes".to_owned(),
        word => word.words(clock::unix_ms()),
    };
    let drives = match node.drives_gone {
        0 => node.drives.to_string(),
        gone => format!("{} ({gone} gone)", node.drives),
    };
    let labels = [("tor", &node.tor), ("power", &node.power)];
    let labels = labels.iter().filter(|(_, label)| !label.is_empty());
    let labels: Vec<String> = labels.map(|(what, label)| format!("{what}={label}")).collect();
    let cell = if node.cell.is_empty() { "-" } else { &node.cell };
    vec![
        if node.name.is_empty() { node.node.clone() } else { node.name.clone() },
        node.state.clone(),
        answers,
        drives,
        size::human(node.undrained_bytes),
        if node.latency_us == 0 { "-".to_owned() } else { format!("{} us", node.latency_us) },
        [vec![cell.to_owned()], labels].concat().join(" "),
        node.node.clone(),
    ]
}

async fn evacuate(args: &EvacuateArgs, client: &Client) -> Result<ExitCode, Failure> {
    let seen: RefCell<Option<Evacuation>> = RefCell::new(None);
    let work = async {
        let mut order = Order::Evacuate { node: args.node.clone(), force: args.force };
        loop {
            let Report::Evacuation(told) = client.operate(order).await? else {
                return Err(Failure::confused());
            };
            if told.done || args.no_wait {
                return Ok(told);
            }
            if told.state != "evacuating" {
                let cause =
                    format!("the evacuation of {} ended before it was done: it is {}", told.name, told.state);
                return Err(Failure::new(cause).hint("see `stoker node ls` and `stoker rebuild status`"));
            }
            *seen.borrow_mut() = Some(told);
            tokio::time::sleep(LOOK).await;
            order = Order::Evacuation { node: args.node.clone() };
        }
    };
    let look = async || {
        let told = seen.borrow();
        let Some(told) = told.as_ref() else { return Ok(Sight { text: "asked for".into(), why: None }) };
        let trouble =
            told.trouble.as_ref().map(|trouble| format!("some of it cannot be moved now: {trouble}"));
        Ok(Sight { text: format!("{} left on {}", left(told), told.name), why: trouble })
    };
    let late = |failure: Failure| match failure.cause().starts_with(waiting::TOO_LATE) {
        true => failure.hint(format!(
            "it goes on without this command, which can be given again; `stoker node rejoin {}` ends it",
            args.node
        )),
        false => failure,
    };
    let told = waiting::wait(work, args.timeout, args.json, look).await.map_err(late)?;
    if args.json {
        out::json(&show::plain(&told))?;
    } else if told.done {
        out::line(format!(
            "{} is empty: nothing is only there, and nothing there counts as a copy",
            told.name
        ))?;
    } else {
        out::line(format!("{} left on {}", left(&told), told.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn left(told: &Evacuation) -> String {
    let only = match told.files_only_there {
        0 => "nothing only there".to_owned(),
        files => {
            format!("{} ({}) only there", show::count(files, "file"), size::human(told.bytes_only_there))
        }
    };
    let parts = match told.parts_only_there {
        0 => String::new(),
        parts => format!(", {} of unfinished uploads only there", show::count(parts, "part")),
    };
    format!("{}, {}, {only}{parts}", show::count(told.files_left, "file"), size::human(told.bytes_left))
}

fn can_stop(args: &CanStopArgs) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let end = tokio::time::Instant::now() + args.wait.unwrap_or_default();
        let verdict = loop {
            let order = Order::CanStop { node: args.node.clone() };
            let Report::CanStop(verdict) = client.operate(order).await? else {
                return Err(Failure::confused());
            };
            if verdict.reasons.is_empty() || tokio::time::Instant::now() >= end {
                break verdict;
            }
            tokio::time::sleep(ASK_EVERY).await;
        };
        let can_stop = verdict.reasons.is_empty();
        let name = if verdict.name.is_empty() { &verdict.node } else { &verdict.name };
        if args.json {
            out::json(&json!({
                "node": verdict.node,
                "name": verdict.name,
                "can_stop": can_stop,
                "reasons": verdict.reasons,
            }))?;
        } else if can_stop {
            out::line(format!("{name} can stop"))?;
        } else {
            out::line(format!("{name} should not stop now:"))?;
            verdict.reasons.iter().try_for_each(|reason| out::line(format!("  {reason}")))?;
        }
        Ok(if can_stop { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}
