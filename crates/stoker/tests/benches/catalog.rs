//! `stoker bench catalog` from the outside: a tiny run on both catalogs, and what it prints.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["bench", "catalog", "--dir"]).arg(dir).args(args);
    command.output().expect("the program starts")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_unknown_catalog_is_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--engines", "redb,oracle"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("oracle") && words(&output).contains("postgres"), "{}", words(&output));
}

/// Small figures, so that it takes seconds; they say nothing about speed.
#[test]
fn a_tiny_run_measures_both_catalogs_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    // Where root runs this, the server is somebody else who has to get in.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let args = "--json --seconds 0.1 --rounds 2 --clients 3 --connections 2 --files 50";
    let output = bench(dir.path(), &args.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", words(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "catalog");
    let rows = report["workloads"].as_array().unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let names: Vec<(String, String)> =
        rows.iter().map(|row| (text(row, "engine"), text(row, "name"))).collect();
    let mut expect = vec![("redb", "publish_3c"), ("redb", "open_3c")];
    match words(&output).contains("skipped: PostgreSQL") {
        true => stoker_testing::skipped("the bench of PostgreSQL: it is not installed"),
        false => expect.extend([("postgres", "publish_3c"), ("postgres", "open_3c")]),
    }
    assert!(names.iter().map(|(a, b)| (a.as_str(), b.as_str())).eq(expect), "{names:?}");
    for row in rows {
        for field in ["stoker_ops_s", "raw_ops_s", "ratio", "p50_ms", "p99_ms", "raw_p99_ms"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
