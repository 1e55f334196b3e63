//! `stoker bench interference` from the outside: a tiny run with a real node, and what it prints.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["bench", "interference", "--dir"]).arg(dir).args(args);
    command.output().expect("the program starts")
}

#[test]
fn a_tiny_run_trains_beside_a_node_and_leaves_nothing_behind() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = bench(dir.path(), &["--json", "--seconds", "0.02", "--rounds", "1", "--size", "1GiB"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if cores < 2 {
        assert!(words.contains("leave nobody to compare"), "{words}");
        return;
    }
    assert!(output.status.success(), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["workloads"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["interference_serve", "interference_commit", "interference_drain"]);
    for row in rows {
        for field in ["ratio", "alone_step_ms", "beside_step_ms", "load_mb_s"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
        assert_eq!(row["bar"], 1.05);
    }
    let sides =
        ["cores_training", "cores_stoker"].map(|side| report["machine"][side].as_array().unwrap().clone());
    assert!(
        sides.iter().all(|side| !side.is_empty()) && !sides[0].iter().any(|core| sides[1].contains(core)),
        "{report}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn unknown_names_small_rings_and_too_many_cores_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, why) in [
        (&["--workloads", "nothing"][..], "interference_drain"),
        (&["--size", "64MiB"], "1 GiB"),
        (&["--cores", "100000"], "leave nobody to compare"),
    ] {
        let output = bench(dir.path(), args);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(why),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
