//! `stoker up`: starts what there is on this machine, which today is one ring.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stoker_format::ClusterId;
use stoker_ring::{OpenOptions, Ring, Status, SyncMode};

use crate::failure::Failure;
use crate::ring::{Wish, make};
use crate::sys::StopSignals;
use crate::{out, size};

/// Share of the free space that a new ring takes, in percent.
const FREE_SHARE: u64 = 10;
const SIZE_MIN: u64 = 2 << 30;
const SIZE_MAX: u64 = 64 << 30;

/// Arguments of `up`.
#[derive(clap::Args)]
pub struct Args {
    /// Where data is kept; the ring is in `ring` below it.
    #[arg(long, value_name = "PATH", default_value = "stoker-data")]
    dir: PathBuf,
    /// Size of the ring, if it has to be made; by default 10 % of the free space, at least 2GiB, at most 64GiB.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Refuse a ring of another cluster than this; a new ring is given to it.
    #[arg(long, value_name = "ID")]
    cluster: Option<ClusterId>,
    /// Open, say what is there, and stop.
    #[arg(long)]
    check: bool,
    /// Print one line of JSON when ready: dir, ring (its id), bytes, pid.
    #[arg(long)]
    json: bool,
}

/// Makes or opens the ring, waits to be stopped, closes it.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    // Before any thread starts, so that all of them leave these signals to us.
    let signals = StopSignals::hold();
    let path = args.dir.join("ring");
    let is_new = !path.join("superblock").exists();
    if is_new {
        let size = match args.size {
            Some(size) => size,
            None => size_for(&args.dir)?,
        };
        make(&path, Wish { size: Some(size), cluster: args.cluster, ..Wish::default() })?;
    }
    let ring = Ring::open(&path, OpenOptions { cluster: args.cluster, ..OpenOptions::default() })?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().map_err(|e| Failure::io("runtime", &e))?;
    let status = runtime.block_on(ring.status())?;
    tell(args, &path, &status, is_new)?;
    if !args.check {
        let signal = signals.wait();
        out::say(format!("signal {signal}: closing the ring"));
    }
    runtime.block_on(ring.close())?;
    Ok(ExitCode::SUCCESS)
}

/// A tenth of what is free, within bounds; refuses where not even the least fits.
fn size_for(dir: &Path) -> Result<u64, Failure> {
    let absolute = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let (free, _) = stoker_ring::disk_space(existing).map_err(|e| Failure::io(existing.display(), &e))?;
    if free < SIZE_MIN {
        let (free, need) = (size::human(free), size::human(SIZE_MIN));
        let cause = format!("{} has {free} free, a ring takes at least {need}", existing.display());
        return Err(Failure::new(cause).hint("free some space, or choose --dir or a --size"));
    }
    Ok(share_of(free))
}

fn share_of(free: u64) -> u64 {
    (free / 100 * FREE_SHARE).clamp(SIZE_MIN, SIZE_MAX)
}

fn tell(args: &Args, path: &Path, status: &Status, is_new: bool) -> Result<(), Failure> {
    let superblock = &status.superblock;
    let bytes = superblock.segment_size * u64::from(superblock.segment_count);
    if args.json {
        return out::json(&json!({
            "dir": args.dir.display().to_string(),
            "ring": superblock.ring.to_string(),
            "bytes": bytes,
            "pid": std::process::id(),
        }));
    }
    let (origin, recovery) = (if is_new { "made just now" } else { "opened" }, status.recovery);
    let direct = if status.direct { "O_DIRECT" } else { "no O_DIRECT here: through the page cache" };
    let sync = match status.sync {
        SyncMode::Dsync => "durable by RWF_DSYNC",
        SyncMode::Flush => "durable by fdatasync",
    };
    let fallback = status.io_fallback.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    let segments = status.segments;
    out::fields(&[
        ("ring", format!("{} at {}, {}, {origin}", superblock.ring, path.display(), size::human(bytes))),
        ("drive", format!("{}, {direct}, {sync}{fallback}", status.io_engine)),
        (
            "segments",
            format!(
                "{} free, {} open, {} closed, {} to be written with zeroes in the background",
                segments.free, segments.open, segments.closed, segments.unprepared
            ),
        ),
        (
            "records",
            format!(
                "{} live, {} to keep; {} torn writes and {} damaged segments found",
                out::count(status.records as u64),
                size::human(status.keep_bytes),
                recovery.torn,
                recovery.damaged
            ),
        ),
        ("memory", format!("at most {}", size::human(status.memory_bytes_max as u64))),
    ])?;
    out::say("");
    out::say(
        "This is all there is today: the log on one drive. There are no gateways (S3, NFS, FUSE, Python) yet,",
    );
    out::say("no second copy on another node, and nothing is drained to a lake.");
    if !args.check {
        out::say("Stop with Ctrl-C.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::share_of;

    #[test]
    fn a_tenth_of_the_free_space_within_bounds() {
        let gb = 1_000_000_000;
        for (free, size) in
            [(3 << 30, 2 << 30), (10 * gb, 2 << 30), (100 * gb, 10 * gb), (10_000 * gb, 64 << 30)]
        {
            assert_eq!(share_of(free), size);
        }
    }
}
