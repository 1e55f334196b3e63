//! Clocks that jump: nothing that was acknowledged is given up by a clock that nobody confirms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::*;
use stoker_node::{GivenWorld, InWorld, Node, World};
use stoker_store::{Condition, Finish, PartChoice, Store, UploadId};

const DAY_MS: u64 = 24 * 3_600_000;

/// The machine, with a clock that is ahead.
struct Ahead(AtomicU64);

impl World for Ahead {
    #[expect(clippy::disallowed_methods, reason = "the clock of the test")]
    fn now_ms(&self) -> u64 {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        real.as_millis() as u64 + self.0.load(Ordering::Relaxed)
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut state = std::collections::hash_map::RandomState::new();
        for piece in bytes.chunks_mut(8) {
            use std::hash::BuildHasher;
            piece.copy_from_slice(&state.hash_one(piece.len()).to_le_bytes()[..piece.len()]);
            state = std::collections::hash_map::RandomState::new();
        }
    }

    fn poll_alive(&self, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(true)
    }
}

async fn open(home: &Home, world: &GivenWorld) -> Arc<Node> {
    let mut options = home.options();
    options.world = Some(world.clone());
    InWorld::new(world, Node::open(options)).await.unwrap()
}

/// Waits until the node has looked for what has expired, and says whether an upload is still there.
async fn is_kept(node: &Node) -> bool {
    for _ in 0..600 {
        let looked = counter(node, "expiry_rounds_total").await >= 1.0;
        let page = node.uploads("data", b"", None, 10).await.unwrap();
        if looked || page.uploads.is_empty() {
            return !page.uploads.is_empty();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody looks for what has expired");
}

async fn complete(
    node: &Node,
    upload: &UploadId,
    etag: String,
) -> stoker_store::Result<stoker_store::Receipt> {
    let parts = vec![PartChoice { number: 1, etag, checksum: None }];
    node.upload_complete("data", &key("x"), upload, parts, Condition::default(), Finish::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_days_ahead_at_a_start_aborts_no_upload() {
    let home = Home::new(eager());
    let clock = Arc::new(Ahead(AtomicU64::new(0)));
    let world = GivenWorld(clock.clone());
    let node = open(&home, &world).await;
    node.volume_create("data", Default::default()).await.unwrap();
    let upload = node.upload_create("data", &key("x"), Default::default(), None).await.unwrap().upload;
    let bytes = pattern(1, 100_000);
    let mut writer = node.upload_part("data", &key("x"), &upload, 1, None).await.unwrap();
    write(&mut writer, &bytes).await.unwrap();
    let part = writer.finish(Finish::default()).await.unwrap();
    // Twice: what was believed before a restart is believed after it.
    let mut node = Some(node);
    for _ in 0..2 {
        node.take().unwrap().stop().await;
        clock.0.fetch_add(8 * DAY_MS, Ordering::Relaxed);
        let again = open(&home, &world).await;
        assert!(is_kept(&again).await, "the upload was aborted");
        node = Some(again);
    }
    let node = node.unwrap();
    complete(&node, &upload, part.etag).await.unwrap();
    assert!(get(&node, "x").await.unwrap() == bytes);
    node.stop().await;
}
