//! Whole machines, and what is said of them.

use super::plans;
use super::tree::{Tree, lines, unseen};

#[test]
fn nothing_is_found_on_the_healthy_machine() {
    let report = Tree::of("healthy").examine(&plans::gpu_node());
    assert_eq!((lines(&report), unseen(&report)), (vec![], vec![]), "{}", report.text());
    assert!(report.checks > 150, "{}", report.summary());
    assert_eq!(report.exit_code(), 0);
    let reservation = report.reservation.unwrap();
    assert_eq!(reservation.cores, "4-7,100-103");
    assert_eq!(reservation.cores_with_siblings, "4-7,100-103,196-199,292-295");
    assert!(reservation.kubelet[1].contains("\"4-7,100-103,196-199,292-295\""));
}

#[test]
fn the_laptop() {
    let report = Tree::of("laptop").examine(&plans::laptop());
    let expect = [
        "warning drive.write_cache /srv/stoker-data/ring",
        "warning limits.descriptors",
        "warning limits.locked_memory",
        "info memory.huge_pages",
        "info iommu.mode nvme0n1",
    ];
    assert_eq!(lines(&report), expect, "{}", report.text());
    // Without a quota of the control group there is nothing to read, and nothing amiss.
    assert_eq!(unseen(&report), Vec::<String>::new(), "{}", report.text());
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn the_container() {
    let report = Tree::of("container").examine(&plans::container());
    let expect = [
        "error filesystem.kind /var/lib/stoker",
        "error memory.group",
        "warning kernel.io_uring",
        "warning memory.huge_pages",
        "warning limits.locked_memory",
        "warning limits.cpu_quota",
    ];
    assert_eq!(lines(&report), expect, "{}", report.text());
    assert_eq!(unseen(&report), ["drive.link /data"], "{}", report.text());
    assert_eq!(report.exit_code(), 2);
    let text = report.text();
    for part in [
        "seccomp",
        "overlay",
        "4 GiB of the control group",
        "could not look:",
        "1 could not be made: 2 errors, 4 warnings",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn collapsed_groups_of_the_iommu() {
    let report = Tree::of("iommu-collapsed").examine(&plans::gpu_node());
    assert_eq!(lines(&report), ["warning iommu.group nvme0n1"], "{}", report.text());
    let found = &report.findings[0];
    assert!(found.what.starts_with("4 NVMe drives are in IOMMU group 40 (0000:19:00.0, "), "{}", found.what);
    assert!(found.fix.as_ref().unwrap().contains("AmdSetup.ACSEnable"));
}

#[test]
fn cores_on_the_wrong_socket_are_told_by_absolute_numbers() {
    let mut plan = plans::gpu_node();
    plan.cores = Ok(vec![4, 5, 6, 7]);
    let report = Tree::of("wrong-numa").examine(&plan);
    let drives = (0..8).map(|number| format!("warning numa.drive nvme{number}n1"));
    let cards = ["ens1f0np0", "ens2f0np0"].map(|name| format!("warning numa.nic {name}"));
    assert_eq!(lines(&report), drives.chain(cards).collect::<Vec<_>>(), "{}", report.text());
    let found = &report.findings[0];
    assert!(
        found.what.contains("NUMA node 1 (cores 96-191,288-383); the configured cores 4-7 are all on node 0"),
        "{}",
        found.what
    );
    assert!(found.fix.as_ref().unwrap().contains("AllowedCPUs=100-103 "), "{:?}", found.fix);
    // One paragraph for all drives, with one command.
    assert_eq!(report.text().matches("AllowedCPUs=100-103 (").count(), 2, "{}", report.text());
}

#[test]
fn an_empty_machine_is_unknown_and_not_healthy() {
    let dir = tempfile::tempdir().unwrap();
    let machine = stoker_doctor::Machine::at(dir.path());
    let report = stoker_doctor::examine(&machine, &plans::gpu_node(), super::tree::NOW_S);
    // What the plan itself says is known: the drives take O_DIRECT, the database and the certificate are fine.
    assert_eq!(lines(&report), Vec::<String>::new(), "{}", report.text());
    for check in [
        "kernel.release",
        "memory.cap",
        "numa.cores",
        "filesystem.kind /mnt/nvme0",
        "drive.device /mnt/nvme0",
        "clock.source",
    ] {
        assert!(unseen(&report).contains(&check.to_owned()), "{check} in {:?}", unseen(&report));
    }
}

#[test]
fn programs_read_the_same() {
    let report = Tree::of("container").examine(&plans::container());
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["checks"], report.checks);
    let first = &value["findings"][0];
    assert_eq!((&first["check"], &first["severity"]), (&"filesystem.kind".into(), &"error".into()));
    for field in ["subject", "what", "why", "fix"] {
        assert!(first[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {first}");
    }
    assert!(!first["evidence"].as_array().unwrap().is_empty());
    assert_eq!(value["unseen"][0]["check"], "drive.link");
    assert_eq!(value["reservation"]["cores"], "14-15");
}
