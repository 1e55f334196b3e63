//! Files with holes: stretches of zeros that take no space.

use std::sync::Arc;

use stoker_format::crc64;
use stoker_node::{Node, NodeOptions};
use stoker_salvage::{SalvageOptions, StoppedNode, Target, salvage};
use stoker_store::{
    Attributes, Awaited, Condition, DrainState, EditRequest, ErrorKind, File, Finish, Leased, NoLease,
    PartChoice, PartSource, Piece, Receipt, Resolution, Result, Seek, Store, Subject, VolumeOptions,
    VolumePolicy,
};

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::{
    Home, append, copy_request, counter, delete, drained, eager, get, key, lazy, pattern, put, write,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

async fn edit(node: &Node, name: &str, request: EditRequest, bytes: &[u8]) -> Result<Receipt> {
    let mut writer = node.edit("data", &key(name), request).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await
}

/// A new file of these pieces.
async fn make(node: &Node, name: &str, pieces: Vec<Piece>, bytes: &[u8]) -> Result<Receipt> {
    edit(node, name, EditRequest { pieces, ..EditRequest::default() }, bytes).await
}

/// A file with these pieces of what it was.
async fn change(node: &Node, name: &str, pieces: Vec<Piece>, bytes: &[u8]) -> Result<Receipt> {
    let base = Some(node.stat("data", &key(name)).await?.version);
    edit(node, name, EditRequest { base, pieces, ..EditRequest::default() }, bytes).await
}

async fn read(file: &dyn File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let piece = file.read(offset + bytes.len() as u64, len - bytes.len()).await.unwrap();
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(&piece);
    }
    bytes
}

async fn read_at(node: &Node, name: &str, offset: u64, len: usize) -> Vec<u8> {
    read(node.open("data", &key(name)).await.unwrap().as_ref(), offset, len).await
}

/// Length, and how much of it is stored.
async fn sizes(node: &Node, name: &str) -> (u64, u64) {
    let info = node.stat("data", &key(name)).await.unwrap();
    (info.size, info.allocated_bytes())
}

