//! PagerDuty, Events API v2. A trigger with a key that is open already adds to it; a resolve ends it.

use serde::Serialize;

use super::{OrderStatus, Severity, WorkOrder, json, short};

/// Characters of a summary that PagerDuty takes.
const SUMMARY_MAX: usize = 1_024;

#[derive(Serialize)]
struct Event<'a> {
    routing_key: &'a str,
    event_action: &'static str,
    dedup_key: &'a str,
    client: &'static str,
    payload: Payload<'a>,
}

#[derive(Serialize)]
struct Payload<'a> {
    summary: String,
    source: &'a str,
    severity: &'static str,
    timestamp: String,
    component: String,
    group: &'a str,
    class: &'static str,
    custom_details: &'a WorkOrder,
}

pub(super) fn body(order: &WorkOrder, routing_key: &str) -> Vec<u8> {
    let event_action = match order.status {
        OrderStatus::Opened | OrderStatus::Updated => "trigger",
        OrderStatus::Closed => "resolve",
    };
    let severity = match order.severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
        Severity::Critical => "critical",
    };
    json(&Event {
        routing_key,
        event_action,
        dedup_key: &order.key,
        client: "Stoker",
        payload: Payload {
            summary: short(&order.title, SUMMARY_MAX),
            source: order.source(),
            severity,
            timestamp: order.at.rfc3339(),
            component: order.of(),
            group: if order.location.cell.is_empty() { &order.cluster } else { &order.location.cell },
            class: order.part.as_ref().map_or("objective", |part| part.kind.word()),
            custom_details: order,
        },
    })
}
