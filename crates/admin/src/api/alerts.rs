//! What wants a person now, as far as this node knows: the same names as the rules for Prometheus, for those who have none.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use stoker_store::{
    CatalogStatus, DriveInfo, HistoryPoint, NodeInfo, NodeStatus, Order, Outages, Rebuild, Report,
    RiskReport, figure, name_ids,
};

use super::given::Given;
use super::{Answered, history, operate, slo};
use crate::answer::{Asked, reasons, within};
use crate::capacity::{Capacity, span};
use crate::clock;

/// Longest wait for each of the things that are looked at. What does not answer is named.
const ANSWER_MAX: Duration = Duration::from_millis(1_800);
/// Changes that wait for longer than this are behind.
const DRAIN_LAG_S_MAX: f64 = 900.0;
/// Shares of a ring that must stay: from here on it fills, from here on it is full.
const FILLING: f64 = 0.8;
const FULL: f64 = 0.97;
/// Full so soon wants somebody today.
const FULL_SOON_S: u64 = 86_400;
/// Share of S3 requests that may fail.
const ERRORS_MAX: f64 = 0.02;
/// Alerts of an answer.
const ALERTS_MAX: usize = 200;

/// Something that wants a person.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Alert {
    /// `page`: somebody acts now; `warn`: somebody looks today.
    pub severity: &'static str,
    /// As in the rules for Prometheus.
    pub alert: &'static str,
    /// The node that it is about, if it is about one.
    pub node: Option<String>,
    pub summary: String,
    pub action: String,
}

/// What is known now; what could not be asked is empty.
#[derive(Default)]
struct Seen {
    now_ms: u64,
    status: Option<NodeStatus>,
    nodes: Vec<NodeInfo>,
    drives: Vec<DriveInfo>,
    risk: Option<RiskReport>,
    catalog: Option<CatalogStatus>,
    rebuild: Option<Rebuild>,
    burning: Vec<String>,
    capacity: Capacity,
    latest: Option<HistoryPoint>,
    outages: Outages,
}

/// Collects alerts.
#[derive(Default)]
struct Alerts(Vec<Alert>);

impl Alerts {
    fn add(&mut self, severity: &'static str, alert: &'static str, summary: String, action: &str) {
        self.0.push(Alert { severity, alert, node: None, summary, action: action.to_owned() });
    }

    fn of_node(
        &mut self,
        severity: &'static str,
        alert: &'static str,
        node: &str,
        summary: String,
        action: &str,
    ) {
        let node = Some(node.to_owned());
        self.0.push(Alert { severity, alert, node, summary, action: action.to_owned() });
    }
}

fn of_nodes(seen: &Seen, alerts: &mut Alerts) {
    for node in &seen.nodes {
        let name = if node.name.is_empty() { &node.node } else { &node.name };
        let age = |since_ms: u64| span(seen.now_ms.saturating_sub(since_ms) / 1_000);
        if node.state == "down" {
            let action = "Start it again, or take it out for good. `stoker rebuild status` says how far the protection of what it held is.";
            let summary = format!("{name} has been down for {}", age(node.since_ms));
            alerts.of_node("page", "StokerNodeDown", name, summary, action);
        } else if let Some(since_ms) = node.silent_since_ms {
            let action = "After the grace period it is declared down, and what it held is protected again.";
            let summary = format!("{name} has not answered for {}", age(since_ms));
            alerts.of_node("warn", "StokerNodeSilent", name, summary, action);
        }
    }
    for drive in &seen.drives {
        let share = if drive.bytes > 0 { drive.keep_bytes as f64 / drive.bytes as f64 } else { 0.0 };
        let percent = (100.0 * share) as u64;
        let (name, path) = (&drive.name, &drive.path);
        if ["failed", "gone"].contains(&drive.state.as_str()) {
            let why = drive.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let has = if drive.state == "gone" { "is gone" } else { "has failed" };
            let summary = format!("the drive {path} of {name} {has}{why}");
            let action = "Replace it: `stoker drive replace`. Or take it out on the page of its node.";
            alerts.of_node("page", "StokerDriveFailed", name, summary, action);
        } else if share >= FULL {
            let summary = format!("the drive {path} of {name} is full: {percent} % must stay");
            let action = "Nothing more fits until the lake has some of it. Is the lake slow or away? Else add a drive.";
            alerts.of_node("page", "StokerRingFull", name, summary, action);
        } else if share >= FILLING {
            let summary = format!("the drive {path} of {name} fills up: {percent} % must stay");
            alerts.of_node(
                "warn",
                "StokerRingFilling",
                name,
                summary,
                "Is the lake slow or away? Else add a drive.",
            );
        }
    }
}

