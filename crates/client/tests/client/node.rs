//! The door through sockets on a real node: rings, catalog and lake behind it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use stoker_access::Guard;
use stoker_client::{Client, Endpoint, Server, ServerOptions};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::*;

struct Rig {
    node: Arc<Node>,
    server: Server,
    folder: tempfile::TempDir,
}

async fn open(folder: &tempfile::TempDir) -> (Arc<Node>, Server) {
    let mut options = NodeOptions::new(folder.path().join("node"));
    options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
    options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
    options.lake_options.create_root = true;
    options.memory_bytes = 512 << 20;
    let node = Node::open(options).await.unwrap();
    let store: Arc<dyn Store> = node.clone();
    let listen = vec![Endpoint::Unix(folder.path().join("stoker.sock")), Endpoint::Tcp("127.0.0.1:0".into())];
    let server =
        Server::start(Guard::new(store), listen, Some("token".into()), ServerOptions::default()).unwrap();
    (node, server)
}

async fn rig() -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let (node, server) = open(&folder).await;
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    Rig { node, server, folder }
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

async fn put(store: &dyn Store, name: &str, mut bytes: &[u8], size: Option<u64>) -> Result<Receipt> {
    let key = Key::new(name)?;
    let mut writer = store.create("data", &key, WriteRequest { size, ..WriteRequest::default() }).await?;
    while !bytes.is_empty() {
        let mut buf = writer.buffer().await?;
        let part = bytes.len().min(buf.capacity());
        buf.set_len(part);
        buf.as_mut_slice().copy_from_slice(&bytes[..part]);
        writer.write(buf).await?;
        bytes = &bytes[part..];
    }
    writer.finish(Finish::default()).await
}

async fn get(store: &dyn Store, name: &str) -> Result<Vec<u8>> {
    let file = store.open("data", &Key::new(name)?).await?;
    let mut got = Vec::new();
    loop {
        let part = file.read(got.len() as u64, 4 << 20).await?;
        if part.is_empty() {
            return Ok(got);
        }
        got.extend_from_slice(&part);
    }
}

/// More writers at once than the node has buffers for, over one connection of each kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_at_once_and_after_a_restart() {
    let Rig { node, server, folder } = rig().await;
    let unix = Client::connect(&server.addresses()[0], None).await.unwrap();
    let tcp = Client::connect(&server.addresses()[1], Some("token")).await.unwrap();
    let files: Vec<(String, Vec<u8>)> =
        (0..40u64).map(|n| (format!("f{n}"), bytes_of(n, (n * n * 5000) as usize))).collect();
    let puts = files.iter().enumerate().map(|(n, (name, bytes))| {
        let client = if n % 2 == 0 { &unix } else { &tcp };
        put(client, name, bytes, (n % 3 == 0).then_some(bytes.len() as u64))
    });
    for (receipt, (name, bytes)) in join_all(puts).await.into_iter().zip(&files) {
        let receipt = receipt.unwrap();
        assert_eq!(
            (receipt.key.as_str(), receipt.size, receipt.copies),
            (name.as_str(), bytes.len() as u64, 1)
        );
    }
    for (n, (name, bytes)) in files.iter().enumerate() {
        let client = if n % 2 == 0 { &tcp } else { &unix };
        assert!(get(client, name).await.unwrap() == *bytes, "{name}");
    }
    server.stop(Duration::from_secs(10)).await;
    node.stop().await;
    drop(node);

    // The same client goes on with the next life of the node.
    let (node, server) = open(&folder).await;
    let (name, bytes) = files.last().unwrap();
    assert!(get(&unix, name).await.unwrap() == *bytes);
    assert_eq!(unix.drain("data", b"f39").await.unwrap(), 1);
    let receipt = unix.wait("data", &Key::new("f39").unwrap(), None, Awaited::Drained).await.unwrap();
    assert_eq!(receipt.drain, DrainState::Clean);
    assert!(std::fs::read(folder.path().join("lake/data/f39")).unwrap() == *bytes);
    server.stop(Duration::from_secs(10)).await;
    node.stop().await;
}

