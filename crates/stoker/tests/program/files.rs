//! The file verbs against a node in a process of its own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::*;
use serde_json::json;

#[test]
fn files_of_all_sizes_come_back_the_same() {
    let rig = Rig::new();
    for (number, len) in
        [0, 1, 4095, 4096, (1 << 20) + 1, 4 << 20, (4 << 20) + 1, 64 << 20].into_iter().enumerate()
    {
        let bytes = bytes_of(number as u64, len);
        rig.write("in", &bytes);
        let words = rig.succeed(&format!("put in data/f{number}")).text();
        assert!(words.starts_with("committed: 1 copy on 1 node (class one); drains to file://"), "{words}");
        rig.succeed(&format!("get data/f{number} out"));
        assert!(rig.read("out") == bytes, "{len} bytes");
        let stat = rig.succeed(&format!("stat data/f{number} --json")).json();
        assert_eq!(stat["size"], len);
    }
    let left: Vec<_> =
        fs::read_dir(rig.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no parts are left: {left:?}");

    // Through stdin and stdout, without an announced length.
    let bytes = bytes_of(99, (9 << 20) + 5);
    let mut put = rig.command(&["put", "-", "data/piped"]);
    let mut child = put.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(rig.succeed("get data/piped -").out == bytes);
    rig.refuse("put - data/", "stdin has no name", "name the file");

    // Stopped in the middle: nothing of it is there. More than a pipe holds, so the verb is at work when this returns.
    let mut put = rig.command(&["put", "-", "data/stopped"]);
    let mut child = put.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&bytes).unwrap();
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
    rig.refuse("stat data/stopped", "there is no key", "");

    // Nobody reads on: that is done, not failed.
    let mut get = rig.command(&["get", "data/f7", "-"]);
    let mut child = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_tree_comes_back_the_same_and_troubles_are_listed() {
    let rig = Rig::new();
    for (number, name) in ["a", "b/c", "b/d/e", "b/d/na me (1)", "ü/ß", "b/.hidden"]
        .into_iter()
        .chain(["z/1", "z/2"])
        .enumerate()
    {
        rig.write(&format!("in/{name}"), &bytes_of(number as u64, number * 70_000));
    }
    for number in 0..100 {
        rig.write(&format!("in/many/{number}"), &bytes_of(number, number as usize));
    }
    fs::set_permissions(rig.path("in/a"), fs::Permissions::from_mode(0o640)).unwrap();
    let put = rig.succeed("put -p in data/tree");
    assert!(put.out.is_empty() && put.err.starts_with("put 108 files, "), "{}", put.err);
    let got = rig.succeed("get -p data/tree/ out/deep");
    assert!(got.err.starts_with("got 108 files, "), "{}", got.err);
    assert!(tree(&rig.path("in")) == tree(&rig.path("out/deep")));
    assert_eq!(fs::metadata(rig.path("out/deep/a")).unwrap().permissions().mode() & 0o777, 0o640);
    let times = ["in/a", "out/deep/a"].map(|name| fs::metadata(rig.path(name)).unwrap().modified().unwrap());
    assert_eq!(times[0], times[1]);
    // Without the slash only with -r.
    rig.refuse("get data/tree out2", "there is no key", "see what is there");
    assert_eq!(rig.succeed("get -r data/tree out2 --json").json_lines().len(), 108);
    assert!(tree(&rig.path("in")) == tree(&rig.path("out2")));

    // A link in a circle is named, the rest is done.
    symlink("..", rig.path("in/b/up")).unwrap();
    let put = rig.run("put in data/again");
    assert_eq!(put.code, 1);
    assert!(
        put.err.contains("put 108 files") && put.err.contains("in/b/up: a link to a folder"),
        "{}",
        put.err
    );

    // Keys that lead elsewhere stay where they are.
    rig.write("evil", b"evil");
    for key in ["data/bad/../../../escaped", "data/bad//empty", "data/bad/fine", "data/bad/fine/below"] {
        rig.succeed(&format!("put evil {key}"));
    }
    let got = rig.run("get data/bad/ out3");
    assert_eq!(got.code, 1, "{}", got.err);
    assert!(
        got.err.contains("has a part `.` or `..`") && got.err.contains("has an empty part"),
        "{}",
        got.err
    );
    // `fine` is a file and a folder; one of the two has no place.
    assert!(got.err.contains("got 1 file,") && got.err.contains("stoker: 3 failed:"), "{}", got.err);
    assert!(!rig.path("escaped").exists() && !rig.path("out3/escaped").exists());
}

#[test]
fn names_are_listed_copied_renamed_and_removed() {
    let rig = Rig::new();
    rig.write("one", b"1");
    for key in ["a", "b/c", "b/d", "b/e/f"] {
        rig.succeed(&format!("put one data/{key} --meta step=7 --content-type text/plain"));
    }
    assert_eq!(rig.succeed("ls").lines().len(), 1);
    assert_eq!(rig.succeed("ls data").lines(), ["a", "b/"]);
    assert_eq!(rig.succeed("ls stoker://data/b").lines(), ["b/c", "b/d", "b/e/"]);
    assert_eq!(rig.succeed("ls -r data").lines(), ["a", "b/c", "b/d", "b/e/f"]);
    assert!(rig.succeed("ls -l data/a").text().starts_with("       1 B  dirty     20"));
    rig.refuse("ls data/none", "no such file", "see what is there");
    rig.refuse("ls nothere", "there is no volume `nothere`", "see the volumes");

    let listed = rig.succeed("ls data --json").json_lines();
    assert_eq!(listed[1], json!({"volume": "data", "prefix": "b/"}));
    let stat = rig.succeed("stat data/a --json").json();
    assert_eq!(listed[0], stat);
    for (name, value) in [
        ("volume", json!("data")),
        ("key", json!("a")),
        ("size", json!(1)),
        ("content_type", json!("text/plain")),
        ("meta", json!({"step": "7"})),
        ("drain", json!("dirty")),
    ] {
        assert_eq!(stat[name], value, "{name} in {stat}");
    }
    assert_eq!(stat["checksums"]["crc64nvme"].as_str().unwrap().len(), 12);
    let text = rig.succeed("stat data/a data/b/c").text();
    assert!(text.contains("file       data/a\n") && text.contains("meta       step: 7\n"), "{text}");

    // Inside Stoker, and between here and there.
    let receipt = rig.succeed("cp data/a data/copies/ --json").json();
    assert_eq!((&receipt["key"], &receipt["copies"]), (&json!("copies/a"), &json!(1)));
    rig.succeed("cp -r data/b data/copies/b");
    rig.succeed("cp data/b/c ./local");
    assert_eq!(rig.read("local"), b"1");
    rig.succeed("cp ./local data/");
    rig.refuse("cp data/b/ data/x", "is no single file", "copy a tree with -r");
    rig.refuse("cp -r data/b data/b/x", "would copy itself", "");
    rig.refuse("cp ./a ./b", "neither side", "files in Stoker");
    let kept = rig.run("cp -n data/a data/local");
    assert_eq!(kept.code, 1, "{}", kept.err);
    let kept = rig.run("put -n one data/local");
    assert_eq!(kept.code, 1, "{}", kept.err);
    assert_eq!(
        rig.succeed("ls -r data/copies").lines(),
        ["copies/a", "copies/b/c", "copies/b/d", "copies/b/e/f"]
    );

    rig.succeed("mv data/copies/ data/moved/");
    rig.succeed("mv data/a data/moved/sub/");
    rig.refuse("mv data/a data/b", "there is no key", "");
    rig.refuse("mv data/b/c other/c", "two volumes", "copy with");
    assert_eq!(
        rig.succeed("ls -r data").lines(),
        ["b/c", "b/d", "b/e/f", "local", "moved/a", "moved/b/c", "moved/b/d", "moved/b/e/f", "moved/sub/a"]
    );

    rig.refuse("rm data/b", "no such file", "");
    rig.succeed("rm -f data/b");
    rig.refuse("rm -r data", "whole volume", "all its files");
    rig.succeed("rm data/local data/b/d");
    assert_eq!(rig.succeed("rm -r data/moved --json").json(), json!({"deleted": 5, "failed": 0}));
    assert_eq!(rig.succeed("ls -r data").lines(), ["b/c", "b/e/f"]);
    rig.succeed("rm -r --all data");
    assert!(rig.succeed("ls -r data").out.is_empty());
}

#[test]
fn files_reach_the_lake_and_can_be_waited_for() {
    let rig = Rig::new();
    let bytes = bytes_of(1, 5 << 20);
    rig.write("big", &bytes);
    rig.succeed("put big data/dir/big");
    let receipt = rig.succeed("wait data/dir/big --committed --json").json();
    assert_eq!((&receipt["class"], &receipt["key"]), (&json!("one"), &json!("dir/big")));
    rig.refuse("wait data/dir/big --timeout 1ms", "is not drained", "`stoker explain");
    assert_eq!(rig.succeed("drain data/dir --json").json(), json!({"files": 1}));
    let words = rig.succeed("wait data/dir/big --drained --timeout 60s").text();
    assert!(words.contains("; drained to file://"), "{words}");
    assert_eq!(rig.succeed("drain data --wait").text(), "0 files drained\n");

    let lake = rig.node.ready["lake"].as_str().unwrap().strip_prefix("file://").unwrap();
    assert!(fs::read(Path::new(lake).join("data/dir/big")).unwrap() == bytes);

    let explained = rig.succeed("explain data/dir/big --json").json();
    assert_eq!((&explained["chunks"], &explained["file"]["drain"]), (&json!(2), &json!("clean")));
    assert!(rig.succeed("explain data/dir/big").text().contains("chunks   2; "));
    assert_eq!(rig.succeed("stage data/dir/big --json").json(), json!({"bytes": 0}));
    assert!(rig.succeed("conflict ls --json").out.is_empty());
    rig.refuse("conflict resolve data/dir/big ours", "", "");
    assert_eq!(rig.run("conflict resolve data/dir/big mine").code, 2);

    let status = rig.succeed("status --json").json();
    assert_eq!((&status["ready"], &status["dirty_files"]), (&json!(true), &json!(0)));
    assert_eq!(status["rings"].as_array().unwrap().len(), 1);
    assert!(rig.succeed("status").text().contains("undrained  nothing"));
}

#[test]
fn volumes_and_keys() {
    let rig = Rig::new();
    let made = rig.succeed("volume create runs --drain every:3 --quota 1MiB --drain-quiet 30s --json").json();
    let policy = &made["policy"];
    assert_eq!((&policy["drain"], &policy["quota_bytes"]), (&json!({"every": 3}), &json!(1 << 20)));
    assert_eq!(policy["drain_quiet_s"], 30);
    rig.refuse("volume create runs", "runs", "");
    rig.refuse("volume create Runs", "cannot name a volume", "");
    rig.write("big", &vec![1; 2 << 20]);
    rig.refuse("put big runs/big", "quota", "delete files, or raise it");
    assert_eq!(policy["leases"], true);
    rig.succeed("volume set runs --quota 0 --drain never --leases false");
    rig.succeed("put big runs/big");
    rig.refuse("volume set runs", "nothing to change", "");
    let shown = rig.succeed("volume show runs --json").json();
    assert_eq!((&shown["policy"]["drain"], &shown["policy"]["drain_quiet_s"]), (&json!("never"), &json!(30)));
    assert_eq!(shown["policy"]["leases"], false);
    let shown = rig.succeed("volume show runs").text();
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["drain", "never"])), "{shown}");
    assert_eq!(rig.succeed("volume ls --json").json_lines().len(), 2);
    rig.refuse("volume rm runs", "not empty", "remove its files first");
    rig.succeed("rm -r --all runs");
    rig.succeed("volume rm runs");
    rig.refuse("volume show runs", "there is no volume", "see the volumes");

    let key = rig.succeed("key create --read-only --prefix data/a --uid 7 --json").json();
    let name = key["access_key"].as_str().unwrap();
    assert_eq!(
        (&key["read_only"], &key["prefixes"], &key["uid"]),
        (&json!(true), &json!(["data/a"]), &json!(7))
    );
    assert_eq!(rig.succeed(&format!("key show {name} --json")).json(), key);
    let listed = rig.succeed("key ls --json");
    assert_eq!(listed.json_lines().len(), 2);
    assert!(!listed.text().contains("secret"));
    rig.succeed(&format!("key rm {name}"));
    rig.refuse(&format!("key rm {name}"), "no access key", "see the keys");
}

