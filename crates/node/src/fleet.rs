//! What persons decide about nodes: quarantine, evacuation, and their end. A decision is one transaction on the row of
//! the node; what follows from it is done by the loops of the others.

use std::collections::HashMap;

use stoker_catalog::kv::Commit;
use stoker_format::{DriveId, NodeId};
use stoker_schema::rows::{Duty, keys};
use stoker_store::{ErrorKind, Evacuation, NodeInfo, NodeWord, Result, StoreError};

use crate::cell::View;
use crate::census::{Census, Fate};
use crate::core::Core;

pub(crate) fn refused(message: String) -> StoreError {
    StoreError::new(ErrorKind::Conflict, message)
}

impl Core {
    /// Every node, with what it holds.
    pub(crate) async fn node_list(&self) -> Result<Vec<NodeInfo>> {
        let census = self.census().await?;
        let mut held: HashMap<NodeId, (u64, u64)> = HashMap::new();
        for one in census.versions.values() {
            let mut nodes: Vec<NodeId> = one.places.iter().map(|(node, _)| *node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            for node in nodes {
                let (files, bytes) = held.entry(node).or_default();
                (*files, *bytes) = (*files + 1, *bytes + one.bytes);
            }
        }
        let mut nodes = self.nodes_known(&held);
        let view = self.cell.view();
        for info in &mut nodes {
            let Ok(node) = info.node.parse::<NodeId>() else { continue };
            let left =
                |drive: &DriveId| census.versions.values().any(|one| one.places.contains(&(node, *drive)));
            let mine = view.drives().iter().filter(|(_, row)| row.node == node.0).map(|(id, _)| id);
            let gone = mine.filter(|id| !view.is_drive_live(**id) && left(id)).count();
            info.drives_gone = gone as u32;
        }
        Ok(nodes)
    }

    /// Every node by name, from what is known of the cluster here, with these files and bytes that the lake lacks.
    pub(crate) fn nodes_known(&self, held: &HashMap<NodeId, (u64, u64)>) -> Vec<NodeInfo> {
        let view = self.cell.view();
        let one = |node: NodeId| {
            let row = &view.member(node)?.row;
            let is_live = |(id, drive): &(&DriveId, &stoker_schema::rows::DriveRow)| {
                drive.node == node.0 && view.is_drive_live(**id)
            };
            let (undrained_files, undrained_bytes) = held.get(&node).copied().unwrap_or_default();
            let latency_us = match self.node_word(node) {
                NodeWord::Answers { latency_us } => latency_us,
                _ => 0,
            };
            Some(NodeInfo {
                node: node.to_string(),
                name: row.name.clone(),
                cell: row.cell.clone(),
                tor: row.tor.clone(),
                power: row.power.clone(),
                state: view.state_word(node).to_owned(),
                since_ms: row.since_ms,
                silent_since_ms: self.cell.silent_since(node),
                drives: view.drives().iter().filter(is_live).count() as u32,
                drives_gone: 0,
                undrained_files,
                undrained_bytes,
                latency_us,
            })
        };
        let mut nodes: Vec<NodeInfo> = view.nodes().filter_map(one).collect();
        nodes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        nodes
    }

    /// Puts no new chunks on a node. Refused if that leaves too few for some volume, unless that is wanted.
    pub(crate) async fn quarantine(&self, node: NodeId, force: bool) -> Result<()> {
        // One that takes nothing new already leaves nobody with less.
        if !force && self.cell.load_view().await?.duty(node) == Duty::Full {
            self.check_others_suffice(node).await?;
        }
        self.cell.decide(node, Duty::Quarantined).await
    }

    /// Ends a quarantine, an evacuation or a removal. One transaction, so that nobody empties it on.
    pub(crate) async fn rejoin(&self, node: NodeId) -> Result<()> {
        self.cell.decide_with(node, Duty::Full, Commit::new().delete(keys::removing(node))).await
    }

    /// Lets the others take what a node has and the lake has not.
    pub(crate) async fn evacuate(&self, node: NodeId, force: bool) -> Result<Evacuation> {
        let view = self.cell.load_view().await?;
        let name = view.name(node);
        if view.is_down(node) {
            return Err(refused(format!(
                "node {name} is down: what it held is being protected by the others; see `stoker rebuild status`"
            )));
        }
        if node != self.node && self.cell.is_suspect(node) && !force {
            return Err(refused(format!(
                "node {name} does not answer, so nothing can be read from it: bring it back, or wait until it is declared \
                 down; then what it held is protected from other copies"
            )));
        }
        if !force {
            self.check_others_suffice(node).await?;
        }
        self.cell.decide(node, Duty::Evacuating).await?;
        self.evacuation(node).await
    }

    /// How far it is.
    pub(crate) async fn evacuation(&self, node: NodeId) -> Result<Evacuation> {
        Ok(self.evacuation_in(&self.census().await?, node))
    }

    /// How far several are.
    pub(crate) async fn evacuations(&self, nodes: &[NodeId]) -> Result<Vec<Evacuation>> {
        let census = self.census().await?;
        let view = self.cell.view();
        let known = nodes.iter().filter(|node| view.member(**node).is_some());
        Ok(known.map(|node| self.evacuation_in(&census, *node)).collect())
    }

    fn evacuation_in(&self, census: &Census, node: NodeId) -> Evacuation {
        let view = self.cell.view();
        let elsewhere = |at: NodeId, drive: DriveId| at != node && self.is_readable(&view, at, drive);
        let mut told = Evacuation {
            node: node.to_string(),
            name: view.name(node),
            state: view.state_word(node).to_owned(),
            files_left: 0,
            bytes_left: 0,
            files_only_there: 0,
            bytes_only_there: 0,
            parts_only_there: parts_only_on(census, node),
            trouble: None,
            done: false,
        };
        for one in census.versions.values().filter(|one| one.is_on(node)) {
            told.files_left += 1;
            told.bytes_left += one.bytes;
            if census.fate(one, elsewhere) != Fate::Safe {
                told.files_only_there += 1;
                told.bytes_only_there += one.bytes;
            }
        }
        for part in census.parts.iter().filter(|part| part.places.iter().any(|(at, _)| *at == node)) {
            told.files_left += 1;
            told.bytes_left += part.bytes;
        }
        told.done = view.duty(node) == Duty::Evacuating && told.files_left == 0;
        if !told.done {
            told.trouble = self.cell.rebuilder.trouble();
        }
        told
    }

    /// Refuses if, without a node, some volume would find too few nodes for its class.
    pub(crate) async fn check_others_suffice(&self, node: NodeId) -> Result<()> {
        let view = self.cell.load_view().await?;
        self.check_others_in(&view, node).await
    }

    /// The same by a view that is known, for whoever asks often: each new one wakes everybody.
    pub(crate) async fn check_others_in(&self, view: &View, node: NodeId) -> Result<()> {
        if view.is_witness(node) {
            return Ok(());
        }
        let others: Vec<NodeId> = view
            .nodes()
            .filter(|other| *other != node)
            .filter(|other| {
                view.takes_writes(*other) && (*other == self.node || !self.cell.is_suspect(*other))
            })
            .collect();
        let name = view.name(node);
        if others.is_empty() {
            return Err(refused(format!(
                "no other node takes new chunks, so there is nowhere to go: start one with `stoker join`, or bring one back \
                 with `stoker node rejoin`, before {name} goes"
            )));
        }
        for volume in self.volumes.all().await? {
            let copies = self.class(&volume).copies();
            if copies > others.len() {
                return Err(refused(format!(
                    "volume `{}` commits to {copies} nodes, and without {name} only {} take new chunks: add a node with \
                     `stoker join`, or lower its class with `stoker volume set --class`",
                    volume.name,
                    others.len()
                )));
            }
        }
        Ok(())
    }
}

/// Parts of unfinished uploads that no other node has.
fn parts_only_on(census: &Census, node: NodeId) -> u64 {
    let only = |part: &&crate::census::Part| part.places.iter().all(|(at, _)| *at == node);
    census.parts.iter().filter(only).count() as u64
}
