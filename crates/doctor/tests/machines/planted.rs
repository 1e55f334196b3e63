//! One fault at a time in the healthy machine: exactly that is found, and nothing else.

use stoker_doctor::{Direct, Plan};

use super::plans::{self, certificate, standby};
use super::tree::{Tree, lines, unseen};

/// The first drive, its bus, and the first storage card.
const DRIVE: &str = "/sys/devices/pci0000:16/0000:16:01.1/0000:17:00.0/0000:18:00.0/0000:19:00.0";
const DISK: &str =
    "/sys/devices/pci0000:16/0000:16:01.1/0000:17:00.0/0000:18:00.0/0000:19:00.0/nvme/nvme0/nvme0n1";
const CARD: &str = "/sys/devices/pci0000:50/0000:50:01.1/0000:51:00.0";
const FABRIC: &str = "/sys/devices/virtual/nvme-fabrics/ctl";
const SUBSYSTEM: &str = "/sys/devices/virtual/nvme-subsystem/nvme-subsys20";

/// Nothing in the machine is changed.
const SAME: &str = "";

struct Planted {
    /// What is changed in the machine; `DRIVE` and the other names stand for their paths.
    patch: String,
    plan: Plan,
    expect: Vec<String>,
}

/// A fault of the machine.
fn machine(patch: &str, expect: &str) -> Planted {
    both(patch, expect, |_| ())
}

/// A fault of the plan.
fn plan(expect: &str, change: impl FnOnce(&mut Plan)) -> Planted {
    both(SAME, expect, change)
}

fn both(patch: &str, expect: &str, change: impl FnOnce(&mut Plan)) -> Planted {
    let mut plan = plans::gpu_node();
    change(&mut plan);
    let names =
        [("DRIVE", DRIVE), ("DISK", DISK), ("CARD", CARD), ("FABRIC", FABRIC), ("SUBSYSTEM", SUBSYSTEM)];
    let patch = names.iter().fold(patch.to_owned(), |text, (name, path)| text.replace(name, path));
    Planted { patch, plan, expect: expect.split("; ").map(str::to_owned).collect() }
}

/// The mounts of the healthy machine, with the first drive as this says.
fn mounted(kind_and_options: &str) -> String {
    let rest: String = (1..8)
        .map(|n| {
            format!("{} 22 259:{} / /mnt/nvme{n} rw,noatime - xfs /dev/nvme{n}n1p1 rw\n", 40 + n, 2 * n + 1)
        })
        .collect();
    format!(
        "/proc/self/mountinfo: <<<\n22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n40 22 259:1 / /mnt/nvme0 {kind_and_options}\n{rest}>>>\n"
    )
}

#[track_caller]
fn check(planted: Vec<Planted>) {
    for Planted { patch, plan, expect } in planted {
        let tree = Tree::of("healthy");
        tree.apply(&patch);
        let report = tree.examine(&plan);
        assert_eq!((lines(&report), unseen(&report)), (expect, vec![]), "{patch}\n{}", report.text());
        for found in &report.findings {
            assert!(!found.what.is_empty() && !found.why.is_empty(), "{found:?}");
        }
    }
}

#[test]
fn kernel() {
    check(vec![
        machine("/proc/sys/kernel/osrelease: 5.4.0-150-generic", "warning kernel.release"),
        machine("/proc/sys/kernel/osrelease: 5.15.0-91-generic", "info kernel.release"),
        both("/proc/sys/kernel/io_uring_disabled: 2", "warning kernel.io_uring", |plan| {
            plan.uring = Ok(Err(1))
        }),
        both("/proc/sys/kernel/io_uring_disabled: 1", "warning kernel.io_uring", |plan| {
            plan.uring = Ok(Err(1))
        }),
        // It was not tried, and the setting alone says enough.
        both("/proc/sys/kernel/io_uring_disabled: 2", "warning kernel.io_uring", |plan| {
            plan.uring = Err("no".into())
        }),
        plan("warning kernel.io_uring", |plan| plan.uring = Ok(Err(1))),
        both("- /proc/sys/kernel/io_uring_disabled", "warning kernel.io_uring", |plan| {
            plan.uring = Ok(Err(38))
        }),
    ]);
}

