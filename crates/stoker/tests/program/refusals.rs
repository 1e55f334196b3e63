//! Who does not belong to a cluster is told so, and the cluster goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use crate::storm;
use crate::storm::Node;

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn join(address: &str, token: &str, dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["join", address, "--token", token, "--check", "--size", "1GiB", "--memory", "512MiB"]);
    command
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
    let joined = join(peers, token, &at("d"), &[]);
    assert!(joined.status.success(), "{}", words(&joined));
}

#[test]
fn a_copy_of_a_node_takes_over_and_the_other_stops() {
    let dir = tempfile::TempDir::new().unwrap();
    let first = Node::up(&dir.path().join("a"));
    let join = ["join", text(&first, "peers"), "--token", text(&first, "join_token")];
    let second = Node::start(&join, &dir.path().join("b"));
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
