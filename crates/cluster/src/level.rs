//! The level of the cluster (R14), as a node sees to it: it says what it can read, refuses to start where it cannot read all, and raises
//! the level once every member can read the next one. What levels are is told in `stoker_schema::level`. (D124)

use std::collections::BTreeMap;

use stoker_catalog::Row;
use stoker_catalog::kv::{Catalog, Commit, prefix_end};
use stoker_format::NodeId;
use stoker_schema::level::{self, Level, LevelRow, ReadsRow};
use stoker_schema::rows::{RowValue, keys};
use stoker_store::{ErrorKind, LevelNode, LevelStatus, Result, StoreError};

use crate::error;
use crate::members::Members;
use crate::view::View;

/// Tries before a change that others keep getting in the way of is given up.
const TRIES_MAX: usize = 10;

/// The level of the cluster, and its row for a check; refuses one that this release cannot read.
pub async fn read(catalog: &dyn Catalog) -> Result<(LevelRow, Option<Row>)> {
    let row = catalog.get(&[keys::LEVEL]).await.map_err(error::catalog)?.pop().flatten();
    let value = row.as_ref().map(LevelRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
    if value.level > Level::NEWEST {
        let message = format!(
            "the cluster is at level {}, and this release ({}) knows levels up to {}: its nodes cannot go back to it. Start the \
             release that the others run (`stoker cluster level` on one of them), or a newer one",
            value.level,
            env!("CARGO_PKG_VERSION"),
            Level::NEWEST
        );
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    Ok((value, row))
}

/// Says what this boot of a node can read, in the transaction that begins it. The level must not rise meanwhile: whoever raises it counts
/// the members.
pub fn begin(node: NodeId, session: [u8; 16], row: Option<&Row>, begin: Commit) -> Commit {
    let reads = ReadsRow { session, newest: Level::NEWEST, release: env!("CARGO_PKG_VERSION").to_owned() };
    begin.unchanged(keys::LEVEL, row).put(keys::reads(node), reads.encode())
}

impl Members {
    /// Members, each with the session of its present boot; none if it has none. A node that never joined is a member of nothing, and alone.
    fn boots(&self, view: &View) -> Vec<(NodeId, Option<[u8; 16]>)> {
        let others = view.nodes().filter(|node| *node != self.node && self.is_joined());
        let others = others.map(|node| (node, view.session(node)));
        std::iter::once((self.node, Some(self.session_id))).chain(others).collect()
    }

    /// What nodes said that they can read, each with its row. Of another boot than the present one it does not count.
    async fn readers(&self) -> Result<BTreeMap<NodeId, (ReadsRow, Vec<u8>)>> {
        let mut readers = BTreeMap::new();
        self.each(keys::READS, |row| {
            if let Some(node) = keys::node_behind(keys::READS, &row.key) {
                let reads = ReadsRow::of(row).map_err(error::catalog)?;
                readers.insert(node, (reads, row.value.to_vec()));
            }
            Ok(())
        })
        .await?;
        Ok(readers)
    }

    /// Raises the level if every member can read a higher one.
    pub async fn raise_level(&self) -> Result<()> {
        // It never falls, and rises no further while this node is a member: nothing is asked.
        if self.level.get() == Level::NEWEST {
            return Ok(());
        }
        let (value, row) = read(&*self.catalog).await?;
        self.level.saw(value.level);
        if value.level == Level::NEWEST || value.is_held {
            return Ok(());
        }
        let (view, readers) = (self.view(), self.readers().await?);
        let boots = self.boots(&view);
        let own = self.own_session();
        let mut change = Commit::new().unchanged(keys::LEVEL, row.as_ref()).check(own);
        let mut levels = Vec::new();
        for (node, session) in &boots {
            let reads = readers.get(node).filter(|(reads, _)| Some(reads.session) == *session);
            let Some((reads, bytes)) = reads else { return Ok(()) };
            levels.push(reads.newest);
            change = change.value(keys::reads(*node), bytes.clone());
            if *node != self.node {
                let Some(check) = view.session_check(*node, reads.session) else { return Ok(()) };
                change = change.check(check);
            }
        }
        let Some(next) = level::next(&value, levels) else { return Ok(()) };
        // Nobody joined meanwhile: who is not among the members has not said what it can read.
        let end = prefix_end(keys::NODES).expect("a table is not 0xff");
        let since_ms = self.now_ms().await?;
        let raised = LevelRow { level: next, is_held: false, since_ms };
        let change = change.at_most(keys::NODES, end, boots.len()).put(keys::LEVEL, raised.encode());
        if self.change(change).await? {
            self.level.saw(next);
            // A new cluster is raised to the newest level within its first second; no older release ever ran in it.
            match view.nodes().count() {
                1 => tracing::info!("the forms of rows and messages are those of level {next}"),
                _ => tracing::info!(
                    "every node can read level {next}: it is that of the cluster from now on, and older releases do not start any more"
                ),
            }
        }
        Ok(())
    }

    /// The level, what every node can read, and what keeps it from rising.
    pub async fn level_status(&self) -> Result<LevelStatus> {
        let (value, _) = read(&*self.catalog).await?;
        let (view, readers) = (self.view(), self.readers().await?);
        let of = |(node, session): &(NodeId, Option<[u8; 16]>)| {
            let known = readers.get(node).map(|(reads, _)| reads);
            let reads = known.filter(|reads| Some(reads.session) == *session);
            let holds_up = match (session, reads) {
                (None, _) => Some("it is down: start it, or `stoker node remove` it".to_owned()),
                (Some(_), None) => Some("it runs a release that knows no levels: upgrade it".to_owned()),
                (Some(_), Some(reads)) if reads.newest < Level::NEWEST => {
                    Some(format!("its release reads levels up to {}: upgrade it", reads.newest))
                }
                _ => None,
            };
            LevelNode {
                node: node.to_string(),
                name: view.name(*node),
                reads: reads.map_or(Level::FIRST, |reads| reads.newest).0,
                release: reads.map(|reads| reads.release.clone()),
                holds_up,
            }
        };
        Ok(LevelStatus {
            level: value.level.0,
            newest: Level::NEWEST.0,
            is_held: value.is_held,
            since_ms: value.since_ms,
            nodes: self.boots(&view).iter().map(of).collect(),
        })
    }

    /// Keeps the level from rising by itself, or lets it.
    pub async fn hold_level(&self, is_held: bool) -> Result<LevelStatus> {
        for _ in 0..TRIES_MAX {
            let (value, row) = read(&*self.catalog).await?;
            if value.is_held == is_held {
                return self.level_status().await;
            }
            let held = LevelRow { is_held, ..value };
            let change = Commit::new().unchanged(keys::LEVEL, row.as_ref()).put(keys::LEVEL, held.encode());
            if self.change(change).await? {
                if !is_held {
                    self.raise_level().await?;
                }
                return self.level_status().await;
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "the row of the level is contended; try again"))
    }
}
