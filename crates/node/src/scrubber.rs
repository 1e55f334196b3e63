//! The scrubber reads what nobody reads, and has repaired what it finds bad.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_qos::{COST_BYTES_MAX, Class, Cost, Tag};
use stoker_ring::{RingError, ScrubCursor};

use crate::admission::admit;
use crate::core::{Core, add};

/// Records checked in one step.
const STEP: usize = 16;

/// Pause between steps: about 16 MiB/s with full chunks.
const PAUSE: Duration = Duration::from_secs(4);

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut cursors: HashMap<usize, ScrubCursor> = HashMap::new();
    while !core.closing.load(std::sync::atomic::Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        for (at, drive) in core.rings.numbered() {
            // What a drive has that failed does not count, and is being copied.
            if drive.is_failed() {
                continue;
            }
            let cursor = cursors.entry(at).or_default();
            // A record is a chunk at most.
            let cost = Cost::bytes(u64::from(core.chunk_bytes).min(COST_BYTES_MAX));
            let scrubbed = async {
                let mut bad = Vec::new();
                for _ in 0..STEP {
                    let _permit = admit(&drive.gate, Tag::of(Class::Scrub), cost).await;
                    bad.extend(drive.ring.scrub(cursor, 1).await?);
                }
                Ok::<_, RingError>(bad)
            };
            match scrubbed.await {
                Ok(bad) => {
                    add(&core.stats.scrubbed_records, STEP as u64);
                    for chunk in bad {
                        add(&core.stats.scrub_bad, 1);
                        tracing::warn!(%chunk, drive = %drive.path.display(), "the scrubber found bad bytes");
                        core.repair_copy(at, chunk, &[], None);
                    }
                }
                Err(fault) => tracing::debug!("scrub: {fault:?}"),
            }
        }
    }
}
