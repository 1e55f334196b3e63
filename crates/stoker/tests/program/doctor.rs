//! `stoker doctor`: beside a node that runs, before there is one, and on the files of another machine.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::rig::{Ran, Rig, binary, ran};

fn doctor(args: &[&str]) -> Ran {
    ran(binary().arg("doctor").args(args))
}

fn checks<'v>(report: &'v Value, list: &str) -> Vec<&'v str> {
    report[list].as_array().unwrap().iter().map(|one| one["check"].as_str().unwrap()).collect()
}

/// What the exit code has to be for what was found; this machine is whatever it is.
fn code_of(report: &Value) -> i32 {
    let findings = report["findings"].as_array().unwrap();
    let has = |severity: &str| findings.iter().any(|finding| finding["severity"] == severity);
    if has("error") { 2 } else { i32::from(has("warning")) }
}

#[test]
fn beside_a_running_node() {
    let rig = Rig::new();
    let dir = rig.node.dir.to_str().unwrap();
    let told = doctor(&["--dir", dir, "--json"]);
    let report = told.json();
    assert_eq!(told.code, code_of(&report), "{}", told.text());
    assert_eq!(report["node"]["process"], rig.node.ready["pid"]);
    assert_eq!(report["node"]["drives"][0], format!("{dir}/ring"));
    assert_eq!(report["node"]["cores"].as_array().map(Vec::len).unwrap_or(0).min(1), 1, "{report}");
    let (found, unseen) = (checks(&report, "findings"), checks(&report, "unseen"));
    // These were tried or read here, and a node that was made just now passes them.
    for check in ["secrets.file", "secrets.directory", "secrets.certificate"] {
        assert!(!found.contains(&check) && !unseen.contains(&check), "{check}: {report}");
    }
    for check in ["drive.direct", "kernel.io_uring", "memory.cap", "filesystem.kind"] {
        assert!(!unseen.contains(&check), "{check}: {report}");
    }
    for finding in report["findings"].as_array().unwrap() {
        assert!(finding["what"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        assert!(finding["why"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
    }
    for folder in [rig.node.dir.clone(), rig.node.dir.join("ring")] {
        let mut names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!names.any(|name| name.to_string_lossy().contains("doctor")), "something stayed behind");
    }

    fs::set_permissions(rig.node.dir.join("token"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let told = doctor(&["--dir", dir]);
    assert_eq!(told.code, 2, "{}", told.text());
    for part in ["ERROR  secrets.file", "chmod 600", "checks made", "reserve for Stoker: cores"] {
        assert!(told.text().contains(part), "{part} in {}", told.text());
    }
}

#[test]
fn before_there_is_a_node() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("not-yet");
    let told = doctor(&["--dir", dir.to_str().unwrap(), "--json"]);
    let report = told.json();
    assert_eq!(told.code, code_of(&report), "{}", told.text());
    assert_eq!((&report["node"]["dir"], &report["node"]["process"]), (&Value::Null, &Value::Null));
    assert!(!checks(&report, "unseen").contains(&"drive.direct"), "{report}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a look makes nothing");

    // A drive of a configuration that is not mounted, and a database that is not there.
    let config = folder.path().join("stoker.toml");
    let text = format!(
        "[node]\ndir = \"{0}\"\n[[drive]]\npath = \"{0}/no-drive\"\n[catalog]\nkind = \"postgres\"\n\
         url = \"postgresql://u:secret-word@127.0.0.1:1/d\"\n",
        folder.path().join("node").display()
    );
    fs::write(&config, text).unwrap();
    let told = doctor(&["--config", config.to_str().unwrap(), "--json"]);
    assert_eq!(told.code, 2, "{}", told.text());
    let found = told.json();
    for check in ["drive.direct", "database.answers", "secrets.file"] {
        assert!(checks(&found, "findings").contains(&check), "{check} in {found}");
    }
    assert!(!told.text().contains("secret-word"));
}

/// A machine of a few files.
fn machine(root: &Path, options: &str) {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    put("proc/sys/kernel/osrelease", "6.8.0");
    put(
        "proc/self/mountinfo",
        &format!("22 1 8:2 / / rw - ext4 /dev/sda2 rw\n23 22 259:1 / /mnt/a rw - xfs /dev/a {options}"),
    );
    put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
}

#[test]
fn the_files_of_another_machine() {
    let root = tempfile::tempdir().unwrap();
    let args = ["--root", root.path().to_str().unwrap(), "--dir", "/no/node", "--drive", "/mnt/a", "--json"];
    machine(root.path(), "rw");
    let told = doctor(&args);
    let report = told.json();
    assert_eq!((told.code, checks(&report, "findings")), (0, vec![]), "{}", told.text());
    // Nothing can be tried there, and that is said.
    for check in ["kernel.io_uring", "drive.direct", "clock.synchronised", "numa.cores"] {
        assert!(checks(&report, "unseen").contains(&check), "{check} in {report}");
    }
    machine(root.path(), "rw,nobarrier");
    let told = doctor(&args);
    assert_eq!(
        (told.code, checks(&told.json(), "findings")),
        (2, vec!["filesystem.barrier"]),
        "{}",
        told.text()
    );
}
