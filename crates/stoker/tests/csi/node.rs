//! The node: real mounts, drivers that are killed, mounts whose process is killed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

/// How often it is looked for what has to come: a minute, for a slow machine is slow.
const POLLS_MAX: u32 = 600;
const POLL: Duration = Duration::from_millis(100);

pub fn stage(
    rig: &mut Rig,
    id: &str,
    path: &str,
    capability: Option<VolumeCapability>,
) -> Result<(), Status> {
    let request = NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
        volume_capability: capability,
        ..Default::default()
    };
    rig.call::<_, NodeStageVolumeResponse>("/csi.v1.Node/NodeStageVolume", request).map(drop)
}

pub fn unstage(rig: &mut Rig, id: &str, path: &str) -> Result<(), Status> {
    let request = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: path.to_owned() };
    rig.call::<_, NodeUnstageVolumeResponse>("/csi.v1.Node/NodeUnstageVolume", request).map(drop)
}

pub fn publish(rig: &mut Rig, request: NodePublishVolumeRequest) -> Result<(), Status> {
    rig.call::<_, NodePublishVolumeResponse>("/csi.v1.Node/NodePublishVolume", request).map(drop)
}

pub fn unpublish(rig: &mut Rig, id: &str, path: &str) -> Result<(), Status> {
    let request = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: path.to_owned() };
    rig.call::<_, NodeUnpublishVolumeResponse>("/csi.v1.Node/NodeUnpublishVolume", request).map(drop)
}

pub fn stats(rig: &mut Rig, id: &str, path: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    rig.call("/csi.v1.Node/NodeGetVolumeStats", request)
}

pub fn to_publish(id: &str, staging: &str, target: &str, mode: i32) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability(mode, &[])),
        ..Default::default()
    }
}

#[test]
fn volumes_are_staged_published_and_taken_away() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let id = rig.create(wanted("pvc-1")).unwrap().volume_id;
    let many = Some(capability(MANY_WRITERS, &[]));
    let (staging, first, second) = (rig.at("staging"), rig.at("pod-1"), rig.at("pod-2"));
    for (volume, path, capability, code) in [
        ("", staging.as_str(), many.clone(), Code::InvalidArgument),
        (&id, "", many.clone(), Code::InvalidArgument),
        (&id, "not/absolute", many.clone(), Code::InvalidArgument),
        (&id, &staging, None, Code::InvalidArgument),
        (&id, &staging, Some(capability(WRITER, &["barrier=0"])), Code::InvalidArgument),
        ("nothing", &staging, many.clone(), Code::NotFound),
        ("0badc1u5/pvc-1", &staging, many.clone(), Code::NotFound),
    ] {
        refused(stage(&mut rig, volume, path, capability), code);
    }
    let full = rig.at("full");
    fs::create_dir(&full).unwrap();
    fs::write(Path::new(&full).join("file"), b"of somebody").unwrap();
    refused(stage(&mut rig, &id, &full, many.clone()), Code::FailedPrecondition);
    let early = to_publish(&id, &staging, &first, MANY_WRITERS);
    refused(publish(&mut rig, early), Code::FailedPrecondition);

    fs::create_dir(&staging).unwrap();
    stage(&mut rig, &id, &staging, many.clone()).unwrap();
    stage(&mut rig, &id, &staging, many.clone()).unwrap();
    refused(stage(&mut rig, &id, &staging, Some(capability(MANY_READERS, &[]))), Code::AlreadyExists);

    let good = to_publish(&id, &staging, &first, MANY_WRITERS);
    for (request, code) in [
        (NodePublishVolumeRequest { volume_id: String::new(), ..good.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { target_path: String::new(), ..good.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { volume_capability: None, ..good.clone() }, Code::InvalidArgument),
        (
            NodePublishVolumeRequest { staging_target_path: String::new(), ..good.clone() },
            Code::FailedPrecondition,
        ),
        (NodePublishVolumeRequest { volume_id: "nothing".into(), ..good.clone() }, Code::NotFound),
    ] {
        refused(publish(&mut rig, request), code);
    }
    publish(&mut rig, good.clone()).unwrap();
    publish(&mut rig, good.clone()).unwrap();
    let reader = NodePublishVolumeRequest { readonly: true, ..good.clone() };
    refused(publish(&mut rig, reader.clone()), Code::AlreadyExists);
    publish(&mut rig, NodePublishVolumeRequest { target_path: second.clone(), ..reader }).unwrap();
    // What one pod writes another one reads; who may read only does not write.
    fs::write(Path::new(&first).join("file"), b"bytes").unwrap();
    assert_eq!(fs::read(Path::new(&second).join("file")).unwrap(), b"bytes");
    let denied = fs::write(Path::new(&second).join("other"), b"x").unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let only = to_publish(&id, &staging, &rig.at("pod-3"), ONLY_WRITER);
    refused(publish(&mut rig, only), Code::FailedPrecondition);

    let seen = stats(&mut rig, &id, &first).unwrap();
    assert_eq!(seen.usage.iter().map(|one| one.unit).collect::<Vec<_>>(), [1, 2]);
    assert!(seen.usage[0].total > 0 && !seen.volume_condition.unwrap().abnormal);
    let elsewhere = rig.at("elsewhere");
    refused(stats(&mut rig, &id, &elsewhere), Code::NotFound);
    refused(stats(&mut rig, "nothing", &first), Code::NotFound);
    refused(stats(&mut rig, &id, "some/path"), Code::NotFound);
    refused(stats(&mut rig, "", &first), Code::InvalidArgument);
    refused(stats(&mut rig, &id, ""), Code::InvalidArgument);

    refused(unpublish(&mut rig, "", &first), Code::InvalidArgument);
    refused(unpublish(&mut rig, &id, ""), Code::InvalidArgument);
    for path in [&first, &first, &second, &elsewhere] {
        unpublish(&mut rig, &id, path).unwrap();
        assert!(!Path::new(path).exists(), "{path}");
    }
    refused(unstage(&mut rig, "", &staging), Code::InvalidArgument);
    refused(unstage(&mut rig, &id, ""), Code::InvalidArgument);
    unstage(&mut rig, &id, &staging).unwrap();
    unstage(&mut rig, &id, &staging).unwrap();
    assert!(Path::new(&staging).is_dir(), "it belongs to the orchestrator");
    assert_eq!(rig.stoker(&["get", "pvc-1/file", "-"]), "bytes");
    rig.delete(&id).unwrap();
}

#[test]
fn inline_volumes_have_a_hard_size_and_go_with_their_pod() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let target = rig.at("pod");
    let inline = |size: &[(&str, &str)], target: &str| NodePublishVolumeRequest {
        volume_context: map(&[&[("csi.storage.k8s.io/ephemeral", "true")], size].concat()),
        ..to_publish("csi-inline-1", "", target, WRITER)
    };
    refused(publish(&mut rig, inline(&[], &target)), Code::InvalidArgument);
    refused(publish(&mut rig, inline(&[("size", "lots")], &target)), Code::InvalidArgument);
    publish(&mut rig, inline(&[("size", "4Mi")], &target)).unwrap();
    publish(&mut rig, inline(&[("size", "4Mi")], &target)).unwrap();
    let write = |name: &str, len: usize| {
        let mut file = fs::File::create(Path::new(&target).join(name))?;
        file.write_all(&vec![7; len])?;
        file.sync_all()
    };
    write("small", 1 << 20).unwrap();
    let full = write("large", 8 << 20).unwrap_err();
    assert!([28, 122].contains(&full.raw_os_error().unwrap()), "neither ENOSPC nor EDQUOT: {full}");
    let _ = fs::remove_file(Path::new(&target).join("large"));
    assert!(rig.stoker(&["volume", "ls"]).contains("eph-"));
    unpublish(&mut rig, "csi-inline-1", &target).unwrap();
    unpublish(&mut rig, "csi-inline-1", &target).unwrap();
    assert!(!rig.stoker(&["volume", "ls"]).contains("eph-"));
}

