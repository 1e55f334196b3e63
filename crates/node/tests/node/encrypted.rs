//! Encrypted volumes: nothing of them is plain on a drive, and keys come, change and go.

use std::collections::HashSet;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stoker_format::{BLOCK, crc32c};
use stoker_node::{KeyFiles, Node, NodeOptions};
use stoker_store::{
    Attributes, Condition, DataKeysInfo, EditRequest, ErrorKind, Finish, Order, Piece, Report, Result, Store,
    VolumeOptions, VolumePolicy,
};

use crate::harness::cluster::Cluster;
use crate::harness::*;

/// In every kilobyte of what these tests write, and in names and attributes.
const MARK: &[u8] = b"plain-as-day-7f3a9c";

/// Whole chunks, one more, and an odd end.
const LEN: usize = (5 << 20) + 333;

fn marked(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = pattern(seed, len);
    bytes.chunks_mut(1024).filter(|piece| piece.len() >= MARK.len()).for_each(|piece| {
        piece[..MARK.len()].copy_from_slice(MARK);
    });
    bytes
}

async fn create(node: &Node, name: &str) {
    let order = Order::EncryptedVolume { name: name.into(), options: VolumeOptions::default() };
    let Report::Volume(made) = node.operate(order).await.unwrap() else { panic!("not a volume") };
    assert_eq!(made.name, name);
}

async fn keys_after(node: &Node, order: Order) -> Result<DataKeysInfo> {
    let Report::DataKeys(mut keys) = node.operate(order).await? else { panic!("no keys") };
    Ok(keys.pop().expect("one volume"))
}

async fn put_in(node: &Node, volume: &str, name: &str, bytes: &[u8]) {
    put_if(node, volume, name, bytes, Condition::default()).await.unwrap();
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut stack) = (Vec::new(), vec![dir.to_path_buf()]);
    assert!(dir.is_dir());
    while let Some(at) = stack.pop() {
        // A node that runs takes folders away.
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { stack.push(path) } else { found.push(path) }
        }
    }
    found
}

fn small_home(policy: VolumePolicy) -> Home {
    Home { ring_bytes: 64 << 20, ..Home::new(policy) }
}

async fn small_cluster() -> Cluster {
    Cluster::with_rings(&["", ""], (1, 64 << 20), lazy()).await
}

/// Files below a directory that have these bytes.
fn files_with(dir: &Path, wanted: &[u8]) -> Vec<PathBuf> {
    // Block by block, with the end of the one before; most of a ring is zeros.
    let has = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        (0..bytes.len()).step_by(BLOCK).any(|at| {
            let block = &bytes[at..(at + BLOCK).min(bytes.len())];
            let around = &bytes[at..(at + BLOCK + wanted.len()).min(bytes.len())];
            block != &[0; BLOCK][..block.len()] && around.windows(wanted.len()).any(|window| window == wanted)
        })
    };
    files_below(dir).into_iter().filter(has).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    files_below(dir).into_iter().filter(|path| path.to_string_lossy().contains("segment-")).collect()
}

