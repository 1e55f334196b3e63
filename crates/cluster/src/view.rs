//! The cluster as the catalog describes it: nodes, their sessions, their drives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stoker_catalog::kv::Check;
use stoker_fabric::placement::{self, Candidate, Candidates, Domain, Key};
use stoker_format::{ChunkId, DriveId, NodeId};
use stoker_schema::rows::{
    DriveRow, DriveState, Duty, HolderRow, NodeRow, NodeState, RemovingRow, RowValue, SessionRow,
    UnreachedRow, keys,
};
use stoker_store::{Result, Spread};

use crate::error;
use crate::members::{Lost, Members};

/// A node as the catalog knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// What its row says.
    pub row: NodeRow,
    /// The row of its present session, as it is in the catalog.
    pub session: Option<(SessionRow, Vec<u8>)>,
}

/// The cluster at one moment. An old view is never wrong in a way that loses bytes: what was decided on it is checked by
/// the transaction that makes it true.
#[derive(Default, Debug)]
pub struct View {
    members: BTreeMap<NodeId, Member>,
    drives: BTreeMap<DriveId, DriveRow>,
    candidates: Candidates,
    /// Members that no other one has reached yet: they hold nothing, and nobody waits for them.
    unreached: BTreeMap<NodeId, UnreachedRow>,
    /// Members that are to be removed: nothing counts on them any more.
    removing: BTreeMap<NodeId, RemovingRow>,
    /// Nodes that were members and are not any more, for good.
    removed: BTreeSet<NodeId>,
    /// Commit of its newest row.
    epoch: u64,
}

