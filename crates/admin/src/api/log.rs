//! Calls about who asks and what happened: sessions, events, the audit.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
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
    let (name, age_s) = (&asked.cookie, asked.sessions.age_max_s());
    let secure = if asked.is_secure { "; Secure" } else { "" };
    Ok(Answer {
        value: json!({ "role": role.as_str(), "by": "session", "csrf": session.csrf }),
        cookie: Some(format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}")),
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

pub async fn audit(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(json!({ "entries": asked.audit.newest(limit(&given)) }).into())
}
