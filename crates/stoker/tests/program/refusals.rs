//! Who does not belong to a cluster is told so, and the cluster goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::storm;
use crate::storm::Node;

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn join(address: &str, token: &str, dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["join", address, "--check", "--size", "1GiB", "--memory", "512MiB"]);
    command
        .env("STOKER_JOIN_TOKEN", token)
        .args(["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0", "--dir"])
        .arg(dir);
    command.args(more).output().unwrap()
}

fn text<'n>(node: &'n Node, field: &str) -> &'n str {
    node.ready[field].as_str().unwrap()
}

#[test]
fn strangers_are_refused_with_reasons() {
    let dir = tempfile::TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (node, other) = (Node::up(&at("a")), Node::up(&at("b")));
    let (peers, token) = (text(&node, "peers"), text(&node, "join_token"));
    let refused = |output: Output, why: &str| {
        assert!(!output.status.success());
        assert!(words(&output).contains(why), "{}", words(&output));
    };
    refused(join(peers, "nonsense", &at("c"), &[]), "this is no token");
    let mistyped = format!("{}aaaa", &token[..token.len() - 4]);
    refused(join(peers, &mistyped, &at("c"), &[]), "mistyped");
    refused(join(peers, text(&other, "join_token"), &at("c"), &[]), "not of the token's cluster");
    refused(join("127.0.0.1:1", token, &at("c"), &[]), "nobody answers");
    let s3 = text(&node, "s3").trim_start_matches("http://");
    refused(join(s3, token, &at("c"), &[]), "no node of Stoker");
    // A drive belongs to one node: while that one runs, and afterwards.
    let drive = at("a").join("ring");
    let drive = drive.to_str().unwrap();
    refused(join(peers, token, &at("c"), &["--drive", drive]), "in use by another process");
    // Noise on the port for nodes ends in a closed connection.
    let mut stream = TcpStream::connect(peers).unwrap();
    let _ = stream.write_all(&storm::content(7, 100_000));
    let _ = stream.read_to_end(&mut Vec::new());
    // And one that belongs is let in.
    refused(join(peers, token, &at("d"), &[]), "the token is used up");
    let joined = join(peers, &node.join_token(), &at("d"), &[]);
    assert!(joined.status.success(), "{}", words(&joined));
    // A member needs no token, and none in argv.
    let again = join(peers, "", &at("d"), &[]);
    assert!(again.status.success(), "{}", words(&again));
    refused(join(peers, "", &at("e"), &["--token", token]), "on the command line");
    let mut without = Command::new(env!("CARGO_BIN_EXE_stoker"));
    let without =
        without.args(["join", peers, "--dir"]).arg(at("e")).env_remove("STOKER_JOIN_TOKEN").output();
    refused(without.unwrap(), "needs a token");
}

