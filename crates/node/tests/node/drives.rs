//! Drives that fail, come and go in nodes that run.

use std::path::Path;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, Class, Condition, DriveInfo, ErrorKind, Finish, LostFile, Order, PartChoice, Receipt, Report,
    Result, Store, UploadId, VolumeOptions, VolumePolicy,
};

async fn drives(node: &Node) -> Vec<DriveInfo> {
    match node.operate(Order::Drives { node: None }).await.unwrap() {
        Report::Drives(drives) => drives,
        other => panic!("{other:?}"),
    }
}

/// The drives of one node as any node lists them.
async fn of(node: &Node, name: &str) -> Vec<DriveInfo> {
    drives(node).await.into_iter().filter(|drive| drive.name == name).collect()
}

async fn add(node: &Node, to: &str, path: &Path, size_bytes: u64) -> Result<Report> {
    let path = path.display().to_string();
    node.operate(Order::DriveAdd { node: to.into(), path, size_bytes: Some(size_bytes) }).await
}

async fn remove(node: &Node, from: &str, drive: &str, force: bool) -> Result<Report> {
    node.operate(Order::DriveRemove { node: from.into(), drive: drive.into(), force }).await
}

async fn lost(node: &Node) -> Vec<LostFile> {
    match node.operate(Order::Lost).await.unwrap() {
        Report::Lost(lost) => lost,
        other => panic!("{other:?}"),
    }
}

/// Takes a drive away under a running node.
fn unplug(ring: &Path) {
    std::fs::rename(ring, ring.with_extension("gone")).unwrap();
}

