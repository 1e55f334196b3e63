//! The registry in front of a small real one, over a real node.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{Key, Store, VolumeOptions};
use tokio::net::{TcpListener, TcpStream};

use crate::digest::Hasher;
use crate::*;

fn digest_of(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.add(bytes);
    hasher.end().to_string()
}

/// What the upstream has, and what it was asked.
#[derive(Default)]
struct Content {
    /// By path.
    files: HashMap<String, (String, Bytes)>,
    asked: Vec<String>,
    /// It answers nothing but errors.
    is_away: bool,
    /// Blobs are elsewhere on the same host.
    redirects: bool,
}

/// A registry that wants tokens, as Docker Hub does.
struct Hub {
    address: SocketAddr,
    content: Arc<Mutex<Content>>,
}

impl Hub {
    async fn start() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let content = Arc::new(Mutex::new(Content::default()));
        let of_task = content.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let content = of_task.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer(&content, address, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Hub { address, content }
    }

    fn put(&self, path: &str, kind: &str, bytes: &[u8]) -> String {
        let (digest, bytes) = (digest_of(bytes), Bytes::copy_from_slice(bytes));
        let path = path.replace("DIGEST", &digest);
        self.content.lock().unwrap().files.insert(path, (kind.to_owned(), bytes));
        digest
    }

    /// What was asked since the last look, but for tokens.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut self.content.lock().unwrap().asked);
        asked.into_iter().filter(|asked| !asked.contains("/token")).collect()
    }
}

fn answer(
    content: &Mutex<Content>,
    address: SocketAddr,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let mut content = content.lock().unwrap();
    let path = request.uri().path().to_owned();
    content.asked.push(format!("{} {path}", request.method()));
    let plain =
        |status: StatusCode, body: Bytes| Response::builder().status(status).body(Full::new(body)).unwrap();
    if content.is_away {
        return plain(StatusCode::SERVICE_UNAVAILABLE, Bytes::new());
    }
    if path == "/token" {
        let query = request.uri().query().unwrap_or("");
        let scope = query.split('&').find_map(|pair| pair.strip_prefix("scope=")).unwrap_or("");
        return plain(StatusCode::OK, format!("{{\"token\":\"for:{scope}\",\"expires_in\":300}}").into());
    }
    let name = path.trim_start_matches("/v2/").split("/manifests/").next().unwrap();
    let name = name.split("/blobs/").next().unwrap().split("/tags/").next().unwrap();
    let wanted = format!("Bearer for:repository%3A{}%3Apull", name.replace('/', "%2F"));
    let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    if shown != Some(wanted.as_str()) {
        return Response::builder()
            .status(StatusCode::UNAUTHORIZED)
            .header("www-authenticate", format!("Bearer realm=\"http://{address}/token\",service=\"hub\""))
            .body(Full::default())
            .unwrap();
    }
    let place = path.strip_prefix("/elsewhere").unwrap_or(&path).to_owned();
    if content.redirects && place.contains("/blobs/") && place == path {
        let to = format!("{path}?signed=1");
        if request.uri().query() != Some("signed=1") {
            return Response::builder().status(307).header("location", to).body(Full::default()).unwrap();
        }
    }
    match content.files.get(&place) {
        None => plain(StatusCode::NOT_FOUND, Bytes::new()),
        Some((kind, bytes)) => Response::builder()
            .header("content-type", kind)
            .header("docker-content-digest", digest_of(bytes))
            .header("content-length", bytes.len())
            .body(Full::new(if request.method() == Method::HEAD { Bytes::new() } else { bytes.clone() }))
            .unwrap(),
    }
}

struct Rig {
    _folder: tempfile::TempDir,
    node: Arc<Node>,
    hub: Hub,
    registry: Registry,
    now_ms: Arc<AtomicU64>,
}

impl Rig {
    async fn new(bytes_max: u64) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(folder.path().join("node"));
        options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 256 << 20;
        let node = Node::open(options).await.unwrap();
        node.volume_create("images", VolumeOptions::default()).await.unwrap();
        let hub = Hub::start().await;
        let now_ms = Arc::new(AtomicU64::new(1_000_000_000_000));
        let registry = Rig::registry(&node, &hub, bytes_max, &now_ms).await;
        Rig { _folder: folder, node, hub, registry, now_ms }
    }

    async fn registry(node: &Arc<Node>, hub: &Hub, bytes_max: u64, now_ms: &Arc<AtomicU64>) -> Registry {
        let now_ms = now_ms.clone();
        let options = RegistryOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            volume: "images".to_owned(),
            upstreams: vec![Upstream::parse(&format!("http://{}", hub.address), None).unwrap()],
            bytes_max,
            tag_age: Duration::from_secs(300),
            now_ms: Arc::new(move || now_ms.load(Ordering::Relaxed)),
        };
        Registry::start(node.clone(), options).await.unwrap()
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, Bytes) {
        let stream = TcpStream::connect(self.registry.addresses()[0]).await.unwrap();
        let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "registry");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes())
    }

    async fn get(&self, path: &str) -> (StatusCode, Bytes) {
        let (status, _, body) = self.ask(Method::GET, path, &[]).await;
        (status, body)
    }

    async fn is_held(&self, digest: &str) -> bool {
        let hex = digest.trim_start_matches("sha256:");
        let key = Key::new(format!("blobs/sha256/{}/{hex}", &hex[..2])).unwrap();
        self.node.stat("images", &key).await.is_ok()
    }
}

