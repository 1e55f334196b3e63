//! `stoker ring init`: makes a new ring.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use stoker_format::ClusterId;
use stoker_probe::new_ring::{NewRing, make};
use stoker_ring::DriveKind;

use crate::failure::Failure;
use crate::{out, size};

/// Arguments of `ring init`.
#[derive(clap::Args)]
pub struct Args {
    /// Where: a directory (made if it is not there), a file, or a block device.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// How much to use, such as 64GiB or 500GB; a block device is used whole by default.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Bytes per segment; by default 256MiB, less for small rings.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    segment_size: Option<u64>,
    /// Make one large file instead of a directory, if PATH is not there yet.
    #[arg(long)]
    file: bool,
    /// A name for people.
    #[arg(long, default_value = "")]
    label: String,
    /// Cluster that the ring belongs to, 32 hex digits.
    #[arg(long, value_name = "ID")]
    cluster: Option<ClusterId>,
    /// Destroy what is there.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Makes a ring and says what was made.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let superblock = make(
        &args.dir,
        NewRing {
            size: args.size,
            segment_size: args.segment_size,
            kind: args.file.then_some(DriveKind::File),
            label: args.label.clone(),
            cluster: args.cluster,
            force: args.force,
        },
    )?;
    let bytes = superblock.segment_size * u64::from(superblock.segment_count);
    if args.json {
        out::json(&json!({
            "dir": args.dir.display().to_string(),
            "ring": superblock.ring.to_string(),
            "drive": superblock.drive.to_string(),
            "cluster": superblock.cluster.to_string(),
            "label": superblock.label,
            "bytes": bytes,
            "segment_size": superblock.segment_size,
            "segment_count": superblock.segment_count,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (count, each) = (superblock.segment_count, size::human(superblock.segment_size));
    out::line(format!(
        "made ring {} at {}: {} in {count} segments of {each}",
        superblock.ring,
        args.dir.display(),
        size::human(bytes),
    ))?;
    out::say("The segments are written with zeroes in the background once the ring is opened.");
    Ok(ExitCode::SUCCESS)
}
