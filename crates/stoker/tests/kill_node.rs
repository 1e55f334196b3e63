//! kill -9 of a real node in a storm of writes, uploads, copies, overwrites, renames and deletes. Whatever was
//! acknowledged is there afterwards; whatever was under way happened whole or not at all; nothing comes back.

mod storm;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use storm::*;

#[test]
fn kill_minus_nine_in_a_storm_loses_nothing() {
    let rounds = kills(100, 5);
    let dir = tempfile::TempDir::new().unwrap();
    let home = dir.path().join("node");
    let model = Arc::new(Mutex::new(Model::default()));
    let mut total = 0;
    for round in 1..=rounds {
        let node = Node::up(&home);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::Unix(home.join("stoker.sock"));
            let store = Client::connect(&endpoint, None).await.unwrap();
            let mut known = std::mem::take(&mut *model.lock().unwrap());
            verify(&store, &mut known).await;
            *model.lock().unwrap() = known;
            let acks = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for worker in 0..WORKERS {
                let store = Client::connect(&endpoint, None).await.unwrap();
                tasks.push(tokio::spawn(work(store, worker, round, model.clone(), acks.clone())));
            }
            // A random number of acknowledgements later, whatever is under way then.
            let stop_at = 20 + round * 7_919 % 180;
            while acks.load(Ordering::Relaxed) < stop_at && tasks.iter().any(|task| !task.is_finished()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            node.kill();
            for task in tasks {
                task.await.unwrap();
            }
            total += acks.load(Ordering::Relaxed);
        });
    }
    let node = Node::up(&home);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::Unix(home.join("stoker.sock"));
        let store = Client::connect(&endpoint, None).await.unwrap();
        let mut model = std::mem::take(&mut *model.lock().unwrap());
        verify(&store, &mut model).await;
        verify_list(&store, &model).await;
    });
    node.kill();
    eprintln!("{rounds} kills, {total} acknowledged operations");
}
