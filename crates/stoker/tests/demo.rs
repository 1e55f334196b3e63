//! The demo passes, and says what it did.

use std::process::Command;

use serde_json::Value;

#[test]
fn two_nodes_die_and_no_byte_differs() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["demo", "--json", "--size", "96MiB", "--grace", "2s", "--dir"]).arg(dir.path());
    // What is meant for other nodes of this machine is not for these.
    command.env("STOKER_UP_NODES", "2").env("STOKER_UP_S3", "192.0.2.1:9000").env("STOKER_UP_NAME", "other");
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{}", String::from_utf8_lossy(&output.stdout));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["passed"], true);
    let steps: Vec<&str> =
        told["steps"].as_array().unwrap().iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(steps, ["start", "write", "kill", "read", "takeover", "rejoin", "elect", "read_again"]);
    assert_eq!(told["steps"][1]["receipt"]["copies"], 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it leaves nothing behind");
}