/// Tokens have an end: by time, by use, and by a person; and they are given by a file or by stdin.
#[test]
fn join_tokens_end() {
    let dir = tempfile::TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let node = Node::up(&at("a"));
    let peers = text(&node, "peers");
    let ask = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        let output = command.arg("join-token").args(args).arg("--dir").arg(at("a")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout.clone()).unwrap(), words(&output))
    };
    let create = |more: &[&str]| -> serde_json::Value {
        let (done, made, words) = ask(&[&["create", "--json"], more].concat());
        assert!(done, "{words}");
        serde_json::from_str(&made).unwrap()
    };
    let list = || -> Vec<serde_json::Value> {
        let (done, listed, words) = ask(&["ls", "--json"]);
        assert!(done, "{words}");
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let state = |id: &serde_json::Value| {
        list()
            .iter()
            .find(|token| token["id"] == *id)
            .map(|token| token["state"].as_str().unwrap().to_owned())
    };
    let refused = |token: &serde_json::Value, why: &str| {
        let output = join(peers, token["join_token"].as_str().unwrap(), &at("b"), &[]);
        assert!(!output.status.success() && words(&output).contains(why), "{}", words(&output));
    };
    let short = create(&["--ttl", "1ms"]);
    while state(&short["id"]).unwrap() == "valid" {}
    refused(&short, "the token has expired");
    let revoked = create(&["--uses", "2"]);
    assert!(ask(&["revoke", revoked["id"].as_str().unwrap()]).0);
    refused(&revoked, "the token was revoked");
    assert_eq!(state(&revoked["id"]).unwrap(), "revoked");
    for (args, why) in [
        (&["create", "--ttl", "31d"][..], "30 days"),
        (&["create", "--ttl", "0s"], "30 days"),
        (&["create", "--uses", "0"], "1 to 1000"),
        (&["revoke", "0123456789abcdef"], "there is no join token"),
        (&["revoke", "nonsense"], "there is no join token"),
    ] {
        let (done, _, words) = ask(args);
        assert!(!done && words.contains(why), "{words}");
    }
    // By a file, and by stdin; two nodes by one token, and no third.
    let pair = create(&["--uses", "2"]);
    let token = pair["join_token"].as_str().unwrap();
    std::fs::write(at("token"), format!("{token}\n")).unwrap();
    let joined = join(peers, "", &at("c"), &["--token-file", at("token").to_str().unwrap()]);
    assert!(joined.status.success(), "{}", words(&joined));
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["join", peers, "--token-file", "-", "--check", "--size", "1GiB", "--memory", "512MiB"]);
    command.args(["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0", "--dir"]);
    let mut child = command.arg(at("d")).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    refused(&pair, "the token is used up");
    let listed = list();
    let known = listed.iter().find(|one| one["id"] == pair["id"]).unwrap();
    assert_eq!((known["state"].as_str(), known["nodes"].as_array().unwrap().len()), (Some("used up"), 2));
    // What the catalog has of a token is not the token.
    assert!(!listed.iter().any(|one| one.to_string().contains(token)));
    let (done, _, words) = ask(&["revoke", "--all"]);
    assert!(done, "{words}");
    assert!(list().iter().all(|one| one["state"] != "valid"));
}

/// Of many who come with a token for one node at once, one joins.
#[test]
fn one_use_is_for_one_node() {
    let dir = tempfile::TempDir::new().unwrap();
    let node = Node::up(&dir.path().join("a"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (peers, token) = (text(&node, "peers"), node.join_token());
    let joins = (0..12).map(|at| {
        let (place, token) = (dir.path().join(format!("b{at}")), &token);
        async move {
            let wanted = stoker_node::JoinAs { name: format!("b{at}"), is_name_chosen: true, peers: None };
            stoker_node::join(&place, peers, token, &wanted).await
        }
    });
    let ended = runtime.block_on(futures_util::future::join_all(joins));
    let refused: Vec<String> =
        ended.iter().filter_map(|one| Some(one.as_ref().err()?.message.clone())).collect();
    assert_eq!(refused.len(), 11, "{refused:?}");
    assert!(refused.iter().all(|why| why.contains("the token is used up")), "{refused:?}");
}

#[test]
fn a_copy_of_a_node_takes_over_and_the_other_stops() {
    let dir = tempfile::TempDir::new().unwrap();
    let first = Node::up(&dir.path().join("a"));
    let second = Node::join(&first, &[], &dir.path().join("b"));
    // Of two that keep the catalog, one that came back older than it was would be one too few.
    let _third = Node::join(&first, &[], &dir.path().join("d"));
    second.stop();
    let copied = Command::new("cp").arg("-r").args(["b", "c"]).current_dir(dir.path()).status().unwrap();
    assert!(copied.success());
    let mut second = Node::up(&dir.path().join("b"));
    let copy = Node::up(&dir.path().join("c"));
    let status = second.wait();
    assert!(!status.success(), "{status}");
    let log = std::fs::read_to_string(dir.path().join("b.log")).unwrap();
    assert!(log.contains("another process runs as this node"), "{log}");
    drop(copy);
}
