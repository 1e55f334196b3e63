//! A node counts once another one has dialled it back.
//!
//! A node that joins reaches the cluster; whether the cluster reaches it is another question, and a copy there is worth nothing as
//! long as the answer is no. So it begins with a row that says "unreached", as it does when it comes back at other addresses. Members
//! that count dial it there, and the first that gets an answer removes the row by a transaction: from then on it takes chunks and
//! counts for the class of volumes, for all nodes at the same time. Until then nobody waits for it, and everybody can say who could
//! not reach it, and where. (D90)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::Row;
use stoker_catalog::kv::{Catalog, Commit, Outcome, Range};
use stoker_format::NodeId;
use stoker_schema::level::Level;
use stoker_schema::rows::{Duty, FailedDial, NodeRow, NodeState, RemovedRow, RowValue, UnreachedRow, keys};
use stoker_store::{ErrorKind, Result, StoreError, Subject, Unreachable};
use tokio::time::Instant;

use crate::error;
use crate::members::{CellOptions, Members};
use crate::view::View;

/// Pause between looks when nothing happens.
const PAUSE: Duration = Duration::from_secs(2);

/// Pause between two dials of one node.
const DIAL_PAUSE: Duration = Duration::from_millis(200);

/// A node that starts answers "not yet" for a moment: only what fails for so long is told.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Longest name of a node that joins: that of a machine.
const NAME_LEN_MAX: usize = 253;

/// Longest reason that is written down.
const WHY_LEN_MAX: usize = 300;

/// The rows by which a node begins to be a member: its own, and the one that says nobody has reached it there. Refuses one that
/// was removed, and a new one whose name is taken.
pub async fn begin(
    catalog: &dyn Catalog,
    node: NodeId,
    cell: &CellOptions,
    level: Level,
    begin: Commit,
) -> Result<Commit> {
    let now_ms = catalog.now_ms().await.map_err(error::catalog)?;
    let mut known = None;
    let mut others: Vec<NodeRow> = Vec::new();
    let mut range = Range::prefix(b"M", 1_000);
    loop {
        let page = catalog.range(range.clone()).await.map_err(error::catalog)?;
        for row in &page.rows {
            let value = NodeRow::of(row).map_err(error::catalog)?;
            match keys::node_id(&row.key) {
                Some(id) if id == node => known = Some(value),
                _ => others.push(value),
            }
        }
        match page.rows.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => break,
        }
    }
    if known.is_none() && others.iter().any(|other| other.name == cell.name) {
        return Err(StoreError::new(ErrorKind::Conflict, name_taken(&cell.name)));
    }
    let key = keys::unreached(node);
    let was_unreached = catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten().is_some();
    let is_elsewhere = known.as_ref().is_none_or(|row| row.addresses != cell.addresses);
    let begin = match (others.is_empty(), is_elsewhere || was_unreached) {
        (true, _) => begin.delete(key),
        (false, true) => begin.put(key, UnreachedRow { since_ms: now_ms, failed: None }.encode()),
        (false, false) => begin,
    };
    // What a person decided about it holds for this boot, too.
    let duty = known.map_or(Duty::Full, |row| row.duty);
    Ok(begin.absent(keys::removed(node)).put(keys::node(node), cell.row(now_ms, duty).encode_at(level)))
}

/// The words for a node whose name another one has.
pub fn name_taken(name: &str) -> String {
    format!("the name `{name}` is taken by another node of the cluster; choose another one with --name")
}

/// Refuses a node that was removed for good.
pub async fn check_removed(catalog: &dyn Catalog, node: NodeId) -> Result<()> {
    let row = catalog.get(&[&keys::removed(node)]).await.map_err(error::catalog)?.pop().flatten();
    match row.as_ref().map(RemovedRow::of).transpose().map_err(error::catalog)? {
        None => Ok(()),
        Some(row) => Err(StoreError::about(ErrorKind::Denied, Subject::Node, removed(&row.name))),
    }
}

/// The words for a node that was removed.
pub fn removed(name: &str) -> String {
    format!(
        "this node ({name}) was removed from its cluster for good. To use this machine again, join as a new node with an empty \
         directory: `stoker join HOST:PORT --dir NEW_DIR`"
    )
}