/// Blocks of the drives of a node that are not zero, and look like nothing.
fn random_blocks(dir: &Path) -> HashSet<Vec<u8>> {
    let mut blocks = HashSet::new();
    for path in segments(dir) {
        // One that is being made has no contents yet.
        let bytes = std::fs::read(path).unwrap_or_default();
        let looks_random = |block: &&[u8]| {
            let mut seen = [false; 256];
            block.iter().for_each(|byte| seen[usize::from(*byte)] = true);
            seen.iter().filter(|seen| **seen).count() > 200
        };
        blocks.extend(bytes.chunks_exact(BLOCK).filter(looks_random).map(<[u8]>::to_vec));
    }
    blocks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_encrypted_volume_is_plain_on_drives() {
    let cluster = small_cluster().await;
    create(cluster.node(0), "vault").await;
    let (large, small) = (marked(1, LEN), marked(2, 1500));
    let name = format!("{}/large", String::from_utf8_lossy(MARK));
    put_in(cluster.node(0), "vault", &name, &large).await;
    put_in(cluster.node(1), "vault", "small", &small).await;
    // The same in a volume that is plain is found, or the hunt finds nothing.
    for at in 0..2 {
        assert_eq!(files_with(cluster.folder(at), MARK), Vec::<PathBuf>::new(), "node {at}");
        assert_eq!(get_from(cluster.node(at), "vault", &name).await.unwrap(), large, "node {at}");
        assert_eq!(get_from(cluster.node(at), "vault", "small").await.unwrap(), small, "node {at}");
        let file = cluster.node(at).open("vault", &key(&name)).await.unwrap();
        for (from, len) in
            [(0, 1), (4095, 2), (5000, 100), ((4 << 20) - 7, 20), (LEN - 3, 3), (LEN - 5000, 4097)]
        {
            let bytes = file.read(from as u64, len).await.unwrap();
            assert_eq!(bytes[..], large[from..from + bytes.len()], "{len} at {from} of node {at}");
        }
    }
    let (here, there) = (random_blocks(cluster.folder(0)), random_blocks(cluster.folder(1)));
    let same = here.intersection(&there).count();
    assert!(same >= LEN / BLOCK, "both holders have the same ciphertext: {same} blocks");
    put(cluster.node(0), "open", &large).await;
    assert!(!files_with(cluster.folder(1), MARK).is_empty(), "the hunt finds what is plain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_from_the_lake_is_sealed_again() {
    let home = small_home(eager());
    let node = home.start().await;
    create(&node, "vault").await;
    let bytes = marked(3, LEN);
    put_in(&node, "vault", "f", &bytes).await;
    node.wait("vault", &key("f"), None, stoker_store::Awaited::Drained).await.unwrap();
    assert_eq!(std::fs::read(home.lake().join("vault").join("f")).unwrap(), bytes, "its lake form is plain");
    node.stop().await;
    drop(node);
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    let node = home.open_with_new_drives().await;
    assert!(node.stage("vault", &key("f")).await.unwrap() > 0);
    assert!(!random_blocks(&home.dir.path().join("ring0")).is_empty(), "it is on the drive");
    assert_eq!(files_with(&home.dir.path().join("ring0"), MARK), Vec::<PathBuf>::new());
    std::fs::remove_file(home.lake().join("vault").join("f")).unwrap();
    assert_eq!(get_from(&node, "vault", "f").await.unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_edited_and_copied_under_the_keys_of_their_volume() {
    let home = small_home(lazy());
    let node = home.start().await;
    create(&node, "vault").await;
    create(&node, "other").await;
    let mut bytes = marked(4, LEN);
    put_in(&node, "vault", "f", &bytes).await;
    // The front of a chunk, and bytes in the middle of another.
    let base = Some(node.stat("vault", &key("f")).await.unwrap().version);
    let pieces = vec![
        Piece::Keep { start: 0, end: 10_000 },
        Piece::Take(50),
        Piece::Keep { start: 10_050, end: (4 << 20) + 5_001 },
    ];
    let request = EditRequest { base, pieces, ..EditRequest::default() };
    let mut writer = node.edit("vault", &key("f"), request).await.unwrap();
    write(&mut writer, &[7; 50]).await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
    bytes[10_000..10_050].fill(7);
    bytes.truncate((4 << 20) + 5_001);
    for (from, to) in [("vault", "vault"), ("vault", "other"), ("data", "vault"), ("vault", "data")] {
        if from == "data" {
            put(&node, "f", &bytes).await;
        }
        let name = format!("from-{from}");
        let mut request = copy_request("f", &name);
        (request.from_volume, request.to_volume) = (from.into(), to.into());
        node.copy(request).await.unwrap();
        let copy = node.stat(to, &key(&name)).await.unwrap();
        let original = node.stat(from, &key("f")).await.unwrap();
        assert_eq!(copy.attributes, Attributes { ..original.attributes });
    }
    let node = home.restart(node).await;
    for (volume, name) in
        [("vault", "f"), ("vault", "from-vault"), ("other", "from-vault"), ("data", "from-vault")]
    {
        assert_eq!(get_from(&node, volume, name).await.unwrap(), bytes, "{volume}/{name}");
    }
    // Those of one volume go, those of the other stay.
    keys_after(&node, Order::DataKeyDestroy { volume: "vault".into() }).await.unwrap();
    assert_eq!(get_from(&node, "vault", "from-vault").await.unwrap_err().kind, ErrorKind::Denied);
    for (volume, name) in [("other", "from-vault"), ("data", "from-vault")] {
        assert_eq!(get_from(&node, volume, name).await.unwrap(), bytes, "{volume}/{name}");
    }
}

fn key_file(home: &Home, name: &str, digit: &str) -> PathBuf {
    let path = home.dir.path().join(name);
    std::fs::write(&path, digit.repeat(64)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_without_touching_what_is_there() {
    let home = small_home(lazy());
    let node = home.start().await;
    create(&node, "vault").await;
    let (before, after) = (marked(5, LEN), marked(6, 70_000));
    put_in(&node, "vault", "before", &before).await;
    let blocks = random_blocks(&home.dir.path().join("ring0"));
    let keys = keys_after(&node, Order::DataKeyRotate { volume: "vault".into() }).await.unwrap();
    assert_eq!(keys.epochs.iter().map(|key| key.epoch).collect::<Vec<_>>(), [1, 2]);
    put_in(&node, "vault", "after", &after).await;
    assert!(random_blocks(&home.dir.path().join("ring0")).is_superset(&blocks), "nothing was written again");
    // Another key-encryption key: the data keys are wrapped anew, and nothing else changes.
    let own = keys.epochs[0].kek.clone();
    let file = key_file(&home, "kek", "a");
    let with = |file: Option<&PathBuf>| NodeOptions {
        key_files: KeyFiles { file: file.cloned(), former: Vec::new() },
        ..home.options()
    };
    node.stop().await;
    drop(node);
    let node = Node::open(with(Some(&file))).await.unwrap();
    let keys = keys_after(&node, Order::DataKeys).await.unwrap();
    assert!(keys.epochs.iter().all(|key| key.kek.starts_with("file:") && key.kek != own), "{keys:?}");
    for (name, bytes) in [("before", &before), ("after", &after)] {
        assert_eq!(&get_from(&node, "vault", name).await.unwrap(), bytes, "{name}");
    }
    node.stop().await;
    drop(node);
    // Without it the volume is locked, and the others are not.
    let node = Node::open(with(None)).await.unwrap();
    let keys = keys_after(&node, Order::DataKeys).await.unwrap();
    assert!(keys.locked.is_some());
    let fault = get_from(&node, "vault", "before").await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Unavailable);
    assert!(fault.message.contains(&keys.epochs[0].kek), "it names the key that lacks: {fault}");
    let refused = put_if(&node, "vault", "new", &after, Condition::default()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    put(&node, "plain", &after).await;
    node.stop().await;
    drop(node);
    // Another file takes its place, and the former one is needed for one start.
    let newer = key_file(&home, "newer", "b");
    let key_files = KeyFiles { file: Some(newer.clone()), former: vec![file] };
    let node = Node::open(NodeOptions { key_files, ..home.options() }).await.unwrap();
    assert_eq!(get_from(&node, "vault", "before").await.unwrap(), before);
    node.stop().await;
    drop(node);
    let node = Node::open(with(Some(&newer))).await.unwrap();
    assert_eq!(get_from(&node, "vault", "before").await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_destroyed_keys_sealed_is_gone_at_once_and_everywhere() {
    let mut cluster = small_cluster().await;
    create(cluster.node(0), "vault").await;
    let bytes = marked(7, LEN);
    put_in(cluster.node(0), "vault", "f", &bytes).await;
    let mut open = Vec::new();
    for at in 0..2 {
        let file = cluster.node(at).open("vault", &key("f")).await.unwrap();
        // Twice, so that it is in memory.
        for _ in 0..3 {
            assert_eq!(read_all(file.as_ref()).await.unwrap(), bytes);
        }
        open.push(file);
    }
    let keys = keys_after(cluster.node(0), Order::DataKeyDestroy { volume: "vault".into() }).await.unwrap();
    assert!(keys.destroyed_ms.is_some() && keys.epochs.is_empty());
    let fault = open[0].read(0, 10).await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Denied);
    assert!(fault.message.contains("destroyed"), "{fault}");
    let is_gone = async || open[1].read(0, 10).await.is_err_and(|fault| fault.kind == ErrorKind::Denied);
    cluster.until("the other node forgets the keys", is_gone).await;
    drop(open);
    let refused = put_if(cluster.node(1), "vault", "new", &bytes, Condition::default()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Denied, "{refused}");
    // A node that starts again has the ciphertext and the key-encryption key, and nothing to unwrap.
    let node = cluster.lose(1);
    node.stop().await;
    drop(node);
    cluster.start(1).await;
    assert_eq!(get_from(cluster.node(1), "vault", "f").await.unwrap_err().kind, ErrorKind::Denied);
    for order in
        [Order::DataKeyRotate { volume: "vault".into() }, Order::DataKeyDestroy { volume: "vault".into() }]
    {
        assert_eq!(keys_after(cluster.node(0), order).await.unwrap_err().kind, ErrorKind::Denied);
    }
    // What is left of it can be deleted.
    let node = cluster.node(0);
    assert!(
        node.delete("vault", vec![(key("f"), Condition::default())]).await.unwrap().pop().unwrap().unwrap()
    );
    node.volume_delete("vault").await.unwrap();
}

/// A multiple of the polynomial of CRC-32C: XORed into bytes, it changes them and not their CRC.
const SAME_CRC: [u8; 5] = [0xf1, 0x76, 0xec, 0x05, 0x01];

/// Changes bytes in the middle of the longest chunk of a drive so that every CRC still holds.
fn change_ciphertext(dir: &Path) {
    let mut longest = (0, PathBuf::new(), 0);
    for path in segments(dir) {
        let bytes = std::fs::read(&path).unwrap();
        for at in (BLOCK..bytes.len()).step_by(64).filter(|at| bytes[*at..].starts_with(b"STOKERRC")) {
            let u32_at = |offset: usize| u32::from_le_bytes(bytes[at + offset..][..4].try_into().unwrap());
            assert!(u32_at(84) > 0 && bytes[at + 92] == 1, "it says that it is sealed, and how");
            longest = longest.max((u32_at(48), path.clone(), u32_at(44)));
        }
    }
    let (len, path, payload) = longest;
    let at = u64::from(payload + len / 2);
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, at).unwrap();
    let changed: Vec<u8> = bytes.iter().zip(SAME_CRC).map(|(byte, other)| byte ^ other).collect();
    let (mut one, mut other) = ([1; 64], [1; 64]);
    one[20..25].copy_from_slice(&bytes);
    other[20..25].copy_from_slice(&changed);
    assert_eq!(crc32c(&one), crc32c(&other), "no CRC sees it");
    file.write_all_at(&changed, at).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_ciphertext_is_found_although_its_checksums_hold() {
    let home = small_home(lazy());
    let node = home.start().await;
    create(&node, "vault").await;
    put_in(&node, "vault", "f", &marked(8, 3 << 20)).await;
    node.stop().await;
    drop(node);
    change_ciphertext(home.dir.path());
    let node = home.open().await;
    let fault = get_from(&node, "vault", "f").await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault}");
    let file = node.open("vault", &key("f")).await.unwrap();
    assert_eq!(file.read(0, 4096).await.unwrap().len(), 4096, "blocks beside it are sound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_copy_is_replaced_by_the_sound_one() {
    let mut cluster = small_cluster().await;
    create(cluster.node(0), "vault").await;
    let bytes = marked(9, 3 << 20);
    put_in(cluster.node(0), "vault", "f", &bytes).await;
    let node = cluster.lose(0);
    node.stop().await;
    drop(node);
    change_ciphertext(cluster.folder(0));
    cluster.start(0).await;
    assert_eq!(get_from(cluster.node(0), "vault", "f").await.unwrap(), bytes, "from the other node");
    // A reader that was late on its own drive may have been answered before it saw what is wrong there: the next one sees it.
    let is_replaced = async || {
        assert_eq!(get_from(cluster.node(0), "vault", "f").await.unwrap(), bytes, "never the changed bytes");
        counter(cluster.node(0), "read_repairs_total").await >= 1.0
    };
    cluster.until("the changed copy is replaced", is_replaced).await;
    assert_eq!(files_with(cluster.folder(0), MARK), Vec::<PathBuf>::new());
    let other = cluster.lose(1);
    assert_eq!(get_from(cluster.node(0), "vault", "f").await.unwrap(), bytes, "from its own drive");
    drop(other);
}