#[test]
fn drives() {
    check(vec![
        plan("warning drive.direct /mnt/nvme3", |plan| plan.drives[3].direct = Ok(Direct::Refused)),
        plan("error drive.direct /mnt/nvme3", |plan| {
            plan.drives[3].direct = Ok(Direct::Failed("I/O error".into()))
        }),
        plan("error drive.direct /mnt/nvme9", |plan| {
            plan.drives
                .push(stoker_doctor::Drive { direct: Ok(Direct::Absent), ..plans::drive("/mnt/nvme9") });
        }),
        machine("DISK/queue/logical_block_size: 16384", "error drive.block_size /mnt/nvme0"),
        machine("DISK/nvme0n1p1/start: 63", "warning drive.alignment /mnt/nvme0"),
        machine("DISK/nvme0n1p1/alignment_offset: 512", "warning drive.alignment /mnt/nvme0"),
        machine("DISK/ro: 1", "error drive.read_only /mnt/nvme0"),
        machine("DISK/queue/rotational: 1", "warning drive.rotational /mnt/nvme0"),
        machine("DISK/queue/scheduler: none [mq-deadline] kyber bfq", "warning drive.scheduler /mnt/nvme0"),
        machine(
            "DISK/queue/write_cache: write back\nDISK/queue/fua: 1",
            "warning drive.write_cache /mnt/nvme0",
        ),
        machine("DISK/queue/fua: 1", "error drive.write_cache /mnt/nvme0"),
        machine("DRIVE/nvme/nvme0/state: resetting", "error drive.state /mnt/nvme0"),
        machine("DRIVE/current_link_width: 2", "warning drive.link /mnt/nvme0"),
        machine("DRIVE/current_link_speed: 16.0 GT/s PCIe", "warning drive.link /mnt/nvme0"),
        plan("warning drive.shared /mnt/nvme0/second", |plan| {
            plan.drives.push(plans::drive("/mnt/nvme0/second"))
        }),
    ]);
}

#[test]
fn file_systems() {
    check(vec![
        machine(
            "/etc/fstab: /dev/nvme0n1p1 /mnt/nvme0 xfs noatime,nobarrier 0 2",
            "error filesystem.fstab /mnt/nvme0",
        ),
        machine(
            &mounted("rw,noatime - xfs /dev/nvme0n1p1 rw,nobarrier"),
            "error filesystem.barrier /mnt/nvme0",
        ),
        machine(
            &mounted("rw,noatime - ext4 /dev/nvme0n1p1 rw,barrier=0"),
            "error filesystem.barrier /mnt/nvme0",
        ),
        machine(&mounted("rw,noatime - ext4 /dev/nvme0n1p1 ro"), "error filesystem.options /mnt/nvme0"),
        machine(&mounted("rw,sync - ext4 /dev/nvme0n1p1 rw"), "warning filesystem.options /mnt/nvme0"),
        machine(
            &mounted("rw - ext4 /dev/nvme0n1p1 rw,data=journal"),
            "warning filesystem.options /mnt/nvme0",
        ),
        machine(&mounted("rw - ext4 /dev/nvme0n1p1 rw,data=writeback"), "warning gds.filesystem /mnt/nvme0"),
        machine(&mounted("rw - btrfs /dev/nvme0n1p1 rw"), "warning gds.filesystem /mnt/nvme0"),
    ]);
    // These are no devices of this machine, so that the drive is not looked at.
    let elsewhere = |what: &str| mounted(what).replace("259:1 /", "0:77 /");
    check(vec![
        machine(
            &elsewhere("rw - nfs4 filer:/export rw,vers=4.2"),
            "error filesystem.kind /mnt/nvme0; warning gds.filesystem /mnt/nvme0",
        ),
        machine(
            &elsewhere("rw - cifs //filer/share rw"),
            "error filesystem.kind /mnt/nvme0; warning gds.filesystem /mnt/nvme0",
        ),
        machine(
            &elsewhere("rw - beegfs beegfs_nodev rw"),
            "warning filesystem.kind /mnt/nvme0; warning gds.filesystem /mnt/nvme0",
        ),
        machine(&elsewhere("rw - wekafs default/fs rw"), "warning filesystem.kind /mnt/nvme0"),
        machine(
            &elsewhere("rw - tmpfs tmpfs rw"),
            "error filesystem.kind /mnt/nvme0; warning gds.filesystem /mnt/nvme0",
        ),
    ]);
}

