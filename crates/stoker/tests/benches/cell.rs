//! `stoker bench commit` and `stoker bench read` from the outside: tiny runs with two real nodes, and what they print.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, verb: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["bench", verb, "--dir"]).arg(dir).args(args);
    command.output().expect("the program starts")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Small figures, so that it takes seconds; they say nothing about speed.
fn tiny_run(verb: &str, names: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--json", "--seconds", "0.02", "--rounds", "1", "--size", "512MiB"];
    let output = bench(dir.path(), verb, &args);
    assert!(output.status.success(), "{}", words(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], verb);
    let rows = report["workloads"].as_array().unwrap();
    let found: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(found, names);
    for row in rows {
        for field in ["raw_mb_s", "stoker_mb_s", "ratio", "raw_p50_us", "stoker_p50_us", "stoker_p99_us"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    report
}

#[test]
fn unknown_names_and_small_rings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (verb, known) in [("commit", "commit_4m_qd16"), ("read", "read_cell_1m")] {
        let output = bench(dir.path(), verb, &["--workloads", "nothing"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(words(&output).contains("nothing") && words(&output).contains(known), "{}", words(&output));
        let output = bench(dir.path(), verb, &["--size", "64MiB"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(words(&output).contains("512 MiB"), "{}", words(&output));
    }
}

#[test]
fn a_tiny_run_commits_on_two_nodes_and_leaves_nothing_behind() {
    let names = [
        "commit_4m_qd1",
        "commit_4m_qd16",
        "publish_4m_qd1",
        "publish_4m_qd16",
        "commit_4m_qd1_tls",
        "commit_4m_qd16_tls",
    ];
    let report = tiny_run("commit", &names);
    for field in ["streams_mb_s", "tcp_leg_mb_s", "streams_p50_us", "tcp_leg_p50_us"] {
        assert!(report["workloads"][0][field].as_f64().unwrap() > 0.0, "{field}");
    }
}

#[test]
fn a_tiny_run_reads_from_everywhere_and_leaves_nothing_behind() {
    tiny_run("read", &["read_local_1m", "read_cell_1m", "read_lake_1m", "read_cell_1m_tls"]);
}
