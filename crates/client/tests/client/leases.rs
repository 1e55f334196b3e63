//! Leases through the Unix socket of a real node: a client reads the drive itself, and nobody notices otherwise.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use stoker_access::Guard;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::*;
use tokio::net::{UnixListener, UnixStream};

struct Rig {
    node: Arc<Node>,
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

#[derive(Clone)]
struct Shape {
    chunk_bytes: u32,
    ring_bytes: u64,
    drives: usize,
    policy: VolumePolicy,
    server: ServerOptions,
}

impl Default for Shape {
    fn default() -> Shape {
        let policy = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let server = ServerOptions::default();
        Shape { chunk_bytes: 4 << 20, ring_bytes: 256 << 20, drives: 1, policy, server }
    }
}

async fn rig(shape: Shape) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let mut options = NodeOptions::new(folder.path().join("node"));
    let drive = |number: usize| DriveOptions {
        path: folder.path().join(format!("ring{number}")),
        size_bytes: Some(shape.ring_bytes),
    };
    options.drives = (0..shape.drives).map(drive).collect();
    options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
    options.lake_options.create_root = true;
    options.memory_bytes = 512 << 20;
    options.chunk_bytes = shape.chunk_bytes;
    options.volume_defaults = shape.policy;
    let node = Node::open(options).await.unwrap();
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let listen = vec![Endpoint::Unix(folder.path().join("s")), Endpoint::Tcp("127.0.0.1:0".into())];
    let store: Arc<dyn Store> = node.clone();
    let server = Server::start(Guard::new(store), listen, Some("token".into()), shape.server).unwrap();
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    Rig { node, server, client, folder }
}

impl Rig {
    async fn counter(&self, name: &str) -> u64 {
        let counters = self.node.counters().await.unwrap();
        counters.iter().filter(|counter| counter.name == name).map(|counter| counter.value as u64).sum()
    }

    /// Bytes that went through the node, and pieces that were leased.
    async fn traffic(&self) -> (u64, u64) {
        (self.counter("read_bytes_total").await, self.counter("leases_total").await)
    }

    /// Segments that this process can read by a lease; the node's own descriptors can write.
    fn leased_segments(&self) -> Vec<String> {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let read_only = entries.filter(|entry| is_read_only(&entry.file_name().to_string_lossy()));
        let targets = read_only.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let ours = targets.filter(|target| target.starts_with(self.folder.path()));
        ours.map(|target| target.display().to_string()).filter(|path| path.contains("segment-")).collect()
    }

    fn leased_descriptors(&self) -> usize {
        self.leased_segments().len()
    }

    async fn until_no_descriptors(&self) {
        self.until_descriptors(0).await;
    }

    /// The node closes its own a moment after it was sent.
    async fn until_descriptors(&self, count: usize) {
        let so_many = async {
            while self.leased_descriptors() != count {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), so_many).await;
        assert!(waited.is_ok(), "{} descriptors, not {count}", self.leased_descriptors());
    }

    async fn stop(self) {
        drop(self.client);
        self.server.stop(Duration::from_secs(10)).await;
        self.node.stop().await;
    }
}

fn is_read_only(descriptor: &str) -> bool {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 == 0)
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes a file in buffers that are full, or at most `piece` long, which ends a chunk early.
async fn put(store: &dyn Store, name: &str, mut bytes: &[u8], piece: usize) -> Result<Receipt> {
    let mut writer = store.create("data", &key(name), WriteRequest::default()).await?;
    while !bytes.is_empty() {
        let mut buf = writer.buffer().await?;
        let part = bytes.len().min(buf.capacity()).min(piece);
        buf.set_len(part);
        buf.as_mut_slice().copy_from_slice(&bytes[..part]);
        writer.write(buf).await?;
        bytes = &bytes[part..];
    }
    writer.finish(Finish::default()).await
}

