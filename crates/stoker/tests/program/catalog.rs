//! `stoker catalog backup`, `restore`, `salvage` and `compare`, and `stoker key rotate`, as people call them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::rig::{Node, Rig, bytes_of, ran};

/// Stops the node as people do, and leaves its folder.
fn stop(rig: &mut Rig) {
    let pid = rig.node.child.id().to_string();
    assert_eq!(ran(std::process::Command::new("kill").arg(&pid)).code, 0);
    rig.node.child.wait().unwrap();
}

fn start(rig: &mut Rig) {
    rig.node = Node::up(&rig.node.dir.clone());
}

#[test]
fn a_catalog_is_kept_lost_and_found() {
    let mut rig = Rig::new();
    for at in 0..4u64 {
        rig.write("local", &bytes_of(at, 100_000));
        rig.succeed(&format!("put local data/a/{at}"));
    }
    rig.succeed("wait data/a/1");
    let told = rig.succeed("catalog backup kept --json").json();
    assert!(told["rows"].as_u64().unwrap() > 10 && told["seq"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(fs::metadata(rig.path("kept")).unwrap().permissions().mode() & 0o777, 0o600);
    rig.refuse("catalog backup kept", "is there already", "choose another name");
    rig.refuse("catalog restore kept", "is in use by another stoker", "stop the other process");
    rig.write("local", b"since the backup");
    rig.succeed("put local data/b");
    rig.succeed("rm data/a/0");
    stop(&mut rig);

    rig.refuse("catalog restore kept", "would be lost", "");
    let restored = rig.succeed("catalog restore kept --force");
    assert!(restored.text().contains("stoker catalog salvage"), "{}", restored.text());
    let mut command =
        rig.command(&["up", "--check", "--json", "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let refused = ran(command.arg("--dir").arg(&rig.node.dir));
    assert_eq!(refused.code, 1, "{}", refused.text());
    assert!(refused.err.contains("stoker catalog salvage"), "{}", refused.err);
    let found = rig.succeed("catalog salvage --json").json();
    // Of what was deleted since the backup, and is gone everywhere already, only the backup knows.
    let lost = found["lost"].as_array().unwrap();
    assert!(found["files"] == 4 && lost.iter().all(|key| key == "data/a/0"), "{found}");
    let told = rig.run(&format!("catalog compare kept {} --json", rig.node.dir.display()));
    let mut keys: Vec<String> =
        told.json_lines().iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    assert_eq!((told.code, keys), (1, vec!["a/0".to_owned(), "b".to_owned()]));

    // Nothing but drives and lake.
    fs::remove_file(rig.node.dir.join("catalog.redb")).unwrap();
    rig.succeed("catalog salvage");
    start(&mut rig);
    for at in 1..4u64 {
        rig.succeed(&format!("get data/a/{at} back{at}"));
        assert_eq!(rig.read(&format!("back{at}")), bytes_of(at, 100_000), "a/{at}");
    }
    rig.succeed("get data/b back");
    assert_eq!(rig.read("back"), b"since the backup");
    rig.refuse("stat data/a/0", "a/0", "");

    // Of drives that came and went while the node ran, its settings know nothing.
    fs::create_dir(rig.path("nvme1")).unwrap();
    let node = rig.succeed("node ls --json").json()["name"].as_str().unwrap().to_owned();
    rig.succeed(&format!("drive add {node} nvme1 --size 256MiB"));
    rig.succeed(&format!("drive remove {node} {}/ring --timeout 60s", rig.node.dir.display()));
    rig.succeed("volume set data --drain on-demand");
    rig.succeed("put back data/c");
    stop(&mut rig);
    fs::remove_file(rig.node.dir.join("catalog.redb")).unwrap();
    rig.succeed("catalog salvage");
    start(&mut rig);
    rig.succeed("get data/c again");
    assert_eq!(rig.read("again"), b"since the backup");

    let mut bad = fs::read(rig.path("kept")).unwrap();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    rig.write("bad", &bad);
    stop(&mut rig);
    rig.refuse("catalog restore bad --force", "the backup is damaged", "");
    rig.refuse("catalog salvage --backup stoker.toml", "stoker.toml", "");
    let elsewhere = rig.command(&["catalog", "salvage", "--dir", "nowhere"]).output().unwrap();
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("is not the directory of a node"));
}

#[test]
fn keys_are_rotated_while_everything_runs() {
    let rig = Rig::new();
    let old = rig.node.ready["access_key"].as_str().unwrap().to_owned();
    let new = rig.succeed(&format!("key rotate {old} --grace 1h --json")).json();
    assert_ne!(new["access_key"].as_str(), Some(old.as_str()));
    let listed = rig.succeed("key ls --json").json_lines();
    assert_eq!(listed.len(), 2, "the old one works on");
    let kept = fs::read_to_string(rig.node.dir.join("credentials")).unwrap();
    assert!(kept.contains(new["secret_key"].as_str().unwrap()), "the node's own file has the new one");
    rig.succeed(&format!("key rotate {old} --grace 0s"));
    rig.refuse(&format!("key rotate {old}"), "there is no access key", "see the keys");
    let before = rig.node.ready["join_token"].as_str().unwrap();
    let token =
        rig.succeed("key rotate --join-token --json").json()["join_token"].as_str().unwrap().to_owned();
    assert!(token != before && token.starts_with("stoker1-"), "{token}");
    let other = rig.path("other");
    let address = rig.node.ready["peers"].as_str().unwrap();
    let start = |verb: &[&str], dir: &std::path::Path, token: &str| {
        let mut command = super::rig::binary();
        command.args(verb).args(["--check", "--size", "256MiB", "--memory", "256MiB", "--dir"]);
        ran(command.arg(dir).env("STOKER_JOIN_TOKEN", token))
    };
    let join = |token: &str| start(&["join", address], &other, token);
    let refused = join(before);
    assert_eq!(refused.code, 1, "the old token: {}{}", refused.text(), refused.err);
    let joined = join(&token);
    assert_eq!(joined.code, 0, "{}{}", joined.text(), joined.err);
    assert_eq!(join(&token).code, 0, "the same line starts a member again, with a token that is used up");
    // A node of another cluster does not start as if it had joined.
    let third = rig.path("third");
    assert_eq!(start(&["up"], &third, "").code, 0);
    let refused = start(&["join", address], &third, &token);
    assert!(refused.code == 1 && refused.err.contains("the token is of another one"), "{}", refused.err);
    assert!(refused.out.is_empty(), "{}", refused.text());
}

/// Runs the nodes of a cell in one process group of their own.
fn cell(dir: &std::path::Path) -> Node {
    let mut command = super::rig::binary();
    command
        .args(["up", "--nodes", "3", "--json", "--size", "256MiB", "--memory", "768MiB", "--dir"])
        .arg(dir);
    Node::start(command, dir)
}

#[test]
fn the_authority_of_a_cell_is_rotated_while_it_is_stopped() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("cell");
    let mut rig = Rig { node: cell(&dir), folder };
    let node = |at: usize| dir.join(format!("node-{at}"));
    let on = |rig: &Rig, at: usize, args: &str| {
        ran(rig.command(&args.split(' ').collect::<Vec<_>>()).env("STOKER_DIR", node(at)))
    };
    rig.write("local", &bytes_of(1, 300_000));
    assert_eq!(on(&rig, 1, "put local data/before").code, 0);
    let refused = on(&rig, 1, "key rotate --authority new");
    assert!(refused.code == 1 && refused.err.contains("is in use by another stoker"), "{}", refused.err);
    stop(&mut rig);
    for at in 1..=3 {
        let done = on(&rig, at, "key rotate --authority new");
        assert!(done.code == 0 && done.err.contains("start nodes"), "{}", done.err);
    }
    assert_eq!(fs::metadata(rig.path("new")).unwrap().permissions().mode() & 0o777, 0o600);
    rig.node = cell(&dir);
    rig.write("local", &bytes_of(2, 300_000));
    assert_eq!(on(&rig, 2, "put local data/after").code, 0);
    for (at, name) in [(1, "before"), (2, "after")] {
        assert_eq!(on(&rig, 3, &format!("get data/{name} back-{name}")).code, 0);
        assert_eq!(rig.read(&format!("back-{name}")), bytes_of(at, 300_000), "{name}");
    }
}

#[test]
fn a_cell_that_lost_its_catalog_and_all_its_followers_is_rebuilt() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("cell");
    let mut rig = Rig { node: cell(&dir), folder };
    let node = |at: usize| dir.join(format!("node-{at}"));
    let on = |rig: &Rig, at: usize, args: &str| {
        let mut command = rig.command(&args.split(' ').collect::<Vec<_>>());
        let done = ran(command.env("STOKER_DIR", node(at)));
        assert_eq!(done.code, 0, "node {at}, {args}: {}{}", done.text(), done.err);
        done
    };
    // On demand only, so that the drives have most of it.
    on(&rig, 1, "volume create slow --drain on-demand");
    for at in 0..8u64 {
        rig.write("local", &bytes_of(at, 300_000));
        on(&rig, 1 + at as usize % 3, &format!("put local slow/{at}"));
    }
    on(&rig, 2, "drain slow/1");
    on(&rig, 2, "wait slow/1");
    on(&rig, 3, "mv slow/7 slow/seven");
    on(&rig, 2, "rm slow/0");
    stop(&mut rig);
    for at in 1..=3 {
        fs::remove_file(node(at).join("catalog.redb")).unwrap();
    }
    let with = [node(2), node(3)];
    let mut command = rig.command(&["catalog", "salvage", "--json"]);
    command.env("STOKER_DIR", node(1));
    for dir in &with {
        command.arg("--with").arg(dir);
    }
    let found = ran(&mut command);
    assert_eq!(found.code, 0, "{}{}", found.text(), found.err);
    let report = found.json();
    assert_eq!((report["files"].as_u64(), report["lost_files"].as_u64()), (Some(7), Some(0)), "{report}");
    rig.node = cell(&dir);
    for (at, name) in (1..7).map(|at| (at, at.to_string())).chain([(7, "seven".to_owned())]) {
        let back = format!("back-{name}");
        on(&rig, 1 + at as usize % 3, &format!("get slow/{name} {back}"));
        assert_eq!(rig.read(&back), bytes_of(at, 300_000), "{name}");
    }
    let listed = on(&rig, 2, "ls slow --json").json_lines();
    assert_eq!(listed.len(), 7, "what was deleted stays deleted: {listed:?}");
}
