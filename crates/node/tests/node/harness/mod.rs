//! A real node in a temporary directory, with a directory as its lake.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    Condition, CopyRequest, File, Finish, Key, ListEntry, ListRequest, Receipt, Result, SetId, SetInfo,
    SetRequest, ShardRequest, Store, VolumeOptions, VolumePolicy, WriteRequest,
};
use tempfile::TempDir;

/// The folder of a node. A node that a test drops without a stop keeps its drives open until the whole program ends, and deleted
/// files that are open take their space: so they are emptied first.
pub struct Folder(TempDir);

impl Folder {
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        for drive in
            entries(self.path()).filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"ring"))
        {
            for file in entries(&drive.path()) {
                let opened = std::fs::OpenOptions::new().write(true).open(file.path());
                let _ = opened.and_then(|file| file.set_len(0));
            }
        }
    }
}

pub struct Home {
    pub dir: Folder,
    pub drives: usize,
    pub policy: VolumePolicy,
    pub ring_bytes: u64,
    pub chunk_bytes: u32,
}

/// Drains at once, so that tests need not wait.
pub fn eager() -> VolumePolicy {
    VolumePolicy { drain_quiet_s: 0, drain_lag_max_s: 0, ..VolumePolicy::default() }
}

/// Drains when asked.
pub fn lazy() -> VolumePolicy {
    VolumePolicy { drain: stoker_store::DrainPolicy::OnDemand, ..VolumePolicy::default() }
}

impl Home {
    pub fn new(policy: VolumePolicy) -> Home {
        let dir = Folder(TempDir::new().unwrap());
        Home { dir, drives: 1, policy, ring_bytes: 256 << 20, chunk_bytes: 4 << 20 }
    }

    /// Like a new one, but on a real drive, where writes take a while; the folder for temporary files may be memory.
    pub fn on_drive(policy: VolumePolicy) -> Home {
        let dir = Folder(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        Home { dir, ..Home::new(policy) }
    }

    pub fn lake(&self) -> PathBuf {
        self.dir.path().join("lake")
    }

    pub fn options(&self) -> NodeOptions {
        let mut options = NodeOptions::new(self.dir.path().join("node"));
        options.drives = (0..self.drives)
            .map(|at| DriveOptions {
                path: self.dir.path().join(format!("ring{at}")),
                size_bytes: Some(self.ring_bytes),
            })
            .collect();
        options.lake = Some(format!("file://{}", self.lake().display()));
        options.lake_options.create_root = true;
        options.volume_defaults = self.policy.clone();
        options.memory_bytes = 512 << 20;
        options.chunk_bytes = self.chunk_bytes;
        options
    }

    pub async fn open(&self) -> Arc<Node> {
        Node::open(self.options()).await.unwrap()
    }

    /// Starts a node whose drives are gone for good.
    pub async fn open_with_new_drives(&self) -> Arc<Node> {
        let options = self.options();
        let new_drives = options.drives.iter().map(|drive| drive.path.clone()).collect();
        Node::open(NodeOptions { new_drives, ..options }).await.unwrap()
    }

    /// Stops a node and starts it again.
    pub async fn restart(&self, node: Arc<Node>) -> Arc<Node> {
        node.stop().await;
        // The drives stay locked as long as somebody has the node.
        drop(node);
        self.open().await
    }

    /// A node with a volume `data`.
    pub async fn start(&self) -> Arc<Node> {
        let node = self.open().await;
        match node.volume_create("data", VolumeOptions::default()).await {
            Ok(_) => {}
            Err(fault) => assert_eq!(fault.subject, stoker_store::Subject::Volume, "{fault}"),
        }
        node
    }
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
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

pub async fn write(writer: &mut Box<dyn stoker_store::Writer>, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buf = writer.buffer().await?;
        let len = rest.len().min(buf.capacity());
        buf.set_len(len);
        buf.as_mut_slice().copy_from_slice(&rest[..len]);
        writer.write(buf).await?;
        rest = &rest[len..];
    }
    Ok(())
}

pub async fn put_if(
    node: &Node,
    volume: &str,
    name: &str,
    bytes: &[u8],
    condition: Condition,
) -> Result<Receipt> {
    let request = WriteRequest { size: Some(bytes.len() as u64), condition, ..WriteRequest::default() };
    let mut writer = node.create(volume, &key(name), request).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await
}

pub async fn put(node: &Node, name: &str, bytes: &[u8]) -> Receipt {
    put_if(node, "data", name, bytes, Condition::default()).await.unwrap()
}

pub async fn append(node: &Node, name: &str, bytes: &[u8]) -> Receipt {
    let request = WriteRequest { append: true, ..WriteRequest::default() };
    let mut writer = node.create("data", &key(name), request).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    writer.finish(Finish::default()).await.unwrap()
}

pub async fn read_all(file: &dyn File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let piece = file.read(bytes.len() as u64, 4 << 20).await?;
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

pub async fn get_from(node: &Node, volume: &str, name: &str) -> Result<Vec<u8>> {
    let file = node.open(volume, &key(name)).await?;
    read_all(file.as_ref()).await
}

pub async fn get(node: &Node, name: &str) -> Result<Vec<u8>> {
    get_from(node, "data", name).await
}

pub async fn delete(node: &Node, name: &str) -> Result<bool> {
    node.delete("data", vec![(key(name), Condition::default())]).await.unwrap().pop().unwrap()
}

pub async fn names(node: &Node, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
    names_of(node, "data", prefix, delimiter, 3).await
}

/// All names of a listing, read in pages of `limit`.
pub async fn names_of(
    node: &Node,
    volume: &str,
    prefix: &str,
    delimiter: Option<&str>,
    limit: usize,
) -> Vec<String> {
    let mut request = ListRequest {
        prefix: prefix.as_bytes().to_vec(),
        delimiter: delimiter.map(|delimiter| delimiter.as_bytes().to_vec()),
        after: None,
        limit,
    };
    let mut all = Vec::new();
    loop {
        let page = node.list(volume, request.clone()).await.unwrap();
        all.extend(page.entries.iter().map(|entry| match entry {
            ListEntry::File(info) => info.key.to_string(),
            ListEntry::Prefix(prefix) => format!("{}*", String::from_utf8_lossy(prefix)),
        }));
        if !page.more {
            return all;
        }
        request.after = page.entries.last().map(|entry| entry.name().to_vec());
    }
}

/// Waits until a file is in the lake.
pub async fn drained(node: &Node, name: &str) -> Receipt {
    node.wait("data", &key(name), None, stoker_store::Awaited::Drained).await.unwrap()
}

/// Every plain file below a directory, by its path there.
pub fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut stack = vec![dir.to_path_buf()];
    while let Some(at) = stack.pop() {
        let Ok(entries) = std::fs::read_dir(&at) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            if entry.file_name().to_string_lossy().starts_with(".stoker") {
                continue;
            }
            if path.is_dir() { stack.push(path) } else { found.push(name) }
        }
    }
    found.sort();
    found
}

