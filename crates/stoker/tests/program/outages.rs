//! What is said while the catalog's node, or another one, hangs: real processes that are stopped, and everything a person or a
//! program looks at.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::rig::{Ran, binary, bytes_of, ran, wait_for};
use crate::storm::Node;

/// Whoever asks goes away then, as a person would; an answer that is due within two seconds comes long before.
const LIMIT: Duration = Duration::from_secs(25);

/// The binary, asking the node in a folder, for so long and no longer.
fn ask(dir: &Path, args: &[&str]) -> Ran {
    let program = binary().get_program().to_owned();
    let mut command = Command::new("timeout");
    command.arg(LIMIT.as_secs().to_string()).arg(program).args(args).env("STOKER_DIR", dir);
    for name in ["STOKER_ENDPOINT", "STOKER_TOKEN"] {
        command.env_remove(name);
    }
    let told = ran(&mut command);
    assert_ne!(told.code, 124, "stoker {args:?} did not answer: {}{}", told.text(), told.err);
    told
}

/// A request; status, head and body.
fn http(node: &Node, field: &str, path: &str, headers: &str) -> (u16, String, String) {
    let url = node.ready[field].as_str().unwrap();
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap_or_else(|error| panic!("{path} did not answer: {error}"));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn api(node: &Node, path: &str) -> (u16, Value) {
    let token = node.ready["token"].as_str().unwrap();
    let (status, _, body) = http(node, "admin", path, &format!("Authorization: Bearer {token}\r\n"));
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}")))
}

/// What is lost of this kind.
fn lost<'v>(told: &'v Value, what: &str) -> Option<&'v Value> {
    told["outages"].as_array().unwrap().iter().find(|outage| outage["what"] == what)
}

