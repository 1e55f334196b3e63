//! The server over real sockets, in front of a node that is ready, starting, silent or broken.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use stoker_store::{BoxFuture, Counter, ErrorKind, NodeStatus, Result, RingStatus, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::answer::Watched;
use crate::rate::Rate;
use crate::{Admin, AdminOptions, Health};

const READY: u8 = 0;
const STARTING: u8 = 1;
const SILENT: u8 = 2;
const BROKEN: u8 = 3;

const TOKEN: &str = "Authorization: Bearer secret\r\n";

/// A node in one of these states.
#[derive(Clone, Default)]
struct Twin {
    state: Arc<AtomicU8>,
    asked: Arc<AtomicU8>,
}

impl Twin {
    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    fn answer<T: Send + 'static>(&self, good: T) -> BoxFuture<'_, Result<T>> {
        let state = self.state.load(Ordering::Relaxed);
        Box::pin(async move {
            match state {
                SILENT => std::future::pending().await,
                BROKEN => Err(StoreError::new(ErrorKind::Unavailable, "the catalog does not answer")),
                _ => Ok(good),
            }
        })
    }
}

impl Watched for Twin {
    fn status(&self) -> BoxFuture<'_, Result<NodeStatus>> {
        let ring = RingStatus {
            path: "/drive".into(),
            drive: "d1".into(),
            bytes: 1,
            keep_bytes: 0,
            clean_bytes: 0,
            records: 0,
            poisoned: Some("a write failed".into()),
            io: "io_uring".into(),
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_ready = self.state.load(Ordering::Relaxed) == READY;
        self.answer(NodeStatus {
            node: "n1".into(),
            cluster: "c1".into(),
            version: "0.1.0".into(),
            started_ms: 1,
            catalog: "embedded".into(),
            nodes: Vec::new(),
            rings: if is_ready { Vec::new() } else { vec![ring] },
            sources: Vec::new(),
            dirty_files: 3,
            dirty_bytes: 4096,
            dirty_age_ms: 0,
            conflicts: 0,
            drains: 0,
            lake_trouble: None,
            cache_bytes: 0,
            ready: is_ready,
            words: vec!["one copy".into()],
        })
    }

    fn counters(&self) -> BoxFuture<'_, Result<Vec<Counter>>> {
        self.answer(vec![counter("dirty_bytes", 4096.0)])
    }
}

fn counter(name: &str, value: f64) -> Counter {
    Counter { name: name.into(), help: "For a test.".into(), labels: Vec::new(), value }
}

fn options() -> AdminOptions {
    let mut options = AdminOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), "secret");
    options.extra.push(Box::new(|| vec![counter("s3_requests_total", 5.0)]));
    options
}

