//! The API over real sockets, in front of a real node.

mod slo;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use stoker_access::Guard;
use stoker_audit::{Log, LogOptions, SigningKey};
use stoker_node::{ClusterOptions, DriveOptions, Labels, Member, NodeOptions};
use stoker_store::{Filler, Finish, SetRequest, ShardRequest, VolumeOptions, WriteRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::routes::{PATH_PARAMETERS, Verb};
use super::*;
use crate::{Admin, AdminOptions, Event, Events, Rate};

const OPERATOR: &str = "Authorization: Bearer operators-word\r\n";
const VIEW: &str = "Authorization: Bearer viewers-word\r\n";

struct Rig {
    folder: tempfile::TempDir,
    member: Arc<Member>,
    admin: Admin,
}

struct Said {
    status: u16,
    head: String,
    body: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn cookie(&self) -> String {
        let line = self.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        line.expect("a cookie").split(';').next().unwrap().to_owned()
    }
}

fn options() -> AdminOptions {
    let mut options = AdminOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), "operators-word");
    options.view_tokens = vec!["viewers-word".into()];
    options
}

impl Rig {
    async fn new(options: AdminOptions) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut node = NodeOptions::new(folder.path().join("node"));
        node.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
        node.lake = Some(format!("file://{}", folder.path().join("lake").display()));
        node.lake_options.create_root = true;
        node.memory_bytes = 256 << 20;
        let cluster = ClusterOptions {
            node,
            name: "alone".into(),
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            gossip: Vec::new(),
            labels: Labels::default(),
            weight: 1,
            plaintext: false,
            grace: Duration::from_secs(30),
            promote: None,
        };
        let member = Member::start(cluster).await.unwrap();
        member.node().volume_create("data", VolumeOptions::default()).await.unwrap();
        let log = LogOptions::new(
            &folder.path().join("audit"),
            "alone",
            vec![SigningKey::of_seed(&[1; 32]).unwrap()],
        );
        let log = Arc::new(Log::open(log).unwrap());
        let guard = Guard::audited(Arc::clone(member.node()) as Arc<dyn Store>, log);
        let admin = Admin::start(&guard, options).await.unwrap();
        Rig { folder, member, admin }
    }

    async fn end(self) {
        self.member.stop().await;
    }

    /// Lines of the audit log, newest first.
    async fn audit(&self, query: &str) -> Vec<Value> {
        let said = self.get(&format!("/api/v1/audit?{query}")).await.json();
        said["entries"].as_array().unwrap().clone()
    }

    async fn put(&self, key: &str) {
        let key = stoker_store::Key::new(key).unwrap();
        let mut filler =
            Filler::new(self.member.node().create("data", &key, WriteRequest::default()).await.unwrap());
        filler.put(b"some bytes").await.unwrap();
        filler.finish(Finish::default()).await.unwrap();
    }

    async fn put_set(&self) -> u64 {
        let key = |text: &str| stoker_store::Key::new(text).unwrap();
        let request =
            SetRequest { target: key("ckpt/step-1/"), owner: "job".into(), shards: 1, deadline_s: None };
        let set = self.member.node().set_begin("data", request).await.unwrap().set;
        let shard = ShardRequest { number: 0, writer: "rank 0".into(), ..ShardRequest::default() };
        let writer =
            self.member.node().set_shard("data", &key("ckpt/step-1/0.pt"), set, shard).await.unwrap();
        let mut filler = Filler::new(writer);
        filler.put(b"a shard").await.unwrap();
        filler.finish(Finish::default()).await.unwrap();
        self.member.node().set_publish("data", set).await.unwrap();
        set.0
    }

    async fn ask(&self, verb: &str, path: &str, headers: &str, body: &str) -> Said {
        let mut stream = TcpStream::connect(self.admin.address()).await.unwrap();
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let request = format!(
            "{verb} {path} HTTP/1.1\r\nHost: node:1\r\nConnection: close\r\nContent-Length: {}\r\n{kind}{headers}\r\n{body}",
            body.len()
        );
        // A server that has heard enough may close before it read all.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{verb} {path}: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Said { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn get(&self, path: &str) -> Said {
        self.ask("GET", path, VIEW, "").await
    }

    async fn post(&self, path: &str, body: &str) -> Said {
        self.ask("POST", path, OPERATOR, body).await
    }

    /// Refused with this status, and with words that name what is wrong.
    async fn refused(&self, verb: &str, path: &str, headers: &str, body: &str, status: u16, words: &str) {
        let said = self.ask(verb, path, headers, body).await;
        assert_eq!(said.status, status, "{verb} {path} {body}: {}", said.body);
        let fault = said.json();
        assert!(fault["error"].as_str().unwrap().contains(words), "{verb} {path}: {fault}");
        assert!(fault["kind"].is_string() && fault["hint"].is_string(), "{fault}");
    }
}