async fn read_range(file: &dyn File, offset: usize, len: usize) -> Result<Vec<u8>> {
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

async fn read_all(file: &dyn File) -> Result<Vec<u8>> {
    read_range(file, 0, file.info().size as usize).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_reads_are_ordinary_reads() {
    for (chunk_bytes, drives) in [(20_000, 1), (64 << 10, 2), (1 << 20, 1), (4 << 20, 2)] {
        let rig = rig(Shape { chunk_bytes, drives, ..Shape::default() }).await;
        let plain = ClientOptions { leases: false, ..ClientOptions::default() };
        let ordinary = Client::connect_with(&rig.server.addresses()[0], None, plain).await.unwrap();
        let sizes =
            [(256 << 10, usize::MAX), (300_001, 7_777), ((5 << 20) + 17, usize::MAX), (9 << 20, 50_000)];
        for (number, (size, piece)) in sizes.into_iter().enumerate() {
            let bytes = bytes_of(number as u64, size);
            put(&*rig.node, "f", &bytes, piece).await.unwrap();
            let before = rig.traffic().await;
            let leased = rig.client.open("data", &key("f")).await.unwrap();
            let other = ordinary.open("data", &key("f")).await.unwrap();
            let chunk = (chunk_bytes as usize).min(size);
            let ranges = [
                (0, 1),
                (1, 4096),
                (4095, 2),
                (chunk - 1, 2),
                (chunk - 5000, 10_000),
                (size / 2 - 3, chunk.min(size / 2)),
                (size - 1, 1),
                (size - 1, 100),
                (0, size),
            ];
            let reads = ranges.map(|(offset, len)| read_range(&*leased, offset, len));
            for (got, (offset, len)) in join_all(reads).await.into_iter().zip(ranges) {
                let expect = &bytes[offset..(offset + len).min(size)];
                assert!(got.unwrap() == expect, "chunks of {chunk_bytes}, {size} bytes, {len} at {offset}");
            }
            assert!(leased.read(size as u64, 10).await.unwrap().is_empty());
            assert!(leased.read(u64::MAX, 10).await.unwrap().is_empty());
            let after = rig.traffic().await;
            assert_eq!(after.0, before.0, "nothing went through the node");
            assert!(after.1 > before.1);
            assert!(rig.leased_descriptors() > 0);
            for (offset, len) in ranges {
                let got = read_range(&*other, offset, len).await.unwrap();
                assert!(got == bytes[offset..(offset + len).min(size)]);
            }
            assert!(rig.traffic().await.0 > after.0);
        }
        rig.until_no_descriptors().await;
        rig.stop().await;
    }
}

/// From the drive by a thread that may be blocked, if the memory is fit for it; else with a copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_the_caller_is_filled() {
    for chunk_bytes in [20_000, 4 << 20] {
        let rig = rig(Shape { chunk_bytes, ..Shape::default() }).await;
        let bytes = bytes_of(3, (5 << 20) + 17);
        put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
        let file: Arc<dyn File> = rig.client.open("data", &key("f")).await.unwrap().into();
        let chunk = chunk_bytes as usize;
        let ranges: [(usize, usize); 6] =
            [(0, 1), (4095, 2), (5000, 17_000), (chunk - 5, 10_000), (bytes.len() - 9, 99), (77, 1 << 20)];
        for (offset, len) in ranges {
            for (may_block, skew) in [(true, 0), (true, 64), (false, 0)] {
                let (file, runtime) = (file.clone(), tokio::runtime::Handle::current());
                let read = move || {
                    let mut room = Buf::heap(len.next_multiple_of(4096) + 8192);
                    let into = &mut room.as_mut_slice()[skew..];
                    let mut call = || runtime.block_on(file.read_within(offset as u64, len, into)).unwrap();
                    let found = if may_block { alone(call) } else { call() };
                    room.as_slice()[skew..][found].to_vec()
                };
                let got = tokio::task::spawn_blocking(read).await.unwrap();
                assert!(!got.is_empty() && got.len() <= len && bytes[offset..].starts_with(&got));
            }
        }
        assert_eq!(rig.traffic().await.0, 0, "nothing went through the node");
        drop(file);
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_and_tcp_get_no_lease() {
    let rig = rig(Shape::default()).await;
    let (small, large) = (bytes_of(1, 100_000), bytes_of(2, 6 << 20));
    put(&rig.client, "small", &small, usize::MAX).await.unwrap();
    put(&rig.client, "large", &large, usize::MAX).await.unwrap();
    let tcp = Client::connect(&rig.server.addresses()[1], Some("token")).await.unwrap();
    let small_file = rig.client.open("data", &key("small")).await.unwrap();
    let large_file = tcp.open("data", &key("large")).await.unwrap();
    assert!(read_all(&*small_file).await.unwrap() == small);
    assert!(read_all(&*large_file).await.unwrap() == large);
    assert_eq!(rig.traffic().await, ((small.len() + large.len()) as u64, 0));
    assert_eq!(rig.leased_descriptors(), 0);
    rig.stop().await;
}

/// Overwritten, deleted, its segments gone round: the open file is what it was, and is read from the drive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_stays_what_it_was() {
    let shape = Shape { chunk_bytes: 256 << 10, ring_bytes: 64 << 20, ..Shape::default() };
    let rig = rig(shape).await;
    let bytes = bytes_of(1, 1 << 20);
    put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
    let file = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_range(&*file, 0, 1).await.unwrap() == bytes[..1]);
    put(&*rig.node, "f", &bytes_of(2, 1 << 20), usize::MAX).await.unwrap();
    let deleted = rig.node.delete("data", vec![(key("f"), Condition::default())]).await.unwrap();
    assert_eq!(deleted, [Ok(true)]);
    assert!(read_all(&*file).await.unwrap() == bytes);
    let mut round = 0;
    // Until the segment that the open file was leased from has been replaced.
    while !rig.leased_segments().iter().any(|path| path.ends_with("(deleted)")) {
        round += 1;
        assert!(round < 5_000, "the ring never came round");
        match put(&*rig.node, "other", &bytes_of(round, 2 << 20), usize::MAX).await {
            Ok(_) => {
                rig.node.delete("data", vec![(key("other"), Condition::default())]).await.unwrap();
            }
            // The collector has not caught up.
            Err(error) => assert_eq!(error.kind, ErrorKind::Full, "{error}"),
        }
        assert!(read_range(&*file, 1 << 19, 4096).await.unwrap() == bytes[1 << 19..][..4096]);
    }
    assert!(read_all(&*file).await.unwrap() == bytes);
    assert_eq!(rig.traffic().await.0, 0, "nothing went through the node");
    drop(file);
    rig.until_no_descriptors().await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_go_with_the_file_and_with_the_connection() {
    let rig = rig(Shape::default()).await;
    let bytes = bytes_of(1, 9 << 20);
    put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
    let file = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*file).await.unwrap() == bytes);
    rig.until_descriptors(1).await;
    drop(file);
    assert_eq!(rig.leased_descriptors(), 0, "closed with the file");

    let file = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_range(&*file, 0, 10).await.unwrap() == bytes[..10]);
    rig.until_descriptors(1).await;
    let Rig { node, server, client, folder } = rig;
    server.stop(Duration::from_secs(10)).await;
    let store: Arc<dyn Store> = node.clone();
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let server = Server::start(Guard::new(store), listen, None, ServerOptions::default()).unwrap();
    let rig = Rig { node, server, client, folder };
    rig.until_no_descriptors().await;
    // The next read opens the file again, and gets new ones.
    let before = rig.traffic().await;
    assert!(read_all(&*file).await.unwrap() == bytes);
    assert_eq!(rig.traffic().await.0, before.0);
    rig.until_descriptors(1).await;
    drop(file);
    rig.until_no_descriptors().await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_holds_so_many_descriptors_and_no_more() {
    let server = ServerOptions { descriptors_max: 1, ..ServerOptions::default() };
    let rig = rig(Shape { server, ..Shape::default() }).await;
    let bytes = bytes_of(1, 1 << 20);
    put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
    let first = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*first).await.unwrap() == bytes);
    let second = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*second).await.unwrap() == bytes);
    assert_eq!(rig.traffic().await.0, bytes.len() as u64);
    rig.until_descriptors(1).await;
    drop((first, second));
    let third = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*third).await.unwrap() == bytes);
    assert_eq!(rig.traffic().await.0, bytes.len() as u64);
    rig.until_descriptors(1).await;
    drop(third);
    rig.stop().await;
}

