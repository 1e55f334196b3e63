//! Runs the seeded simulations. One ring in release mode: a debug build gets through a tenth of the seeds. Whole clusters
//! as the tests are built: that costs no second build of everything, and the assertions of the nodes are on. Where there are so
//! many seeds that a second build pays, they get one, with the same assertions.

use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// From so many seeds of whole clusters on, optimized code is built for them.
const LONG_RUN_SEEDS: u64 = 4_000;

fn is_long(args: &[String]) -> bool {
    let count = args.iter().position(|arg| arg == "--seeds").and_then(|at| args.get(at + 1)?.parse().ok());
    count.is_some_and(|count: u64| count >= LONG_RUN_SEEDS)
}

/// Hands the arguments to the `sim` binary as they are; it prints its own usage.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let done = match args.first().map(String::as_str) {
        Some("cell" | "mutations") if is_long(args) => {
            let build = "build --profile sim --locked --package stoker-sim --bin sim";
            succeeds(cargo().args(build.split(' ')))
                && succeeds(Command::new(built("sim", "sim")).current_dir(root()).args(args))
        }
        // With the features that the whole workspace has, like the tests: built by itself everything below would have others.
        Some("cell" | "mutations") => {
            succeeds(cargo().args(["build", "--locked", "--workspace", "--bin", "sim"]))
                && succeeds(Command::new(built("debug", "sim")).current_dir(root()).args(args))
        }
        _ => {
            let build = "run --release --locked --package stoker-sim --no-default-features --bin sim --";
            succeeds(cargo().args(build.split(' ')).args(args))
        }
    };
    if done { Ok(()) } else { Err(Failure::Failed) }
}
