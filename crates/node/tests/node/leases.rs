//! Leases of a real node: what they show, how long, and who gets none (R4).

use std::fs::File as Descriptor;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::harness::*;
use stoker_format::{BLOCK, crc32c};
use stoker_node::Node;
use stoker_store::{
    Buf, CopyRequest, ErrorKind, File, Leased, Leases, NoLease, Store, VolumeOptions, VolumePolicy,
};

const CHUNK: usize = 256 << 10;

/// A small ring with many segments, so that it goes round soon.
fn small_home(policy: VolumePolicy) -> Home {
    Home { ring_bytes: 64 << 20, ..Home::new(policy) }
}

async fn open_small(home: &Home) -> Arc<Node> {
    let mut options = home.options();
    options.chunk_bytes = CHUNK as u32;
    Node::open(options).await.unwrap()
}

async fn leases(file: &dyn File, offset: u64, len: u64) -> Leases {
    match file.lease(offset, len).await.unwrap() {
        Leased::Granted(leases) => leases,
        Leased::Refused { reason, until } => panic!("no lease before {until}: {reason:?}"),
    }
}

async fn refusal(file: &dyn File) -> NoLease {
    match file.lease(0, u64::MAX).await.unwrap() {
        Leased::Refused { reason, .. } => reason,
        Leased::Granted(_) => panic!("a lease"),
    }
}

/// What the descriptors show, checked as a client would.
fn shown(leases: &Leases) -> Vec<u8> {
    let files: Vec<Descriptor> =
        leases.descriptors.iter().map(|d| Descriptor::from(d.try_clone().unwrap())).collect();
    let mut bytes = Vec::new();
    for extent in &leases.extents {
        let start = extent.at / BLOCK as u64 * BLOCK as u64;
        let skip = (extent.at - start) as usize;
        let mut buf = Buf::heap((skip + extent.len as usize).next_multiple_of(BLOCK));
        files[extent.descriptor].read_exact_at(buf.as_mut_slice(), start).unwrap();
        let payload = &buf.as_slice()[skip..skip + extent.len as usize];
        assert_eq!(payload.chunks(BLOCK).map(crc32c).collect::<Vec<_>>(), *extent.table);
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// Writes and deletes until that many leased segments were replaced.
async fn go_round(node: &Node, replaced: f64) {
    for round in 0..2_000u64 {
        if counter(node, "ring_replaced_segments_total").await >= replaced {
            return;
        }
        let bytes = pattern(round, 2 << 20);
        match put_if(node, "data", "other", &bytes, Default::default()).await {
            Ok(_) => assert!(delete(node, "other").await.unwrap()),
            // The collector has not caught up.
            Err(fault) => assert_eq!(fault.kind, ErrorKind::Full, "{fault}"),
        }
    }
    panic!("the ring never came round");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_shows_the_file_and_each_segment_once() {
    let mut home = Home::new(lazy());
    home.drives = 2;
    let node = home.start().await;
    let bytes = pattern(1, (21 << 20) + 12_345);
    put(&node, "big", &bytes).await;
    let file = node.open("data", &key("big")).await.unwrap();
    let all = leases(&*file, 0, u64::MAX).await;
    assert_eq!((all.extents.len(), all.descriptors.len()), (6, 2), "a segment of each drive");
    assert!(shown(&all) == bytes);
    // From the middle of a chunk: whole chunks, and no more than were asked for.
    let some = leases(&*file, (5 << 20) + 7, 4 << 20).await;
    assert_eq!((some.extents[0].offset, some.extents.len()), (4 << 20, 2));
    assert!(shown(&some) == bytes[4 << 20..12 << 20]);
    assert!(matches!(file.lease(bytes.len() as u64, 1).await.unwrap(), Leased::Refused { .. }));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_show_the_old_bytes_when_the_ring_went_round() {
    let home = small_home(lazy());
    let node = open_small(&home).await;
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let bytes = pattern(1, 1 << 20);
    put(&node, "old", &bytes).await;
    let file = node.open("data", &key("old")).await.unwrap();
    let held = leases(&*file, 0, u64::MAX).await;
    // Replaced, deleted, closed: the reader keeps what it was given.
    put(&node, "old", &pattern(2, 1 << 20)).await;
    assert!(delete(&node, "old").await.unwrap());
    drop(file);
    go_round(&node, 1.0).await;
    assert!(shown(&held) == bytes);
    // Not even after restarts: the mark is on the drive.
    let bytes_two = pattern(3, 1 << 20);
    put(&node, "two", &bytes_two).await;
    let file = node.open("data", &key("two")).await.unwrap();
    let held_two = leases(&*file, 0, u64::MAX).await;
    drop(file);
    node.stop().await;
    drop(node);
    let node = open_small(&home).await;
    assert!(delete(&node, "two").await.unwrap());
    go_round(&node, 1.0).await;
    assert!(shown(&held) == bytes);
    assert!(shown(&held_two) == bytes_two);
    node.stop().await;
}

#[tokio::test]
async fn who_gets_no_lease_is_told_why() {
    let home = small_home(lazy());
    let node = open_small(&home).await;
    let with = |leases: bool| VolumeOptions { policy: Some(VolumePolicy { leases, ..lazy() }), lake: None };
    node.volume_create("data", with(true)).await.unwrap();
    node.volume_create("closed", with(false)).await.unwrap();
    let bytes = pattern(1, 2 * CHUNK);
    put_if(&node, "closed", "f", &bytes, Default::default()).await.unwrap();
    let file = node.open("closed", &key("f")).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::Volume);

    // Allowed later: what was written before shares its segment with others.
    node.volume_set("closed", VolumePolicy { leases: true, ..lazy() }).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::Shared);
    put_if(&node, "closed", "g", &bytes, Default::default()).await.unwrap();
    let file = node.open("closed", &key("g")).await.unwrap();
    assert!(shown(&leases(&*file, 0, u64::MAX).await) == bytes);
    node.volume_set("closed", VolumePolicy { leases: false, ..lazy() }).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::Volume);

    // A copy by reference shows no segment of a volume that does not want it.
    let copy = CopyRequest {
        from_volume: "closed".into(),
        from: key("g"),
        from_condition: Default::default(),
        to_volume: "data".into(),
        to: key("copy"),
        condition: Default::default(),
        attributes: None,
    };
    node.copy(copy).await.unwrap();
    let file = node.open("data", &key("copy")).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::Shared);
    assert!(get(&node, "copy").await.unwrap() == bytes);

    // Bytes that are in the lake only.
    std::fs::write(home.lake().join("data/cold"), &bytes).unwrap();
    node.volume_set("data", VolumePolicy { lake_mode: stoker_store::LakeMode::Shared, ..lazy() })
        .await
        .unwrap();
    let file = node.open("data", &key("cold")).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::NotOnDrive);
    assert!(get(&node, "cold").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test]