/// Flips a byte on the drive in the middle of these bytes.
fn damage(folder: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let needle = &bytes[bytes.len() / 2..][..64];
    for entry in std::fs::read_dir(folder.join("ring0")).unwrap().flatten() {
        let Ok(held) = std::fs::read(entry.path()) else { continue };
        if let Some(at) = held.windows(needle.len()).position(|window| window == needle) {
            let file = std::fs::File::options().write(true).open(entry.path()).unwrap();
            file.write_all_at(&[held[at] ^ 1], at as u64).unwrap();
            file.sync_all().unwrap();
            return;
        }
    }
    panic!("the bytes are on no drive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_on_the_drive_is_found_by_the_client() {
    let rig = rig(Shape { chunk_bytes: 256 << 10, ring_bytes: 64 << 20, ..Shape::default() }).await;
    let bytes = bytes_of(1, 700_000);
    put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
    let file = rig.client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*file).await.unwrap() == bytes);
    assert_eq!(rig.traffic().await.0, 0);
    damage(rig.folder.path(), &bytes);
    // Nobody else has the bytes: the damage is told, sound pieces are read all the same.
    assert_eq!(read_all(&*file).await.unwrap_err().kind, ErrorKind::Corrupt);
    assert!(read_range(&*file, 0, 200_000).await.unwrap() == bytes[..200_000]);
    drop(file);

    // The lake has them: they come from there.
    let bytes = bytes_of(2, 700_000);
    put(&*rig.node, "g", &bytes, usize::MAX).await.unwrap();
    assert_eq!(rig.client.drain("data", b"g").await.unwrap(), 1);
    rig.client.wait("data", &key("g"), None, Awaited::Drained).await.unwrap();
    let file = rig.client.open("data", &key("g")).await.unwrap();
    assert!(read_range(&*file, 0, 10).await.unwrap() == bytes[..10]);
    damage(rig.folder.path(), &bytes);
    assert!(read_all(&*file).await.unwrap() == bytes);
    drop(file);
    rig.stop().await;
}