/// The path of a route, with names that exist in a rig.
fn real_path(route: &Route, set: u64) -> String {
    let path = route.path.replace("{volume}", "data").replace("{set}", &set.to_string());
    let path =
        path.replace("{node}", "nobody").replace("{drive}", "no-drive").replace("{access_key}", "NOKEY");
    let path = path.replace("{job}", "probe");
    if route.query.iter().any(|parameter| parameter.name == "key") { path + "?key=a%2Fb.txt" } else { path }
}

/// Where a value does not fit a schema of the document.
fn misfits(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#'));
        return misfits(document, target.unwrap_or_else(|| panic!("{name} is not there")), value, place);
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let fits = choices.iter().any(|one| misfits(document, one, value, place).is_empty());
            return if fits {
                Vec::new()
            } else {
                vec![format!("{place}: {value} fits none of {choices:?}")]
            };
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        return if words.contains(value) {
            Vec::new()
        } else {
            vec![format!("{place}: {value} not in {words:?}")]
        };
    }
    let fits = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other}"),
    };
    if !fits {
        return vec![format!("{place}: {value} is not {}", schema["type"])];
    }
    let mut found = Vec::new();
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(misfits(document, &schema["items"], item, &format!("{place}[{at}]")));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            found.push(format!("{place} lacks {name}"));
        }
    }
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, field) in fields {
            match properties.get(name) {
                Some(schema) => found.extend(misfits(document, schema, field, &format!("{place}.{name}"))),
                None => found.push(format!("{place}.{name} is not documented")),
            }
        }
    }
    found
}

#[test]
fn document_and_table_are_the_same() {
    let document = openapi::document();
    let paths = document["paths"].as_object().unwrap();
    let documented: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(documented, routes::all().count(), "two routes of one path and verb");
    let mut ids = std::collections::BTreeSet::new();
    for route in routes::all() {
        let operation = &paths[route.path][route.verb.as_str().to_ascii_lowercase()];
        assert!(ids.insert(operation["operationId"].to_string()), "{operation}");
        assert_eq!(operation["requestBody"].is_object(), route.changes(), "{}", route.path);
        let may_lack = [
            "Nothing",
            "Force",
            "Promote",
            "PolicyChange",
            "Prefix",
            "KeyNew",
            "KeyRotate",
            "JoinTokenNew",
            "QosChange",
            "JobWindowAsk",
            "Remove",
            "JobSubmit",
            "JobStart",
            "JobEnd",
            "JobReason",
            "LakeChange",
            "ReplicaSet",
        ];
        let is_needed = route.body.map(|body| !may_lack.contains(&body));
        assert_eq!(operation["requestBody"]["required"].as_bool(), is_needed, "{}", route.path);
        // What the document calls this path leads to this route.
        let path = real_path(route, 1);
        let path = path.split('?').next().unwrap();
        let found: Vec<&Route> =
            routes::all().filter(|other| other.verb == route.verb && other.matches(path).is_some()).collect();
        assert!(found.len() == 1 && std::ptr::eq(found[0], route), "{path}");
        for part in route.path.split('/').filter(|part| part.starts_with('{')) {
            let name = part.trim_matches(['{', '}']);
            assert!(PATH_PARAMETERS.iter().any(|parameter| parameter.name == name), "{name}");
        }
    }
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name} is not there");
    }
}