#[test]
fn cores_and_sockets() {
    let first_socket = "warning numa.drive nvme4n1; warning numa.drive nvme5n1; warning numa.drive nvme6n1; \
                        warning numa.drive nvme7n1; warning numa.nic ens2f0np0";
    check(vec![
        // Counted from the socket instead of absolutely.
        plan(first_socket, |plan| plan.cores = Ok(vec![4, 5, 6, 7])),
        plan("warning numa.siblings", |plan| plan.cores = Ok(vec![4, 5, 196, 100])),
        machine("DRIVE/numa_node: -1", "warning numa.drive nvme0n1"),
        machine("CARD/numa_node: -1", "warning numa.nic ens1f0np0"),
        both("/sys/devices/system/cpu/online: 0-101,104-383", "error numa.cores", |_| ()),
    ]);
}

#[test]
fn memory_and_limits() {
    let limits = |files: &str, locked: &str| {
        format!(
            "/proc/self/limits: <<<\nMax open files            {files}                 {files}                files     \n\
             Max locked memory         {locked}                 {locked}             bytes     \n>>>"
        )
    };
    check(vec![
        machine("/proc/meminfo: MemTotal:       16777216 kB", "error memory.cap"),
        machine("/proc/meminfo: MemTotal:       41943040 kB", "warning memory.cap"),
        machine("/sys/fs/cgroup/system.slice/memory.max: 17179869184", "error memory.group"),
        machine("/sys/fs/cgroup/system.slice/stoker.service/memory.max: 35433480192", "warning memory.group"),
        machine(
            "/proc/self/cgroup: 4:memory:/a\n/sys/fs/cgroup/memory/a/memory.limit_in_bytes: 8589934592",
            "error memory.group",
        )
        .with_cpu_group(),
        machine("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages: 12", "info memory.huge_pages"),
        machine(
            "- /sys/kernel/mm/hugepages\n/sys/kernel/mm/transparent_hugepage/enabled: always madvise [never]",
            "warning memory.huge_pages",
        ),
        machine(&limits("1024", "unlimited"), "warning limits.descriptors"),
        machine(&limits("1048576", "8388608"), "warning limits.locked_memory"),
        machine(
            "/sys/fs/cgroup/system.slice/stoker.service/cpu.max: 400000 100000",
            "warning limits.cpu_quota",
        ),
        machine(
            "/proc/self/status: <<<\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-95\n>>>",
            "warning limits.cores",
        ),
        machine(
            "/var/lib/kubelet/config.yaml: <<<\nkind: KubeletConfiguration\ncpuManagerPolicy: none\nsystemReserved:\n  memory: 48Gi\n>>>",
            "warning kubelet.cores",
        ),
        // The siblings are given away.
        machine(
            "/var/lib/kubelet/config.yaml: <<<\nkind: KubeletConfiguration\nreservedSystemCPUs: 0-7,96-103\nsystemReserved:\n  memory: 48Gi\n>>>",
            "warning kubelet.cores",
        ),
        machine(
            "/var/lib/kubelet/config.yaml: <<<\nkind: KubeletConfiguration\nreservedSystemCPUs: 0-7,96-103,192-199,288-295\nsystemReserved:\n  memory: 4Gi\n>>>",
            "warning kubelet.memory",
        ),
    ]);
}

