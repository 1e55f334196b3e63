//! What an orchestrator would not do: calls without fields, ids of others, volumes that are somebody's, calls at the same time, a folder
//! of mounts that was lost, mounts that die while the node is down.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::node::{kill_mount, publish, stage, stats, to_publish, unpublish, unstage};
use super::*;

/// How often it is looked for what has to come: a minute, for a slow machine is slow.
const POLLS_MAX: u32 = 600;
const POLL: Duration = Duration::from_millis(100);
/// Calls at the same time.
const AT_ONCE: usize = 12;

/// A message whose fields are of other types than those of any call.
#[derive(Clone, PartialEq, prost::Message)]
struct Junk {
    #[prost(bytes = "vec", tag = "1")]
    first: Vec<u8>,
    #[prost(fixed64, tag = "2")]
    second: u64,
    #[prost(bytes = "vec", tag = "3")]
    third: Vec<u8>,
    #[prost(fixed32, tag = "4")]
    fourth: u32,
}

const CALLS: &[&str] = &[
    "/csi.v1.Controller/CreateVolume",
    "/csi.v1.Controller/DeleteVolume",
    "/csi.v1.Controller/ValidateVolumeCapabilities",
    "/csi.v1.Controller/ControllerGetVolume",
    "/csi.v1.Controller/ControllerExpandVolume",
    "/csi.v1.Controller/ControllerModifyVolume",
    "/csi.v1.Controller/CreateSnapshot",
    "/csi.v1.Controller/DeleteSnapshot",
    "/csi.v1.Controller/GetSnapshot",
    "/csi.v1.Node/NodeStageVolume",
    "/csi.v1.Node/NodeUnstageVolume",
    "/csi.v1.Node/NodePublishVolume",
    "/csi.v1.Node/NodeUnpublishVolume",
    "/csi.v1.Node/NodeGetVolumeStats",
];

fn probe(rig: &mut Rig) {
    let probe: ProbeResponse = rig.call("/csi.v1.Identity/Probe", ProbeRequest {}).unwrap();
    assert!(probe.ready.unwrap().value);
}

#[test]
fn calls_without_fields_and_with_foreign_ones_are_refused() {
    let mut rig = Rig::new();
    for call in CALLS {
        let empty: Result<DeleteVolumeResponse, Status> = rig.call(call, ProbeRequest {});
        refused(empty, Code::InvalidArgument);
        let junk =
            Junk { first: vec![0xff; 300], second: u64::MAX, third: vec![0; 70_000], fourth: u32::MAX };
        let answer: Result<DeleteVolumeResponse, Status> = rig.call(call, junk);
        assert!(matches!(answer.unwrap_err().code(), Code::Internal | Code::InvalidArgument), "{call}");
    }
    // Unknown ones, and those that this driver says it has not.
    for call in [
        "/csi.v1.Controller/ControllerPublishVolume",
        "/csi.v1.Node/NodeExpandVolume",
        "/csi.v1.GroupController/CreateVolumeGroupSnapshot",
        "/csi.v0.Node/NodeStageVolume",
        "/",
    ] {
        refused(rig.call::<_, DeleteVolumeResponse>(call, ProbeRequest {}), Code::Unimplemented);
    }
    let long = "x".repeat(100_000);
    for id in ["..", "../../etc", "/", "a//b", "\u{7}\n", "stoker-csi", "ä", "a_b_c", long.as_str()] {
        let delete: DeleteVolumeResponse = rig.delete(id).unwrap();
        assert_eq!(delete, DeleteVolumeResponse {}, "{id:?}");
        let get = ControllerGetVolumeRequest { volume_id: id.to_owned() };
        refused(
            rig.call::<_, ControllerGetVolumeResponse>("/csi.v1.Controller/ControllerGetVolume", get),
            Code::NotFound,
        );
        let at = rig.at("staging");
        refused(stage(&mut rig, id, &at, Some(capability(WRITER, &[]))), Code::NotFound);
        assert!(!Path::new(&at).exists(), "nothing is half made: {id:?}");
    }
    probe(&mut rig);
}

