//! The scrubber reads what nobody reads, and has repaired what it finds bad.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_ring::ScrubCursor;

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
            match drive.ring.scrub(cursor, STEP).await {
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