/// A relay that copies bytes loses descriptors; reads go through the node then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_between_client_and_node_costs_leases_and_nothing_else() {
    let rig = rig(Shape::default()).await;
    let bytes = bytes_of(1, 5 << 20);
    put(&*rig.node, "f", &bytes, usize::MAX).await.unwrap();
    let path = rig.folder.path().join("relay");
    let listener = UnixListener::bind(&path).unwrap();
    let behind = rig.folder.path().join("s");
    let relay = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = UnixStream::connect(behind).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let client = Client::connect(&Endpoint::Unix(path), None).await.unwrap();
    let file = client.open("data", &key("f")).await.unwrap();
    assert!(read_all(&*file).await.unwrap() == bytes);
    assert_eq!((rig.traffic().await.0, rig.leased_descriptors()), (bytes.len() as u64, 0));
    drop((file, client));
    relay.await.unwrap();
    rig.stop().await;
}

/// Descriptors that a client sends are closed: nothing in the protocol asks for them.
#[tokio::test]
async fn a_node_keeps_no_descriptor_of_a_client() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::Read;
    use std::mem::MaybeUninit;
    let rig = rig(Shape::default()).await;
    let stream = std::os::unix::net::UnixStream::connect(rig.folder.path().join("s")).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let hello = stoker_client::wire::ClientHello {
        version: stoker_client::wire::VERSION,
        version_min: stoker_client::wire::VERSION_MIN,
        token: 0,
        nonce: [1; 32],
        cluster: stoker_format::ClusterId::ZERO,
    };
    let descriptors = [writer.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = hello.encode();
    sendmsg(&stream, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(writer);
    // The pipe ends when the node's copy of its other side is gone; the connection goes on.
    let end = tokio::task::spawn_blocking(move || reader.read(&mut [0]).unwrap());
    assert_eq!(end.await.unwrap(), 0);
    drop(stream);
    rig.stop().await;
}