impl View {
    /// All members.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.keys().copied()
    }

    /// Commit of the newest row that it was read from; nodes that saw the same have the same.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where nodes can be reached.
    pub fn addresses(&self) -> Vec<(NodeId, Vec<String>)> {
        self.members.iter().map(|(node, member)| (*node, member.row.addresses.clone())).collect()
    }

    /// Where their pings go.
    pub fn gossip(&self) -> Vec<String> {
        self.members.values().flat_map(|member| member.row.gossip.clone()).collect()
    }

    /// Nodes that nobody declared gone and that did not say good-bye, and where their pings go. Who was never reached is not missed.
    pub fn expected(&self) -> Vec<(NodeId, Vec<String>)> {
        let is_expected =
            |node: &NodeId, member: &Member| member.row.state == NodeState::Up && !self.is_unreached(*node);
        let up = self.members.iter().filter(|(node, member)| is_expected(node, member));
        up.map(|(node, member)| (*node, member.row.gossip.clone())).collect()
    }

    /// Nodes that stopped when somebody asked them to, and did not come back since.
    pub fn leaving(&self) -> impl Iterator<Item = NodeId> {
        let leaving = self.members.iter().filter(|(_, member)| member.row.state == NodeState::Leaving);
        leaving.map(|(node, _)| *node)
    }

    /// A member; none if there is none of this id.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node)
    }

    /// All members, whatever is wrong with them.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Nodes that count for the class of a volume, for a write at one of them: all members but those that nobody has reached yet,
    /// those that are to be removed, and witnesses. One that is silent or down counts on until a person removes it: less than it promised is not what `auto` means.
    pub fn counting(&self, home: NodeId) -> usize {
        let counts = |node: &NodeId| *node == home || !(self.is_unreached(*node) || self.is_removing(*node));
        self.nodes().filter(|node| !self.is_witness(*node) && counts(node)).count()
    }

    /// Members that no other one has reached yet.
    pub fn unreached(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.unreached.keys().copied()
    }

    /// What is known of a member that no other one has reached.
    pub fn unreached_row(&self, node: NodeId) -> Option<&UnreachedRow> {
        self.unreached.get(&node)
    }

    /// Whether no other member has reached it yet.
    pub fn is_unreached(&self, node: NodeId) -> bool {
        self.unreached.contains_key(&node)
    }

    /// Whether a node is to be removed for good.
    pub fn is_removing(&self, node: NodeId) -> bool {
        self.removing.contains_key(&node)
    }

    /// Members that are to be removed for good, and what was ordered.
    pub fn removing(&self) -> impl Iterator<Item = (NodeId, &RemovingRow)> + '_ {
        let members = self.removing.iter().filter(|(node, _)| self.members.contains_key(node));
        members.map(|(node, row)| (*node, row))
    }

    /// Whether a node was a member and was removed for good.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// Nodes that were removed for good.
    pub fn removed(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.removed.iter().copied()
    }

    /// Whether its row says that it is up. It may be silent.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|member| member.row.state == NodeState::Up)
    }

    /// Whether a node only votes, and holds nothing.
    pub fn is_witness(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|member| member.row.weight == 0)
    }

    /// What a person decided about a node.
    pub fn duty(&self, node: NodeId) -> Duty {
        self.members.get(&node).map_or(Duty::Full, |member| member.row.duty)
    }

    /// What became of a node, in one word.
    pub fn state_word(&self, node: NodeId) -> &'static str {
        match self.members.get(&node).map(|member| (member.row.state, member.row.duty)) {
            None | Some((NodeState::Down, _)) => "down",
            Some((_, Duty::Quarantined)) => "quarantined",
            Some((_, Duty::Evacuating)) => "evacuating",
            Some((NodeState::Leaving, _)) => "leaving",
            Some((NodeState::Up, _)) => match self.unreached.get(&node).map(|row| &row.failed) {
                None if self.is_witness(node) => "witness",
                None => "up",
                Some(None) => "joining",
                Some(Some(_)) => "unreachable",
            },
        }
    }

    /// The same without what persons decided about it: `up`, `leaving` or `down`.
    pub fn became(&self, node: NodeId) -> &'static str {
        match self.members.get(&node).map(|member| member.row.state) {
            None | Some(NodeState::Down) => "down",
            Some(NodeState::Leaving) => "leaving",
            Some(NodeState::Up) => "up",
        }
    }

    /// How people call a node.
    pub fn name(&self, node: NodeId) -> String {
        match self.members.get(&node) {
            Some(member) if !member.row.name.is_empty() => member.row.name.clone(),
            _ => node.to_string(),
        }
    }

    /// Every drive of the cluster.
    pub fn drives(&self) -> &BTreeMap<DriveId, DriveRow> {
        &self.drives
    }

    /// Whether a node has a drive whose acknowledgements count.
    pub fn has_drive(&self, node: NodeId) -> bool {
        self.drives.values().any(|row| row.node == node.0 && row.state == DriveState::Live)
    }

    /// Drives that were given up, with their nodes.
    pub fn drives_gone(&self) -> impl Iterator<Item = (NodeId, DriveId)> + '_ {
        let gone = self.drives.iter().filter(|(_, row)| row.state == DriveState::Gone);
        gone.map(|(id, row)| (NodeId(row.node), *id))
    }

    /// Whether the acknowledgements of a drive count.
    pub fn is_drive_live(&self, drive: DriveId) -> bool {
        self.drives.get(&drive).is_some_and(|row| row.state == DriveState::Live)
    }

    /// Whether it was declared down, or is no member.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.members.get(&node).is_none_or(|member| member.row.state == NodeState::Down)
    }

    /// Nodes that are to be emptied.
    pub fn evacuating(&self) -> Vec<NodeId> {
        let leaves = |node: &NodeId| !self.is_down(*node) && self.duty(*node) == Duty::Evacuating;
        self.nodes().filter(leaves).collect()
    }

    /// Nodes that were declared gone and may have left work.
    pub fn down(&self) -> Vec<NodeId> {
        self.nodes().filter(|node| self.is_down(*node)).collect()
    }

    /// Whether new chunks may go to a node.
    pub fn takes_writes(&self, node: NodeId) -> bool {
        self.is_up(node)
            && self.duty(node) == Duty::Full
            && !self.is_unreached(node)
            && self.members.get(&node).is_some_and(|member| member.session.is_some())
            && self.has_drive(node)
    }

    /// Nodes that are as far from all of `taken` as demanded, in the order in which they are asked for a copy of a chunk.
    pub fn takers(&self, chunk: ChunkId, taken: &[NodeId], spread: Spread) -> Vec<NodeId> {
        let spread = match spread {
            Spread::Node => placement::Spread::Node,
            Spread::Tor => placement::Spread::Tor,
            Spread::Power => placement::Spread::Power,
        };
        self.candidates.takers(Key::from(chunk), taken, spread)
    }

    /// The cell of a node.
    pub fn cell_of(&self, node: NodeId) -> &str {
        self.members.get(&node).map(|member| member.row.cell.as_str()).unwrap_or_default()
    }

    /// Whether two nodes are of one cell.
    pub fn is_near(&self, one: NodeId, two: NodeId) -> bool {
        self.cell_of(one) == self.cell_of(two)
    }

    /// All nodes in the order in which they are asked for a chunk; every node computes the same.
    pub fn rank(&self, chunk: ChunkId) -> Vec<NodeId> {
        self.candidates.rank(Key::from(chunk)).collect()
    }

    /// The session of a node, if it has one.
    pub fn session(&self, node: NodeId) -> Option<[u8; 16]> {
        Some(self.members.get(&node)?.session.as_ref()?.0.session)
    }

    /// The node that has a session.
    pub fn node_of(&self, session: [u8; 16]) -> Option<NodeId> {
        self.nodes().find(|node| self.session(*node) == Some(session))
    }

    /// A check that a node's session is the one that acknowledged; none if it is another one already.
    pub fn session_check(&self, node: NodeId, session: [u8; 16]) -> Option<Check> {
        let (row, bytes) = self.members.get(&node)?.session.as_ref()?;
        (row.session == session).then(|| Check::Value(keys::session(node), bytes.clone()))
    }

    /// A check that a drive still counts at the life that acknowledged (R6); none if it does not already.
    pub fn drive_check(&self, holder: &HolderRow) -> Option<Check> {
        let id = DriveId(holder.drive);
        let row = self.drives.get(&id)?;
        let counts = row.state == DriveState::Live
            && row.incarnation == holder.incarnation
            && row.node == holder.node
            && !self.is_down(NodeId(holder.node));
        counts.then(|| Check::Value(keys::drive(id), row.encode()))
    }
}

