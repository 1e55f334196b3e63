//! Identity and controller: codes, twice the same, others under the same name, pages.

use super::*;

#[test]
fn a_driver_says_who_it_is() {
    let mut rig = Rig::new();
    let info: GetPluginInfoResponse =
        rig.call("/csi.v1.Identity/GetPluginInfo", GetPluginInfoRequest {}).unwrap();
    assert_eq!(info.name, "csi.stoker.dev");
    assert!(!info.vendor_version.is_empty());
    let can: GetPluginCapabilitiesResponse =
        rig.call("/csi.v1.Identity/GetPluginCapabilities", GetPluginCapabilitiesRequest {}).unwrap();
    assert_eq!(can.capabilities.len(), 3);
    let probe: ProbeResponse = rig.call("/csi.v1.Identity/Probe", ProbeRequest {}).unwrap();
    assert!(probe.ready.unwrap().value);
    let can: ControllerGetCapabilitiesResponse = rig
        .call("/csi.v1.Controller/ControllerGetCapabilities", ControllerGetCapabilitiesRequest {})
        .unwrap();
    assert!(can.capabilities.iter().all(|one| one.rpc.as_ref().unwrap().kind > 0));
    let publish: Result<DeleteVolumeResponse, _> =
        rig.call("/csi.v1.Controller/ControllerPublishVolume", DeleteVolumeRequest::default());
    refused(publish, Code::Unimplemented);
    let info: NodeGetInfoResponse = rig.call("/csi.v1.Node/NodeGetInfo", NodeGetInfoRequest {}).unwrap();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("machine-1", 128));
    assert!(info.accessible_topology.unwrap().segments.contains_key("csi.stoker.dev/cluster"));
    // A node that is gone is no reason to restart the driver.
    rig.node.take().unwrap().kill();
    assert!(rig.dir.path().join("csi.sock").exists());
}

#[test]
fn volumes_are_made_once_and_removed_once() {
    let mut rig = Rig::new();
    let first = CreateVolumeRequest {
        capacity_range: range(1 << 20, 4 << 20),
        parameters: map(&[("class", "one"), ("drain", "never"), ("csi.storage.k8s.io/pvc/name", "claim")]),
        ..wanted("pvc-1")
    };
    let made = rig.create(first.clone()).unwrap();
    assert_eq!(made.capacity_bytes, 1 << 20);
    assert_eq!(made.accessible_topology.len(), 1);
    assert_eq!(rig.create(first.clone()).unwrap(), made, "the same again");
    let between = CreateVolumeRequest { capacity_range: range(1, 1 << 20), ..first.clone() };
    assert_eq!(rig.create(between).unwrap(), made, "what is there is what is asked for");
    for other in [
        CreateVolumeRequest { capacity_range: range(2 << 20, 0), ..first.clone() },
        CreateVolumeRequest { capacity_range: range(0, 1 << 10), ..first.clone() },
        CreateVolumeRequest { parameters: map(&[("class", "one")]), ..first.clone() },
    ] {
        refused(rig.create(other), Code::AlreadyExists);
    }
    // Bad input, and nothing of it is made.
    let before = rig.stoker(&["volume", "ls"]);
    for (request, code) in [
        (wanted(""), Code::InvalidArgument),
        (wanted(&"n".repeat(129)), Code::InvalidArgument),
        (CreateVolumeRequest { volume_capabilities: vec![], ..wanted("pvc-2") }, Code::InvalidArgument),
        (
            CreateVolumeRequest { volume_capabilities: vec![capability(0, &[])], ..wanted("pvc-2") },
            Code::InvalidArgument,
        ),
        (
            CreateVolumeRequest {
                volume_capabilities: vec![capability(WRITER, &["nobarrier"])],
                ..wanted("pvc-2")
            },
            Code::InvalidArgument,
        ),
        (
            CreateVolumeRequest { parameters: map(&[("clas", "two")]), ..wanted("pvc-2") },
            Code::InvalidArgument,
        ),
        (CreateVolumeRequest { capacity_range: range(-1, 0), ..wanted("pvc-2") }, Code::OutOfRange),
        (CreateVolumeRequest { capacity_range: range(9, 5), ..wanted("pvc-2") }, Code::OutOfRange),
        (
            CreateVolumeRequest {
                capacity_range: range(1 << 45, 0),
                parameters: map(&[("drain", "never")]),
                ..wanted("pvc-2")
            },
            Code::OutOfRange,
        ),
        (
            CreateVolumeRequest { parameters: map(&[("volume", "not-there")]), ..wanted("pvc-2") },
            Code::NotFound,
        ),
        (
            CreateVolumeRequest {
                accessibility_requirements: Some(TopologyRequirement {
                    requisite: vec![Topology { segments: map(&[("csi.stoker.dev/cluster", "another")]) }],
                    preferred: vec![],
                }),
                ..wanted("pvc-2")
            },
            Code::ResourceExhausted,
        ),
    ] {
        refused(rig.create(request), code);
    }
    assert_eq!(rig.stoker(&["volume", "ls"]), before);
    // A volume that this driver did not make is not taken, and not removed.
    refused(rig.create(wanted("data")), Code::AlreadyExists);
    refused(rig.delete("data"), Code::FailedPrecondition);
    refused(rig.delete(""), Code::InvalidArgument);
    for gone in ["nothing", "0badc1u5/pvc-1", "a/b/c", &"x".repeat(200)] {
        rig.delete(gone).unwrap();
    }
    // What is in it goes with it; a second time nothing is left to do.
    let input = rig.at("input");
    std::fs::write(&input, b"bytes").unwrap();
    rig.stoker(&["put", &input, "pvc-1/a/b"]);
    rig.delete(&made.volume_id).unwrap();
    rig.delete(&made.volume_id).unwrap();
    assert!(!rig.stoker(&["volume", "ls"]).contains("pvc-1"));
    // Names that no volume could have, up to the longest.
    let odd = rig.create(wanted(&"Ä".repeat(64))).unwrap();
    assert_eq!(rig.create(wanted(&"Ä".repeat(64))).unwrap().volume_id, odd.volume_id);
    rig.delete(&odd.volume_id).unwrap();
}

