//! Alertmanager, API v2: a list of alerts. Labels are what an alert is known by; they stay the same until it ends.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{OrderKind, OrderStatus, Severity, WorkOrder, json, words};
use crate::time::Time;

/// How long an alert stands without a further word from us. Without an end Alertmanager would take it back after minutes.
const STANDS_MS: u64 = 30 * 86_400_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    labels: BTreeMap<&'static str, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
}

pub(super) fn body(order: &WorkOrder) -> Vec<u8> {
    let place = &order.location;
    let name = match order.kind {
        OrderKind::Repair => "StokerWorkOrder",
        OrderKind::Escalation => "StokerEscalation",
    };
    let severity = match order.severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
        Severity::Critical => "critical",
    };
    let labels = [
        ("alertname", name),
        ("severity", severity),
        ("cluster", &order.cluster),
        ("order", &order.key),
        ("part", &order.of()),
        ("cell", &place.cell),
        ("tor", &place.tor),
        ("power", &place.power),
        ("node", &place.node),
    ];
    let evidence: Vec<String> = order.evidence.iter().map(words).collect();
    let annotations = [
        ("summary", &order.title),
        ("description", &order.text()),
        ("task", &order.task),
        ("reason", &order.reason),
        ("evidence", &evidence.join("\n")),
        ("location", &format!("{} {} {}", place.node_name, place.place, place.detail).trim().to_owned()),
    ];
    let ends = match order.status {
        OrderStatus::Opened | OrderStatus::Updated => Time(order.at.0.saturating_add(STANDS_MS)),
        OrderStatus::Closed => order.at,
    };
    json(&[Alert {
        labels: labels.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (*k, (*v).to_owned())).collect(),
        annotations: annotations
            .iter()
            .filter(|(_, v)| !v.is_empty())
            .map(|(k, v)| (*k, (*v).clone()))
            .collect(),
        starts_at: order.opened.rfc3339(),
        ends_at: ends.rfc3339(),
    }])
}
