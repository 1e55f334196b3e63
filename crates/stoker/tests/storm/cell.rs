//! A cell of real nodes under a storm, each worker through whichever node answers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_store::{Order, Report, Store};

use super::*;

/// Nodes of such a cell.
pub const NODES: usize = 3;

pub fn home(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("node-{at}"))
}

/// Connects to this node; it may be starting again, because the others went on without it.
pub async fn connect_to(dir: &Path, at: usize) -> Client {
    connect_in(&home(dir, at)).await
}

/// Connects to the node in a directory.
pub async fn connect_in(home: &Path) -> Client {
    let endpoint = Endpoint::Unix(home.join("stoker.sock"));
    for _ in 0..600 {
        match Client::connect(&endpoint, None).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let words = std::fs::read_to_string(home.with_extension("log")).unwrap_or_default();
    panic!("{} does not answer\n{words}", home.display());
}

/// Connects to a node, some other one if that does not answer, and says which one it is.
pub async fn connect(dir: &Path, dice: &mut Dice) -> (usize, Client) {
    for _ in 0..600 {
        let at = dice.below(NODES as u64) as usize;
        let endpoint = Endpoint::Unix(home(dir, at).join("stoker.sock"));
        if let Ok(client) = Client::connect(&endpoint, None).await {
            return (at, client);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no node answers");
}

/// What became of keys whose operation failed, by another node. An operation that nobody acknowledged may still be under way:
/// its commit may wait for a standby that died. One that is acknowledged afterwards comes behind it.
pub async fn find_out(
    dir: &Path,
    dice: &mut Dice,
    worker: u64,
    keys: &[String],
    model: &Mutex<Model>,
) -> (usize, Client) {
    let barrier = format!("w{worker}/barrier");
    for at in 0..600 {
        let (node, client) = connect(dir, dice).await;
        let next = Some((at, 16));
        model.lock().unwrap().begin(&barrier, next);
        match put(&client, &barrier, &content(at, 16)).await {
            Ok(()) => model.lock().unwrap().done(&barrier, next),
            Err(fault) => {
                assert!(is_passing(&fault), "{barrier}: {fault:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        }
        let mut found = Vec::new();
        for name in keys {
            match read(&client, name).await {
                Ok(bytes) => found.push(bytes),
                Err(fault) => assert!(is_passing(&fault), "{name}: {fault:?}"),
            }
        }
        if found.len() == keys.len() {
            let mut model = model.lock().unwrap();
            for (name, bytes) in keys.iter().zip(found) {
                settle(&mut model, name, bytes.as_deref());
            }
            return (node, client);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{keys:?} cannot be read through any node");
}

/// Reads one of a worker's keys, which nobody else writes: it holds what was acknowledged. False if the node is gone.
async fn look(client: &Client, worker: u64, dice: &mut Dice, model: &Mutex<Model>) -> bool {
    let name = {
        let model = model.lock().unwrap();
        let own = format!("w{worker}/");
        let keys: Vec<&String> = model.acked.keys().filter(|key| key.starts_with(&own)).collect();
        if keys.is_empty() {
            return true;
        }
        let name = keys[dice.below(keys.len() as u64) as usize].clone();
        assert!(!model.pending.contains_key(&name), "{name} is settled");
        name
    };
    match read(client, &name).await {
        Ok(found) => {
            let model = model.lock().unwrap();
            assert!(
                model.is_right(&name, found.as_deref()),
                "{name} holds {:?} bytes, not {:?}",
                found.map(|bytes| bytes.len()),
                model.get(&name)
            );
            true
        }
        Err(fault) => {
            assert!(is_passing(&fault), "{name}: {fault:?}");
            false
        }
    }
}

/// One worker, through whichever node answers, until it is told to stop.
pub async fn survive(
    dir: PathBuf,
    worker: u64,
    model: Arc<Mutex<Model>>,
    acks: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    pause: Duration,
) {
    let mut dice = Dice::new(worker);
    let (_, mut client) = connect(&dir, &mut dice).await;
    for at in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        tokio::time::sleep(pause).await;
        if at % 3 == 2 && !look(&client, worker, &mut dice, &model).await {
            (_, client) = connect(&dir, &mut dice).await;
            continue;
        }
        let (keys, done) = step(&client, worker, worker << 32 | at, &mut dice, &model).await;
        match done {
            Ok(()) => {
                acks.fetch_add(1, Ordering::Relaxed);
            }
            Err(fault) => {
                assert!(is_passing(&fault), "{keys:?}: {fault:?}");
                (_, client) = find_out(&dir, &mut dice, worker, &keys, &model).await;
            }
        }
    }
}

/// Whether a node keeps the catalog.
pub async fn keeps_catalog(dir: &Path, at: usize) -> bool {
    let client = connect_to(dir, at).await;
    let node = client.status().await.unwrap().node;
    match client.operate(Order::Catalog).await.unwrap() {
        Report::Catalog(status) => status.holder == Some(node),
        other => panic!("{other:?}"),
    }
}

/// Waits until all nodes have what the catalog has.
pub async fn until_followed(dir: &Path, at: usize) {
    let client = connect_to(dir, at).await;
    for _ in 0..600 {
        if let Ok(Report::Catalog(status)) = client.operate(Order::Catalog).await
            && status.standbys.iter().filter(|standby| standby.in_sync).count() == NODES - 1
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not every node follows the catalog");
}

/// Makes a node the one that keeps the catalog. Everybody who followed is there and is asked, so nothing may be lost.
pub async fn promote(dir: &Path, at: usize) {
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

/// Workers of a cell, and what is known of their keys.
pub struct Load {
    dir: PathBuf,
    pub runtime: tokio::runtime::Runtime,
    model: Arc<Mutex<Model>>,
    acks: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Begins. Workers pause between operations: while a node is silent nothing is deleted that it might read, so a load that
    /// overwrites at full speed fills small rings.
    pub fn start(dir: &Path, workers: u64, pause: Duration) -> Load {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let model = Arc::new(Mutex::new(Model::default()));
        let (acks, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let workers = (0..workers)
            .map(|worker| {
                runtime.spawn(survive(dir.into(), worker, model.clone(), acks.clone(), stop.clone(), pause))
            })
            .collect();
        Load { dir: dir.into(), runtime, model, acks, stop, workers }
    }

    /// Two more workers where the machine allows it: one through a mount, one by NFS at these addresses.
    pub fn add_doors(&mut self, pause: Duration, nfs: Vec<String>) {
        let shared = doors::Shared {
            dir: self.dir.clone(),
            model: self.model.clone(),
            acks: self.acks.clone(),
            stop: self.stop.clone(),
            pause,
        };
        let worker = self.workers.len() as u64;
        if can_mount() {
            self.workers.push(self.runtime.spawn(doors::write_durably(shared.clone(), worker)));
        }
        if !nfs.is_empty() {
            self.workers.push(self.runtime.spawn(doors::write_by_nfs(shared, worker + 1, nfs)));
        }
    }

    /// Waits until so many more operations were acknowledged.
    pub fn after(&self, count: u64) {
        let until = self.acks.load(Ordering::Relaxed) + count;
        while self.acks.load(Ordering::Relaxed) < until && !self.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether somebody found something wrong.
    pub fn is_over(&self) -> bool {
        self.workers.iter().any(|worker| worker.is_finished())
    }

    /// Ends, and checks every key and the listing through every node. Says what is known of the keys, and how many operations
    /// were acknowledged.
    pub fn finish(self) -> (tokio::runtime::Runtime, Model, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let known = self.runtime.block_on(async {
            for worker in self.workers {
                worker.await.unwrap();
            }
            let mut known = std::mem::take(&mut *self.model.lock().unwrap());
            for at in 0..NODES {
                let client = connect_to(&self.dir, at).await;
                verify(&client, &mut known).await;
                verify_list(&client, &known).await;
            }
            known
        });
        (self.runtime, known, self.acks.load(Ordering::Relaxed))
    }
}
