//! `cargo xtask clients`: real S3 clients against a real node, by `tests/clients/run.py`.

use std::path::PathBuf;
use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// What the suite ends with if the client programs could not be had.
const EXIT_NO_PROGRAMS: i32 = 3;

/// What is to be done if the client programs cannot be had: no network, no Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Say so and pass.
    Skip,
    /// Fail.
    Fail,
}

/// Builds the program and runs the suite; arguments go through as they are.
pub fn run(args: &[String]) -> Result<(), Failure> {
    run_or(args, Without::Fail)
}

/// The same, for a gate that has to be green on a machine without network too.
pub fn run_or(args: &[String], without: Without) -> Result<(), Failure> {
    // The gate has built it with its tests a moment ago. Built by itself it would have other features, and everything below it too.
    let is_built = without == Without::Skip && program().is_file();
    if !is_built && !succeeds(cargo().args(["build", "--package", "stoker", "--locked"])) {
        return Err(Failure::Failed);
    }
    let mut python = Command::new("python3");
    python.current_dir(root()).args(["-B", "tests/clients/run.py", "--stoker"]).arg(program()).args(args);
    match python.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(EXIT_NO_PROGRAMS) && without == Without::Skip => {
            eprintln!("xtask: skipped: real clients, because their programs cannot be had here");
            Ok(())
        }
        Err(error) if without == Without::Skip => {
            eprintln!("xtask: skipped: real clients, because python3 cannot be started: {error}");
            Ok(())
        }
        Ok(_) => Err(Failure::Failed),
        Err(error) => {
            eprintln!("xtask: cannot start python3: {error}");
            Err(Failure::Failed)
        }
    }
}

fn program() -> PathBuf {
    built("debug", "stoker")
}
