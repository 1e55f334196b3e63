//! Calls about objectives and the break-fix loop.
//!
//! Whoever leads the loop writes what it decided into a note of the catalog, and reads from another what people tell it. Both are
//! JSON, and both are read and written here with types of their own: a node of another release may lead.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_store::{ErrorKind, NodeInfo, Order, PartWeight, Report, StoreError};

use super::given::Given;
use super::shape::plain;
use super::{Answered, Fault, confused, done, operate};
use crate::answer::Asked;
use crate::clock;

/// The note of whoever leads.
const NOTE: &str = "reflex";

/// The note in which people tell the loop something.
const WISHES: &str = "reflex-wishes";

/// A leader writes every few seconds, and another takes over after twenty. Beyond this nobody looks, whatever clocks say.
const SILENT_AFTER_MS: u64 = 60_000;

/// Longest name of a part that is taken.
const PART_LEN_MAX: usize = 300;

/// What the leader wrote down, as far as it is shown.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Head {
    node: String,
    at_ms: u64,
    weights: Vec<PartWeight>,
    shown: Shown,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shown {
    parts: Vec<Part>,
    parts_more: u64,
    budgets: Vec<Budget>,
    notices: Vec<Notice>,
    acts: bool,
}

#[derive(Deserialize)]
struct Part {
    part: String,
    state: String,
    opened: u64,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    evidence: Vec<Finding>,
    #[serde(default)]
    has_order: bool,
}

#[derive(Deserialize)]
struct Finding {
    what: String,
    part: String,
    found: String,
    #[serde(default)]
    limit: String,
    since: u64,
    #[serde(default)]
    periods: u64,
}

#[derive(Deserialize)]
struct Budget {
    indicator: String,
    status: BudgetStatus,
}

#[derive(Deserialize)]
struct BudgetStatus {
    good: u64,
    bad: u64,
    left: f64,
    burn_5m: Option<f64>,
    burn_1h: Option<f64>,
    burn_6h: Option<f64>,
    burning: Option<String>,
}