/// A copy within the volume.
pub fn copy_request(from: &str, to: &str) -> CopyRequest {
    CopyRequest {
        from_volume: "data".into(),
        from: key(from),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key(to),
        condition: Condition::default(),
        attributes: None,
    }
}

/// Begins a set in the volume `data`.
pub async fn set_begin(node: &Node, target: &str, shards: u32) -> Result<SetInfo> {
    let request = SetRequest { target: key(target), owner: "job".into(), shards, deadline_s: None };
    node.set_begin("data", request).await
}

/// Writes a shard.
pub async fn set_add(node: &Node, set: SetId, number: u32, name: &str, bytes: &[u8]) -> Result<Receipt> {
    let request = ShardRequest {
        number,
        writer: format!("rank {number}"),
        size: Some(bytes.len() as u64),
        ..ShardRequest::default()
    };
    let mut writer = node.set_shard("data", &key(name), set, request).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await
}

/// A number of a node, summed over its labels.
pub async fn counter(node: &Node, name: &str) -> f64 {
    let all = node.counters().await.unwrap();
    all.iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
}

/// Flips a byte on the drives below a folder, in the middle of these bytes, wherever they are.
pub fn damage(folder: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let needle = &bytes[bytes.len() / 2..][..64];
    let mut count = 0;
    for entry in std::fs::read_dir(folder.join("ring0")).unwrap().flatten() {
        let Ok(held) = std::fs::read(entry.path()) else { continue };
        let starts = held.iter().enumerate().filter(|(_, byte)| **byte == needle[0]);
        for at in starts.map(|(at, _)| at).filter(|at| held[*at..].starts_with(needle)) {
            let file = std::fs::File::options().write(true).open(entry.path()).unwrap();
            file.write_all_at(&[held[at] ^ 1], at as u64).unwrap();
            file.sync_all().unwrap();
            count += 1;
        }
    }
    assert!(count > 0, "the bytes are on no drive");
}
