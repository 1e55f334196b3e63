//! Who changed what through this endpoint: every changing call and every login, as lines of the node's audit log.
//!
//! The calls of the door that a request makes have lines of their own, with the same request id: this one says what was asked, those say what it
//! did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, StatusCode};
use stoker_access::Origin;
use stoker_audit::{Event, Log, OK};

use crate::access::{Caller, Role};

/// Who somebody is who has not shown it.
pub const STRANGER: &str = "anonymous";

/// The log, if there is one.
pub struct Audit {
    log: Option<Arc<Log>>,
    requests: AtomicU64,
}

impl Audit {
    /// Writes to this log.
    pub fn new(log: Option<Arc<Log>>) -> Audit {
        Audit { log, requests: AtomicU64::new(0) }
    }

    /// The log itself.
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.log.as_ref()
    }

    /// Numbers a request.
    pub fn origin(&self, address: std::net::IpAddr) -> Origin {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("admin-{number}").into();
        Origin { address: address.to_string().into(), request_id, is_tls: false }
    }

    /// A line about a call, to be added when its outcome is known.
    pub fn event(&self, method: &Method, path: &str, caller: Option<&Caller>, origin: &Origin) -> Event {
        let principal = caller.map_or(STRANGER, |caller| principal(caller.role));
        Event {
            principal: principal.to_owned(),
            door: crate::answer::DOOR.to_owned(),
            action: format!("{method} {path}"),
            request_id: origin.request_id.to_string(),
            address: origin.address.to_string(),
            ..Event::default()
        }
    }

    /// Adds it. What strangers and those who may not do something ask for has a limit.
    pub fn add(&self, event: Event, status: StatusCode) {
        let Some(log) = &self.log else { return };
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_denied || event.principal == STRANGER {
            log.denied(event);
            return;
        }
        let result = match status.is_success() {
            true => OK.to_owned(),
            false => format!("failed: {}", status.as_u16()),
        };
        // The calls that it made were refused if the log says that nothing is done without it.
        let _ = log.append(Event { result, ..event });
    }
}

/// How the door calls somebody of a role.
pub fn principal(role: Role) -> &'static str {
    match role {
        Role::Operator => "operator",
        Role::View => "viewer",
    }
}
