//! Makes this node the one that serves the catalog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::CatalogError;
use stoker_catalog::Wire;
use stoker_catalog::engine::PromoteOptions;
use stoker_format::NodeId;
use stoker_store::{CatalogPromotion, ErrorKind, Result, StoreError, Subject};

use super::message::{Answer, Ask};
use super::{CatalogHost, Role};
use crate::error;
use crate::ways::StandbyWire;

/// How long another standby may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Pause before a node is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// Most nodes that are asked besides the standbys that this one knows.
const ASKED_MAX: usize = 32;

/// The way to a node that may have come back a moment ago: it is tried until the answer is there or nobody waits any more.
/// Whatever is asked for a promotion may be asked twice.
struct Patient(StandbyWire);

impl Wire for Patient {
    fn call(&self, request: Vec<u8>) -> stoker_catalog::BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(async move {
            loop {
                match self.0.call(request.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        })
    }
}

/// A standby that lacks something, or cannot know, is not promoted; everything else is a failure.
fn not_promoted(fault: CatalogError) -> StoreError {
    let is_refused = fault.kind == stoker_catalog::ErrorKind::Invalid;
    let fault = error::catalog(fault);
    if is_refused { StoreError { subject: Subject::Promotion, ..fault } } else { fault }
}

impl CatalogHost {
    /// Promotes the standby here. Refused unless it has every acknowledged commit, or the loss is accepted.
    pub async fn promote(self: &Arc<CatalogHost>, accept_loss: bool) -> Result<CatalogPromotion> {
        let _alone = self.promoting.lock().await;
        if let Some(replica) = self.replica() {
            return self.promote_replica(&replica, accept_loss).await;
        }
        let Some(standby) = self.standby() else {
            let message = "this node keeps the catalog already";
            return Err(StoreError::new(ErrorKind::Conflict, message));
        };
        let before = self.holder();
        let others = self.others();
        let seen_seq = self.probe(&others).await;
        let report = standby.report().map_err(error::catalog)?;
        let own = self.identity.node;
        let asked = report.known.iter().chain(others.iter().take(ASKED_MAX)).filter(|node| **node != own);
        let ways: BTreeMap<NodeId, Arc<dyn Wire>> = asked
            .map(|node| {
                let way = StandbyWire { node: *node, transport: self.transport.clone() };
                // Only who must be asked is waited for; the node that is lost would take all the time there is.
                let way: Arc<dyn Wire> = match report.known.contains(node) {
                    true => Arc::new(Patient(way)),
                    false => Arc::new(way),
                };
                (*node, way)
            })
            .collect();
        let options = PromoteOptions { node: own, seen_seq, accept_loss, timeout: ANSWER_MAX };
        let promotion = standby.promote(&options, &ways).await.map_err(not_promoted)?;
        self.set_role(Role::Between);
        self.adopt(promotion.epoch);
        if let Err(fault) = self.serve() {
            // The file is that of a catalog now, and opens as one at the next start.
            let why = format!("its catalog was promoted and could not be opened: {}", fault.message);
            self.replaced.send_replace(Some(why));
            return Err(fault);
        }
        if self.members.get().is_some() {
            self.care_for_standbys();
        }
        let epoch = self.epoch();
        tracing::warn!("this node keeps the catalog from now on, in epoch {epoch}");
        Ok(CatalogPromotion {
            epoch: epoch.to_string(),
            seq: promotion.seq,
            before: before.to_string(),
            loss: promotion.loss,
        })
    }

    /// Lets a standby go, wherever the catalog is.
    pub async fn detach(&self, node: NodeId) -> Result<()> {
        let replica = self.replica();
        let answer = match (self.own(), &replica) {
            (Some(_), _) => self.let_go(node, false).await,
            (None, Some(replica)) if self.holder() == self.identity.node || self.holder() == node => {
                self.detach_replica(replica, node).await
            }
            _ => self.ask(self.holder(), &Ask::Detach(node.0)).await?,
        };
        match answer {
            Answer::Done => Ok(()),
            Answer::No(why) => Err(StoreError::new(ErrorKind::Unavailable, why)),
            _ => Err(StoreError::new(ErrorKind::Unavailable, "unexpected response type")),
        }
    }
}
