//! `stoker ring`: making and looking at the ring of a drive that no node uses; one file per verb.
//!
//! It must not know a node, a catalog or a network.

mod dump;
mod init;
mod snapshot;
mod stat;
mod torture;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;

use stoker_terminal::failure::Failure;
use stoker_terminal::{clock, failure, out, progress, rng, size};

/// The verbs of `stoker ring`.
#[derive(Subcommand)]
pub enum Verb {
    /// Make a new ring in a directory, in a file or on a block device.
    Init(init::Args),
    /// Show identity, segments, records and health of a ring that is not in use.
    Stat(stat::Args),
    /// Read every live record and check every block; exit code 1 if one is bad.
    Verify(verify::Args),
    /// Show segments, the records of one, or the header and bytes of a record.
    Dump(dump::Args),
    /// Write, read and delete at full speed until killed; for tests.
    #[command(hide = true)]
    Torture(torture::Args),
}

/// Runs a verb.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Init(args) => init::run(args),
        Verb::Stat(args) => stat::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Dump(args) => dump::run(args),
        Verb::Torture(args) => torture::run(args),
    }
}
