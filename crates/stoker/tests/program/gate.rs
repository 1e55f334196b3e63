//! `stoker gate`, `stoker top` and `stoker explain` against real nodes.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::rig::*;

fn steps(report: &Value) -> &Vec<Value> {
    report["steps"].as_array().unwrap()
}

fn of<'r>(report: &'r Value, step: &str) -> Vec<&'r Value> {
    steps(report).iter().filter(|one| one["step"] == step).collect()
}

/// Whatever the gate makes has this in its name. What goes meanwhile is gone.
fn leftovers(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.to_string_lossy().contains("stoker-gate") {
                found.push(path.display().to_string());
            }
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

#[test]
fn a_node_is_measured_recorded_and_compared_and_nothing_is_left() {
    let rig = Rig::new();
    let first = rig.succeed("gate --quick --json --record").json();
    assert_eq!((&first["gate"], &first["quick"]), (&"pass".into(), &true.into()), "{first}");
    for step in [
        "device_write_4m",
        "device_read_4m",
        "device_write_4k_p99",
        "device_read_4k_p99",
        "ring_append_4m",
        "ring_append_4k_p99",
        "ring_read_4m",
        "commit_4k_p50",
        "commit_4m_p50",
        "catalog_commit_p50",
        "catalog_read_p50",
        "lake_put_p50",
        "lake_get_p50",
        "lake_delete_p50",
        "lake_upload",
        "lake_download",
    ] {
        let [one] = of(&first, step)[..] else { panic!("{step} in {first}") };
        assert_eq!((&one["result"], &one["baseline"]), (&"pass".into(), &Value::Null), "{one}");
        assert!(one["figure"].as_f64().unwrap() > 0.0, "{one}");
    }
    for step in steps(&first).iter().filter(|one| one["result"] == "skipped") {
        assert!(!step["why"].as_str().unwrap().is_empty(), "{step}");
    }
    assert_eq!(of(&first, "fabric_send")[0]["why"], "the cluster has one node");
    assert!(leftovers(rig.folder.path()).is_empty(), "{:?}", leftovers(rig.folder.path()));
    assert!(!rig.succeed("ls").text().contains("stoker-gate"));

    // Against what was recorded, but for figures that nobody can reach, or miss.
    let path = rig.node.dir.join("gate.json");
    let mut kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept["rows"].as_array().unwrap().len() as u64, first["recorded"].as_u64().unwrap());
    let mut set = |step: &str, figure: f64| {
        let rows = kept["rows"].as_array_mut().unwrap();
        rows.iter_mut().find(|row| row["step"] == step).unwrap()["figure"] = figure.into();
        fs::write(&path, kept.to_string()).unwrap();
    };
    set("catalog_commit_p50", 1e12);
    set("catalog_read_p50", 1e12);
    set("device_read_4m", 1e12);
    let easy = rig.succeed("gate --quick --json --steps catalog").json();
    assert_eq!(of(&easy, "catalog_read_p50")[0]["limit"], 1.5e12, "{easy}");
    let hard = rig.run("gate --quick --json --steps device,catalog");
    assert_eq!(hard.code, 1, "{}{}", hard.text(), hard.err);
    let hard = hard.json();
    assert_eq!(hard["gate"], "fail");
    let read = of(&hard, "device_read_4m")[0];
    assert!(read["result"] == "fail" && read["why"].as_str().unwrap().contains("the limit is"), "{read}");
    assert_eq!(of(&hard, "catalog_commit_p50")[0]["result"], "pass");
    let words = rig.run("gate --quick --steps device");
    assert!(
        words.code == 1 && words.text().contains("device_read_4m") && words.text().contains("fail: "),
        "{}",
        words.text()
    );
    assert!(words.err.contains("device ..."), "{}", words.err);
}

#[test]
fn a_stopped_node_is_measured_without_its_doors() {
    let mut rig = Rig::new();
    rig.node.child.kill().unwrap();
    rig.node.child.wait().unwrap();
    let report = rig.succeed("gate --quick --json --steps device,commit,catalog,fabric").json();
    assert_eq!(of(&report, "device_write_4m")[0]["result"], "pass", "{report}");
    for step in ["commit_4k_p50", "catalog_commit_p50", "fabric_send"] {
        let one = of(&report, step)[0];
        assert_eq!((&one["result"], &one["why"]), (&"skipped".into(), &"the node does not run".into()));
    }
    // Nothing but skipped steps is not a pass.
    let nothing = rig.run("gate --quick --json --steps fabric");
    assert_eq!((nothing.code, &nothing.json()["gate"]), (2, &"nothing could be measured".into()));
}

