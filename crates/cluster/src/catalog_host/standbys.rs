//! Who follows the catalog of this node, while it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::Catalog;
use stoker_catalog::engine::Embedded;
use stoker_format::NodeId;
use stoker_store::{CatalogStatus, StandbyInfo};
use tokio::time::Instant;

use super::message::{Answer, Ask};
use super::{CatalogHost, GONE_MAX, GROUPS_SINCE, POLL_EVERY, STATUS_MAX, elsewhere};
use crate::clock;
use crate::ways::StandbyWire;

/// Standbys that a catalog has, if there are so many nodes. One may be lost, and commits are still on two nodes.
const WANTED: usize = 2;

/// A node that said it leaves is not attached again for so long; it is about to stop.
const LEAVING_MAX: Duration = Duration::from_secs(10);

/// The standbys of this node's catalog.
#[derive(Default)]
pub(crate) struct Standbys {
    attached: Mutex<BTreeSet<NodeId>>,
    leaving: Mutex<BTreeMap<NodeId, Instant>>,
    /// Nodes that asked for the catalog: they run, whatever was decided about them before.
    asking: Mutex<BTreeSet<NodeId>>,
}

impl Standbys {
    /// Nodes that are about to stop.
    pub(crate) fn leaving_now(&self) -> BTreeSet<NodeId> {
        let mut leaving = self.leaving.lock().unwrap();
        leaving.retain(|_, since| since.elapsed() < LEAVING_MAX);
        leaving.keys().copied().collect()
    }

    /// A node is about to stop.
    pub(crate) fn leaves(&self, node: NodeId) {
        self.leaving.lock().unwrap().insert(node, Instant::now());
    }
}

/// Who should follow: those that do and can, then others that can, in their order.
fn choose(able: &[NodeId], attached: &BTreeSet<NodeId>, wanted: usize) -> Vec<NodeId> {
    let (mut chosen, others): (Vec<NodeId>, Vec<NodeId>) =
        able.iter().partition(|node| attached.contains(node));
    let missing = wanted.saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(missing));
    chosen
}

impl CatalogHost {
    /// Attaches whoever has to confirm what is in this node's file before it is read.
    pub(crate) fn attach_known(self: &Arc<CatalogHost>) {
        let Some(catalog) = self.own() else { return };
        // Those of a catalog that this node kept before do not follow this one.
        self.standbys.attached.lock().unwrap().clear();
        for node in catalog.known_standbys() {
            self.attach(&catalog, node);
        }
    }

    fn attach(self: &Arc<CatalogHost>, catalog: &Embedded, node: NodeId) {
        let way = Arc::new(StandbyWire { node, transport: self.transport.clone() });
        match catalog.attach(node, way) {
            Ok(()) => drop(self.standbys.attached.lock().unwrap().insert(node)),
            Err(fault) => tracing::warn!("node {node} cannot follow the catalog: {fault}"),
        }
    }

    /// Sees to it, for as long as this node serves, that enough nodes follow.
    pub(crate) fn care_for_standbys(self: &Arc<CatalogHost>) {
        let host = Arc::downgrade(self);
        self.keep(tokio::spawn(async move {
            while let Some(host) = host.upgrade() {
                let Some(catalog) = host.own() else { return };
                host.arrange(&catalog).await;
                let attached: Vec<NodeId> = host.standbys.attached.lock().unwrap().iter().copied().collect();
                // Whoever was promoted elsewhere made these promise to follow it.
                host.probe(&attached).await;
                drop((host, catalog));
                tokio::time::sleep(POLL_EVERY).await;
            }
        }));
    }

    async fn arrange(self: &Arc<CatalogHost>, catalog: &Arc<Embedded>) {
        let Some(known) = self.members.get() else { return };
        let view = known.view();
        if known.level.get() >= GROUPS_SINCE {
            return self.become_group(catalog).await;
        }
        let leaving = self.standbys.leaving_now();
        let own = self.identity.node;
        let attached = self.standbys.attached.lock().unwrap().clone();
        // A node that was declared down and came back can say so only in the catalog, which may wait for nobody but it.
        let asking = self.standbys.asking.lock().unwrap().clone();
        let able: Vec<NodeId> = view
            .nodes()
            .filter(|node| *node != own && !leaving.contains(node))
            .filter(|node| view.is_up(*node) || asking.contains(node))
            // Commits would wait for somebody whom nobody reaches.
            .filter(|node| !view.is_unreached(*node) || attached.contains(node))
            .filter(|node| !view.is_removing(*node))
            .collect();
        for node in choose(&able, &attached, WANTED) {
            if !attached.contains(&node) {
                tracing::info!("node {node} follows the catalog of this node from now on");
                self.attach(catalog, node);
            }
        }
        // Somebody who was declared gone long ago is not asked for ever before a promotion, as long as another one has
        // everything.
        let now_ms = clock::now_ms();
        let is_gone = |node: &&NodeId| {
            let since_ms = view.member(**node).map_or(0, |member| member.row.since_ms);
            view.is_down(**node) && now_ms.saturating_sub(since_ms) > GONE_MAX.as_millis() as u64
        };
        for gone in attached.iter().filter(is_gone) {
            let others = catalog.replication().map_or(0, |replication| {
                replication.standbys.iter().filter(|other| other.in_sync && other.node != *gone).count()
            });
            if others > 0 {
                self.let_go(*gone, false).await;
            }
        }
    }

