//! Nodes that join from other machines, cannot be reached, and leave for good: real processes, in networks of their own where the
//! machine allows it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::net::{Net, try_run};
use crate::rig::{ask, done, ran, wait_for};
use crate::storm::{LOCAL, Node};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stoker");

/// The binary, asking the node in a folder: through its socket, which is in no network.
fn states(dir: &Path) -> Vec<(String, String)> {
    let text = |node: &Value, field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<(String, String)> = done(dir, &["node", "ls", "--json"])
        .json_lines()
        .iter()
        .map(|node| (text(node, "name"), text(node, "state")))
        .collect();
    all.sort();
    all
}

/// Puts a file; the number of its copies.
fn put(dir: &Path, name: &str) -> u64 {
    let file = dir.with_extension("file");
    std::fs::write(&file, name.repeat(1_000)).unwrap();
    let put = done(dir, &["put", file.to_str().unwrap(), &format!("data/{name}"), "--json"]).json();
    put["copies"].as_u64().unwrap()
}

fn copies(dir: &Path, name: &str) -> Value {
    done(dir, &["explain", &format!("data/{name}"), "--json"]).json()["receipt"]["copies"].clone()
}

fn read(dir: &Path, name: &str) {
    let file = dir.with_extension("read");
    done(dir, &["get", &format!("data/{name}"), file.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), name.repeat(1_000));
}

/// A node in a network, without a word of where it listens for peers unless `more` has one.
fn in_net(net: &Net, at: usize, dir: &Path, token: &str, args: &[&str]) -> Command {
    let mut command = net.command(at, Path::new(PROGRAM));
    command
        .args(args)
        .args(["--json", "--memory", "512MiB", "--size", "1GiB", "--s3", LOCAL, "--admin", LOCAL]);
    command.args(["--grace", "3s", "--dir"]).arg(dir).env_remove("STOKER_DIR");
    command.env("STOKER_JOIN_TOKEN", token);
    command
}