#[test]
fn what_cannot_run_says_why_with_exit_code_2() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().to_str().unwrap();
    let refused = |args: &[&str], why: &str| {
        let ran = ran(binary().args(["gate", "--quick"]).args(args));
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.out.is_empty() && ran.err.contains(why), "{args:?}: {}", ran.err);
    };
    refused(&["--dir", dir], "is not the directory of a node");
    refused(&["--dir", dir, "--steps", "everything"], "there is no step `everything`");
    refused(&["--config", "/no/such/file"], "/no/such/file");
    fs::write(folder.path().join("node.json"), r#"{"node":"00","cluster":"00"}"#).unwrap();
    for hostile in ["", "{}", r#"{"form":9,"rows":[]}"#, "\u{0}\u{1}", &"[".repeat(10_000)] {
        fs::write(folder.path().join("gate.json"), hostile).unwrap();
        refused(&["--dir", dir], "holds no baselines");
    }
}

#[test]
fn an_interrupted_gate_leaves_nothing() {
    let rig = Rig::new();
    let mut child = rig
        .command(&["gate", "--steps", "commit,device"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| !leftovers(rig.folder.path()).is_empty());
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    assert!(leftovers(rig.folder.path()).is_empty(), "{:?}", leftovers(rig.folder.path()));
    assert!(!rig.succeed("ls").text().contains("stoker-gate"));
    // One that was killed outright is tidied up after by the next one.
    let stale = rig
        .node
        .dir
        .join(format!(".stoker-gate-{}", rig.succeed("status --json").json()["node"].as_str().unwrap()));
    fs::create_dir(&stale).unwrap();
    fs::write(stale.join("bare"), b"x").unwrap();
    rig.succeed("gate --quick --steps device");
    assert!(!stale.exists());
}

#[test]
fn every_way_of_a_cell_is_measured_and_top_shows_its_nodes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let home = folder.path().join("all");
    let mut command = binary();
    command
        .args(["up", "--nodes", "3", "--json", "--size", "256MiB", "--memory", "768MiB"])
        .arg("--dir")
        .arg(&home);
    let all = Node::start(command, &home);
    let nodes = all.ready.as_array().unwrap();
    let dir = nodes[1]["dir"].as_str().unwrap();
    let on = |args: &str| ran(binary().args(args.split(' ')).env("STOKER_DIR", dir));
    let gate = on("gate --quick --json --steps commit,catalog,fabric");
    assert_eq!(gate.code, 0, "{}{}", gate.text(), gate.err);
    let report = gate.json();
    for step in ["fabric_trip_p50", "fabric_send"] {
        let mut ways: Vec<&str> =
            of(&report, step).iter().map(|one| one["subject"].as_str().unwrap()).collect();
        ways.sort_unstable();
        ways.dedup();
        assert_eq!(ways.len(), 6, "{report}");
        assert!(of(&report, step).iter().all(|one| one["figure"].as_f64().unwrap() > 0.0), "{report}");
    }
    let page = on("top --once --interval 100ms");
    assert_eq!(page.code, 0, "{}", page.err);
    let text = page.text();
    assert!(text.contains("\nrisk     if ") && text.matches(" up ").count() >= 3, "{text}");
    let json = on("top --once --json --interval 100ms").json();
    assert_eq!((json["nodes"].as_array().unwrap().len(), &json["ready"]), (3, &true.into()));
    let own = json["node"].as_str().unwrap();
    let drives = json["drives"].as_array().unwrap();
    assert!(
        drives.iter().any(|drive| drive["node"] == own && drive["write_bytes_per_s"].is_number()),
        "{json}"
    );
}

#[test]
fn top_needs_a_node_and_gives_the_terminal_back() {
    let rig = Rig::new();
    rig.refuse("top --once --dir nowhere", "nowhere", "start a node");
    assert_eq!(rig.run("top --interval 1ms").code, 2);
    let json = rig.succeed("top --once --json --interval 100ms").json();
    assert_eq!((&json["trouble"], &json["drain"]["files"]), (&Value::Null, &0.into()));
    // A terminal of its own, on which somebody presses q.
    let Ok(mut child) = Command::new("script")
        .args([
            "-qec",
            &format!("stty rows 24 cols 80; {} top --interval 100ms; stty -a", env!("CARGO_BIN_EXE_stoker")),
            "/dev/null",
        ])
        .env("STOKER_DIR", &rig.node.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        stoker_testing::skipped("there is no script(1) to make a terminal with");
        return;
    };
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut seen = Vec::new();
    let mut buf = [0; 4096];
    let has = |seen: &[u8], what: &str| String::from_utf8_lossy(seen).contains(what);
    while !has(&seen, "VOLUME") {
        let len = std::io::Read::read(&mut screen, &mut buf).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buf[..len]);
    }
    std::io::Write::write_all(&mut keys, b"q").unwrap();
    std::io::Read::read_to_end(&mut screen, &mut seen).unwrap();
    assert!(child.wait().unwrap().success());
    let text = String::from_utf8_lossy(&seen);
    let (entered, left) = (text.find("\x1b[?1049h").unwrap(), text.rfind("\x1b[?1049l").unwrap());
    assert!(entered < left);
    let settings = &text[left..];
    assert!(settings.contains(" icanon") && settings.contains(" echo "), "{settings}");
}