#[test]
fn a_node_is_found_and_its_absence_explained() {
    let rig = Rig::new();
    // A folder that is no node's, an address where nobody listens, nonsense.
    rig.refuse("ls --dir elsewhere", "cannot connect to unix:elsewhere/stoker.sock", "start a node with");
    rig.refuse(
        "ls --endpoint 127.0.0.1:1 --token x",
        "cannot connect to 127.0.0.1:1",
        "check that the node runs",
    );
    rig.refuse("ls --endpoint nonsense", "is no endpoint", "");
    assert_eq!(rig.run("ls --dir a --endpoint b:1").code, 2);
    assert_eq!(rig.run("put").code, 2);
    assert_eq!(rig.run("stat /absolute").code, 2);
    // A flag counts before the environment.
    let mut command = rig.command(&["ls", "--dir", rig.node.dir.to_str().unwrap()]);
    assert_eq!(ran(command.env("STOKER_ENDPOINT", "127.0.0.1:1")).code, 0);
    let mut command = rig.command(&["ls"]);
    assert_eq!(ran(command.env("STOKER_ENDPOINT", "127.0.0.1:1")).code, 1);
    // Nobody says where: the folder here, then what the client configuration says; otherwise everything that was tried is told.
    let away = rig.path("away");
    fs::create_dir(&away).unwrap();
    let client = away.join("stoker/client.json");
    let mut command = binary();
    let lost = ran(command.args(["ls"]).current_dir(&away).env("XDG_CONFIG_HOME", &away));
    if !Path::new("/var/lib/stoker/stoker.sock").exists() {
        assert_eq!(lost.code, 1);
        for part in [
            "no node answers; tried",
            "the usual place stoker-data: ",
            "the usual place /var/lib/stoker: ",
            "  hint: start",
        ] {
            assert!(lost.err.contains(part), "{part} in {}", lost.err);
        }
        fs::create_dir(client.parent().unwrap()).unwrap();
        fs::write(&client, json!({ "dir": rig.node.dir }).to_string()).unwrap();
        let mut command = binary();
        let found = ran(command.args(["ls", "--json"]).current_dir(&away).env("XDG_CONFIG_HOME", &away));
        assert_eq!((found.code, found.json_lines().len()), (0, 1), "{}", found.err);
    }
    std::os::unix::fs::symlink(&rig.node.dir, away.join("stoker-data")).unwrap();
    fs::write(&client, "{}").ok();
    let mut command = binary();
    let here =
        ran(command.args(["ls", "--json"]).current_dir(&away).env("XDG_CONFIG_HOME", rig.path("none")));
    assert_eq!((here.code, here.json_lines().len()), (0, 1), "{}", here.err);
    rig.write("file", b"x");
    rig.refuse("ls --dir file", "file is not a directory", "--dir names the directory");
    rig.refuse("node quarantine nobody", "no node `nobody`", "see the nodes with `stoker node ls`");
    rig.refuse("put nofile data/a", "nofile", "check the path");
    rig.refuse("get data/a nowhere/b", "there is no key", "");
}

