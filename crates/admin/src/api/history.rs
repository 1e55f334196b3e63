//! Calls about the past: figures over time, of all nodes or of one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use stoker_store::{FIGURES, History, HistoryNode, HistoryPoint, Order, Report};
use tokio::time::Instant;

use super::given::Given;
use super::{Answered, Fault, confused, operate};
use crate::answer::Asked;
use crate::capacity::{Capacity, forecast};
use crate::clock;

/// How old an answer may be: it is asked of every node, and every open console asks.
const AGE_MAX: Duration = Duration::from_secs(3);
/// What is shown if nothing is said.
const WINDOW_S: u64 = 900;
/// Points that a window should have at most.
const POINTS: u64 = 300;
/// Steps that fit whole into each other, and into what nodes keep.
const STEPS_S: [u64; 9] = [10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 14_400];
/// What a trend is made of.
const TREND_S: u64 = 86_400;

/// The finest step with which a window has few enough points.
fn step_s(window_s: u64) -> u64 {
    let fits = |step_s: &&u64| window_s / **step_s <= POINTS;
    STEPS_S.iter().find(fits).copied().unwrap_or(STEPS_S[STEPS_S.len() - 1])
}

async fn ask(asked: &Asked, node: Option<String>, window_s: u64) -> Result<History, Fault> {
    let since_ms = clock::unix_ms().saturating_sub(window_s * 1_000);
    let order = Order::History { node, since_ms, every_ms: step_s(window_s) * 1_000 };
    match operate(asked, order).await? {
        Report::History(history) => Ok(*history),
        _ => Err(confused()),
    }
}

fn values(point: &HistoryPoint) -> Value {
    let named =
        FIGURES.iter().enumerate().map(|(at, (name, _))| ((*name).to_owned(), json!(point.value(at))));
    Value::Object(named.collect())
}

fn told(history: &History) -> Value {
    let column = |at: usize| history.points.iter().map(|point| point.value(at)).collect::<Vec<Option<f64>>>();
    let series: Map<String, Value> =
        FIGURES.iter().enumerate().map(|(at, (name, _))| ((*name).to_owned(), json!(column(at)))).collect();
    let node = |node: &HistoryNode| {
        json!({
            "node": node.node,
            "name": node.name,
            "answers": node.answers,
            "at_ms": node.latest.as_ref().map(|point| point.at_ms),
            "latest": node.latest.as_ref().map(values),
        })
    };
    json!({
        "every_ms": history.every_ms,
        "at_ms": history.points.iter().map(|point| point.at_ms).collect::<Vec<u64>>(),
        "series": series,
        "nodes": history.nodes.iter().map(node).collect::<Vec<Value>>(),
    })
}

pub async fn history(asked: Arc<Asked>, given: Given) -> Answered {
    let (node, window_s) = (given.some_text("node"), given.number("window_s").unwrap_or(WINDOW_S));
    let key = format!("history {window_s} {}", node.unwrap_or_default());
    if let Some(value) = asked.recent.get(&key, AGE_MAX, Instant::now()) {
        return Ok(value.into());
    }
    let value = told(&ask(&asked, node.map(str::to_owned), window_s).await?);
    asked.recent.put(key, value.clone(), Instant::now());
    Ok(value.into())
}

/// How full all is, and the newest figures of all.
pub async fn capacity_and_latest(asked: &Asked) -> Result<(Capacity, Option<HistoryPoint>), Fault> {
    let (trend, recent) = tokio::join!(ask(asked, None, TREND_S), ask(asked, None, WINDOW_S));
    let (trend, recent) = (trend?, recent?);
    let mut capacity = forecast(&trend);
    // The trend's last point is minutes old, and of a new cluster there is none.
    let now = forecast(&recent);
    if !recent.points.is_empty() {
        (capacity.space_bytes, capacity.keep_bytes) = (now.space_bytes, now.keep_bytes);
        capacity.clean_bytes = now.clean_bytes;
    }
    Ok((capacity, recent.points.last().cloned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_few_points() {
        for (window_s, expect) in
            [(1, 10), (900, 10), (3_600, 30), (86_400, 300), (7 * 86_400, 3_600), (30 * 86_400, 14_400)]
        {
            assert_eq!(step_s(window_s), expect, "{window_s}");
        }
        assert!(STEPS_S.iter().zip(&STEPS_S[1..]).all(|(one, next)| next % one == 0));
    }
}
