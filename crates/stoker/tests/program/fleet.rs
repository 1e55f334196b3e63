//! Nodes and drives of a cluster of real processes, as operators handle them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::rig::{ask, bytes_of, done, wait_for};
use crate::storm::Node;

/// The binary, asking the node in a folder.
#[track_caller]
fn refused(dir: &Path, args: &[&str], why: &str) {
    let ran = ask(dir, args);
    assert_eq!(ran.code, 1, "stoker {args:?}: {}{}", ran.text(), ran.err);
    assert!(ran.out.is_empty() && ran.err.contains(why), "stoker {args:?}: {}", ran.err);
}

fn drives_of(dir: &Path, node: &str) -> Vec<Value> {
    done(dir, &["drive", "ls", node, "--json"]).json_lines()
}

#[test]
fn a_drive_is_replaced_in_a_running_node_and_a_node_is_emptied() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    for name in ["lake", "nvme0", "nvme1", "nvme2"] {
        fs::create_dir(at(name)).unwrap();
    }
    let (lake, nvme0, nvme1) = (text("lake"), text("nvme0"), text("nvme1"));
    let first =
        ["up", "--name", "n0", "--lake", &lake, "--drive", &nvme0, "--drive", &nvme1, "--grace", "30s"];
    let first = Node::start(&first, &at("n0"));
    let join = |name: &str| Node::join(&first, &["--name", name, "--grace", "30s"], &at(name));
    let (n1, n2) = (join("n1"), join("n2"));
    let n0 = at("n0");
    // Only when somebody asks for it does anything leave for the lake.
    done(&n0, &["volume", "set", "data", "--drain", "on-demand"]);
    let content = |seed: u64| bytes_of(seed, 5 << 20);
    let put = |seed: u64| {
        let file = at("file");
        fs::write(&file, content(seed)).unwrap();
        done(&n0, &["put", file.to_str().unwrap(), &format!("data/f/{seed}")]);
    };
    let read_all = |asked: &Path, count: u64| {
        for seed in 1..=count {
            let file = at("read");
            done(asked, &["get", &format!("data/f/{seed}"), file.to_str().unwrap()]);
            assert!(fs::read(&file).unwrap() == content(seed), "file {seed}");
            fs::remove_file(&file).unwrap();
        }
    };
    (1..=8).for_each(put);
    let started_ms = done(&n0, &["status", "--json"]).json()["started_ms"].clone();
    let words = done(&at("n1"), &["risk"]).text();
    assert!(words.contains("if n0 dies now: 0 B lost; undrained 40 MiB, oldest "), "{words}");
    let nodes = done(&at("n2"), &["node", "ls"]).text();
    assert!(nodes.lines().count() == 4 && nodes.contains("UNDRAINED"), "{nodes}");

    // A drive disappears; its node finds that out, and everything has its copies without it.
    let old =
        drives_of(&n0, "n0").into_iter().find(|drive| drive["path"].as_str().unwrap().contains("nvme1"));
    let old = old.unwrap()["drive"].as_str().unwrap().to_owned();
    fs::rename(at("nvme1"), at("pulled")).unwrap();
    wait_for(|| {
        let is_out = |drive: &Value| drive["drive"] == old.as_str() && drive["state"] == "failed";
        drives_of(&n0, "n0").iter().any(|drive| is_out(drive) && drive["undrained_files"] == 0)
    });
    put(9);
    // One command, and another drive is in its place.
    let replaced = done(&at("n1"), &["drive", "replace", "n0", &old, &text("nvme2"), "--size", "1GiB"]);
    assert!(replaced.text().contains("is out of service"), "{}{}", replaced.text(), replaced.err);
    let now = drives_of(&at("n2"), "n0");
    let paths: Vec<&str> = now.iter().map(|drive| drive["path"].as_str().unwrap()).collect();
    assert!(now.len() == 2 && now.iter().all(|drive| drive["state"] == "live"), "{now:?}");
    assert!(
        paths.iter().any(|path| path.contains("nvme2")) && !paths.iter().any(|path| path.contains("nvme1"))
    );
    (10..=12).for_each(put);
    read_all(&n0, 12);
    refused(
        &n0,
        &["drive", "remove", "n1", drives_of(&n0, "n1")[0]["path"].as_str().unwrap()],
        "the last drive",
    );
    refused(&n0, &["drive", "add", "n1", "/no/such/place"], "mount it");
    // It is cordoned, which every node knows, and uncordoned; a node's last one cannot be.
    let state = |path: &str| {
        let drives = drives_of(&at("n1"), "n0");
        let found = drives.iter().find(|drive| drive["path"] == path);
        found.unwrap()["state"].as_str().unwrap().to_owned()
    };
    let cordoned = done(&at("n2"), &["drive", "cordon", "n0", paths[0], "--json"]).json_lines();
    assert_eq!((&cordoned[0]["state"], state(paths[0]).as_str()), (&Value::from("cordoned"), "cordoned"));
    refused(&n0, &["drive", "cordon", "n0", paths[1]], "the last drive");
    let ended = done(&n0, &["drive", "uncordon", "n0", paths[0]]).text();
    assert!(ended.contains("live") && state(paths[0]) == "live", "{ended}");

    // It was the same process all the time, and after a restart it has the new drive and does not miss the old one.
    let status = done(&n0, &["status", "--json"]).json();
    assert_eq!(status["started_ms"], started_ms, "{status}");
    first.stop();
    let first = Node::start(&["up", "--name", "n0", "--grace", "30s"], &n0);
    assert_eq!(drives_of(&n0, "n0").len(), 2);
    read_all(&n0, 12);

    // A node is emptied, dies, and nobody misses it.
    done(&n0, &["node", "quarantine", "n1"]);
    refused(&n0, &["node", "evacuate", "n2"], "commits to 2 nodes");
    done(&at("n2"), &["node", "rejoin", "n1"]);
    let empty = done(&at("n1"), &["node", "evacuate", "n2", "--timeout", "300s", "--json"]).json();
    assert_eq!((&empty["done"], &empty["files_left"]), (&Value::from(true), &Value::from(0)), "{empty}");
    let status = done(&n0, &["rebuild", "status", "--json"]).json();
    assert_eq!(
        (&status["files_left"], &status["lost_files"]),
        (&Value::from(0), &Value::from(0)),
        "{status}"
    );
    let words = done(&at("n1"), &["risk"]).text();
    assert!(words.contains("if n2 (evacuating) dies now: 0 B lost; undrained 0 B"), "{words}");
    n2.kill();
    read_all(&at("n1"), 12);
    assert_eq!(ask(&n0, &["risk", "--lost"]).code, 0);
    n1.stop();
    first.stop();
}

