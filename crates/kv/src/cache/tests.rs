//! The cache on a real node.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{Key, ListRequest, VolumeOptions, WriteRequest};

use super::*;
use crate::bundle::{RECORD_LEN, TRAILER_LEN};
use crate::digest::{Fingerprint, Namer};

/// Time that a test moves.
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Rig {
    _folder: tempfile::TempDir,
    node: Arc<Node>,
    clock: Arc<Hands>,
    nonce: AtomicU64,
}

impl Rig {
    async fn new() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(folder.path().join("node"));
        options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 256 << 20;
        let node = Node::open(options).await.unwrap();
        node.volume_create("data", VolumeOptions::default()).await.unwrap();
        let clock = Arc::new(Hands(AtomicU64::new(1_000_000)));
        Rig { _folder: folder, node, clock, nonce: AtomicU64::new(0) }
    }

    fn options(&self) -> Options {
        let mut options = Options::new("data", "kv/test");
        options.capacity_bytes = 64 << 20;
        options.memory_bytes = 16 << 20;
        // Tests say when something is written.
        options.linger_ms = 600_000;
        options
    }

    async fn open(&self, options: Options) -> Cache {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        Cache::open(self.node.clone(), options, self.clock.clone(), nonce).await.unwrap()
    }

    fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
    }

    async fn bundles(&self) -> Vec<Key> {
        let request = ListRequest { prefix: b"kv/test/".into(), limit: 1000, ..ListRequest::default() };
        let page = self.node.list("data", request).await.unwrap();
        page.entries.iter().filter_map(|entry| entry.key().cloned()).collect()
    }

    async fn bytes_total(&self) -> u64 {
        let mut total = 0;
        for key in self.bundles().await {
            total += self.node.stat("data", &key).await.unwrap().size;
        }
        total
    }

    async fn read(&self, key: &Key) -> Vec<u8> {
        let file = self.node.open("data", key).await.unwrap();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < file.info().size {
            bytes.extend_from_slice(&file.read(bytes.len() as u64, 1 << 20).await.unwrap());
        }
        bytes
    }

    async fn write(&self, key: &Key, bytes: &[u8]) {
        let request = WriteRequest { size: Some(bytes.len() as u64), ..WriteRequest::default() };
        let mut writer = self.node.create("data", key, request).await.unwrap();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut buf = writer.buffer().await.unwrap();
            let part = rest.len().min(buf.capacity());
            buf.fill(&rest[..part]);
            rest = &rest[part..];
            writer.write(buf).await.unwrap();
        }
        writer.finish(stoker_store::Finish::default()).await.unwrap();
    }
}

fn name(key: &str) -> Digest {
    Namer::new(&Fingerprint::of([("model", "m")])).name(key.as_bytes())
}

fn bytes_of(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((seed + 1) * 131 + at * 7 + (at >> 8)) as u8).collect()
}

impl Cache {
    async fn put_now(&self, key: &str, bytes: &[u8]) -> Stored {
        self.put_for(key, bytes, None, false).await
    }

    async fn commit(&self, key: &str, bytes: &[u8]) {
        assert_eq!(self.put_for(key, bytes, None, true).await, Stored::Committed);
    }