fn of_data(seen: &Seen, alerts: &mut Alerts) {
    if let Some(risk) = seen.risk.as_ref().filter(|risk| risk.lost_files > 0) {
        let summary = format!("{} files cannot be read now", risk.lost_files);
        let action =
            "`stoker risk --lost` lists them and says which nodes to bring back; so does the log page.";
        alerts.add("page", "StokerMendFailed", summary, action);
    }
    if let Some(trouble) = seen.rebuild.as_ref().and_then(|rebuild| rebuild.trouble.as_ref()) {
        let summary = format!("what lost a copy cannot be protected again: {trouble}");
        alerts.add("page", "StokerRebuildTrouble", summary, "`stoker rebuild status` says what is left.");
    }
    if let Some(catalog) = &seen.catalog {
        let action = "Start the nodes that keep it. If a majority is gone for good: `stoker catalog promote` on one that has a copy.";
        if let Some(trouble) = &catalog.trouble {
            alerts.add(
                "page",
                "StokerCatalogFailures",
                format!("the catalog does not answer: {trouble}"),
                action,
            );
        } else if catalog.stalled {
            let summary = "the catalog acknowledges nothing: too few followers answer".to_owned();
            alerts.add(
                "page",
                "StokerCatalogFailures",
                summary,
                "Bring the followers back, or detach one that is gone.",
            );
        }
    }
    if let Some(status) = &seen.status {
        if !status.ready {
            let summary = format!("this node takes no requests: {}", reasons(status, &seen.outages));
            alerts.add("page", "StokerNotReady", summary, "Its log says more.");
        }
        if let Some(trouble) = &status.lake_trouble {
            let summary = format!("the lake does not answer as it should: {trouble}");
            alerts.add("warn", "StokerLakeTrouble", summary, "Writes stay on the drives until it does.");
        }
        if status.conflicts > 0 {
            let summary =
                format!("{} versions are in conflict: somebody else changed the lake", status.conflicts);
            alerts.add("warn", "StokerConflicts", summary, "Decide which stays, on the page of volumes.");
        }
    }
}

fn of_figures(seen: &Seen, alerts: &mut Alerts) {
    let value = |name: &str| seen.latest.as_ref().and_then(|point| point.value(figure(name)?));
    if let Some(lag_s) = value("drain_lag_s").filter(|lag_s| *lag_s > DRAIN_LAG_S_MAX) {
        let summary = format!("changes have waited for the lake for {}", span(lag_s as u64));
        alerts.add("warn", "StokerDrainBehind", summary, "Is the lake slow, or a volume's drain on demand?");
    }
    if let (Some(errors), Some(requests)) = (value("errors_per_s"), value("requests_per_s"))
        && errors > ERRORS_MAX * requests
    {
        let percent = 100.0 * errors / requests.max(errors);
        let summary = format!("{percent:.0} % of the S3 requests fail");
        alerts.add("page", "StokerS3Errors", summary, "The log of the nodes says why.");
    }
    if let Some(full_in_s) = seen.capacity.full_in_s.filter(|seconds| *seconds < FULL_SOON_S) {
        let summary = format!("the drives are full in {} at this rate", span(full_in_s));
        let action = "Is the lake slow or away? Else add drives or nodes.";
        alerts.add("warn", "StokerFullSoon", summary, action);
    }
    for objective in &seen.burning {
        let summary = format!("the budget of `{objective}` burns too fast");
        alerts.add("warn", "StokerBudgetBurning", summary, "`stoker slo` says which parts are in trouble.");
    }
}

/// What follows from what is known, the urgent first.
fn alerts(seen: &Seen) -> Vec<Alert> {
    let mut alerts = Alerts::default();
    of_data(seen, &mut alerts);
    of_nodes(seen, &mut alerts);
    of_figures(seen, &mut alerts);
    let mut all = alerts.0;
    let name = |id: &str| seen.nodes.iter().find(|node| node.node == id).map(|node| node.name.clone());
    for alert in &mut all {
        alert.summary = name_ids(&alert.summary, name).into_owned();
    }
    all.sort_by_key(|alert| alert.severity != "page");
    all.truncate(ALERTS_MAX);
    all
}

/// An answer in time, or why there is none.
async fn soon<T>(
    what: &str,
    unknown: &std::sync::Mutex<Vec<String>>,
    call: impl Future<Output = Result<T, super::Fault>>,
) -> Option<T> {
    let why = match tokio::time::timeout(ANSWER_MAX, call).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(fault)) => fault.error,
        Err(_) => "no answer in time".to_owned(),
    };
    unknown.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(format!("{what}: {why}"));
    None
}

