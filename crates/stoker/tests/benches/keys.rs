//! `stoker bench keys` from the outside: a tiny run against the real server, and what it prints.

use std::process::Command;

use serde_json::Value;

/// Small figures, so that it takes seconds; they say nothing about speed.
#[test]
fn a_tiny_run_puts_restarts_and_lists_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let args = "--json --count 2500 --connections 4 --ring 512MiB --memory 512MiB";
    let output = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["bench", "keys", "--dir"])
        .arg(dir.path())
        .args(args.split(' '))
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "keys");
    let [put, restart, list] = report["workloads"].as_array().unwrap().as_slice() else { panic!("{report}") };
    for (row, fields) in [
        (put, &["ops_s", "p50_ms", "p99_ms", "rss_bytes", "rss_max_bytes"][..]),
        (restart, &["stop_s", "start_s"]),
        (list, &["seconds", "rss_bytes", "rss_max_bytes"]),
    ] {
        for field in fields {
            assert!(row[*field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
    }
    assert_eq!((&put["count"], &list["pages"]), (&2500.into(), &3.into()));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
