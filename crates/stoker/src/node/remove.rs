//! `stoker node remove`: a node leaves for good.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{Order, Removal, Report, Store};

use crate::connect::Target;
use crate::failure::Failure;
use crate::waiting::{self, Sight};
use crate::{out, risk, show, size, span};

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `node remove`.
#[derive(clap::Args)]
pub struct RemoveArgs {
    /// The node, by its id or its name.
    node: String,
    /// Although too few nodes are left for the class of some volume: files are on fewer nodes then.
    #[arg(long)]
    force: bool,
    /// Remove a lost node although files are lost with it, which no other node has and the lake has not.
    #[arg(long)]
    accept_loss: bool,
    /// Do not wait: the nodes carry it on by themselves. The same command tells how far it is.
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this long, such as 10m; exit code 1. The same command goes on.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// Print one object: node, name, step, files_left, bytes_left, lost, lost_files, lost_bytes, trouble.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub target: Target,
}

/// Goes on until the node is removed, or a person has to decide.
pub async fn run(args: &RemoveArgs, client: &Client) -> Result<ExitCode, Failure> {
    let seen: RefCell<Option<Removal>> = RefCell::new(None);
    let work = async {
        loop {
            let order = Order::NodeRemove {
                node: args.node.clone(),
                force: args.force,
                accept_loss: args.accept_loss,
            };
            let Report::Removal(told) = client.operate(order).await? else { return Err(Failure::confused()) };
            if ["removed", "loss"].contains(&told.step.as_str()) || args.no_wait {
                return Ok(told);
            }
            *seen.borrow_mut() = Some(*told);
            tokio::time::sleep(LOOK).await;
        }
    };
    let look = async || {
        let told = seen.borrow();
        let Some(told) = told.as_ref() else { return Ok(Sight { text: "asked for".into(), why: None }) };
        Ok(Sight { text: progress(told), why: told.trouble.clone() })
    };
    let told = waiting::wait(work, args.timeout, args.json, look).await.map_err(|failure| {
        match failure.cause().starts_with(waiting::TOO_LATE) {
            true => failure.hint(format!(
                "it stays as it is now; the same command goes on, `stoker node rejoin {}` ends it",
                args.node
            )),
            false => failure,
        }
    })?;
    if args.json {
        let mut value = show::plain(&*told);
        value["lost"] = told.lost.iter().map(risk::lost_json).collect();
        out::json(&value)?;
    }
    match told.step.as_str() {
        "loss" => {
            if !args.json {
                told.lost.iter().try_for_each(|file| risk::tell_lost(file, false))?;
            }
            let (files, bytes) = (show::count(told.lost_files, "file"), size::human(told.lost_bytes));
            Err(Failure::new(format!(
                "{files}, {bytes}, would be lost with {}: no other node has them",
                told.name
            ))
            .hint("bring the node or its drives back, and it is emptied first; or give them up with --accept-loss"))
        }
        "removed" if !args.json => {
            let lost = match told.lost_files {
                0 => String::new(),
                files => format!("; {} lost, {}", show::count(files, "file"), size::human(told.lost_bytes)),
            };
            out::line(format!("{} is no node of the cluster any more{lost}", told.name))?;
            Ok(ExitCode::SUCCESS)
        }
        _ if !args.json => {
            let trouble = told.trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default();
            out::line(format!("{}{trouble}", progress(&told)))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn progress(told: &Removal) -> String {
    let left = format!("{}, {}", show::count(told.files_left, "file"), size::human(told.bytes_left));
    match told.step.as_str() {
        "waiting" => format!("waiting for {}", told.name),
        "evacuating" => format!("{left} to be brought away from {}", told.name),
        "protecting" => format!("{left} of {} to be protected by other nodes", told.name),
        other => format!("{}: {other}", told.name),
    }
}
