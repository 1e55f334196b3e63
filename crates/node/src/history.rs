//! The past of the cluster. Each node keeps its own, whoever runs it tells how; asked for all, a node asks every other one and adds
//! up what comes soon. The catalog is not needed for it, and a node that does not answer is named, not waited for.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use stoker_format::NodeId;
use stoker_schema::rows::NodeState;
use stoker_store::{
    ErrorKind, HISTORY_AGE_MS_MAX, HISTORY_POINTS_MAX, History, HistoryNode, HistoryPoint, HistoryRequest,
    HistorySource, Order, Report, Result, StoreError, merge_history,
};

use crate::clock;
use crate::core::Core;
use crate::node::Node;

/// Longest wait for another node.
const ANSWER_MAX: Duration = Duration::from_millis(1_500);
/// The finest step that can be asked for.
const EVERY_MS_MIN: u64 = 1_000;

/// Who keeps the past of this node, if somebody does.
#[derive(Default)]
pub(crate) struct Past(RwLock<Option<HistorySource>>);

impl Node {
    /// Whoever asks for the past of this node is told this.
    pub fn set_history(&self, source: HistorySource) {
        *self.core.past.0.write().unwrap() = Some(source);
    }
}

/// What was asked, within what can be answered: a number from outside neither empties the answer nor makes it endless.
fn bounded(since_ms: u64, every_ms: u64, now_ms: u64) -> HistoryRequest {
    let every_ms = every_ms.clamp(EVERY_MS_MIN, HISTORY_AGE_MS_MAX);
    let age_ms_max = HISTORY_AGE_MS_MAX.min(every_ms.saturating_mul(HISTORY_POINTS_MAX as u64));
    HistoryRequest { since_ms: since_ms.max(now_ms.saturating_sub(age_ms_max)), every_ms }
}

impl Core {
    fn history_node(&self, node: NodeId, answers: bool) -> HistoryNode {
        let name = self.cell.view().member(node).map(|member| member.row.name.clone());
        HistoryNode { node: node.to_string(), name: name.unwrap_or_default(), latest: None, answers }
    }

    fn own_points(&self, request: HistoryRequest) -> Vec<HistoryPoint> {
        let source = self.past.0.read().unwrap().clone();
        source.map(|source| source(request)).unwrap_or_default()
    }

    /// The past of this node.
    pub(crate) fn history_here(&self, since_ms: u64, every_ms: u64) -> Report {
        let request = bounded(since_ms, every_ms, clock::now_ms());
        let part = (self.history_node(self.node, true), self.own_points(request));
        Report::History(Box::new(merge_history(request.every_ms, vec![part])))
    }

    /// The past of one node.
    pub(crate) async fn history_of(
        self: &Arc<Core>,
        node: &str,
        since_ms: u64,
        every_ms: u64,
    ) -> Result<Report> {
        let node = self.cell.named(node)?;
        if node == self.node {
            return Ok(self.history_here(since_ms, every_ms));
        }
        let order = Order::History { node: None, since_ms, every_ms };
        match tokio::time::timeout(ANSWER_MAX, self.cell.order_on(node, order)).await {
            Ok(report) => report,
            Err(_) => Err(StoreError::new(ErrorKind::Unavailable, format!("node {node} does not answer"))),
        }
    }

    /// The past of all nodes that answer soon.
    pub(crate) async fn history(self: &Arc<Core>, since_ms: u64, every_ms: u64) -> Result<Report> {
        let request = bounded(since_ms, every_ms, clock::now_ms());
        let view = self.cell.view();
        let others: Vec<NodeId> = view.nodes().filter(|node| *node != self.node).collect();
        let asks = others.into_iter().map(|node| {
            let is_down = view.member(node).is_none_or(|member| member.row.state == NodeState::Down);
            async move {
                if is_down || self.cell.is_suspect(node) {
                    return (self.history_node(node, false), Vec::new());
                }
                let order =
                    Order::History { node: None, since_ms: request.since_ms, every_ms: request.every_ms };
                match tokio::time::timeout(ANSWER_MAX, self.cell.order_on(node, order)).await {
                    Ok(Ok(Report::History(history))) => {
                        let History { mut points, .. } = *history;
                        points.truncate(HISTORY_POINTS_MAX + 1);
                        (self.history_node(node, true), points)
                    }
                    _ => (self.history_node(node, false), Vec::new()),
                }
            }
        });
        let mut parts = vec![(self.history_node(self.node, true), self.own_points(request))];
        parts.extend(futures_util::future::join_all(asks).await);
        parts.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        Ok(Report::History(Box::new(merge_history(request.every_ms, parts))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_is_bounded() {
        let now_ms = 100 * 86_400_000;
        let check = |since_ms, every_ms, expect: (u64, u64)| {
            let request = bounded(since_ms, every_ms, now_ms);
            assert_eq!((now_ms - request.since_ms, request.every_ms), expect, "{since_ms} {every_ms}");
        };
        check(now_ms - 5, 10_000, (5, 10_000));
        check(0, 10_000, (10_000 * HISTORY_POINTS_MAX as u64, 10_000));
        check(0, 0, (1_000 * HISTORY_POINTS_MAX as u64, 1_000));
        check(0, u64::MAX, (HISTORY_AGE_MS_MAX, HISTORY_AGE_MS_MAX));
    }
}
