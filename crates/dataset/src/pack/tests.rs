//! Packing into a real node.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{Finish, VolumeOptions, WriteRequest};

use super::*;
use crate::seal::Seal;
use crate::{SealOptions, seal_shards};

struct Rig {
    folder: tempfile::TempDir,
    node: Arc<Node>,
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
        Rig { folder, node }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.node.clone()
    }

    fn tree(&self) -> std::path::PathBuf {
        self.folder.path().join("tree")
    }

    /// Samples of two files each, some long, and a few names that are hard.
    fn grow(&self, count: usize) -> Source {
        for number in 0..count {
            let stem = format!("c{}/{number:05}", number % 3);
            write_file(&self.tree(), &format!("{stem}.cls"), format!("{}", number % 10).as_bytes());
            write_file(&self.tree(), &format!("{stem}.seg.png"), &bytes_of(number, number * 37 % 9000));
        }
        write_file(&self.tree(), &format!("deep/{}/{}.bin", "d".repeat(200), "ü".repeat(100)), b"long name");
        write_file(&self.tree(), "c0-x.txt", b"sorts between c0 and c0/");
        write_file(&self.tree(), "large.bin", &bytes_of(1, 9 << 20));
        write_file(&self.tree(), "empty.txt", b"");
        Source::Local(self.tree())
    }

    async fn read(&self, key: &str) -> Vec<u8> {
        let file = self.node.open("data", &key_of(key)).await.unwrap();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < file.info().size {
            bytes.extend_from_slice(&file.read(bytes.len() as u64, 1 << 20).await.unwrap());
        }
        bytes
    }

    async fn write(&self, key: &str, bytes: &[u8]) {
        let request = WriteRequest { size: Some(bytes.len() as u64), ..WriteRequest::default() };
        let mut writer = self.node.create("data", &key_of(key), request).await.unwrap();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut buf = writer.buffer().await.unwrap();
            let part = rest.len().min(buf.capacity());
            buf.fill(&rest[..part]);
            rest = &rest[part..];
            writer.write(buf).await.unwrap();
        }
        writer.finish(Finish::default()).await.unwrap();
    }

    async fn keys(&self, prefix: &str) -> Vec<String> {
        let request = ListRequest { prefix: prefix.into(), limit: 1000, ..ListRequest::default() };
        let page = self.node.list("data", request).await.unwrap();
        page.entries.iter().map(|entry| String::from_utf8(entry.name().to_vec()).unwrap()).collect()
    }

    async fn pack(&self, source: Source, options: PackOptions) -> Result<PackReport> {
        pack(self.store(), source, options, Arc::default()).await
    }

    /// Every sample of a seal: its name, and the names and bytes of its members.
    async fn samples(&self, seal: &str) -> Vec<(String, Vec<(String, Vec<u8>)>)> {
        let bytes = self.read(seal).await;
        let seal = Seal::open(&bytes).unwrap();
        let mut shards = Vec::new();
        for row in seal.shards() {
            let shard = self.read(&row.key).await;
            assert_eq!(shard.len() as u64, row.size);
            shards.push(shard);
        }
        let mut samples = Vec::new();
        for number in 0..seal.len() {
            let sample = seal.sample(number).unwrap();
            let range = &shards[sample.shard][sample.start as usize..][..sample.len as usize];
            let members = tar::members(range).unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let member = |member: &tar::Member| {
                (text(&member.name), range[member.data as usize..][..member.size as usize].to_vec())
            };
            let name = text(&seal.name(number).unwrap().unwrap());
            samples.push((name, members.iter().map(member).collect()));
        }
        samples
    }
}

fn options(prefix: &str) -> PackOptions {
    let (volume, prefix) = ("data".to_owned(), prefix.to_owned());
    PackOptions { volume, prefix, shard_bytes: 1 << 20, jobs: 3, replace: false }
}

fn key_of(key: &str) -> Key {
    Key::new(key.as_bytes()).unwrap()
}

fn bytes_of(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8).wrapping_mul(2 * seed + 3) as u8).collect()
}

