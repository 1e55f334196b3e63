//! Tiers: lakes with names, second lakes of volumes, and what moves between them.
//!
//! ```text
//!                    claim on a lake key (R10) leaves a note ----+
//!                                                                v
//!   rings --drain--> first lake --------- copier (fenced rows) -----------> second lake
//!     ^                 |                                                      |
//!     +---- reads ------+------------ reads, when the first one is away -------+
//! ```
//!
//! - [`named`]: lakes as rows of the catalog, opened by name, opened anew when the row changes.
//! - [`lakes`]: what operators do with them, and a trial of everything that Stoker wants of a lake.
//! - [`replica`]: the second lake of a volume: how it is set, how far it lags, the round that looks after it.
//! - [`copier`]: one object to the second lake. What to do is decided in `stoker-tiers`.
//! - [`promote`]: the second lake becomes the volume's; what it lacks is named.
//! - [`fallback`]: bytes from the other lake, when the one that a row names does not have them.
//! - [`mover`]: files are staged, drained and deleted as rules say, which `stoker-tiers` decides; [`recency`] knows when they were opened.
//!
//! Every change of a second lake goes through a claimed row, as every change of the first one does.

mod copier;
mod fallback;
mod lakes;
mod mover;
pub(crate) mod named;
mod promote;
pub(crate) mod recency;
pub(crate) mod replica;

use std::sync::Arc;

use stoker_store::{Result, TierOrder, TierReport};

use crate::core::Core;

impl Core {
    /// Carries out what operators order about tiers.
    pub(crate) async fn tier_order(self: &Arc<Core>, order: TierOrder) -> Result<TierReport> {
        if !order.only_reads() {
            self.check_open()?;
        }
        match order {
            TierOrder::Lakes => self.lakes().await.map(TierReport::Lakes),
            TierOrder::LakeAdd { name, change } => {
                self.lake_add(&name, *change).await.map(|lake| TierReport::Lakes(vec![lake]))
            }
            TierOrder::LakeSet { name, change } => {
                self.lake_set(&name, *change).await.map(|lake| TierReport::Lakes(vec![lake]))
            }
            TierOrder::LakeCheck { name } => self.lake_check(&name).await.map(TierReport::Trials),
            TierOrder::LakeRemove { name } => self.lake_remove(&name).await.map(|()| TierReport::Done),
            TierOrder::Replicas { volume } => {
                self.replicas(volume.as_deref()).await.map(TierReport::Replicas)
            }
            TierOrder::ReplicaSet { volume, lake } => {
                self.replica_set(&volume, lake.as_deref()).await?;
                self.replicas(Some(&volume)).await.map(TierReport::Replicas)
            }
            TierOrder::Promote { volume, to } => {
                self.promote(&volume, &to).await?;
                self.replicas(Some(&volume)).await.map(TierReport::Replicas)
            }
            TierOrder::Lacking { volume, after } => {
                let (files, more) = self.lacking_files(&volume, after.as_deref()).await?;
                Ok(TierReport::Lacking(files, more))
            }
            TierOrder::PolicyPlan { text } => self.policy_plan(&text).await.map(TierReport::Plan),
            TierOrder::PolicySet { name, text } => {
                self.policy_set(&name, &text).await.map(|info| TierReport::Policies(vec![info]))
            }
            TierOrder::Policies => self.policies().await.map(TierReport::Policies),
            TierOrder::PolicyRemove { name } => self.policy_remove(&name).await.map(|()| TierReport::Done),
            TierOrder::PolicyMoves { name, after } => {
                let (moves, more) = self.policy_moves(&name, after).await?;
                Ok(TierReport::Moves(moves, more))
            }
        }
    }
}