fn code_of(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    value["errors"][0]["code"].as_str().unwrap().to_owned()
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn bytes_of(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_pulled_through_once() {
    let rig = Rig::new(64 << 20).await;
    rig.hub.content.lock().unwrap().redirects = true;
    let layer = bytes_of(1, 3_000_000);
    let blob = rig.hub.put("/v2/team/app/blobs/DIGEST", "application/octet-stream", &layer);
    let manifest = format!("{{\"schemaVersion\":2,\"layers\":[{{\"digest\":\"{blob}\"}}]}}");
    let digest = rig.hub.put("/v2/team/app/manifests/v1", MANIFEST, manifest.as_bytes());
    rig.hub.put("/v2/team/app/manifests/DIGEST", MANIFEST, manifest.as_bytes());

    assert_eq!(rig.get("/v2/").await, (StatusCode::OK, "{}".into()));
    assert!(rig.hub.asked().is_empty());
    for round in 0..2 {
        let (status, head, body) = rig.ask(Method::GET, "/v2/team/app/manifests/v1", &[]).await;
        assert_eq!((status, &body[..]), (StatusCode::OK, manifest.as_bytes()));
        assert_eq!(
            (&head["content-type"], &head["docker-content-digest"]),
            (&MANIFEST.parse().unwrap(), &digest.parse().unwrap())
        );
        let (_, by_digest) = rig.get(&format!("/v2/team/app/manifests/{digest}")).await;
        assert_eq!(by_digest, body);
        let path = format!("/v2/team/app/blobs/{blob}");
        let (status, head, body) = rig.ask(Method::HEAD, &path, &[]).await;
        assert_eq!((status, body.len()), (StatusCode::OK, 0));
        assert_eq!(head["content-length"], layer.len().to_string());
        let (status, body) = rig.get(&path).await;
        assert_eq!((status, body == layer), (StatusCode::OK, true));
        let (status, head, body) = rig.ask(Method::GET, &path, &[("range", "bytes=1000000-1999999")]).await;
        assert_eq!((status, body == layer[1_000_000..2_000_000]), (StatusCode::PARTIAL_CONTENT, true));
        assert_eq!(head["content-range"], format!("bytes 1000000-1999999/{}", layer.len()));
        let (status, ..) = rig.ask(Method::GET, &path, &[("range", "bytes=9999999-")]).await;
        assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE);
        let asked = rig.hub.asked();
        assert_eq!(asked.is_empty(), round == 1, "{asked:?}");
    }
    // What one node brought all of them have.
    let other = Rig::registry(&rig.node, &rig.hub, 64 << 20, &rig.now_ms).await;
    let rig = Rig { registry: other, ..rig };
    assert_eq!(rig.get("/v2/team/app/manifests/v1").await.1, manifest);
    assert_eq!(rig.get(&format!("/v2/team/app/blobs/{blob}")).await.1, layer);
    assert!(rig.hub.asked().is_empty());
    rig.registry.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_pull_at_once_cost_one_request() {
    let rig = Rig::new(64 << 20).await;
    let layer = bytes_of(2, 5_000_000);
    let blob = rig.hub.put("/v2/app/blobs/DIGEST", "application/octet-stream", &layer);
    let path = format!("/v2/app/blobs/{blob}");
    let pulls = (0..16).map(|_| rig.get(&path));
    for (status, body) in futures_util::future::join_all(pulls).await {
        assert_eq!((status, body == layer), (StatusCode::OK, true));
    }
    let asked = rig.hub.asked();
    let path = format!("GET {path}");
    // The first one is told where tokens are.
    assert_eq!(asked, [path.clone(), path]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_its_digest_is_not_kept() {
    let rig = Rig::new(64 << 20).await;
    let wrong = digest_of(b"what was promised");
    let blob = format!("/v2/app/blobs/{wrong}");
    rig.hub.put(&blob, "application/octet-stream", &bytes_of(3, 100_000));
    rig.hub.put(&format!("/v2/app/manifests/{wrong}"), MANIFEST, b"{}");
    for path in [blob, format!("/v2/app/manifests/{wrong}")] {
        let (status, body) = rig.get(&path).await;
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{}", String::from_utf8_lossy(&body));
        assert!(String::from_utf8_lossy(&body).contains("something else"));
    }
    assert!(!rig.is_held(&wrong).await);
    let refused =
        rig.registry.counters().into_iter().find(|one| one.name == "registry_refused_total").unwrap();
    assert_eq!(refused.value, 100_002.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_is_asked_again_after_a_while_and_outlives_its_upstream() {
    let rig = Rig::new(64 << 20).await;
    let first = rig.hub.put("/v2/app/manifests/latest", MANIFEST, b"{\"v\":1}");
    let digest_now = async || {
        let (status, head, _) = rig.ask(Method::HEAD, "/v2/app/manifests/latest", &[]).await;
        assert_eq!(status, StatusCode::OK);
        head["docker-content-digest"].to_str().unwrap().to_owned()
    };
    assert_eq!(digest_now().await, first);
    let second = rig.hub.put("/v2/app/manifests/latest", MANIFEST, b"{\"v\":2}");
    assert_eq!(digest_now().await, first, "it is believed for a while");
    rig.now_ms.fetch_add(301_000, Ordering::Relaxed);
    rig.hub.asked();
    assert_eq!(digest_now().await, second);
    rig.now_ms.fetch_add(301_000, Ordering::Relaxed);
    rig.hub.asked();
    assert_eq!(digest_now().await, second);
    assert_eq!(rig.hub.asked(), ["HEAD /v2/app/manifests/latest"], "one that is as it was costs no manifest");
    rig.now_ms.fetch_sub(1_000, Ordering::Relaxed);
    assert_eq!(digest_now().await, second);
    assert_eq!(rig.hub.asked(), ["HEAD /v2/app/manifests/latest"], "a note of the future is not believed");
    rig.now_ms.fetch_add(301_000, Ordering::Relaxed);
    rig.hub.content.lock().unwrap().is_away = true;
    assert_eq!(digest_now().await, second);
    let (status, body) = rig.get("/v2/app/tags/list").await;
    assert_eq!((status, &body[..]), (StatusCode::OK, &b"{\"name\":\"app\",\"tags\":[\"latest\"]}"[..]));
    let (status, body) = rig.get("/v2/other/manifests/latest").await;
    assert_eq!((status, code_of(&body).as_str()), (StatusCode::BAD_GATEWAY, "UNKNOWN"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_used_for_longest_goes() {
    let rig = Rig::new(1_000_000).await;
    let mut blobs = Vec::new();
    for seed in 0..6 {
        rig.now_ms.fetch_add(1_000, Ordering::Relaxed);
        let blob = rig.hub.put("/v2/app/blobs/DIGEST", "application/octet-stream", &bytes_of(seed, 300_000));
        assert_eq!(rig.get(&format!("/v2/app/blobs/{blob}")).await.0, StatusCode::OK);
        blobs.push(blob);
        // The first one is used all the time.
        rig.now_ms.fetch_add(1_000, Ordering::Relaxed);
        assert_eq!(rig.get(&format!("/v2/app/blobs/{}", blobs[0])).await.0, StatusCode::OK);
    }
    assert!(rig.is_held(&blobs[0]).await && rig.is_held(&blobs[5]).await);
    assert!(!rig.is_held(&blobs[1]).await && !rig.is_held(&blobs[2]).await && !rig.is_held(&blobs[3]).await);
    // It is asked for again, and one that is too long for all of it is said to be.
    assert_eq!(rig.get(&format!("/v2/app/blobs/{}", blobs[1])).await.0, StatusCode::OK);
    let long = rig.hub.put("/v2/app/blobs/DIGEST", "application/octet-stream", &bytes_of(9, 1_000_001));
    assert_eq!(rig.get(&format!("/v2/app/blobs/{long}")).await.0, StatusCode::INSUFFICIENT_STORAGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_something_else_is_told_in_the_words_of_the_specification() {
    let rig = Rig::new(64 << 20).await;
    let nothing = digest_of(b"nothing");
    for (method, path, status, code) in [
        (Method::GET, "/v2/app/manifests/none".to_owned(), 404, "MANIFEST_UNKNOWN"),
        (Method::GET, format!("/v2/app/blobs/{nothing}"), 404, "BLOB_UNKNOWN"),
        (Method::GET, "/v2/app/tags/list".to_owned(), 404, "NAME_UNKNOWN"),
        (Method::GET, format!("/v2/app/blobs/{nothing}?ns=ghcr.io"), 404, "NAME_UNKNOWN"),
        (Method::GET, "/v2/App/manifests/a".to_owned(), 400, "NAME_INVALID"),
        (Method::GET, "/v2/app/blobs/sha512:00".to_owned(), 400, "DIGEST_INVALID"),
        (Method::GET, "/etc/passwd".to_owned(), 404, "UNSUPPORTED"),
        (Method::POST, "/v2/app/blobs/uploads/".to_owned(), 405, "UNSUPPORTED"),
        (Method::DELETE, "/v2/app/manifests/a".to_owned(), 405, "UNSUPPORTED"),
    ] {
        let (found, _, body) = rig.ask(method, &path, &[]).await;
        assert_eq!((found.as_u16(), code_of(&body).as_str()), (status, code), "{path}");
    }
}
