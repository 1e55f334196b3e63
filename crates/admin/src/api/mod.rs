//! The API: from a request to a route, from its caller to a role, from an answer of the door to JSON.

mod alerts;
mod fault;
mod fleet;
mod given;
mod history;
mod job_routes;
mod jobs;
mod keys;
mod log;
mod node;
mod openapi;
mod plan;
mod qos;
mod routes;
mod schema;
mod sets;
mod shape;
mod slo;
mod tier_routes;
mod tiers;
mod volumes;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CONTENT_TYPE, HOST, HeaderValue, ORIGIN, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use stoker_access::Origin;
use stoker_audit::Event;
use stoker_store::{BoxFuture, Order, Outages, Report, Store, StoreError, patiently};
use tokio::time::Instant;

use crate::access::{self, CSRF_HEADER, Caller, Role, Stranger};
use crate::answer::{Asked, JSON, respond};
use crate::audit;
pub use fault::Fault;
use given::Given;
use routes::Route;
pub use slo::can_be_repaired;

/// Bytes of a body.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// Longest idempotency key.
const IDEMPOTENCY_LEN_MAX: usize = 255;

/// How long somebody who looks waits for a catalog that answers nobody. The views that matter then need none.
const CATALOG_PATIENCE: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Of whoever a call is made for.
    static ROLE: Role;
}

/// Names in a path, with what stands in their place.
type Names<'p> = Vec<(&'static str, &'p str)>;

/// What a call gives.
pub struct Answer {
    value: Value,
    cookie: Option<String>,
}

impl From<Value> for Answer {
    fn from(value: Value) -> Answer {
        Answer { value, cookie: None }
    }
}

/// What became of a call.
pub type Answered = Result<Answer, Fault>;

/// Done, and there is nothing else to say.
fn done() -> Answered {
    Ok(json!({ "done": true }).into())
}

/// Answers a request below `/api`.
pub async fn answer(
    asked: &Arc<Asked>,
    request: Request<Incoming>,
    address: std::net::IpAddr,
) -> Response<Full<Bytes>> {
    let origin = asked.audit.origin(address);
    origin.clone().scope(answer_of(asked, request, address, origin)).await
}

async fn answer_of(
    asked: &Arc<Asked>,
    request: Request<Incoming>,
    address: std::net::IpAddr,
    origin: Origin,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    match find(asked, &head.method, path, &head.headers, address) {
        Ok((route, names, caller)) => {
            let query = head.uri.query().unwrap_or("");
            let known = route.role.is_some().then_some(&caller);
            let event = asked.audit.event(&head.method, path, known, &origin);
            let prepared = prepare(asked, route, names, query, caller, &head.headers, body).await;
            let answered = match prepared {
                Ok(given) if route.changes() && !route.asks => {
                    return change(asked, route, given, event, origin).await;
                }
                Ok(given) => read(asked, route, given).await,
                Err(fault) => Err(fault),
            };
            if let (true, Err(fault)) = (route.changes() && !route.asks, &answered) {
                asked.audit.add(event, fault.status);
            }
            response(answered)
        }
        Err(fault) => {
            if fault.status == http::StatusCode::UNAUTHORIZED {
                let event = asked.audit.event(&head.method, path, None, &origin);
                asked.audit.add(event, fault.status);
            }
            response(Err(fault))
        }
    }
}

