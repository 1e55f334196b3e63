//! Runs the seeded simulations. One ring in release mode: a debug build gets through a tenth of the seeds. Whole clusters
//! as the tests are built: that costs no second build of everything, and the assertions of the nodes are on.

use crate::Failure;
use crate::workspace::{cargo, succeeds};

/// Hands the arguments to the `sim` binary as they are; it prints its own usage.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    let build = match args.first().map(String::as_str) {
        Some("cell" | "mutations") => "run --locked --package stoker-sim --bin sim --",
        _ => "run --release --locked --package stoker-sim --no-default-features --bin sim --",
    };
    command.args(build.split(' ')).args(args);
    if succeeds(&mut command) { Ok(()) } else { Err(Failure::Failed) }
}
