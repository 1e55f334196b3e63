//! Brings back what rows say this node has and its drives do not, from whoever has it; until then this node is no holder.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use stoker_catalog::Row;
use stoker_catalog::kv::{Commit, Range};
use stoker_format::{ChunkId, NodeId, RecordKind, VersionId, VolumeId, crc32c};
use stoker_ring::Put;
use stoker_schema::rows::HolderRow;
use stoker_schema::rows::{FileRow, MissingChunk, MissingRow, RowValue, keys};
use stoker_store::{ErrorKind, Receipt, Result, StoreError};

use crate::cell::{Stored, Summed};
use crate::core::{Core, add};
use crate::inventory::Wanted;
use crate::volumes::Volume;
use crate::{clock, error};

/// Rows that are looked at together.
const PAGE: usize = 1_000;

impl Core {
    /// Brings back what this node lacks, and drops rows that nobody needs any more.
    pub(crate) async fn restore_missing(self: &Arc<Core>) -> Result<()> {
        let mut range = Range::prefix(keys::MISSING, PAGE);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let Some((version, node)) = keys::missing_parts(&row.key) else { continue };
                if self.check_open().is_err() {
                    return Ok(());
                }
                let now_ms = clock::now_ms();
                if node != self.node {
                    self.drop_row_of(node, version, row).await?;
                } else if self.cell.rebuilder.is_due(version, now_ms)
                    && let Err(fault) = self.restore(version, row).await
                {
                    tracing::warn!(%version, "a copy that is missing here cannot be brought back yet: {fault}");
                    self.cell.rebuilder.note_failed(version, now_ms);
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// Of a node that is down nothing is expected: what it held is protected again as a whole.
    async fn drop_row_of(&self, node: NodeId, version: VersionId, row: &Row) -> Result<()> {
        let view = self.cell.view();
        let is_over = view.is_down(node) || view.member(node).is_none();
        if is_over && self.cell.is_joined() && self.cell.is_mine(version) {
            self.drop_row(row).await?;
        }
        Ok(())
    }

    async fn drop_row(&self, row: &Row) -> Result<()> {
        let change = Commit::new().seq(row.key.clone(), row.seq).delete(row.key.clone());
        // Whoever changed it meanwhile knows better.
        self.catalog.commit(change).await.map_err(error::catalog).map(drop)
    }

    /// What this node is to have of a version, by its rows as they are now; none if nothing.
    async fn wanted_now(&self, version: VersionId, volume: VolumeId) -> Result<Option<Wanted>> {
        let copies = match self.volumes.by_id(volume).await? {
            Some(volume) => self.class(&volume).copies(),
            None => return Ok(None),
        };
        if !self.dirty_drives(version).await?.is_empty() {
            let one = self.dirty_version(version).await?;
            if let Some(wanted) = self.wanted_version(&one, |_| copies).await? {
                return Ok(Some(wanted));
            }
        }
        let parts = self.wanted_parts(|_| copies).await?;
        Ok(parts.into_iter().find(|wanted| wanted.version == version))
    }

    /// The numbers of drives here that count and that a dirty row of a version names.
    async fn dirty_drives(&self, version: VersionId) -> Result<Vec<usize>> {
        let drives: Vec<_> =
            self.rings.numbered().into_iter().filter(|(_, drive)| !drive.is_failed()).collect();
        let rows = drives.iter().map(|(_, drive)| keys::dirty(self.node, drive.id, version));
        let rows: Vec<Vec<u8>> = rows.collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let rows = self.catalog.get(&rows).await.map_err(error::catalog)?;
        Ok(drives.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|((at, _), _)| *at).collect())
    }

    async fn restore(self: &Arc<Core>, version: VersionId, row: &Row) -> Result<()> {
        let missing = MissingRow::of(row).map_err(error::catalog)?;
        let volume = VolumeId(missing.volume);
        // What is collected meanwhile must not come back.
        let _pin = self.pins.pin(version);
        let Some(wanted) = self.wanted_now(version, volume).await? else {
            // Drained, deleted, or held by others since.
            return self.drop_row(row).await;
        };
        let Some(volume) = self.volumes.by_id(volume).await? else { return self.drop_row(row).await };
        let sources: Vec<NodeId> = wanted.nodes.iter().copied().collect();
        let needed: HashSet<ChunkId> = wanted.chunks.iter().map(|(chunk, _)| *chunk).collect();
        for one in &missing.chunks {
            let chunk = one.chunk();
            if needed.contains(&chunk) && !self.has_copy(&chunk, one.len) {
                self.bring_missing(&volume, version, chunk, one.len, &sources).await?;
            }
        }
        // A row has room for so many. While anything is missing this node is no holder, so the rest takes the place of what is back.
        let left = self.still_missing(wanted, missing.more).await?;
        if !left.is_empty() {
            let next = MissingRow::new(volume.id, missing.since_ms, &left);
            let change = Commit::new().seq(row.key.clone(), row.seq).put(row.key.clone(), next.encode());
            tracing::info!(%version, left = left.len(), "some of what was missing of a version is here again");
            let changed = self.catalog.commit(change).await.map_err(error::catalog);
            self.inventory.look_again();
            return changed.map(drop);
        }
        self.drop_row(row).await?;
        add(&self.inventory.restored, 1);
        tracing::info!(%version, chunks = missing.chunks.len(), "what was missing of a version is here again");
        Ok(())
    }

    /// What this node is to have of a version and has not. `asks`: also where only the others can tell.
    async fn still_missing(self: &Arc<Core>, wanted: Wanted, asks: bool) -> Result<Vec<MissingChunk>> {
        let version = wanted.version;
        let (mut missing, mut doubtful) = (Vec::new(), Vec::new());
        self.sort_missing(wanted, &mut missing, &mut doubtful);
        if asks && !doubtful.is_empty() {
            let (lacking, is_sure) = self.lacking_by_peers(doubtful).await;
            if !is_sure {
                let message = format!("not every holder says what it has of version {version}");
                return Err(StoreError::new(ErrorKind::Unavailable, message));
            }
            missing.extend(lacking);
        }
        Ok(missing.into_iter().flat_map(|(_, chunks)| chunks).collect())
    }

    async fn bring_missing(
        self: &Arc<Core>,
        volume: &Volume,
        version: VersionId,
        chunk: ChunkId,
        len: u32,
        sources: &[NodeId],
    ) -> Result<()> {
        let _pin = self.pins.pin(chunk.version);
        let gone =
            || StoreError::new(ErrorKind::Corrupt, format!("no other copy of chunk {chunk} can be read"));
        let stored = self.read_peers(chunk, len as usize, sources).await?.ok_or_else(gone)?;
        let Stored { bytes: Summed { bytes, .. }, seal } = stored;
        let known = self.rings.drives().iter().find_map(|drive| drive.ring.stat(&chunk));
        // A sealed one may have been sealed anew elsewhere.
        if known.is_some_and(|info| {
            !info.sealed && info.len as usize == bytes.len() && info.crc != crc32c(&bytes)
        }) {
            return Err(StoreError::new(
                ErrorKind::Corrupt,
                format!("another copy of chunk {chunk} differs"),
            ));
        }
        // From here on nobody declares it clean.
        let _marks = self.marks.read().await;
        // On a drive which rows say has it: nobody would look for it elsewhere.
        let serving = |at: &usize| self.rings.drive(*at).is_some_and(|drive| drive.is_serving());
        let mut numbers = self.dirty_drives(version).await?;
        if numbers.is_empty() {
            numbers = self.part_drives(version).await?;
        }
        let mut numbers: Vec<usize> = numbers.into_iter().filter(serving).collect();
        numbers.sort_unstable();
        let Some(at) = numbers.first().copied() else {
            let message = "no drive that takes chunks is named by its rows";
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        };
        let mut payload = self.rings.write_buffer(bytes.len()).await;
        payload.set_len(0);
        payload.fill(&bytes);
        let _turn = self.rings.turn(&chunk).await;
        if !self.has_copy(&chunk, len) {
            let retention = Core::retention(volume);
            let kind = RecordKind::Chunk;
            let put = Put { chunk, volume: volume.id, kind, retention, payload, seal };
            self.rings.append(at, vec![put]).await?;
            self.inventory.note_sound(&chunk);
        }
        Ok(())
    }

    /// Drives here that hold a part of an unfinished upload.
    async fn part_drives(&self, version: VersionId) -> Result<Vec<usize>> {
        let mut ids: BTreeSet<[u8; 16]> = BTreeSet::new();
        self.each(keys::PARTS.to_vec(), |row| {
            let part = stoker_schema::rows::PartRow::of(row).map_err(error::catalog)?;
            if VersionId(part.version) == version {
                ids.extend(part.holders.iter().filter(|at| at.node == self.node.0).map(|at| at.drive));
            }
            Ok(())
        })
        .await?;
        let numbered = self.rings.numbered().into_iter();
        Ok(numbered.filter(|(_, drive)| ids.contains(&drive.id.0)).map(|(at, _)| at).collect())
    }

    /// Nodes that lack chunks of a version, each with how many.
    pub(crate) async fn lacking(&self, version: VersionId) -> Result<Vec<(NodeId, usize)>> {
        let mut nodes = Vec::new();
        self.each(keys::missing_all(version), |row| {
            if let Some((_, node)) = keys::missing_parts(&row.key) {
                nodes.push((node, MissingRow::of(row).map_err(error::catalog)?.chunks.len()));
            }
            Ok(())
        })
        .await?;
        Ok(nodes)
    }

    /// The receipt of a file as it is now: who lacks some of it is no holder.
    pub(crate) async fn receipt_now(
        &self,
        volume: &Volume,
        key: &[u8],
        file: &FileRow,
        seq: u64,
    ) -> Result<Receipt> {
        if file.drain == stoker_schema::rows::Drain::Clean {
            return Core::receipt(volume, key, file, seq);
        }
        if file.source.is_some() {
            // The lake has its bytes, so nobody sees to copies on drives: none is vouched for.
            return Core::receipt(volume, key, &FileRow { holders: Vec::new(), ..file.clone() }, seq);
        }
        let lacking = self.lacking(file.version()).await?;
        let holds = |holder: &HolderRow| !lacking.iter().any(|(node, _)| node.0 == holder.node);
        let holders = file.holders.iter().filter(|holder| holds(holder)).cloned().collect();
        Core::receipt(volume, key, &FileRow { holders, ..file.clone() }, seq)
    }
}
