//! A node in a temporary directory, and file systems on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use stoker_access::Guard;
use stoker_client::{Client, Endpoint, Server, ServerOptions};
use stoker_files::{Errno, Files, Handle, Kind, Make, Options, ROOT};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    Condition, DrainPolicy, Finish, Key, ListRequest, Store, VolumeOptions, VolumePolicy, WriteRequest,
};

static CLOCK: AtomicI64 = AtomicI64::new(1_700_000_000_000_000_000);

/// A clock that goes on by a microsecond whenever somebody looks.
pub fn now_ns() -> i64 {
    CLOCK.fetch_add(1000, Ordering::Relaxed)
}

pub const MAKE: Make = Make { mode: 0o640, umask: 0, uid: 7, gid: 8, rdev: 0 };

pub struct Rig {
    pub folder: tempfile::TempDir,
    pub node: Option<Arc<Node>>,
    pub server: Option<Server>,
}

impl Rig {
    pub async fn new() -> Rig {
        let mut rig = Rig { folder: tempfile::tempdir().unwrap(), node: None, server: None };
        rig.start().await;
        let policy = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
        rig.store().volume_create("data", options).await.unwrap();
        rig
    }

    pub async fn start(&mut self) {
        let folder = self.folder.path();
        let mut options = NodeOptions::new(folder.join("node"));
        options.drives = vec![DriveOptions { path: folder.join("ring"), size_bytes: Some(256 << 20) }];
        options.lake = Some(format!("file://{}", folder.join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 512 << 20;
        let node = Node::open(options).await.unwrap();
        let listen = vec![Endpoint::Unix(folder.join("stoker.sock"))];
        self.server =
            Some(Server::start(Guard::new(node.clone()), listen, None, ServerOptions::default()).unwrap());
        self.node = Some(node);
    }

    pub async fn stop(&mut self) {
        self.server.take().unwrap().stop(Duration::from_secs(5)).await;
        let node = self.node.take().unwrap();
        node.stop().await;
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.node.clone().unwrap()
    }

    /// A file system in this process.
    pub async fn files(&self, place: &str) -> Files {
        self.files_with(options(place)).await
    }

    /// The same with other numbers.
    pub async fn files_with(&self, options: Options) -> Files {
        Files::open(self.store(), "data", options).await.unwrap()
    }

    /// A file system that asks the node through its socket.
    pub async fn remote(&self, place: &str) -> Files {
        let endpoint = Endpoint::Unix(self.folder.path().join("stoker.sock"));
        let client = Client::connect(&endpoint, None).await.unwrap();
        Files::open(Arc::new(client), "data", options(place)).await.unwrap()
    }
}

pub fn options(place: &str) -> Options {
    Options::new(place, now_ns)
}

/// The inode of a path.
pub async fn walk(files: &Files, path: &str) -> Result<u64, Errno> {
    let mut at = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = files.lookup(at, name.as_bytes()).await?.ino;
    }
    Ok(at)
}

pub async fn mkdir(files: &Files, parent: u64, name: &str) -> Result<u64, Errno> {
    let make = Make { mode: 0o755, ..MAKE };
    Ok(files.make(parent, name.as_bytes(), Kind::Directory, make, b"").await?.ino)
}

pub async fn put(files: &Files, parent: u64, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    let (attr, handle) = files.create(parent, name.as_bytes(), MAKE, false).await?;
    files.truncate(attr.ino, 0).await?;
    files.write(&handle, 0, bytes, false).await?;
    close(files, handle).await
}

pub async fn close(files: &Files, handle: Arc<Handle>) -> Result<(), Errno> {
    let flushed = files.fsync(&handle).await;
    files.release(handle.id).await;
    flushed
}

pub async fn get(files: &Files, path: &str) -> Result<Vec<u8>, Errno> {
    let ino = walk(files, path).await?;
    let handle = files.open_file(ino, true).await?;
    let bytes = files.read(&handle, 0, 64 << 20).await?;
    files.release(handle.id).await;
    Ok(bytes.to_vec())
}

/// What S3 does with a `PUT`.
pub async fn put_object(rig: &Rig, name: &str, bytes: &[u8]) {
    let key = Key::new(name).unwrap();
    let mut writer = rig.store().create("data", &key, WriteRequest::default()).await.unwrap();
    let mut buf = writer.buffer().await.unwrap();
    buf.fill(bytes);
    writer.write(buf).await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
}

/// What S3 does with a `DELETE`.
pub async fn delete_object(rig: &Rig, name: &str) {
    let keys = vec![(Key::new(name).unwrap(), Condition::default())];
    assert_eq!(rig.store().delete("data", keys).await.unwrap(), [Ok(true)]);
}

/// All keys of the volume, as S3 would list them.
pub async fn keys(rig: &Rig) -> Vec<String> {
    let request = ListRequest { limit: 1000, ..ListRequest::default() };
    let page = rig.store().list("data", request).await.unwrap();
    page.entries.iter().map(|entry| String::from_utf8_lossy(entry.name()).into_owned()).collect()
}

pub async fn names(files: &Files, ino: u64) -> Vec<String> {
    let mut found = Vec::new();
    let listing = files.list(ino).unwrap();
    let mut place = 0;
    loop {
        // Three at a time, as a small buffer would ask.
        let (before, mut count) = (found.len(), 0);
        listing
            .read(place, false, |next, entry| {
                if count == 3 {
                    return false;
                }
                (count, place) = (count + 1, next);
                found.push(String::from_utf8_lossy(&entry.name).into_owned());
                true
            })
            .await
            .unwrap();
        if found.len() == before {
            found.sort();
            return found;
        }
    }
}
