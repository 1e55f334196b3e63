//! Opens a drive: its ring, made if there is none, and its row in the catalog.

use std::path::Path;
use std::sync::Arc;

use stoker_catalog::kv::{Catalog, Commit, Outcome};
use stoker_ring::{DriveKind, InitOptions, OpenOptions, Pool, Ring};
use stoker_schema::rows::{DriveRow, DriveState, RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError};

use crate::drives::Workshop;
use crate::identity::Identity;
use crate::node::wait_for_catalog;
use crate::options::DriveOptions;
use crate::rings::{Drive, drive_row};
use crate::world::Tasks;
use crate::{clock, error};

fn make_ring(drive: &DriveOptions, identity: Identity) -> Result<()> {
    let path = &drive.path;
    let io = |fault: std::io::Error| {
        StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display()))
    };
    let kind = match path.exists() {
        true => stoker_ring::Drive::kind_of(path).map_err(io)?,
        false => DriveKind::Directory,
    };
    let size = match (drive.size_bytes, kind) {
        (Some(size), _) => size,
        (None, DriveKind::Device) => 0,
        (None, _) => {
            let message = format!("{}: there is no ring yet, and no size was given for one", path.display());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
    };
    let segment_size = match size {
        0 => stoker_format::SEGMENT_SIZE_DEFAULT,
        // A record is at most an eighth of a segment, and chunks should not be shorter than they have to be.
        size if size >= 256 << 20 => stoker_ring::segment_size_for(size).max(32 << 20),
        size => stoker_ring::segment_size_for(size),
    };
    let init = InitOptions {
        cluster: identity.cluster,
        node: identity.node,
        size,
        segment_size,
        kind,
        ..InitOptions::default()
    };
    stoker_ring::Drive::init(path, &init, clock::now_ms()).map_err(error::opening)?;
    Ok(())
}

/// Whether a file or device holds a ring. One that cannot be read may hold one: nothing is made there.
fn has_ring(path: &Path) -> Result<bool> {
    match stoker_ring::Drive::open_read_only(path) {
        Ok(_) => Ok(true),
        Err(fault) if fault.kind == stoker_ring::ErrorKind::Io => Err(error::opening(fault)),
        Err(_) => Ok(false),
    }
}

/// Opens the ring of a drive, and makes it if there is none.
async fn open_ring(drive: &DriveOptions, identity: Identity, open: OpenOptions) -> Result<Ring> {
    let is_new = match drive.path.is_dir() || !drive.path.exists() {
        true => !drive.path.join("superblock").exists(),
        false => !has_ring(&drive.path)?,
    };
    if is_new {
        make_ring(drive, identity)?;
    }
    let path = drive.path.clone();
    let opened = tokio::task::spawn_blocking(move || Ring::open(&path, open)).await;
    let closed = |fault: tokio::task::JoinError| StoreError::new(ErrorKind::Closed, fault.to_string());
    let ring = opened.map_err(closed)?.map_err(error::opening)?;
    if let Ok(status) = ring.status().await
        && let Some(why) = status.io_fallback
    {
        let advice = "reads and writes cost more CPU; `stoker doctor` says how to allow it";
        tracing::warn!(drive = %drive.path.display(), "{why}: {advice}");
    }
    Ok(ring)
}

/// Opens a drive, makes its ring if there is none, and has the catalog know it as one of this node. Its records must be able
/// to hold so many bytes.
pub(crate) async fn open_drive(
    drive: &DriveOptions,
    workshop: &Workshop,
    pool: &Arc<Pool>,
    catalog: &Arc<dyn Catalog>,
    record_min: u32,
) -> Result<Drive> {
    let (identity, memory) = (workshop.identity, &workshop.memory);
    let settings = stoker_ring::Settings {
        index_bytes_max: memory.index_bytes,
        tables_bytes_max: memory.tables_bytes,
        ..workshop.ring.clone()
    };
    let open = OpenOptions { settings, cluster: Some(identity.cluster), pool: Some(pool.clone()) };
    let ring = match &workshop.opener {
        Some(opener) => {
            let (ring, driver) = (opener.0)(&drive.path, open).map_err(error::ring)?;
            Tasks::new(workshop.world.clone()).spawn(driver);
            ring
        }
        None => open_ring(drive, identity, open).await?,
    };
    crate::jobs::unpin_leftovers(&ring).await.map_err(error::ring)?;
    let record_max = ring.record_len_max();
    if record_max < record_min as usize {
        let message = format!(
            "{}: its ring takes records of {record_max} bytes, and chunks of this node have {record_min}: give it a larger --size, \
             in a folder without a ring",
            drive.path.display()
        );
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    let status = ring.status().await.map_err(error::ring)?;
    let superblock = status.superblock;
    let key = keys::drive(superblock.drive);
    let row = loop {
        let known = catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let row = match known.as_ref().map(DriveRow::of).transpose().map_err(error::catalog)? {
            Some(row) if row.node != identity.node.0 => {
                let message =
                    format!("{}: this drive belongs to another node of the cluster", drive.path.display());
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            Some(row) if row.ring == superblock.ring.0 && row.state == DriveState::Live => row,
            Some(row) => drive_row(identity.node, superblock.ring.0, row.incarnation + 1),
            None => drive_row(identity.node, superblock.ring.0, superblock.incarnation.max(1)),
        };
        let commit = Commit::new().unchanged(key.clone(), known.as_ref()).put(key.clone(), row.encode());
        match catalog.commit(commit).await {
            Ok(Outcome::Done { .. }) => break row,
            Ok(Outcome::Failed { .. }) => {
                let message = "two nodes open the same drive at once";
                return Err(StoreError::new(ErrorKind::Conflict, message));
            }
            Err(fault) => wait_for_catalog(fault).await?,
        }
    };
    let bytes = superblock.segment_size * u64::from(superblock.segment_count);
    Ok(Drive::new(ring, drive.path.clone(), superblock.drive, row, bytes))
}
