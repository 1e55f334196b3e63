//! `stoker set` against a node in a process of its own.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::rig::*;
use serde_json::json;

#[test]
fn a_set_is_gathered_published_and_found() {
    let rig = Rig::new();
    for shard in 0..3u64 {
        rig.write(&format!("shard-{shard}"), &bytes_of(shard, 300_000 + shard as usize));
    }
    let begun =
        rig.succeed("set begin data/run/step-1/ --shards 3 --deadline 10m --owner job-7 --json").json();
    let id = begun["set"].as_str().unwrap().to_owned();
    assert_eq!(
        (&begun["state"], &begun["path"], &begun["owner"]),
        (&json!("open"), &json!("run/step-1/"), &json!("job-7"))
    );
    // A rank that asks again gets the same one.
    let again = rig.succeed("set begin data/run/step-1/ --shards 3 --owner job-7").lines();
    assert_eq!(again, std::slice::from_ref(&id));
    rig.refuse("set begin data/run/step-1/ --shards 3 --owner job-8", "another owner", "see how far it is");

    let added = rig.succeed(&format!("set add {id} shard-0 --shard 0")).text();
    assert!(added.starts_with("shard 0  data/run/step-1/shard-0  "), "{added}");
    rig.refuse(&format!("set publish {id}"), "2 of 3 shards are missing: 1, 2;", "see how far it is");
    let status = rig.succeed("set status data/run/step-1/ --json").json();
    assert_eq!((&status["present"], &status["laggards"]), (&json!(1), &json!([1, 2])));
    assert!(rig.succeed(&format!("set status {id}")).text().contains("missing  1, 2"));
    let receipts = rig.succeed("set add data/run/step-1/ shard-1 shard-2 --shard 1 --json").json_lines();
    assert_eq!((receipts.len(), &receipts[1]["key"]), (2, &json!("run/step-1/shard-2")));
    assert!(rig.succeed("ls -r data").out.is_empty());

    let published = rig.succeed(&format!("set publish {id} --json")).json();
    assert_eq!((&published["state"], &published["set"]), (&json!("published"), &json!(id)));
    rig.succeed("get data/run/step-1/ out");
    assert!(rig.read("out/shard-2") == rig.read("shard-2"));
    rig.refuse(&format!("set add {id} shard-0 --shard 0"), "published already", "see how far it is");
    rig.refuse(&format!("set abort {id}"), "published already", "see how far it is");
    assert_eq!(rig.succeed("set latest data/run/").lines(), ["data/run/step-1/"]);
    rig.refuse("set latest data/other/", "no checkpoint set was published", "see the sets with");
    rig.refuse("set status data:99999", "there is no such checkpoint set", "see the sets with");
    rig.refuse("set status data/none/", "no checkpoint set is open for data/none/", "see the sets with");
}

#[test]
fn a_whole_set_in_one_command() {
    let rig = Rig::new();
    for shard in 0..20u64 {
        rig.write(&format!("ck/rank-{}/{shard}.bin", shard % 4), &bytes_of(shard, 50_000));
    }
    rig.write("meta.json", b"{}");
    let published = rig.succeed("set put data/step-2/ ck meta.json --jobs 4 --json").json();
    assert_eq!((&published["state"], &published["shards"]), (&json!("published"), &json!(21)));
    rig.succeed("get data/step-2/ back");
    fs::remove_file(rig.path("back/_STOKER_SET.json")).ok();
    assert_eq!(fs::read(rig.path("back/meta.json")).unwrap(), b"{}");
    fs::remove_file(rig.path("back/meta.json")).unwrap();
    assert!(tree(&rig.path("back")) == tree(&rig.path("ck")));
    // The name is taken; nothing is left of the second try.
    rig.refuse("set put data/step-2/ ck", "has the name of the set's directory", "see how far it is");
    rig.refuse("set put data/step-3/ none", "none", "");
    rig.refuse("set put data/step-3/ ck/rank-0/0.bin ck/rank-0", "would both be `0.bin`", "put the folder");
    // A shard that cannot be read: nothing is published, and the set is given up.
    rig.write("bad/a", b"1");
    std::os::unix::fs::symlink("/nonexistent", rig.path("bad/b")).unwrap();
    assert_eq!(rig.run("set put data/step-3/ bad").code, 1);
    rig.succeed("volume create other --drain never");
    rig.write("one", b"1");
    rig.succeed("set put other/x/ one");
    let listed = rig.succeed("set ls --json").json_lines();
    let states: Vec<_> = listed.iter().map(|set| (&set["volume"], &set["path"], &set["state"])).collect();
    assert_eq!(
        states,
        [
            (&json!("data"), &json!("step-2/"), &json!("published")),
            (&json!("other"), &json!("x/"), &json!("published"))
        ]
    );
    assert!(rig.succeed("set ls data").text().contains("published"));
}

/// Published, it drains with its marker as the last object; the folder of the lake is the set.
#[test]
fn the_lake_has_the_set_and_its_marker() {
    let rig = Rig::new();
    rig.succeed("volume set data --drain-quiet 0s --drain-lag-max 0s");
    rig.write("a", &bytes_of(1, 100_000));
    rig.write("b", &bytes_of(2, 100_000));
    rig.succeed("set put data/step-9/ a b");
    let lake = rig.node.ready["lake"].as_str().unwrap().strip_prefix("file://").unwrap().to_owned();
    let folder = Path::new(&lake).join("data/step-9");
    wait_for(|| rig.succeed("set status data/step-9/ --json").json()["drain"] == json!("clean"));
    let marker: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("_STOKER_SET.json")).unwrap()).unwrap();
    assert_eq!(marker["shards"].as_array().unwrap().len(), 2);
    assert!(fs::read(folder.join("b")).unwrap() == rig.read("b"));
}

/// Stopped by a signal, `set put` gives up what it began.
#[test]
fn an_interrupted_put_leaves_no_open_set() {
    let rig = Rig::new();
    let fifo = rig.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    rig.write("a", b"1");
    let mut put = rig.command(&["set", "put", "data/s/", "a", "fifo"]);
    let mut child = put.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Held open without a byte, so that the put cannot end by itself.
    let writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    wait_for(|| !rig.succeed("set ls data --json").out.is_empty());
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(writer);
    let listed = rig.succeed("set ls data --json").json_lines();
    assert_eq!(listed.iter().map(|set| &set["state"]).collect::<Vec<_>>(), [&json!("aborted")]);
}

/// A node that is killed has every shard that it acknowledged, and goes on with the set.
#[test]
fn an_open_set_outlives_a_killed_node() {
    let mut rig = Rig::new();
    rig.write("a", &bytes_of(1, 5 << 20));
    rig.write("b", &bytes_of(2, 1_000));
    rig.succeed("set begin data/s/ --shards 2");
    rig.succeed("set add data/s/ a --shard 0");
    rig.node.child.kill().unwrap();
    rig.node.child.wait().unwrap();
    rig.node = Node::up(&rig.path("node"));
    rig.succeed("set add data/s/ b --shard 1");
    rig.succeed("set publish data/s/");
    rig.node.child.kill().unwrap();
    rig.node.child.wait().unwrap();
    rig.node = Node::up(&rig.path("node"));
    rig.succeed("get data/s/ out");
    assert!(rig.read("out/a") == rig.read("a") && rig.read("out/b") == rig.read("b"));
}
