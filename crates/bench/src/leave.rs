//! `stoker bench leave`: writes into a ring, says so, and waits for the kill that leaves its segments open.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use super::subject::Subject;
use super::workload::{Job, Limit, Mix, Order};
use crate::failure::Failure;
use crate::{out, size};

/// What is written: sizes, depths and shares in eighths. Mostly chunks, and some of what is packed into batches.
const PARTS: [(usize, usize, u64); 3] = [(4 << 20, 8, 6), (64 << 10, 16, 1), (4 << 10, 64, 1)];

/// Arguments of `bench leave`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the ring is.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Payload bytes to write.
    #[arg(long, value_parser = size::parse)]
    bytes: u64,
}

/// Writes, prints `ready`, waits until killed or until stdin ends, which it does when the parent is gone.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut subject = Subject::open(&args.dir, 0)?;
    subject.mark_all_clean()?;
    for (len, depth, eighths) in PARTS {
        let job = Job { len, depth, mix: Mix::Writes, order: Order::Sequential };
        subject.equip(&job);
        subject.round(&job, Limit::Bytes(args.bytes / 8 * eighths))?;
    }
    out::line("ready")?;
    let _ = std::io::stdin().read(&mut [0]);
    // The parent is gone: there is nobody left to measure, and nothing worth closing.
    std::process::exit(1);
}
