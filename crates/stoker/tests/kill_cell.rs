//! kill -9 of real nodes of a cell under load: nothing acknowledged is lost, no byte is wrong, and clients that go on with
//! another node see nothing of it.

mod storm;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_store::{Order, Report, Store};
use storm::*;

const NODES: usize = 3;

fn home(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("node-{at}"))
}

/// Connects to this node; it may be starting again, because the others went on without it.
async fn connect_to(dir: &Path, at: usize) -> Client {
    let endpoint = Endpoint::Unix(home(dir, at).join("stoker.sock"));
    for _ in 0..600 {
        match Client::connect(&endpoint, None).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let words = std::fs::read_to_string(home(dir, at).with_extension("log")).unwrap_or_default();
    panic!("node {at} does not answer\n{words}");
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

/// What became of keys whose operation failed, by another node. An operation that nobody acknowledged may still be under way:
/// its commit may wait for a standby that died. One that is acknowledged afterwards comes behind it.
async fn find_out(dir: &Path, dice: &mut Dice, worker: u64, keys: &[String], model: &Mutex<Model>) -> Client {
    let barrier = format!("w{worker}/barrier");
    for at in 0..600 {
        let client = connect(dir, dice).await;
        let next = Some((at, 16));
        model.lock().unwrap().begin(&barrier, next);
        match put(&client, &barrier, &content(at, 16)).await {
            Ok(()) => model.lock().unwrap().done(&barrier, next),
            Err(fault) => {
                assert!(is_of_death(&fault), "{barrier}: {fault:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        }
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
                client = find_out(&dir, &mut dice, worker, &keys, &model).await;
            }
        }
    }
}

/// Whether a node keeps the catalog.
async fn keeps_catalog(dir: &Path, at: usize) -> bool {
    let client = connect_to(dir, at).await;
    let node = client.status().await.unwrap().node;
    match client.operate(Order::Catalog).await.unwrap() {
        Report::Catalog(status) => status.holder == Some(node),
        other => panic!("{other:?}"),
    }
}

/// Makes a node the one that keeps the catalog. Everybody who followed is there and is asked, so nothing may be lost.
async fn promote(dir: &Path, at: usize) {
    let client = connect_to(dir, at).await;
    for _ in 0..100 {
        match client.operate(Order::CatalogPromote { accept_loss: false }).await {
            Ok(Report::Promoted(promotion)) => return assert_eq!(promotion.loss, None),
            Ok(other) => panic!("{other:?}"),
            // It came back a moment ago and has not caught up; the other one has everything.
            Err(fault) if fault.message.contains("fell behind") => {
                return Box::pin(promote(dir, (at + 1) % NODES)).await;
            }
            Err(fault) => eprintln!("not promoted yet: {fault:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("node {at} cannot be promoted");
}

#[test]
fn nodes_of_a_cell_die_and_nothing_is_lost() {
    let rounds = kills(50, 6);
    let dir = tempfile::TempDir::new().unwrap();
    let lake = dir.path().join("lake");
    std::fs::create_dir(&lake).unwrap();
    let lake = lake.to_str().unwrap();
    let first = Node::start(&["up", "--lake", lake, "--grace", "3s"], &home(dir.path(), 0));
    let (peers, token) = (first.ready["peers"].clone(), first.ready["join_token"].clone());
    let (peers, token) = (peers.as_str().unwrap(), token.as_str().unwrap());
    let mut nodes = vec![Some(first)];
    for at in 1..NODES {
        let join = ["join", peers, "--token", token, "--grace", "3s"];
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
    let mut promotions = 0;
    for round in 0..rounds {
        let victim = round as usize % NODES;
        after(10 + round * 7_919 % 40);
        let kept = runtime.block_on(keeps_catalog(dir.path(), victim));
        nodes[victim].take().unwrap().kill();
        if kept && round % 2 == 1 {
            // Nobody can do anything before another node keeps the catalog.
            runtime.block_on(promote(dir.path(), (victim + 1) % NODES));
            promotions += 1;
        }
        if !kept || round % 2 == 1 {
            // Some come back before anybody misses them, some after they were declared down.
            after(if round % 4 < 2 { 5 } else { 40 });
        }
        nodes[victim] = Some(Node::start(&["up", "--grace", "3s"], &home(dir.path(), victim)));
    }
    after(20);
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for worker in workers {
            worker.await.unwrap();
        }
        for at in 0..NODES {
            let client = connect_to(dir.path(), at).await;
            let mut known = std::mem::take(&mut *model.lock().unwrap());
            verify(&client, &mut known).await;
            verify_list(&client, &known).await;
            *model.lock().unwrap() = known;
        }
    });
    let acks = acks.load(Ordering::Relaxed);
    eprintln!("{rounds} kills, {promotions} promotions, {acks} acknowledged operations");
}