/// A megabyte of bytes, thirty of zeros, and so on: how it is made, and what it is.
fn striped(seed: u64) -> (Vec<Piece>, Vec<u8>, Vec<u8>) {
    let (mut pieces, mut given, mut whole) = (vec![Piece::Zero(3 * MIB)], Vec::new(), vec![0; 3 << 20]);
    for at in 0..2 {
        let bytes = pattern(seed + at, (1 << 20) + 7);
        whole.extend_from_slice(&bytes);
        whole.resize(whole.len() + (30 << 20), 0);
        pieces.extend([Piece::Take(bytes.len() as u64), Piece::Zero(30 * MIB)]);
        given.extend(bytes);
    }
    (pieces, given, whole)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_bytes_behind_a_terabyte_take_four_bytes() {
    let home = Home::new(lazy());
    let mut node = home.start().await;
    make(&node, "far", vec![Piece::Zero(TIB), Piece::Take(4)], b"last").await.unwrap();
    make(&node, "none", vec![Piece::Zero(TIB)], b"").await.unwrap();
    for _ in 0..2 {
        assert_eq!(sizes(&node, "far").await, (TIB + 4, 4));
        assert_eq!(sizes(&node, "none").await, (TIB, 0));
        assert_eq!(read_at(&node, "far", 0, 1 << 20).await, vec![0; 1 << 20]);
        assert_eq!(read_at(&node, "far", TIB - 2, 99).await, b"\0\0last");
        assert_eq!(read_at(&node, "none", TIB - 3, 99).await, [0; 3]);
        let file = node.open("data", &key("far")).await.unwrap();
        assert_eq!(file.seek(5, Seek::Data).await.unwrap(), Some(TIB));
        assert_eq!(file.seek(5, Seek::Hole).await.unwrap(), Some(5));
        assert_eq!(file.seek(TIB, Seek::Hole).await.unwrap(), Some(TIB + 4));
        assert_eq!(file.seek(TIB + 4, Seek::Hole).await.unwrap(), None);
        drop(file);
        // How long files are counts: a lake holds holes as zeros.
        assert_eq!(node.volume("data").await.unwrap().bytes, 2 * TIB + 4);
        node = home.restart(node).await;
    }
    // In the middle of the hole, again and again: nothing else is written.
    for at in 0..20u64 {
        let at = TIB / 3 + at * MIB;
        let rest = Piece::Keep { start: at + 3, end: TIB + 4 };
        change(&node, "far", vec![Piece::Keep { start: 0, end: at }, Piece::Take(3), rest], b"mid")
            .await
            .unwrap();
    }
    assert_eq!(sizes(&node, "far").await, (TIB + 4, 4 + 20 * 3));
    assert_eq!(read_at(&node, "far", TIB / 3 - 1, 5).await, b"\0mid\0");
    assert_eq!(read_at(&node, "far", TIB / 3 + 19 * MIB, 4).await, b"mid\0");
    // And shorter again.
    change(&node, "far", vec![Piece::Keep { start: 0, end: TIB / 3 + 1 }], b"").await.unwrap();
    assert_eq!(
        (sizes(&node, "far").await, read_at(&node, "far", TIB / 3 - 1, 9).await),
        ((TIB / 3 + 1, 1), b"\0m".to_vec())
    );
    let too_long = make(&node, "x", vec![Piece::Zero(51 << 40)], b"").await.unwrap_err();
    assert_eq!(too_long.kind, ErrorKind::Invalid);
    assert!(delete(&node, "far").await.unwrap() && delete(&node, "none").await.unwrap());
    assert_eq!(node.volume("data").await.unwrap().bytes, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sparse_file_is_plain_zeros_in_the_lake() {
    let home = Home::new(eager());
    let mut node = home.start().await;
    let (pieces, given, mut whole) = striped(1);
    make(&node, "s", pieces, &given).await.unwrap();
    // The sum of the whole is known without summing the zeros.
    let info = node.stat("data", &key("s")).await.unwrap();
    assert_eq!(info.checksums[0].value, crc64(&whole).to_be_bytes());
    assert_eq!(info.allocated, Some(2 * (MIB + 7)));
    drained(&node, "s").await;
    assert!(std::fs::read(home.lake().join("data/s")).unwrap() == whole);
    for _ in 0..2 {
        assert!(get(&node, "s").await.unwrap() == whole);
        assert_eq!(sizes(&node, "s").await.1, 2 * (MIB + 7));
        node = home.restart(node).await;
    }
    // A clean file is changed: a hole is filled, another made, the end moved.
    let end = whole.len() as u64;
    let pieces = vec![
        Piece::Keep { start: 0, end: 5 * MIB },
        Piece::Take(100),
        Piece::Keep { start: 5 * MIB + 100, end: 34 * MIB },
        Piece::Zero(300 * KIB),
        Piece::Keep { start: 34 * MIB + 300 * KIB, end },
        Piece::Zero(MIB),
    ];
    change(&node, "s", pieces, &[7; 100]).await.unwrap();
    whole[5 << 20..(5 << 20) + 100].fill(7);
    whole[34 << 20..(34 << 20) + (300 << 10)].fill(0);
    whole.resize(whole.len() + (1 << 20), 0);
    assert!(get(&node, "s").await.unwrap() == whole);
    drained(&node, "s").await;
    assert!(std::fs::read(home.lake().join("data/s")).unwrap() == whole);
    node.stop().await;
}

/// The bytes of the holes would be far more than those of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_too_sparse_for_the_lake_is_put_aside_and_says_why() {
    let home = Home::new(eager());
    let options = || NodeOptions { drain_sparse_bytes_max: 16 * MIB, ..home.options() };
    let node = Node::open(options()).await.unwrap();
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    make(&node, "fits", vec![Piece::Zero(16 * MIB - 4), Piece::Take(4)], b"last").await.unwrap();
    let stored = pattern(3, 2 * MIB as usize);
    make(&node, "full", vec![Piece::Take(stored.len() as u64), Piece::Zero(16 * MIB)], &stored)
        .await
        .unwrap();
    make(&node, "big", vec![Piece::Zero(TIB), Piece::Take(4)], b"last").await.unwrap();
    for name in ["fits", "full"] {
        assert!(drained(&node, name).await.drain == DrainState::Clean);
    }
    let refused = node.wait("data", &key("big"), None, Awaited::Drained).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("sparse"), "{refused}");
    let listed = node.conflicts(None).await.unwrap();
    assert_eq!(listed.len(), 1);
    let reason = listed[0].refused.clone().unwrap();
    assert!(
        reason.contains("4 of its 1099511627780 bytes") && reason.contains("lake.sparse_max"),
        "{reason}"
    );
    let told = node.explain("data", &key("big")).await.unwrap().words.join("\n");
    assert!(told.contains(&reason) && told.contains("sparse: 4 of"), "{told}");
    assert!(node.status().await.unwrap().words.iter().any(|words| words.contains("conflict")));
    // Whoever insists hears the same, and it is not tried on and on.
    node.conflict_resolve("data", &key("big"), Resolution::Ours).await.unwrap();
    assert!(
        node.wait("data", &key("big"), None, Awaited::Drained).await.unwrap_err().message.contains("sparse")
    );
    assert_eq!(counter(&node, "drain_errors_total").await, 0.0);
    let node = {
        node.stop().await;
        drop(node);
        Node::open(options()).await.unwrap()
    };
    assert_eq!(read_at(&node, "big", TIB - 1, 9).await, b"\0last");
    assert_eq!(node.conflicts(None).await.unwrap().len(), 1);
    assert!(!home.lake().join("data/big").exists());
    // Shorter, it goes.
    change(&node, "big", vec![Piece::Keep { start: TIB - 4, end: TIB + 4 }], b"").await.unwrap();
    drained(&node, "big").await;
    assert_eq!(std::fs::read(home.lake().join("data/big")).unwrap(), b"\0\0\0\0last");
    assert!(node.conflicts(None).await.unwrap().is_empty());
    node.stop().await;
}

/// What never drains must not take all the room of what does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_too_sparse_for_the_lake_take_no_more_than_their_share() {
    let home = Home { ring_bytes: 128 << 20, ..Home::new(eager()) };
    let options = NodeOptions { drain_sparse_bytes_max: 16 * MIB, ..home.options() };
    let node = Node::open(options).await.unwrap();
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let stored = pattern(3, 3 * MIB as usize);
    let sparse = || vec![Piece::Take(stored.len() as u64), Piece::Zero(TIB)];
    make(&node, "first", sparse(), &stored).await.unwrap();
    node.wait("data", &key("first"), None, Awaited::Drained).await.unwrap_err();
    make(&node, "second", sparse(), &stored).await.unwrap();
    node.wait("data", &key("second"), None, Awaited::Drained).await.unwrap_err();
    let refused = make(&node, "third", sparse(), &stored).await.unwrap_err();
    assert_eq!((refused.kind, refused.subject), (ErrorKind::Invalid, Subject::Size), "{refused}");
    assert!(refused.message.contains("sparse") && refused.message.contains("never drain"), "{refused}");
    // One takes the place of what it replaces.
    make(&node, "second", sparse(), &stored).await.unwrap();
    node.stop().await;
}

