//! Leases: where local readers find chunks on the drives (R4). The rings say what may be shown; here is decided whether
//! the volume wants it.
//!
//! A lease is a read-only descriptor of a segment, a place in it and the checksums of its blocks. The reader reads the drive itself and compares;
//! no byte goes through this process. It needs no end: a segment that was leased is unlinked and replaced when it is freed, never written again
//! in place, so an old descriptor shows the old bytes for as long as somebody has it. What a reader cannot lease (a hole, a chunk of another
//! node or of the lake, too many descriptors) it asks for as always; the answer says how far that goes, so that it does not ask for each chunk.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use futures_util::StreamExt;
use stoker_format::VolumeId;
use stoker_ring::{ErrorKind as RingKind, Lease};
use stoker_store::{
    ErrorKind, LEASE_DESCRIPTORS_MAX, LEASE_EXTENTS_MAX, LeaseExtent, Leased, Leases, NoLease, Result,
    StoreError,
};

use crate::core::{Core, add};
use crate::reader::{ChunkOrHole, LOOKS_MAX, NodeFile, Slice, layout_at};
use crate::volumes::Volume;

/// Chunks that are looked up at the same time for one answer.
const LOOKUPS: usize = 16;

impl NodeFile {
    /// Leases from the chunk at `offset` on, up to the first hole, or chunk that cannot be leased.
    pub(crate) async fn lease_range(&self, offset: u64, len: u64) -> Result<Leased> {
        let core = self.core();
        // Asked each time: an open file must not outlive a change of the policy.
        let volume = core.volumes.by_id(self.volume()).await?;
        if core.vault.is_encrypted(self.volume()) {
            return Ok(Leased::never(NoLease::Volume));
        }
        // Whoever reads drives by themselves passes no ceiling.
        if core.admission.shares.has_ceiling(self.work()) {
            return Ok(Leased::never(NoLease::Volume));
        }
        if !volume.is_some_and(|volume| volume.policy.leases) {
            return Ok(Leased::never(NoLease::Volume));
        }
        let end = offset.saturating_add(len);
        if let Some(ChunkOrHole::Hole { end }) = layout_at(self.runs(), offset, 1) {
            // Zeros are on no drive; whoever reads asks for them, and for leases again behind them.
            return Ok(Leased::Refused { reason: NoLease::NotOnDrive, until: end });
        }
        let mut at = offset;
        let slices = std::iter::from_fn(|| {
            let found = layout_at(self.runs(), at, 1).filter(|_| at < end)?;
            at = found.end();
            match found {
                ChunkOrHole::Chunk(slice) => Some(slice),
                // Extents follow one another without a gap.
                ChunkOrHole::Hole { .. } => None,
            }
        });
        let slices: Vec<Slice> = slices.take(LEASE_EXTENTS_MAX).collect();
        let lease = |slice: Slice| async move { (slice, core.lease_chunk(&slice, self.volume()).await) };
        let mut found = std::pin::pin!(futures_util::stream::iter(slices).map(lease).buffered(LOOKUPS));
        let mut gathered = Gathered::default();
        while let Some((slice, lease)) = found.next().await {
            match lease {
                Ok(lease) => {
                    if !gathered.add(&slice, lease)? {
                        break;
                    }
                }
                Err(reason) if gathered.leases.extents.is_empty() => {
                    let until = slice.chunk_start + slice.chunk_len as u64;
                    return Ok(Leased::Refused { reason, until });
                }
                Err(_) => break,
            }
        }
        if gathered.leases.extents.is_empty() {
            return Ok(Leased::never(NoLease::NotOnDrive));
        }
        add(&core.stats.leases, gathered.leases.extents.len() as u64);
        Ok(Leased::Granted(gathered.leases))
    }
}

/// Leases of an answer; a segment file is opened for every chunk in it, and goes out once.
#[derive(Default)]
struct Gathered {
    leases: Leases,
    /// Device and inode of each descriptor: of segments only the files are told apart, numbers are used again.
    files: Vec<(u64, u64)>,
}

impl Gathered {
    /// False if there is no room for another descriptor.
    fn add(&mut self, slice: &Slice, lease: Lease) -> Result<bool> {
        let file = File::from(lease.file);
        let meta = file.metadata().map_err(|fault| {
            StoreError::new(ErrorKind::Unavailable, format!("a segment cannot be looked at: {fault}"))
        })?;
        let identity = (meta.dev(), meta.ino());
        let descriptor = match self.files.iter().position(|known| *known == identity) {
            Some(known) => known,
            None if self.files.len() == LEASE_DESCRIPTORS_MAX => return Ok(false),
            None => {
                self.files.push(identity);
                self.leases.descriptors.push(file.into());
                self.files.len() - 1
            }
        };
        self.leases.extents.push(LeaseExtent {
            offset: slice.chunk_start,
            len: lease.len,
            descriptor,
            at: lease.offset,
            table: lease.table,
        });
        Ok(true)
    }
}

impl Core {
    /// A lease on a whole chunk, or why there is none.
    async fn lease_chunk(&self, slice: &Slice, volume: VolumeId) -> std::result::Result<Lease, NoLease> {
        for _ in 0..LOOKS_MAX {
            let Some(drive) = self.rings.find(&slice.chunk, slice.chunk_len) else { break };
            // A copy by reference may come from a volume that does not allow this: its segments are not shown.
            let foreign = |info: stoker_ring::RecordInfo| info.volume != volume;
            if drive.ring.stat(&slice.chunk).is_some_and(foreign) {
                return Err(NoLease::Shared);
            }
            match drive.ring.lease(slice.chunk).await {
                Ok(lease) if lease.len as usize == slice.chunk_len => return Ok(lease),
                Ok(_) => return Err(NoLease::Shared),
                // Moved or dropped between the look and the lease.
                Err(fault) if fault.kind == RingKind::NotFound => continue,
                Err(fault) if fault.kind == RingKind::Invalid => return Err(NoLease::Shared),
                Err(fault) => {
                    // An ordinary read will meet the same trouble and tell.
                    tracing::debug!(chunk = %slice.chunk, "no lease: {fault:?}");
                    return Err(NoLease::NotOnDrive);
                }
            }
        }
        Err(NoLease::NotOnDrive)
    }

    /// Gives a volume segments of its own on every drive if it allows leases, or ends that. A ring that has too many such
    /// volumes already says no: then chunks there are read through the door as before.
    pub async fn settle_leases(&self, volume: &Volume) {
        self.set_leasable(volume, volume.policy.leases && !self.vault.is_encrypted(volume.id)).await;
    }

    /// The same for all volumes: after a start, and when one that is gone left room.
    pub async fn settle_all_leases(&self) -> Result<()> {
        for volume in self.volumes.all().await? {
            self.settle_leases(&volume).await;
        }
        Ok(())
    }

    /// Ends what a volume had.
    pub async fn end_leases(self: &Arc<Core>, volume: &Volume) -> Result<()> {
        self.set_leasable(volume, false).await;
        self.settle_all_leases().await
    }

    async fn set_leasable(&self, volume: &Volume, leasable: bool) {
        for drive in self.rings.drives() {
            match drive.ring.set_leasable(volume.id, leasable).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::debug!(volume = volume.name, drive = %drive.path.display(), "no segments of its own");
                }
                Err(fault) => tracing::debug!(volume = volume.name, "leases: {fault:?}"),
            }
        }
    }
}
