//! What `up` was told once counts until it is told otherwise; several nodes stop together, cleanly or hard.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};
use stoker_client::{Client, Endpoint};
use stoker_store::{Key, Store, WriteRequest};

use crate::rig::{Node, Ran, binary, ran};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Processes that lead a group of their own, as those that a shell starts do.
struct Up {
    child: Child,
    err: Option<BufReader<ChildStderr>>,
    ready: Value,
}

impl Up {
    fn start(args: &[&str], env: &[(&str, &str)]) -> Up {
        let mut command = binary();
        command.args(args).envs(env.iter().copied()).process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str(&line) else {
            let mut words = String::new();
            err.read_to_string(&mut words).unwrap();
            panic!("{args:?} is not ready: {line}{words}");
        };
        Up { child, err: Some(err), ready }
    }

    /// As a terminal sends it: to everybody in the group.
    fn key(&self, signal: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{signal} -{}", self.child.id())]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits until it says this on stderr; what it said until then.
    fn wait_for(&mut self, words: &str) -> String {
        let mut said = String::new();
        while !said.contains(words) {
            assert_ne!(
                self.err.as_mut().unwrap().read_line(&mut said).unwrap(),
                0,
                "never said {words}: {said}"
            );
        }
        said
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut words = String::new();
        self.err.take().unwrap().read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().code(), words)
    }

    fn stop(self) -> String {
        self.key("TERM");
        let (code, words) = self.end();
        assert_eq!(code, Some(0), "{words}");
        words
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // A test that failed takes all of them along.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(dir: &Path, args: &str) -> Ran {
    ran(binary().args(args.split(' ')).arg("--dir").arg(dir))
}

/// What the node says of itself.
fn own(dir: &Path) -> Value {
    let said = ask(dir, "status --json");
    assert_eq!(said.code, 0, "{}", said.err);
    let status = said.json();
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["node"] == status["node"]).cloned().unwrap_or_else(|| panic!("{status}"))
}

fn origins(dir: &Path, env: &[(&str, &str)]) -> Vec<(String, String, String)> {
    let mut command = binary();
    let said = ran(command.args(["config", "show", "--json", "--dir"]).arg(dir).envs(env.iter().copied()));
    assert_eq!(said.code, 0, "{}", said.err);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    said.json_lines()
        .iter()
        .map(|row| (text(&row["setting"]), text(&row["value"]), text(&row["origin"])))
        .collect()
}

