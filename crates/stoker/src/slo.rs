//! `stoker slo`: how the objectives do, which parts are in trouble and what is done about them.

use std::process::ExitCode;

use serde_json::Value;
use stoker_client::Client;
use stoker_reflex::table::State;
use stoker_reflex::{PartId, PartStatus};
use stoker_store::{NodeInfo, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show, span};
use stoker_reflex_driver::{Head, NOTE, WISHES, Wish};

/// Arguments of `slo`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Print one object: leader, node, beat, at_ms, weights, gates, probes, shown (parts, budgets, notices, acts).
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What people tell the loop.
#[derive(clap::Subcommand)]
enum Verb {
    /// Say that a part was repaired or replaced: the gate measures it, and it works again if it passes.
    Repaired(RepairedArgs),
    /// Send all work orders that nobody took yet again, also those that were refused.
    Retry(TellArgs),
    /// Begin without what the loop kept, if no node can read it: incidents, budgets and work orders are forgotten. Parts that it took
    /// out stay out until somebody puts them back.
    Reset(TellArgs),
}

/// Arguments of `slo repaired`.
#[derive(clap::Args)]
struct RepairedArgs {
    /// The part: NODE, or NODE:PATH for a drive, or as `stoker slo` shows it.
    part: String,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `slo retry` and `slo reset`.
#[derive(clap::Args)]
struct TellArgs {
    #[command(flatten)]
    target: Target,
}

/// Asks, or tells.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        None => connect::run(&args.target, async |client| show_all(&client, args.json).await),
        Some(Verb::Repaired(repaired)) => connect::run(&repaired.target, async |client| {
            let nodes = nodes(&client).await?;
            let part = part_named(&repaired.part, &nodes)?;
            let head = head(&client).await?.unwrap_or_default();
            if !head.shown.parts.iter().any(|status| status.part == part) && head.shown.parts_more == 0 {
                return Err(Failure::new(format!(
                    "nothing is known to be wrong with {}",
                    named(&part, &nodes)
                ))
                .hint("`stoker slo` lists the parts that are in trouble"));
            }
            wish(&client, &Wish::Repaired(part)).await?;
            out::say("the gate measures it within seconds; `stoker slo` shows what comes of it");
            Ok(ExitCode::SUCCESS)
        }),
        Some(Verb::Retry(retry)) => connect::run(&retry.target, async |client| {
            wish(&client, &Wish::Retry).await?;
            out::say("everything that nobody took is sent again within seconds");
            Ok(ExitCode::SUCCESS)
        }),
        Some(Verb::Reset(begin)) => connect::run(&begin.target, async |client| {
            wish(&client, &Wish::Reset).await?;
            out::say(
                "if nobody can read what the loop kept, it begins without it within half a minute; see `stoker slo`",
            );
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn wish(client: &Client, wish: &Wish) -> Result<(), Failure> {
    let line = serde_json::to_string(wish).map_err(|e| Failure::new(e.to_string()))?;
    client.operate(Order::NoteAdd { name: WISHES.to_owned(), line }).await?;
    Ok(())
}

async fn nodes(client: &Client) -> Result<Vec<NodeInfo>, Failure> {
    match client.operate(Order::Nodes).await? {
        Report::Nodes(nodes) => Ok(nodes),
        _ => Err(Failure::confused()),
    }
}

/// What the nodes tell of objectives and parts, as they wrote it.
pub async fn note(client: &Client) -> Result<Option<String>, Failure> {
    match client.operate(Order::Note { name: NOTE.to_owned() }).await? {
        Report::Note(text) => Ok(text),
        _ => Err(Failure::confused()),
    }
}

async fn head(client: &Client) -> Result<Option<Head>, Failure> {
    let Some(text) = note(client).await? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|e| {
        Failure::new(format!("what the nodes tell is not understood: {e}"))
            .hint("they may be of another release")
    })
}

/// A part by the names that people use.
fn part_named(text: &str, nodes: &[NodeInfo]) -> Result<PartId, Failure> {
    if let Ok(part) = text.parse::<PartId>() {
        return Ok(part);
    }
    let (name, path) = text.split_once(':').map_or((text, None), |(name, path)| (name, Some(path)));
    let found: Vec<&NodeInfo> = nodes.iter().filter(|node| node.name == name || node.node == name).collect();
    match (found.as_slice(), path) {
        ([node], Some(path)) => Ok(PartId::drive(&node.node, path)),
        ([node], None) => Ok(PartId::node(&node.node)),
        ([], _) => {
            Err(Failure::new(format!("the cluster has no node `{name}`")).hint("`stoker node ls` lists them"))
        }
        _ => {
            Err(Failure::new(format!("{} nodes are called `{name}`", found.len())).hint("name one by its id"))
        }
    }
}

/// A part as people call it.
fn named(part: &PartId, nodes: &[NodeInfo]) -> String {
    let (node, rest) =
        part.name.split_once(':').map_or((part.name.as_str(), None), |(id, rest)| (id, Some(rest)));
    let name = nodes.iter().find(|one| one.node == node).map_or(node, |one| one.name.as_str());
    match rest {
        Some(rest) => format!("{} {name}:{rest}", part.kind.word()),
        None => format!("{} {name}", part.kind.word()),
    }
}

async fn show_all(client: &Client, as_json: bool) -> Result<ExitCode, Failure> {
    if as_json {
        let text = note(client).await?;
        let value: Value = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
        out::json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(head) = head(client).await? else {
        out::say("nobody watches yet: the loop begins a few seconds after the first node");
        return Ok(ExitCode::SUCCESS);
    };
    let nodes = nodes(client).await?;
    let age = span::human(clock::unix_ms().saturating_sub(head.at_ms));
    out::say(format!(
        "{} leads, looked {age} ago{}",
        head.node,
        if head.shown.acts { "" } else { "; it tells and does nothing (act = false)" }
    ));
    if head.shown.parts.is_empty() {
        out::line("every part is well, as far as is known")?;
    }
    for part in &head.shown.parts {
        out::line(words(part, &nodes))?;
        for found in &part.evidence {
            out::line(format!("  {}", stoker_reflex::order::words(found)))?;
        }
    }
    if head.shown.parts_more > 0 {
        out::line(format!("and {}", show::count(head.shown.parts_more as u64, "more part")))?;
    }
    for budget in &head.shown.budgets {
        let status = &budget.status;
        if status.good + status.bad == 0 {
            continue;
        }
        let burns = if status.burning.is_some() { ", burns too fast" } else { "" };
        out::line(format!(
            "{}: {:.0} % of the budget of 30 days left ({} bad of {}){burns}",
            budget.indicator.word(),
            100.0 * status.left,
            out::count(status.bad),
            out::count(status.good + status.bad),
        ))?;
    }
    for notice in &head.shown.notices {
        let why = notice.why.as_deref().unwrap_or("on its way");
        let what = if notice.parked { "refused" } else { "not taken yet" };
        out::line(format!("{what} by {}: {} ({why}, {})", notice.target, notice.title, tries(notice.tries)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tries(count: u32) -> String {
    if count == 1 { "1 try".to_owned() } else { format!("{count} tries") }
}

fn words(status: &PartStatus, nodes: &[NodeInfo]) -> String {
    let state = match status.state {
        State::Healthy => "is well",
        State::Degraded => "works badly; less is asked of it",
        State::Suspect => "does not answer",
        State::Down => "is gone",
        State::Escalated => "should be taken out, and a person has to decide",
        State::Quarantined => "takes no new chunks, and is being emptied",
        State::Repair => "waits for somebody who repairs it",
        State::Verifying => "is measured by the gate",
        State::Shadowed => "has a cause elsewhere",
    };
    let order = if status.has_order { "; it has a work order" } else { "" };
    let since = span::human(clock::unix_ms().saturating_sub(status.opened.0));
    format!("{} {state}, since {since}{order}: {}", named(&status.part, nodes), status.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_people_call_them() {
        let node = NodeInfo {
            node: "00ab".into(),
            name: "n1".into(),
            cell: String::new(),
            tor: String::new(),
            power: String::new(),
            state: "up".into(),
            since_ms: 0,
            silent_since_ms: None,
            drives: 1,
            drives_gone: 0,
            undrained_files: 0,
            undrained_bytes: 0,
            latency_us: 0,
        };
        let nodes = [node];
        for (text, part, shown) in [
            ("n1", PartId::node("00ab"), "node n1"),
            ("n1:/d0", PartId::drive("00ab", "/d0"), "drive n1:/d0"),
            ("drive/00ab:/d0", PartId::drive("00ab", "/d0"), "drive n1:/d0"),
            ("rack/a", PartId::rack("a"), "rack a"),
        ] {
            let found = part_named(text, &nodes).ok().unwrap();
            assert_eq!((named(&found, &nodes).as_str(), found), (shown, part), "{text}");
        }
        assert!(part_named("n2", &nodes).is_err());
    }
}
