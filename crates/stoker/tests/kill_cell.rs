//! kill -9 of real nodes of a cell under load: nothing acknowledged is lost, no byte is wrong, and clients that go on with
//! another node see nothing of it.

mod storm;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use storm::*;

const NODES: usize = 3;

fn home(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("node-{at}"))
}

/// Connects to a node, some other one if that does not answer.
async fn connect(dir: &Path, dice: &mut Dice) -> Client {
    for _ in 0..600 {
        let at = dice.below(NODES as u64) as usize;
        let endpoint = Endpoint::Unix(home(dir, at).join("stoker.sock"));
        if let Ok(client) = Client::connect(&endpoint, None).await {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no node answers");
}

/// What became of keys whose operation failed, by another node.
async fn find_out(dir: &Path, dice: &mut Dice, keys: &[String], model: &Mutex<Model>) -> Client {
    for _ in 0..600 {
        let client = connect(dir, dice).await;
        let mut found = Vec::new();
        for name in keys {
            match read(&client, name).await {
                Ok(bytes) => found.push(bytes),
                Err(fault) => assert!(is_of_death(&fault), "{name}: {fault:?}"),
            }
        }
        if found.len() == keys.len() {
            let mut model = model.lock().unwrap();
            for (name, bytes) in keys.iter().zip(found) {
                settle(&mut model, name, bytes.as_deref());
            }
            return client;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{keys:?} cannot be read through any node");
}

/// One worker, through whichever node answers, until it is told to stop.
async fn survive(
    dir: PathBuf,
    worker: u64,
    model: Arc<Mutex<Model>>,
    acks: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) {
    let mut dice = Dice::new(worker);
    let mut client = connect(&dir, &mut dice).await;
    for at in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (keys, done) = step(&client, worker, worker << 32 | at, &mut dice, &model).await;
        match done {
            Ok(()) => {
                acks.fetch_add(1, Ordering::Relaxed);
            }
            Err(fault) => {
                assert!(is_of_death(&fault), "{keys:?}: {fault:?}");
                client = find_out(&dir, &mut dice, &keys, &model).await;
            }
        }
    }
}

#[test]
fn nodes_of_a_cell_die_and_nothing_is_lost() {
    let rounds = kills(50, 4);
    let dir = tempfile::TempDir::new().unwrap();
    let lake = dir.path().join("lake");
    std::fs::create_dir(&lake).unwrap();
    let lake = lake.to_str().unwrap();
    let first = Node::start(&["up", "--lake", lake, "--grace", "2s"], &home(dir.path(), 0));
    let (peers, token) = (first.ready["peers"].clone(), first.ready["join_token"].clone());
    let (peers, token) = (peers.as_str().unwrap(), token.as_str().unwrap());
    let mut nodes = vec![Some(first)];
    for at in 1..NODES {
        let join = ["join", peers, "--token", token, "--grace", "2s"];
        nodes.push(Some(Node::start(&join, &home(dir.path(), at))));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let model = Arc::new(Mutex::new(Model::default()));
    let (acks, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let work = survive(dir.path().into(), worker, model.clone(), acks.clone(), stop.clone());
            runtime.spawn(work)
        })
        .collect();
    let after = |count: u64| {
        let until = acks.load(Ordering::Relaxed) + count;
        while acks.load(Ordering::Relaxed) < until && !workers.iter().any(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for round in 0..rounds {
        // The node of the catalog stays: its loss is another test.
        let victim = 1 + round as usize % (NODES - 1);
        after(10 + round * 7_919 % 40);
        nodes[victim].take().unwrap().kill();
        // Some come back before anybody misses them, some after they were declared down.
        after(if round % 2 == 0 { 5 } else { 40 });
        nodes[victim] = Some(Node::start(&["up", "--grace", "2s"], &home(dir.path(), victim)));
    }
    after(20);
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for worker in workers {
            worker.await.unwrap();
        }
        for at in 0..NODES {
            let endpoint = Endpoint::Unix(home(dir.path(), at).join("stoker.sock"));
            let client = Client::connect(&endpoint, None).await.unwrap();
            let mut known = std::mem::take(&mut *model.lock().unwrap());
            verify(&client, &mut known).await;
            verify_list(&client, &known).await;
            *model.lock().unwrap() = known;
        }
    });
    eprintln!("{rounds} kills, {} acknowledged operations", acks.load(Ordering::Relaxed));
}
