//! The scrubber reads what nobody reads, and repairs clean chunks from the lake.

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
    let mut cursors: Vec<ScrubCursor> = core.rings.drives().iter().map(|_| ScrubCursor::default()).collect();
    while !core.closing.load(std::sync::atomic::Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        for (drive, cursor) in core.rings.drives().iter().zip(&mut cursors) {
            match drive.ring.scrub(cursor, STEP).await {
                Ok(bad) => {
                    add(&core.stats.scrubbed_records, STEP as u64);
                    for chunk in bad {
                        add(&core.stats.scrub_bad, 1);
                        let clean = drive.ring.stat(&chunk).is_some_and(|info| info.clean);
                        if clean {
                            // The lake has it: dropped here, it comes back sound with the next read.
                            tracing::warn!(%chunk, drive = %drive.path.display(), "bad bytes of a drained chunk: dropped");
                            if let Err(fault) = drive.ring.delete(vec![chunk]).await {
                                tracing::warn!(%chunk, "dropping it: {fault:?}");
                            }
                        } else {
                            tracing::error!(%chunk, drive = %drive.path.display(), "bad bytes of a chunk with no other copy");
                        }
                    }
                }
                Err(fault) => tracing::debug!("scrub: {fault:?}"),
            }
        }
    }
}