/// A request of somebody whose key only the catalog knows.
fn s3_by_a_stranger(node: &Node) -> (u16, String, String) {
    let now = ran(Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"])).text().trim().to_owned();
    let region = node.ready["region"].as_str().unwrap();
    let headers = format!(
        "x-amz-date: {now}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=AKNOBODY/{}/{region}/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={}\r\n",
        &now[..8],
        "0".repeat(64)
    );
    http(node, "s3", "/data/hello", &headers)
}

#[test]
fn every_view_answers_while_a_node_or_the_catalog_hangs() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("lake")).unwrap();
    let lake = at("lake").to_str().unwrap().to_owned();
    let n0 = Node::start(&["up", "--name", "n0", "--lake", &lake, "--grace", "10m"], &at("n0"));
    let n1 = Node::join(&n0, &["--name", "n1", "--grace", "10m"], &at("n1"));
    let (first, second) = (at("n0"), at("n1"));
    assert_eq!(ask(&first, &["volume", "set", "data", "--drain", "on-demand"]).code, 0);
    fs::write(at("file"), bytes_of(1, 3 << 20)).unwrap();
    let put = ask(&second, &["put", at("file").to_str().unwrap(), "data/hello"]);
    assert!(put.code == 0 && put.text().contains("2 copies on 2 nodes"), "{}{}", put.text(), put.err);
    // The same sentence wherever a person looks, with names.
    // A busy machine may miss a ping, and then the sentence is another one until the next answer.
    let explained = || ask(&second, &["explain", "data/hello"]).text();
    wait_for(|| explained().contains("2 copies on 2 nodes: n0, n1 (this node)"));
    assert!(!put.text().contains("one copy") && !put.text().contains("this node only"), "{}", put.text());
    let class = ask(&second, &["volume", "show", "data"]).text();
    assert!(class.contains("auto: 2 copies on 2 nodes"), "{class}");
    wait_for(|| ask(&second, &["risk", "--json"]).json()["nodes"][0]["undrained_bytes"] == 3 << 20);
    wait_for(|| ask(&second, &["status", "--json"]).json()["outages"] == Value::Array(Vec::new()));
    wait_for(|| http(&n1, "admin", "/readyz", "").0 == 200);

    // The node that keeps the catalog has a name, too.
    let words = ask(&second, &["status"]).text();
    let row = words.lines().find(|line| line.starts_with("catalog ")).unwrap();
    assert!(row.contains("kept by node n0, epoch "), "{words}");
    let words = ask(&second, &["catalog", "status"]).text();
    let row = words.lines().next().unwrap();
    assert!(row.starts_with("kept by node n0, epoch ") && row.len() < 60, "{words}");

    // A node hangs that does not keep the catalog: the others go on, and say which one it is.
    let told =
        |dir: &Path, words: &str| fs::read_to_string(dir.with_extension("log")).unwrap().contains(words);
    wait_for(|| told(&first, "is there") && told(&second, "is there"));
    n1.signal("STOP");
    let drives = ask(&first, &["drive", "ls", "--json"]).json_lines();
    assert!(drives.iter().any(|drive| drive["name"] == "n0" && drive["state"] == "live"), "{drives:?}");
    wait_for(|| lost(&ask(&first, &["status", "--json"]).json(), "node").is_some());
    let status = ask(&first, &["status", "--json"]).json();
    assert_eq!(lost(&status, "node").unwrap()["name"], "n1", "{status}");
    let words = ask(&first, &["node", "ls"]).text();
    let row = words.lines().find(|line| line.starts_with("n1")).unwrap().to_owned();
    assert!(row.contains("silent for") && !row.contains(" us"), "{words}");
    let explained = ask(&first, &["explain", "data/hello"]).text();
    assert!(explained.contains("one copy, on n0 (this node); lost if the drive dies"), "{explained}");
    n1.signal("CONT");
    wait_for(|| ask(&first, &["status", "--json"]).json()["outages"] == Value::Array(Vec::new()));
    wait_for(|| ask(&second, &["status", "--json"]).json()["ready"] == true);
    ask(&second, &["risk", "--json"]);

    // The node hangs that keeps the catalog.
    n0.signal("STOP");
    wait_for(|| lost(&ask(&second, &["status", "--json"]).json(), "catalog").is_some());
    let status = ask(&second, &["status", "--json"]);
    let catalog = lost(&status.json(), "catalog").unwrap().clone();
    assert_eq!((status.code, &catalog["name"], &catalog["action"]), (1, &"n0".into(), &"promote".into()));
    assert!(catalog["summary"].as_str().unwrap().contains("node n0 does not answer for"), "{catalog}");
    assert!(catalog["cure"].as_str().unwrap().contains("`stoker catalog promote`"), "{catalog}");
    let rings = status.json()["rings"][0]["keep_bytes"].as_u64().unwrap();
    assert!(rings >= 3 << 20, "its own drives are known: {}", status.text());
    let risk = ask(&second, &["risk", "--json"]);
    assert_eq!((risk.code, &risk.json()["nodes"][0]["name"]), (0, &"n0".into()), "{}", risk.text());
    assert_eq!(risk.json()["nodes"][0]["undrained_bytes"], 3 << 20, "as it was last: {}", risk.text());
    let stale = risk.json()["stale"].clone();
    let as_of = stale.as_array().unwrap().iter().find(|view| view["view"] == "risk").unwrap();
    assert!(as_of["as_of_ms"].as_u64().unwrap() > 0, "{stale}");
    let words = ask(&second, &["risk"]);
    assert!(
        words.err.contains("catalog: node n0 does not answer") && words.err.contains("as of"),
        "{}",
        words.err
    );
    let nodes = ask(&second, &["node", "ls", "--json"]).json_lines();
    assert_eq!(nodes.iter().map(|node| node["name"].as_str().unwrap()).collect::<Vec<_>>(), ["n0", "n1"]);
    let top = ask(&second, &["top", "--once", "--json", "--interval", "100ms"]);
    assert!(lost(&top.json(), "catalog").is_some() && top.json()["risk"].is_object(), "{}", top.text());
    assert!(!top.json()["volumes"].as_array().unwrap().is_empty(), "{}", top.text());
    let (code, _, words) = http(&n1, "admin", "/readyz", "");
    assert!(code == 503 && words.contains("catalog: node n0 does not answer"), "{code} {words}");
    assert_eq!(http(&n1, "admin", "/healthz", "").0, 200, "a restart helps nobody");
    for path in [
        "status",
        "risk",
        "nodes",
        "drives",
        "volumes",
        "catalog",
        "rebuild",
        "about",
        "outages",
        "protection",
    ] {
        let (code, told) = api(&n1, &format!("/api/v1/{path}"));
        assert_eq!(code, 200, "{path}: {told}");
    }
    assert_eq!(lost(&api(&n1, "/api/v1/status").1, "catalog").unwrap()["action"], "promote");
    let (code, head, body) = s3_by_a_stranger(&n1);
    assert!(code == 503 && head.contains("retry-after: "), "{code} {head} {body}");
    assert!(
        body.contains("<Code>ServiceUnavailable</Code>") && body.contains("catalog: no answer for"),
        "{body}"
    );

    // What was said to help helps.
    let promoted = ask(&second, &["catalog", "promote"]);
    assert_eq!(promoted.code, 0, "{}{}", promoted.text(), promoted.err);
    wait_for(|| {
        let status = ask(&second, &["status", "--json"]);
        status.code == 0 && lost(&status.json(), "catalog").is_none()
    });
    assert_eq!(s3_by_a_stranger(&n1).0, 403);
    // It keeps the catalog now, so it can give all of it.
    let backup = second.with_extension("backup");
    let made = ask(&second, &["catalog", "backup", backup.to_str().unwrap()]);
    assert_eq!(made.code, 0, "{}{}", made.text(), made.err);
    let log = fs::read_to_string(second.with_extension("log")).unwrap_or_default();
    assert!(!log.contains("Members {") && !log.contains("{[") && !log.contains("NodeId("), "{log}");
    n0.signal("CONT");
    n0.kill();
    n1.kill();
}
