//! Calls about nodes, drives and the catalog.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_store::{LostFile, NodeInfo, NodeWord, Order, Removal, Report};
use tokio::time::Instant;

use super::given::Given;
use super::shape::plain;
use super::{Answered, Fault, confused, done, operate, shape};
use crate::answer::Asked;

/// How old the answer of `risk` may be.
const RISK_AGE_MAX: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Force {
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    accept_loss: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DriveAdd {
    path: String,
    #[serde(default)]
    size_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DriveCordon {
    drive: String,
    cordoned: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelHold {
    held: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promote {
    #[serde(default)]
    accept_loss: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    node: String,
}

/// Everything that is not in the lake is looked at for it, and every open console asks.
pub async fn risk(asked: Arc<Asked>, _: Given) -> Answered {
    if let Some(value) = asked.recent.get("risk", RISK_AGE_MAX, Instant::now()) {
        return Ok(value.into());
    }
    match operate(&asked, Order::Risk).await? {
        Report::Risk(report) => {
            let value = plain(&report);
            asked.recent.put("risk".to_owned(), value.clone(), Instant::now());
            Ok(value.into())
        }
        _ => Err(confused()),
    }
}

fn lost_files(files: &[LostFile]) -> Answered {
    Ok(json!({ "files": files.iter().map(shape::lost).collect::<Vec<_>>() }).into())
}

pub async fn lost(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::Lost).await? {
        Report::Lost(files) => lost_files(&files),
        _ => Err(confused()),
    }
}

pub async fn rebuild(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::Rebuild).await? {
        Report::Rebuild(rebuild) => Ok(plain(&rebuild).into()),
        _ => Err(confused()),
    }
}

pub async fn protection(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::Protection).await? {
        Report::Protection(volumes) => Ok(json!({ "volumes": plain(&volumes) }).into()),
        _ => Err(confused()),
    }
}

async fn node_list(asked: &Asked) -> Result<Vec<NodeInfo>, Fault> {
    match operate(asked, Order::Nodes).await? {
        Report::Nodes(nodes) => Ok(nodes),
        _ => Err(confused()),
    }
}

/// A node, with whether it answers in words.
fn node_value(node: &NodeInfo) -> Value {
    let mut value = plain(node);
    let word = NodeWord::of(&node.state, node.since_ms, node.silent_since_ms, node.latency_us);
    value["answers"] = word.words(crate::clock::unix_ms()).into();
    value
}

pub async fn nodes(asked: Arc<Asked>, _: Given) -> Answered {
    let nodes: Vec<Value> = node_list(&asked).await?.iter().map(node_value).collect();
    Ok(json!({ "nodes": nodes }).into())
}

pub async fn one(asked: Arc<Asked>, given: Given) -> Answered {
    let wanted = given.text("node");
    let nodes = node_list(&asked).await?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let node = nodes.iter().find(|node| node.node == wanted || node.name == wanted).ok_or_else(|| {
        Fault::not_found(format!("there is no node `{wanted}`"), &format!("there are: {}", names.join(", ")))
    })?;
    let order = Order::Drives { node: Some(node.node.clone()) };
    let Report::Drives(drives) = operate(&asked, order).await? else { return Err(confused()) };
    let Report::Risk(report) = operate(&asked, Order::Risk).await? else { return Err(confused()) };
    let risk = report.nodes.iter().find(|risk| risk.node == node.node);
    Ok(json!({ "node": node_value(node), "drives": plain(&drives), "risk": risk.map(plain) }).into())
}

pub async fn can_stop(asked: Arc<Asked>, given: Given) -> Answered {
    match operate(&asked, Order::CanStop { node: given.some_text("node").map(str::to_owned) }).await? {
        Report::CanStop(verdict) => {
            let mut value = plain(&verdict);
            value["can_stop"] = verdict.reasons.is_empty().into();
            Ok(value.into())
        }
        _ => Err(confused()),
    }
}

pub async fn evacuation(asked: Arc<Asked>, given: Given) -> Answered {
    match operate(&asked, Order::Evacuation { node: given.text("node").to_owned() }).await? {
        Report::Evacuation(evacuation) => Ok(plain(&evacuation).into()),
        _ => Err(confused()),
    }
}

pub async fn quarantine(asked: Arc<Asked>, given: Given) -> Answered {
    let Force { force } = given.body()?;
    operate(&asked, Order::Quarantine { node: given.text("node").to_owned(), force }).await?;
    done()
}

pub async fn evacuate(asked: Arc<Asked>, given: Given) -> Answered {
    let Force { force } = given.body()?;
    match operate(&asked, Order::Evacuate { node: given.text("node").to_owned(), force }).await? {
        Report::Evacuation(evacuation) => Ok(plain(&evacuation).into()),
        _ => Err(confused()),
    }
}

pub async fn remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Remove { force, accept_loss } = given.body()?;
    let order = Order::NodeRemove { node: given.text("node").to_owned(), force, accept_loss };
    match operate(&asked, order).await? {
        Report::Removal(removal) => Ok(removal_value(&removal).into()),
        _ => Err(confused()),
    }
}

