//! Calls about lakes with names, and second lakes of volumes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use stoker_store::{LakeChange, LakeInfo, Order, ReplicaInfo, Report, TierOrder, TierReport};

use super::given::Given;
use super::shape::plain;
use super::{Answered, Fault, confused, done, operate};
use crate::answer::Asked;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaSet {
    #[serde(default)]
    lake: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LakePromote {
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    rules: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyNew {
    name: String,
    rules: String,
}

async fn ask(asked: &Asked, order: TierOrder) -> Result<TierReport, Fault> {
    match operate(asked, Order::Tiers(order)).await? {
        Report::Tiers(report) => Ok(report),
        _ => Err(confused()),
    }
}

async fn one_lake(asked: &Asked, order: TierOrder) -> Answered {
    match ask(asked, order).await? {
        TierReport::Lakes(lakes) => {
            let lake: LakeInfo = lakes.into_iter().next().ok_or_else(confused)?;
            Ok(plain(&lake).into())
        }
        _ => Err(confused()),
    }
}

async fn some_replicas(asked: &Asked, order: TierOrder) -> Answered {
    match ask(asked, order).await? {
        TierReport::Replicas(replicas) => {
            let replicas: Vec<ReplicaInfo> = replicas;
            Ok(json!({ "replicas": plain(&replicas) }).into())
        }
        _ => Err(confused()),
    }
}

pub async fn lakes(asked: Arc<Asked>, _: Given) -> Answered {
    match ask(&asked, TierOrder::Lakes).await? {
        TierReport::Lakes(lakes) => Ok(json!({ "lakes": plain(&lakes) }).into()),
        _ => Err(confused()),
    }
}

pub async fn add(asked: Arc<Asked>, given: Given) -> Answered {
    let mut body: Map<String, Value> = given.body()?;
    let name = match body.remove("name") {
        Some(Value::String(name)) => name,
        _ => return Err(Fault::invalid("`name` is missing: the name of the lake")),
    };
    let change: LakeChange =
        serde_json::from_value(Value::Object(body)).map_err(|fault| Fault::invalid(fault.to_string()))?;
    one_lake(&asked, TierOrder::LakeAdd { name, change: Box::new(change) }).await
}

pub async fn set(asked: Arc<Asked>, given: Given) -> Answered {
    let change: LakeChange = given.body()?;
    let name = given.text("lake").to_owned();
    one_lake(&asked, TierOrder::LakeSet { name, change: Box::new(change) }).await
}

pub async fn check(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    match ask(&asked, TierOrder::LakeCheck { name: given.text("lake").to_owned() }).await? {
        TierReport::Trials(trials) => {
            let is_well = trials.iter().all(|trial| trial.fault.is_none());
            Ok(json!({ "well": is_well, "trials": plain(&trials) }).into())
        }
        _ => Err(confused()),
    }
}

pub async fn remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    ask(&asked, TierOrder::LakeRemove { name: given.text("lake").to_owned() }).await?;
    done()
}

pub async fn replicas(asked: Arc<Asked>, _: Given) -> Answered {
    some_replicas(&asked, TierOrder::Replicas { volume: None }).await
}

pub async fn replica(asked: Arc<Asked>, given: Given) -> Answered {
    let ReplicaSet { lake } = given.body()?;
    some_replicas(&asked, TierOrder::ReplicaSet { volume: given.text("volume").to_owned(), lake }).await
}

pub async fn promote(asked: Arc<Asked>, given: Given) -> Answered {
    let LakePromote { to } = given.body()?;
    some_replicas(&asked, TierOrder::Promote { volume: given.text("volume").to_owned(), to }).await
}

pub async fn lacking(asked: Arc<Asked>, given: Given) -> Answered {
    let order = TierOrder::Lacking { volume: given.text("volume").to_owned(), after: None };
    match ask(&asked, order).await? {
        TierReport::Lacking(files, more) => Ok(json!({ "files": plain(&files), "more": more }).into()),
        _ => Err(confused()),
    }
}

pub async fn policies(asked: Arc<Asked>, _: Given) -> Answered {
    match ask(&asked, TierOrder::Policies).await? {
        TierReport::Policies(policies) => Ok(json!({ "policies": plain(&policies) }).into()),
        _ => Err(confused()),
    }
}

pub async fn policy_plan(asked: Arc<Asked>, given: Given) -> Answered {
    let PolicyText { rules } = given.body()?;
    match ask(&asked, TierOrder::PolicyPlan { text: rules }).await? {
        TierReport::Plan(plan) => Ok(plain(&plan).into()),
        _ => Err(confused()),
    }
}

pub async fn policy_set(asked: Arc<Asked>, given: Given) -> Answered {
    let PolicyNew { name, rules } = given.body()?;
    match ask(&asked, TierOrder::PolicySet { name, text: rules }).await? {
        TierReport::Policies(policies) => {
            let policy = policies.into_iter().next().ok_or_else(confused)?;
            Ok(plain(&policy).into())
        }
        _ => Err(confused()),
    }
}

pub async fn policy_remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    ask(&asked, TierOrder::PolicyRemove { name: given.text("policy").to_owned() }).await?;
    done()
}

pub async fn policy_moves(asked: Arc<Asked>, given: Given) -> Answered {
    let order = TierOrder::PolicyMoves { name: given.text("policy").to_owned(), after: None };
    match ask(&asked, order).await? {
        TierReport::Moves(moves, more) => Ok(json!({ "moves": plain(&moves), "more": more }).into()),
        _ => Err(confused()),
    }
}