#[test]
fn a_node_comes_back_as_it_was_told_to_be() {
    let folder = folder();
    let dir = folder.path().join("node");
    let home = dir.to_str().unwrap();
    let s3 = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let told = [
        "--name",
        "alpha",
        "--domain",
        "cell=c1,tor=t1",
        "--size",
        "256MiB",
        "--memory",
        "300MiB",
        "--cores",
        "1",
        "--s3",
        &s3,
        "--admin",
        "127.0.0.1:0",
        "--peers",
        "127.0.0.1:0",
        "--nfs",
        "127.0.0.1:0",
        "--nfs-export",
        "data:allow=127.0.0.1,read-only",
        "--grace",
        "7s",
    ];
    let first = Up::start(&[&["up", "--json", "--dir", home][..], &told].concat(), &[]);
    let (ready, node) = (first.ready.clone(), own(&dir));
    assert_eq!(node["name"], "alpha");
    let words = first.stop();
    assert!(!words.contains("settings from"), "nothing came from elsewhere: {words}");
    assert!(words.contains("SIGTERM: stopping alpha") && words.ends_with("alpha stopped\n"), "{words}");
    let kept = dir.join("up.json");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);

    // A flag counts before the environment, and that before what is kept; all of it is kept from then on.
    let env = [("STOKER_UP_DOMAIN", "cell=c1,tor=t2"), ("STOKER_UP_GRACE", "9s")];
    let second = Up::start(&["up", "--json", "--dir", home, "--grace", "8s"], &env);
    for name in ["s3", "id", "peers", "lake", "access_key"] {
        assert_eq!(second.ready[name], ready[name], "{name}");
    }
    assert!(second.ready["nfs"].is_string());
    let again = own(&dir);
    assert_eq!((&again["name"], &again["cell"]), (&json!("alpha"), &json!("c1")), "{again}");
    let words = second.stop();
    let line = words.lines().find(|line| line.starts_with("settings ")).unwrap_or_else(|| panic!("{words}"));
    for part in [
        "from flags: --grace",
        "from the environment: domain cell=c1,tor=t2 (STOKER_UP_DOMAIN)",
        "up.json: name alpha, size 256MiB, cores 1, memory 300MiB",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }

    let rows = origins(&dir, &[("STOKER_UP_MEMORY", "512MiB")]);
    let row = |name: &str| {
        let (_, value, origin) =
            rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        (value.as_str(), origin.as_str())
    };
    let file = kept.to_str().unwrap();
    assert_eq!(row("name"), ("alpha", file));
    assert_eq!(row("domain"), ("cell=c1,tor=t2", file));
    assert_eq!(row("grace"), ("8s", file));
    assert_eq!(row("memory"), ("512MiB", "STOKER_UP_MEMORY"));
    assert_eq!(row("lake-mode").1, "default");
    assert_eq!(row("s3"), (s3.as_str(), file));

    // The same node by `serve`.
    let exported = ask(&dir, "config export");
    assert_eq!(exported.code, 0, "{}", exported.err);
    let config = folder.path().join("stoker.toml");
    fs::write(&config, &exported.out).unwrap();
    let mut command = binary();
    command.args(["serve", "--json", "--config"]).arg(&config);
    let served = Node::start(command, &dir);
    assert_eq!((&served.ready["s3"][0], served.ready["nfs"].as_array().unwrap().len()), (&ready["s3"], 1));
    let by_serve = own(&dir);
    for name in ["node", "name", "cell", "tor"] {
        assert_eq!(by_serve[name], again[name], "{name}");
    }
    drop(served);
    let shown = ran(binary().args(["config", "show", "--config"]).arg(&config));
    assert!(
        shown.text().lines().any(|line| line.starts_with("peers.name ") && line.contains("alpha")),
        "{}",
        shown.text()
    );
    assert!(
        shown.text().lines().any(|line| line.starts_with("lake.drains_max ") && line.ends_with("default"))
    );

    // Where only `serve` ran nothing is guessed.
    let aside = folder.path().join("aside");
    fs::rename(&kept, &aside).unwrap();
    for args in ["config show", "config export"] {
        let refused = ask(&dir, args);
        assert!(refused.code == 1 && refused.out.is_empty(), "{args}: {}", refused.text());
        assert!(refused.err.contains("name that with --config"), "{args}: {}", refused.err);
    }
    fs::rename(&aside, &kept).unwrap();

    // A setting can be taken back.
    assert_eq!(ask(&dir, "config unset nfs nfs-export name").code, 0);
    let refused = ask(&dir, "config unset nfs");
    assert!(refused.code == 1 && refused.err.contains("nfs is not set"), "{}", refused.err);
    assert!(origins(&dir, &[]).iter().any(|(name, _, origin)| name == "nfs" && origin == "default"));

    // What a node learned when it joined is what it has by default: its name and its address there.
    assert_eq!(ask(&dir, "config unset peers").code, 0);
    let joined = dir.join("joined.json");
    fs::write(&joined, r#"{"name":"gpu-2","host":"127.0.0.9"}"#).unwrap();
    let rows = origins(&dir, &[]);
    let row = |name: &str| rows.iter().find(|row| row.0 == name).unwrap();
    assert_eq!((row("name").1.as_str(), Path::new(&row("name").2)), ("gpu-2", joined.as_path()));
    assert!(row("peers").1.starts_with("127.0.0.9:"), "{rows:?}");
    let exported = ask(&dir, "config export");
    assert!(
        exported.text().contains("name = \"gpu-2\"") && exported.text().contains("listen = [\"127.0.0.9:"),
        "{}{}",
        exported.text(),
        exported.err
    );
    fs::remove_file(&joined).unwrap();

    // Damage is an error that names the cure, for everybody who reads it.
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text.replace("300MiB", "900MiB")).unwrap();
    for args in ["up --check", "config show", "gate --quick", "doctor"] {
        let refused = ask(&dir, args);
        assert_ne!(refused.code, 0, "{args}");
        assert!(refused.out.is_empty() || args == "doctor", "{args}: {}", refused.text());
        assert!(refused.err.contains("up.json cannot be used: it is damaged"), "{args}: {}", refused.err);
        assert!(
            refused.err.contains("  hint: bring the file back from a backup, or move it away"),
            "{args}: {}",
            refused.err
        );
    }
    let wrong = ran(binary().args(["up", "--check", "--dir", home]).env("STOKER_UP_CORES", "none"));
    assert!(wrong.code == 1 && wrong.err.contains("STOKER_UP_CORES: expected a number"), "{}", wrong.err);
}

