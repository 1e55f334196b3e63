//! Work orders: what is broken, where, and how it is known; and their bytes in the forms that others understand.
//!
//! Everything here is pure: a [`Request`] is bytes that the driver sends.

mod alertmanager;
mod pagerduty;
mod servicenow;
mod webhook;

use aws_lc_rs::{digest, hmac};
use serde::{Deserialize, Serialize};

use crate::config::Format;
use crate::events::Evidence;
use crate::part::{Location, PartId};
use crate::time::Time;

pub use servicenow::{find as servicenow_find, id_of as servicenow_id};

/// What is wanted of whoever gets it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// Repair or replace a part.
    Repair,
    /// Decide something.
    Escalation,
}

/// Which notice of a work order this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    /// The first.
    Opened,
    /// Something changed, such as that the part is empty now.
    Updated,
    /// The last.
    Closed,
}

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Look when there is time.
    Warning,
    /// Something is out.
    Error,
    /// Many are out, or nothing may be done without a person.
    Critical,
}

/// A work order, as it is in one of its notices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkOrder {
    /// The same in all notices of one incident, and in no others.
    pub key: String,
    /// What is wanted.
    pub kind: OrderKind,
    /// Which notice.
    pub status: OrderStatus,
    /// How much it matters.
    pub severity: Severity,
    /// Cluster id.
    pub cluster: String,
    /// The incident; zero if it is about an objective.
    pub incident: u64,
    /// What is broken; none if it is about an objective.
    pub part: Option<PartId>,
    /// Where it is.
    pub location: Location,
    /// One line.
    pub title: String,
    /// What is to be done.
    pub task: String,
    /// Why this notice.
    pub reason: String,
    /// When the incident began.
    pub opened: Time,
    /// When this notice was made.
    pub at: Time,
    /// How it is known.
    pub evidence: Vec<Evidence>,
}

impl WorkOrder {
    /// A key for everything that is told about one incident. Short enough for every system that keeps it.
    pub fn key(kind: OrderKind, cluster: &str, of: &str, incident: u64, opened: Time) -> String {
        let text = format!("{cluster}\0{of}\0{incident}\0{}", opened.0);
        let sum = hex(&digest::digest(&digest::SHA256, text.as_bytes()).as_ref()[..16]);
        match kind {
            OrderKind::Repair => format!("stoker-{sum}"),
            OrderKind::Escalation => format!("stoker-{sum}-escalation"),
        }
    }

    /// The part, or what else it is about, in one word.
    fn of(&self) -> String {
        self.part.as_ref().map_or_else(|| "objective".to_owned(), PartId::to_string)
    }

    /// Where it is, with what names it has.
    fn source(&self) -> &str {
        let place = &self.location;
        let names = [&place.node_name, &place.node, &place.tor, &place.cell, &place.power, &self.cluster];
        names.into_iter().find(|name| !name.is_empty()).map_or("stoker", String::as_str)
    }

    /// Task, place, reason and evidence as lines for people.
    fn text(&self) -> String {
        let mut lines = vec![self.task.clone(), format!("Why: {}", self.reason)];
        let place = &self.location;
        let names = [
            ("rack", &place.cell),
            ("switch", &place.tor),
            ("power", &place.power),
            ("node", &place.node_name),
            ("node id", &place.node),
            ("place", &place.place),
            ("part", &place.detail),
        ];
        let known: Vec<String> = names
            .iter()
            .filter(|(_, name)| !name.is_empty())
            .map(|(word, name)| format!("{word} {name}"))
            .collect();
        if !known.is_empty() {
            lines.push(format!("Where: {}", known.join(", ")));
        }
        lines.extend(self.evidence.iter().map(|one| format!("Evidence: {}", words(one))));
        lines.push(format!("Since: {}", self.opened.rfc3339()));
        lines.join("\n")
    }
}

/// A finding in one line.
pub fn words(evidence: &Evidence) -> String {
    let mut line = format!("{} of {}: {}", evidence.what, evidence.part, evidence.found);
    if !evidence.limit.is_empty() {
        line += &format!(", allowed {}", evidence.limit);
    }
    if evidence.periods > 0 {
        line += &format!(", {} periods in a row", evidence.periods);
    }
    line
}

/// What is needed to be let in.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The routing key of PagerDuty, the bearer token of the others.
    pub token: Option<&'a str>,
    /// What bodies are signed with.
    pub secret: Option<&'a [u8]>,
}

/// What is to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// Where to.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(&'static str, String)>,
    /// The body; empty of a GET.
    pub body: Vec<u8>,
}

/// What is sent for a notice. `remote` is the id that ServiceNow gave the first one; the others need none.
pub fn request(
    format: Format,
    url: &str,
    order: &WorkOrder,
    credentials: Credentials<'_>,
    remote: Option<&str>,
    now: Time,
) -> Request {
    let url = url.trim_end_matches('/');
    let (method, url, body) = match format {
        Format::Alertmanager => ("POST", format!("{url}/api/v2/alerts"), alertmanager::body(order)),
        Format::Pagerduty => {
            ("POST", url.to_owned(), pagerduty::body(order, credentials.token.unwrap_or_default()))
        }
        Format::Servicenow => servicenow::parts(url, order, remote),
        Format::Webhook => ("POST", url.to_owned(), webhook::body(order)),
    };
    let mut headers = vec![("content-type", "application/json".to_owned())];
    match credentials.token {
        Some(token) if format != Format::Pagerduty => {
            headers.push(("authorization", format!("Bearer {token}")))
        }
        _ => {}
    }
    // Whoever gets the same notice twice can tell.
    let word = match order.status {
        OrderStatus::Opened => "opened",
        OrderStatus::Updated => "updated",
        OrderStatus::Closed => "closed",
    };
    headers.push(("idempotency-key", format!("{}-{word}-{}", order.key, order.at.0)));
    if let Some(secret) = credentials.secret {
        headers.push(("x-stoker-signature", signature(secret, now, &body)));
    }
    Request { method, url, headers, body }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 of the seconds since 1970, a dot and the body.
pub fn signature(secret: &[u8], now: Time, body: &[u8]) -> String {
    let seconds = (now.0 / 1_000).to_string();
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(seconds.as_bytes());
    context.update(b".");
    context.update(body);
    format!("t={seconds},v1={}", hex(context.sign().as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("our own types are JSON")
}

/// At most so many characters.
fn short(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}