impl Members {
    /// Reads the cluster from the catalog.
    pub async fn load_view(&self) -> Result<Arc<View>> {
        let mut view = View::default();
        self.each(b"M", |row| {
            view.epoch = view.epoch.max(row.seq);
            if let Some(node) = keys::node_id(&row.key) {
                let row = NodeRow::of(row).map_err(error::catalog)?;
                view.members.insert(node, Member { row, session: None });
            }
            Ok(())
        })
        .await?;
        self.each(b"S", |row| {
            view.epoch = view.epoch.max(row.seq);
            let member = keys::session_node(&row.key).and_then(|node| view.members.get_mut(&node));
            if let Some(member) = member {
                let session = SessionRow::of(row).map_err(error::catalog)?;
                member.session = Some((session, row.value.to_vec()));
            }
            Ok(())
        })
        .await?;
        self.each(b"D", |row| {
            view.epoch = view.epoch.max(row.seq);
            if let Some(id) = row.key.get(1..17).and_then(|id| id.try_into().ok()) {
                view.drives.insert(DriveId(id), DriveRow::of(row).map_err(error::catalog)?);
            }
            Ok(())
        })
        .await?;
        self.each(keys::UNREACHED, |row| {
            view.epoch = view.epoch.max(row.seq);
            let node = keys::node_behind(keys::UNREACHED, &row.key);
            if let Some(node) = node.filter(|node| view.members.contains_key(node)) {
                view.unreached.insert(node, UnreachedRow::of(row).map_err(error::catalog)?);
            }
            Ok(())
        })
        .await?;
        // Who is alone has nobody to be reached by.
        if view.members.len() < 2 {
            view.unreached.clear();
        }
        self.each(keys::REMOVING, |row| {
            view.epoch = view.epoch.max(row.seq);
            if let Some(node) = keys::node_behind(keys::REMOVING, &row.key) {
                view.removing.insert(node, RemovingRow::of(row).map_err(error::catalog)?);
            }
            Ok(())
        })
        .await?;
        self.each(keys::REMOVED, |row| {
            view.epoch = view.epoch.max(row.seq);
            view.removed.extend(keys::node_behind(keys::REMOVED, &row.key));
            Ok(())
        })
        .await?;
        view.members.retain(|node, _| !view.removed.contains(node));
        let label = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let labels =
            |row: &NodeRow| Domain { cell: label(&row.cell), tor: label(&row.tor), power: label(&row.power) };
        view.candidates = Candidates::new(view.members.iter().map(|(node, member)| Candidate {
            node: *node,
            weight: member.row.weight,
            domain: labels(&member.row),
        }));
        // Another boot of this node, or a verdict of the others: what this one writes is refused from now on (R6, R12).
        let session = view.session(self.node);
        if view.is_removed(self.node) {
            self.lost.send_if_modified(|lost| lost.replace(Lost::Removed).is_none());
        } else if session != Some(self.session_id) && self.lost.borrow().is_none() {
            let why = "the others declared it down while it was silent, and went on without it";
            let replaced = Lost::Replaced(why.to_owned());
            self.lost.send_replace(Some(session.map_or(replaced, |_| Lost::Duplicate)));
        }
        self.set_view(view);
        Ok(self.view())
    }
}