#[test]
fn a_node_on_tcp_wants_its_token() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("node");
    let drive = folder.path().join("drive");
    fs::create_dir(&drive).unwrap();
    let config = format!(
        "[node]\ndir = {dir:?}\nmemory = \"256MiB\"\n[[drive]]\npath = {drive:?}\nsize = \"256MiB\"\n\
         [s3]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n[door]\nlisten = [\"127.0.0.1:0\"]\n"
    );
    fs::write(folder.path().join("stoker.toml"), config).unwrap();
    let mut command = binary();
    command.args(["serve", "--json", "--config"]).arg(folder.path().join("stoker.toml"));
    let node = Node::start(command, &dir);
    let endpoint =
        node.ready["door"][0].as_str().unwrap_or_else(|| panic!("no door in {}", node.ready)).to_owned();
    let token = fs::read_to_string(dir.join("token")).unwrap();
    let token = token.trim();
    let ask =
        |token: &str| ran(binary().args(["status", "--json", "--endpoint", &endpoint, "--token", token]));
    assert_eq!(ask(token).code, 0);
    let by_file = |path: &Path| {
        ran(binary()
            .args(["status", "--endpoint", &endpoint, "--token-file"])
            .arg(path)
            .env("STOKER_TOKEN", "x"))
    };
    assert_eq!(by_file(&dir.join("token")).code, 0);
    let missing = by_file(&dir.join("missing"));
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("the token file"), "{}", missing.err);
    for wrong in ["", "wrong"] {
        let refused = ask(wrong);
        assert_eq!(refused.code, 1);
        assert!(
            refused.err.contains("token") && refused.err.contains("hint: give the node's token"),
            "{}",
            refused.err
        );
    }
    let mut command = binary();
    command.args(["volume", "create", "remote"]).env("STOKER_ENDPOINT", &endpoint).env("STOKER_TOKEN", token);
    assert_eq!(ran(&mut command).code, 0);
}

#[test]
fn a_killed_node_has_every_acknowledged_file() {
    let mut rig = Rig::new();
    let bytes = bytes_of(5, 3 << 20);
    rig.write("in", &bytes);
    rig.succeed("put in data/kept");
    rig.node.child.kill().unwrap();
    rig.node.child.wait().unwrap();
    rig.refuse("ls data", "cannot connect", "start a node with");
    rig.node = Node::up(&rig.path("node"));
    rig.succeed("get data/kept out");
    assert!(rig.read("out") == bytes);
}
