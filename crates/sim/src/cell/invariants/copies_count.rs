//! What becomes visible has its copies on nodes and drives that count at that moment (R6, R12): not on a node that was declared
//! down, which believes after a long pause that nothing happened, and not on a drive that was lost or replaced meanwhile.

use std::collections::HashSet;

use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{Catalog, Write};
use stoker_format::{DriveId, NodeId};
use stoker_schema::rows::{
    DriveRow, DriveState, EntryRow, FileRow, Layout, NodeRow, NodeState, RowValue, keys,
};

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

/// Holds a file that was just published against the nodes and drives of this moment.
pub async fn see(memory: &Memory, file: &FileRow) -> Option<Broken> {
    for holder in &file.holders {
        let (node, drive) = (keys::node(NodeId(holder.node)), keys::drive(DriveId(holder.drive)));
        let rows = memory.get(&[&node, &drive]).await.ok()?;
        let [node, drive] = &rows[..] else { return None };
        let node = node.as_ref().and_then(|row| NodeRow::of(row).ok());
        let drive = drive.as_ref().and_then(|row| DriveRow::of(row).ok());
        let is_up = node.as_ref().is_some_and(|row| row.state != NodeState::Down);
        let is_live = drive.is_some_and(|row| {
            row.state == DriveState::Live && row.incarnation == holder.incarnation && row.node == holder.node
        });
        if !is_up || !is_live {
            let what = if is_up { "a drive that does not count" } else { "a node that is down" };
            let name = node.map_or_else(String::new, |row| row.name);
            let how = format!("version {} was published with a copy on {what} ({name})", file.version());
            return Some(Broken::new("copies_count", how));
        }
    }
    None
}

/// What was seen while the cluster ran.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    cluster.catalog.watcher().seen.clone().map_or(Ok(()), Err)
}
