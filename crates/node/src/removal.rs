//! A node leaves for good.
//!
//! A live one is emptied first, a lost one is made up for by the others; what is left then is lost with it, is named, and a person has
//! to accept that. So one order goes through these steps, each as far as it can go now, and is repeated until the node is removed. For a
//! live node another one goes on with it by itself ([`go_on`]); a lost one may need a person's word again:
//!
//! 1. *removing*: a row says that it is to go. It does not count for the class of volumes any more; a live one is evacuated.
//! 2. Its drives are given up by a transaction: nothing new can be said to be there (R6), so what is counted afterwards is all there is.
//! 3. *removed*: one transaction ends its rows (node, session, drives, undrained bytes) and leaves one that says so. Should it start
//!    again, it reads that row and is refused; while it runs, its session is over, and it stops.
//!
//! What follows from rows (claims of repairs, chunks that it lacked, holds for its writes, incidents about its parts) is ended by the
//! loops that look after them, since to them it is no member any more. (D91)

use stoker_catalog::Row;
use stoker_catalog::kv::{Commit, Outcome, prefix_end};
use stoker_catalog::rows::{DriveRow, DriveState, Duty, NodeState, RemovedRow, RemovingRow, RowValue, keys};
use stoker_format::{DriveId, NodeId};
use stoker_store::{ErrorKind, LostFile, Removal, Result, StoreError};

use crate::census::{Census, Fate};
use crate::core::Core;
use crate::error;
use crate::fleet::refused;
use crate::node::Node;

/// Lost files that are named at most.
const NAMED_MAX: usize = 1_000;

/// Pause between looks at removals that were begun.
const GO_ON_PAUSE: std::time::Duration = std::time::Duration::from_secs(2);

/// Goes on with removals for as long as the node lives.
pub(crate) async fn go_on(node: std::sync::Weak<Node>) {
    loop {
        tokio::time::sleep(GO_ON_PAUSE).await;
        let Some(node) = node.upgrade() else { return };
        if let Err(fault) = node.go_on_removing().await {
            tracing::debug!("removing a node: {fault}");
        }
    }
}

/// What is left of a node.
struct Left {
    /// Files and parts that have a copy there.
    files: u64,
    bytes: u64,
    /// Those of which no other copy can be read.
    lost_files: u64,
    lost_bytes: u64,
    lost: Vec<LostFile>,
}

