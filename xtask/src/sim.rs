//! Runs the seeded simulation. Release mode always: a debug build gets through a tenth of the seeds.

use crate::Failure;
use crate::workspace::{cargo, succeeds};

/// Hands the arguments to the `sim` binary as they are; it prints its own usage.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    command.args("run --release --locked --package stoker-sim --bin sim --".split(' ')).args(args);
    if succeeds(&mut command) { Ok(()) } else { Err(Failure::Failed) }
}