impl Planted {
    /// In the old layout each controller has a line.
    fn with_cpu_group(mut self) -> Planted {
        self.patch = self.patch.replace(
            "/proc/self/cgroup: 4:memory:/a",
            "/proc/self/cgroup: <<<\n4:memory:/a\n3:cpu,cpuacct:/a\n>>>\n/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us: -1\n\
             /sys/fs/cgroup/cpu/a/cpu.cfs_period_us: 100000",
        );
        self
    }
}

#[test]
fn iommu() {
    check(vec![
        machine("/sys/kernel/iommu_groups/40/type: DMA-FQ", "warning iommu.mode nvme0n1"),
        machine(
            "/sys/kernel/iommu_groups/41/devices/0000:19:00.0 -> ../../../..DRIVE",
            "warning iommu.group nvme1n1",
        )
        .without_sys(),
    ]);
}

impl Planted {
    /// A link from below `/sys` goes up to it.
    fn without_sys(mut self) -> Planted {
        self.patch = self.patch.replace("../../../../sys/", "../../../../");
        self
    }
}

#[test]
fn drives_over_a_fabric() {
    check(vec![
        machine("FABRIC/nvme21/state: connecting", "warning nvmeof.paths nvme-subsys20"),
        machine("FABRIC/nvme21/nvme20c21n1/ana_state: inaccessible", "warning nvmeof.paths nvme-subsys20"),
        machine("FABRIC/nvme20/state: dead\nFABRIC/nvme21/state: dead", "error nvmeof.paths nvme-subsys20"),
        machine(
            "FABRIC/nvme20/nvme20c20n1/ana_state: non-optimized\nFABRIC/nvme21/nvme20c21n1/ana_state: non-optimized",
            "warning nvmeof.paths nvme-subsys20",
        ),
        machine("- SUBSYSTEM/nvme21", "warning nvmeof.paths nvme-subsys20"),
        machine("SUBSYSTEM/iopolicy: numa", "warning nvmeof.iopolicy nvme-subsys20"),
        machine("/sys/module/nvme_core/parameters/multipath: N", "warning nvmeof.multipath"),
    ]);
}

#[test]
fn rdma() {
    let port = "/sys/class/infiniband/mlx5_3/ports/1";
    let roce = "CARD/infiniband/mlx5_8/ports/1";
    check(vec![
        machine(&format!("{port}/state: 2: INIT"), "warning rdma.port mlx5_3/1"),
        machine(&format!("{port}/state: 1: DOWN\n{port}/phys_state: 3: Disabled"), "info rdma.port mlx5_3/1"),
        machine(&format!("{port}/rate: 200 Gb/sec (2X NDR)"), "warning rdma.rate mlx5_3/1"),
        // The address came after the first ones, as after a race at boot.
        machine(
            &format!(
                "- {roce}/gids/3\n{roce}/gids/5: 0000:0000:0000:0000:0000:ffff:0a14:000b\n{roce}/gid_attrs/types/5: RoCE v2"
            ),
            "warning rdma.gid_index",
        ),
        machine(&format!("- {roce}/gids/3"), "warning rdma.gid mlx5_8/1"),
    ]);
}