    async fn put_for(&self, key: &str, bytes: &[u8], ttl_ms: Option<u64>, commit: bool) -> Stored {
        self.put_many(&[(name(key), vec![bytes])], ttl_ms, commit).await.unwrap()[0]
    }

    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        let hit = self.look_many([name(key)]).remove(0)?;
        let mut into = vec![0; hit.len()];
        self.fill(&hit, vec![&mut into]).await.unwrap().then_some(into)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_come_back_from_memory_and_from_the_volume() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    let lens = [1, 4095, 4096, 4097, 1 << 20, (3 << 20) + 5];
    let bytes: Vec<_> = lens.iter().enumerate().map(|(at, len)| bytes_of(at, *len)).collect();
    let blocks: Vec<_> =
        bytes.iter().enumerate().map(|(at, bytes)| (name(&at.to_string()), vec![&bytes[..]])).collect();
    let stored = cache.put_many(&blocks, None, true).await.unwrap();
    assert!(stored.iter().all(|place| *place == Stored::Committed));
    assert_eq!(rig.bundles().await.len(), 1, "together");
    let again = rig.open(rig.options()).await;
    for (at, len) in lens.iter().enumerate() {
        for cache in [&cache, &again] {
            assert_eq!(cache.get(&at.to_string()).await, Some(bytes_of(at, *len)));
        }
    }
    let (stats, again) = (cache.stats(), again.stats());
    assert_eq!((stats.hits_memory, stats.hits_ring), (6, 0));
    assert_eq!((again.hits_memory, again.hits_ring, again.misses, again.blocks), (0, 6, 0, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_may_lie_in_parts() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    let bytes = bytes_of(3, 3 << 20);
    let parts = vec![&bytes[..28], &bytes[28..28], &bytes[28..]];
    cache.put_many(&[(name("a"), parts)], None, true).await.unwrap();
    let again = rig.open(rig.options()).await;
    for cache in [&cache, &again] {
        let hit = cache.look_many([name("a")]).remove(0).unwrap();
        let (mut head, mut body, mut tail) = ([0; 28], vec![0; 2 << 20], vec![0; (1 << 20) - 28]);
        assert!(cache.fill(&hit, vec![&mut head, &mut [], &mut body, &mut tail]).await.unwrap());
        assert!([&head[..], &body, &tail].concat() == bytes);
        assert!(cache.fill(&hit, vec![&mut head]).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_fill_memory_however_it_lies() {
    let rig = Rig::new().await;
    let mut options = rig.options();
    options.memory_bytes = 0;
    let cache = rig.open(options).await;
    let blocks: Vec<Vec<u8>> = (0..20).map(|n| bytes_of(n, (300 << 10) * (n % 4) + 4096 + n % 3)).collect();
    for (n, block) in blocks.iter().enumerate() {
        cache.commit(&n.to_string(), block).await;
    }
    let hits = cache.look_many((0..blocks.len()).map(|n| name(&n.to_string())));
    let hits: Vec<Hit> = hits.into_iter().map(Option::unwrap).collect();
    assert!(hits.iter().all(Hit::is_read));
    for skip in [0, 1, 4096] {
        // Memory that begins on a block boundary, and memory that does not.
        let mut memory: Vec<Vec<u8>> = blocks.iter().map(|block| vec![0; block.len() + 2 * 4096]).collect();
        let parts = memory.iter_mut().zip(&blocks).map(|(memory, block)| {
            let start = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
            let at = (start + skip) % 4096;
            &mut memory[at..at + block.len()]
        });
        let mut parts: Vec<&mut [u8]> = parts.collect();
        let wanted = hits.iter().zip(&mut parts).map(|(hit, part)| (hit, vec![&mut **part])).collect();
        let runtime = Handle::current();
        let fill = || cache.fill_many_by_threads(wanted, |call| runtime.block_on(call));
        let good = tokio::task::block_in_place(fill).unwrap();
        assert_eq!(good, vec![true; blocks.len()]);
        assert!(parts.iter().zip(&blocks).all(|(part, block)| part == block));
    }
    let mut memory: Vec<Vec<u8>> = blocks.iter().map(|block| vec![0; block.len()]).collect();
    let wanted = hits.iter().zip(&mut memory).map(|(hit, memory)| (hit, vec![&mut memory[..]])).collect();
    let fault = cache.fill_many_by_threads(wanted, |_| Err(StoreError::new(ErrorKind::Closed, "given up")));
    assert_eq!(fault.unwrap_err().kind, ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_end_at_the_first_gap() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    for key in ["a", "b", "d"] {
        cache.commit(key, b"block").await;
    }
    let digests = ["a", "b", "c", "d"].map(name);
    assert_eq!(cache.exists_many(digests), 2);
    assert_eq!(cache.contains_many(digests), [true, true, false, true]);
    assert_eq!((cache.exists_many([]), cache.exists_many([name("c")])), (0, 0));
    let other = Namer::new(&Fingerprint::of([("model", "other")])).name(b"a");
    assert_eq!(cache.contains_many([other]), [false], "of another fingerprint");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_written_at_their_second_use() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    assert_eq!(cache.put_now("put", b"once").await, Stored::Memory);
    assert_eq!(cache.put_now("read", b"once").await, Stored::Memory);
    cache.flush().await.unwrap();
    assert!(rig.bundles().await.is_empty());
    assert_eq!(cache.put_now("put", b"once").await, Stored::Queued);
    assert!(cache.get("read").await.is_some());
    cache.flush().await.unwrap();
    assert_eq!(cache.put_now("put", b"once").await, Stored::Committed, "needs no third");
    assert_eq!((cache.stats().admitted, rig.bundles().await.len()), (2, 1), "together");
    let again = rig.open(rig.options()).await;
    assert_eq!(again.exists_many([name("put"), name("read")]), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_left_memory_unwritten_is_remembered() {
    let rig = Rig::new().await;
    let mut options = rig.options();
    options.memory_bytes = 10_000;
    let cache = rig.open(options).await;
    assert_eq!(cache.put_now("a", &bytes_of(0, 6000)).await, Stored::Memory);
    assert_eq!(cache.put_now("b", &bytes_of(1, 6000)).await, Stored::Memory);
    assert_eq!(cache.get("a").await, None);
    assert_eq!(cache.put_now("a", &bytes_of(0, 6000)).await, Stored::Queued);
    assert_eq!(cache.put_now("large", &bytes_of(2, 20_000)).await, Stored::Seen);
    assert_eq!(cache.put_now("large", &bytes_of(2, 20_000)).await, Stored::Queued);
    assert_eq!(cache.get("large").await, Some(bytes_of(2, 20_000)), "on its way");
    cache.flush().await.unwrap();
    assert_eq!(cache.get("large").await, Some(bytes_of(2, 20_000)));
    assert!(cache.stats().memory_bytes <= 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_under_a_name_replace_the_old_ones() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    cache.commit("a", b"old").await;
    rig.pass(1);
    assert_eq!(cache.put_now("a", b"new").await, Stored::Queued);
    assert_eq!(cache.get("a").await.as_deref(), Some(&b"new"[..]));
    cache.flush().await.unwrap();
    let again = rig.open(rig.options()).await;
    assert_eq!(again.get("a").await.as_deref(), Some(&b"new"[..]));
}

/// Without memory, what waits to be written is all that is found.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_wait_are_replaced_by_newer_ones() {
    let rig = Rig::new().await;
    let cache = rig.open(Options { memory_bytes: 0, ..rig.options() }).await;
    assert_eq!(cache.put_now("a", b"old").await, Stored::Seen);
    assert_eq!(cache.put_now("a", b"old").await, Stored::Queued);
    for round in 0..50u8 {
        assert_eq!(cache.put_now("a", &[round; 1000]).await, Stored::Queued);
        assert_eq!(cache.get("a").await, Some(vec![round; 1000]));
    }
    assert_eq!(cache.stats().queued_bytes, 1000, "a name waits once");
    cache.flush().await.unwrap();
    assert_eq!((cache.get("a").await, cache.stats().queued_bytes), (Some(vec![49; 1000]), 0));
    // There and back: the last one counts, although it is what is there.
    for bytes in [[1; 500], [49; 500], [1; 500]] {
        cache.commit("b", &bytes).await;
        assert_eq!(cache.put_now("b", &[7; 500]).await, Stored::Queued);
        cache.commit("b", &bytes).await;
        assert_eq!(cache.get("b").await, Some(bytes.to_vec()));
    }
    let again = rig.open(rig.options()).await;
    assert_eq!((again.get("a").await, again.get("b").await), (Some(vec![49; 1000]), Some(vec![1; 500])));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_deleted_is_not_called_committed() {
    let rig = Rig::new().await;
    let (cache, other) = (rig.open(rig.options()).await, rig.open(rig.options()).await);
    cache.commit("a", b"bytes").await;
    other.clear().await.unwrap();
    assert!(rig.bundles().await.is_empty());
    cache.commit("a", b"bytes").await;
    assert_eq!(rig.open(rig.options()).await.get("a").await.as_deref(), Some(&b"bytes"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_went_back_does_not_bring_old_bytes_back() {
    let rig = Rig::new().await;
    rig.pass(3_600_000);
    rig.open(rig.options()).await.commit("a", b"old").await;
    rig.clock.0.store(1_000_000, Ordering::Relaxed);
    let cache = rig.open(rig.options()).await;
    cache.commit("a", b"new").await;
    assert_eq!(cache.get("a").await.as_deref(), Some(&b"new"[..]));
    assert_eq!(rig.open(rig.options()).await.get("a").await.as_deref(), Some(&b"new"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_bundles_than_a_node_opens_are_read_at_once() {
    let rig = Rig::new().await;
    let cache = rig.open(Options { memory_bytes: 0, ..rig.options() }).await;
    let names: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    for name in &names {
        cache.commit(name, name.as_bytes()).await;
    }
    let hits: Vec<Hit> = cache.look_many(names.iter().map(|key| name(key))).into_iter().flatten().collect();
    let mut into: Vec<Vec<u8>> = hits.iter().map(|hit| vec![0; hit.len()]).collect();
    let wanted = hits.iter().zip(&mut into).map(|(hit, into)| (hit, vec![into.as_mut_slice()])).collect();
    assert_eq!(cache.fill_many(wanted).await.unwrap(), vec![true; 200]);
    assert!(into.iter().zip(&names).all(|(bytes, name)| bytes == name.as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_expire() {
    let rig = Rig::new().await;
    let mut options = rig.options();
    options.ttl_ms = Some(10_000);
    let cache = rig.open(options.clone()).await;
    cache.commit("usual", b"block").await;
    assert_eq!(cache.put_for("short", b"block", Some(1000), true).await, Stored::Committed);
    assert_eq!(cache.put_for("memory", b"block", Some(1000), false).await, Stored::Memory);
    let other = rig.open(options).await;
    rig.pass(999);
    assert_eq!(cache.contains_many(["usual", "short", "memory"].map(name)), [true; 3]);
    assert_eq!(other.contains_many(["usual", "short"].map(name)), [true; 2]);
    rig.pass(1);
    assert_eq!(cache.contains_many(["usual", "short", "memory"].map(name)), [true, false, false]);
    assert_eq!((cache.get("short").await, cache.get("memory").await), (None, None));
    assert_eq!((other.get("short").await, other.get("usual").await), (None, Some(b"block".to_vec())));
    // Half of its time is over: another put gives it the whole again.
    rig.pass(6000);
    cache.commit("usual", b"block").await;
    assert_eq!(cache.stats().admitted, 3);
    rig.pass(9999);
    assert!(cache.get("usual").await.is_some());
    rig.pass(1);
    assert_eq!(cache.get("usual").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cap_holds_and_the_unused_go_first() {
    let rig = Rig::new().await;
    let mut options = rig.options();
    (options.capacity_bytes, options.memory_bytes) = (8 << 20, 0);
    let cache = rig.open(options).await;
    for number in 0..40 {
        rig.pass(10);
        cache.commit(&number.to_string(), &bytes_of(number, 900_000)).await;
        assert!(rig.bytes_total().await <= 8 << 20, "after {number}");
        assert!(cache.get("0").await.is_some(), "it is used all the time");
    }
    let stats = cache.stats();
    assert!(stats.bytes <= 8 << 20 && stats.evictions >= 30, "{stats:?}");
    assert!(cache.get("39").await.is_some() && cache.get("5").await.is_none());
    let fault = cache.put_many(&[(name("x"), vec![&bytes_of(0, 5 << 20)])], None, true).await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expired_goes_before_what_is_unused() {
    let rig = Rig::new().await;
    let mut options = rig.options();
    (options.capacity_bytes, options.memory_bytes) = (4 << 20, 0);
    let cache = rig.open(options).await;
    cache.commit("old", &bytes_of(0, 1 << 20)).await;
    rig.pass(10);
    assert_eq!(cache.put_for("short", &bytes_of(1, 1 << 20), Some(5), true).await, Stored::Committed);
    rig.pass(10);
    cache.commit("b", &bytes_of(2, 1 << 20)).await;
    cache.commit("c", &bytes_of(3, 1 << 20)).await;
    assert_eq!(cache.contains_many(["old", "b", "c"].map(name)), [true; 3]);
    assert_eq!(cache.stats().evictions, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_caches_share_a_directory() {
    let rig = Rig::new().await;
    let (one, two) = (rig.open(rig.options()).await, rig.open(rig.options()).await);
    one.commit("a", b"of one").await;
    assert_eq!(two.contains_many([name("a")]), [false], "not looked for yet");
    two.refresh().await.unwrap();
    assert_eq!(two.get("a").await.as_deref(), Some(&b"of one"[..]));
    two.clear().await.unwrap();
    assert!(rig.bundles().await.is_empty());
    one.refresh().await.unwrap();
    assert_eq!(one.stats().bundles, 0);
    assert_eq!(one.get("a").await.as_deref(), Some(&b"of one"[..]), "still in memory");
    assert_eq!(two.get("a").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_is_gone_is_a_miss() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    cache.commit("a", &bytes_of(0, 5000)).await;
    let again = rig.open(rig.options()).await;
    for key in rig.bundles().await {
        rig.node.delete("data", vec![(key, stoker_store::Condition::default())]).await.unwrap();
    }
    assert_eq!(again.get("a").await, Some(bytes_of(0, 5000)), "one that is open shows what it was");
    again.0.files.clear();
    assert_eq!(again.get("a").await, None);
    let stats = again.stats();
    assert_eq!((stats.misses, stats.corrupt, stats.bundles), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_are_misses() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    let bytes = bytes_of(7, 300_000);
    cache.put_many(&["a", "b"].map(|key| (name(key), vec![&bytes[..]])), None, true).await.unwrap();
    let key = rig.bundles().await.remove(0);
    let good = rig.read(&key).await;
    for at in [0, 150_000, 299_999] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        rig.write(&key, &bad).await;
        let again = rig.open(rig.options()).await;
        assert_eq!(again.get("a").await, None);
        assert_eq!(again.get("b").await, Some(bytes_of(7, 300_000)));
        assert_eq!(again.contains_many([name("a")]), [false], "not asked for twice");
        let stats = again.stats();
        assert_eq!((stats.corrupt, stats.misses, stats.hits_ring), (1, 1, 1));
    }
    let mut bad = good.clone();
    let index = good.len() - TRAILER_LEN - 2 * RECORD_LEN;
    bad[index..index + 16].copy_from_slice(&name("other").0);
    rig.write(&key, &bad).await;
    assert_eq!(rig.open(rig.options()).await.stats().bundles_bad, 1, "an index that was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_are_counted_and_never_found() {
    let rig = Rig::new().await;
    let cache = rig.open(rig.options()).await;
    cache.commit("a", &bytes_of(0, 5000)).await;
    let good = rig.read(&rig.bundles().await.remove(0)).await;
    let file = |name: &str| Key::new(format!("kv/test/{name}")).unwrap();
    rig.write(&file("0-short.kv"), b"short").await;
    rig.write(&file("1-empty.kv"), b"").await;
    rig.write(&file("2-garbage.kv"), &bytes_of(3, 1 << 20)).await;
    rig.write(&file("3-cut.kv"), &good[..good.len() - 1]).await;
    rig.write(&file("4-longer.kv"), &[&good[..], &[0]].concat()).await;
    rig.write(&file("notes.txt"), b"something else").await;
    rig.write(&file("deeper/5.kv"), b"not looked at").await;
    let again = rig.open(rig.options()).await;
    let stats = again.stats();
    assert_eq!((stats.bundles, stats.bundles_bad, stats.blocks), (6, 5, 1));
    assert_eq!(again.get("a").await, Some(bytes_of(0, 5000)));
    // They count, and are the first to go when room is needed.
    let mut options = rig.options();
    options.capacity_bytes = 2 << 20;
    let small = rig.open(options).await;
    small.commit("b", &bytes_of(1, 1 << 20)).await;
    assert_eq!(small.get("a").await, Some(bytes_of(0, 5000)));
    assert!(rig.bundles().await.contains(&file("notes.txt")));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_refused() {
    let rig = Rig::new().await;
    let open = |change: &dyn Fn(&mut Options)| {
        let mut options = rig.options();
        change(&mut options);
        Cache::open(rig.node.clone(), options, rig.clock.clone(), 0)
    };
    let kind = |result: Result<Cache>| result.err().map(|fault| fault.kind);
    assert_eq!(kind(open(&|o| o.volume = "nowhere".into()).await), Some(ErrorKind::NotFound));
    assert_eq!(kind(open(&|o| o.directory = "/".into()).await), Some(ErrorKind::Invalid));
    assert_eq!(kind(open(&|o| o.capacity_bytes = 1).await), Some(ErrorKind::Invalid));
    assert_eq!(kind(open(&|o| o.ttl_ms = Some(0)).await), Some(ErrorKind::Invalid));
    let cache = rig.open(rig.options()).await;
    assert_eq!(
        cache.put_many(&[(name("a"), vec![&b""[..]])], None, false).await.unwrap_err().kind,
        ErrorKind::Invalid
    );
}

/// What somebody does to a cache.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, bool),
    Get(u8),
    Flush,
    Reopen,
    Refresh,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..12, 0u8..3, any::<bool>()).prop_map(|(key, seed, commit)| Step::Put(key, seed, commit)),
        4 => (0u8..12).prop_map(Step::Get),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Refresh),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// A hit is what was put last; what was committed is found, for nothing is evicted here.
    #[test]
    fn hits_are_what_was_put(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(follow(steps));
    }
}

async fn follow(steps: Vec<Step>) {
    let rig = Rig::new().await;
    let mut options = rig.options();
    options.memory_bytes = 40_000;
    let mut cache = rig.open(options.clone()).await;
    // What was put last since the cache was opened or committed before that, and whether it was committed.
    let mut last: HashMap<u8, (u8, bool)> = HashMap::new();
    let mut ever: HashSet<(u8, u8)> = HashSet::new();
    let block = |key: u8, seed: u8| bytes_of(usize::from(seed), 3000 + usize::from(key) * 1000);
    for step in steps {
        rig.pass(1);
        match step {
            Step::Put(key, seed, commit) => {
                let stored = cache.put_for(&key.to_string(), &block(key, seed), None, commit).await;
                last.insert(key, (seed, stored == Stored::Committed));
                ever.insert((key, seed));
            }
            Step::Get(key) => match (cache.get(&key.to_string()).await, last.get(&key)) {
                (Some(found), Some((seed, _))) => assert_eq!(found, block(key, *seed)),
                (Some(found), None) => {
                    assert!(ever.iter().any(|(k, seed)| *k == key && found == block(key, *seed)))
                }
                (None, want) => assert!(!want.is_some_and(|(_, is_committed)| *is_committed)),
            },
            Step::Flush => cache.flush().await.unwrap(),
            Step::Refresh => cache.refresh().await.unwrap(),
            Step::Reopen => {
                cache.flush().await.unwrap();
                cache = rig.open(options.clone()).await;
                // What stayed in memory is gone, and what it replaced may be back.
                last.retain(|_, (_, is_committed)| *is_committed);
            }
        }
    }
}
