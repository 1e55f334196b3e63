//! From a request to its answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use stoker_access::{Guard, Guarded};
use stoker_store::{BoxFuture, Counter, NodeStatus, Outages, Store, StoreError};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::access::{self, Role, Stranger, Tokens};
use crate::audit::Audit;
use crate::health::HealthProbe;
use crate::login::{self, Logins};
use crate::rate::Rates;
use crate::recent::Recent;
use crate::series::{NAMES, Series};
use crate::session::Sessions;
use crate::sources::{Events, Health, PointSink, Source};
use crate::{api, console, metrics, process};

const TEXT: &str = "text/plain; charset=utf-8";
pub const JSON: &str = "application/json";
/// Prometheus' own format and its version.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What a wrong path is told.
pub const PATHS: &str = "there are /healthz, /readyz, /metrics, /api/v1/openapi.json and the console at /\n";

/// How this endpoint is called where somebody says by which one a call came.
pub const DOOR: &str = "admin";

/// The calls of the door that are made here.
pub trait Watched: Send + Sync {
    /// The state of the node.
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus, StoreError>>;
    /// Its numbers.
    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>, StoreError>>;
    /// The door itself as somebody of this role may use it, for the API.
    fn store(&self, _role: Role) -> Option<&dyn Store> {
        None
    }
}

/// The door, once for each role.
pub struct Views {
    operator: Arc<Guarded>,
    viewer: Arc<Guarded>,
}

impl Views {
    pub fn of(guard: &Guard) -> Views {
        Views { operator: guard.operator(DOOR), viewer: guard.viewer(DOOR) }
    }
}

impl Watched for Views {
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus, StoreError>> {
        self.viewer.status()
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>, StoreError>> {
        self.viewer.counters()
    }

    fn store(&self, role: Role) -> Option<&dyn Store> {
        Some(match role {
            Role::Operator => &*self.operator,
            Role::View => &*self.viewer,
        })
    }
}

/// Whom to ask, within what time, and what is remembered between requests.
pub struct Asked {
    pub watched: Box<dyn Watched>,
    pub tokens: Tokens,
    /// Anybody may read `/metrics`.
    pub metrics_open: bool,
    pub extra: Vec<Source>,
    /// Those that no plot shows.
    pub aside: Vec<Source>,
    pub events: Option<Arc<dyn Events>>,
    pub health: HealthProbe,
    /// What a person types to put a first file in.
    pub first_line: Option<String>,
    pub sessions: Sessions,
    /// Who logs in by a provider.
    pub logins: Logins,
    /// Name of the cookie. Browsers do not tell ports apart, so it names the port.
    pub cookie: String,
    /// It goes by HTTPS alone.
    pub is_secure: bool,
    /// Requests of each address.
    pub rates: Rates,
    /// Wrong tokens of each address.
    pub guesses: Rates,
    pub audit: Audit,
    /// Answers that many look at and that are work.
    pub recent: Recent,
    pub series: Series,
    pub series_every: Duration,
    /// Who keeps points for longer.
    pub keep_point: Option<PointSink>,
    /// Changes that are carried out at the same time.
    pub changes: Arc<Semaphore>,
    /// Looks at the sources of numbers at the same time.
    pub gathers: Arc<Semaphore>,
    pub timeout: Duration,
    pub change_timeout: Duration,
    pub request_timeout: Duration,
    pub ready_age_max: Duration,
    /// Why the node was not ready, if so, and when it was asked. Whoever asks holds the lock, and the others wait for
    /// the same answer.
    pub ready: Mutex<Option<(Instant, Result<(), String>)>>,
    pub stopping: AtomicBool,
}

impl Asked {
    /// The cookie of a session.
    pub fn session_cookie(&self, id: &str) -> String {
        let (name, age_s) = (&self.cookie, self.sessions.age_max_s());
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}")
    }
}