#[test]
fn network() {
    let v6 = |address: &str| {
        let address = address.parse().unwrap();
        move |plan: &mut Plan| plan.addresses.push(address)
    };
    let flagged = "/proc/net/if_inet6: fd000000000000200000000000000011 02 40 00 c8 ens1f0np0";
    check(vec![
        machine("CARD/net/ens1f0np0/operstate: down", "error network.link ens1f0np0"),
        machine("CARD/net/ens1f0np0/mtu: 1500", "warning network.mtu ens1f0np0; warning network.mtu_equal"),
        machine("CARD/net/ens1f0np0/mtu: 9216", "warning network.mtu_equal"),
        machine(
            "/proc/net/fib_trie: Local:",
            "error network.address 10.20.0.11; error network.address 10.20.1.11",
        ),
        machine("CARD/current_link_width: 8", "warning network.pcie ens1f0np0"),
        plan("error network.address 10.99.0.1", |plan| plan.addresses.push("10.99.0.1".parse().unwrap())),
        both(
            "/proc/sys/net/ipv6/conf/all/disable_ipv6: 1",
            "error network.ipv6 fd00:0:0:20::11",
            v6("fd00:0:0:20::11"),
        ),
        both(flagged, "warning network.ipv6 fd00:0:0:20::11", v6("fd00:0:0:20::11")),
        both(SAME, "warning network.ipv6 fe80::ba3f:d2ff:fe00:8", v6("fe80::ba3f:d2ff:fe00:8")),
        both(SAME, "error network.address fd00::99", v6("fd00::99")),
        machine(
            "/sys/devices/virtual/net/bond0/operstate: up\n/sys/devices/virtual/net/bond0/mtu: 9000\n\
             /sys/devices/virtual/net/bond0/bonding/slaves: ens1f0np0 ens2f0np0\n\
             /sys/class/net/bond0 -> ../../devices/virtual/net/bond0\n\
             /proc/net/route: <<<\nIface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
             bond0 0000140A 00000000 0001 0 0 0 0000FFFF 0 0 0\n>>>",
            "warning network.bond bond0",
        ),
    ]);
}

#[test]
fn clocks() {
    check(vec![
        machine(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource: hpet",
            "warning clock.source",
        ),
        plan("warning clock.synchronised", |plan| {
            plan.clock = Ok(stoker_doctor::Clock { is_synchronised: false });
        }),
        plan("warning clock.offset PostgreSQL", |plan| plan.offsets_ms[0].1 = -2_500),
        plan("error clock.offset PostgreSQL", |plan| plan.offsets_ms[0].1 = 3_600_000),
    ]);
}

#[test]
fn gpus() {
    check(vec![
        machine("- /sys/module/nvidia_fs", "warning gds.nvidia_fs"),
        machine("/etc/cufile.json: { \"properties\": { \"allow_compat_mode\": true } }", "info gds.cufile"),
        machine("/etc/cufile.json: { \"properties\": ", "warning gds.cufile"),
    ]);
}

/// Drives with two ports belong to a subsystem, and the kernel shows them there.
#[test]
fn a_drive_with_two_ports() {
    let tree = Tree::of("healthy");
    let head = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1";
    tree.apply(&format!("{head}/nvme0n1p1/partition: 1\n{head}/nvme0n1p1/start: 2048\n{head}/ro: 0"));
    for (file, value) in [
        ("logical_block_size", "512"),
        ("rotational", "0"),
        ("scheduler", "none"),
        ("write_cache", "write through"),
        ("fua", "0"),
    ] {
        tree.apply(&format!("{head}/queue/{file}: {value}"));
    }
    tree.apply("/sys/dev/block/259:1 -> ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1");
    let report = tree.examine(&plans::gpu_node());
    assert_eq!((lines(&report), unseen(&report)), (vec![], vec![]), "{}", report.text());
    tree.apply(&format!("{DRIVE}/nvme/nvme0/state: dead\n{DRIVE}/current_link_width: 1"));
    let expect = ["error drive.state /mnt/nvme0", "warning drive.link /mnt/nvme0"];
    assert_eq!(lines(&tree.examine(&plans::gpu_node())), expect);
}

#[test]
fn disks_that_nobody_tells_are_unknown() {
    let tree = Tree::of("healthy");
    tree.apply(&mounted("rw - zfs tank/stoker rw").replace("259:1 /", "0:77 /"));
    let report = tree.examine(&plans::gpu_node());
    assert_eq!(lines(&report), ["warning gds.filesystem /mnt/nvme0"]);
    assert_eq!(unseen(&report), ["drive.device /mnt/nvme0"]);
}

