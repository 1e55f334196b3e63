//! Orders that only the node which they are about can carry out: sent there, answered here.

use std::sync::Arc;

use stoker_format::NodeId;
use stoker_store::{ErrorKind, Order, Rebuild, Report, Result, StoreError};

use super::Cell;
use crate::core::Core;

impl Cell {
    /// The share that a node has in rebuilds.
    pub(super) async fn rebuild_of(&self, node: NodeId) -> Result<Rebuild> {
        match self.order_soon(node, Order::Rebuild).await? {
            Report::Rebuild(rebuild) => Ok(rebuild),
            _ => Err(StoreError::new(ErrorKind::Invalid, format!("node {node} gave another answer"))),
        }
    }
}

impl Core {
    /// Carries out what concerns this node alone.
    pub(crate) async fn carry_out_here(self: &Arc<Core>, order: Order) -> Result<Report> {
        match order {
            Order::Rebuild => Ok(Report::Rebuild(self.rebuild_here())),
            Order::Drives { .. } => self.drives_here().await.map(Report::Drives),
            Order::DriveAdd { path, size_bytes, .. } => {
                let core = self.clone();
                // To its end even if whoever asked goes away.
                let add = async move { core.drive_add(&path, size_bytes).await };
                self.to_the_end(add).await.map(Report::Drives)
            }
            Order::DriveRemove { drive, force, .. } => {
                self.drive_remove(&drive, force).await.map(Report::Drives)
            }
            Order::DriveCordon { drive, cordoned, .. } => {
                self.drive_cordon(&drive, cordoned).await.map(Report::Drives)
            }
            Order::Measures { .. } => Ok(Report::Measures(Box::new(self.measures_here().await?))),
            Order::History { since_ms, every_ms, .. } => Ok(self.history_here(since_ms, every_ms)),
            Order::DriveLosses { drive, .. } => self.drive_losses(&drive).await.map(Report::Lost),
            Order::Fabric { to, .. } => self.fabric_here(&to).await,
            Order::QosSeen => Ok(Report::QosSeen(self.seen_here())),
            Order::QosShares(parts) => {
                self.admission.shares.take_parts(parts);
                Ok(Report::Done)
            }
            other => {
                let message = format!("one node does not ask this of another: {other:?}");
                Err(StoreError::new(ErrorKind::Invalid, message))
            }
        }
    }
}
