//! `stoker up` and `stoker serve` as processes: what they tell, what they keep, what they refuse, how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use serde_json::Value;
use stoker_client::{Client, Endpoint};
use stoker_store::{Awaited, Finish, Key, Store, WriteRequest};

/// A ring and a cap that are quick to make.
const SMALL: [&str; 4] = ["--size", "256MiB", "--memory", "256MiB"];

/// A running daemon. A test that fails takes it along.
pub struct Daemon {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Option<BufReader<ChildStderr>>,
    pub ready: Value,
}

impl Daemon {
    /// Starts the binary and waits for the line that says it is ready.
    pub fn start(args: &[&str]) -> Daemon {
        Daemon::start_with(args, &[])
    }

    /// The same with more environment variables.
    fn start_with(args: &[&str], env: &[(&str, &str)]) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.args(args).env_remove("STOKER_DIR").env_remove("STOKER_LOG").envs(env.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut err = child.stderr.take().map(BufReader::new);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str(&line) else {
            let mut words = String::new();
            err.take().unwrap().read_to_string(&mut words).unwrap();
            panic!("{args:?} is not ready: {line}{words}");
        };
        Daemon { child, out, err, ready }
    }

    /// `up` in a directory, with small limits.
    fn up(dir: &Path, more: &[&str]) -> Daemon {
        let dir = dir.to_str().unwrap();
        Daemon::start(&[&["up", "--json", "--dir", dir], &SMALL[..], more].concat())
    }