#[test]
fn volumes_are_listed_shown_grown_and_changed() {
    let mut rig = Rig::new();
    let list = |rig: &mut Rig, max_entries, token: &str| -> Result<ListVolumesResponse, Status> {
        let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        rig.call("/csi.v1.Controller/ListVolumes", request)
    };
    assert!(list(&mut rig, 0, "").unwrap().entries.is_empty());
    let ids: Vec<String> =
        (0..5).map(|at| rig.create(wanted(&format!("pvc-{at}"))).unwrap().volume_id).collect();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(&mut rig, 2, &token).unwrap();
        assert!(page.entries.len() <= 2);
        for entry in page.entries {
            assert!(!entry.status.unwrap().volume_condition.unwrap().abnormal);
            seen.push(entry.volume.unwrap().volume_id);
        }
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ids);
    refused(list(&mut rig, -1, ""), Code::InvalidArgument);
    refused(list(&mut rig, 0, "invalid-token"), Code::Aborted);

    let get = |rig: &mut Rig, id: &str| -> Result<ControllerGetVolumeResponse, Status> {
        rig.call(
            "/csi.v1.Controller/ControllerGetVolume",
            ControllerGetVolumeRequest { volume_id: id.to_owned() },
        )
    };
    assert_eq!(get(&mut rig, &ids[0]).unwrap().volume.unwrap().volume_id, ids[0]);
    refused(get(&mut rig, "nothing"), Code::NotFound);
    refused(get(&mut rig, ""), Code::InvalidArgument);
    // The records of the driver are no volume for pods.
    refused(get(&mut rig, "stoker-csi"), Code::NotFound);

    let validate =
        |rig: &mut Rig, id: &str, capabilities| -> Result<ValidateVolumeCapabilitiesResponse, Status> {
            let request = ValidateVolumeCapabilitiesRequest {
                volume_id: id.to_owned(),
                volume_capabilities: capabilities,
                ..Default::default()
            };
            rig.call("/csi.v1.Controller/ValidateVolumeCapabilities", request)
        };
    assert!(validate(&mut rig, &ids[0], vec![capability(MANY_READERS, &[])]).unwrap().confirmed.is_some());
    let block = VolumeCapability { mount: None, block: Some(BlockVolume {}), ..capability(WRITER, &[]) };
    let not = validate(&mut rig, &ids[0], vec![block]).unwrap();
    assert!(not.confirmed.is_none() && !not.message.is_empty());
    refused(validate(&mut rig, &ids[0], vec![]), Code::InvalidArgument);
    refused(validate(&mut rig, "nothing", vec![capability(WRITER, &[])]), Code::NotFound);

    let expand = |rig: &mut Rig,
                  id: &str,
                  capacity_range|
     -> Result<ControllerExpandVolumeResponse, Status> {
        let request =
            ControllerExpandVolumeRequest { volume_id: id.to_owned(), capacity_range, ..Default::default() };
        rig.call("/csi.v1.Controller/ControllerExpandVolume", request)
    };
    for bytes in [8 << 20, 8 << 20, 1 << 20] {
        let grown = expand(&mut rig, &ids[0], range(bytes, 0)).unwrap();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (8 << 20, false));
    }
    assert!(rig.stoker(&["volume", "show", "pvc-0", "--json"]).contains("8388608"));
    refused(expand(&mut rig, &ids[0], range(1, 1 << 20)), Code::OutOfRange);
    refused(expand(&mut rig, &ids[0], range(-1, 0)), Code::OutOfRange);
    refused(expand(&mut rig, &ids[0], None), Code::InvalidArgument);
    refused(expand(&mut rig, "", range(1, 0)), Code::InvalidArgument);
    refused(expand(&mut rig, "nothing", range(1, 0)), Code::NotFound);

    let modify = |rig: &mut Rig,
                  id: &str,
                  name: &str,
                  value: &str|
     -> Result<ControllerModifyVolumeResponse, Status> {
        let mutable_parameters = map(&[(name, value)]);
        let request = ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters,
            ..Default::default()
        };
        rig.call("/csi.v1.Controller/ControllerModifyVolume", request)
    };
    modify(&mut rig, &ids[0], "drain", "on-demand").unwrap();
    assert!(rig.stoker(&["volume", "show", "pvc-0", "--json"]).contains("on_demand"));
    refused(modify(&mut rig, &ids[0], "lake", "s3://b"), Code::InvalidArgument);
    refused(modify(&mut rig, "nothing", "drain", "never"), Code::NotFound);

    let capacity = |rig: &mut Rig, drain: &str| -> Result<GetCapacityResponse, Status> {
        let request = GetCapacityRequest { parameters: map(&[("drain", drain)]), ..Default::default() };
        rig.call("/csi.v1.Controller/GetCapacity", request)
    };
    let (scratch, lake) = (capacity(&mut rig, "never").unwrap(), capacity(&mut rig, "always").unwrap());
    assert!(0 < scratch.available_capacity && scratch.available_capacity < lake.available_capacity);
    refused(capacity(&mut rig, "sometimes"), Code::InvalidArgument);

    // A directory of a volume that is there; the volume itself stays.
    rig.stoker(&["volume", "create", "home"]);
    let inside = CreateVolumeRequest { parameters: map(&[("volume", "home")]), ..wanted("pvc-dir") };
    let inside = rig.create(inside).unwrap();
    assert!(rig.stoker(&["ls", "home"]).contains("pvc-dir/"));
    rig.delete(&inside.volume_id).unwrap();
    assert!(!rig.stoker(&["ls", "home"]).contains("pvc-dir/"));
}

