//! Without faults everything comes to rest: all files are drained, nothing waits to be deleted, moved or forgotten, and
//! rings hold nothing must-keep that the catalog does not know of.

use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::kv::{Catalog, Range};
use stoker_format::RecordKind;
use stoker_node::InWorld;
use stoker_schema::rows::{RowValue, SetWork, keys};
use stoker_store::Store;

use super::Broken;
use crate::cell::world::{Cluster, VOLUME};

/// Longest time until everything is at rest.
/// Nodes look through all that they have every five minutes.
const PATIENCE_S: u64 = 700;

/// Longest time until a node that lives answers.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Tables that are empty when there is nothing left to do, and what their rows are.
const TABLES: [(&[u8], &str); 13] = [
    (b"d", "undrained bytes"),
    (b"l", "copies that are missing"),
    (b"a", "requests to the lake that are not confirmed"),
    (b"i", "writes that go to the lake first"),
    (b"t", "deletes that the lake has not seen"),
    (b"R", "renames that the lake has not seen"),
    (b"L", "files that need the lake object of another key"),
    (b"g", "chunks to be deleted"),
    (b"f", "repairs"),
    (b"u", "uploads"),
    (b"x", "conflicts"),
    (b"o", "sets that gather"),
    (b"q", "work for sets"),
];

/// Waits for the rest.
pub async fn check(cluster: &Arc<Cluster>) -> Result<(), Broken> {
    wait(async || {
        // Again and again: one may come late, and a node that stops ends none.
        end_uploads(cluster).await;
        // Both at the same moment: while one is waited for, a late publish may bring the other back.
        match rows_left(cluster).await {
            rows if !rows.is_empty() => format!("rows: {rows}"),
            _ => match records_left(cluster) {
                records if !records.is_empty() => format!("records that no row needs: {records}"),
                _ => String::new(),
            },
        }
    })
    .await?;
    cluster.trace.note(format_args!("at rest"));
    Ok(())
}

async fn wait(look: impl AsyncFn() -> String) -> Result<(), Broken> {
    let mut left = String::new();
    for _ in 0..PATIENCE_S {
        left = look().await;
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Broken::new("heals", format!("after {PATIENCE_S} s without faults there are still {left}")))
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
    // One that is leaving never answers.
    let _ = tokio::time::timeout(ANSWER_MAX, InWorld::new(&host.world(), end)).await;
}

async fn rows_left(cluster: &Cluster) -> String {
    let mut left = Vec::new();
    for (table, words) in TABLES {
        let page = cluster.catalog.memory().range(Range::prefix(table, 1_000)).await;
        let mut rows = page.map(|page| page.rows).unwrap_or_default();
        if table == keys::SET_WORK {
            // That a set was given up is remembered for late shards.
            rows.retain(|row| !matches!(SetWork::of(row), Ok(SetWork::Remember { .. })));
        }
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

/// Records that only rings have, although nothing in the catalog needs them any more.
fn records_left(cluster: &Cluster) -> String {
    let mut left = Vec::new();
    for (at, ring) in cluster.rings() {
        // The record of a set that was given up stays as long as the set is remembered. Its id begins with a volume's number.
        let mut dirty = ring.dirty();
        dirty.retain(|record| record.kind == RecordKind::Chunk || record.chunk.version.0[..2] != [0, 0]);
        if let Some(first) = dirty.first() {
            left.push(format!("{} on m{at}, the first is {:?} {}", dirty.len(), first.kind, first.chunk));
        }
    }
    left.join(", ")
}