/// Dials nodes that nobody has reached, until the node closes.
pub async fn run(members: Arc<Members>) {
    let mut tried: HashMap<NodeId, Tried> = HashMap::new();
    while !members.is_closing() {
        let mut woken = std::pin::pin!(members.wake.notified());
        woken.as_mut().enable();
        let is_waiting = members.dial_unreached(&mut tried).await;
        let pause = if is_waiting { DIAL_PAUSE } else { PAUSE };
        tokio::select! {
            biased;
            () = woken => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What came of dialling a node so far.
struct Tried {
    session: Option<[u8; 16]>,
    first: Instant,
    last: Instant,
}

impl Members {
    /// Dials every node that is due; true if some are still unreached.
    async fn dial_unreached(&self, tried: &mut HashMap<NodeId, Tried>) -> bool {
        let view = self.view();
        let due: Vec<NodeId> = view.unreached().filter(|node| self.may_vouch(&view, *node)).collect();
        tried.retain(|node, tried| due.contains(node) && tried.session == view.session(*node));
        let now = Instant::now();
        let dials = due
            .iter()
            .copied()
            .filter(|node| tried.get(node).is_none_or(|tried| now.duration_since(tried.last) >= DIAL_PAUSE));
        let dials = dials.map(|node| async move { (node, self.greet(node).await) });
        for (node, dialled) in futures_util::future::join_all(dials).await {
            let session = view.session(node);
            let first = tried.get(&node).map_or(now, |tried| tried.first);
            tried.insert(node, Tried { session, first, last: Instant::now() });
            let noted = match dialled {
                Ok(()) => self.note_reached(&view, node).await,
                Err(fault) if first.elapsed() >= TOLD_AFTER => self.note_unreached(node, &fault).await,
                Err(_) => Ok(()),
            };
            if let Err(fault) = noted {
                tracing::debug!(%node, "noting whether it is reached: {fault}");
            }
        }
        !due.is_empty()
    }

    /// Whether this node may say that another one is reached: who counts itself, or anybody as long as nobody does. Otherwise two
    /// nodes that nobody else reaches could vouch for each other.
    fn may_vouch(&self, view: &View, node: NodeId) -> bool {
        let is_another = |other: &NodeId| *other != node && *other != self.node;
        let counts = |other: &NodeId| view.is_up(*other) && !view.is_unreached(*other);
        node != self.node
            && view.is_up(node)
            && view.session(node).is_some()
            && (!view.is_unreached(self.node) || !view.nodes().filter(is_another).any(|other| counts(&other)))
    }

    async fn unreached_row(&self, node: NodeId) -> Result<Option<(Row, UnreachedRow)>> {
        let row = self.row(&keys::unreached(node)).await?;
        row.map(|row| Ok((row.clone(), UnreachedRow::of(&row).map_err(error::catalog)?))).transpose()
    }

    async fn note_reached(&self, view: &View, node: NodeId) -> Result<()> {
        let Some((row, _)) = self.unreached_row(node).await? else { return Ok(()) };
        // It answered in this boot, at these addresses.
        let Some(session) = view.session(node).and_then(|session| view.session_check(node, session)) else {
            return Ok(());
        };
        let mut change = Commit::new().seq(row.key.clone(), row.seq).delete(row.key).check(session);
        change.checks.push(self.own_session());
        if let Outcome::Done { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            tracing::info!(
                "node {} answers at {}: it counts from now on",
                view.name(node),
                view.places(node)
            );
        }
        self.load_view().await.map(drop)
    }

    async fn note_unreached(&self, node: NodeId, fault: &StoreError) -> Result<()> {
        let Some((row, value)) = self.unreached_row(node).await? else { return Ok(()) };
        // Whoever tried first is named; that others cannot either is no news.
        if value.failed.is_some() {
            return Ok(());
        }
        let why: String = fault.message.chars().take(WHY_LEN_MAX).collect();
        let value = UnreachedRow { failed: Some(FailedDial { by: self.node.0, why }), ..value };
        let mut change = Commit::new().seq(row.key.clone(), row.seq).put(row.key, value.encode());
        change.checks.push(self.own_session());
        if let Outcome::Done { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            let view = self.view();
            tracing::warn!(
                "node {} cannot be reached at {}: {}; it holds nothing and does not count",
                view.name(node),
                view.places(node),
                fault.message
            );
        }
        self.load_view().await.map(drop)
    }
}

impl View {
    /// Nodes that could not be reached by another one.
    pub fn unreachable(&self) -> Vec<Unreachable> {
        let one = |node: NodeId| {
            let row = self.unreached_row(node)?;
            let failed = row.failed.as_ref()?;
            Some(Unreachable {
                node: node.to_string(),
                name: self.name(node),
                addresses: self.member(node)?.row.addresses.clone(),
                by: self.name(NodeId(failed.by)),
                why: failed.why.clone(),
                since_ms: row.since_ms,
            })
        };
        let up = |node: &NodeId| self.member(*node).is_some_and(|member| member.row.state == NodeState::Up);
        self.unreached().filter(up).filter_map(one).collect()
    }

    /// Where a node is, for people.
    pub fn places(&self, node: NodeId) -> String {
        self.member(node).map_or_else(String::new, |member| member.row.addresses.join(", "))
    }
}

impl Members {
    /// Whether a node is a member that another one has reached.
    pub fn has_reached(&self, node: NodeId) -> bool {
        let view = self.view();
        view.member(node).is_some() && !view.is_unreached(node)
    }

    /// Refuses the name of a node that wants to join if another one has it.
    pub fn check_name_free(&self, name: &str) -> std::result::Result<(), String> {
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(char::is_control) {
            return Err(format!("the name of a node has 1 to {NAME_LEN_MAX} printable bytes"));
        }
        let view = self.view();
        let has = |node: NodeId| view.member(node).is_some_and(|member| member.row.name == name);
        if view.nodes().any(has) { Err(name_taken(name)) } else { Ok(()) }
    }

    /// Nodes that could not be reached by another one, as this node knows it.
    pub fn unreachable(&self) -> Vec<Unreachable> {
        self.view().unreachable()
    }

    /// Waits until another node has reached this one; gives what is wrong if that does not come about in this time.
    pub async fn until_reached(&self, within: Duration) -> Option<Unreachable> {
        let own = self.node;
        let reached = async {
            loop {
                let mut woken = std::pin::pin!(self.wake.notified());
                woken.as_mut().enable();
                let view = self.view();
                if !view.is_unreached(own) {
                    return None;
                }
                if let Some(found) = view.unreachable().into_iter().find(|one| one.node == own.to_string()) {
                    return Some(found);
                }
                woken.await;
            }
        };
        match tokio::time::timeout(within, reached).await {
            Ok(found) => found,
            Err(_) => {
                let view = self.view();
                view.is_unreached(own).then(|| Unreachable {
                    node: own.to_string(),
                    name: view.name(own),
                    addresses: view
                        .member(own)
                        .map(|member| member.row.addresses.clone())
                        .unwrap_or_default(),
                    by: "any other node".to_owned(),
                    why: "nobody has tried yet".to_owned(),
                    since_ms: 0,
                })
            }
        }
    }
}
