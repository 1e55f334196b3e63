//! The task that keeps one standby up to date: what is being committed, from memory; what it missed, from
//! the tail; everything, if the tail does not reach back or the standby has what the primary has not.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redb::{Database, ReadTransaction, ReadableDatabase};
use stoker_format::NodeId;

use super::message::{
    APPEND_BYTES, APPEND_COMMITS_MAX, FromStandby, SnapshotHead, StandbyAsk, StandbyState, ToStandby,
};
use super::peers::{Batch, Peers, Work};
use crate::engine::embedded::lineage::{Lineage, Position};
use crate::engine::embedded::pieces::Pieces;
use crate::engine::embedded::tail::Entries;
use crate::engine::embedded::{file, guarded, tail};
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::wire::{self, Blob, Wire};

/// How long a link rests after a failure, so that a node that is gone is not asked all the time.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a standby may take for one answer. Taking in the end of a snapshot makes a whole file durable; whether commits wait
/// for a slow standby is decided elsewhere, and much sooner.
const CALL_MAX: Duration = Duration::from_secs(60);

/// One standby, seen from the primary.
pub(in super::super) struct Link {
    pub node: NodeId,
    pub wire: Arc<dyn Wire>,
    pub peers: Arc<Peers>,
    /// Weak, so that a link never keeps a closed file open.
    pub database: Weak<Database>,
    pub epoch: Epoch,
    /// Tells the writer that somebody may join.
    pub joinable: Box<dyn Fn() + Send + Sync>,
}

impl Link {
    pub(in super::super) async fn run(self) {
        let mut news = self.peers.news();
        loop {
            let done = match self.peers.work(self.node) {
                Work::Nothing => {
                    if news.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                Work::Ask => self.ask().await,
                Work::Batch(batch, after) => self.batch(&batch, after).await,
                Work::Tail(after) => self.tail(after).await,
                Work::Snapshot { diverged } => self.snapshot(diverged).await,
            };
            if let Err(error) = done {
                self.peers.failed(self.node, error.message);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn ask(&self) -> Result<()> {
        match self.call(StandbyAsk::State).await? {
            FromStandby::State(state) => self.judge(&state),
            other => Err(unexpected(&other)),
        }
    }

    async fn batch(&self, batch: &Batch, after: u64) -> Result<()> {
        let prev = match after == batch.after.seq {
            true => batch.after,
            false => Position { epoch: batch.epoch, seq: after },
        };
        let rest = batch.entries.iter().skip_while(|(seq, _)| *seq <= after);
        let mut bytes = 0;
        let piece = rest.take(APPEND_COMMITS_MAX).take_while(|(_, entry)| {
            let room = bytes < APPEND_BYTES;
            bytes += entry.len();
            room
        });
        self.append(prev, piece.map(|(_, entry)| Blob(entry.clone())).collect()).await
    }

    async fn tail(&self, after: u64) -> Result<()> {
        let missed = self.read(|snapshot| {
            let prev = Lineage::load(snapshot)?.position(after);
            Ok(tail::read(snapshot, after, APPEND_BYTES)?.map(|entries: Entries| (prev, entries)))
        })?;
        let Some((prev, entries)) = missed else {
            self.peers.snapshot_needed(self.node, false);
            return Ok(());
        };
        let entries = entries.into_iter().take(APPEND_COMMITS_MAX).map(|(_, entry)| Blob(entry)).collect();
        self.append(prev, entries).await
    }

    async fn append(&self, prev: Position, entries: Vec<Blob>) -> Result<()> {
        match self.call(StandbyAsk::Append { prev, entries }).await? {
            FromStandby::State(state) => self.judge(&state),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes note of how far the standby is, if it can be continued from there.
    fn judge(&self, state: &StandbyState) -> Result<()> {
        // What is on its way is not in the file yet.
        let held = self.peers.on_the_way(&state.position)
            || self
                .read(|snapshot| Ok(Lineage::load(snapshot)?.holds(&state.position, file::seq(snapshot)?)))?;
        if !held {
            tracing::info!(standby = %self.node, "a standby has another history and gets a snapshot");
            self.peers.snapshot_needed(self.node, true);
        } else if self.peers.moved_to(self.node, state.position.seq) {
            (self.joinable)();
        }
        Ok(())
    }

    /// Sends everything, out of one state of the file.
    async fn snapshot(&self, diverged: bool) -> Result<()> {
        let id = self.peers.snapshot_id();
        let snapshot = self.begin_read()?;
        let lineage = guarded(|| Lineage::load(&snapshot))?;
        let seq = guarded(|| file::seq(&snapshot))?;
        let head = SnapshotHead { id, seq, lineage, diverged };
        let mut sent = self.call(StandbyAsk::SnapshotBegin(head)).await?;
        let mut pieces = Pieces::new(&snapshot);
        let mut index = 0;
        while let FromStandby::State(_) = sent {
            let ask = match guarded(|| pieces.next())? {
                Some(piece) => StandbyAsk::SnapshotPiece { id, index, piece },
                None => StandbyAsk::SnapshotEnd { id, pieces: index },
            };
            let last = matches!(ask, StandbyAsk::SnapshotEnd { .. });
            index += 1;
            sent = self.call(ask).await?;
            if let (true, FromStandby::State(state)) = (last, &sent) {
                drop(pieces);
                return self.judge(state);
            }
        }
        Err(unexpected(&sent))
    }

    async fn call(&self, ask: StandbyAsk) -> Result<FromStandby> {
        let request = wire::encode(&ToStandby { epoch: self.epoch, ask });
        let answer = tokio::time::timeout(CALL_MAX, self.wire.call(request)).await;
        let answer = answer.map_err(|_| CatalogError::unavailable("the standby does not answer"))??;
        match wire::decode(&answer)? {
            FromStandby::Fenced(by) => {
                self.peers.fence(by);
                Err(CatalogError::unavailable(format!("the standby follows epoch {by}")))
            }
            FromStandby::Failed(error) => Err(error),
            answer => Ok(answer),
        }
    }

    fn begin_read(&self) -> Result<ReadTransaction> {
        let database = self.database.upgrade().ok_or_else(CatalogError::closed)?;
        database.begin_read().map_err(file::failed)
    }

    fn read<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T>) -> Result<T> {
        guarded(|| read(&self.begin_read()?))
    }
}

fn unexpected(answer: &FromStandby) -> CatalogError {
    CatalogError::unavailable(match answer {
        FromStandby::SnapshotLost => "the standby lost a snapshot half way",
        _ => "unexpected response type from the standby",
    })
}
