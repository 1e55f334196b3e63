//! What is decided about a node: that it is down, that it stops or is back, and what persons want of it. Each is one transaction.
//!
//! A node is declared down (R12) by a transaction that checks that the declaring node itself is not fenced, that the other one did not start
//! again meanwhile, and that ends its session. Pings only suspect; nothing that loses bytes is done on a suspicion.

use std::time::Duration;

use stoker_catalog::kv::{Commit, Range};
use stoker_format::NodeId;
use stoker_schema::rows::{Duty, NodeRow, NodeState, RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError, Subject};

use crate::error;
use crate::members::Members;

/// Pause before a transaction about a lost node is tried again.
const DECLARE_PAUSE: Duration = Duration::from_secs(2);

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 8;

impl Members {
    /// Declares that a node is gone, by a transaction (R12): its session is over, and what it alone held is protected
    /// again. True if this call did it. Refused as long as it was not silent for `silent`: it may have started again, and pings
    /// tell so later than the catalog does.
    pub async fn declare_down(&self, node: NodeId, silent: Duration) -> Result<bool> {
        self.declare(node, NodeState::Down, silent).await
    }

    /// Declares a node down that was silent for the grace period, unless it is back or somebody else did; and again for as long
    /// as it is silent, should it start anew where it reaches the catalog and nobody reaches it. (D56)
    pub async fn give_up(&self, lost: NodeId, grace: Duration) {
        let mut is_sure = false;
        while self.is_suspect(lost) && !self.is_closing() {
            let view = self.view();
            if view.member(lost).is_none() {
                return;
            }
            if view.is_down(lost) {
                is_sure = false;
                tokio::time::sleep(DECLARE_PAUSE).await;
                continue;
            }
            // Nobody ever reached it, and it holds nothing: there is nothing to make up for, and it would only start again.
            if view.is_unreached(lost) && matches!(self.holds_nothing(lost).await, Ok(true)) {
                tokio::time::sleep(DECLARE_PAUSE).await;
                continue;
            }
            // Who hears nobody of several is more likely to be cut off than to have survived them all. Those who hear each
            // other declare it down meanwhile, which ends its session, and with it what it could declare.
            if !std::mem::replace(&mut is_sure, true) && self.hears_nobody() {
                tokio::time::sleep(grace.max(DECLARE_PAUSE)).await;
                continue;
            }
            // Datagrams may be lost on a way that carries everything else. Only who answers nothing at all is given up; and it may
            // have been heard while that question went unanswered.
            if self.greet(lost).await.is_err() && self.is_suspect(lost) {
                match self.declare_down(lost, grace).await {
                    Ok(true) => tracing::warn!("node {lost} was silent for too long: declared down"),
                    Ok(false) => {}
                    Err(fault) => {
                        tracing::warn!("node {lost} is silent, and cannot be declared down yet: {fault}");
                    }
                }
            }
            tokio::time::sleep(DECLARE_PAUSE).await;
        }
    }

    /// Announces that this node stops, or that it is back.
    pub async fn announce(&self, leaving: bool) -> Result<bool> {
        let state = if leaving { NodeState::Leaving } else { NodeState::Up };
        self.declare(self.node, state, Duration::ZERO).await
    }

    /// Says in the catalog what became of a node, if it is so long ago that it said something itself. (D40)
    async fn declare(&self, node: NodeId, state: NodeState, silent: Duration) -> Result<bool> {
        let key = keys::node(node);
        let row = self.row(&key).await?;
        let unknown =
            || StoreError::about(ErrorKind::NotFound, Subject::Node, format!("there is no node {node}"));
        let row = row.ok_or_else(unknown)?;
        let mut value = NodeRow::of(&row).map_err(error::catalog)?;
        if value.state == state {
            return Ok(false);
        }
        let now_ms = self.now_ms().await?;
        if now_ms < value.since_ms.saturating_add(silent.as_millis() as u64) {
            return Err(StoreError::new(ErrorKind::Unavailable, format!("node {node} restarted recently")));
        }
        (value.state, value.since_ms) = (state, now_ms);
        let mut change = Commit::new().seq(key.clone(), row.seq).put(key, value.encode_at(self.level.get()));
        // Whoever was away for long thinks that all others were. If they went on without it, its word counts no more.
        change.checks.push(self.own_session());
        if state == NodeState::Down {
            change = change.delete(keys::session(node));
        }
        let done = self.change(change).await?;
        self.load_view().await?;
        Ok(done)
    }

    /// Whether no row says that something which is not in the lake is on a node.
    async fn holds_nothing(&self, node: NodeId) -> Result<bool> {
        let page =
            self.catalog.range(Range::prefix(&keys::dirty_of(node), 1)).await.map_err(error::catalog)?;
        Ok(page.rows.is_empty())
    }

    /// What a person decided about a node.
    pub async fn decide(&self, node: NodeId, duty: Duty) -> Result<()> {
        self.decide_with(node, duty, Commit::new()).await
    }

    /// The same in one transaction with what belongs to it.
    pub async fn decide_with(&self, node: NodeId, duty: Duty, with: Commit) -> Result<()> {
        let key = keys::node(node);
        for _ in 0..TRIES_MAX {
            let row = self.row(&key).await?;
            let unknown =
                || StoreError::about(ErrorKind::NotFound, Subject::Node, format!("there is no node {node}"));
            let row = row.ok_or_else(unknown)?;
            let mut value = NodeRow::of(&row).map_err(error::catalog)?;
            if value.duty == duty && with.writes.is_empty() {
                return Ok(());
            }
            value.duty = duty;
            let change =
                with.clone().seq(key.clone(), row.seq).put(key.clone(), value.encode_at(self.level.get()));
            if self.change(change).await? {
                self.load_view().await?;
                return Ok(());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, format!("the row of node {node} is contended; retry")))
    }
}
