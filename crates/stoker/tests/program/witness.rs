//! Two nodes and a witness: either node may be lost, and names go on; nobody's bytes go to the witness.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::{ask, done, ran, wait_for};
use crate::storm::{LOCAL, Node};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stoker");

fn witness(dir: &Path, more: &[&str], token: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["witness", "--json", "--admin", LOCAL, "--grace", "3s"]).args(more).arg("--dir").arg(dir);
    command.env_remove("STOKER_DIR").env("STOKER_JOIN_TOKEN", token);
    command
}

fn state(dir: &Path, name: &str) -> String {
    let nodes = done(dir, &["node", "ls", "--json"]).json_lines();
    let found = nodes.iter().find(|node| node["name"] == name);
    found.map_or("none", |node| node["state"].as_str().unwrap()).to_owned()
}

/// The node that keeps the catalog, and how many others follow it and vote; none while nobody does.
fn keeper(dir: &Path) -> Option<(String, usize)> {
    let asked = ask(dir, &["catalog", "status", "--json"]);
    let told = (asked.code == 0).then(|| asked.json())?;
    let votes = told["standbys"].as_array()?.iter().filter(|standby| standby["in_sync"] == true).count();
    Some((told["holder"].as_str()?.to_owned(), votes))
}

fn put(dir: &Path, key: &str) -> u64 {
    let file = dir.with_extension("file");
    std::fs::write(&file, key.repeat(1_000)).unwrap();
    done(dir, &["put", file.to_str().unwrap(), key, "--json"]).json()["copies"].as_u64().unwrap()
}

fn read(dir: &Path, key: &str) {
    let file = dir.with_extension("read");
    done(dir, &["get", key, file.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), key.repeat(1_000));
}

#[test]
fn of_two_nodes_either_may_be_lost_where_a_witness_votes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    let lake = at("lake");
    std::fs::create_dir(&lake).unwrap();
    let up = ["up", "--name", "n0", "--lake", lake.to_str().unwrap(), "--grace", "3s", "--domain", "cell=a"];
    let first = Node::start(&up, &at("n0"));
    let (n0, n1, w) = (at("n0"), at("n1"), at("w"));
    done(&n0, &["volume", "set", "data", "--drain", "on-demand"]);
    done(&n0, &["volume", "create", "one", "--class", "one", "--drain", "on-demand"]);

    // Beside one node it is not counted as a second one.
    let peers = first.ready["peers"].as_str().unwrap().to_owned();
    let early = ran(&mut witness(&w, &[], ""));
    assert!(early.code == 1 && early.err.contains("is no witness yet"), "{}", early.err);
    let join = [&peers, "--name", "w", "--domain", "cell=a"];
    let vote = Node::run(witness(&w, &join, &first.join_token()), &w);
    wait_for(|| state(&n0, "w") == "witness");
    assert_eq!(put(&n0, "data/alone"), 1, "a witness holds no copies");
    assert!(keeper(&n0).is_some_and(|(_, votes)| votes == 0), "one node needs no vote of another one");
    let second = Node::join(&first, &["--name", "n1", "--grace", "3s", "--domain", "cell=b"], &n1);
    wait_for(|| keeper(&n0).is_some_and(|(_, votes)| votes == 2));
    for number in 0..8 {
        assert_eq!(put(&n0, &format!("data/{number}")), 2);
    }
    put(&n1, "one/there");
    let drives = done(&n0, &["drive", "ls", "--json"]).json_lines();
    assert_eq!(drives.len(), 2, "{drives:?}");

    // It says what it is, and takes neither bytes nor drives.
    let file = at("file");
    std::fs::write(&file, "bytes").unwrap();
    let path = file.to_str().unwrap();
    for change in [&["put", path, "data/at-the-witness"][..], &["mv", "data/3", "data/x"], &["rm", "data/3"]]
    {
        let refused = ask(&w, change);
        assert!(
            refused.code == 1 && refused.err.contains("is a witness and holds nothing"),
            "{}",
            refused.err
        );
    }
    read(&w, "data/3");
    std::fs::create_dir(at("drive")).unwrap();
    let refused = ask(&n0, &["drive", "add", "w", at("drive").to_str().unwrap(), "--size", "256MiB"]);
    assert!(refused.code == 1 && refused.err.contains("a witness takes no drives"), "{}", refused.err);

    // Whichever node is lost, the other one goes on by itself, and the lead comes to a node with drives.
    let mut nodes = [(first, "n0"), (second, "n1")].map(|(node, name)| (Some(node), name));
    for round in 0..2 {
        let (lost, left) = (nodes[round].1, at(nodes[1 - round].1));
        nodes[round].0.take().unwrap().kill();
        wait_for(|| ask(&left, &["mv", "data/0", "data/moved"]).code == 0);
        read(&left, "data/5");
        assert_eq!(put(&left, &format!("one/without-{lost}")), 1);
        done(&left, &["mv", "data/moved", "data/0"]);
        // What the lost one had to drain is taken over by the other one, although the witness is nearer.
        wait_for(|| state(&left, lost) == "down");
        done(&left, &["drain", &format!("data/{}", 6 + round), "--wait", "--timeout", "60s"]);
        let own = done(&left, &["status", "--json"]).json()["node"].as_str().unwrap().to_owned();
        wait_for(|| keeper(&left).is_some_and(|(holder, _)| holder == own));
        let back = Node::start(&["up", "--grace", "3s"], &at(lost));
        nodes[round].0 = Some(back);
        wait_for(|| keeper(&left).is_some_and(|(_, votes)| votes == 2));
        read(&at(lost), "data/0");
    }

    // Without it both nodes go on, and it comes back by its directory alone.
    vote.kill();
    wait_for(|| ask(&n0, &["mv", "data/1", "data/one"]).code == 0);
    assert_eq!(put(&n0, "data/two"), 2);
    let vote = Node::run(witness(&w, &[], ""), &w);
    wait_for(|| keeper(&n0).is_some_and(|(_, votes)| votes == 2));
    read(&w, "data/two");

    // A lost node is made up for and removed although the witness is nearer to it. Then the other one is alone, and needs no vote.
    done(&n0, &["drain", "one/without-n1", "--wait", "--timeout", "60s"]);
    nodes[0].0.take().unwrap().kill();
    wait_for(|| state(&n1, "n0") == "down");
    done(&n1, &["node", "remove", "n0", "--force", "--timeout", "60s"]);
    wait_for(|| keeper(&n1).is_some_and(|(_, votes)| votes == 0));
    vote.kill();
    assert_eq!(put(&n1, "data/three"), 1);
    read(&n1, "data/5");

    // A node with drives does not become one by mistake.
    nodes[1].0.take().unwrap().stop();
    let refused = ran(&mut witness(&n1, &[], ""));
    assert!(refused.code == 1 && refused.err.contains("a witness has no drives"), "{}", refused.err);
}