#[test]
fn a_kubelet_that_is_told_in_other_ways() {
    let tree = Tree::of("healthy");
    tree.apply("/var/lib/kubelet/config.yaml: <<<\nkind: KubeletConfiguration\nsystemReserved: {cpu: 4, memory: 48Gi}\n>>>");
    tree.apply("/var/lib/kubelet/kubeadm-flags.env: KUBELET_KUBEADM_ARGS=\"--v=2 --reserved-cpus=0-7,96-103,192-199,288-295\"");
    let report = tree.examine(&plans::gpu_node());
    assert_eq!((lines(&report), unseen(&report)), (vec![], vec![]), "{}", report.text());
}

#[test]
fn a_newer_way_does_without_the_module() {
    let tree = Tree::of("healthy");
    tree.apply("- /sys/module/nvidia_fs\n/etc/cufile.json: { \"properties\": { \"use_pci_p2pdma\": true } }");
    assert_eq!(lines(&tree.examine(&plans::gpu_node())), Vec::<String>::new());
}

#[test]
fn secrets() {
    check(vec![
        machine("/var/lib/stoker/token (0644): t", "error secrets.file /var/lib/stoker/token"),
        machine("/etc/stoker/tls.key (0640): k", "warning secrets.file /etc/stoker/tls.key"),
        machine("/var/lib/stoker/ (0770)", "error secrets.directory /var/lib/stoker"),
        machine("/var/lib/stoker/ (0755)", "warning secrets.directory /var/lib/stoker"),
        machine(
            "/mnt/nvme0/stoker/ (0755)\n/mnt/nvme0/stoker/segment-00000001 (0644): bytes",
            "warning secrets.data /mnt/nvme0/stoker",
        ),
        machine("/mnt/lake/ (0755)\n/mnt/lake/object (0604): bytes", "warning secrets.data /mnt/lake"),
        plan("warning secrets.certificate S3 /etc/stoker/tls.crt", |plan| {
            plan.certificates = vec![certificate(-80, 9)]
        }),
        plan("error secrets.certificate S3 /etc/stoker/tls.crt", |plan| {
            plan.certificates = vec![certificate(-90, -1)]
        }),
        plan("error secrets.certificate S3 /etc/stoker/tls.crt", |plan| {
            plan.certificates = vec![certificate(2, 90)]
        }),
    ]);
}

#[test]
fn database() {
    let name = "postgresql://db.example/stoker";
    let with = |change: fn(&mut stoker_doctor::Database)| {
        move |plan: &mut Plan| change(plan.database.as_mut().unwrap().as_mut().unwrap())
    };
    check(vec![
        plan("error database.answers", |plan| plan.database = Some(Err("connection refused".into()))),
        plan(&format!("error database.durable {name}"), with(|database| database.fsync = Some("off".into()))),
        plan(
            &format!("error database.durable {name}"),
            with(|database| database.full_page_writes = Some("off".into())),
        ),
        plan(
            &format!("warning database.standby {name}"),
            with(|database| database.standby_names = Some(String::new())),
        ),
        plan(
            &format!("warning database.standby {name}"),
            with(|database| database.synchronous_commit = Some("local".into())),
        ),
        plan(
            &format!("error database.standby {name}"),
            with(|database| database.standbys = Some(vec![standby("a", "async")])),
        ),
    ]);
}

#[test]
fn other_databases_have_their_own_way() {
    let tree = Tree::of("healthy");
    let mut plan = plans::gpu_node();
    let database = plan.database.as_mut().unwrap().as_mut().unwrap();
    (database.standby_names, database.standbys) = (None, None);
    assert_eq!(lines(&tree.examine(&plan)), Vec::<String>::new());
}

#[test]
fn a_user_who_may_not_see_standbys_is_told_so() {
    let tree = Tree::of("healthy");
    let mut plan = plans::gpu_node();
    plan.database.as_mut().unwrap().as_mut().unwrap().standbys = None;
    let report = tree.examine(&plan);
    assert_eq!(lines(&report), Vec::<String>::new());
    assert_eq!(unseen(&report), ["database.standby postgresql://db.example/stoker"]);
}
