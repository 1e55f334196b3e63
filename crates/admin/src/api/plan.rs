//! Calls of the planner: what it takes, what it says, what it said before. The numbers are those of the command line.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use stoker_planner::{
    CONSTANTS, Calibration, Constants, Inputs, KINDS, Ledger, Misfit, Model, Plan, ledger, spec, what_if,
};
use stoker_store::{ErrorKind, Measures, Order, Report, Store};

use super::given::Given;
use super::shape::plain;
use super::{Answered, Fault, confused, operate, store};
use crate::answer::Asked;
use crate::clock;

/// Nodes that are asked for what they measured.
const NODES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanRequest {
    #[serde(default)]
    model: Option<String>,
    inputs: Map<String, Value>,
    #[serde(default)]
    calibration: Option<Value>,
    #[serde(default)]
    change: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanKeep {
    kind: String,
    job: String,
    #[serde(default)]
    model: Option<String>,
    inputs: Map<String, Value>,
    #[serde(default)]
    calibration: Option<Value>,
}

fn refused(misfits: &[Misfit]) -> Fault {
    let told: Vec<String> = misfits.iter().map(|one| format!("`{}`: {}", one.field, one.message)).collect();
    let hints: Vec<&str> = misfits.iter().map(|one| one.hint.as_str()).collect();
    Fault { hint: hints.join("; "), ..Fault::invalid(told.join("; ")) }
}

fn one(misfit: Misfit) -> Fault {
    refused(&[misfit])
}

/// What it can plan, and what for.
pub async fn models(_: Arc<Asked>, _: Given) -> Answered {
    let specs = KINDS.iter().flat_map(|kind| [Model::Stoker, Model::Lab].map(|model| (kind, model)));
    let specs = specs.filter_map(|(kind, model)| {
        let mut described = spec(kind, model).ok()?.describe();
        described["model"] = model.word().into();
        Some(described)
    });
    let constants = CONSTANTS
        .iter()
        .map(|one| json!({ "name": one.name, "value": one.value, "unit": one.unit, "words": one.words }));
    let changes = what_if::CHANGES.iter().map(|(name, words)| json!({ "name": name, "words": words }));
    Ok(json!({
        "models": specs.collect::<Vec<_>>(),
        "constants": constants.collect::<Vec<_>>(),
        "changes": changes.collect::<Vec<_>>(),
    })
    .into())
}

fn made(
    kind: &str,
    model: Option<&str>,
    inputs: &Map<String, Value>,
    calibration: Option<&Value>,
) -> Result<(Inputs, Constants), Fault> {
    let model = model.map_or(Ok(Model::Stoker), Model::parse).map_err(one)?;
    let inputs = Inputs::from_json(spec(kind, model).map_err(one)?, inputs).map_err(|all| refused(&all))?;
    let constants = match calibration {
        Some(value) if !value.is_null() => {
            Constants::with(Calibration::parse(&value.to_string()).map_err(|all| refused(&all))?)
        }
        _ => Constants::default(),
    };
    Ok((inputs, constants))
}

/// Makes a plan.
pub async fn plan(_: Arc<Asked>, given: Given) -> Answered {
    let asked: PlanRequest = given.body()?;
    let (inputs, constants) =
        made(given.text("kind"), asked.model.as_deref(), &asked.inputs, asked.calibration.as_ref())?;
    let plan: Plan = stoker_planner::plan(&inputs, &constants);
    let mut value = plain(&plan);
    if let Some(change) = asked.change {
        let compared = what_if::compare(&inputs, &constants, &change).map_err(one)?;
        value["moved"] = compared.map_or(Value::Null, |(_, moved)| plain(&moved));
    }
    Ok(value.into())
}

/// What nodes measured, in the place of constants.
pub async fn calibration(asked: Arc<Asked>, _: Given) -> Answered {
    let Report::Nodes(nodes) = operate(&asked, Order::Nodes).await? else { return Err(confused()) };
    let mut measured: Vec<Measures> = Vec::new();
    for node in nodes.iter().filter(|node| node.state == "up").take(NODES_MAX) {
        // One that does not answer is left out.
        if let Ok(Report::Measures(one)) =
            operate(&asked, Order::Measures { node: Some(node.node.clone()) }).await
        {
            measured.push(*one);
        }
    }
    Ok(plain(&Calibration::of_measures(&measured, clock::unix_ms())).into())
}

async fn read_ledger(store: &dyn Store) -> Result<String, Fault> {
    let mut text = String::new();
    for number in 0..ledger::PAGES_MAX {
        let Some(name) = ledger::page(number) else { break };
        match store.operate(Order::Note { name }).await? {
            Report::Note(Some(page)) => text.push_str(&page),
            Report::Note(None) => break,
            _ => return Err(confused()),
        }
    }
    Ok(text)
}

/// What was predicted, and how far it was off.
pub async fn kept(asked: Arc<Asked>, _: Given) -> Answered {
    let ledger = Ledger::parse(&read_ledger(store(&asked)?).await?);
    Ok(json!({
        "entries": ledger.entries,
        "skipped": ledger.skipped,
        "errors": ledger.errors(),
        "over_time": ledger.errors_over_time(),
    })
    .into())
}

/// Keeps a prediction for a job.
pub async fn keep(asked: Arc<Asked>, given: Given) -> Answered {
    let wanted: PlanKeep = given.body()?;
    if wanted.job.trim().is_empty() {
        return Err(Fault::invalid(
            "`job` is empty: a prediction is kept for a job, which shows whether it comes true",
        ));
    }
    let (inputs, constants) =
        made(&wanted.kind, wanted.model.as_deref(), &wanted.inputs, wanted.calibration.as_ref())?;
    let plan = stoker_planner::plan(&inputs, &constants);
    let (id, line) = ledger::prediction(&plan, &inputs, clock::unix_ms(), &wanted.job).map_err(one)?;
    let store = store(&asked)?;
    for number in 0..ledger::PAGES_MAX {
        let Some(name) = ledger::page(number) else { break };
        match store.operate(Order::NoteAdd { name, line: line.clone() }).await {
            Ok(_) => return Ok(json!({ "id": id }).into()),
            // The page is full.
            Err(error) if error.kind == ErrorKind::Conflict => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::invalid("the ledger is full: export it, and keep further predictions in a file"))
}