impl Node {
    /// Removes a node for good, as far as that goes now.
    pub(crate) async fn node_remove(&self, name: &str, force: bool, accept_loss: bool) -> Result<Removal> {
        let core = &self.core;
        let view = core.load_view().await?;
        let node = match core.node_named(name) {
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                return core.removed_before(name).await?.ok_or(fault);
            }
            found => found?,
        };
        if view.size() < 2 {
            return Err(refused(format!(
                "{name} is the only node of its cluster: stop it, and what it drained is in the lake"
            )));
        }
        if self.keeper().is_some_and(|keeper| keeper.holder() == node) {
            return Err(refused(format!(
                "{name} keeps the catalog: let another node keep it first, with `stoker catalog promote` on that node"
            )));
        }
        let state = view.member(node).map(|member| member.row.state);
        let is_silent = node != core.node && core.cell.is_suspect(node);
        match state {
            // Nobody declares a node down that nobody ever reached.
            Some(NodeState::Up) if is_silent && view.is_unreached(node) => {
                self.declare_down(node, std::time::Duration::ZERO).await?;
                self.remove_lost(node, accept_loss).await
            }
            Some(NodeState::Up) if is_silent => {
                self.let_standby_go(node).await?;
                let why = "it does not answer, and is declared down when the grace period is over";
                Ok(core.told(node, "waiting", &core.left_on(node).await?, Some(why.to_owned())))
            }
            // Nobody declares a node down that stopped in good order; whoever removes it says that it does not come back.
            Some(NodeState::Leaving) => {
                if node == core.node || self.is_answered_by(node).await {
                    let why = "it is stopping";
                    return Ok(core.told(node, "waiting", &core.left_on(node).await?, Some(why.to_owned())));
                }
                self.declare_down(node, std::time::Duration::ZERO).await?;
                self.remove_lost(node, accept_loss).await
            }
            Some(NodeState::Up) => self.remove_live(node, force).await,
            Some(NodeState::Down) | None => self.remove_lost(node, accept_loss).await,
        }
    }

    /// Goes on with removals of live nodes that somebody began: whoever asked does not have to ask again. One node does it, so that
    /// they do not get in each other's way.
    pub(crate) async fn go_on_removing(&self) -> Result<()> {
        let core = &self.core;
        let view = core.cell.view();
        let answers = |node: NodeId| node == core.node || !core.cell.is_suspect(node);
        let stays = |node: &NodeId| view.is_up(*node) && !view.is_removing(*node) && answers(*node);
        if view.nodes().find(stays) != Some(core.node) {
            return Ok(());
        }
        let going: Vec<NodeId> = view
            .nodes()
            .filter(|node| view.is_removing(*node) && view.is_up(*node) && answers(*node))
            .collect();
        for node in going {
            if self.keeper().is_none_or(|keeper| keeper.holder() != node) {
                self.remove_live(node, false).await?;
            }
        }
        Ok(())
    }

    /// A lost node that the catalog waits for could never be declared down.
    async fn let_standby_go(&self, node: NodeId) -> Result<()> {
        match self.keeper() {
            Some(keeper) if keeper.status().await.stalled && !self.is_answered_by(node).await => {
                keeper.detach(node).await
            }
            _ => Ok(()),
        }
    }

    async fn remove_live(&self, node: NodeId, force: bool) -> Result<Removal> {
        let core = &self.core;
        let view = core.cell.view();
        if !view.is_removing(node) {
            if !force && view.duty(node) == Duty::Full {
                core.check_others_suffice(node).await.map_err(|fault| StoreError {
                    message: format!(
                        "{}; or remove it with --force, and files are on fewer nodes",
                        fault.message
                    ),
                    ..fault
                })?;
            }
            core.begin_removal(node).await?;
        }
        core.decide(node, Duty::Evacuating).await?;
        let left = core.left_on(node).await?;
        if left.files > 0 || !core.give_up_drives(node).await? {
            let trouble = core.cell.rebuilder.trouble();
            return Ok(core.told(node, "evacuating", &left, trouble));
        }
        // A part of an upload may have come until the drives were given up. It is moved like the others.
        let left = core.left_on(node).await?;
        if left.files > 0 {
            return Ok(core.told(node, "evacuating", &left, None));
        }
        self.remove(node, &left).await
    }

    async fn remove_lost(&self, node: NodeId, accept_loss: bool) -> Result<Removal> {
        let core = &self.core;
        let left = core.left_on(node).await?;
        let trouble = core.cell.rebuilder.trouble();
        if left.files > left.lost_files {
            return Ok(core.told(node, "protecting", &left, trouble));
        }
        if left.lost_files > 0 && !accept_loss {
            return Ok(core.told(node, "loss", &left, None));
        }
        core.begin_removal(node).await?;
        if !core.give_up_drives(node).await? {
            return Ok(core.told(node, "protecting", &left, trouble));
        }
        // Nothing can be added now. What came before is accounted for like the rest.
        let left = core.left_on(node).await?;
        match left.files > left.lost_files || (left.lost_files > 0 && !accept_loss) {
            true => Ok(core.told(node, "protecting", &left, trouble)),
            false => self.remove(node, &left).await,
        }
    }

    /// Ends the rows of a node on which nothing is left that anybody wants to wait for.
    async fn remove(&self, node: NodeId, left: &Left) -> Result<Removal> {
        let core = &self.core;
        // Commits would wait for it. Whether it follows the catalog only the node knows that serves it, and one that does not can
        // be let go as well.
        if let Some(keeper) = self.keeper() {
            keeper.detach(node).await?;
        }
        // While its row is there: afterwards nobody knows its name.
        let told = core.told(node, "removed", left, None);
        if !core.end_rows(node, left).await? {
            return Ok(core.told(node, "waiting", left, Some("its rows changed meanwhile".to_owned())));
        }
        tracing::warn!("node {} was removed from the cluster for good", told.name);
        core.load_view().await?;
        Ok(told)
    }
}

impl Core {
    fn told(&self, node: NodeId, step: &str, left: &Left, trouble: Option<String>) -> Removal {
        Removal {
            node: node.to_string(),
            name: self.cell.view().name(node),
            step: step.to_owned(),
            files_left: left.files,
            bytes_left: left.bytes,
            lost: left.lost.clone(),
            lost_files: left.lost_files,
            lost_bytes: left.lost_bytes,
            trouble,
        }
    }