fn removal_value(removal: &Removal) -> Value {
    let mut value = plain(removal);
    value["lost"] = removal.lost.iter().map(shape::lost).collect();
    value
}

pub async fn removals(asked: Arc<Asked>, given: Given) -> Answered {
    match operate(&asked, Order::Removals { node: given.some_text("node").map(str::to_owned) }).await? {
        Report::Removals(all) => {
            Ok(json!({ "removals": all.iter().map(removal_value).collect::<Vec<_>>() }).into())
        }
        _ => Err(confused()),
    }
}

pub async fn unreachable(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::Unreachable).await? {
        Report::Unreachable(nodes) => Ok(json!({ "nodes": plain(&nodes) }).into()),
        _ => Err(confused()),
    }
}

pub async fn level(asked: Arc<Asked>, _: Given) -> Answered {
    level_value(operate(&asked, Order::Level).await?)
}

pub async fn level_hold(asked: Arc<Asked>, given: Given) -> Answered {
    let LevelHold { held } = given.body()?;
    level_value(operate(&asked, Order::LevelHold { held }).await?)
}

fn level_value(report: Report) -> Answered {
    match report {
        Report::Level(status) => Ok(plain(&status).into()),
        _ => Err(confused()),
    }
}

pub async fn rejoin(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    operate(&asked, Order::Rejoin { node: given.text("node").to_owned() }).await?;
    done()
}

fn drive_list(report: Report) -> Answered {
    match report {
        Report::Drives(drives) => Ok(json!({ "drives": plain(&drives) }).into()),
        _ => Err(confused()),
    }
}

pub async fn drives(asked: Arc<Asked>, given: Given) -> Answered {
    drive_list(operate(&asked, Order::Drives { node: given.some_text("node").map(str::to_owned) }).await?)
}

pub async fn drive_losses(asked: Arc<Asked>, given: Given) -> Answered {
    let order =
        Order::DriveLosses { node: given.text("node").to_owned(), drive: given.text("drive").to_owned() };
    match operate(&asked, order).await? {
        Report::Lost(files) => lost_files(&files),
        _ => Err(confused()),
    }
}

pub async fn drive_add(asked: Arc<Asked>, given: Given) -> Answered {
    let DriveAdd { path, size_bytes } = given.body()?;
    if !path.starts_with('/') || path.contains(char::is_control) {
        return Err(Fault::invalid("`path` is an absolute path on that node"));
    }
    drive_list(
        operate(&asked, Order::DriveAdd { node: given.text("node").to_owned(), path, size_bytes }).await?,
    )
}

pub async fn drive_remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Force { force } = given.body()?;
    let (node, drive) = (given.text("node").to_owned(), given.text("drive").to_owned());
    drive_list(operate(&asked, Order::DriveRemove { node, drive, force }).await?)
}

pub async fn drive_cordon(asked: Arc<Asked>, given: Given) -> Answered {
    let DriveCordon { drive, cordoned } = given.body()?;
    drive_list(
        operate(&asked, Order::DriveCordon { node: given.text("node").to_owned(), drive, cordoned }).await?,
    )
}

pub async fn catalog(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::Catalog).await? {
        Report::Catalog(catalog) => Ok(plain(&catalog).into()),
        _ => Err(confused()),
    }
}

pub async fn promote(asked: Arc<Asked>, given: Given) -> Answered {
    let Promote { accept_loss } = given.body()?;
    match operate(&asked, Order::CatalogPromote { accept_loss }).await? {
        Report::Promoted(promotion) => Ok(plain(&promotion).into()),
        _ => Err(confused()),
    }
}

pub async fn detach(asked: Arc<Asked>, given: Given) -> Answered {
    let Detach { node } = given.body()?;
    operate(&asked, Order::CatalogDetach { node }).await?;
    done()
}