/// Sends bytes, reads until the other side closes.
async fn exchange(admin: &Admin, request: &str) -> String {
    let mut stream = TcpStream::connect(admin.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn get(admin: &Admin, path: &str, header: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
    let answer = exchange(admin, &request).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

#[tokio::test]
async fn a_ready_node() {
    let admin = Admin::watch(Box::new(Twin::default()), options()).await.unwrap();
    assert_eq!(get(&admin, "/healthz", "").await, (200, "ok\n".into()));
    assert_eq!(get(&admin, "/readyz", "").await, (200, "ready\n".into()));
    assert_eq!(get(&admin, "/metrics", "").await.0, 401);
    assert_eq!(get(&admin, "/metrics", "Authorization: Bearer wrong\r\n").await.0, 401);
    let (status, text) = get(&admin, "/metrics", TOKEN).await;
    assert_eq!(status, 200);
    for line in
        ["stoker_up 1", "stoker_dirty_bytes 4096", "stoker_s3_requests_total 5", "stoker_metrics_left_out 0"]
    {
        assert!(text.lines().any(|other| other == line), "{line} in {text}");
    }
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    let (status, text) = get(&admin, "/api/v1/status", TOKEN).await;
    let value: NodeStatus = serde_json::from_str(&text).unwrap();
    assert_eq!((status, value.dirty_bytes, value.words), (200, 4096, vec!["one copy".to_string()]));
}

#[tokio::test]
async fn the_api_needs_the_token_and_says_nothing_without() {
    let admin = Admin::watch(Box::new(Twin::default()), options()).await.unwrap();
    for path in ["/api/v1/status", "/api/v1/nothing", "/api"] {
        assert_eq!(get(&admin, path, "").await.0, 401, "{path}");
        assert_eq!(get(&admin, path, "Authorization: Bearer wrong!\r\n").await.0, 401, "{path}");
    }
    assert_eq!(get(&admin, "/api/v1/nothing", TOKEN).await.0, 404);
}

/// The scripts of the console are no place to try tokens at.
#[tokio::test]
async fn guesses_are_slowed_wherever_they_are_made() {
    for path in ["/console/app.js", "/", "/metrics"] {
        let options = AdminOptions { guess_rate: Rate { per_s: 1e-6, burst: 2.0 }, ..options() };
        let admin = Admin::watch(Box::new(Twin::default()), options).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(get(&admin, path, "Authorization: Bearer wrong!\r\n").await.0);
        }
        let refused = if path == "/" { 303 } else { 401 };
        assert_eq!(seen, [refused, refused, 429, 429], "{path}");
        // Those who have a token, or none, are not slowed by it, and the login form needs neither.
        assert_eq!(get(&admin, path, TOKEN).await.0, 200, "{path}");
        assert_eq!(get(&admin, path, "").await.0, refused, "{path}");
        assert_eq!(get(&admin, "/console/login.js", "Authorization: Bearer wrong!\r\n").await.0, 200);
    }
}

#[tokio::test]
async fn numbers_may_be_open() {
    let admin = Admin::watch(Box::new(Twin::default()), AdminOptions { metrics_open: true, ..options() });
    assert_eq!(get(&admin.await.unwrap(), "/metrics", "").await.0, 200);
}

#[tokio::test]
async fn the_api_of_a_silent_node_says_so() {
    let twin = Twin::default();
    twin.set(SILENT);
    let options = AdminOptions { answer_timeout: Duration::from_millis(20), ..options() };
    let admin = Admin::watch(Box::new(twin), options).await.unwrap();
    let (status, text) = get(&admin, "/api/v1/status", TOKEN).await;
    assert!(status == 503 && text.contains("did not answer within 0.02 s"), "{status} {text}");
}

#[tokio::test]
async fn a_node_that_is_not_ready_lives_and_says_why() {
    let twin = Twin::default();
    let mut options = options();
    (options.answer_timeout, options.ready_age_max) = (Duration::from_millis(20), Duration::ZERO);
    let admin = Admin::watch(Box::new(twin.clone()), options).await.unwrap();
    for (state, words) in [
        (STARTING, "drive /drive takes no more writes: a write failed"),
        (SILENT, "did not answer within 0.02 s"),
        (BROKEN, "the catalog does not answer"),
    ] {
        twin.set(state);
        let (status, text) = get(&admin, "/readyz", "").await;
        assert!(status == 503 && text.contains(words), "{status} {text}");
        assert_eq!(get(&admin, "/healthz", "").await.0, 200);
    }
    // Numbers that do not come from the door are there even then.
    let (status, text) = get(&admin, "/metrics", TOKEN).await;
    assert!(
        status == 200 && text.contains("stoker_up 0") && text.contains("stoker_s3_requests_total 5"),
        "{text}"
    );
    twin.set(READY);
    assert_eq!(get(&admin, "/readyz", "").await.0, 200);
    admin.set_stopping();
    assert_eq!(get(&admin, "/readyz", "").await, (503, "not ready: the node is stopping\n".into()));
}

#[tokio::test]
async fn a_source_that_hangs_takes_nothing_else_with_it() {
    // As a drive that hangs stops whoever looks at it. Whoever is stuck ends with the test.
    let (stuck, hangs) = std::sync::mpsc::channel::<()>();
    let hangs = std::sync::Mutex::new(hangs);
    let mut options = AdminOptions { answer_timeout: Duration::from_millis(20), ..options() };
    options.aside.push(Box::new(move || {
        let _ = hangs.lock().map(|hangs| hangs.recv());
        Vec::new()
    }));
    let admin = Admin::watch(Box::new(Twin::default()), options).await.unwrap();
    // More often than there are places for whoever hangs; this runtime has one thread for everything else.
    for _ in 0..8 {
        let (status, text) = get(&admin, "/metrics", TOKEN).await;
        assert!(status == 200 && text.contains("stoker_dirty_bytes 4096"), "{status} {text}");
        assert_eq!(get(&admin, "/healthz", "").await.0, 200);
    }
    drop(stuck);
}

#[tokio::test]
async fn one_address_cannot_take_every_connection() {
    let mut options = options();
    options.connections_max = 4;
    let admin = Admin::watch(Box::new(Twin::default()), options).await.unwrap();
    let mut half_open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(admin.address()).await.unwrap();
        stream.write_all(b"GET /healthz HT").await.unwrap();
        half_open.push(stream);
    }
    // They are all there and say no more; others are answered all the same, those of this address, too.
    for from in [2, 1] {
        let other = tokio::net::TcpSocket::new_v4().unwrap();
        other.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0))).unwrap();
        let mut other = other.connect(admin.address()).await.unwrap();
        other.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        other.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
    // Whoever showed a token keeps its place while strangers come and go.
    let mut known = TcpStream::connect(admin.address()).await.unwrap();
    let ask = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{TOKEN}\r\n");
    let mut first = [0; 12];
    known.write_all(ask.as_bytes()).await.unwrap();
    known.read_exact(&mut first).await.unwrap();
    for _ in 0..8 {
        half_open.push(TcpStream::connect(admin.address()).await.unwrap());
        assert_eq!(get(&admin, "/healthz", "").await.0, 200);
    }
    known.write_all(ask.replace("Host: x", "Host: x\r\nConnection: close").as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    known.read_to_end(&mut rest).await.unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("HTTP/1.1 200"), "answered again on the same connection");
}