    fn text(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.ready))
    }

    /// Asks the admin door.
    fn get(&self, path: &str) -> (u16, String) {
        get(self.text("admin"), path, None)
    }

    /// Waits until it says this on stderr.
    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert_ne!(self.err.as_mut().unwrap().read_line(&mut line).unwrap(), 0, "never said: {words}");
        }
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the end; the exit code, what was left on stdout, and the words.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut rest, mut words) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).unwrap();
        self.err.take().unwrap().read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().code(), rest, words)
    }

    /// Stops it as an operator does; it must end well.
    pub fn stop(self) -> String {
        self.signal("TERM");
        let (code, rest, words) = self.end();
        assert_eq!((code, rest.as_str()), (Some(0), ""), "{words}");
        words
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request to `http://host:port`; status and body.
fn get(url: &str, path: &str, token: Option<&str>) -> (u16, String) {
    get_from(url, "x", path, token)
}

/// The same for a name of the host.
fn get_from(url: &str, host: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

/// Runs the binary to its end: exit code, stdout, stderr.
pub fn run(args: &[&str]) -> (Option<i32>, String, String) {
    run_with(args, &[])
}

/// The same with more environment variables.
fn run_with(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    let done = command.args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// It fails before anything is served: exit code 1, no data, the cause, then the hint.
#[track_caller]
fn refused(args: &[&str], cause: &str, hint: &str) {
    let (code, out, err) = run(args);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}: {err}");
    let mut lines = err.lines().skip_while(|line| !line.starts_with("stoker: "));
    let (first, second) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    assert!(first.contains(cause), "{args:?}: {err}");
    assert!(second.starts_with("  hint: ") && second.contains(hint), "{args:?}: {err}");
}

/// A folder on the file system of the build.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Has a node use ports that no other test wants: those that all want first change hands between two starts.
fn choose_ports(home: &Path) {
    let [s3, admin] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [s3, admin] = [&s3, &admin].map(|listener| listener.local_addr().unwrap().port());
    fs::create_dir_all(home).unwrap();
    fs::write(home.join("ports.json"), format!("{{\"s3\":{s3},\"admin\":{admin}}}")).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
}

#[test]
fn the_first_start_makes_everything_and_a_restart_keeps_it() {
    let dir = folder();
    let home = dir.path().join("stoker-data");
    choose_ports(&home);
    let first = Daemon::up(&home, &[]);
    let ready = first.ready.clone();
    let names: BTreeSet<&str> = ready.as_object().unwrap().keys().map(String::as_str).collect();
    let expect = "access_key admin ca dir id join_token lake nfs peers pid region registry s3 secret_key socket token unreachable \
                  view_token volume";
    assert_eq!(names, expect.split(' ').collect());
    assert_eq!(
        (&ready["pid"], &ready["volume"], &ready["region"]),
        (&first.child.id().into(), &"data".into(), &"stoker".into())
    );
    assert_eq!(ready["dir"], home.to_str().unwrap());
    assert_eq!(ready["lake"], format!("file://{}", home.join("lake").display()));
    assert!(home.join("lake").is_dir() && home.join("ring/superblock").exists());

    // Secrets are for the owner alone, and those that were told are those that are kept.
    let credentials = fs::read_to_string(home.join("credentials")).unwrap();
    for name in ["access_key", "secret_key"] {
        assert!(credentials.contains(first.text(name)), "{name} in {credentials}");
    }
    assert_eq!(fs::read_to_string(home.join("token")).unwrap().trim(), first.text("token"));
    for name in ["credentials", "token", "view-token", "stoker.sock", "cluster.keys"] {
        assert_eq!(mode_of(&home.join(name)), 0o600, "{name}");
    }

    // S3 answers, and not to everybody.
    let (status, body) = get(first.text("s3"), "/data/key", None);
    assert!(status == 403 && body.contains("<Code>AccessDenied</Code>"), "{status} {body}");
    // A name below localhost is a bucket: a bad one is noticed before the missing signature.
    let (status, body) = get_from(first.text("s3"), "data.localhost:9000", "/key", None);
    assert!(status == 403 && body.contains("<Code>AccessDenied</Code>"), "{status} {body}");
    let (status, body) = get_from(first.text("s3"), "No_Bucket.localhost:9000", "/data/key", None);
    assert!(status == 400 && body.contains("<BucketName>No_Bucket</BucketName>"), "{status} {body}");
    let words = first.stop();
    assert!(words.contains("SIGTERM: stopping"), "{words}");

    let second = Daemon::up(&home, &[]);
    for name in ["s3", "admin", "access_key", "secret_key", "token", "view_token", "lake", "volume"] {
        assert_eq!(second.ready[name], ready[name], "{name}");
    }
    second.signal("INT");
    assert_eq!(second.end().0, Some(0));
}

#[test]
fn those_who_watch_get_answers() {
    let dir = folder();
    let node = Daemon::up(dir.path(), &[]);
    assert_eq!(node.get("/healthz"), (200, "ok\n".into()));
    assert_eq!(node.get("/readyz"), (200, "ready\n".into()));
    assert_eq!(node.get("/api/v1/status").0, 401);
    let (status, text) = get(node.text("admin"), "/api/v1/status", Some(node.text("token")));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &value["ready"], &value["dirty_files"]), (200, &true.into(), &0.into()), "{text}");

    // A refused request counts; the second look sees it.
    get(node.text("s3"), "/data/key", None);
    assert_eq!(node.get("/metrics").0, 401);
    let (status, text) = get(node.text("admin"), "/metrics", Some(node.text("view_token")));
    assert_eq!(status, 200);
    let families = parse_metrics(&text);
    let prefixed = |name: &&String| name.starts_with("stoker_") || name.starts_with("process_");
    assert_eq!(families.keys().find(|name| !prefixed(name)), None);
    assert_eq!(families["stoker_metrics_left_out"].samples.values().next(), Some(&0.0), "{text}");
    assert!(families.keys().any(|name| name.starts_with("stoker_s3_")), "{text}");
    assert!(families["process_resident_memory_bytes"].samples.values().all(|bytes| *bytes > 1e6));
    check_documented(families.keys());
    check_with_promtool(&text);
    node.stop();
}

/// Prometheus' own judge, where it is installed: what cannot be read, and matters of taste.
fn check_with_promtool(text: &str) {
    let mut command = Command::new("promtool");
    let Ok(mut promtool) =
        command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()
    else {
        stoker_testing::skipped("there is no promtool");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = promtool.wait_with_output().unwrap();
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Every metric is in a table of the page about them.
fn check_documented<'n>(names: impl Iterator<Item = &'n String>) {
    let page = include_str!("../../../../docs/metrics.md");
    let missing: Vec<&String> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, Vec::<&String>::new(), "not in docs/metrics.md");
}

/// The numbers of one name.
#[derive(Default)]
struct Family {
    kind: String,
    samples: BTreeMap<String, f64>,
}

/// Prometheus' text format, with nothing forgiven: each family once, HELP, TYPE, then its samples.
fn parse_metrics(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut helped = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.trim().is_empty(), "{line}");
            helped = name.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "HELP comes before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let family = Family { kind: kind.into(), ..Family::default() };
            assert!(families.insert(name.into(), family).is_none(), "{name} twice");
            current = name.to_string();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = families.get_mut(&current).expect("a sample behind its TYPE");
            let suffix = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line} in {current}"));
            let suffixes: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line} in {current}");
            check_labels(series);
            let value: f64 = value.replace("+Inf", "inf").parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(family.samples.insert(series.into(), value).is_none(), "{series} twice");
        }
    }
    families
}

