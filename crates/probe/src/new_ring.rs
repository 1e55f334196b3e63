//! Makes a ring as it is wanted.

use std::path::Path;

use stoker_format::{ClusterId, LABEL_LEN_MAX, Superblock};
use stoker_ring::{Drive, DriveKind, ErrorKind, InitOptions};

use crate::clock;
use crate::failure::Failure;

/// What a ring should be like; `None` leaves it to us.
#[derive(Default)]
pub struct NewRing {
    /// Bytes to use; a device is used whole by default.
    pub size: Option<u64>,
    /// Bytes per segment.
    pub segment_size: Option<u64>,
    /// What to make if there is nothing yet.
    pub kind: Option<DriveKind>,
    /// A display name.
    pub label: String,
    /// Owner.
    pub cluster: Option<ClusterId>,
    /// Destroy what is there.
    pub force: bool,
}

/// Makes a ring.
pub fn make(path: &Path, wanted: NewRing) -> Result<Superblock, Failure> {
    let kind = if path.exists() {
        Drive::kind_of(path).map_err(|e| Failure::io(path.display(), &e))?
    } else {
        wanted.kind.unwrap_or(DriveKind::Directory)
    };
    if wanted.label.len() > LABEL_LEN_MAX || wanted.label.contains('\0') {
        return Err(Failure::new(format!("a label has at most {LABEL_LEN_MAX} bytes"))
            .hint("choose a shorter --label"));
    }
    let size = match (wanted.size, kind) {
        (Some(size), _) => size,
        (None, DriveKind::Device) => 0,
        (None, _) => {
            return Err(Failure::new("the ring needs a size").hint("add --size, for example --size 64GiB"));
        }
    };
    // The superblock of a flat drive comes on top, so that the size asked for is the size of the segments.
    let segment_size = wanted.segment_size.unwrap_or_else(|| match size {
        0 => stoker_format::SEGMENT_SIZE_DEFAULT,
        size => stoker_ring::segment_size_for(size),
    });
    let options = InitOptions {
        cluster: wanted.cluster.unwrap_or(ClusterId::ZERO),
        size,
        segment_size,
        label: wanted.label,
        kind,
        force: wanted.force,
        ..InitOptions::default()
    };
    Drive::init(path, &options, clock::unix_ms()).map_err(|error| match error.kind {
        ErrorKind::Invalid => Failure::from(error).hint("change --size or --segment-size"),
        _ => error.into(),
    })
}
