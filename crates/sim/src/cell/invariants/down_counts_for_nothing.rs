//! A node that was declared down makes nothing visible and holds no copy that counts, until it is back (R6, R12): whoever comes
//! back from a long pause believes that nothing happened.

use std::collections::HashSet;

use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{Catalog, Write};
use stoker_catalog::rows::{EntryRow, FileRow, Layout, NodeRow, NodeState, RowValue, keys};
use stoker_format::NodeId;

use super::Broken;
use crate::cell::world::Cluster;

/// Somebody who sees every commit.
#[derive(Default)]
pub struct Watcher {
    versions: HashSet<[u8; 12]>,
    seen: Option<Broken>,
}

impl Watcher {
    /// Files of their own chunks that became visible with a commit for the first time.
    pub fn fresh(&mut self, writes: &[Write]) -> Vec<FileRow> {
        let mut fresh = Vec::new();
        for write in writes {
            let Write::Put(key, value) = write else { continue };
            if key.first() != Some(&b'E') {
                continue;
            }
            let Ok(EntryRow::File(file)) = EntryRow::decode(value) else { continue };
            // What goes on with chunks of other versions has their holders, whom a rebuild looks after.
            if self.versions.insert(file.version) && matches!(file.layout, Layout::Simple { .. }) {
                fresh.push(*file);
            }
        }
        fresh
    }

    /// Notes what was seen.
    pub fn note(&mut self, broken: Option<Broken>) {
        if self.seen.is_none() {
            self.seen = broken;
        }
    }
}

/// Holds a file that was just published against the nodes of this moment.
pub async fn see(memory: &Memory, file: &FileRow) -> Option<Broken> {
    for holder in &file.holders {
        let found = memory.get(&[&keys::node(NodeId(holder.node))]).await.ok()?;
        let row = NodeRow::of(found.first()?.as_ref()?).ok()?;
        if row.state == NodeState::Down {
            let how = format!(
                "version {} was published with a copy on `{}`, which is down",
                file.version(),
                row.name
            );
            return Some(Broken::new("down_counts_for_nothing", how));
        }
    }
    None
}

/// What was seen while the cluster ran.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    cluster.catalog.watcher().seen.clone().map_or(Ok(()), Err)
}