#[tokio::test]
async fn many_who_ask_cost_the_node_one_question() {
    let twin = Twin::default();
    let mut options = options();
    options.ready_age_max = Duration::from_secs(3600);
    let admin = Admin::watch(Box::new(twin.clone()), options).await.unwrap();
    for _ in 0..5 {
        assert_eq!(get(&admin, "/readyz", "").await.0, 200);
    }
    assert_eq!(twin.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn bad_requests_are_answered_and_bounded() {
    let admin = Admin::watch(Box::new(Twin::default()), options()).await.unwrap();
    assert_eq!(get(&admin, "/nothing", "").await, (404, crate::answer::PATHS.into()));
    let close = "Host: x\r\nConnection: close\r\n\r\n";
    let check = async |request: String, status: &str| {
        let answer = exchange(&admin, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:.40}: {answer}");
    };
    check(format!("POST /healthz HTTP/1.1\r\n{close}"), "405").await;
    check(format!("HEAD /healthz HTTP/1.1\r\n{close}"), "200").await;
    check("\0\x01rubbish\r\n\r\n".into(), "400").await;
    check(format!("GET /healthz HTTP/1.1\r\nX: {}\r\n", "a".repeat(64 << 10)), "431").await;
}

#[tokio::test]
async fn half_open_connections_are_cut_and_make_room() {
    let mut options = options();
    (options.connections_max, options.request_timeout) = (1, Duration::from_millis(20));
    let admin = Admin::watch(Box::new(Twin::default()), options).await.unwrap();
    let mut half_open = TcpStream::connect(admin.address()).await.unwrap();
    half_open.write_all(b"GET /healthz HT").await.unwrap();
    // It waits for the only place, which the first one loses.
    assert_eq!(get(&admin, "/healthz", "").await.0, 200);
    let mut rest = Vec::new();
    let _ = half_open.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_frees_the_port() {
    let admin = Admin::watch(Box::new(Twin::default()), options()).await.unwrap();
    let address = admin.address();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    admin.stop(Duration::from_secs(60)).await;
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_taken_port_is_an_error() {
    let admin = Admin::watch(Box::new(Twin::default()), options()).await.unwrap();
    let mut options = options();
    options.listen = admin.address();
    let error = Admin::watch(Box::new(Twin::default()), options).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn health_and_readiness_name_what_is_wrong() {
    let health = Arc::new(std::sync::Mutex::new(Health::Good));
    let said = Arc::clone(&health);
    let source: crate::HealthSource = Box::new(move || said.lock().unwrap().clone());
    let options = AdminOptions { health: Some(source), ready_age_max: Duration::ZERO, ..options() };
    let admin = Admin::watch(Box::new(Twin::default()), options).await.unwrap();
    let why = || "the disk is full".to_owned();
    let table = [
        (Health::Good, (200, "ok\n"), (200, "ready\n")),
        (
            Health::Warned(why()),
            (200, "ok, but: the disk is full\n"),
            (200, "ready, but: the disk is full\n"),
        ),
        (
            Health::Degraded(why()),
            (200, "ok, but: the disk is full\n"),
            (503, "not ready: the disk is full\n"),
        ),
        (Health::Failed(why()), (503, "failed: the disk is full\n"), (503, "not ready: the disk is full\n")),
        (Health::Good, (200, "ok\n"), (200, "ready\n")),
    ];
    for (now, healthz, readyz) in table {
        *health.lock().unwrap() = now;
        assert_eq!(get(&admin, "/healthz", "").await, (healthz.0, healthz.1.into()));
        assert_eq!(get(&admin, "/readyz", "").await, (readyz.0, readyz.1.into()));
    }
}
