//! Power loss on real files: drives that lose what was not durable, under real nodes. What was acknowledged is there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stoker_node::{Node, NodeOptions};
use stoker_ring::{IoMode, Power, SyncMode};
use stoker_store::{Condition, Store};

use crate::harness::{Home, get, key, lazy, pattern, put_if};

/// Writers at the same time.
const WRITERS: usize = 8;

/// What is known of a key: what was acknowledged last, and what may have come since.
#[derive(Clone, Default)]
struct Known {
    /// None: it is not there.
    acknowledged: Option<Vec<u8>>,
    /// Tried and not answered.
    open: Vec<Option<Vec<u8>>>,
}

type Model = Arc<Mutex<BTreeMap<String, Known>>>;

fn mix(seed: u64) -> u64 {
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn options(home: &Home, sync: SyncMode, io: IoMode, power: Option<Arc<Power>>) -> NodeOptions {
    let mut options = home.options();
    options.ring.sync = sync;
    options.ring.io = io;
    options.ring.power = power;
    options
}

/// Writes, replaces and deletes its own keys until the power is off.
async fn work(node: Arc<Node>, writer: usize, seed: u64, model: Model, acknowledged: Arc<AtomicUsize>) {
    for turn in 0.. {
        let dice = mix(seed ^ (writer as u64) << 40 ^ turn);
        let name = format!("w{writer}/{}", dice % 7);
        let wanted = match dice % 5 {
            0 => None,
            _ => Some(pattern(dice, [100, 5_000, 70_000, 300_000][(dice >> 8) as usize % 4])),
        };
        model.lock().unwrap().entry(name.clone()).or_default().open.push(wanted.clone());
        let done = match &wanted {
            Some(bytes) => put_if(&node, "data", &name, bytes, Condition::default()).await.map(drop),
            None => {
                let deleted = node.delete("data", vec![(key(&name), Condition::default())]).await;
                deleted.and_then(|mut each| each.pop().unwrap()).map(drop)
            }
        };
        if done.is_err() {
            return;
        }
        let known = Known { acknowledged: wanted, open: Vec::new() };
        model.lock().unwrap().insert(name, known);
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
}

/// One node until its power goes; checked after the next start.
/// Gives how many blocks the drives lost.
async fn cut_once(home: &Home, sync: SyncMode, io: IoMode, seed: u64, model: &Model) -> u64 {
    let power = Arc::new(Power::default());
    let node = Node::open(options(home, sync, io, Some(power.clone()))).await.unwrap();
    let _ = node.volume_create("data", Default::default()).await;
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            tokio::spawn(work(node.clone(), writer, mix(seed), model.clone(), acknowledged.clone()))
        })
        .collect();
    let enough = 20 + mix(seed) as usize % 150;
    while acknowledged.load(Ordering::SeqCst) < enough {
        tokio::task::yield_now().await;
    }
    let mut dice = seed;
    let cut = power.clone();
    let undone = tokio::task::spawn_blocking(move || {
        cut.cut(|| {
            dice = mix(dice);
            dice.is_multiple_of(3)
        })
    });
    let undone = undone.await.unwrap().unwrap();
    for worker in workers {
        worker.await.unwrap();
    }
    node.stop().await;
    drop(node);
    let node = Node::open(options(home, sync, io, None)).await.unwrap();
    let known = model.lock().unwrap().clone();
    for (name, known) in known {
        let found = get(&node, &name).await;
        let found = match found {
            Ok(bytes) => Some(bytes),
            Err(fault) => {
                assert_eq!(fault.kind, stoker_store::ErrorKind::NotFound, "seed {seed}, {name}: {fault}");
                None
            }
        };
        let is_known = found == known.acknowledged || known.open.contains(&found);
        assert!(
            is_known,
            "seed {seed}, {sync:?}, {io:?}: {name} is neither what was acknowledged nor what was tried"
        );
        // Whatever it is now, it is that from now on.
        model.lock().unwrap().insert(name, Known { acknowledged: found, open: Vec::new() });
    }
    node.stop().await;
    undone
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_the_power_was_cut() {
    for (at, (sync, io)) in [
        (SyncMode::Dsync, IoMode::Auto),
        (SyncMode::Flush, IoMode::Auto),
        (SyncMode::Dsync, IoMode::Psync),
        (SyncMode::Flush, IoMode::Psync),
    ]
    .into_iter()
    .enumerate()
    {
        let mut home = Home::on_drive(lazy());
        home.drives = 2;
        home.ring_bytes = 256 << 20;
        let model = Model::default();
        let mut undone = 0;
        // On a busy machine everything may have been flushed by chance when the power went, several times in a row.
        for round in 0..40 {
            if round >= 4 && undone > 0 {
                break;
            }
            undone += cut_once(&home, sync, io, (at * 100 + round) as u64, &model).await;
        }
        assert!(undone > 0, "{sync:?}, {io:?}: the drives never lost anything");
    }
}