#[tokio::test]
async fn every_call_needs_a_token_and_the_right_role() {
    let rate = Rate { per_s: 1e6, burst: 1e6 };
    let rig = Rig::new(AdminOptions { rate, guess_rate: rate, ..options() }).await;
    let users = format!("Authorization: Bearer stk-0000000f-{}\r\n", "a".repeat(40));
    for route in routes::all() {
        let (verb, path) = (route.verb.as_str(), real_path(route, 1));
        if route.role.is_some() {
            rig.refused(verb, &path, "", "", 401, "needs a token").await;
            rig.refused(verb, &path, "Authorization: Bearer wrong\r\n", "", 401, "not known here").await;
            rig.refused(verb, &path, "Cookie: stoker-session-1=x\r\n", "", 401, "needs a token").await;
            // Users of tenants have tokens, for the client port alone.
            rig.refused(verb, &path, &users, "", 401, "not known here").await;
        }
        if route.role == Some(Role::Operator) {
            rig.refused(verb, &path, VIEW, "", 403, "is for operators").await;
        } else if route.verb == Verb::Get {
            assert_ne!(rig.get(&path).await.status, 403, "{path}");
        }
        let wrong = if route.verb == Verb::Get { "DELETE" } else { "PUT" };
        let said = rig.ask(wrong, &path, OPERATOR, "").await;
        assert!(said.status == 405 && said.head.contains("\nallow: "), "{wrong} {path}: {}", said.head);
    }
    rig.refused("GET", "/api/v1/nothing", OPERATOR, "", 404, "there is no /api/v1/nothing").await;
    assert_eq!(rig.ask("HEAD", "/api/v1/status", VIEW, "").await.body, "");
    rig.end().await;
}

#[tokio::test]
async fn answers_are_as_documented() {
    let rig = Rig::new(options()).await;
    rig.put("a/b.txt").await;
    rig.put("c.txt").await;
    let set = rig.put_set().await;
    let probe = r#"{"id":"probe","spec":{"data":{"mounts":[{"source":"s3://data/a","target":"/in"}]}}}"#;
    assert_eq!(rig.post("/api/v1/jobs", probe).await.status, 200);
    let document = openapi::document();
    for route in routes::all().filter(|route| route.verb == Verb::Get) {
        let path = real_path(route, set);
        let said = rig.ask("GET", &path, OPERATOR, "").await;
        if route.path.contains("{node}") || route.path.contains("{policy}") {
            assert_eq!(said.status, 404, "{path}: {}", said.body);
            continue;
        }
        assert_eq!(said.status, 200, "{path}: {}", said.body);
        let schema = json!({ "$ref": format!("#/components/schemas/{}", route.answer) });
        if route.answer != "Anything" {
            assert_eq!(misfits(&document, &schema, &said.json(), &path), Vec::<String>::new());
        }
    }
    // The pages of one node, by its id.
    let status = rig.get("/api/v1/status").await.json();
    assert_eq!(rig.get("/api/v1/nodes/alone").await.json()["node"]["node"], status["node"]);
    let node = status["node"].as_str().unwrap();
    for (end, answer) in [("", "NodePage"), ("/can-stop", "StopVerdict"), ("/evacuation", "Evacuation")] {
        let said = rig.get(&format!("/api/v1/nodes/{node}{end}")).await;
        assert_eq!(said.status, 200, "{end}: {}", said.body);
        let schema = json!({ "$ref": format!("#/components/schemas/{answer}") });
        assert_eq!(misfits(&document, &schema, &said.json(), end), Vec::<String>::new());
    }
    let tiers = rig.get("/api/v1/volumes/data/tiers").await.json();
    let files = ["dirty", "clean"].map(|state| tiers[state]["files"].as_u64().unwrap());
    assert_eq!((files[0] + files[1], &tiers["at_least"]), (3, &json!(false)), "{tiers}");
    let receipts = rig.get(&format!("/api/v1/volumes/data/sets/{set}/receipts")).await.json();
    assert_eq!(receipts["receipts"][0]["key"], "ckpt/step-1/0.pt", "{receipts}");
    rig.end().await;
}