#[test]
fn snapshots_and_clones_hold_what_was_there() {
    let mut rig = Rig::new();
    let snap = |rig: &mut Rig, name: &str, source: &str| -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        let made: Result<CreateSnapshotResponse, _> = rig.call("/csi.v1.Controller/CreateSnapshot", request);
        made.map(|made| made.snapshot.unwrap())
    };
    let list = |rig: &mut Rig, request| -> Result<ListSnapshotsResponse, Status> {
        rig.call("/csi.v1.Controller/ListSnapshots", request)
    };
    let volume = rig.create(wanted("pvc-a")).unwrap().volume_id;
    let other = rig.create(wanted("pvc-b")).unwrap().volume_id;
    let input = rig.at("input");
    std::fs::write(&input, b"before").unwrap();
    rig.stoker(&["put", &input, "pvc-a/deep/file"]);
    let one = snap(&mut rig, "snapshot-1", &volume).unwrap();
    assert!(
        one.ready_to_use && one.size_bytes == 6 && one.creation_time.clone().unwrap().seconds > 1_700_000_000
    );
    assert_eq!(snap(&mut rig, "snapshot-1", &volume).unwrap(), one);
    refused(snap(&mut rig, "snapshot-1", &other), Code::AlreadyExists);
    refused(snap(&mut rig, "", &volume), Code::InvalidArgument);
    refused(snap(&mut rig, "snapshot-2", ""), Code::InvalidArgument);
    refused(snap(&mut rig, "snapshot-2", "nothing"), Code::NotFound);

    std::fs::write(&input, b"afterwards").unwrap();
    rig.stoker(&["put", &input, "pvc-a/deep/file"]);
    let from = |snapshot: Option<&str>, volume: Option<&str>| {
        Some(VolumeContentSource {
            snapshot: snapshot.map(|id| SnapshotSource { snapshot_id: id.to_owned() }),
            volume: volume.map(|id| VolumeSource { volume_id: id.to_owned() }),
        })
    };
    let restored =
        CreateVolumeRequest { volume_content_source: from(Some(&one.snapshot_id), None), ..wanted("pvc-r") };
    let made = rig.create(restored.clone()).unwrap();
    assert_eq!(made.content_source, restored.volume_content_source);
    assert_eq!(rig.create(restored.clone()).unwrap(), made);
    refused(rig.create(wanted("pvc-r")), Code::AlreadyExists);
    let cloned = CreateVolumeRequest { volume_content_source: from(None, Some(&volume)), ..wanted("pvc-c") };
    rig.create(cloned).unwrap();
    for (path, expect) in [("pvc-r/deep/file", "before"), ("pvc-c/deep/file", "afterwards")] {
        assert_eq!(rig.stoker(&["get", path, "-"]), expect, "{path}");
    }
    for (source, code) in [
        (from(Some("nothing"), None), Code::NotFound),
        (from(None, Some("nothing")), Code::NotFound),
        (from(None, None), Code::InvalidArgument),
        (from(Some(""), None), Code::InvalidArgument),
    ] {
        refused(rig.create(CreateVolumeRequest { volume_content_source: source, ..wanted("pvc-x") }), code);
    }

    let two = snap(&mut rig, "snapshot-2", &other).unwrap();
    let all = list(&mut rig, ListSnapshotsRequest::default()).unwrap();
    assert_eq!(all.entries.len(), 2);
    let page = list(&mut rig, ListSnapshotsRequest { max_entries: 1, ..Default::default() }).unwrap();
    assert_eq!((page.entries.len(), page.next_token.is_empty()), (1, false));
    let of = |source: &str, snapshot: &str| ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        snapshot_id: snapshot.to_owned(),
        ..Default::default()
    };
    for (request, count) in [
        (of(&other, ""), 1),
        (of("", &one.snapshot_id), 1),
        (of("nothing", ""), 0),
        (of("", "nothing"), 0),
        (of(&other, &one.snapshot_id), 0),
    ] {
        assert_eq!(list(&mut rig, request.clone()).unwrap().entries.len(), count, "{request:?}");
    }
    let bad = ListSnapshotsRequest { starting_token: "x".into(), ..Default::default() };
    refused(list(&mut rig, bad), Code::Aborted);
    for id in [&one.snapshot_id, &one.snapshot_id, &two.snapshot_id, &"nothing".to_owned()] {
        let request = DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
        let _: DeleteSnapshotResponse = rig.call("/csi.v1.Controller/DeleteSnapshot", request).unwrap();
    }
    refused(
        rig.call::<_, DeleteSnapshotResponse>(
            "/csi.v1.Controller/DeleteSnapshot",
            DeleteSnapshotRequest::default(),
        ),
        Code::InvalidArgument,
    );
    assert!(list(&mut rig, ListSnapshotsRequest::default()).unwrap().entries.is_empty());
    assert_eq!(rig.stoker(&["get", "pvc-r/deep/file", "-"]), "before", "a volume does not need its snapshot");
}
