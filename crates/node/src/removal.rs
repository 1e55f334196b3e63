//! A node leaves for good.
//!
//! A live one is emptied first, a lost one is made up for by the others; what is left then is lost with it, is named, and a person has
//! to accept that. Whoever orders it is told how far it went at once; the nodes carry it on from a row, whoever of them restarts, until
//! the node is removed or a person has to decide:
//!
//! 1. *removing*: a row says that it is to go. It does not count for the class of volumes any more; a live one is evacuated. Until the
//!    next step it can rejoin, which ends the row.
//! 2. Its drives are given up by a transaction: nothing new can be said to be there (R6), so what is counted afterwards is all there is.
//! 3. *removed*: one transaction ends its rows (node, session, drives, undrained bytes) and leaves one that says so. Should it start
//!    again, it reads that row and is refused; while it runs, its session is over, and it stops.
//!
//! Each step checks the row in its transaction, so one that was called off goes no further, and two nodes that take the same step do it
//! once. (D113)
//!
//! What follows from rows (claims of repairs, chunks that it lacked, holds for its writes, incidents about its parts) is ended by the
//! loops that look after them, since to them it is no member any more. (D91)

use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::Row;
use stoker_catalog::kv::{Commit, Outcome, prefix_end};
use stoker_format::{DriveId, NodeId};
use stoker_schema::rows::{DriveRow, DriveState, Duty, NodeState, RemovedRow, RemovingRow, RowValue, keys};
use stoker_store::{ErrorKind, LostFile, Removal, Result, StoreError};
use tokio::time::Instant;

use crate::cell::View;
use crate::census::{Census, Fate};
use crate::core::Core;
use crate::error;
use crate::fleet::refused;
use crate::node::Node;

/// Pause between two steps of removals that are under way.
const PAUSE: Duration = Duration::from_millis(500);

/// Lost files that are named at most.
const NAMED_MAX: usize = 1_000;

/// What is left of a node.
#[derive(Default)]
struct Left {
    /// Files and parts that have a copy there.
    files: u64,
    bytes: u64,
    /// Those of which no other copy can be read.
    lost_files: u64,
    lost_bytes: u64,
    lost: Vec<LostFile>,
}

/// Carries on what was ordered, until the node closes.
pub(crate) async fn run(node: Weak<Node>) {
    while let Some(node) = node.upgrade().filter(|node| !node.core.closing.load(Ordering::Relaxed)) {
        let core = node.core.clone();
        let mut woken = pin!(core.cell.wake.notified());
        woken.as_mut().enable();
        let begun = Instant::now();
        let is_more = node.carry_removals_on().await;
        // Everything that is not in the lake is looked at for a step: one that takes long is taken less often.
        let pause = PAUSE.max(begun.elapsed() * 4);
        drop(node);
        // A step may change the view, which wakes everybody, this one too: after a step there is always a pause.
        match is_more {
            true => tokio::time::sleep(pause).await,
            false => woken.await,
        }
    }
}

