//! Runs the seeded simulations. One ring in release mode: a debug build gets through a tenth of the seeds. Whole clusters
//! as the tests are built: that costs no second build of everything, and the assertions of the nodes are on.

use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// Hands the arguments to the `sim` binary as they are; it prints its own usage.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let done = match args.first().map(String::as_str) {
        // With the features that the whole workspace has, like the tests: built by itself everything below would have others.
        Some("cell" | "mutations") => {
            succeeds(cargo().args(["build", "--locked", "--workspace", "--bin", "sim"]))
                && succeeds(Command::new(built("sim")).current_dir(root()).args(args))
        }
        _ => {
            let build = "run --release --locked --package stoker-sim --no-default-features --bin sim --";
            succeeds(cargo().args(build.split(' ')).args(args))
        }
    };
    if done { Ok(()) } else { Err(Failure::Failed) }
}