#[test]
fn another_node_leads_the_loop_when_the_leader_is_gone() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("lake")).unwrap();
    let first = Node::start(&["up", "--name", "n0", "--lake", at("lake").to_str().unwrap()], &at("n0"));
    let join = |name: &str| Node::join(&first, &["--name", name], &at(name));
    let (second, third) = (join("n1"), join("n2"));
    let mut nodes = vec![("n0", first), ("n1", second), ("n2", third)];
    let head = |asked: &str| -> Option<Value> {
        let ran = ask(&at(asked), &["slo", "--json"]);
        // A node that is declared down starts again, and answers then.
        (ran.code == 0).then(|| ran.json()).filter(|head| head["node"].is_string())
    };
    wait_for(|| head("n0").is_some());
    let words = done(&at("n1"), &["slo"]);
    assert!(words.text().contains("every part is well"), "{}{}", words.text(), words.err);
    // Nobody has to decide who leads next, nor who keeps the catalog.
    let leader = head("n0").unwrap()["node"].as_str().unwrap().to_owned();
    let place = nodes.iter().position(|(name, _)| *name == leader).unwrap();
    let (_, node) = nodes.remove(place);
    // Of two that keep the catalog none may be lost.
    wait_for(|| {
        let told = ask(&at("n0"), &["catalog", "status", "--json"]).json();
        let follow = told["standbys"].as_array().unwrap();
        follow.iter().filter(|standby| standby["in_sync"] == true).count() == 2
    });
    node.kill();
    let asked = nodes[0].0;
    wait_for(|| head(asked).is_some_and(|head| head["node"] != leader.as_str()));
    refused(&at(asked), &["slo", "repaired", asked], "nothing is known to be wrong");
    refused(&at(asked), &["slo", "repaired", "nobody"], "no node `nobody`");
    done(&at(asked), &["slo", "retry"]);
    nodes.into_iter().for_each(|(_, node)| node.kill());
}
