//! From a request to its answer.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use stoker_store::{BoxFuture, Counter, NodeStatus, Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::admin::Source;
use crate::{metrics, process};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Prometheus' own format and its version.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What a wrong path is told.
pub const PATHS: &str = "there are /healthz, /readyz, /metrics and /api/v1/status\n";

/// The calls of the door that are made here.
pub trait Watched: Send + Sync {
    /// The state of the node.
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus, StoreError>>;
    /// Its numbers.
    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>, StoreError>>;
}

impl Watched for Arc<dyn Store> {
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus, StoreError>> {
        self.as_ref().status()
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>, StoreError>> {
        self.as_ref().counters()
    }
}

/// Whom to ask, and within what time.
pub struct Asked {
    pub watched: Box<dyn Watched>,
    pub token: String,
    pub extra: Vec<Source>,
    pub timeout: Duration,
    pub ready_age_max: Duration,
    /// Why the node was not ready, if so, and when it was asked. Whoever asks holds the lock, and the others wait for
    /// the same answer.
    pub ready: Mutex<Option<(Instant, Result<(), String>)>>,
    pub stopping: AtomicBool,
}

/// Answers one request. Bodies are not read: no path wants one.
pub async fn answer<B>(asked: &Asked, request: &Request<B>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let is_api = path == "/api" || path.starts_with("/api/");
    // First of all, so that nobody without the token learns what is there.
    if is_api && !is_allowed(request.headers(), &asked.token) {
        let words = "this path needs the node's token: Authorization: Bearer TOKEN\n";
        let mut response = plain(StatusCode::UNAUTHORIZED, words);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
    let known = ["/healthz", "/readyz", "/metrics", "/api/v1/status"].contains(&path);
    if !known {
        return plain(StatusCode::NOT_FOUND, PATHS);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" => ready(asked).await,
        "/metrics" => numbers(asked).await,
        _ => status(asked).await,
    }
}

async fn ready(asked: &Asked) -> Response<Full<Bytes>> {
    let is_ready = if asked.stopping.load(Ordering::Relaxed) {
        Err("the node is stopping".to_string())
    } else {
        recently_ready(asked).await
    };
    match is_ready {
        Ok(()) => plain(StatusCode::OK, "ready\n"),
        Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

async fn recently_ready(asked: &Asked) -> Result<(), String> {
    let mut last = asked.ready.lock().await;
    if let Some((when, answer)) = &*last
        && when.elapsed() < asked.ready_age_max
    {
        return answer.clone();
    }
    let answer = match within(asked.timeout, asked.watched.status()).await {
        Ok(status) if status.ready => Ok(()),
        Ok(status) => Err(reasons(&status)),
        Err(words) => Err(words),
    };
    *last = Some((Instant::now(), answer.clone()));
    answer
}

/// Why a node is not ready, from what its status holds.
fn reasons(status: &NodeStatus) -> String {
    let poisoned = status.rings.iter().filter_map(|ring| {
        let why = ring.poisoned.as_ref()?;
        Some(format!("drive {} takes no more writes: {why}", ring.path))
    });
    let reasons: Vec<String> = poisoned.chain(status.lake_trouble.clone()).collect();
    if reasons.is_empty() {
        format!("still starting; catalog: {}", status.catalog)
    } else {
        reasons.join("; ")
    }
}

async fn numbers(asked: &Asked) -> Response<Full<Bytes>> {
    let mut counters = vec![gauge("build_info", "Version of the program.", 1.0)];
    counters[0].labels.push(("version".into(), env!("CARGO_PKG_VERSION").into()));
    let from_store = within(asked.timeout, asked.watched.counters()).await;
    // The other numbers are most wanted when the door does not answer.
    counters.push(gauge(
        "up",
        "1 if the door gave its numbers for this answer.",
        f64::from(from_store.is_ok()),
    ));
    match from_store {
        Ok(more) => counters.extend(more),
        Err(words) => tracing::warn!(words, "no numbers from the door"),
    }
    counters.extend(asked.extra.iter().flat_map(|source| source()));
    for counter in &mut counters {
        counter.name.insert_str(0, "stoker_");
    }
    counters.extend(process::counters());
    respond(StatusCode::OK, METRICS, metrics::exposition(counters))
}

fn gauge(name: &str, help: &str, value: f64) -> Counter {
    Counter { name: name.into(), help: help.into(), labels: Vec::new(), value }
}

async fn status(asked: &Asked) -> Response<Full<Bytes>> {
    match within(asked.timeout, asked.watched.status()).await {
        Ok(status) => match serde_json::to_vec(&status) {
            Ok(json) => respond(StatusCode::OK, JSON, json),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        Err(words) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{words}\n")),
    }
}

/// Asks the door, in bounded time; what went wrong comes in words.
async fn within<T>(timeout: Duration, call: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer.map_err(|error| error.message),
        Err(_) => Err(format!("the node did not answer within {} s", timeout.as_secs_f64())),
    }
}

/// Whether a request carries the token. How long this takes does not depend on how much of it is right.
fn is_allowed(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let Some((scheme, given)) = given.split_at_checked(b"Bearer ".len()) else { return false };
    let equal = given.len() == token.len()
        && given.iter().zip(token.as_bytes()).fold(0, |different, (a, b)| black_box(different | (a ^ b)))
            == 0;
    scheme.eq_ignore_ascii_case(b"Bearer ") && equal && !token.is_empty()
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, TEXT, text)
}

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let check = |value: Option<&str>, token, expect| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(is_allowed(&headers, token), expect, "{value:?} for {token}");
        };
        check(Some("Bearer secret"), "secret", true);
        check(Some("bearer secret"), "secret", true);
        for wrong in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"] {
            check(Some(wrong), "secret", false);
        }
        check(None, "secret", false);
        check(Some("Bearer "), "", false);
    }
}
