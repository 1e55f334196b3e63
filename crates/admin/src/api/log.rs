//! Calls about who asks and what happened: sessions, events, the audit.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use stoker_audit::{Entry, Event, Query};
use tokio::time::Instant;

use super::given::Given;
use super::{Answer, Answered, Fault, unknown};
use crate::access::{Caller, Stranger};
use crate::answer::Asked;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

pub async fn login(asked: Arc<Asked>, given: Given) -> Answered {
    let Login { token } = given.body()?;
    let Some(role) = asked.tokens.role(token.trim().as_bytes()) else {
        return Err(unknown(&asked, Stranger::Wrong, given.caller.address));
    };
    let (id, session) = asked
        .sessions
        .begin(role, Instant::now())
        .map_err(|error| Fault::unavailable(format!("the kernel gave no random bytes: {error}")))?;
    Ok(Answer {
        value: json!({ "role": role.as_str(), "by": "session", "csrf": session.csrf }),
        cookie: Some(asked.session_cookie(&id)),
    })
}

pub async fn session(_: Arc<Asked>, given: Given) -> Answered {
    let Caller { role, session, .. } = &given.caller;
    let csrf = session.as_ref().map(|(_, session)| session.csrf.clone());
    Ok(json!({ "role": role.as_str(), "by": given.caller.by(), "csrf": csrf }).into())
}

pub async fn logout(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    if let Some((id, _)) = &given.caller.session {
        asked.sessions.end(id);
    }
    let cookie = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", asked.cookie);
    Ok(Answer { value: json!({ "done": true }), cookie: Some(cookie) })
}

fn limit(given: &Given) -> usize {
    given.number("limit").unwrap_or(100) as usize
}

pub async fn events(asked: Arc<Asked>, given: Given) -> Answered {
    let after = given.number("after").unwrap_or(0);
    let events = asked.events.as_ref().map(|events| events.events(after, limit(&given)));
    Ok(json!({ "configured": events.is_some(), "events": events.unwrap_or_default() }).into())
}

/// A time of a query; none if it was not given.
fn time_of(given: &Given, name: &str) -> Result<Option<u64>, Fault> {
    let Some(text) = given.some_text(name) else { return Ok(None) };
    let odd = || {
        Fault::invalid(format!("`{name}` is a time such as 2026-11-19T12:00:00Z, or milliseconds since 1970"))
    };
    stoker_audit::time::parse(text).map(Some).ok_or_else(odd)
}

pub async fn audit(asked: Arc<Asked>, given: Given) -> Answered {
    let Some(log) = asked.audit.log() else {
        return Ok(json!({ "configured": false, "entries": [], "next": null }).into());
    };
    let text = |name| given.some_text(name).map(str::to_owned);
    let query = Query {
        path: text("path"),
        user: text("user"),
        tenant: text("tenant"),
        action: text("action"),
        result: text("result"),
        door: text("door"),
        from_ms: time_of(&given, "from")?,
        to_ms: time_of(&given, "to")?,
        before: given.number("before"),
        limit: limit(&given),
    };
    let busy = |_| Fault::unavailable("the node stops");
    let permit = Arc::clone(&asked.gathers).acquire_owned().await.map_err(busy)?;
    let dir = log.dir().to_path_buf();
    let found = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        query.run(&dir)
    });
    let page = match found.await {
        Ok(Ok(page)) => page,
        Ok(Err(fault)) => return Err(Fault::unavailable(format!("the audit log cannot be read: {fault}"))),
        Err(_) => return Err(Fault::unavailable("the node stops")),
    };
    let entry = |entry: &Entry| {
        let Event { principal, tenant, door, action, path, bytes, result, .. } = &entry.event;
        let Event { request_id, address, session, detail, .. } = &entry.event;
        json!({
            "seq": entry.seq,
            "at_ms": stoker_audit::time::parse(&entry.time).unwrap_or_default(),
            "time": entry.time,
            "principal": principal,
            "tenant": tenant,
            "door": door,
            "action": action,
            "path": path,
            "bytes": bytes,
            "result": result,
            "request_id": request_id,
            "address": address,
            "session": session,
            "detail": detail,
        })
    };
    let entries: Vec<_> = page.entries.iter().map(entry).collect();
    Ok(json!({ "configured": true, "entries": entries, "next": page.next }).into())
}
