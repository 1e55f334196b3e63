//! Leaves name records in rings (R6): here, and with as many peers as the class asks for, so that a name survives whatever the bytes
//! under it survive. (D54)

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stoker_format::{ChunkId, NameRecord, NodeId, RecordKind, VersionId};
use stoker_ring::{Put, Retention};
use stoker_schema::rows::{Drain, FileRow, HolderRow, Layout, VersionRow};
use stoker_store::{Buf, ErrorKind, Result, StoreError};

use super::copies::Parcel;
use super::message::{AppendHead, Seals, to_wire};
use super::{Protected, Summed};
use crate::core::Core;
use crate::name_record::Cut;
use crate::properties::Properties;
use crate::rings::NAME_INDEX;
use crate::volumes::Volume;
use crate::{clock, error, name_record};

/// Pause before a ring that was full is asked again, and how often that is done.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
const ROOM_LOOKS: u32 = 50;

/// Which peers have a record.
#[derive(Clone, Copy)]
pub(crate) enum Keepers<'k> {
    /// This node alone: the lake says the same.
    Nobody,
    /// Any: rows of the catalog tell every node that it is needed.
    Anybody,
    /// Those that hold the file: they know by their own dirty rows that it is needed.
    Holders(&'k [HolderRow]),
}

impl Core {
    /// Leaves a name record on a drive here, and with peers. It must be durable here; a peer that does not take it is done without,
    /// since the transaction that a record goes with is what counts. Peers keep it until what this gives is dropped: by then rows
    /// say that it is needed, or it is not.
    pub async fn leave_record(
        self: &Arc<Core>,
        volume: &Volume,
        id: VersionId,
        record: &NameRecord,
        keepers: Keepers<'_>,
    ) -> Result<Protected> {
        let fault =
            |fault: stoker_format::FormatError| StoreError::new(ErrorKind::Invalid, fault.to_string());
        record.check().map_err(fault)?;
        let retention = match Core::drain_of(volume) {
            Drain::Never => Retention::Never,
            _ => Retention::Dirty,
        };
        let (chunk, bytes) = (ChunkId::new(id, NAME_INDEX), record.encode());
        let put = Put {
            chunk,
            volume: volume.id,
            kind: RecordKind::Name,
            retention,
            payload: Buf::copy_of(&bytes),
            seal: None,
        };
        let mut puts = vec![put];
        self.vault.seal(&mut puts)?;
        let (bytes, seal) = (Bytes::from_owner(puts[0].payload.lend()), puts[0].seal.clone());
        let never = retention == Retention::Never;
        let hold = u64::from_le_bytes(clock::random()) | 1;
        let bytes = Summed { bytes, crc: None, is_claimed: false };
        let parcel = Parcel { chunk, never, bytes, seal, name: None, hold };
        let (here, nodes) =
            tokio::join!(self.rings.append_any(puts), self.send_record(volume, parcel, keepers));
        let left = Protected::name(self, id, hold, nodes);
        here.map(|_| left)
    }

    /// Leaves the record of a change that is made already. A full ring is waited for, since the change may be what makes room; and
    /// whatever comes of it, nobody is told that nothing happened.
    pub async fn leave_after(
        self: &Arc<Core>,
        volume: &Volume,
        id: VersionId,
        record: &NameRecord,
        keepers: Keepers<'_>,
    ) -> Result<Protected> {
        let mut looks = 0;
        loop {
            match self.leave_record(volume, id, record, keepers).await {
                Err(fault) if fault.kind == ErrorKind::Full && looks < ROOM_LOOKS => {
                    looks += 1;
                    tokio::time::sleep(ROOM_PAUSE).await;
                }
                Err(fault) => {
                    let message =
                        format!("the change was made, but no drive here took the record of it: {fault}");
                    return Err(StoreError::new(ErrorKind::Unavailable, message));
                }
                left => return left,
            }
        }
    }

