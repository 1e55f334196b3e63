//! Builds the release before this one and upgrades a cell of it, node by node, under load.
//!
//! `PREVIOUS` names its commit. A new release moves it; nothing else does, so that every change of a form is tried against what people run.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// The commit of the release before.
const PREVIOUS: &str = "5d71c986447b969d3d76a4bbd45b53c81877c1e8";

/// Builds it in a folder of its own, and runs the test that needs it.
pub fn run(args: &[String]) -> Result<(), Failure> {
    if let Some(arg) = args.first() {
        return Err(Failure::Usage(format!("upgrade: takes no arguments, got `{arg}`")));
    }
    let target = built("previous", "");
    let source = target.join("source");
    if !check_out(&source) {
        eprintln!(
            "upgrade: commit {PREVIOUS} cannot be had here; a shallow clone does not have it (git fetch --unshallow)"
        );
        return Err(Failure::Failed);
    }
    let mut build = cargo();
    build.current_dir(&source).env("CARGO_TARGET_DIR", &target);
    let program = target.join("debug/stoker");
    let passed = succeeds(build.args(["build", "--locked", "--package", "stoker", "--bin", "stoker"]))
        && succeeds(
            cargo()
                .args(["test", "--workspace", "--locked", "--test", "faults", "a_cell_is_upgraded"])
                .env("STOKER_PREVIOUS", program),
        );
    if passed { Ok(()) } else { Err(Failure::Failed) }
}

/// Puts its files where they are built. Those that are there already keep their time, so that nothing is built twice.
fn check_out(source: &Path) -> bool {
    let is_there = std::fs::read_to_string(source.join(".commit")).is_ok_and(|commit| commit == PREVIOUS);
    if is_there {
        return true;
    }
    let _ = std::fs::remove_dir_all(source);
    if let Err(error) = std::fs::create_dir_all(source) {
        eprintln!("upgrade: {}: {error}", source.display());
        return false;
    }
    let archive = source.join("source.tar");
    let mut git = Command::new("git");
    git.current_dir(root()).args(["archive", "--output"]).arg(&archive).arg(PREVIOUS);
    succeeds(&mut git)
        && succeeds(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(source))
        && std::fs::write(source.join(".commit"), PREVIOUS).is_ok()
}
