//! Lakes with names, second lakes and rules, as people use them; and a node that is killed while it copies and moves.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::rig::*;
use crate::storm::kills;

/// Every object below a directory lake's folder of a volume.
fn objects(lake: &Path) -> BTreeMap<String, Vec<u8>> {
    let (root, mut found) = (lake.join("data"), BTreeMap::new());
    let mut stack = vec![root.clone()];
    while let Some(at) = stack.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if name.to_string_lossy().starts_with(".stoker") {
                continue;
            }
            if path.is_dir() {
                stack.push(path);
            } else {
                let key = path.strip_prefix(&root).unwrap().display().to_string();
                found.insert(key, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn replica(rig: &Rig) -> Value {
    rig.succeed("lake replicas data --json").json_lines().remove(0)
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_200 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("not within two minutes: {what}");
}

/// A node with the lakes `a` and `b`, and a volume `data` in the first one.
fn site() -> Rig {
    let rig = Rig::new();
    for name in ["a", "b"] {
        let url = format!("file://{}", rig.path(name).display());
        until("the level rises", || rig.run(&format!("lake add {name} --url {url}")).code == 0);
    }
    // A new node has a volume of this name.
    rig.succeed("volume rm data");
    let create = "volume create data --lake a --drain-quiet 0s --drain-lag-max 1s";
    until("the name is free", || rig.run(create).code == 0);
    rig
}

#[test]
fn lakes_have_names_on_the_command_line() {
    let rig = site();
    fs::write(rig.path("secret"), "hush-hush\n").unwrap();
    let ran = rig.succeed(
        "lake add cold --url s3://b/p --lake-endpoint http://127.0.0.1:1 --access-key AK --secret-key-file secret --cost-gb-month 0.0036 \
         --label site=zrh --json",
    );
    assert_eq!((ran.json()["cost"]["gb_month"].as_u64(), ran.text().contains("hush")), (Some(3_600), false));
    assert!(!rig.succeed("lake ls --json").text().contains("hush"));
    let trials = rig.succeed("lake check a --json").json_lines();
    assert!(trials.len() == 8 && trials.iter().all(|trial| trial["fault"].is_null()), "{trials:?}");
    let failed = rig.run("lake check cold");
    assert!(failed.code == 1 && failed.text().contains("FAIL"), "{}", failed.text());
    rig.refuse("lake rm a", "used by volume `data`", "");
    rig.refuse("volume create other --lake nobody", "there is no lake `nobody`", "");
    rig.refuse("volume set data --replica a", "overlaps", "");
    assert!(rig.succeed("volume show data").text().contains("lake://a/data"));
    rig.succeed("volume set data --replica b");
    fs::write(rig.path("one"), b"one").unwrap();
    rig.succeed("put one data/one");
    rig.succeed("wait data/one --drained");
    until("the copy is made", || {
        let info = replica(&rig);
        info["walked"] == true && info["lag_files"] == 0
    });
    assert_eq!(objects(&rig.path("b"))["one"], b"one");
    assert!(rig.succeed("risk").text().contains("replica of data"));
    let promoted = rig.succeed("lake promote data --to b --json").json();
    assert_eq!((promoted["state"].as_str(), promoted["lacking_files"].as_u64()), (Some("promoted"), Some(0)));
    rig.succeed("lake lacking data");
    fs::write(rig.path("two"), b"two").unwrap();
    rig.succeed("put two data/two");
    rig.succeed("wait data/two --drained");
    assert_eq!(objects(&rig.path("b"))["two"], b"two");
    assert!(!objects(&rig.path("a")).contains_key("two"));
}

/// kill -9 in the middle of copies and of moves by rules: in the end the second lake has what the first one has, and what rules say was done
/// once.
#[test]
fn a_killed_node_copies_and_moves_on() {
    let mut rig = site();
    rig.succeed("volume set data --replica b");
    for round in 0..kills(20, 2) {
        let folder = rig.path(&format!("r{}", round % 3));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..60u64 {
            fs::write(folder.join(format!("{number}")), format!("{round} {number}").repeat(100)).unwrap();
        }
        rig.succeed(&format!("put r{0} data/r{0}", round % 3));
        // While some are copied, and some are not.
        until("copies are made", || objects(&rig.path("b")).len() as u64 >= 5 + round % 40);
        rig.node.child.kill().unwrap();
        rig.node.child.wait().unwrap();
        rig.node = Node::up(&rig.path("node"));
    }
    rig.succeed("drain data/");
    until("the second lake has all of it", || {
        let info = replica(&rig);
        info["lag_files"] == 0 && objects(&rig.path("a")) == objects(&rig.path("b"))
    });
    let held = objects(&rig.path("a"));
    assert!(held.len() >= 120, "{}", held.len());
    assert_eq!(replica(&rig)["foreign"], Value::Array(Vec::new()));
    let rules = "[budget]\nrequests_per_s = 40\n[[rule]]\nname = \"r1\"\nvolumes = [\"data\"]\nwhen = [\"prefix r1/\"]\n\
                 then = \"delete\"\n";
    fs::write(rig.path("tidy.toml"), rules).unwrap();
    let plan = rig.succeed("policy apply tidy.toml --dry-run --json").json();
    assert_eq!(
        (plan["rules"][0]["files"].as_u64(), plan["looked"].as_u64()),
        (Some(60), Some(held.len() as u64))
    );
    rig.refuse("policy apply nothing.toml --dry-run", "nothing.toml", "");
    rig.succeed("policy apply tidy.toml --run");
    until("some are moved", || !rig.succeed("policy moves tidy --json").json_lines().is_empty());
    rig.node.child.kill().unwrap();
    rig.node.child.wait().unwrap();
    rig.node = Node::up(&rig.path("node"));
    until("the pass is over", || rig.succeed("policy ls --json").json()["passes"].as_u64() > Some(0));
    let mut moved: Vec<String> = rig
        .succeed("policy moves tidy --json")
        .json_lines()
        .iter()
        .map(|one| one["key"].as_str().unwrap().to_owned())
        .collect();
    let all = moved.len();
    moved.sort();
    moved.dedup();
    // The page that was under way may stand there twice, begun and done.
    assert!(moved.len() == 60 && all <= 60 + 20, "{} of {all}", moved.len());
    rig.refuse("ls data/r1/", "nothing is below it", "");
    until("both lakes lack them", || {
        let left = |lake: &str| objects(&rig.path(lake)).keys().filter(|key| key.starts_with("r1/")).count();
        left("a") + left("b") == 0
    });
    assert_eq!(objects(&rig.path("b")).len(), held.len() - 60);
}