    /// Sends a record to peers; says who took it.
    async fn send_record(
        self: &Arc<Core>,
        volume: &Volume,
        parcel: Parcel,
        keepers: Keepers<'_>,
    ) -> Vec<NodeId> {
        let need = self.class(volume).copies() - 1;
        match keepers {
            Keepers::Nobody => Vec::new(),
            Keepers::Anybody if need == 0 => Vec::new(),
            Keepers::Anybody => match self.copy_to_peers(volume, parcel, need, &[]).await {
                Ok(copies) => copies.iter().map(|copy| NodeId(copy.holder.node)).collect(),
                Err(fault) => {
                    tracing::debug!("a name record is here alone: {fault}");
                    Vec::new()
                }
            },
            Keepers::Holders(holders) => self.send_to_holders(volume, parcel, need, holders).await,
        }
    }

    async fn send_to_holders(
        &self,
        volume: &Volume,
        parcel: Parcel,
        need: usize,
        holders: &[HolderRow],
    ) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = Vec::new();
        for node in holders.iter().map(|holder| NodeId(holder.node)) {
            if node != self.node && !nodes.contains(&node) && !self.cell.is_suspect(node) {
                nodes.push(node);
            }
        }
        // Here it is of use only as long as a row says that this node holds the file.
        let is_here = holders.iter().any(|holder| holder.node == self.node.0);
        let need = if is_here { need } else { need + 1 };
        let head = AppendHead {
            chunk: to_wire(&parcel.chunk),
            volume: volume.id.0,
            never: parcel.never,
            session: self.session_id,
            hold: parcel.hold,
            name: None,
        };
        let seals = Seals::of(parcel.seal.as_deref(), None);
        let mut taken = Vec::new();
        for node in nodes {
            if taken.len() == need {
                break;
            }
            match self.cell.append_on(node, head.clone(), seals.clone(), parcel.bytes.clone()).await {
                Ok(_) => taken.push(node),
                Err(fault) => tracing::debug!(%node, "a name record is not there: {fault}"),
            }
        }
        taken
    }

    /// Leaves the record of a file as it was after a commit, in the place of an older one: its name, what it is made of, its
    /// properties or its holders changed without a write.
    pub async fn leave_put(
        self: &Arc<Core>,
        volume: &Volume,
        key: &[u8],
        file: &FileRow,
        seq: u64,
    ) -> Result<()> {
        self.leave_shard(volume, key, file, None, seq).await
    }

    /// The same of a shard of an open set, with its number there.
    pub async fn leave_shard(
        self: &Arc<Core>,
        volume: &Volume,
        key: &[u8],
        file: &FileRow,
        shard: Option<(u64, u32)>,
        seq: u64,
    ) -> Result<()> {
        let properties = Properties::decode(&file.properties)?;
        let (runs, parts) = match file.layout {
            Layout::Simple { .. } => (self.names.runs(file).await.map_err(error::catalog)?, Vec::new()),
            Layout::Rows | Layout::Sparse { .. } => {
                let rows = self.names.version_rows(file.version()).await.map_err(error::catalog)?;
                let parts = rows.first().map(|row| row.upload_parts.clone()).unwrap_or_default();
                (VersionRow::join(rows.iter()), parts)
            }
        };
        let cut = Cut { runs: Some(&runs), upload_parts: &parts };
        let mut put = name_record::put(volume.id, key, file, &properties, cut, seq);
        if let Some((set, number)) = shard {
            put = name_record::of_set(put, set, number);
        }
        let id = file.name_record.map_or(file.version(), VersionId);
        let is_clean = file.drain == Drain::Clean;
        let keepers = if is_clean { Keepers::Nobody } else { Keepers::Holders(&file.holders) };
        let _left = self.leave_after(volume, id, &put, keepers).await?;
        if is_clean {
            self.rings.mark_clean(vec![ChunkId::new(id, NAME_INDEX)]).await?;
        }
        Ok(())
    }

    /// Takes a record back that nothing refers to. Peers forget nothing that they keep for somebody, so that ends first.
    pub async fn retract(&self, id: VersionId, left: Protected) -> Result<()> {
        left.end().await;
        self.forget_record(id).await
    }

    /// Forgets a record everywhere.
    pub async fn forget_record(&self, id: VersionId) -> Result<()> {
        let record = [ChunkId::new(id, NAME_INDEX)];
        self.rings.delete(&record).await?;
        self.cell.tell_forget(&self.cell.others(), &record).await;
        Ok(())
    }
}