#[test]
fn a_writer_does_not_notice_that_the_driver_is_killed() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let id = rig.create(wanted("pvc-1")).unwrap().volume_id;
    let (staging, target) = (rig.at("staging"), rig.at("pod"));
    stage(&mut rig, &id, &staging, Some(capability(MANY_WRITERS, &[]))).unwrap();
    publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)).unwrap();
    let is_over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = fs::File::create(Path::new(&target).join("log")).unwrap();
            let mut lines = 0;
            while !is_over.load(Ordering::Relaxed) || lines == 0 {
                writeln!(file, "{lines:08}").unwrap();
                file.sync_all().unwrap();
                lines += 1;
            }
            lines
        });
        for _ in 0..storm::kills(20, 4) {
            rig.kill();
            rig.start();
            // It knows what is there.
            publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)).unwrap();
            assert!(!stats(&mut rig, &id, &target).unwrap().volume_condition.unwrap().abnormal);
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    unpublish(&mut rig, &id, &target).unwrap();
    unstage(&mut rig, &id, &staging).unwrap();
    let log = rig.stoker(&["get", "pvc-1/log", "-"]);
    let expect: String = (0..written).map(|line| format!("{line:08}\n")).collect();
    assert!(log == expect, "{} of {written} lines", log.lines().count());
}

#[test]
fn a_mount_whose_process_is_killed_comes_back() {
    if !storm::can_mount() {
        return;
    }
    let mut rig = Rig::new();
    let id = rig.create(wanted("pvc-1")).unwrap().volume_id;
    let (staging, target) = (rig.at("staging"), rig.at("pod"));
    stage(&mut rig, &id, &staging, Some(capability(MANY_WRITERS, &[]))).unwrap();
    publish(&mut rig, to_publish(&id, &staging, &target, MANY_WRITERS)).unwrap();
    let synced = Path::new(&target).join("synced");
    let mut file = fs::File::create(&synced).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    for driver_dies in [false, true] {
        if driver_dies {
            rig.kill();
        }
        kill_mount(&staging);
        if driver_dies {
            rig.start();
        }
        let is_back = (0..POLLS_MAX).any(|_| {
            std::thread::sleep(POLL);
            fs::read(&synced).is_ok_and(|found| found == b"kept")
        });
        assert!(is_back, "{}", fs::read_to_string(rig.dir.path().join("csi.log")).unwrap());
    }
    fs::write(Path::new(&target).join("more"), b"x").unwrap();
    unpublish(&mut rig, &id, &target).unwrap();
    unstage(&mut rig, &id, &staging).unwrap();
}

/// Kills the process that serves a path.
pub fn kill_mount(path: &str) {
    let mut killed = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if words.contains(&b"mount".as_slice()) && words.contains(&path.as_bytes()) {
            let pid = process.file_name().into_string().unwrap();
            assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
            killed += 1;
        }
    }
    assert_eq!(killed, 1, "processes that serve {path}");
}
