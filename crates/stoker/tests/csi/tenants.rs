//! Volumes of tenants: mounted by the token of a user, which comes as a secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::node::{kill_mount, publish, to_publish, unpublish, unstage};
use super::*;

#[test]
fn volumes_of_tenants_are_mounted_by_a_token_of_theirs() {
    let mut rig = Rig::with_tenants();
    for args in [
        &["tenant", "create", "acme"][..],
        &["tenant", "create", "other"],
        &["user", "create", "acme/boss"],
        &["user", "create", "other/boss"],
    ] {
        rig.stoker(args);
    }
    let of = |name: &str, tenant: &str| CreateVolumeRequest {
        parameters: map(&[("tenant", tenant)]),
        ..wanted(name)
    };
    let made = rig.create(of("pvc-1", "acme")).unwrap();
    assert_eq!(made.volume_context, map(&[("tenant", "acme")]));
    assert!(rig.stoker(&["volume", "ls"]).contains("acme_pvc-1"));
    refused(rig.create(of("pvc-1", "other")), Code::AlreadyExists);
    refused(rig.create(wanted("pvc-1")), Code::AlreadyExists);
    assert!(rig.create(of("pvc-2", "nobody-there")).is_err());
    assert!(!rig.stoker(&["volume", "ls"]).contains("pvc-2"));
    // A snapshot is the tenant's, too, and nobody else's volume is filled from it.
    let request = CreateSnapshotRequest {
        name: "one".to_owned(),
        source_volume_id: made.volume_id.clone(),
        ..Default::default()
    };
    let snapshot: CreateSnapshotResponse = rig.call("/csi.v1.Controller/CreateSnapshot", request).unwrap();
    let snapshot_id = snapshot.snapshot.unwrap().snapshot_id;
    assert!(rig.stoker(&["volume", "ls"]).contains("acme_snap-one"));
    let filled = CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource {
            snapshot: Some(SnapshotSource { snapshot_id: snapshot_id.clone() }),
            volume: None,
        }),
        ..of("pvc-3", "other")
    };
    refused(rig.create(filled), Code::InvalidArgument);
    let request = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
    let _: DeleteSnapshotResponse = rig.call("/csi.v1.Controller/DeleteSnapshot", request).unwrap();
    assert!(!rig.stoker(&["volume", "ls"]).contains("acme_snap-one"));
    if !storm::can_mount() {
        return;
    }

    let token = |rig: &Rig, user: &str| rig.stoker(&["user", "token", user]).trim().to_owned();
    let (own, foreign) = (token(&rig, "acme/boss"), token(&rig, "other/boss"));
    let (staging, target) = (rig.at("staging"), rig.at("pod"));
    let stage = |rig: &mut Rig, secrets: &[(&str, &str)]| -> Result<NodeStageVolumeResponse, Status> {
        let request = NodeStageVolumeRequest {
            volume_id: made.volume_id.clone(),
            staging_target_path: staging.clone(),
            volume_capability: Some(capability(MANY_WRITERS, &[])),
            volume_context: made.volume_context.clone(),
            secrets: map(secrets),
            ..Default::default()
        };
        rig.call("/csi.v1.Node/NodeStageVolume", request)
    };
    refused(stage(&mut rig, &[]), Code::Unauthenticated);
    refused(stage(&mut rig, &[("token", "")]), Code::Unauthenticated);
    refused(stage(&mut rig, &[("token", "stk-00000000000000000000000000000000")]), Code::Unauthenticated);
    refused(stage(&mut rig, &[("token", &foreign)]), Code::NotFound);
    assert!(!Path::new(&staging).exists(), "nothing is half made");
    stage(&mut rig, &[("token", &own)]).unwrap();
    stage(&mut rig, &[("token", &own)]).unwrap();
    publish(&mut rig, to_publish(&made.volume_id, &staging, &target, MANY_WRITERS)).unwrap();
    fs::write(Path::new(&target).join("file"), b"bytes").unwrap();
    // The token is where root alone reads it, and in no list of processes.
    let kept: Vec<_> = fs::read_dir(rig.dir.path().join("state/tokens")).unwrap().flatten().collect();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((kept.len(), mode(&kept[0].path())), (1, 0o600));
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(&own));
    }
    // A mount whose process died is made again with it.
    kill_mount(&staging);
    let is_back = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        fs::read(Path::new(&target).join("file")).is_ok()
    });
    assert!(is_back, "{}", fs::read_to_string(rig.dir.path().join("csi.log")).unwrap());
    unpublish(&mut rig, &made.volume_id, &target).unwrap();
    unstage(&mut rig, &made.volume_id, &staging).unwrap();
    assert_eq!(fs::read_dir(rig.dir.path().join("state/tokens")).unwrap().count(), 0);
    rig.delete(&made.volume_id).unwrap();
    assert!(!rig.stoker(&["volume", "ls"]).contains("pvc-1"));
}