#[test]
fn what_is_somebodys_is_not_taken() {
    let mut rig = Rig::new();
    let input = rig.at("input");
    fs::write(&input, b"bytes of a person").unwrap();
    rig.stoker(&["volume", "create", "home"]);
    rig.stoker(&["put", &input, "home/pvc-1/file"]);
    let inside = |name: &str, volume: &str| CreateVolumeRequest {
        parameters: map(&[("volume", volume)]),
        ..wanted(name)
    };
    refused(rig.create(inside("pvc-1", "home")), Code::AlreadyExists);
    // The records of the driver, and what its snapshots are, are no place for directories.
    refused(rig.create(inside("volumes", "stoker-csi")), Code::InvalidArgument);
    refused(rig.create(inside("pvc-2", "snap-pvc-2")), Code::InvalidArgument);
    rig.stoker(&["volume", "create", "snap-mine"]);
    rig.stoker(&["put", &input, "snap-mine/file"]);
    let snapshot = |rig: &mut Rig, name: &str, source: &str| -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        let made: Result<CreateSnapshotResponse, _> = rig.call("/csi.v1.Controller/CreateSnapshot", request);
        made.map(|made| made.snapshot.unwrap())
    };
    refused(snapshot(&mut rig, "mine", "home"), Code::AlreadyExists);
    // A snapshot is not published, nor deleted as a volume.
    let made = snapshot(&mut rig, "one", "home").unwrap();
    let get = ControllerGetVolumeRequest { volume_id: made.snapshot_id.clone() };
    refused(
        rig.call::<_, ControllerGetVolumeResponse>("/csi.v1.Controller/ControllerGetVolume", get),
        Code::NotFound,
    );
    rig.delete(&made.snapshot_id).unwrap();
    for path in ["home/pvc-1/file", "snap-mine/file", "snap-one/pvc-1/file"] {
        assert_eq!(rig.stoker(&["get", path, "-"]), "bytes of a person", "{path}");
    }
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let input = rig.at("input");
    fs::write(&input, vec![7; 1 << 20]).unwrap();
    let source = rig.create(wanted("pvc-source")).unwrap().volume_id;
    rig.stoker(&["put", &input, "pvc-source/file"]);
    rig.stoker(&["volume", "create", "home"]);
    let inside = CreateVolumeRequest { parameters: map(&[("volume", "home")]), ..wanted("pvc-dir") };
    let directory = rig.create(inside).unwrap().volume_id;
    rig.stoker(&["put", &input, "home/pvc-dir/file"]);
    let before = rig.stoker(&["volume", "ls"]);
    let of = |id: &str, bytes| CreateVolumeRequest {
        capacity_range: range(bytes, 0),
        volume_content_source: Some(VolumeContentSource {
            volume: Some(VolumeSource { volume_id: id.to_owned() }),
            snapshot: None,
        }),
        ..wanted("pvc-small")
    };
    refused(rig.create(of(&source, 4096)), Code::OutOfRange);
    // How much is in a directory is seen while it is copied.
    refused(rig.create(of(&directory, 4096)), Code::ResourceExhausted);
    let after = rig.stoker(&["volume", "ls"]);
    assert!(
        !after.contains("pvc-small") && after.lines().count() == before.lines().count(),
        "{before}\n{after}"
    );
    // The name is as free as it was.
    let made = rig.create(of(&source, 4 << 20)).unwrap();
    assert_eq!(rig.stoker(&["ls", "pvc-small"]).lines().filter(|line| line.contains("file")).count(), 1);
    rig.delete(&made.volume_id).unwrap();
}

