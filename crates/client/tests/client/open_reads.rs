//! Files that stay open through the client: drains, evictions, replacements, deletes and restarts of the node go by, and what is
//! read is the version that was opened (R11).
//!
//! `STOKER_OPEN_READS_S=3600 cargo test -p stoker-client --test client open_reads` for an hour of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_access::Guard;
use stoker_client::{Client, Endpoint, Server, ServerOptions};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::*;
use tokio::time::Instant;

const MIB: usize = 1 << 20;

struct Rig {
    folder: tempfile::TempDir,
    running: Option<(Arc<Node>, Server)>,
}

impl Rig {
    async fn new() -> Rig {
        let mut rig = Rig { folder: tempfile::tempdir().unwrap(), running: None };
        rig.start().await;
        let policy = VolumePolicy { drain_quiet_s: 0, drain_lag_max_s: 0, ..VolumePolicy::default() };
        rig.node()
            .volume_create("data", VolumeOptions { policy: Some(policy), ..VolumeOptions::default() })
            .await
            .unwrap();
        rig
    }

    fn node(&self) -> &Arc<Node> {
        &self.running.as_ref().unwrap().0
    }

    async fn start(&mut self) {
        let at = self.folder.path();
        let mut options = NodeOptions::new(at.join("node"));
        options.drives = vec![DriveOptions { path: at.join("ring"), size_bytes: Some(64 << 20) }];
        options.lake = Some(format!("file://{}", at.join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 256 << 20;
        options.chunk_bytes = MIB as u32;
        let node = Node::open(options).await.unwrap();
        let listen = vec![Endpoint::Unix(at.join("stoker.sock"))];
        let server = Server::start(Guard::new(node.clone()), listen, None, ServerOptions::default()).unwrap();
        self.running = Some((node, server));
    }

    async fn restart(&mut self) {
        let (node, server) = self.running.take().unwrap();
        server.stop(Duration::from_secs(10)).await;
        node.stop().await;
        drop(node);
        self.start().await;
    }

    async fn client(&self, leases: bool) -> Client {
        let endpoint = Endpoint::Unix(self.folder.path().join("stoker.sock"));
        let options = stoker_client::ClientOptions { leases, ..Default::default() };
        Client::connect_with(&endpoint, None, options).await.unwrap()
    }
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn put(store: &dyn Store, name: &str, mut bytes: &[u8]) -> Receipt {
    let mut writer = store.create("data", &key(name), WriteRequest::default()).await.unwrap();
    while !bytes.is_empty() {
        let mut buf = writer.buffer().await.unwrap();
        let part = bytes.len().min(buf.capacity());
        buf.set_len(part);
        buf.as_mut_slice().copy_from_slice(&bytes[..part]);
        writer.write(buf).await.unwrap();
        bytes = &bytes[part..];
    }
    writer.finish(Finish::default()).await.unwrap()
}

async fn read(file: &dyn File, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < len {
        let part = file.read((offset + got.len()) as u64, len - got.len()).await?;
        if part.is_empty() {
            break;
        }
        got.extend_from_slice(&part);
    }
    Ok(got)
}

/// Drains half as much again as the ring holds.
async fn go_round(node: &Node, seed: u64) {
    for number in 0..12 {
        let name = format!("filler/{number}");
        put(node, &name, &bytes_of(seed * 100 + number, 8 * MIB)).await;
        node.wait("data", &key(&name), None, Awaited::Drained).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_read_after_its_drain_and_eviction() {
    let mut rig = Rig::new().await;
    let (leased, plain) = (rig.client(true).await, rig.client(false).await);
    let bytes = bytes_of(1, 6 * MIB + 11);
    put(&plain, "shard", &bytes).await;
    let mut files = Vec::new();
    for client in [&leased, &plain] {
        files.push(client.open("data", &key("shard")).await.unwrap());
    }
    rig.node().wait("data", &key("shard"), None, Awaited::Drained).await.unwrap();
    go_round(rig.node(), 1).await;
    for file in &files {
        assert!(read(file.as_ref(), 0, bytes.len()).await.unwrap() == bytes);
    }
    rig.restart().await;
    for file in &files {
        assert!(read(file.as_ref(), 0, bytes.len()).await.unwrap() == bytes, "after a restart");
    }
    // Replaced, and evicted again.
    put(&plain, "shard", b"new").await;
    rig.node().wait("data", &key("shard"), None, Awaited::Drained).await.unwrap();
    go_round(rig.node(), 2).await;
    for file in &files {
        assert!(read(file.as_ref(), 0, bytes.len()).await.unwrap() == bytes, "after it was replaced");
    }
    let (node, server) = rig.running.take().unwrap();
    server.stop(Duration::from_secs(10)).await;
    node.stop().await;
}

/// A file that is open, and what it was when it was opened.
struct Opened {
    name: String,
    seed: u64,
    len: usize,
    file: Box<dyn File>,
    /// Starts of the node until it was opened or read.
    boot: u64,
}

struct Storm {
    rig: Rig,
    clients: [Client; 2],
    rng: Rng,
    /// Names, and what they hold.
    names: BTreeMap<String, (u64, usize)>,
    open: Vec<Opened>,
    boot: u64,
    seed: u64,
    reads: u64,
    refused: u64,
}

impl Storm {
    async fn put(&mut self) {
        let name = format!("f{}", self.rng.below(24));
        self.seed += 1;
        let len = [10, 70_000, MIB, 3 * MIB + 5, 9 * MIB][self.rng.below(5)];
        put(&self.clients[self.rng.below(2)], &name, &bytes_of(self.seed, len)).await;
        self.names.insert(name, (self.seed, len));
    }

    async fn delete(&mut self, name: String) {
        let done = self.clients[0].delete("data", vec![(key(&name), Condition::default())]).await.unwrap();
        assert!(done.into_iter().all(|one| one.unwrap()), "{name}");
        self.names.remove(&name);
    }

    async fn rename(&mut self, name: String) {
        let to = format!("f{}", self.rng.below(24));
        if to == name {
            return;
        }
        self.clients[0].rename("data", &key(&name), &key(&to), RenameMode::Replace).await.unwrap();
        let held = self.names.remove(&name).unwrap();
        self.names.insert(to, held);
    }

    async fn open(&mut self, name: String) {
        let (seed, len) = self.names[&name];
        let file = self.clients[self.rng.below(2)].open("data", &key(&name)).await.unwrap();
        assert_eq!(file.info().size, len as u64, "{name}");
        self.open.push(Opened { name, seed, len, file, boot: self.boot });
    }

    /// Reads somewhere in one that is open. Bytes are right or there are none, and none only if the file was open over a restart and
    /// its name has something else now.
    async fn read(&mut self, at: usize) {
        let opened = &mut self.open[at];
        let offset = self.rng.below(opened.len);
        let len = (self.rng.below(2 * MIB) + 1).min(opened.len - offset);
        match read(opened.file.as_ref(), offset, len).await {
            Ok(found) => {
                let expect = &bytes_of(opened.seed, opened.len)[offset..offset + len];
                assert!(found == expect, "{} at {offset}, {len} bytes: not what was opened", opened.name);
                self.reads += 1;
                opened.boot = self.boot;
            }
            Err(fault) => {
                let is_there = self.names.get(&opened.name) == Some(&(opened.seed, opened.len));
                assert!(opened.boot < self.boot && !is_there, "{} at {offset}: {fault}", opened.name);
                self.refused += 1;
                self.open.swap_remove(at);
            }
        }
    }

    async fn step(&mut self) {
        let some = self.names.keys().nth(self.rng.below(self.names.len().max(1))).cloned();
        match (self.rng.below(100), some) {
            (0..15, _) | (_, None) => self.put().await,
            (15..20, Some(name)) => self.delete(name).await,
            (20..24, Some(name)) => self.rename(name).await,
            (24..40, Some(name)) if self.open.len() < 40 => self.open(name).await,
            (40..46, _) if !self.open.is_empty() => {
                let at = self.rng.below(self.open.len());
                self.open.swap_remove(at);
            }
            _ if !self.open.is_empty() => {
                let at = self.rng.below(self.open.len());
                self.read(at).await;
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_stay_what_they_were() {
    let seconds = std::env::var("STOKER_OPEN_READS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let seed = std::env::var("STOKER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7u64);
    let rig = Rig::new().await;
    let clients = [rig.client(true).await, rig.client(false).await];
    let rng = Rng(seed | 1);
    let (names, open) = (BTreeMap::new(), Vec::new());
    let mut storm = Storm { rig, clients, rng, names, open, boot: 0, seed: 0, reads: 0, refused: 0 };
    let begun = Instant::now();
    let mut restart_at = Duration::from_secs(3);
    while begun.elapsed() < Duration::from_secs(seconds) {
        storm.step().await;
        if begun.elapsed() > restart_at {
            storm.rig.restart().await;
            storm.boot += 1;
            restart_at = begun.elapsed() + Duration::from_secs(3 + seconds / 60);
        }
    }
    for at in (0..storm.open.len()).rev() {
        storm.read(at).await;
    }
    let kept = counter(storm.rig.node(), "lake_kept_open_total").await;
    eprintln!(
        "seed {seed}: {} versions, {} reads, {} refused after a restart, {kept} objects kept since the last one",
        storm.seed, storm.reads, storm.refused
    );
    assert!(storm.reads > 0);
    storm.open.clear();
    // Nothing is left for readers that are gone.
    let folder = storm.rig.folder.path().join("lake/data/.stoker-n.stoker-open");
    let is_empty = || std::fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_none());
    for _ in 0..600 {
        if is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_empty(), "objects are kept although nobody reads them");
    let (node, server) = storm.rig.running.take().unwrap();
    server.stop(Duration::from_secs(10)).await;
    node.stop().await;
}

async fn counter(node: &Node, name: &str) -> f64 {
    let all = node.counters().await.unwrap();
    all.iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
}
