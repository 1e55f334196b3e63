//! `stoker bench posix` from the outside: a tiny run against a real mount and a real export, and what it prints.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["bench", "posix", "--dir"]).arg(dir).args(args.split(' '));
    command.output().expect("the program starts")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn unknown_names_and_sizes_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, hint) in [("--only fuse_fly", "fuse_stat"), ("--size 1GiB --ring 2GiB", "quarter")] {
        let output = bench(dir.path(), args);
        assert_eq!(output.status.code(), Some(1));
        assert!(words(&output).contains(hint), "{}", words(&output));
    }
}

/// Small figures, so that it takes seconds; they say nothing about speed. Where nothing can be mounted it says so.
#[test]
fn a_tiny_run_measures_every_workload_and_leaves_nothing_behind() {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        stoker_testing::skipped("/dev/fuse cannot be used here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = "--json --alone --rounds 1 --seconds 0.1 --size 32MiB --files 50 --ring 512MiB";
    let output = bench(dir.path(), args);
    assert!(output.status.success(), "{}", words(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "posix");
    let rows = report["workloads"].as_array().unwrap();
    let has_nfs = report["machine"]["nfs_client"] != "none";
    assert_eq!(rows.len(), if has_nfs { 11 } else { 9 }, "{report}");
    for row in rows {
        for field in ["plain", "stoker", "p50_us"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
        // Rounded, so that a slow machine may show none.
        assert!(row["ratio"].as_f64().unwrap() >= 0.0, "{row}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