/// A client that goes away in the middle leaves neither a file nor bytes that count.
#[tokio::test]
async fn an_unfinished_file_is_never_seen() {
    let rig = rig().await;
    let client = Client::connect(&rig.server.addresses()[0], None).await.unwrap();
    let key = Key::new("half").unwrap();
    let mut writer = client.create("data", &key, WriteRequest::default()).await.unwrap();
    for _ in 0..5 {
        let mut buf = writer.buffer().await.unwrap();
        buf.set_len(buf.capacity());
        writer.write(buf).await.unwrap();
    }
    drop((writer, client));
    rig.server.stop(Duration::from_secs(10)).await;
    assert_eq!(rig.node.stat("data", &key).await.unwrap_err().kind, ErrorKind::NotFound);
    rig.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_sets_pass_through_the_socket() {
    let Rig { node, server, folder: _folder } = rig().await;
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    let target = Key::new("run/1/").unwrap();
    let request = SetRequest { target: target.clone(), owner: "job".into(), shards: 3, deadline_s: Some(60) };
    let set = client.set_begin("data", request).await.unwrap();
    assert_eq!(client.set_find("data", &target).await.unwrap(), Some(set.clone()));
    let shard = |number: u32, name: &str| {
        let key = Key::new(format!("run/1/{name}")).unwrap();
        let (client, set) = (client.clone(), set.set);
        async move {
            let bytes = bytes_of(u64::from(number), 5 << 20);
            let size = Some(bytes.len() as u64);
            let request = ShardRequest { number, size, ..ShardRequest::default() };
            let mut writer = client.set_shard("data", &key, set, request).await?;
            for piece in bytes.chunks(1 << 20) {
                let mut buf = writer.buffer().await?;
                buf.set_len(0);
                buf.fill(piece);
                writer.write(buf).await?;
            }
            writer.finish(Finish::default()).await
        }
    };
    let (first, second) = tokio::join!(shard(0, "a"), shard(2, "b"));
    assert_eq!(first.unwrap().size, second.unwrap().size);
    let missing = client.set_publish("data", set.set).await.unwrap_err();
    assert_eq!((missing.kind, missing.subject), (ErrorKind::Conflict, Subject::Set), "{missing}");
    assert_eq!(client.set_status("data", set.set).await.unwrap().laggards, [1]);
    // A shard of parts.
    let key = Key::new("run/1/c").unwrap();
    let upload = client.upload_create("data", &key, Attributes::default(), None).await.unwrap().upload;
    let mut writer = client.upload_part("data", &key, &upload, 1, Some(4)).await.unwrap();
    let mut buf = writer.buffer().await.unwrap();
    buf.set_len(0);
    buf.fill(b"part");
    writer.write(buf).await.unwrap();
    let etag = writer.finish(Finish::default()).await.unwrap().etag;
    let parts = vec![PartChoice { number: 1, etag, checksum: None }];
    let shard_of_parts =
        ShardUpload { number: 1, writer: "rank 1".into(), upload, parts, finish: Finish::default() };
    client.set_shard_complete("data", &key, set.set, shard_of_parts).await.unwrap();
    assert_eq!(client.set_latest("data", b"run/").await.unwrap(), None);
    let published = client.set_publish("data", set.set).await.unwrap();
    assert_eq!(published.state, SetState::Published);
    assert_eq!(client.set_latest("data", b"run/").await.unwrap(), Some(published.clone()));
    assert_eq!(client.sets("data", None, 10).await.unwrap().sets, [published]);
    assert!(get(&client, "run/1/b").await.unwrap() == bytes_of(2, 5 << 20));
    assert_eq!(shard(0, "a").await.unwrap_err().kind, ErrorKind::Conflict);
    let late = client.set_abort("data", set.set).await.unwrap_err();
    assert_eq!((late.kind, late.subject), (ErrorKind::Conflict, Subject::Set), "{late}");
    drop(client);
    server.stop(Duration::from_secs(5)).await;
    node.stop().await;
}