/// The route of a request, the names in its path and the caller. Strangers learn nothing, not even what is there.
fn find<'p>(
    asked: &Asked,
    method: &Method,
    path: &'p str,
    headers: &HeaderMap,
    address: std::net::IpAddr,
) -> Result<(&'static Route, Names<'p>, Caller), Fault> {
    let now = Instant::now();
    asked.rates.take(address, now).map_err(Fault::too_many)?;
    let all = || routes::all().filter_map(|route| Some((route, route.matches(path)?)));
    let mut found = all().find(|(route, _)| route.verb.is(method));
    let caller = match access::caller(headers, address, &asked.tokens, &asked.sessions, &asked.cookie) {
        Ok(caller) => caller,
        Err(_) if found.as_ref().is_some_and(|(route, _)| route.role.is_none()) => {
            Caller { role: Role::View, address, session: None }
        }
        Err(stranger) => return Err(unknown(asked, stranger, address)),
    };
    if let Some((route, names)) = found.take() {
        return Ok((route, names, caller));
    }
    let allowed: Vec<&str> = all().map(|(route, _)| route.verb.as_str()).collect();
    if allowed.is_empty() {
        return Err(Fault::not_found(
            format!("there is no {path}"),
            "see /api/v1/openapi.json for what is there",
        ));
    }
    Err(Fault::method(&allowed.join(", ")))
}

/// What somebody is told who is not known. Who guesses is slowed down.
fn unknown(asked: &Asked, stranger: Stranger, address: std::net::IpAddr) -> Fault {
    if stranger == Stranger::Wrong
        && let Err(retry_after_s) = asked.guesses.take(address, Instant::now())
    {
        return Fault::too_many(retry_after_s);
    }
    match stranger {
        Stranger::Nothing => Fault::unknown_caller(
            "this needs a token: `Authorization: Bearer TOKEN`",
            "tokens are in the node's directory: `token` for operators, `view-token` for those who look",
        ),
        Stranger::Wrong => Fault::unknown_caller(
            "this token or session is not known here",
            "each node has its own token; a session ends with its node; log in again",
        ),
        Stranger::Expired => Fault::expired(),
    }
}