/// Answers one request.
pub async fn answer(
    asked: &Arc<Asked>,
    request: Request<Incoming>,
    address: IpAddr,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let mut response = if path == "/api" || path.starts_with("/api/") {
        api::answer(asked, request, address).await
    } else {
        plain_answer(asked, &request, address).await
    };
    console::guard(response.headers_mut());
    response
}

/// Everything that is no call of the API. Bodies are not read: no path wants one.
async fn plain_answer(
    asked: &Arc<Asked>,
    request: &Request<Incoming>,
    address: IpAddr,
) -> Response<Full<Bytes>> {
    let (path, headers) = (request.uri().path(), request.headers());
    let is_open = ["/healthz", "/readyz"].contains(&path);
    if !is_open && let Err(seconds) = asked.rates.take(address, Instant::now()) {
        let fault = api::Fault::too_many(seconds);
        return plain(fault.status, format!("{}\n", fault.error));
    }
    let known = is_open || path == "/metrics" || console::has(path) || login::has(path);
    if !known {
        return plain(StatusCode::NOT_FOUND, PATHS);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/healthz" => healthy(asked).await,
        "/readyz" => ready(asked).await,
        "/metrics" if asked.metrics_open => numbers(asked).await,
        "/metrics" => match caller(asked, headers, address) {
            Ok(()) => numbers(asked).await,
            Err(stranger) => refused(asked, stranger, address),
        },
        _ if login::has(path) => {
            // Work for others that anybody can ask for, so it counts as a guess.
            if path != login::PROVIDERS && is_guessing(asked, address) {
                return too_many_guesses();
            }
            login::answer(asked, path, request.uri().query().unwrap_or_default(), headers, address).await
        }
        _ if console::is_open(path) => console::answer(path, headers, false),
        _ => match caller(asked, headers, address) {
            Ok(()) => console::answer(path, headers, true),
            Err(Stranger::Wrong) if is_guessing(asked, address) => too_many_guesses(),
            Err(_) => console::answer(path, headers, false),
        },
    }
}

pub fn caller(asked: &Asked, headers: &HeaderMap, address: IpAddr) -> Result<(), Stranger> {
    access::caller(headers, address, &asked.tokens, &asked.sessions, &asked.cookie).map(drop)
}

/// Counts a wrong token, wherever it was shown; true if there were too many of that address.
fn is_guessing(asked: &Asked, address: IpAddr) -> bool {
    asked.guesses.take(address, Instant::now()).is_err()
}