#[test]
fn copies_of_what_is_encrypted_are_encrypted() {
    let mut rig = Rig::new();
    let sealed =
        |name: &str| CreateVolumeRequest { parameters: map(&[("encrypt", "aes-256-gcm")]), ..wanted(name) };
    let id = rig.create(sealed("pvc-sealed")).unwrap().volume_id;
    let input = rig.at("input");
    fs::write(&input, b"secret").unwrap();
    rig.stoker(&["put", &input, "pvc-sealed/file"]);
    let request =
        CreateSnapshotRequest { name: "one".to_owned(), source_volume_id: id.clone(), ..Default::default() };
    let made: CreateSnapshotResponse = rig.call("/csi.v1.Controller/CreateSnapshot", request).unwrap();
    let keys = rig.stoker(&["data-key", "ls"]);
    assert!(keys.contains("pvc-sealed") && keys.contains("snap-one"), "{keys}");
    let snapshot = SnapshotSource { snapshot_id: made.snapshot.unwrap().snapshot_id };
    for (name, source) in [
        ("pvc-one", VolumeContentSource { snapshot: Some(snapshot.clone()), volume: None }),
        (
            "pvc-two",
            VolumeContentSource { snapshot: None, volume: Some(VolumeSource { volume_id: id.clone() }) },
        ),
    ] {
        let plain = CreateVolumeRequest { volume_content_source: Some(source.clone()), ..wanted(name) };
        refused(rig.create(plain), Code::InvalidArgument);
        let copy = CreateVolumeRequest { volume_content_source: Some(source), ..sealed(name) };
        let copy = rig.create(copy).unwrap();
        assert_eq!(rig.stoker(&["get", &format!("{name}/file"), "-"]), "secret");
        rig.delete(&copy.volume_id).unwrap();
    }
}

#[test]
fn calls_at_the_same_time_make_one_thing() {
    let mut rig = Rig::new();
    let caller = rig.caller.clone().unwrap();
    let answers: Vec<Result<CreateVolumeResponse, Status>> = rig.runtime.block_on(async {
        let calls = (0..AT_ONCE).map(|_| {
            let mut caller = caller.clone();
            async move { caller.call("/csi.v1.Controller/CreateVolume", wanted("pvc-1")).await }
        });
        let calls: Vec<_> = calls.map(tokio::spawn).collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        answers
    });
    let made = rig.create(wanted("pvc-1")).unwrap();
    assert!(answers.iter().any(Result::is_ok));
    for answer in answers {
        match answer {
            Ok(one) => assert_eq!(one.volume.unwrap(), made),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    if !storm::can_mount() {
        return;
    }
    let staging = rig.at("staging");
    let id = made.volume_id;
    stage(&mut rig, &id, &staging, Some(capability(MANY_WRITERS, &[]))).unwrap();
    // Targets do not wait for each other. Who unstages meanwhile is refused.
    let targets: Vec<String> = (0..AT_ONCE).map(|at| rig.at(&format!("pod-{at}"))).collect();
    let answers: Vec<(Result<NodePublishVolumeResponse, Status>, Result<NodeUnstageVolumeResponse, Status>)> =
        rig.runtime.block_on(async {
            let calls: Vec<_> = targets
                .iter()
                .map(|target| {
                    let mut caller = caller.clone();
                    let request = to_publish(&id, &staging, target, MANY_WRITERS);
                    let unstage = NodeUnstageVolumeRequest {
                        volume_id: id.clone(),
                        staging_target_path: staging.clone(),
                    };
                    tokio::spawn(async move {
                        let published = caller.call("/csi.v1.Node/NodePublishVolume", request).await;
                        (published, caller.call("/csi.v1.Node/NodeUnstageVolume", unstage).await)
                    })
                })
                .collect();
            let mut answers = Vec::new();
            for call in calls {
                answers.push(call.await.unwrap());
            }
            answers
        });
    for (published, unstaged) in answers {
        if let Err(status) = published {
            assert_eq!(status.code(), Code::Aborted, "{status}");
        }
        let status = unstaged.unwrap_err();
        assert!(matches!(status.code(), Code::Aborted | Code::FailedPrecondition), "{status}");
    }
    for target in &targets {
        publish(&mut rig, to_publish(&id, &staging, target, MANY_WRITERS)).unwrap();
        fs::write(Path::new(target).join("file"), target).unwrap();
    }
    for target in &targets {
        unpublish(&mut rig, &id, target).unwrap();
    }
    unstage(&mut rig, &id, &staging).unwrap();
    assert_eq!(rig.stoker(&["get", "pvc-1/file", "-"]), targets[AT_ONCE - 1]);
}

#[test]
fn mounts_are_taken_away_though_the_list_of_them_was_lost() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let id = rig.create(wanted("pvc-1")).unwrap().volume_id;
    let (staging, target, scratch) = (rig.at("staging"), rig.at("pod"), rig.at("scratch"));
    stage(&mut rig, &id, &staging, Some(capability(MANY_WRITERS, &[]))).unwrap();
    publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)).unwrap();
    let inline = NodePublishVolumeRequest {
        volume_context: map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "4Mi")]),
        ..to_publish("csi-inline-1", "", &scratch, WRITER)
    };
    publish(&mut rig, inline).unwrap();
    refused(unstage(&mut rig, &id, &staging), Code::FailedPrecondition);
    rig.kill();
    fs::remove_dir_all(rig.dir.path().join("state")).unwrap();
    rig.start();
    unpublish(&mut rig, &id, &target).unwrap();
    unpublish(&mut rig, "csi-inline-1", &scratch).unwrap();
    assert!(!Path::new(&target).exists() && !Path::new(&scratch).exists());
    assert!(!rig.stoker(&["volume", "ls"]).contains("eph-"), "scratch goes with its pod");
    unstage(&mut rig, &id, &staging).unwrap();
    // What is not a volume of Stoker is not touched.
    let other = rig.at("other");
    fs::create_dir(&other).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "none", &other]).status().unwrap().success());
    refused(unpublish(&mut rig, &id, &other), Code::FailedPrecondition);
    refused(stage(&mut rig, &id, &other, Some(capability(WRITER, &[]))), Code::FailedPrecondition);
    assert!(Command::new("umount").arg(&other).status().unwrap().success());
}

