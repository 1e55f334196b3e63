//! `stoker bench s3` from the outside: a tiny run against the real server, and what it prints.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["bench", "s3", "--dir"]).arg(dir).args(args);
    command.output().expect("the program starts")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (args, known) in [(["--only", "get_9m_c8"], "get_8m_c8"), (["--peers", "apache"], "seaweedfs")] {
        let output = bench(dir.path(), &args);
        assert_eq!(output.status.code(), Some(1));
        assert!(words(&output).contains(args[1]) && words(&output).contains(known), "{}", words(&output));
    }
}

/// Small figures, so that it takes seconds; they say nothing about speed.
#[test]
fn a_tiny_run_measures_every_kind_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(
        dir.path(),
        &[
            "--json",
            "--seconds",
            "0.1",
            "--rounds",
            "2",
            "--peers",
            "nginx",
            "--hot",
            "2MiB",
            "--cold",
            "32MiB",
            "--put",
            "8MiB",
            "--ring",
            "512MiB",
            "--memory",
            "512MiB",
            "--only",
            "get_64k_c8,get_8m_cold,put_1m_c8,put_64k_c32",
        ],
    );
    assert!(output.status.success(), "{}", words(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "s3");
    let names: Vec<&str> =
        report["workloads"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["get_8m_cold", "get_64k_c8", "put_1m_c8", "put_64k_c32"]);
    for row in report["workloads"].as_array().unwrap() {
        for field in ["stoker_mb_s", "p50_ms", "p99_ms"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
        let is_raw_measured = row["name"] != "get_64k_c8";
        assert_eq!(row["raw_mb_s"].is_number(), is_raw_measured, "{row}");
    }
    let put = &report["workloads"][2];
    assert!(put["written_bytes"].as_u64().unwrap() >= 1 << 20, "{put}");
    assert!(put["drained_bytes"].is_number(), "{put}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
