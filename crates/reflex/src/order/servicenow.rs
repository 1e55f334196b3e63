//! ServiceNow, table API: a row of the table of incidents, found again by its correlation id.

use serde::{Deserialize, Serialize};

use super::{Credentials, OrderStatus, Request, Severity, WorkOrder, json, short};

/// Characters of a short description that the table takes.
const SHORT_MAX: usize = 160;

/// The state of a resolved incident.
const RESOLVED: &str = "6";

#[derive(Serialize)]
struct Opened<'a> {
    short_description: String,
    description: String,
    category: &'static str,
    impact: &'static str,
    urgency: &'static str,
    correlation_id: &'a str,
    correlation_display: &'static str,
}

#[derive(Serialize)]
struct Updated<'a> {
    correlation_id: &'a str,
    work_notes: String,
}

#[derive(Serialize)]
struct Closed<'a> {
    correlation_id: &'a str,
    state: &'static str,
    close_code: &'static str,
    close_notes: String,
}

/// Method, address and body. Without the row's id a change makes a new row with the same correlation id, which the driver
/// avoids by [`find`].
pub(super) fn parts(url: &str, order: &WorkOrder, remote: Option<&str>) -> (&'static str, String, Vec<u8>) {
    let table = format!("{url}/api/now/table/incident");
    let (method, at) = match remote.filter(|id| is_id(id)) {
        Some(id) => ("PATCH", format!("{table}/{id}")),
        None => ("POST", table),
    };
    let (impact, urgency) = match order.severity {
        Severity::Warning => ("3", "3"),
        Severity::Error => ("3", "2"),
        Severity::Critical => ("1", "1"),
    };
    let body = match order.status {
        OrderStatus::Opened => json(&Opened {
            short_description: short(&order.title, SHORT_MAX),
            description: order.text(),
            category: "hardware",
            impact,
            urgency,
            correlation_id: &order.key,
            correlation_display: "Stoker",
        }),
        OrderStatus::Updated => json(&Updated { correlation_id: &order.key, work_notes: order.text() }),
        OrderStatus::Closed => json(&Closed {
            correlation_id: &order.key,
            state: RESOLVED,
            close_code: "Solution provided",
            close_notes: order.reason.clone(),
        }),
    };
    (method, at, body)
}

/// Asks whether there is a row of this work order: before a first notice is sent again, and before a change whose row is not known.
pub fn find(url: &str, order: &WorkOrder, credentials: Credentials<'_>) -> Request {
    let query = format!("sysparm_query=correlation_id%3D{}&sysparm_limit=1&sysparm_fields=sys_id", order.key);
    let bearer = credentials.token.map(|token| ("authorization", format!("Bearer {token}")));
    Request {
        method: "GET",
        url: format!("{}/api/now/table/incident?{query}", url.trim_end_matches('/')),
        headers: [("accept", "application/json".to_owned())].into_iter().chain(bearer).collect(),
        body: Vec::new(),
    }
}

/// The id of the row, of the answer to either question.
pub fn id_of(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Row {
        sys_id: String,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Rows {
        One(Row),
        Many(Vec<Row>),
    }
    #[derive(Deserialize)]
    struct Answer {
        result: Rows,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let row = match answer.result {
        Rows::One(row) => row,
        Rows::Many(rows) => rows.into_iter().next()?,
    };
    is_id(&row.sys_id).then_some(row.sys_id)
}

/// It goes into a path, and comes from elsewhere.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_answers() {
        let check = |answer: &str, expect: Option<&str>| {
            assert_eq!(id_of(answer.as_bytes()).as_deref(), expect, "{answer}");
        };
        check(
            r#"{"result":{"sys_id":"9d385017c611228701d22104cc95c371","number":"INC1"}}"#,
            Some("9d385017c611228701d22104cc95c371"),
        );
        check(r#"{"result":[{"sys_id":"ab12"}]}"#, Some("ab12"));
        check(r#"{"result":[]}"#, None);
        check(r#"{"result":{"sys_id":"../../x"}}"#, None);
        check(r#"{"error":"x"}"#, None);
        check("<html>", None);
    }
}