#[test]
fn a_pod_never_writes_to_the_disk_below_its_mount() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let id = rig.create(wanted("pvc-1")).unwrap().volume_id;
    let (staging, target) = (rig.at("staging"), rig.at("pod"));
    stage(&mut rig, &id, &staging, Some(capability(MANY_WRITERS, &[]))).unwrap();
    publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)).unwrap();
    let file = Path::new(&target).join("file");
    let mut synced = fs::File::create(&file).unwrap();
    synced.write_all(b"before").unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    // With the node gone its mount cannot be made again.
    rig.node.take().unwrap().kill();
    kill_mount(&staging);
    let log = rig.dir.path().join("csi.log");
    let tried = (0..POLLS_MAX).any(|_| {
        std::thread::sleep(POLL);
        fs::read_to_string(&log).is_ok_and(|log| log.matches("a mount is not back").count() >= 2)
    });
    assert!(tried, "{}", fs::read_to_string(&log).unwrap());
    assert!(fs::write(Path::new(&target).join("lost"), b"x").is_err(), "it went to the disk of the machine");
    refused(publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)), Code::Unavailable);
    rig.node = Some(Node::up(&rig.dir.path().join("node")));
    let is_back = (0..POLLS_MAX).any(|_| {
        std::thread::sleep(POLL);
        fs::read(&file).is_ok_and(|found| found == b"before")
    });
    assert!(is_back, "{}", fs::read_to_string(&log).unwrap());
    assert!(!stats(&mut rig, &id, &target).unwrap().volume_condition.unwrap().abnormal);
    assert!(!Path::new(&target).join("lost").exists());
    unpublish(&mut rig, &id, &target).unwrap();
    unstage(&mut rig, &id, &staging).unwrap();
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 0, "nothing was written below the mount");
}
