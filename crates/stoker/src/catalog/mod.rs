//! `stoker catalog`: where the catalog is, how another node takes it over, and how it is kept and brought back.

mod backup;
mod offline;

use std::process::ExitCode;

use serde_json::json;
use stoker_store::{CatalogStatus, Order, PeerStatus, Report, StandbyInfo, Store, Subject, name_ids};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::out;
use crate::show::node_name;

/// What to do with the catalog.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Show which node keeps the catalog and which nodes follow it.
    Status(StatusArgs),
    /// Make this node the one that keeps the catalog, because the one that did is lost or is to go.
    Promote(PromoteArgs),
    /// Let a node that followed the catalog go for good, so that nobody waits for it.
    Detach(DetachArgs),
    /// Write one state of the catalog to a file, while everything goes on.
    Backup(backup::Args),
    /// Put a backup into the place of the catalog of a stopped node.
    Restore(offline::RestoreArgs),
    /// Rebuild the catalog of stopped nodes from their drives and lakes.
    Salvage(offline::SalvageArgs),
    /// Compare two catalogs: backups, or directories of stopped nodes. The exit code is 0 if they say the same.
    Compare(offline::CompareArgs),
}

/// Arguments of `catalog status`.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// Print one object: engine, holder, epoch, seq, stalled, alone, standbys, trouble.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `catalog promote`.
#[derive(clap::Args)]
pub struct PromoteArgs {
    /// Go on although acknowledged changes may be lost.
    #[arg(long)]
    accept_loss: bool,
    /// Print one object: epoch, seq, before, loss.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `catalog detach`.
#[derive(clap::Args)]
pub struct DetachArgs {
    /// The node, by its id or its name.
    node: String,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Status(args) => connect::run(&args.target, async |client| {
            match client.operate(Order::Catalog).await? {
                Report::Catalog(status) if args.json => out::json(&json!(status))?,
                Report::Catalog(status) => tell(&status, &client.status().await?.nodes)?,
                _ => return Err(Failure::confused()),
            }
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Promote(args) => promote(args),
        Verb::Backup(args) => backup::run(args),
        Verb::Restore(args) => offline::restore(args),
        Verb::Salvage(args) => offline::salvage(args),
        Verb::Compare(args) => offline::compare(args),
        Verb::Detach(args) => connect::run(&args.target, async |client| {
            client.operate(Order::CatalogDetach { node: args.node.clone() }).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

fn promote(args: &PromoteArgs) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let order = Order::CatalogPromote { accept_loss: args.accept_loss };
        let report = client.operate(order).await.map_err(|error| {
            let failure = Failure::new(&error.message);
            match error.subject == Subject::Promotion {
                true => failure.hint(
                    "promote a node that has everything, bring the silent one back, or say --accept-loss",
                ),
                false => failure,
            }
        })?;
        let Report::Promoted(promotion) = report else { return Err(Failure::confused()) };
        if args.json {
            out::json(&json!(promotion))?;
            return Ok(ExitCode::SUCCESS);
        }
        out::line(format!(
            "this node keeps the catalog from now on: epoch {}, commits go on from {}",
            number(&promotion.epoch),
            promotion.seq
        ))?;
        match &promotion.loss {
            Some(loss) => out::line(format!("acknowledged changes may be lost: {loss}"))?,
            None => out::line("no acknowledged change is lost")?,
        }
        let nodes = client.status().await?.nodes;
        out::line(format!(
            "node {} kept it before; it acknowledges nothing any more, and follows this node when it is back",
            node_name(&nodes, &promotion.before)
        ))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// An epoch without its node, which is named beside it.
fn number(epoch: &str) -> &str {
    epoch.split_once(" of ").map_or(epoch, |(number, _)| number)
}

fn tell(status: &CatalogStatus, nodes: &[PeerStatus]) -> Result<(), Failure> {
    let Some(holder) = &status.holder else {
        let Some(trouble) = &status.trouble else {
            return out::line(format!("{}, at commit {}", status.engine, status.seq));
        };
        out::line(&status.engine)?;
        out::line(format!("it cannot be asked: {trouble}"))?;
        return out::line(
            "bring the database back, or its way here; nothing that was acknowledged is lost meanwhile",
        );
    };
    let holder = node_name(nodes, holder);
    let epoch = number(&status.epoch);
    out::line(format!("kept by node {holder}, epoch {epoch}, at commit {}", status.seq))?;
    if let Some(trouble) = &status.trouble {
        let trouble = name_ids(trouble, |id| Some(node_name(nodes, id).to_owned()));
        out::line(format!("it cannot be asked: {trouble}"))?;
        out::line(
            "the others elect another one; if too many are lost: `stoker catalog promote` on a node that has a copy",
        )?;
        return Ok(());
    }
    let mut standbys: Vec<&StandbyInfo> = status.standbys.iter().collect();
    standbys.sort_by_key(|standby| node_name(nodes, &standby.node));
    for standby in standbys {
        let state = match (standby.in_sync, &standby.trouble) {
            (true, _) if standby.seq.is_some_and(|seq| seq >= status.seq) => {
                "has every acknowledged change".to_owned()
            }
            (true, _) => "follows, a moment behind".to_owned(),
            (false, Some(trouble)) => {
                let trouble = name_ids(trouble, |id| Some(node_name(nodes, id).to_owned()));
                format!("does not follow: {trouble}")
            }
            (false, None) => match standby.seq {
                Some(seq) => format!("catches up, at commit {seq}"),
                None => "catches up".to_owned(),
            },
        };
        out::line(format!("  node {}  {state}", node_name(nodes, &standby.node)))?;
    }
    if status.stalled {
        out::line(
            "nothing is acknowledged, because too few of them answer: bring one back, or `stoker catalog detach` it",
        )?;
    } else if status.alone {
        out::line(
            "no other node has it: if this one is lost, names are rebuilt from rings and lake at best",
        )?;
    }
    Ok(())
}