fn content(at: u64) -> Vec<u8> {
    pattern(at, 9 << 20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unplugged_drive_is_made_up_for_and_replaced_without_a_restart() {
    let mut cluster = Cluster::with_drives(&["", "", ""], 2, lazy()).await;
    for at in 0..6 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    let ring = cluster.folder(0).join("ring1");
    let before = of(cluster.node(1), "n0").await;
    assert!(before.iter().all(|drive| drive.state == "live" && drive.undrained_files == 6), "{before:?}");
    let old = before.iter().find(|drive| drive.path == ring.display().to_string()).unwrap().drive.clone();
    unplug(&ring);
    let is_out = async || {
        let now = of(cluster.node(1), "n0").await;
        now.iter().any(|drive| drive.drive == old && drive.state == "failed" && drive.undrained_files == 0)
    };
    cluster.until("everything is protected without it", is_out).await;
    for at in 0..6 {
        let receipt = cluster.node(2).receipt("data", &key(&format!("f/{at}"))).await.unwrap();
        assert!(receipt.copies >= 2 && receipt.holders.iter().all(|holder| holder.drive != old), "{at}");
        assert!(get(cluster.node(0), &format!("f/{at}")).await.unwrap() == content(at), "{at}");
    }
    // The node goes on with what it has, at its class.
    assert_eq!(put(cluster.node(0), "f/6", &content(6)).await.copies, 2);
    // A new one comes, the old one goes: ordered through another node.
    let fresh = cluster.folder(0).join("fresh");
    std::fs::create_dir(&fresh).unwrap();
    add(cluster.node(2), "n0", &fresh, 512 << 20).await.unwrap();
    remove(cluster.node(2), "n0", &old, false).await.unwrap();
    let is_well = async || {
        let now = of(cluster.node(1), "n0").await;
        now.len() == 2 && now.iter().all(|drive| drive.state == "live" && drive.drive != old)
    };
    cluster.until("the new one is in its place", is_well).await;
    for at in 7..10 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    // It takes its share; on a busy machine now and then the other one is quicker.
    let taken = async || {
        let now = of(cluster.node(0), "n0").await;
        now.iter().find(|drive| drive.path.contains("fresh")).unwrap().undrained_files
    };
    let mut more = 0;
    while taken().await < 3 {
        put(cluster.node(0), &format!("more/{more}"), &content(more)).await;
        more += 1;
        assert!(more < 100, "nothing goes there");
    }
    // It is remembered: the old path is not looked for, the new one is.
    let stopped = cluster.lose(0);
    stopped.stop().await;
    drop(stopped);
    cluster.start(0).await;
    cluster.until("it is back with its drives", is_well_on(&cluster, "fresh")).await;
    for at in 0..10 {
        assert!(get(cluster.node(0), &format!("f/{at}")).await.unwrap() == content(at), "{at}");
    }
    assert_eq!(lost(cluster.node(1)).await, []);
    cluster.stop().await;
}

fn is_well_on<'c>(cluster: &'c Cluster, path: &'c str) -> impl AsyncFn() -> bool + 'c {
    async move || {
        let now = of(cluster.node(0), "n0").await;
        now.len() == 2 && now.iter().any(|drive| drive.path.contains(path) && drive.state == "live")
    }
}

async fn class_one(cluster: &Cluster) {
    let policy = VolumePolicy { class: Class::One, ..lazy() };
    let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
    cluster.node(0).volume_create("one", options).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_goes_when_nothing_is_only_there() {
    let cluster = Cluster::with_drives(&["", ""], 2, lazy()).await;
    class_one(&cluster).await;
    for at in 0..4 {
        put_if(cluster.node(0), "one", &format!("f/{at}"), &content(at), Condition::default()).await.unwrap();
    }
    let ring = |at: usize| cluster.folder(0).join(format!("ring{at}"));
    let text = |path: &Path| path.display().to_string();
    // What cannot be, and why.
    let twice = add(cluster.node(0), "n0", &ring(1), 512 << 20).await.unwrap_err();
    assert!(twice.kind == ErrorKind::Conflict && twice.message.contains("in service already"), "{twice}");
    let unknown = remove(cluster.node(0), "n0", "nothing", false).await.unwrap_err();
    assert!(unknown.kind == ErrorKind::NotFound && unknown.message.contains("stoker drive ls"), "{unknown}");
    let typo = add(cluster.node(1), "n0", &ring(7), 512 << 20).await.unwrap_err();
    assert!(typo.kind == ErrorKind::Invalid && typo.message.contains("mount it"), "{typo}");
    let small = cluster.folder(0).join("small");
    std::fs::create_dir(&small).unwrap();
    let small = add(cluster.node(0), "n0", &small, 64 << 20).await.unwrap_err();
    assert!(small.kind == ErrorKind::Invalid && small.message.contains("--size"), "{small}");
    remove(cluster.node(1), "n0", &text(&ring(0)), false).await.unwrap();
    let is_out = async || of(cluster.node(1), "n0").await.len() == 1;
    cluster.until("it is out", is_out).await;
    for at in 0..4 {
        let read = get_from(cluster.node(1), "one", &format!("f/{at}")).await.unwrap();
        assert!(read == content(at), "{at}");
    }
    for force in [false, true] {
        let last = remove(cluster.node(0), "n0", &text(&ring(1)), force).await.unwrap_err();
        assert!(last.kind == ErrorKind::Conflict && last.message.contains("stoker drive add"), "{last}");
    }
    // Back again, it is a drive like any other.
    add(cluster.node(0), "n0", &ring(0), 512 << 20).await.unwrap();
    assert_eq!(of(cluster.node(0), "n0").await.len(), 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_drive_leaves_writes_to_the_others() {
    let cluster = Cluster::with_rings(&[""], (1, 128 << 20), lazy()).await;
    let large = cluster.folder(0).join("large");
    std::fs::create_dir(&large).unwrap();
    add(cluster.node(0), "n0", &large, 512 << 20).await.unwrap();
    // Half of this would be more than the first one holds; so much of both that bytes go to the lake instead it is not.
    for at in 0..32 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    let all = of(cluster.node(0), "n0").await;
    assert!(all.iter().all(|drive| drive.state == "live"), "{all:?}");
    let kept: Vec<u64> = all.iter().map(|drive| drive.keep_bytes).collect();
    assert!(kept.iter().max().unwrap() > &(32 * (9 << 20) / 2), "{all:?}");
    for at in (0..32).step_by(7) {
        assert!(get(cluster.node(0), &format!("f/{at}")).await.unwrap() == content(at), "{at}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_with_a_drive_is_named_first() {
    let cluster = Cluster::with_drives(&["", ""], 2, lazy()).await;
    class_one(&cluster).await;
    // One after the other, so that both drives have some of them.
    for at in 0..8 {
        let name = format!("f/{at}");
        put_if(cluster.node(0), "one", &name, &pattern(at, 100_000), Condition::default()).await.unwrap();
    }
    for at in 0..8 {
        put(cluster.node(0), &format!("f/{at}"), &pattern(at + 50, 100_000)).await;
    }
    // Everything that the drive holds becomes unreadable, and then it is gone.
    let ring = cluster.folder(0).join("ring0");
    for entry in std::fs::read_dir(&ring).unwrap().flatten() {
        if entry.file_name() != "superblock" {
            // One in the making has another name by now.
            let Ok(file) = std::fs::File::options().write(true).open(entry.path()) else { continue };
            let len = file.metadata().unwrap().len();
            file.set_len(0).unwrap();
            file.set_len(len).unwrap();
        }
    }
    let id = of(cluster.node(0), "n0").await[0].drive.clone();
    unplug(&ring);
    let is_failed = async || of(cluster.node(0), "n0").await.iter().any(|drive| drive.state == "failed");
    cluster.until("it failed", is_failed).await;
    let order = Order::DriveLosses { node: "n0".into(), drive: id.clone() };
    let Report::Lost(named) = cluster.node(1).operate(order).await.unwrap() else { panic!("another answer") };
    let names = |lost: &[LostFile]| {
        let mut names: Vec<String> = lost
            .iter()
            .map(|file| format!("{}/{}", file.volume, String::from_utf8_lossy(&file.key)))
            .collect();
        names.sort();
        names
    };
    assert!(!named.is_empty() && named.iter().all(|file| file.volume == "one"), "{named:?}");
    remove(cluster.node(1), "n0", &id, true).await.unwrap();
    let is_said = async || names(&lost(cluster.node(1)).await) == names(&named);
    cluster.until("what is lost is what was named", is_said).await;
    for at in 0..8 {
        let name = format!("f/{at}");
        assert!(get(cluster.node(0), &name).await.unwrap() == pattern(at + 50, 100_000), "{name}");
        let read = get_from(cluster.node(1), "one", &name).await;
        assert_eq!(read.is_err(), names(&named).contains(&format!("one/{name}")), "{name}");
    }
    cluster.stop().await;
}

/// An upload that is not complete: its parts so far.
async fn begin_upload(node: &Node, volume: &str, parts: u64) -> (UploadId, Vec<PartChoice>) {
    let upload = node.upload_create(volume, &key("u"), Attributes::default(), None).await.unwrap().upload;
    let mut choice = Vec::new();
    for at in 0..parts {
        let (number, bytes) = (at as u32 + 1, content(at));
        let size = Some(bytes.len() as u64);
        let mut writer = node.upload_part(volume, &key("u"), &upload, number, size).await.unwrap();
        write(&mut writer, &bytes).await.unwrap();
        let etag = writer.finish(Finish::default()).await.unwrap().etag;
        choice.push(PartChoice { number, etag, checksum: None });
    }
    (upload, choice)
}

async fn complete(node: &Node, volume: &str, upload: &UploadId, choice: Vec<PartChoice>) -> Receipt {
    let (condition, finish) = (Condition::default(), Finish::default());
    node.upload_complete(volume, &key("u"), upload, choice, condition, finish).await.unwrap()
}

fn whole(parts: u64) -> Vec<u8> {
    (0..parts).flat_map(content).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_unfinished_uploads_leave_a_drive_before_it_goes() {
    let cluster = Cluster::with_drives(&["", ""], 2, lazy()).await;
    class_one(&cluster).await;
    let (upload, choice) = begin_upload(cluster.node(0), "one", 4).await;
    let (copied, copied_choice) = begin_upload(cluster.node(0), "data", 2).await;
    let ring = cluster.folder(0).join("ring0");
    let path = ring.display().to_string();
    remove(cluster.node(1), "n0", &path, false).await.unwrap();
    let is_out = async || of(cluster.node(1), "n0").await.iter().all(|drive| drive.path != path);
    cluster.until("the drive is out", is_out).await;
    std::fs::remove_dir_all(&ring).unwrap();
    complete(cluster.node(0), "one", &upload, choice).await;
    let receipt = complete(cluster.node(1), "data", &copied, copied_choice).await;
    assert_eq!(receipt.copies, 2);
    assert!(get_from(cluster.node(1), "one", "u").await.unwrap() == whole(4));
    assert!(get(cluster.node(0), "u").await.unwrap() == whole(2));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_unfinished_uploads_have_their_copies_again_after_a_loss() {
    let mut cluster = Cluster::new(4, lazy()).await;
    let (upload, choice) = begin_upload(cluster.node(0), "data", 3).await;
    let gone = cluster.lose(0);
    assert!(cluster.node(1).members().declare_down(gone.id(), std::time::Duration::ZERO).await.unwrap());
    let is_safe = async || {
        let Ok(Report::Rebuild(rebuild)) = cluster.node(1).operate(Order::Rebuild).await else {
            return false;
        };
        let Ok(Report::Risk(risk)) = cluster.node(2).operate(Order::Risk).await else { return false };
        let up = risk.nodes.iter().filter(|node| node.state == "up");
        rebuild.files_left == 0 && up.map(|node| node.lost_parts).sum::<u64>() == 0
    };
    cluster.until("no other loss would take a part", is_safe).await;
    // A person empties one more.
    cluster.node(1).operate(Order::Evacuate { node: "n1".into(), force: false }).await.unwrap();
    let is_empty = async || {
        let order = Order::Evacuation { node: "n1".into() };
        matches!(cluster.node(2).operate(order).await, Ok(Report::Evacuation(told)) if told.done)
    };
    cluster.until("it is empty", is_empty).await;
    let empty = cluster.lose(1);
    complete(cluster.node(3), "data", &upload, choice).await;
    assert!(get(cluster.node(2), "u").await.unwrap() == whole(3));
    gone.stop().await;
    empty.stop().await;
    cluster.stop().await;
}
