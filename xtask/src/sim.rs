//! Runs the seeded simulations, as the tests are built: that costs no second build of everything, and the assertions of the nodes are on.
//! Where there are so many seeds that a second build pays, they get one: whole clusters with the same assertions, one ring in release mode.

use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// From so many seeds of whole clusters on, optimized code is built for them.
const LONG_RUN_SEEDS: u64 = 4_000;
/// The same of one ring, of which a seed takes longer.
const LONG_RUN_RING_SEEDS: u64 = 200;

fn seeds(args: &[String]) -> Option<u64> {
    args.iter().position(|arg| arg == "--seeds").and_then(|at| args.get(at + 1)?.parse().ok())
}

/// Hands the arguments to the `sim` binary as they are; it prints its own usage.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let done = match args.first().map(String::as_str) {
        Some("cell" | "mutations") if seeds(args).is_some_and(|seeds| seeds >= LONG_RUN_SEEDS) => {
            let build = "build --profile sim --locked --package stoker-sim --bin sim";
            succeeds(cargo().args(build.split(' ')))
                && succeeds(Command::new(built("sim", "sim")).current_dir(root()).args(args))
        }
        Some("cell" | "mutations") => as_tests(args),
        Some("replication" | "bugs") if seeds(args).is_some_and(|seeds| seeds < LONG_RUN_SEEDS) => {
            as_tests(args)
        }
        Some("ring") if seeds(args).is_some_and(|seeds| seeds < LONG_RUN_RING_SEEDS) => as_tests(args),
        _ => {
            let build = "run --release --locked --package stoker-sim --no-default-features --bin sim --";
            succeeds(cargo().args(build.split(' ')).args(args))
        }
    };
    if done { Ok(()) } else { Err(Failure::Failed) }
}

/// With the features that the whole workspace has, like the tests: built by itself everything below would have others.
fn as_tests(args: &[String]) -> bool {
    succeeds(cargo().args(["build", "--locked", "--workspace", "--bin", "sim"]))
        && succeeds(Command::new(built("debug", "sim")).current_dir(root()).args(args))
}