    /// The same order after it was carried out.
    async fn removed_before(&self, name: &str) -> Result<Option<Removal>> {
        let mut found = None;
        self.each(keys::REMOVED.to_vec(), |row| {
            let value = RemovedRow::of(row).map_err(error::catalog)?;
            let Some(id) = keys::node_behind(keys::REMOVED, &row.key).map(|node| node.to_string()) else {
                return Ok(());
            };
            if id == name || value.name == name {
                found = Some(Removal {
                    node: id,
                    name: value.name,
                    step: "removed".to_owned(),
                    files_left: 0,
                    bytes_left: 0,
                    lost: Vec::new(),
                    lost_files: value.lost_files,
                    lost_bytes: value.lost_bytes,
                    trouble: None,
                });
            }
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// What has a copy on a node, and of what no other copy can be read.
    async fn left_on(&self, node: NodeId) -> Result<Left> {
        let census = self.census().await?;
        if census.at_least {
            let message =
                "there is too much that is not in the lake to be counted; wait until more is drained";
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        }
        let mut left = Left { files: 0, bytes: 0, lost_files: 0, lost_bytes: 0, lost: Vec::new() };
        self.count_files(&census, node, &mut left).await?;
        self.count_parts_left(&census, node, &mut left).await?;
        Ok(left)
    }

    async fn count_files(&self, census: &Census, node: NodeId, left: &mut Left) -> Result<()> {
        let view = self.cell.view();
        let elsewhere = |at: NodeId, drive: DriveId| at != node && self.is_readable(&view, at, drive);
        for (version, one) in census.versions.iter().filter(|(_, one)| one.is_on(node)) {
            left.files += 1;
            left.bytes += one.bytes;
            let fate = census.fate(one, elsewhere);
            if fate != Fate::Safe {
                left.lost_files += 1;
                left.lost_bytes += one.bytes;
                if left.lost.len() < NAMED_MAX {
                    self.tell_lost(*version, one, fate, &mut left.lost).await?;
                }
            }
        }
        left.lost.truncate(NAMED_MAX);
        Ok(())
    }

    async fn count_parts_left(&self, census: &Census, node: NodeId, left: &mut Left) -> Result<()> {
        let view = self.cell.view();
        let elsewhere = |at: NodeId, drive: DriveId| at != node && self.is_readable(&view, at, drive);
        let is_there = |part: &crate::census::Part| part.places.iter().any(|(at, _)| *at == node);
        for part in census.parts.iter().filter(|part| is_there(part)) {
            left.files += 1;
            left.bytes += part.bytes;
            if !part.places.iter().any(|(at, drive)| elsewhere(*at, *drive)) {
                left.lost_files += 1;
                left.lost_bytes += part.bytes;
            }
        }
        self.tell_lost_parts(census, is_there, elsewhere, &mut left.lost).await
    }

    /// From now on a node does not count for the class of volumes.
    async fn begin_removal(&self, node: NodeId) -> Result<()> {
        let since_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let key = keys::removing(node);
        if self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten().is_none() {
            let change = Commit::new().present(keys::node(node)).put(key, RemovingRow { since_ms }.encode());
            // A node that is gone meanwhile is gone.
            let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
            self.load_view().await?;
        }
        Ok(())
    }

    /// It stays after all.
    pub(crate) async fn end_removal(&self, node: NodeId) -> Result<()> {
        let change = Commit::new().delete(keys::removing(node));
        self.catalog.commit(change).await.map_err(error::catalog).map(drop)
    }

    async fn drive_rows(&self, node: NodeId) -> Result<Vec<(Row, DriveRow)>> {
        let mut rows = Vec::new();
        self.each(b"D".to_vec(), |row| {
            let value = DriveRow::of(row).map_err(error::catalog)?;
            if value.node == node.0 {
                rows.push((row.clone(), value));
            }
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Nothing that the drives of a node acknowledge counts from now on; false if somebody was quicker.
    async fn give_up_drives(&self, node: NodeId) -> Result<bool> {
        let mut change = Commit::new();
        for (row, value) in self.drive_rows(node).await? {
            if value.state != DriveState::Gone {
                let gone = DriveRow { state: DriveState::Gone, ..value };
                change = change.seq(row.key.clone(), row.seq).put(row.key, gone.encode());
            }
        }
        if change.writes.is_empty() {
            return Ok(true);
        }
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        self.load_view().await?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    async fn end_rows(&self, node: NodeId, left: &Left) -> Result<bool> {
        let at_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let removed = RemovedRow {
            name: self.cell.view().name(node),
            at_ms,
            lost_files: left.lost_files,
            lost_bytes: left.lost_bytes,
        };
        let key = keys::node(node);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(false) };
        let mut change = Commit::new()
            .value(self.session.0.clone(), self.session.1.clone())
            .seq(key.clone(), row.seq)
            .delete(key)
            .delete(keys::session(node))
            .delete(keys::unreached(node))
            .delete(keys::removing(node))
            .put(keys::removed(node), removed.encode());
        for (row, value) in self.drive_rows(node).await? {
            if value.state != DriveState::Gone {
                return Ok(false);
            }
            change = change.seq(row.key.clone(), row.seq).delete(row.key);
        }
        let dirty = keys::dirty_of(node);
        let end = prefix_end(&dirty).expect("a table is not 0xff");
        change = match left.lost_files {
            0 => change.at_most(dirty, end, 0),
            _ => change.delete_range(dirty, end),
        };
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }
}