fn too_many_guesses() -> Response<Full<Bytes>> {
    plain(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens from this address\n")
}

fn refused(asked: &Asked, stranger: Stranger, address: IpAddr) -> Response<Full<Bytes>> {
    if stranger == Stranger::Wrong && is_guessing(asked, address) {
        return too_many_guesses();
    }
    let words = "this path needs a token: Authorization: Bearer TOKEN; `view-token` in the node's directory has one\n";
    let mut response = plain(StatusCode::UNAUTHORIZED, words);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Whether the process should go on: one that nothing but a restart can help says no.
async fn healthy(asked: &Asked) -> Response<Full<Bytes>> {
    match asked.health.recent(asked.ready_age_max).await {
        Health::Good => plain(StatusCode::OK, "ok\n"),
        Health::Warned(why) | Health::Degraded(why) => plain(StatusCode::OK, format!("ok, but: {why}\n")),
        Health::Failed(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("failed: {why}\n")),
    }
}

async fn ready(asked: &Asked) -> Response<Full<Bytes>> {
    let is_ready = if asked.stopping.load(Ordering::Relaxed) {
        Err("the node is stopping".to_string())
    } else {
        match asked.health.recent(asked.ready_age_max).await {
            Health::Good => recently_ready(asked).await.map(|()| String::new()),
            Health::Warned(why) => recently_ready(asked).await.map(|()| format!(", but: {why}")),
            // What is known of the others says more than what the catalog's own part notices: which of them is away.
            Health::Degraded(why) => Err(lost_catalog(&api::outages(asked).await).unwrap_or(why)),
            Health::Failed(why) => Err(why),
        }
    };
    match is_ready {
        Ok(but) => plain(StatusCode::OK, format!("ready{but}\n")),
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
        Ok(status) => Err(reasons(&status, &api::outages(asked).await)),
        Err(words) => Err(words),
    };
    *last = Some((Instant::now(), answer.clone()));
    answer
}

/// Why a node is not ready, from what its status holds.
pub fn reasons(status: &NodeStatus, outages: &Outages) -> String {
    let poisoned = status.rings.iter().filter_map(|ring| {
        let why = ring.poisoned.as_ref()?;
        Some(format!("drive {} takes no more writes: {why}", ring.path))
    });
    let reasons: Vec<String> =
        lost_catalog(outages).into_iter().chain(poisoned).chain(status.lake_trouble.clone()).collect();
    if reasons.is_empty() {
        format!("still starting; catalog: {}", status.catalog)
    } else {
        reasons.join("; ")
    }
}

/// What is known of a catalog that does not answer, and what helps.
fn lost_catalog(outages: &Outages) -> Option<String> {
    let lost = outages.lost.iter().filter(|outage| outage.what == "catalog");
    let lost: Vec<String> = lost.map(|outage| format!("{}; {}", outage.summary, outage.cure)).collect();
    (!lost.is_empty()).then(|| lost.join("; "))
}

async fn numbers(asked: &Arc<Asked>) -> Response<Full<Bytes>> {
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
    let own =
        gathered(asked, |asked| asked.extra.iter().chain(&asked.aside).flat_map(|source| source()).collect());
    let (own, process) = own.await;
    counters.extend(own);
    for counter in &mut counters {
        counter.name.insert_str(0, "stoker_");
    }
    counters.extend(process);
    respond(StatusCode::OK, METRICS, metrics::exposition(counters))
}

/// Adds a point to the series.
pub async fn sample(asked: &Arc<Asked>) {
    let mut counters = within(asked.timeout, asked.watched.counters()).await.ok();
    if let Some(counters) = &mut counters {
        let own = gathered(asked, |asked| asked.extra.iter().flat_map(|source| source()).collect());
        let (own, process) = own.await;
        counters.extend(own);
        counters.extend(process);
    }
    let at_ms = crate::clock::unix_ms();
    if let (Some(values), Some(keep)) = (asked.series.add(at_ms, counters.as_deref()), &asked.keep_point) {
        let named = NAMES.iter().copied().zip(values).filter_map(|(name, value)| Some((name, value?)));
        keep(at_ms, &named.collect::<Vec<(&str, f64)>>());
    }
}

/// What sources and the kernel say. They read files, of which some make a network card think for a while, and a drive that hangs
/// stops whoever looks at it: that is nothing for a thread that has requests to serve.
async fn gathered(asked: &Arc<Asked>, ask: fn(&Asked) -> Vec<Counter>) -> (Vec<Counter>, Vec<Counter>) {
    let own = Arc::clone(asked);
    let work = async {
        // Held until the work is done, although nobody may wait for it any more.
        let permit = Arc::clone(&asked.gathers).acquire_owned().await;
        tokio::task::spawn_blocking(move || {
            let counters = (ask(&own), process::counters());
            drop(permit);
            counters
        })
        .await
    };
    match tokio::time::timeout(asked.timeout, work).await {
        Ok(Ok(counters)) => return counters,
        Ok(Err(error)) => tracing::error!(%error, "a source of numbers broke"),
        Err(_) => tracing::warn!("a source of numbers does not answer"),
    }
    Default::default()
}

fn gauge(name: &str, help: &str, value: f64) -> Counter {
    Counter { name: name.into(), help: help.into(), labels: Vec::new(), value }
}

/// Asks the door, in bounded time; what went wrong comes in words.
pub async fn within<T>(timeout: Duration, call: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer.map_err(|error| error.message),
        Err(_) => Err(format!("the node did not answer within {} s", timeout.as_secs_f64())),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, TEXT, text)
}

pub fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