#[derive(Deserialize)]
struct Notice {
    target: String,
    title: String,
    tries: u64,
    why: Option<String>,
    parked: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Repaired {
    part: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Part {
    fn kind(&self) -> &str {
        self.part.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// The id of its node, and what it is called there; none for what is not of a node.
    fn place(&self) -> (Option<&str>, Option<&str>) {
        let Some((kind, name)) = self.part.split_once('/') else { return (None, None) };
        match (kind, name.split_once(':')) {
            ("node", _) => (Some(name), None),
            ("drive" | "port", Some((node, piece))) => (Some(node), Some(piece)),
            _ => (None, None),
        }
    }
}

/// Whether the loop does something when it hears that a part of this kind and in this state was repaired: it has the gate measure it.
pub fn can_be_repaired(kind: &str, state: &str) -> bool {
    match kind {
        "drive" => matches!(state, "down" | "quarantined" | "repair"),
        "node" => matches!(state, "quarantined" | "repair"),
        _ => false,
    }
}

fn part(part: &Part, nodes: &[NodeInfo]) -> Value {
    let (node, piece) = part.place();
    let info = nodes.iter().find(|info| Some(info.node.as_str()) == node);
    let findings = part.evidence.iter().map(|finding| {
        json!({
            "what": finding.what,
            "part": finding.part,
            "found": finding.found,
            "limit": finding.limit,
            "since_ms": finding.since,
            "periods": finding.periods,
        })
    });
    json!({
        "part": part.part,
        "kind": part.kind(),
        "node": node,
        "name": info.map(|info| info.name.as_str()),
        "piece": piece,
        "state": part.state,
        "since_ms": part.opened,
        "reason": part.reason,
        "evidence": findings.collect::<Vec<Value>>(),
        "has_order": part.has_order,
        "can_be_repaired": can_be_repaired(part.kind(), &part.state),
    })
}

fn budget(Budget { indicator, status }: &Budget) -> Value {
    json!({
        "objective": indicator,
        "good": status.good,
        "bad": status.bad,
        "left_percent": 100.0 * status.left,
        "burn_5m": status.burn_5m,
        "burn_1h": status.burn_1h,
        "burn_6h": status.burn_6h,
        "burning": status.burning,
    })
}

fn notice(notice: &Notice) -> Value {
    json!({
        "target": notice.target,
        "title": notice.title,
        "tries": notice.tries,
        "why": notice.why,
        "refused": notice.parked,
    })
}

/// The note as text.
async fn note(asked: &Asked) -> Result<Option<String>, Fault> {
    match operate(asked, Order::Note { name: NOTE.to_owned() }).await? {
        Report::Note(text) => Ok(text.filter(|text| !text.trim().is_empty())),
        _ => Err(confused()),
    }
}

/// There is nothing to show, and these words say why.
fn nothing(state: &str, words: String) -> Value {
    json!({
        "state": state, "words": words, "leader": null, "at_ms": null, "age_ms": null, "acts": false,
        "parts": [], "parts_more": 0, "budgets": [], "notices": [], "weights": [],
    })
}

pub async fn slo(asked: Arc<Asked>, _: Given) -> Answered {
    let Some(text) = note(&asked).await? else {
        let words = "nobody leads yet: the loop begins a few seconds after the first node";
        return Ok(nothing("nobody", words.to_owned()).into());
    };
    let head: Head = match serde_json::from_str(&text) {
        Ok(head) => head,
        Err(error) => {
            let words = format!(
                "what the leading node wrote down is not understood here: {error}; it may be of another release"
            );
            return Ok(nothing("not_understood", words).into());
        }
    };
    let nodes = match head.shown.parts.is_empty() {
        true => Vec::new(),
        false => match operate(&asked, Order::Nodes).await? {
            Report::Nodes(nodes) => nodes,
            _ => return Err(confused()),
        },
    };
    let age_ms = clock::unix_ms().saturating_sub(head.at_ms);
    let (state, words) = match age_ms > SILENT_AFTER_MS {
        true => (
            "silent",
            format!("nobody looks: {} led last, and wrote nothing for {} s", head.node, age_ms / 1_000),
        ),
        false => ("leads", format!("{} leads", head.node)),
    };
    Ok(json!({
        "state": state,
        "words": words,
        "leader": head.node,
        "at_ms": head.at_ms,
        "age_ms": age_ms,
        "acts": head.shown.acts,
        "parts": head.shown.parts.iter().map(|one| part(one, &nodes)).collect::<Vec<Value>>(),
        "parts_more": head.shown.parts_more,
        "budgets": head.shown.budgets.iter().map(budget).collect::<Vec<Value>>(),
        "notices": head.shown.notices.iter().map(notice).collect::<Vec<Value>>(),
        "weights": plain(&head.weights),
    })
    .into())
}

/// Objectives whose budget burns too fast; none if nobody looks, or it is not understood here.
pub async fn burning(asked: &Asked) -> Result<Vec<String>, Fault> {
    let head: Head = note(asked).await?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let burns = |budget: &&Budget| budget.status.burning.is_some();
    Ok(head.shown.budgets.iter().filter(burns).map(|budget| budget.indicator.clone()).collect())
}

async fn wish(asked: &Asked, wish: &Value) -> Answered {
    operate(asked, Order::NoteAdd { name: WISHES.to_owned(), line: wish.to_string() }).await?;
    done()
}

pub async fn repaired(asked: Arc<Asked>, given: Given) -> Answered {
    let Repaired { part } = given.body()?;
    if part.len() > PART_LEN_MAX || part.contains(char::is_control) || !part.contains('/') {
        return Err(Fault::invalid("`part` is one that GET /api/v1/slo lists, such as drive/NODE:PATH"));
    }
    // One that is not understood, or lists not all, cannot say what there is: the leader decides.
    let head: Option<Head> = match note(&asked).await? {
        Some(text) => serde_json::from_str(&text).ok(),
        None => Some(Head::default()),
    };
    if let Some(Shown { parts, parts_more, .. }) = head.map(|head| head.shown) {
        match parts.iter().find(|known| known.part == part) {
            Some(known) if !can_be_repaired(known.kind(), &known.state) => {
                let words = format!("`{part}` is {}: nothing follows from its repair now", known.state);
                return Err(StoreError::new(ErrorKind::Conflict, words).into());
            }
            None if parts_more == 0 => {
                let error = format!("nothing is known to be wrong with `{part}`");
                return Err(Fault::not_found(error, "GET /api/v1/slo lists the parts that are in trouble"));
            }
            _ => {}
        }
    }
    wish(&asked, &json!({ "repaired": part })).await
}

pub async fn retry(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    wish(&asked, &json!("retry")).await
}