#[test]
fn several_nodes_stop_together_and_come_back_together_or_alone() {
    let folder = folder();
    let dir = folder.path().join("cell");
    let home = dir.to_str().unwrap();
    // Ports that no other test wants: the usual ones change hands between two starts.
    for name in ["node-1", "node-2"] {
        let [s3, admin] =
            [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
        fs::create_dir_all(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("ports.json"), format!("{{\"s3\":{s3},\"admin\":{admin}}}")).unwrap();
    }
    let told = ["--nodes", "2", "--size", "256MiB", "--memory", "512MiB", "--cores", "1"];
    let first = Up::start(&[&["up", "--json", "--dir", home][..], &told].concat(), &[]);
    let nodes = first.ready.clone();
    // Ctrl-C reaches everybody who is in the group, and each node is asked once.
    first.key("INT");
    let (code, words) = first.end();
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("SIGINT: stopping 2 nodes; once more stops them at once"), "{words}");
    for line in ["node-1 stopped\n", "node-2 stopped\n", "all 2 nodes have stopped; "] {
        assert!(words.contains(line), "{line} in {words}");
    }
    assert!(!words.contains("again:") && !words.contains("killed"), "{words}");

    // The same two, without a word about them.
    let mut second = Up::start(&["up", "--json", "--dir", home], &[]);
    for at in 0..2 {
        for name in ["id", "name", "s3", "admin", "dir", "lake"] {
            assert_eq!(second.ready[at][name], nodes[at][name], "{at} {name}");
        }
    }
    let said = second.wait_for("size 256MiB");
    assert!(said.contains(&format!("settings from {home}/up.json: ")), "{said}");
    let refused = ran(binary().args(["up", "--json", "--name", "x", "--dir", home]));
    assert!(
        refused.code == 1 && refused.err.contains("--name is for one node, and these are 2"),
        "{}",
        refused.err
    );

    // One of them goes and comes back by itself, as it was.
    let one = dir.join("node-2");
    let pid = second.ready[1]["pid"].as_u64().unwrap();
    assert!(Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().unwrap().success());
    second.wait_for("node-2 stopped");
    let alone = Up::start(&["up", "--json", "--dir", one.to_str().unwrap(), "--grace", "9s"], &[]);
    for name in ["id", "s3", "admin", "peers", "lake"] {
        assert_eq!(alone.ready[name], nodes[1][name], "{name}");
    }
    assert_eq!(own(&one)["name"], "node-2");
    alone.stop();

    // A second signal does not wait for what is under way.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = Endpoint::Unix(nodes[0]["socket"].as_str().unwrap().into());
    let client = runtime.block_on(Client::connect(&socket, None)).unwrap();
    let writer =
        runtime.block_on(client.create("data", &Key::new(b"late").unwrap(), WriteRequest::default()));
    let writer = writer.unwrap();
    second.key("INT");
    second.wait_for("SIGTERM: stopping node-1");
    second.key("INT");
    let (code, words) = second.end();
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("SIGINT again: 1 node killed") && words.contains("node-1 was killed"), "{words}");
    drop(writer);
    // What one was told meanwhile is its own.
    assert!(origins(&one, &[]).iter().any(|(name, value, _)| name == "grace" && value == "9s"));
    assert!(origins(&dir, &[]).iter().any(|(name, value, _)| name == "nodes" && value == "2"));
    let refused = ask(&dir, "config export");
    assert!(refused.code == 1 && refused.err.contains("node-1"), "{}", refused.err);
}

#[test]
fn a_machine_without_authorities_and_a_ring_without_a_cluster() {
    let folder = folder();
    let up = |name: &str, more: &[&str]| {
        let mut command = binary();
        command.args([
            "up",
            "--check",
            "--memory",
            "256MiB",
            "--s3",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--dir",
        ]);
        command.arg(folder.path().join(name)).args(more);
        // Nothing that a directory as a lake needs is there.
        ran(command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent"))
    };
    let plain = up("plain", &["--size", "256MiB", "--log-level", "error"]);
    assert_eq!(plain.code, 0, "{}", plain.err);

    // Slips are refused with what was meant, before anything is made.
    for (args, cause, hint) in [
        (
            &["--size", "1MiB"][..],
            "1048576 bytes are too small for a ring",
            "choose a --size of at least 64MiB",
        ),
        (&["--lake", "s3//bucket"], "did you mean s3://bucket?", "`stoker up --help` says what it can be"),
    ] {
        let refused = up("slip", args);
        assert_eq!(refused.code, 1, "{args:?}: {}", refused.err);
        assert!(
            refused.err.contains(cause) && refused.err.contains(&format!("  hint: {hint}")),
            "{args:?}: {}",
            refused.err
        );
    }
    fs::write(folder.path().join("file"), "").unwrap();
    let refused = up("file", &[]);
    assert!(
        refused.err.contains("file is not a directory\n  hint: --dir names the directory"),
        "{}",
        refused.err
    );

    // The ring that a person made gets the cluster of the node by the line that the node prints.
    let drive = folder.path().join("nvme0");
    let at = drive.to_str().unwrap();
    assert_eq!(ran(binary().args(["ring", "init", "--size", "256MiB", "--dir", at])).code, 0);
    let refused = up("own", &["--drive", at]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("holds a ring without a cluster"), "{}", refused.err);
    let line = refused
        .err
        .split('`')
        .find(|part| part.starts_with("stoker ring init"))
        .unwrap_or_else(|| panic!("{}", refused.err));
    let words: Vec<&str> =
        line.split(' ').skip(1).map(|word| if word == "SIZE" { "256MiB" } else { word }).collect();
    let made = ran(binary().args(&words));
    assert_eq!(made.code, 0, "{words:?}: {}", made.err);
    let works = up("own", &["--drive", at]);
    assert_eq!(works.code, 0, "{}", works.err);
}