fn readyz(net: &Net, at: usize, node: &Node) -> String {
    let port = node.ready["admin"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let words = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /readyz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3"
    );
    let said = net.command(at, Path::new("bash")).args(["-c", &words]).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// The line that a node prints makes a node of another machine a member; one that others do not reach breaks nothing.
#[test]
fn nodes_of_other_machines_join_by_the_printed_line() {
    let net = match Net::make(3) {
        Ok(net) => net,
        Err(why) => return stoker_testing::skipped(format_args!("no networks: {why}")),
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    let n0 = at("n0");
    let lake = at("lake");
    std::fs::create_dir(&lake).unwrap();
    let listen = format!("{}:9002", net.address(0));
    let up = ["up", "--name", "n0", "--peers", &listen, "--lake", lake.to_str().unwrap()];
    let first = Node::run(in_net(&net, 0, &n0, "", &up), &n0);
    let peers = first.ready["peers"].as_str().unwrap();
    assert_eq!(peers, listen);
    done(&n0, &["volume", "set", "data", "--drain", "on-demand"]);
    assert_eq!(put(&n0, "alone"), 1);

    // An address that only this machine has is refused before the token is used.
    let token = first.join_token();
    let refused = |more: &[&str], why: &str| {
        let args = [&["join", peers, "--name", "n1"], more].concat();
        let ran = ran(&mut in_net(&net, 1, &at("n1"), &token, &args));
        assert!(ran.code == 1 && ran.err.contains(why), "{more:?}: {}", ran.err);
        assert!(
            ran.err.contains(&format!("--peers {}:9002", net.address(1))) || why.contains("taken"),
            "{}",
            ran.err
        );
    };
    refused(&["--peers", "127.0.0.1:9002"], "only reached on this machine");
    refused(&["--peers", "0.0.0.0:9002"], "no address that other");

    // An address of its own that others have no way to: a member that holds nothing, and everybody says so.
    try_run("ip", &format!("-n {} addr add 10.99.77.1/32 dev lo", net.space(1))).unwrap();
    let join = ["join", peers, "--name", "n1", "--peers", "10.99.77.1:9002"];
    let second = Node::run(in_net(&net, 1, &at("n1"), &token, &join), &at("n1"));
    let why = second.ready["unreachable"].as_str().unwrap_or_default();
    assert!(why.contains("n1 cannot be reached at 10.99.77.1:9002 by n0"), "{why}");
    assert_eq!(put(&n0, "beside"), 1, "no write waits for it");
    assert_eq!(states(&n0), [("n0".into(), "up".into()), ("n1".into(), "unreachable".into())]);
    for words in [
        done(&n0, &["node", "ls"]).err,
        done(&n0, &["status"]).text(),
        readyz(&net, 0, &first),
        readyz(&net, 1, &second),
    ] {
        assert!(words.contains("n1 cannot be reached at 10.99.77.1:9002 by n0"), "{words}");
    }
    assert!(readyz(&net, 0, &first).contains("200 OK"));
    assert!(readyz(&net, 1, &second).contains("503"));

    // Where others reach it, it counts, and older files get their copies.
    second.stop();
    let listen = format!("{}:9002", net.address(1));
    let up = ["up", "--name", "n1", "--peers", &listen];
    let second = Node::run(in_net(&net, 1, &at("n1"), "", &up), &at("n1"));
    wait_for(|| states(&n0).iter().all(|(_, state)| state == "up"));
    assert_eq!(put(&n0, "two"), 2);
    wait_for(|| copies(&n0, "alone") == 2);

    // The line as it is printed, on a third machine; it is called like none of the others.
    let line = ["join", peers];
    let third = Node::run(in_net(&net, 2, &at("n2"), &first.join_token(), &line), &at("n2"));
    assert_eq!(third.ready["peers"].as_str().unwrap(), format!("{}:9002", net.address(2)));
    assert_eq!(third.ready["unreachable"], Value::Null);
    assert_eq!(states(&at("n2")).len(), 3);
    read(&at("n2"), "two");
    let name = done(&at("n2"), &["status", "--json"]).json()["node"].clone();
    // It comes back at the same place without a word.
    third.stop();
    let third = Node::run(in_net(&net, 2, &at("n2"), "", &["up"]), &at("n2"));
    assert_eq!(third.ready["peers"].as_str().unwrap(), format!("{}:9002", net.address(2)));
    assert_eq!(third.ready["id"], name);
    // A name that is taken.
    let token = first.join_token();
    let ran = ran(&mut in_net(&net, 2, &at("n3"), &token, &["join", peers, "--name", "n1"]));
    assert!(ran.code == 1 && ran.err.contains("`n1` is taken") && ran.err.contains("--name"), "{}", ran.err);
    drop((first, second, third));
}

/// A live node is emptied, stops and cannot come back; a lost one is made up for, with what is lost named and accepted.
#[test]
fn nodes_leave_for_good() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("lake")).unwrap();
    let lake = at("lake");
    let up = ["up", "--name", "n0", "--lake", lake.to_str().unwrap(), "--grace", "3s"];
    let first = Node::start(&up, &at("n0"));
    let join = |name: &str| Node::join(&first, &["--name", name, "--grace", "3s"], &at(name));
    let (_n1, n2, mut n3) = (join("n1"), join("n2"), join("n3"));
    let n0 = at("n0");
    done(&n0, &["volume", "set", "data", "--drain", "on-demand"]);
    done(&n0, &["volume", "create", "one", "--class", "one", "--drain", "on-demand"]);
    for name in ["a", "b", "c", "d"] {
        put(&n0, name);
        put(&at("n3"), &format!("{name}3"));
    }
    let file = at("lonely");
    std::fs::write(&file, "lonely").unwrap();
    done(&at("n2"), &["put", file.to_str().unwrap(), "one/lonely"]);
    // The one that keeps the catalog says what to do first.
    let kept = ask(&n0, &["node", "remove", "n0"]);
    assert!(kept.code == 1 && kept.err.contains("stoker catalog promote"), "{}", kept.err);

    let removed = done(&n0, &["node", "remove", "n3"]);
    assert!(removed.text().contains("n3 is no node of the cluster any more"), "{}", removed.text());
    assert!(n3.wait().success(), "it stops in good order");
    let log = std::fs::read_to_string(dir.path().join("n3.log")).unwrap();
    assert!(log.contains("was removed from its cluster for good"), "{log}");
    assert_eq!(states(&n0).len(), 3);
    for name in ["a", "b3", "c", "d3"] {
        read(&at("n1"), name);
    }
    // It is refused, with what to do.
    let up = |command: &mut Command| {
        let command =
            command.args(["up", "--check", "--s3", LOCAL, "--admin", LOCAL, "--peers", LOCAL, "--dir"]);
        command.arg(at("n3")).stdin(Stdio::null()).output().unwrap()
    };
    let again = up(&mut Command::new(PROGRAM));
    let words = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && words.contains("was removed from its cluster for good"), "{words}");
    assert!(words.contains("stoker join HOST:PORT --dir NEW_DIR"), "{words}");
    // One that began again by itself, because the catalog let go of it first, ends as well as one that heard of it in time.
    let begun_again = up(Command::new(PROGRAM).env("STOKER_STARTED_AGAIN", "1"));
    let words = String::from_utf8_lossy(&begun_again.stderr);
    assert!(
        begun_again.status.success() && words.contains("was removed from its cluster for good"),
        "{words}"
    );
    // Its name and its machine may be used again.
    let mut fresh = Node::join(&first, &["--name", "n3", "--grace", "3s"], &at("n3-again"));
    put(&at("n3-again"), "e");
    // Asked once, without waiting: the others go on by themselves.
    done(&n0, &["node", "remove", "n3", "--no-wait"]);
    assert!(fresh.wait().success(), "it stops in good order");
    wait_for(|| states(&n0).len() == 3);
    read(&at("n1"), "e");

    n2.kill();
    let told = ask(&n0, &["node", "remove", "n2"]);
    assert!(told.code == 1 && told.text().contains("one/lonely"), "{}{}", told.text(), told.err);
    assert!(told.err.contains("--accept-loss"), "{}", told.err);
    let told = done(&n0, &["node", "remove", "n2", "--accept-loss", "--json"]).json();
    assert_eq!((&told["step"], &told["lost_files"]), (&Value::from("removed"), &Value::from(1)), "{told}");
    assert_eq!(states(&n0).len(), 2);
    for name in ["a", "b3", "c3", "d"] {
        read(&at("n1"), name);
    }
}