fn write_file(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// All files of the tree, by name.
fn files_of(root: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let (mut files, mut waiting) = (std::collections::BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_is_packed_once_and_found_by_the_seal() {
    let rig = Rig::new().await;
    let source = rig.grow(300);
    let report = rig.pack(source, options("sets/train")).await.unwrap();
    assert_eq!((report.files, report.samples, report.resumed), (604, 304, 0));
    assert!(report.shards >= 3, "{report:?}");
    let samples = rig.samples("sets/train.seal").await;
    assert!(samples.is_sorted_by(|a, b| a.0 < b.0), "in the order of their names, each once");
    let mut found = std::collections::BTreeMap::new();
    for (name, members) in samples {
        for (member, bytes) in members {
            assert_eq!(tar::stem(member.as_bytes()), name.as_bytes());
            assert!(found.insert(member, bytes).is_none());
        }
    }
    assert_eq!(found, files_of(&rig.tree()));
    let keys = rig.keys("sets/").await;
    assert_eq!(keys.len() as u64, report.shards + 1, "shards and the seal, no notes: {keys:?}");

    // A second run finds everything as it is.
    let again = rig.pack(Source::Local(rig.tree()), options("sets/train")).await.unwrap();
    assert_eq!((again.resumed, &again.identity), (report.shards, &report.identity));

    // A seal of the same shards, from their headers alone, has the same samples.
    let prefixes = vec!["sets/train".to_owned()];
    let (volume, to_volume, to) = ("data".to_owned(), "data".to_owned(), "other.seal".to_owned());
    let sealing = SealOptions { volume, prefixes, to_volume, to, jobs: 2, replace: false };
    let sealed = seal_shards(rig.store(), sealing.clone(), Arc::default()).await.unwrap();
    assert_eq!((sealed.samples, sealed.shards), (report.samples, report.shards));
    let (own, other) = (rig.read("sets/train.seal").await, rig.read("other.seal").await);
    let (own, other) = (Seal::open(&own).unwrap(), Seal::open(&other).unwrap());
    assert_eq!(own.shards(), other.shards());
    for number in 0..own.len() {
        assert_eq!(own.sample(number), other.sample(number));
        assert_eq!(own.name(number), other.name(number));
    }
    let again = seal_shards(rig.store(), sealing, Arc::default()).await.unwrap();
    assert_eq!(again, sealed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_killed_goes_on() {
    let rig = Rig::new().await;
    let source = rig.grow(600);
    let meter = Arc::new(Meter::default());
    let first = PackOptions { jobs: 1, ..options("train") };
    tokio::select! {
        _ = pack(rig.store(), source.clone(), first, meter.clone()) => panic!("it should be under way"),
        () = async {
            while meter.progress().shards_done < 2 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    assert!(rig.node.stat("data", &key_of("train.seal")).await.is_err(), "no seal before the end");
    // A shard without its note is read back; one whose note lies is, too.
    rig.node.delete("data", vec![(key_of("train.pack/000000.json"), Condition::default())]).await.unwrap();
    rig.write("train.pack/000001.json", b"{\"digest\": 3").await;
    let kept = rig.node.stat("data", &key_of("train-000000.tar")).await.unwrap().version;
    let meter = Arc::new(Meter::default());
    let report = pack(rig.store(), source, options("train"), meter.clone()).await.unwrap();
    assert_eq!(rig.node.stat("data", &key_of("train-000000.tar")).await.unwrap().version, kept);
    let progress = meter.progress();
    assert_eq!((progress.bytes_written, progress.bytes_verified), (report.bytes, report.bytes));
    assert_eq!((progress.shards_done, progress.files), (report.shards, report.files));
    assert_eq!(rig.samples("train.seal").await.len() as u64, report.samples);
    assert!(rig.keys("train.pack/").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_replaced_unless_that_is_asked_for() {
    let rig = Rig::new().await;
    let source = rig.grow(200);
    let first = rig.pack(source.clone(), options("train")).await.unwrap();
    write_file(&rig.tree(), "c0/00000.cls", b"another class");
    let fault = rig.pack(source.clone(), options("train")).await.unwrap_err();
    assert!(matches!(&fault, Fault::Store { error, .. } if error.kind == ErrorKind::Conflict), "{fault}");
    assert!(fault.path().contains("train-00000"), "{fault}");
    assert_eq!(rig.samples("train.seal").await.len() as u64, first.samples, "the first is as it was");
    // Larger shards are fewer: those that are left over go.
    let other = PackOptions { shard_bytes: 64 << 20, replace: true, ..options("train") };
    let report = rig.pack(source, other).await.unwrap();
    assert_eq!((report.shards, report.samples), (1, first.samples));
    assert_eq!(rig.keys("train").await, ["train-000000.tar", "train.seal"]);
    // Somebody's own file.
    rig.write("mine-000000.tar", b"mine").await;
    let fault = rig.pack(Source::Local(rig.tree()), options("mine")).await.unwrap_err();
    assert!(fault.path().ends_with("data/mine-000000.tar"), "{fault}");
    assert_eq!(rig.read("mine-000000.tar").await, b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_volume_are_packed() {
    let rig = Rig::new().await;
    for number in 0..50 {
        rig.write(&format!("raw/{number:03}.txt"), &bytes_of(number, number * 1000)).await;
    }
    rig.write("raw/dir/", b"").await;
    rig.write("raw/large.bin", &bytes_of(7, 9_000_001)).await;
    let source = Source::Volume { volume: "data".into(), directory: "raw".into() };
    let report = rig.pack(source.clone(), options("train")).await.unwrap();
    assert_eq!(report.files, 51);
    for (name, members) in rig.samples("train.seal").await {
        for (member, bytes) in members {
            assert_eq!(bytes, rig.read(&format!("raw/{member}")).await, "{name}");
        }
    }
    let fault = rig.pack(source, options("raw/train")).await.unwrap_err();
    assert!(fault.to_string().contains("pack itself"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_meanwhile_is_named() {
    let rig = Rig::new().await;
    rig.write("raw/a.txt", b"one").await;
    rig.write("raw/b.txt", b"two").await;
    write_file(&rig.tree(), "a.txt", b"one");
    write_file(&rig.tree(), "b.txt", b"two");
    let volume = Source::Volume { volume: "data".into(), directory: "raw/".into() };
    let meter = Arc::default();
    let here = Arc::new(Inputs::find(&*rig.node, Source::Local(rig.tree()), &meter).await.unwrap());
    let there = Arc::new(Inputs::find(&*rig.node, volume, &meter).await.unwrap());
    write_file(&rig.tree(), "b.txt", b"longer than before");
    rig.write("raw/b.txt", b"too").await;
    for inputs in [here, there] {
        let read = |files| crate::feed::read(rig.store(), inputs.clone(), crate::feed::Batch::Files(files));
        assert_eq!(read(0..1).await.unwrap().len(), 1024);
        let fault = read(0..2).await.unwrap_err();
        assert!(fault.path().ends_with("b.txt") && fault.to_string().contains("changed"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_wishes_are_refused_with_the_path() {
    let rig = Rig::new().await;
    let check = async |source: Source, options: PackOptions, path: &str, words: &str| {
        let fault = rig.pack(source, options).await.unwrap_err();
        assert!(fault.path().contains(path) && fault.to_string().contains(words), "{fault}");
    };
    let nowhere = Source::Local(rig.folder.path().join("nowhere"));
    check(nowhere.clone(), options("train"), "nowhere", "No such file").await;
    check(nowhere.clone(), options("train/"), "data/train/", "needs a name").await;
    check(nowhere.clone(), PackOptions { shard_bytes: 10, ..options("t") }, "data/t", "at least").await;
    check(nowhere, PackOptions { volume: "no".into(), ..options("t") }, "stoker://no", "no").await;
    fs::create_dir(rig.tree()).unwrap();
    let tree = || Source::Local(rig.tree());
    check(tree(), options("t"), "tree", "no file").await;
    std::os::unix::fs::symlink(".", rig.tree().join("loop")).unwrap();
    check(tree(), options("t"), "tree/loop", "neither").await;
    fs::remove_file(rig.tree().join("loop")).unwrap();
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"a\xff.txt");
    fs::write(rig.tree().join(odd), "x").unwrap();
    check(tree(), options("t"), "tree/a", "not UTF-8").await;
    assert!(rig.keys("").await.is_empty());

    rig.write("bad-0.tar", &[7; 5000]).await;
    let seal = |prefix: &str| SealOptions {
        volume: "data".into(),
        prefixes: vec![prefix.into()],
        to_volume: "data".into(),
        to: "x.seal".into(),
        jobs: 4,
        replace: false,
    };
    let fault = seal_shards(rig.store(), seal("bad"), Arc::default()).await.unwrap_err();
    assert!(fault.to_string().contains("data/bad-0.tar: no sound tar"), "{fault}");
    let fault = seal_shards(rig.store(), seal("none"), Arc::default()).await.unwrap_err();
    assert!(fault.to_string().contains("no .tar is there"), "{fault}");
}
