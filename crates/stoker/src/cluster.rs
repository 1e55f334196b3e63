//! `stoker cluster`: what holds for all nodes together.

use std::process::ExitCode;

use stoker_store::{LevelStatus, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::show::plain;
use crate::{clock, out};

/// What to do with the cluster.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Show in which forms the nodes write, and which of them keep the level from rising; hold it, or let it rise.
    ///
    /// A release reads all forms that it knows, and writes those of the cluster's level, so that nodes of two releases can live together. Once
    /// every node can read the next level, it rises by itself, and then never falls: no node can go back to a release that does not know it.
    Level(LevelArgs),
}

/// Arguments of `cluster level`.
#[derive(clap::Args)]
pub struct LevelArgs {
    /// Keep the level as it is, although every node can read the next one: a way back to the release before.
    #[arg(long, conflicts_with = "release")]
    hold: bool,
    /// End a hold; the level rises as soon as every node can read the next one.
    #[arg(long)]
    release: bool,
    /// Print one object: level, newest, is_held, since_ms, nodes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let Verb::Level(args) = verb;
    connect::run(&args.target, async |client| {
        let order = match (args.hold, args.release) {
            (false, false) => Order::Level,
            (held, _) => Order::LevelHold { held },
        };
        let Report::Level(status) = client.operate(order).await? else { return Err(Failure::confused()) };
        if args.json {
            out::json(&plain(&status))?;
        } else {
            tell(&status)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn tell(status: &LevelStatus) -> Result<(), Failure> {
    let since = match status.since_ms {
        0 => String::new(),
        since_ms => format!(", since {}", clock::rfc3339(since_ms)),
    };
    out::fields(&[("level", format!("{}{since}", status.level)), ("next", next(status))])?;
    let head = ["NODE", "READS UP TO", "RELEASE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(status.nodes.iter().map(|node| {
        vec![node.name.clone(), node.reads.to_string(), node.release.clone().unwrap_or_else(|| "-".into())]
    }));
    out::table(&rows)?;
    for node in &status.nodes {
        if let Some(why) = &node.holds_up {
            out::say(format!("node {} holds the level up: {why}", node.name));
        }
    }
    Ok(())
}

/// What becomes of the level.
fn next(status: &LevelStatus) -> String {
    let holding = status.nodes.iter().filter(|node| node.holds_up.is_some()).count();
    match status.level >= status.newest {
        true => "this release knows no higher one".to_owned(),
        false if status.is_held => "held; `stoker cluster level --release` lets it rise".to_owned(),
        false if holding > 0 => {
            let nodes = if holding == 1 { "one more node" } else { &format!("{holding} more nodes") };
            format!("{}, once {nodes} can read it", status.newest)
        }
        false => format!("{}, in a moment", status.newest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::LevelNode;

    #[test]
    fn what_becomes_of_the_level() {
        let node = |holds_up: Option<&str>| LevelNode {
            node: "1".into(),
            name: "n".into(),
            reads: 1,
            release: None,
            holds_up: holds_up.map(str::to_owned),
        };
        let check = |level, is_held, nodes: Vec<LevelNode>, expect: &str| {
            let status = LevelStatus { level, newest: 2, is_held, since_ms: 0, nodes };
            assert_eq!(next(&status), expect);
        };
        check(2, false, vec![node(None)], "this release knows no higher one");
        check(1, true, vec![node(None)], "held; `stoker cluster level --release` lets it rise");
        check(1, false, vec![node(Some("old")), node(None)], "2, once one more node can read it");
        check(1, false, vec![node(None)], "2, in a moment");
    }
}
