//! `stoker ring init`: makes a new ring.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stoker_format::{ClusterId, LABEL_LEN_MAX, Superblock};
use stoker_ring::{Drive, DriveKind, ErrorKind, InitOptions};

use crate::failure::Failure;
use crate::{clock, out, size};

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

/// What a ring should be like; `None` leaves it to us.
#[derive(Default)]
pub struct Wish {
    /// Bytes to use; a device is used whole by default.
    pub size: Option<u64>,
    /// Bytes per segment.
    pub segment_size: Option<u64>,
    /// What to make if there is nothing yet.
    pub kind: Option<DriveKind>,
    /// A name for people.
    pub label: String,
    /// Owner.
    pub cluster: Option<ClusterId>,
    /// Destroy what is there.
    pub force: bool,
}

/// Makes a ring.
pub fn make(path: &Path, wish: Wish) -> Result<Superblock, Failure> {
    let kind = if path.exists() {
        Drive::kind_of(path).map_err(|e| Failure::io(path.display(), &e))?
    } else {
        wish.kind.unwrap_or(DriveKind::Directory)
    };
    if wish.label.len() > LABEL_LEN_MAX || wish.label.contains('\0') {
        return Err(Failure::new(format!("a label has at most {LABEL_LEN_MAX} bytes"))
            .hint("choose a shorter --label"));
    }
    let size = match (wish.size, kind) {
        (Some(size), _) => size,
        (None, DriveKind::Device) => 0,
        (None, _) => {
            return Err(Failure::new("the ring needs a size").hint("add --size, for example --size 64GiB"));
        }
    };
    // The superblock of a flat drive comes on top, so that the size asked for is the size of the segments.
    let segment_size = wish.segment_size.unwrap_or_else(|| match size {
        0 => stoker_format::SEGMENT_SIZE_DEFAULT,
        size => stoker_ring::segment_size_for(size),
    });
    let options = InitOptions {
        cluster: wish.cluster.unwrap_or(ClusterId::ZERO),
        size,
        segment_size,
        label: wish.label,
        kind,
        force: wish.force,
        ..InitOptions::default()
    };
    Drive::init(path, &options, clock::unix_ms()).map_err(|error| match error.kind {
        ErrorKind::Invalid => Failure::from(error).hint("change --size or --segment-size"),
        _ => error.into(),
    })
}

/// Makes a ring and says what was made.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let superblock = make(
        &args.dir,
        Wish {
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
