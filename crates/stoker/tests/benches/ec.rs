//! `stoker bench ec` from the outside: a tiny run, and what it prints.

use std::process::Command;

use serde_json::Value;

/// Small figures, so that it takes no time; they say nothing about speed.
#[test]
fn a_tiny_run_encodes_and_decodes_with_every_kernel() {
    let args = "bench ec --json --schemes 4+2 --chunk 64KiB --stripes 2 --rounds 1 --seconds-per-round 0.01";
    let output = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(args.split(' '))
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "ec");
    let rows = report["workloads"].as_array().unwrap();
    for job in ["encode", "decode 1 lost", "decode 2 lost"] {
        let portable = rows.iter().find(|row| row["kernel"] == "portable" && row["job"] == job);
        assert!(portable.is_some_and(|row| row["core_gb_s"].as_f64().unwrap() > 0.0), "{job} in {report}");
    }
    let has_isal = report["machine"]["isal"].as_bool().unwrap();
    assert_eq!(rows.iter().any(|row| row["ratio"].is_number()), has_isal, "ratios need ISA-L");
}

#[test]
fn a_scheme_that_is_none_is_refused() {
    for scheme in ["8", "40+2", "8+9"] {
        let output = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .args(["bench", "ec", "--schemes", scheme])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{scheme}");
    }
}