#[tokio::test]
async fn changes_are_made_and_written_down() {
    let rig = Rig::new(options()).await;
    let said = rig
        .post("/api/v1/volumes", r#"{"name":"more","policy":{"drain":{"every":3},"quota_bytes":5}}"#)
        .await;
    assert_eq!(said.status, 200, "{}", said.body);
    assert_eq!(said.json()["policy"]["drain"], json!({ "every": 3 }));
    let said = rig.post("/api/v1/volumes/more/policy", r#"{"drain":"on_demand"}"#).await.json();
    assert_eq!((&said["policy"]["drain"], &said["policy"]["quota_bytes"]), (&json!("on_demand"), &json!(5)));
    assert_eq!(rig.post("/api/v1/volumes/more/remove", "").await.status, 200);
    rig.put("one.txt").await;
    assert_eq!(rig.post("/api/v1/volumes/data/drain", "{}").await.json()["files"], 1);
    let renamed = rig.post("/api/v1/volumes/data/rename", r#"{"from":"one.txt","to":"two.txt"}"#).await;
    assert_eq!(renamed.json(), json!({ "done": true }));
    let gone = rig.post("/api/v1/volumes/data/delete", r#"{"keys":["two.txt","no.txt"]}"#).await.json();
    assert_eq!(
        (&gone["files"][0]["was_there"], &gone["files"][1]["was_there"]),
        (&json!(true), &json!(false))
    );
    let made = rig.post("/api/v1/keys", r#"{"read_only":true,"prefixes":["data"]}"#).await.json();
    let key = made["access_key"].as_str().unwrap();
    assert_eq!(made["secret_key"].as_str().unwrap().len(), 40);
    let listed = rig.ask("GET", "/api/v1/keys", OPERATOR, "").await;
    assert!(listed.body.contains(key) && !listed.body.contains("secret"), "{}", listed.body);
    assert_eq!(rig.post(&format!("/api/v1/keys/{key}/remove"), "{}").await.status, 200);

    rig.refused("POST", "/api/v1/volumes/data/remove", VIEW, "", 403, "is for operators").await;
    let entries = rig.audit("door=admin&limit=5").await;
    let entry = |at: usize, name: &str| entries[at][name].clone();
    assert_eq!(entries.len(), 5);
    assert_eq!((entry(0, "principal"), entry(0, "result")), (json!("viewer"), json!("denied")));
    // What was asked, behind what it did.
    let remove = format!("POST /api/v1/keys/{key}/remove");
    assert_eq!((entry(1, "action"), entry(2, "action")), (json!(remove), json!("AccessKeyDelete")));
    assert_eq!((entry(1, "request_id"), entry(2, "detail")), (entry(2, "request_id"), json!(key)));
    assert_eq!((entry(1, "result"), entry(1, "address")), (json!("ok"), json!("127.0.0.1")));
    assert_eq!(entry(3, "detail"), json!(r#"{"read_only":true,"prefixes":["data"]}"#));
    let gone = rig.audit("path=data/two.txt&action=Delete").await;
    assert_eq!((gone.len(), &gone[0]["principal"]), (1, &json!("operator")), "{gone:?}");
    let page = rig.get("/api/v1/audit?limit=2").await.json();
    let older = rig.audit(&format!("limit=2&before={}", page["next"])).await;
    assert_eq!(older[0]["seq"].as_u64().unwrap() + 1, page["next"].as_u64().unwrap());
    assert!(rig.audit("to=2001-01-01").await.is_empty());
    let level = "/api/v1/volumes/data/audit";
    assert_eq!(rig.get(level).await.json(), json!({ "level": "changes" }));
    assert_eq!(rig.post(level, r#"{"level":"full"}"#).await.json(), json!({ "done": true }));
    assert_eq!(rig.get(level).await.json(), json!({ "level": "full" }));
    rig.refused("POST", level, VIEW, r#"{"level":"changes"}"#, 403, "is for operators").await;
    rig.refused("GET", "/api/v1/audit?from=yesterday", VIEW, "", 400, "is a time").await;
    rig.end().await;
}

#[tokio::test]
async fn a_scheduler_takes_a_job_through_its_life() {
    let rig = Rig::new(options()).await;
    rig.put("set/a").await;
    let keyed = format!("{OPERATOR}Idempotency-Key: train-7\r\n");
    let body = r#"{"spec":"data:\n  mounts:\n    - source: s3://data/set\n      target: /in\n  output: s3://data/out\n"}"#;
    let made = rig.ask("POST", "/api/v1/jobs", &keyed, body).await;
    assert_eq!(made.status, 200, "{}", made.body);
    assert_eq!(made.json()["id"], "train-7");
    // Sent again, it is the same one; without the word it is another of the same id.
    assert_eq!(rig.ask("POST", "/api/v1/jobs", &keyed, body).await.json()["id"], "train-7");
    rig.refused("POST", "/api/v1/jobs", OPERATOR, r#"{"id":"train-7"}"#, 409, "already").await;
    rig.refused("POST", "/api/v1/jobs", OPERATOR, "{}", 400, "needs `id`").await;
    let wrong = r#"{"id":"x","spec":"data:\n  mounts: yes"}"#;
    rig.refused("POST", "/api/v1/jobs", OPERATOR, wrong, 400, "line 2, column 11").await;
    let nowhere = r#"{"id":"x","spec":{"data":{"mounts":[{"source":"s3://data/none","target":"/in"}]}}}"#;
    rig.refused("POST", "/api/v1/jobs", OPERATOR, nowhere, 404, "is not there").await;
    for _ in 0..600 {
        if rig.get("/api/v1/jobs/train-7").await.json()["state"] == "ready" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let ready = rig.get("/api/v1/jobs/train-7").await.json();
    assert_eq!((&ready["state"], &ready["readiness"]), (&json!("ready"), &json!(1.0)), "{ready}");
    assert_eq!(rig.get("/api/v1/jobs/train-7/readiness").await.json()["share"], 1.0);
    let started = rig.post("/api/v1/jobs/train-7/start", r#"{"nodes":["alone"]}"#).await.json();
    assert_eq!((&started["state"], &started["nodes"]), (&json!("running"), &json!(["alone"])));
    let ended = rig.post("/api/v1/jobs/train-7/end", "").await.json();
    assert_eq!(ended["state"], "draining");
    rig.refused("POST", "/api/v1/jobs/none/cancel", OPERATOR, "", 404, "no job `none`").await;
    rig.refused("GET", "/api/v1/jobs?state=lost", VIEW, "", 400, "no state").await;
    let listed = rig.get("/api/v1/jobs?all=true").await.json();
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 1, "{listed}");
    rig.end().await;
}

#[tokio::test]
async fn bad_requests_get_clear_words() {
    let rig = Rig::new(options()).await;
    let none = "";
    let long = format!("/api/v1/volumes/data/files?prefix={}", "a".repeat(1_025));
    for (path, status, words) in [
        ("/api/v1/nodes/nobody", 404, "there is no node `nobody`"),
        ("/api/v1/nodes/nobody/can-stop", 404, "nobody"),
        ("/api/v1/volumes/nothing", 404, "nothing"),
        ("/api/v1/volumes/No_Name", 404, "No_Name"),
        ("/api/v1/volumes/data/stat?key=none", 404, "none"),
        ("/api/v1/volumes/data/stat", 400, "`key` is needed"),
        ("/api/v1/volumes/data/stat?key=", 400, "empty"),
        ("/api/v1/volumes/data/stat?key=%00", 400, "NUL"),
        ("/api/v1/volumes/data/stat?key=%zz", 400, "hex digits"),
        ("/api/v1/volumes/data/stat?key=a&key=b", 400, "twice"),
        ("/api/v1/volumes/data/files?colour=red", 400, "there is no parameter `colour`"),
        (long.as_str(), 400, "at most 1024 characters"),
        ("/api/v1/volumes/data/files?limit=0", 400, "from 1 to 1000"),
        ("/api/v1/volumes/data/files?limit=+7", 400, "from 1 to 1000"),
        ("/api/v1/volumes/data/files?all=perhaps", 400, "true or false"),
        ("/api/v1/volumes/data/sets/99999", 404, "no such checkpoint set"),
        ("/api/v1/volumes/data/sets/first", 400, "`set` is a number"),
        ("/api/v1/volumes/%ff", 400, "UTF-8"),
    ] {
        rig.refused("GET", path, VIEW, none, status, words).await;
    }
    for (path, body, status, words) in [
        ("/api/v1/volumes", "", 400, "name"),
        ("/api/v1/volumes", "{", 400, "does not fit"),
        ("/api/v1/volumes", r#"{"name":"a"}"#, 400, "cannot name a volume"),
        ("/api/v1/volumes", r#"{"name":"data"}"#, 409, "data"),
        ("/api/v1/volumes", r#"{"name":"abc","policy":{"colour":1}}"#, 400, "a volume has no `colour`"),
        ("/api/v1/volumes", r#"{"name":"abc","policy":{"class":"five"}}"#, 400, "does not fit"),
        ("/api/v1/volumes", r#"{"name":"abc","policy":{"drain":{"every":0}}}"#, 400, "at least 1"),
        ("/api/v1/volumes/data/policy", "{}", 400, "nothing to change"),
        ("/api/v1/volumes/data/drain", r#"{"prefix":1}"#, 400, "does not fit"),
        ("/api/v1/nodes/nobody/evacuate", r#"{"force":true}"#, 404, "nobody"),
        ("/api/v1/nodes/nobody/quarantine", r#"{"forced":true}"#, 400, "forced"),
        ("/api/v1/nodes/nobody/remove", r#"{"accept_loss":true}"#, 404, "nobody"),
        ("/api/v1/nodes/nobody/remove", r#"{"lose":true}"#, 400, "lose"),
        ("/api/v1/nodes/alone/remove", r#"{"force":true}"#, 409, "the only node"),
        ("/api/v1/keys/NOKEY/remove", "", 404, "NOKEY"),
        ("/api/v1/session/end", r#"{"all":true}"#, 400, "all"),
        ("/api/v1/session/end", "[]", 400, "does not fit"),
        ("/api/v1/nodes/nobody/quarantine", "[true]", 400, "does not fit"),
    ] {
        rig.refused("POST", path, OPERATOR, body, status, words).await;
    }
    assert!(rig.member.node().volume("abc").await.is_err(), "what was refused is not half made");
    let long = format!("{{\"prefix\":\"{}\"}}", "a".repeat(BODY_BYTES_MAX));
    rig.refused("POST", "/api/v1/volumes/data/drain", OPERATOR, &long, 413, "at most").await;
    let form = format!("{OPERATOR}Content-Type: text/plain\r\n");
    rig.refused("POST", "/api/v1/volumes/data/drain", &form, "", 415, "application/json").await;
    rig.end().await;
}

#[tokio::test]
async fn a_session_changes_things_only_with_its_word() {
    let rig = Rig::new(options()).await;
    rig.refused("POST", "/api/v1/session", "", r#"{"token":"guess"}"#, 401, "not known").await;
    let login = rig.ask("POST", "/api/v1/session", "", r#"{"token":"operators-word"}"#).await;
    assert_eq!(login.status, 200, "{}", login.body);
    let port = rig.admin.address().port();
    assert!(login.cookie().starts_with(&format!("stoker-session-{port}=")), "{}", login.head);
    assert!(login.head.contains("HttpOnly; SameSite=Strict"), "{}", login.head);
    let csrf = login.json()["csrf"].as_str().unwrap().to_owned();
    let cookie = format!("Cookie: {}\r\n", login.cookie());
    let told = rig.ask("GET", "/api/v1/session", &cookie, "").await.json();
    assert_eq!(told, json!({ "role": "operator", "by": "session", "csrf": csrf }));

    let drain = "/api/v1/volumes/data/drain";
    rig.refused("POST", drain, &cookie, "{}", 403, "repeat its word").await;
    rig.refused("POST", drain, &format!("{cookie}X-Stoker-Csrf: {}\r\n", &csrf[1..]), "{}", 403, "its word")
        .await;
    let whole = format!("{cookie}X-Stoker-Csrf: {csrf}\r\n");
    assert_eq!(rig.ask("POST", drain, &whole, "{}").await.status, 200);
    assert_eq!(rig.ask("POST", drain, &format!("{whole}Origin: http://node:1\r\n"), "{}").await.status, 200);
    for origin in ["http://evil.example", "null", "http://node:2"] {
        rig.refused("POST", drain, &format!("{whole}Origin: {origin}\r\n"), "{}", 403, "another site").await;
    }
    assert_eq!(rig.ask("GET", "/", &cookie, "").await.status, 200);
    assert_eq!(rig.ask("GET", "/console/app.js", "", "").await.status, 401);
    assert_eq!(rig.ask("POST", "/api/v1/session/end", &whole, "").await.status, 200);
    rig.refused("GET", "/api/v1/status", &cookie, "", 401, "not known here").await;
    let audit = rig.get("/api/v1/audit?limit=1000").await;
    assert!(!audit.body.contains("operators-word") && !audit.body.contains("guess"), "{}", audit.body);
    let audit = audit.json();
    let is_login = |entry: &&Value| entry["action"] == "POST /api/v1/session";
    let logins: Vec<Value> = audit["entries"].as_array().unwrap().iter().filter(is_login).cloned().collect();
    let told = |login: &Value| (login["principal"].clone(), login["result"].clone());
    assert_eq!(told(&logins[0]), (json!("operator"), json!("ok")), "{logins:?}");
    assert_eq!(told(&logins[1]), (json!("anonymous"), json!("denied")), "{logins:?}");
    rig.end().await;
}

#[tokio::test]
async fn a_session_expires_and_says_so() {
    let rig = Rig::new(AdminOptions { session_age_max: Duration::ZERO, ..options() }).await;
    let login = rig.ask("POST", "/api/v1/session", "", r#"{"token":"viewers-word"}"#).await;
    let cookie = format!("Cookie: {}\r\n", login.cookie());
    rig.refused("GET", "/api/v1/status", &cookie, "", 401, "this session expired").await;
    let moved = rig.ask("GET", "/", &cookie, "").await;
    assert!(moved.status == 303 && moved.head.contains("location: /login"), "{}", moved.head);
    assert_eq!(rig.ask("GET", "/login", "", "").await.status, 200);
    rig.end().await;
}

#[tokio::test]
async fn who_asks_too_often_waits() {
    let rate = Rate { per_s: 0.001, burst: 4.0 };
    let rig = Rig::new(AdminOptions { rate, guess_rate: Rate { burst: 1.0, ..rate }, ..options() }).await;
    rig.refused("GET", "/api/v1/status", "Authorization: Bearer a\r\n", "", 401, "not known").await;
    rig.refused("GET", "/api/v1/status", "Authorization: Bearer b\r\n", "", 429, "too many").await;
    assert_eq!(
        rig.get("/api/v1/status").await.status,
        200,
        "whoever has a token is not slowed down by guesses"
    );
    assert_eq!(rig.get("/metrics").await.status, 200);
    let late = rig.get("/api/v1/status").await;
    assert!(late.status == 429 && late.head.contains("retry-after: "), "{}", late.head);
    assert_eq!(rig.ask("GET", "/healthz", "", "").await.status, 200, "health is always told");
    rig.end().await;
}

struct Told;

impl Events for Told {
    fn events(&self, after: u64, limit: usize) -> Vec<Event> {
        let event = |seq| Event {
            seq,
            at_ms: 1,
            level: "warn".into(),
            subject: "node".into(),
            name: "n1".into(),
            words: "is silent".into(),
        };
        (after + 1..=3).take(limit).map(event).collect()
    }
}

#[tokio::test]
async fn events_are_shown_where_there_are_some() {
    let rig = Rig::new(options()).await;
    assert_eq!(rig.get("/api/v1/events").await.json(), json!({ "configured": false, "events": [] }));
    rig.end().await;
    let rig = Rig::new(AdminOptions { events: Some(Arc::new(Told)), ..options() }).await;
    let events = rig.get("/api/v1/events?after=1&limit=1").await.json();
    assert_eq!((&events["events"][0]["seq"], events["events"].as_array().unwrap().len()), (&json!(2), 1));
    let schema = json!({ "$ref": "#/components/schemas/Events" });
    let document = openapi::document();
    assert_eq!(misfits(&document, &schema, &events, "events"), Vec::<String>::new());
    rig.end().await;
}

#[tokio::test]
async fn plans_are_made_by_who_looks_and_written_down_nowhere() {
    let rig = Rig::new(options()).await;
    let body = r#"{"model":"lab","inputs":{"workers":1,"pattern":"random"},"change":"double-workers"}"#;
    let said = rig.ask("POST", "/api/v1/plan/io", VIEW, body).await;
    assert_eq!(said.status, 200, "{}", said.body);
    let plan = said.json();
    assert_eq!(plan["figures"][0]["value"], json!(0.0109375), "{plan}");
    assert!(plan["moved"].as_array().is_some_and(|moved| !moved.is_empty()), "{plan}");
    let document = openapi::document();
    let schema = json!({ "$ref": "#/components/schemas/Plan" });
    for kind in ["io", "design", "gravity", "kv", "slo"] {
        let said = rig.ask("POST", &format!("/api/v1/plan/{kind}"), VIEW, r#"{"inputs":{}}"#).await;
        assert_eq!((said.status, misfits(&document, &schema, &said.json(), kind)), (200, Vec::new()));
    }
    for (path, body, words) in [
        ("io", r#"{"inputs":{"gpus":0}}"#, "`gpus`: it cannot be zero"),
        ("io", r#"{"inputs":{"gpu":1}}"#, "no such input"),
        ("io", r#"{"inputs":{"gpus":"4GiB"}}"#, "is a size"),
        ("nothing", r#"{"inputs":{}}"#, "there is no plan"),
        ("kv", r#"{"model":"lab","inputs":{}}"#, "the lab has no model"),
        ("io", r#"{"inputs":{},"calibration":{"form":2}}"#, "form 2"),
    ] {
        rig.refused("POST", &format!("/api/v1/plan/{path}"), VIEW, body, 400, words).await;
    }
    assert!(rig.audit("door=admin").await.is_empty());
    // To keep one is a change.
    let keep = r#"{"kind":"io","job":"run-7","inputs":{"gpus":8}}"#;
    rig.refused("POST", "/api/v1/plan-ledger", VIEW, keep, 403, "is for operators").await;
    let id = rig.post("/api/v1/plan-ledger", keep).await.json()["id"].clone();
    let kept = rig.get("/api/v1/plan-ledger").await.json();
    assert_eq!((&kept["entries"][0]["prediction"]["id"], &kept["skipped"]), (&id, &json!([])), "{kept}");
    rig.end().await;
}