impl Node {
    /// Removes a node for good: begins with it, and tells how far it went.
    pub(crate) async fn node_remove(&self, name: &str, force: bool, accept_loss: bool) -> Result<Removal> {
        let core = &self.core;
        let view = core.cell.load_view().await?;
        let node = match core.cell.named(name) {
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
        if self.is_catalog_with(node) {
            return Err(refused(keeps_catalog(name)));
        }
        let ordered = view.removing().find(|(one, _)| *one == node).map(|(_, row)| row.accept_loss);
        if ordered.is_none() && view.is_up(node) && !self.is_silent(node) {
            if !force && view.duty(node) == Duty::Full {
                core.check_others_suffice(node).await.map_err(|fault| StoreError {
                    message: format!(
                        "{}; or remove it with --force, and files are on fewer nodes",
                        fault.message
                    ),
                    ..fault
                })?;
            }
        } else if ordered.is_none() && view.is_down(node) && !accept_loss {
            // Whoever has to decide first has ordered nothing yet.
            let left = core.left_on(node).await?;
            if left.lost_files > 0 && left.files == left.lost_files {
                return Ok(core.told(node, "loss", &left, None));
            }
        }
        if ordered != Some(accept_loss) {
            self.order_removal(node, accept_loss).await?;
        }
        match self.carry_removal_on(node, accept_loss).await {
            // Another node did the last step meanwhile.
            Err(fault) if [ErrorKind::NotFound, ErrorKind::Conflict].contains(&fault.kind) => {
                core.removed_before(&node.to_string()).await?.ok_or(fault)
            }
            told => told,
        }
    }

    /// Writes the order down, though the catalog may wait for the very node that is to go.
    async fn order_removal(&self, node: NodeId, accept_loss: bool) -> Result<()> {
        self.let_standby_go(node).await?;
        match self.core.begin_removal(node, accept_loss).await {
            Err(fault) if fault.kind == ErrorKind::Unavailable => {
                // Perhaps the catalog noticed only now that nobody follows it.
                self.let_standby_go(node).await?;
                self.core.begin_removal(node, accept_loss).await
            }
            ordered => ordered,
        }
    }

    /// How far the removals are that are under way.
    pub(crate) async fn removals(&self) -> Result<Vec<Removal>> {
        let view = self.core.cell.view();
        let mut all = Vec::new();
        for (node, row) in view.removing() {
            all.push(self.standing(node, row.accept_loss).await?);
        }
        all.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        Ok(all)
    }

    /// How far that of a node is; none if nobody ordered one.
    pub(crate) async fn removal_of(&self, name: &str) -> Result<Option<Removal>> {
        let core = &self.core;
        let node = match core.cell.named(name) {
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                return core.removed_before(name).await?.ok_or(fault).map(Some);
            }
            found => found?,
        };
        match core.cell.view().removing().find(|(one, _)| *one == node) {
            Some((_, row)) => self.standing(node, row.accept_loss).await.map(Some),
            None => Ok(None),
        }
    }

    async fn standing(&self, node: NodeId, accept_loss: bool) -> Result<Removal> {
        let core = &self.core;
        let left = tokio::select! {
            biased;
            left = core.left_on(node) => left?,
            () = core.catalog_times.pulse.until_silent() => {
                let why = "the catalog does not answer".to_owned();
                return Ok(core.told(node, "waiting", &Left::default(), Some(why)));
            }
        };
        if let Some(why) = self.waits_for(node) {
            return Ok(core.told(node, "waiting", &left, Some(why)));
        }
        let step = match core.cell.view().is_down(node) {
            false => "evacuating",
            true if left.lost_files > 0 && left.files == left.lost_files && !accept_loss => "loss",
            true => "protecting",
        };
        let trouble = match step {
            "evacuating" => self.why_left(node).await,
            "loss" => None,
            _ => core.cell.rebuilder.trouble(),
        };
        Ok(core.told(node, step, &left, trouble))
    }

    /// Why something may stay on a live node that is to be emptied: nobody else may take it.
    async fn why_left(&self, node: NodeId) -> Option<String> {
        let suffice = self.core.check_others_in(&self.core.cell.view(), node).await;
        self.core.cell.rebuilder.trouble().or(suffice.err().map(|fault| fault.message))
    }

    /// Why nothing can be done about a node now.
    fn waits_for(&self, node: NodeId) -> Option<String> {
        let view = self.core.cell.view();
        let state = view.member(node).map(|member| member.row.state);
        match state {
            _ if self.is_catalog_with(node) => Some(keeps_catalog(&view.name(node))),
            Some(NodeState::Up) if self.is_silent(node) => {
                Some("it does not answer, and is declared down when the grace period is over".to_owned())
            }
            Some(NodeState::Leaving) => Some("it is stopping".to_owned()),
            _ => None,
        }
    }

    fn is_silent(&self, node: NodeId) -> bool {
        node != self.core.node && self.core.cell.is_suspect(node)
    }

    fn is_catalog_with(&self, node: NodeId) -> bool {
        self.catalog_host().is_some_and(|host| host.holder() == node)
    }