async fn volumes_beyond_what_a_ring_keeps_apart_are_read_as_before() {
    let home = small_home(lazy());
    let node = open_small(&home).await;
    let bytes = pattern(1, 2 * CHUNK);
    // Stays empty, so that it can go at once.
    node.volume_create("vol-0", VolumeOptions::default()).await.unwrap();
    let mut without = None;
    for number in 1..40 {
        let name = format!("vol-{number}");
        node.volume_create(&name, VolumeOptions::default()).await.unwrap();
        put_if(&node, &name, "f", &bytes, Default::default()).await.unwrap();
        let file = node.open(&name, &key("f")).await.unwrap();
        if let Leased::Refused { reason, .. } = file.lease(0, u64::MAX).await.unwrap() {
            assert_eq!(reason, NoLease::Shared);
            without = Some(name);
            break;
        }
    }
    let name = without.expect("a ring keeps so many volumes apart and no more");
    assert!(get_from(&node, &name, "f").await.unwrap() == bytes);
    // One that goes makes room.
    node.volume_delete("vol-0").await.unwrap();
    put_if(&node, &name, "g", &bytes, Default::default()).await.unwrap();
    let file = node.open(&name, &key("g")).await.unwrap();
    assert!(shown(&leases(&*file, 0, u64::MAX).await) == bytes);
    drop(file);
    node.stop().await;
}

#[tokio::test]
async fn a_drive_that_is_one_file_gives_no_lease() {
    // One file is cut into segments of another size than a folder is.
    let home = Home { ring_bytes: 512 << 20, ..Home::new(lazy()) };
    let mut options = home.options();
    options.drives[0].path = home.dir.path().join("flat");
    Descriptor::create(&options.drives[0].path).unwrap();
    let node = Node::open(options).await.unwrap();
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let bytes = pattern(1, 1 << 20);
    put(&node, "f", &bytes).await;
    let file = node.open("data", &key("f")).await.unwrap();
    assert_eq!(refusal(&*file).await, NoLease::Shared);
    assert!(get(&node, "f").await.unwrap() == bytes);
    drop(file);
    node.stop().await;
}