fn check_labels(series: &str) {
    let Some((_, labels)) = series.split_once('{') else { return };
    let mut rest = labels.strip_suffix('}').unwrap_or_else(|| panic!("{series}"));
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{series}"));
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{series}");
        let mut escaped = false;
        let end = value.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        rest = &value[end.unwrap_or_else(|| panic!("{series}")) + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[test]
fn two_nodes_do_not_share_a_directory() {
    let dir = folder();
    let node = Daemon::up(dir.path(), &[]);
    let path = dir.path().to_str().unwrap();
    let pid = format!("in use by another stoker (process {})", node.child.id());
    refused(&["up", "--check", "--dir", path, "--json"], &pid, "stop the other process");
    // The first one did not notice.
    assert_eq!(node.get("/readyz").0, 200);
    node.stop();
}

#[test]
fn a_kept_port_that_is_taken_is_replaced_in_words() {
    let dir = folder();
    choose_ports(dir.path());
    let first = Daemon::up(dir.path(), &[]);
    let address = first.text("s3").strip_prefix("http://").unwrap().to_string();
    first.stop();
    let _taken = TcpListener::bind(&address).unwrap();
    let second = Daemon::up(dir.path(), &[]);
    assert_ne!(second.text("s3"), format!("http://{address}"));
    let chosen = second.text("s3").to_string();
    let words = second.stop();
    let port = address.rsplit_once(':').unwrap().1;
    assert!(words.contains(&format!("port {port} of the last start is taken")), "{words}");
    // The new one is kept from now on.
    assert_eq!(Daemon::up(dir.path(), &[]).text("s3"), chosen);
}

#[test]
fn an_address_that_was_asked_for_is_used_or_refused() {
    let dir = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let path = dir.path().to_str().unwrap();
    for door in ["--s3", "--admin"] {
        let args = [&["up", "--check", "--dir", path, door, &address], &SMALL[..]].concat();
        refused(&args, "cannot listen on", "another program listens there");
    }
    // Nothing is left that would keep the next one from starting.
    let node = Daemon::up(dir.path(), &["--s3", "0.0.0.0:0", "--admin", "127.0.0.1:0"]);
    assert!(node.text("s3").starts_with("http://127.0.0.1:"), "an address to connect to: {}", node.ready);
    assert!(node.stop().contains("plain HTTP"));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_served() {
    let dir = folder();
    let path = dir.path().to_str().unwrap();
    let nowhere = dir.path().join("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    let up = |more: &[&'static str]| -> Vec<&str> {
        [&["up", "--check", "--dir", path][..], &SMALL, more].concat()
    };
    refused(&up(&["--lake", "ftp://host/dir"]), "ftp://host/dir cannot be used", "s3://bucket/prefix");
    assert!(!dir.path().join("up.json").exists(), "a lake that does not work is not remembered");
    refused(&["up", "--check", "--dir", path, "--drive", nowhere], "nowhere is not there", "mount it");
    refused(
        &["up", "--check", "--dir", path, "--lake", nowhere, "--size", "64MiB"],
        "cannot be used",
        "mount it",
    );
    refused(
        &["up", "--check", "--dir", path, "--memory", "1MiB", "--size", "64MiB"],
        "too little",
        "--memory",
    );
    refused(
        &["up", "--check", "--dir", path, "--memory", "900TiB", "--size", "64MiB"],
        "more than",
        "--memory",
    );
    // Nobody may make folders there, not even root, who would get past a mode.
    refused(&["up", "--check", "--dir", "/sys/stoker"], "/sys/stoker", "owner, mode");
    for args in
        [&["up", "--cores", "0"][..], &["up", "--s3", "here"], &["up", "--lake-mode", "mine"], &["serve"]]
    {
        assert_eq!(run(args).0, Some(2), "{args:?}");
    }
}

#[test]
fn drives_and_lake_are_remembered() {
    let dir = folder();
    let [lake, nvme0, nvme1] = ["lake", "nvme0", "nvme1"].map(|name| dir.path().join(name));
    for path in [&lake, &nvme0, &nvme1] {
        fs::create_dir(path).unwrap();
    }
    fs::create_dir(nvme0.join("lost+found")).unwrap();
    let home = dir.path().join("home");
    let [lake_arg, drive0, drive1] = [&lake, &nvme0, &nvme1].map(|path| path.to_str().unwrap());
    Daemon::up(&home, &["--lake", lake_arg, "--drive", drive0, "--drive", drive1]).stop();
    assert!(nvme0.join("stoker-ring/superblock").exists() && nvme1.join("stoker-ring/superblock").exists());
    assert!(!home.join("ring").exists());
    assert_eq!(mode_of(&home), 0o700);
    let again = Daemon::up(&home, &[]);
    assert_eq!(again.text("lake"), format!("file://{}", lake.display()));
    let (_, text) = get(again.text("admin"), "/api/v1/status", Some(again.text("token")));
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["rings"].as_array().unwrap().len(), 2, "{text}");
    again.stop();
}

/// The environment that leads an S3 lake to another node: its address, key and secret. Without TLS no authority is needed.
fn lake_env<'e>(s3: &'e str, access: &'e str, secret: &'e str) -> [(&'e str, &'e str); 6] {
    [
        ("AWS_ENDPOINT_URL", s3),
        ("AWS_ACCESS_KEY_ID", access),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
        ("SSL_CERT_FILE", "/nonexistent"),
        ("SSL_CERT_DIR", "/nonexistent"),
    ]
}

/// One node is the S3 lake of another: the real protocol, with nothing to install.
#[test]
fn a_lake_behind_s3_is_used_or_refused_with_the_reason() {
    let dir = folder();
    let lake = Daemon::up(&dir.path().join("lake"), &[]);
    let [s3, access, secret] = ["s3", "access_key", "secret_key"].map(|name| lake.text(name));
    let home = dir.path().join("home");
    let home = home.to_str().unwrap();
    let up = |url: &'static str| [&["up", "--json", "--dir", home, "--lake", url][..], &SMALL].concat();
    let refused = |url, env: &[(&str, &str)], parts: &[&str]| {
        let (code, out, err) = run_with(&[&up(url)[..], &["--check"]].concat(), env);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{url}: {err}");
        for part in parts {
            assert!(err.contains(part), "{part} in: {err}");
        }
    };
    refused("s3://data", &lake_env(s3, "STKRNOBODY", secret), &["s3://data cannot be used", "hint: "]);
    refused("s3://data", &lake_env(s3, access, "wrong"), &["secret", "hint: check the credentials"]);
    refused("s3://nosuchbucket", &lake_env(s3, access, secret), &["nosuchbucket", "hint: make the bucket"]);
    let encrypted = lake_env("https://127.0.0.1:1", access, secret);
    refused("s3://data", &encrypted, &["https://127.0.0.1:1 needs certificates", "install ca-certificates"]);
    assert!(!Path::new(home).join("node.json").exists(), "nothing was begun");

    let node = Daemon::start_with(&up("s3://data/below"), &lake_env(s3, access, secret));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let drained = |node: &Daemon, name: &str, len: usize| {
        let key = Key::new(name.as_bytes()).unwrap();
        let socket = Endpoint::Unix(node.text("socket").into());
        runtime.block_on(async {
            let client = Client::connect(&socket, None).await.unwrap();
            let mut writer = client.create("data", &key, WriteRequest::default()).await.unwrap();
            let mut buf = writer.buffer().await.unwrap();
            buf.set_len(len);
            writer.write(buf).await.unwrap();
            writer.finish(Finish::default()).await.unwrap();
            client.drain("data", b"").await.unwrap();
            client.wait("data", &key, None, Awaited::Drained).await.unwrap()
        })
    };
    assert_eq!(drained(&node, "first", 1000).lake.as_deref(), Some("s3://data/below/data/first"));
    assert_eq!(drained(&node, "empty", 0).lake.as_deref(), Some("s3://data/below/data/empty"));
    node.stop();
    lake.stop();
}

#[test]
fn a_lake_out_of_reach_does_not_stop_a_start() {
    let dir = folder();
    // An address of its own: nobody else takes the port while the lake is away.
    let lake = Daemon::up(&dir.path().join("lake"), &["--s3", "127.0.81.1:0"]);
    let [s3, access, secret] = ["s3", "access_key", "secret_key"].map(|name| lake.text(name).to_string());
    lake.stop();
    let home = dir.path().join("home");
    let args = ["up", "--json", "--dir", home.to_str().unwrap(), "--lake", "s3://data/below"];
    let node = Daemon::start_with(&[&args[..], &SMALL].concat(), &lake_env(&s3, &access, &secret));
    assert_eq!(node.get("/readyz").0, 200);
    // The lake comes back, and with it the first volume.
    let lake = Daemon::up(&dir.path().join("lake"), &["--s3", s3.strip_prefix("http://").unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = Endpoint::Unix(node.text("socket").into());
    runtime.block_on(async {
        let client = Client::connect(&socket, None).await.unwrap();
        while client.volume("data").await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    let words = node.stop();
    assert!(words.contains("the lake s3://data/below does not answer"), "{words}");
    lake.stop();
}

#[test]
fn a_stop_waits_for_what_is_under_way_and_a_second_one_does_not() {
    let dir = folder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A writer that the node has begun, and a node that was told to stop.
    let stopped_with_writer = |node: &Daemon| {
        let socket = Endpoint::Unix(node.text("socket").into());
        let client = runtime.block_on(Client::connect(&socket, None)).unwrap();
        let key = Key::new(b"late").unwrap();
        let mut writer = runtime.block_on(client.create("data", &key, WriteRequest::default())).unwrap();
        let mut buf = runtime.block_on(writer.buffer()).unwrap();
        buf.set_len(4096);
        node.signal("TERM");
        while node.get("/readyz").0 != 503 {
            std::thread::yield_now();
        }
        (client, writer, buf)
    };
    let first = Daemon::up(dir.path(), &[]);
    let (client, mut writer, buf) = stopped_with_writer(&first);
    let receipt = runtime.block_on(async {
        writer.write(buf).await?;
        writer.finish(Finish::default()).await
    });
    assert_eq!(receipt.unwrap().size, 4096);
    drop(client);
    let (code, _, words) = first.end();
    assert_eq!(code, Some(0), "{words}");

    let second = Daemon::up(dir.path(), &[]);
    let writer = stopped_with_writer(&second);
    second.signal("TERM");
    let (code, _, words) = second.end();
    assert!(code == Some(0) && words.contains("SIGTERM again: stopped at once"), "{code:?} {words}");
    drop(writer);

    // What was finished is there, what was not is not.
    let third = Daemon::up(dir.path(), &[]);
    let socket = Endpoint::Unix(third.text("socket").into());
    let size = runtime.block_on(async {
        let client = Client::connect(&socket, None).await?;
        client.stat("data", &Key::new(b"late")?).await.map(|info| info.size)
    });
    assert_eq!(size.unwrap(), 4096);
    third.stop();
}

#[test]
fn words_for_people_hold_the_real_keys() {
    let dir = folder();
    let path = dir.path().to_str().unwrap();
    choose_ports(dir.path());
    let ready = Daemon::up(dir.path(), &[]);
    let [s3, access, secret] = ["s3", "access_key", "secret_key"].map(|name| ready.text(name).to_string());
    ready.stop();
    let (code, out, err) = run(&[&["up", "--check", "--dir", path], &SMALL[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    for part in [
        format!("export AWS_ACCESS_KEY_ID={access} AWS_SECRET_ACCESS_KEY={secret}"),
        format!("aws --endpoint-url {s3} s3 cp hello.txt s3://data/"),
        format!("endpoint_url=\"{s3}\""),
        format!("RCLONE_S3_ENDPOINT={s3}"),
        format!("export STOKER_DIR={path}"),
        format!("{} put hello.txt data/hello.txt", env!("CARGO_BIN_EXE_stoker")),
        format!("{} wait data/hello.txt", env!("CARGO_BIN_EXE_stoker")),
        "one copy on this node".into(),
        "256 MiB of memory".into(),
    ] {
        assert!(out.contains(&part), "{part} in {out}");
    }
    assert!(err.contains("everything starts; stopped again"), "{err}");
}

#[test]
fn a_node_by_its_configuration() {
    let dir = folder();
    let home = dir.path().join("home");
    let file = dir.path().join("stoker.toml");
    let drive = dir.path().join("drive");
    fs::create_dir(&drive).unwrap();
    let text = format!(
        "[node]\ndir = {home:?}\nmemory = \"256MiB\"\n[[drive]]\npath = {drive:?}\nsize = \"256MiB\"\n\
         [s3]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n[door]\nlisten = [\"127.0.0.1:0\"]\n\
         [log]\nlevel = \"info\"\nformat = \"json\"\n"
    );
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let node = Daemon::start(&["serve", "--json", "--config", file]);
    assert_eq!(node.get("/readyz").0, 200);
    assert_eq!(node.ready["door"].as_array().unwrap().len(), 1);
    let s3 = node.ready["s3"][0].as_str().unwrap();
    assert_eq!(get(s3, "/", None).0, 403);
    assert!(!node.ready.to_string().contains("secret"), "{}", node.ready);
    // The door over TCP wants the token.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let door: Endpoint = node.ready["door"][0].as_str().unwrap().parse().unwrap();
    let token = fs::read_to_string(home.join("token")).unwrap();
    runtime.block_on(async {
        assert!(Client::connect(&door, Some("wrong")).await.is_err());
        let client = Client::connect(&door, Some(token.trim())).await.unwrap();
        assert_eq!(client.access_keys().await.unwrap().len(), 1);
        client.volume_create("run", Default::default()).await.unwrap();
    });
    // A hangup is no reason to go.
    node.signal("HUP");
    assert_eq!(node.get("/healthz").0, 200);
    let words = node.stop();
    for line in words.lines().filter(|line| line.starts_with('{')) {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(event["time"].is_string() && event["level"].is_string(), "{line}");
    }

    assert_eq!(run(&["serve", "--check", "--config", file]).0, Some(0));
}

/// Makes a certificate for a name, if there is a program that can.
fn make_certificate(dir: &Path, name: &str) -> bool {
    let files = ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj"];
    let key = ["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let made =
        Command::new("openssl").args(key).args(files).arg(format!("/CN={name}")).current_dir(dir).output();
    made.is_ok_and(|made| made.status.success())
}

/// What a TLS server shows to those who connect.
fn shown_certificate(url: &str) -> String {
    let address = url.strip_prefix("https://").unwrap();
    let args = ["s_client", "-connect", address];
    let done = Command::new("openssl").args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn a_hangup_brings_the_new_certificate() {
    let dir = folder();
    if !make_certificate(dir.path(), "stoker-first") {
        stoker_testing::skipped("there is no openssl that makes certificates");
        return;
    }
    let path = |name: &str| dir.path().join(name);
    let text = format!(
        "[node]\ndir = {:?}\nmemory = \"256MiB\"\n[[drive]]\npath = {:?}\nsize = \"256MiB\"\n[admin]\n\
         listen = \"127.0.0.1:0\"\n[s3]\nlisten = [\"127.0.0.1:0\"]\ntls_cert = {:?}\ntls_key = {:?}\n",
        path("home"),
        dir.path(),
        path("cert.pem"),
        path("key.pem"),
    );
    fs::write(path("stoker.toml"), text).unwrap();
    let config = path("stoker.toml");
    let mut node = Daemon::start(&["serve", "--json", "--log", "info", "--config", config.to_str().unwrap()]);
    let url = node.ready["s3"][0].as_str().unwrap().to_string();
    assert!(shown_certificate(&url).contains("stoker-first"));
    // Rubbish does not replace a certificate that works.
    fs::write(path("cert.pem"), "rubbish").unwrap();
    node.signal("HUP");
    node.wait_for("the old one stays");
    assert!(shown_certificate(&url).contains("stoker-first"));
    assert!(make_certificate(dir.path(), "stoker-second"));
    node.signal("HUP");
    node.wait_for("the certificate was read again");
    assert!(shown_certificate(&url).contains("stoker-second"));
    node.stop();
}

#[test]
fn mistakes_in_a_configuration_are_named_with_their_place() {
    let dir = folder();
    let file = dir.path().join("stoker.toml");
    let path = file.to_str().unwrap();
    for (text, cause, hint) in [
        (
            "[node]\ncoers = 2\n",
            ":2:1: unknown setting `coers`; did you mean `cores`?",
            "known here: dir, cores",
        ),
        ("[s3]\n\nlisten = 9000\n", ":3:10: invalid type: integer `9000`", "deploy/stoker.toml"),
        ("[volume_defaults]\nclass = \"four\"\n", ":2:9: unknown value `four`", "known here: auto, one"),
        ("[node]\nmemory = \"lots\"\n", ":2:10: \"lots\": ", "deploy/stoker.toml"),
        ("[node\n", ":1:6: ", "deploy/stoker.toml"),
        ("[lake]\nurl = \"s3//bucket\"\n", ":2:7: `s3//bucket` is not a lake", "deploy/stoker.toml"),
        ("[volume_defaults]\ndrain = \"every:0\"\n", ":2:9: unknown value `every:0`", "known here: always"),
    ] {
        fs::write(&file, text).unwrap();
        for more in [&[][..], &["--check"]] {
            refused(&[&["serve", "--config", path], more].concat(), &format!("{path}{cause}"), hint);
        }
    }
    refused(&["serve", "--config", "no/such/file"], "no/such/file", "check the path");
}
