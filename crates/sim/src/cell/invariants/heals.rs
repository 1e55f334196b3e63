//! Without faults everything comes to rest: all files are drained, nothing waits to be deleted, moved or forgotten.

use std::time::Duration;

use stoker_catalog::kv::{Catalog, Range};
use stoker_node::InWorld;
use stoker_store::Store;

use super::Broken;
use crate::cell::world::{Cluster, VOLUME};

/// Longest time until everything is at rest.
/// Nodes look through all that they have every five minutes.
const PATIENCE_S: u64 = 700;

/// Tables that are empty when there is nothing left to do, and what their rows are.
const TABLES: [(&[u8], &str); 10] = [
    (b"d", "undrained bytes"),
    (b"a", "requests to the lake that are not confirmed"),
    (b"i", "writes that go to the lake first"),
    (b"t", "deletes that the lake has not seen"),
    (b"R", "renames that the lake has not seen"),
    (b"L", "files that need the lake object of another key"),
    (b"g", "chunks to be deleted"),
    (b"f", "repairs"),
    (b"u", "uploads"),
    (b"x", "conflicts"),
];

/// Waits for the rest.
pub async fn check(cluster: &Cluster) -> Result<(), Broken> {
    end_uploads(cluster).await;
    let mut left = String::new();
    for _ in 0..PATIENCE_S {
        left = what_is_left(cluster).await;
        if left.is_empty() {
            cluster.trace.note(format_args!("at rest"));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Broken::new("heals", format!("after {PATIENCE_S} s without faults there is still: {left}")))
}

/// Uploads whose clients are gone are ended by a person, or after days.
async fn end_uploads(cluster: &Cluster) {
    let Some(host) = cluster.net.hosts().pop() else { return };
    let node = host.node.clone();
    let end = async move {
        let Ok(page) = node.uploads(VOLUME, b"", None, 1_000).await else { return };
        for upload in page.uploads {
            let _ = node.upload_abort(VOLUME, &upload.key, &upload.upload).await;
        }
    };
    InWorld::new(&host.world(), end).await;
}

async fn what_is_left(cluster: &Cluster) -> String {
    let mut left = Vec::new();
    for (table, words) in TABLES {
        let page = cluster.catalog.memory().range(Range::prefix(table, 1_000)).await;
        let rows = page.map(|page| page.rows).unwrap_or_default();
        if let Some(first) = rows.first() {
            left.push(format!("{words} ({} rows, the first is {})", rows.len(), first.key.escape_ascii()));
        }
    }
    let uploads = cluster.lake.uploads().len();
    if uploads > 0 {
        left.push(format!("uploads in the lake ({uploads})"));
    }
    left.join(", ")
}