/// Checks everything that can be checked before a call is made.
async fn prepare(
    asked: &Asked,
    route: &Route,
    names: Names<'_>,
    query: &str,
    caller: Caller,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Given, Fault> {
    if route.changes() {
        check_origin(headers)?;
    }
    if route.role.is_some_and(|role| caller.role < role) {
        return Err(Fault::denied(
            format!("`{}` is for operators, and this token is for those who look", route.path),
            "use the token of the file `token` in the node's directory",
        ));
    }
    if let (true, true, Some((_, session))) = (route.changes(), route.role.is_some(), &caller.session) {
        let given = headers.get(CSRF_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
        if !access::is_equal(given, &session.csrf) {
            let error = format!("a session has to repeat its word in `{CSRF_HEADER}` to change something");
            return Err(Fault::denied(error, "GET /api/v1/session tells it; a token needs none"));
        }
    }
    let given = Given::new(route, names, query, caller)?;
    if !route.changes() {
        return Ok(given);
    }
    let bytes =
        tokio::time::timeout(asked.request_timeout, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let bytes = match bytes {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Fault::too_long(BODY_BYTES_MAX)),
        Ok(Err(_)) => return Err(Fault::invalid("the body broke off")),
        Err(_) => return Err(Fault::invalid("the body did not come in time")),
    };
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    // A form of another site could send everything else without a question to us.
    let is_json = kind.eq_ignore_ascii_case(JSON) || (bytes.is_empty() && kind.is_empty());
    if !is_json {
        return Err(Fault::not_json());
    }
    let key = match headers.get(jobs::IDEMPOTENCY_HEADER) {
        None => None,
        Some(key) => match key.to_str().ok().filter(|key| (1..=IDEMPOTENCY_LEN_MAX).contains(&key.len())) {
            Some(key) => Some(key.to_owned()),
            None => {
                let why = format!("`Idempotency-Key` has 1 to {IDEMPOTENCY_LEN_MAX} plain characters");
                return Err(Fault::invalid(why));
            }
        },
    };
    Ok(given.with_body(bytes, key))
}

/// A page of another site cannot change anything here, whatever its visitor's browser holds.
fn check_origin(headers: &HeaderMap) -> Result<(), Fault> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("");
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let named = origin.split_once("://").map_or("", |(_, named)| named);
    if !named.is_empty() && named.eq_ignore_ascii_case(host) {
        return Ok(());
    }
    Err(Fault::denied(
        format!("a page of {origin} asks, which is another site"),
        "open the node's own console",
    ))
}

async fn read(asked: &Arc<Asked>, route: &Route, given: Given) -> Answered {
    let role = given.caller.role;
    let called = patiently(Some(CATALOG_PATIENCE), (route.call)(Arc::clone(asked), given));
    let called = ROLE.scope(role, called);
    match tokio::time::timeout(asked.timeout, called).await {
        Ok(answered) => answered,
        Err(_) => Err(Fault::unavailable(format!("no answer within {} s", asked.timeout.as_secs_f64()))),
    }
}

/// A change goes on although nobody may wait for it any more, and what became of it is written down.
async fn change(
    asked: &Arc<Asked>,
    route: &'static Route,
    given: Given,
    mut event: Event,
    origin: Origin,
) -> Response<Full<Bytes>> {
    // Nobody's business, not even the log's.
    if route.role.is_some() {
        event.detail = given.body_text();
    }
    let Ok(permit) = Arc::clone(&asked.changes).try_acquire_owned() else {
        let fault = Fault::too_many_changes();
        asked.audit.add(event, fault.status);
        return response(Err(fault));
    };
    let asked_on = Arc::clone(asked);
    let carried_out = tokio::spawn(origin.scope(async move {
        let role = given.caller.role;
        let answered = ROLE.scope(role, (route.call)(Arc::clone(&asked_on), given)).await;
        // Somebody who logs in has a role only then.
        if let (None, Ok(answer)) = (route.role, &answered) {
            let is_operator = answer.value["role"] == Role::Operator.as_str();
            let role = if is_operator { Role::Operator } else { Role::View };
            event.principal = audit::principal(role).to_owned();
        }
        let status = answered.as_ref().map_or_else(|fault| fault.status, |_| http::StatusCode::OK);
        asked_on.audit.add(event, status);
        drop(permit);
        answered
    }));
    response(match tokio::time::timeout(asked.change_timeout, carried_out).await {
        Ok(Ok(answered)) => answered,
        Ok(Err(_)) => Err(Fault::unavailable("the node stops")),
        Err(_) => Err(Fault::unavailable("it takes long and goes on; /api/v1/audit tells when it ended")),
    })
}

fn response(answered: Answered) -> Response<Full<Bytes>> {
    let fault = match answered {
        Ok(answer) => {
            let mut response = respond(http::StatusCode::OK, JSON, answer.value.to_string());
            if let Some(cookie) = answer.cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
                response.headers_mut().insert(SET_COOKIE, cookie);
            }
            return response;
        }
        Err(fault) => fault,
    };
    let mut response = respond(fault.status, JSON, fault.value().to_string());
    let headers = response.headers_mut();
    if fault.status == http::StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(allowed) = fault.error.strip_prefix("this path takes ")
        && fault.status == http::StatusCode::METHOD_NOT_ALLOWED
        && let Ok(allowed) = HeaderValue::from_str(allowed)
    {
        headers.insert(ALLOW, allowed);
    }
    if let Some(seconds) = fault.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The door, as who asks may use it; what nobody asks for looks and changes nothing.
fn store(asked: &Asked) -> Result<&dyn Store, Fault> {
    let role = ROLE.try_with(|role| *role).unwrap_or(Role::View);
    asked.watched.store(role).ok_or_else(|| Fault::unavailable("the node is not there"))
}

/// Asks the door for a report.
fn operate(asked: &Asked, order: Order) -> BoxFuture<'_, Result<Report, Fault>> {
    Box::pin(async move { store(asked)?.operate(order).await.map_err(Fault::from) })
}

/// What does not answer; nothing if the node does not tell.
pub async fn outages(asked: &Asked) -> Outages {
    match operate(asked, Order::Outages).await {
        Ok(Report::Outages(outages)) => outages,
        _ => Outages::default(),
    }
}

/// The door gave another report than was asked for.
fn confused() -> Fault {
    StoreError::new(stoker_store::ErrorKind::Unavailable, "the node answered something else").into()
}