/// The lake holds zeros for holes, so they count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_counts_holes() {
    let home = Home::new(eager());
    let node = Node::open(home.options()).await.unwrap();
    let policy = VolumePolicy { quota_bytes: 10 * MIB, ..VolumePolicy::default() };
    let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
    node.volume_create("data", options).await.unwrap();
    make(&node, "fits", vec![Piece::Zero(6 * MIB)], b"").await.unwrap();
    let refused = make(&node, "more", vec![Piece::Zero(6 * MIB)], b"").await.unwrap_err();
    assert_eq!((refused.kind, refused.subject), (ErrorKind::Full, Subject::Quota), "{refused}");
    assert!(delete(&node, "fits").await.unwrap());
    make(&node, "more", vec![Piece::Zero(6 * MIB)], b"").await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_names_parts_and_appends_keep_their_holes() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let (pieces, given, whole) = striped(5);
    let stored = given.len() as u64;
    make(&node, "a", pieces, &given).await.unwrap();
    node.copy(copy_request("a", "b")).await.unwrap();
    node.link("data", &key("a"), &key("c")).await.unwrap();
    node.rename("data", &key("a"), &key("d"), stoker_store::RenameMode::Replace).await.unwrap();
    for name in ["b", "c", "d"] {
        assert_eq!(sizes(&node, name).await, (whole.len() as u64, stored), "{name}");
        assert!(get(&node, name).await.unwrap() == whole, "{name}");
    }
    append(&node, "b", b"tail").await;
    assert_eq!(sizes(&node, "b").await, (whole.len() as u64 + 4, stored + 4));
    assert_eq!(read_at(&node, "b", whole.len() as u64 - 1, 9).await, b"\0tail");
    // A part of a hole, and one that begins in the middle of bytes and ends in a hole.
    let upload = node.upload_create("data", &key("u"), Attributes::default(), None).await.unwrap().upload;
    let mut parts = Vec::new();
    let ranges = [(5 * MIB, 20 * MIB), (3 * MIB + 1000, 12 * MIB)];
    for (at, range) in ranges.into_iter().enumerate() {
        let source = PartSource {
            volume: "data".into(),
            key: key("c"),
            condition: Condition::default(),
            range: Some(range),
        };
        let number = at as u32 + 1;
        let part = node.upload_part_copy("data", &key("u"), &upload, number, source).await.unwrap();
        parts.push(PartChoice { number, etag: part.etag, checksum: None });
    }
    let (condition, finish) = (Condition::default(), Finish::default());
    node.upload_complete("data", &key("u"), &upload, parts, condition, finish).await.unwrap();
    let node = home.restart(node).await;
    let expected: Vec<u8> =
        ranges.iter().flat_map(|(from, to)| whole[*from as usize..*to as usize].iter().copied()).collect();
    assert!(get(&node, "u").await.unwrap() == expected);
    assert_eq!(sizes(&node, "u").await, (24 * MIB - 1000, MIB + 7 - 1000));
    // A full overwrite lets everything go that nobody else has.
    for name in ["c", "d", "u"] {
        assert!(delete(&node, name).await.unwrap());
    }
    put(&node, "b", b"short").await;
    let usage =
        || async { node.status().await.unwrap().rings.iter().map(|ring| ring.keep_bytes).sum::<u64>() };
    while usage().await > 64 * KIB {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&node, "b").await.unwrap(), b"short");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_at_holes_and_go_on_behind_them() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let (pieces, given, _) = striped(7);
    make(&node, "s", pieces, &given).await.unwrap();
    let file = node.open("data", &key("s")).await.unwrap();
    let refused = |leased: Leased| match leased {
        Leased::Refused { reason, until } => (reason, until),
        Leased::Granted(leases) => panic!("{leases:?}"),
    };
    assert_eq!(refused(file.lease(10, u64::MAX).await.unwrap()), (NoLease::NotOnDrive, 3 * MIB));
    let Leased::Granted(leases) = file.lease(3 * MIB, u64::MAX).await.unwrap() else { panic!("no lease") };
    let (first, last) = (leases.extents.first().unwrap(), leases.extents.last().unwrap());
    assert_eq!((first.offset, last.end()), (3 * MIB, 4 * MIB + 7));
    assert_eq!(refused(file.lease(5 * MIB, 1).await.unwrap()), (NoLease::NotOnDrive, 34 * MIB + 7));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_holes_come_back_without_the_catalog() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let (pieces, given, whole) = striped(9);
    make(&node, "s", pieces, &given).await.unwrap();
    make(&node, "far", vec![Piece::Zero(TIB), Piece::Take(4)], b"last").await.unwrap();
    make(&node, "none", vec![Piece::Zero(TIB)], b"").await.unwrap();
    make(&node, "clean", vec![Piece::Zero(MIB), Piece::Take(4)], b"last").await.unwrap();
    node.drain("data", b"clean").await.unwrap();
    drained(&node, "clean").await;
    node.stop().await;
    drop(node);
    let options = home.options();
    for file in std::fs::read_dir(&options.dir).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("catalog.redb") {
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap()
            } else {
                std::fs::remove_file(path).unwrap()
            }
        }
    }
    let drives = options.drives.iter().map(|drive| drive.path.clone()).collect();
    let wanted = SalvageOptions {
        home: StoppedNode {
            dir: options.dir.clone(),
            drives,
            secrets: stoker_node::secrets_kept(&options.dir).unwrap(),
        },
        others: Vec::new(),
        target: Target::Embedded,
        backup: None,
        lake_options: options.lake_options.clone(),
        lake_opener: None,
    };
    let report = salvage(&wanted, &|_, _| {}).await.unwrap();
    assert_eq!(report.files, 4, "{report:?}");
    let node = home.open().await;
    let volume = node.volumes().await.unwrap().remove(0).name;
    assert_eq!(volume, "data");
    assert!(get(&node, "s").await.unwrap() == whole);
    assert_eq!(sizes(&node, "s").await.1, given.len() as u64);
    assert_eq!(read_at(&node, "far", TIB - 1, 9).await, b"\0last");
    assert_eq!(sizes(&node, "none").await, (TIB, 0));
    assert_eq!(read_at(&node, "clean", MIB - 1, 9).await, b"\0last");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_takes_no_holes_with_it() {
    let policy = VolumePolicy { drain_quiet_s: 3600, drain_lag_max_s: 7200, ..VolumePolicy::default() };
    let mut cluster = Cluster::new(3, policy).await;
    let (pieces, given, whole) = striped(11);
    make(cluster.node(0), "s", pieces, &given).await.unwrap();
    let far = make(cluster.node(0), "far", vec![Piece::Zero(TIB), Piece::Take(4)], b"last").await.unwrap();
    let none = make(cluster.node(0), "none", vec![Piece::Zero(TIB)], b"").await.unwrap();
    assert_eq!((nodes_of(&far).len(), nodes_of(&none).len()), (2, 2));
    assert!(get(cluster.node(2), "s").await.unwrap() == whole);
    let lost = cluster.lose(0);
    let id = lost.id();
    assert!(cluster.node(1).members().declare_down(id, std::time::Duration::ZERO).await.unwrap());
    let prefix = stoker_schema::rows::keys::dirty_of(id);
    cluster.until("nothing counts on the lost node", async || cluster.rows(&prefix).await == 0).await;
    let node: &Arc<Node> = cluster.node(2);
    assert!(get(node, "s").await.unwrap() == whole);
    assert_eq!(read_at(node, "far", TIB - 1, 9).await, b"\0last");
    assert_eq!(
        (sizes(node, "none").await, node.receipt("data", &key("far")).await.unwrap().copies),
        ((TIB, 0), 2)
    );
    lost.stop().await;
    cluster.stop().await;
}