pub async fn all(asked: Arc<Asked>, _: Given) -> Answered {
    let unknown = std::sync::Mutex::default();
    let status =
        async { within(ANSWER_MAX, asked.watched.status()).await.map_err(super::Fault::unavailable) };
    let (status, nodes, drives, risk, catalog, rebuild, burning, past) = tokio::join!(
        soon("this node", &unknown, status),
        soon("nodes", &unknown, operate(&asked, Order::Nodes)),
        soon("drives", &unknown, operate(&asked, Order::Drives { node: None })),
        soon("risk", &unknown, operate(&asked, Order::Risk)),
        soon("catalog", &unknown, operate(&asked, Order::Catalog)),
        soon("rebuild", &unknown, operate(&asked, Order::Rebuild)),
        soon("objectives", &unknown, slo::burning(&asked)),
        soon("history", &unknown, history::capacity_and_latest(&asked)),
    );
    let (capacity, latest) = past.unwrap_or_default();
    let mut seen = Seen { now_ms: clock::unix_ms(), status, capacity, latest, ..Seen::default() };
    (seen.burning, seen.outages) = (burning.unwrap_or_default(), super::outages(&asked).await);
    for report in [nodes, drives, risk, catalog, rebuild].into_iter().flatten() {
        match report {
            Report::Nodes(nodes) => seen.nodes = nodes,
            Report::Drives(drives) => seen.drives = drives,
            Report::Risk(risk) => seen.risk = Some(risk),
            Report::Catalog(catalog) => seen.catalog = Some(catalog),
            Report::Rebuild(rebuild) => seen.rebuild = Some(rebuild),
            _ => {}
        }
    }
    let mut unknown = unknown.into_inner().unwrap_or_default();
    unknown.sort();
    Ok(json!({ "alerts": alerts(&seen), "not_known": unknown, "capacity": capacity_json(&seen.capacity) })
        .into())
}

fn capacity_json(capacity: &Capacity) -> Value {
    super::shape::plain(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::FIGURES;

    fn named(seen: &Seen) -> Vec<(&'static str, &'static str)> {
        alerts(seen).iter().map(|alert| (alert.severity, alert.alert)).collect()
    }

    fn node(name: &str, state: &str, silent_since_ms: Option<u64>) -> NodeInfo {
        NodeInfo {
            node: "ab".into(),
            name: name.into(),
            cell: String::new(),
            tor: String::new(),
            power: String::new(),
            state: state.into(),
            since_ms: 1_000,
            silent_since_ms,
            drives: 1,
            drives_gone: 0,
            undrained_files: 0,
            undrained_bytes: 0,
            latency_us: 0,
        }
    }

    #[test]
    fn a_sound_cluster_has_none() {
        let seen = Seen { nodes: vec![node("a", "up", None)], ..Seen::default() };
        assert_eq!(named(&seen), []);
    }

    #[test]
    fn lost_nodes_and_the_catalog_are_named_with_the_cure() {
        let catalog = CatalogStatus {
            engine: "embedded".into(),
            holder: None,
            epoch: "1".into(),
            seq: 7,
            stalled: true,
            alone: false,
            standbys: Vec::new(),
            trouble: Some(format!("node {} is gone", "ab".repeat(16))),
        };
        let first = NodeInfo { node: "ab".repeat(16), ..node("node-1", "down", Some(5)) };
        let nodes = vec![first, node("node-2", "up", Some(1_000)), node("", "up", None)];
        let seen = Seen { now_ms: 181_000, catalog: Some(catalog), nodes, ..Seen::default() };
        let expect =
            [("page", "StokerCatalogFailures"), ("page", "StokerNodeDown"), ("warn", "StokerNodeSilent")];
        assert_eq!(named(&seen), expect);
        let all = alerts(&seen);
        assert!(all[0].action.contains("stoker catalog promote"), "{all:?}");
        assert_eq!(all[0].summary, "the catalog does not answer: node node-1 is gone");
        assert_eq!(
            (all[1].summary.as_str(), all[1].node.as_deref()),
            ("node-1 has been down for 3 min", Some("node-1"))
        );
    }

    #[test]
    fn figures_over_their_limits_are_told() {
        let point = |values: &[(&str, f32)]| {
            let mut all = [f32::NAN; FIGURES.len()];
            values.iter().for_each(|(name, value)| all[figure(name).unwrap()] = *value);
            Some(HistoryPoint::new(0, &all))
        };
        let latest = point(&[("drain_lag_s", 4_000.0), ("errors_per_s", 3.0), ("requests_per_s", 10.0)]);
        let capacity = Capacity { full_in_s: Some(3_600), ..Capacity::default() };
        let seen = Seen { latest, capacity, burning: vec!["read_p99".into()], ..Seen::default() };
        let expect = [
            ("page", "StokerS3Errors"),
            ("warn", "StokerDrainBehind"),
            ("warn", "StokerFullSoon"),
            ("warn", "StokerBudgetBurning"),
        ];
        assert_eq!(named(&seen), expect);
        let fine = point(&[("drain_lag_s", 4.0), ("errors_per_s", 0.0), ("requests_per_s", 0.0)]);
        assert_eq!(named(&Seen { latest: fine, ..Seen::default() }), []);
    }
}