    /// Whether a standby is not needed. The last one that has everything is, as long as others are known that lack something:
    /// without it nothing is acknowledged before one of them is back, whether it left or died, but if it stays known, it is
    /// enough that it comes back itself.
    pub(crate) fn may_leave(&self, node: NodeId) -> Answer {
        let Some(catalog) = self.own() else { return elsewhere() };
        let others_in_sync = catalog.replication().is_some_and(|replication| {
            replication.standbys.iter().any(|standby| standby.in_sync && standby.node != node)
        });
        match others_in_sync || catalog.known_standbys().iter().all(|known| *known == node) {
            true => Answer::Done,
            false => Answer::No("no other node has every acknowledged change".into()),
        }
    }

    /// A node that left asks again, so it has started.
    pub(crate) fn came_back(&self, node: NodeId) {
        self.standbys.leaving.lock().unwrap().remove(&node);
        self.standbys.asking.lock().unwrap().insert(node);
    }

    /// Lets a standby go for good.
    pub(crate) async fn let_go(&self, node: NodeId, leaves: bool) -> Answer {
        let Some(catalog) = self.own() else { return elsewhere() };
        if leaves {
            self.standbys.leaves(node);
        }
        self.standbys.asking.lock().unwrap().remove(&node);
        self.standbys.attached.lock().unwrap().remove(&node);
        match catalog.detach(node).await {
            Ok(()) => {
                tracing::info!("node {node} does not follow the catalog of this node any more");
                Answer::Done
            }
            Err(fault) => Answer::No(fault.message),
        }
    }

    /// How it stands with the catalog, by whoever serves it.
    pub async fn status(&self) -> CatalogStatus {
        if let Some(catalog) = self.own() {
            return self.status_of(&catalog).await;
        }
        if let Some(replica) = self.replica().filter(|replica| replica.standing().borrow().answers) {
            return self.status_of_group(&replica).await;
        }
        let holder = self.holder();
        let (trouble, seq) = match self.ask_within(holder, &Ask::Status, STATUS_MAX).await {
            Ok(Answer::Status(status)) => return status,
            Ok(Answer::No(why)) => (why, 0),
            Ok(_) => ("unexpected response type".to_owned(), 0),
            Err(fault) => (fault.message, self.seq_seen()),
        };
        CatalogStatus {
            engine: "embedded".into(),
            holder: Some(holder.to_string()),
            epoch: self.epoch().to_string(),
            seq,
            stalled: true,
            alone: false,
            standbys: Vec::new(),
            trouble: Some(trouble),
        }
    }

    pub(crate) async fn status_of(&self, catalog: &Embedded) -> CatalogStatus {
        let replication = catalog.replication();
        let standbys = replication.as_ref().map_or_else(Vec::new, |replication| {
            let one = |standby: &stoker_catalog::engine::StandbyStatus| StandbyInfo {
                node: standby.node.to_string(),
                in_sync: standby.in_sync,
                seq: standby.seq,
                trouble: standby.trouble.clone(),
            };
            replication.standbys.iter().map(one).collect()
        });
        CatalogStatus {
            engine: catalog.describe(),
            holder: Some(self.identity.node.to_string()),
            epoch: catalog.epoch().unwrap_or_default().to_string(),
            seq: catalog.seq().await.unwrap_or(self.seq_seen()),
            stalled: replication.as_ref().is_some_and(|replication| replication.stalled),
            alone: !standbys.iter().any(|standby| standby.in_sync),
            standbys,
            trouble: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_follows_goes_on_and_others_fill_up() {
        let node = |number: u8| NodeId([number; 16]);
        let nodes = [1, 2, 3, 4].map(node);
        let attached = |numbers: &[u8]| numbers.iter().map(|number| node(*number)).collect();
        assert_eq!(choose(&nodes, &attached(&[]), 2), [1, 2].map(node));
        assert_eq!(choose(&nodes, &attached(&[3]), 2), [3, 1].map(node));
        assert_eq!(choose(&nodes[..1], &attached(&[3, 4]), 2), [node(1)]);
        assert_eq!(choose(&nodes, &attached(&[1, 3, 4]), 2), [1, 3, 4].map(node));
        assert_eq!(choose(&[], &attached(&[1]), 2), []);
    }
}