    /// Takes the next step of every removal that this node sees to; true if some are under way.
    async fn carry_removals_on(&self) -> bool {
        let view = self.core.cell.view();
        let mut is_more = false;
        for (node, row) in view.removing() {
            is_more = true;
            if !self.sees_to(&view, node) {
                continue;
            }
            if let Err(fault) = self.carry_removal_on(node, row.accept_loss).await {
                tracing::debug!(%node, "carrying its removal on: {fault}");
            }
        }
        is_more
    }

    /// Whether the removal of a node is carried on here: by the first of the others that answer, so that one does what all could.
    fn sees_to(&self, view: &View, node: NodeId) -> bool {
        let can = |other: &NodeId| {
            *other != node && view.is_up(*other) && !self.is_silent(*other) && !view.is_witness(*other)
        };
        view.nodes().find(can) == Some(self.core.node)
    }

    /// The next step of a removal that was ordered, as far as it goes now.
    async fn carry_removal_on(&self, node: NodeId, accept_loss: bool) -> Result<Removal> {
        let core = &self.core;
        let view = core.cell.view();
        let is_unreached = view.is_up(node) && self.is_silent(node) && view.is_unreached(node);
        let is_stopped = view.leaving().any(|leaving| leaving == node)
            && node != core.node
            && self.members().greet(node).await.is_err();
        if is_unreached || is_stopped {
            // Nobody else declares a node down that nobody ever reached, or that stopped in good order; whoever removes it says
            // that it does not come back.
            self.members().declare_down(node, Duration::ZERO).await?;
            return self.remove_lost(node, accept_loss).await;
        }
        if let Some(why) = self.waits_for(node) {
            if view.is_up(node) && self.is_silent(node) {
                self.let_standby_go(node).await?;
            }
            return Ok(core.told(node, "waiting", &core.left_on(node).await?, Some(why)));
        }
        match view.is_down(node) {
            false => self.remove_live(node).await,
            true => self.remove_lost(node, accept_loss).await,
        }
    }

    /// A lost node that the catalog waits for could never be declared down.
    async fn let_standby_go(&self, node: NodeId) -> Result<()> {
        match self.catalog_host() {
            Some(host) if host.status().await.stalled && self.members().greet(node).await.is_err() => {
                host.detach(node).await
            }
            _ => Ok(()),
        }
    }

    async fn remove_live(&self, node: NodeId) -> Result<Removal> {
        let core = &self.core;
        // Somebody may have decided something else about it since.
        if core.cell.view().duty(node) != Duty::Evacuating {
            core.cell
                .decide_with(node, Duty::Evacuating, Commit::new().present(keys::removing(node)))
                .await?;
        }
        let left = core.left_on(node).await?;
        if left.files > 0 || !core.give_up_drives(node).await? {
            let trouble = self.why_left(node).await;
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
        if let Some(host) = self.catalog_host() {
            host.detach(node).await?;
        }
        // While its row is there: afterwards nobody knows its name.
        let told = core.told(node, "removed", left, None);
        if !core.end_rows(node, left).await? {
            return Ok(core.told(node, "waiting", left, Some("its rows changed meanwhile".to_owned())));
        }
        tracing::warn!("node {} was removed from the cluster for good", told.name);
        core.cell.load_view().await?;
        Ok(told)
    }
}

fn keeps_catalog(name: &str) -> String {
    format!(
        "{name} keeps the catalog: let another node keep it first, with `stoker catalog promote` on that node"
    )
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
        let mut left = Left::default();
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

    /// From now on a node does not count for the class of volumes, takes nothing new, and is emptied if it answers.
    async fn begin_removal(&self, node: NodeId, accept_loss: bool) -> Result<()> {
        let since_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let row = RemovingRow { since_ms, accept_loss };
        self.cell
            .decide_with(node, Duty::Evacuating, Commit::new().put(keys::removing(node), row.encode()))
            .await
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
        let mut change = Commit::new().present(keys::removing(node));
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
        self.cell.load_view().await?;
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
            .present(keys::removing(node))
            .seq(key.clone(), row.seq)
            .delete(key)
            .delete(keys::session(node))
            .delete(keys::unreached(node))
            .delete(keys::reads(node))
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
