//! The disks themselves: alignment, write cache, scheduler, link, and whether two drives are one.

use std::path::Path;

use crate::disk::{Disk, Disks};
use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};
use crate::nvmeof::CONTROLLER_STATES;
use crate::plan::{Direct, Drive, DriveKind, Known, Plan};

/// What the ring writes at least, and aligns to.
const BLOCK_BYTES: u64 = 4_096;
/// What `/sys` counts in, whatever the disk's own blocks are.
const SECTOR_BYTES: u64 = 512;

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, disks: &Disks, notes: &mut Notes) {
    for (drive, found) in plan.drives.iter().zip(&disks.0) {
        let subject = drive.path.display().to_string();
        notes.judge("drive.direct", &subject, direct(drive));
        match found {
            Ok(found) => found.iter().for_each(|disk| disk_checks(machine, disk, &subject, notes)),
            Err(gap) => notes.judge("drive.device", &subject, Err(gap.clone())),
        }
    }
    if plan.drives.len() > 1 {
        for (at, drive) in plan.drives.iter().enumerate().skip(1) {
            notes.judge("drive.shared", drive.path.display().to_string(), shared(plan, disks, at));
        }
    }
}

fn disk_checks(machine: &Machine, disk: &Disk, subject: &str, notes: &mut Notes) {
    notes.judge("drive.block_size", subject, block_size(machine, disk));
    if let Some(partition) = &disk.partition {
        notes.judge("drive.alignment", subject, alignment(machine, partition));
    }
    notes.judge("drive.read_only", subject, read_only(machine, disk));
    notes.judge("drive.rotational", subject, rotational(machine, disk));
    notes.judge("drive.scheduler", subject, scheduler(machine, disk));
    notes.judge("drive.write_cache", subject, write_cache(machine, disk));
    if let Some(pci) = &disk.pci {
        if has_link(machine, pci) {
            notes.judge("drive.link", subject, link(machine, pci, &disk.name));
        }
        if disk.is_nvme() {
            notes.judge("drive.state", subject, state(machine, disk));
        }
    }
}

fn direct(drive: &Drive) -> Verdict {
    let outcome: &Known<Direct> = &drive.direct;
    Ok(match outcome.as_ref().map_err(|why| Gap::Untold(why.clone()))? {
        Direct::Works => None,
        Direct::Absent => Some(
            Fault::error("it is not there", "the node refuses to start without a drive that it is configured with")
                .fix(format!("findmnt {0} || mount {0}, or mkdir {0}; or take it out of the configuration", drive.path.display())),
        ),
        Direct::Refused => Some(
            Fault::warning(
                "the file system does not take O_DIRECT",
                "every byte is copied through the page cache, and cuFile cannot read from the drive",
            )
            .fix("put the drive on ext4 or XFS: mkfs.xfs /dev/DEVICE && mount /dev/DEVICE MOUNTPOINT")
            .saw("open with O_DIRECT", "refused"),
        ),
        Direct::Failed(why) => Some(
            Fault::error(
                "a block of 4 KiB cannot be written and read back",
                "a ring on this drive stops at its first append; the node refuses to start or takes the drive out",
            )
            .fix(match drive.kind {
                DriveKind::Files => format!("ls -ld {0} && df -h {0} && dmesg | tail", drive.path.display()),
                DriveKind::Device => format!("ls -l {} && dmesg | tail", drive.path.display()),
            })
            .saw("write with O_DIRECT", why),
        ),
    })
}

fn block_size(machine: &Machine, disk: &Disk) -> Verdict {
    let path = disk.queue("logical_block_size");
    let bytes: u64 = machine.value(&path)?;
    if bytes == 0 || !bytes.is_power_of_two() {
        return Err(Gap::senseless(path, &bytes.to_string()));
    }
    Ok((bytes > BLOCK_BYTES).then(|| {
        Fault::error(
            format!("blocks of {} have {bytes} bytes", disk.name),
            "the ring writes aligned blocks of 4 KiB; the disk refuses what is smaller than its own",
        )
        .fix(format!(
            "nvme format /dev/{} --lbaf=INDEX_OF_4096 (erases it; nvme id-ns -H lists the formats)",
            disk.name
        ))
        .saw(path.display(), bytes)
    }))
}

fn alignment(machine: &Machine, partition: &Path) -> Verdict {
    let start: u64 = machine.value(partition.join("start"))?;
    let offset: u64 = if_there(machine.value(partition.join("alignment_offset")))?.unwrap_or(0);
    let bytes = start.saturating_mul(SECTOR_BYTES);
    let name = partition.file_name().unwrap_or_default().to_string_lossy();
    Ok((!bytes.is_multiple_of(BLOCK_BYTES) || offset != 0).then(|| {
        Fault::warning(
            format!("partition {name} begins in the middle of a block of 4 KiB"),
            "every block that the ring writes touches two of the disk: half the speed, twice the wear",
        )
        .fix("parted -a optimal /dev/DISK mkpart primary 1MiB 100% (erases the partition)")
        .saw(partition.join("start").display(), start)
        .saw(partition.join("alignment_offset").display(), offset)
    }))
}

fn read_only(machine: &Machine, disk: &Disk) -> Verdict {
    let path = disk.sys.join("ro");
    Ok(match machine.value::<u8>(&path)? {
        0 => None,
        value => Some(
            Fault::error(
                format!("{} is read-only", disk.name),
                "NVMe drives turn read-only when they are worn out or their flash fails; nothing can be appended",
            )
            .fix(format!("nvme smart-log /dev/{0}; blockdev --setrw /dev/{0} if nothing is wrong with it", disk.name))
            .saw(path.display(), value),
        ),
    })
}

fn rotational(machine: &Machine, disk: &Disk) -> Verdict {
    let path = disk.queue("rotational");
    let value: u8 = machine.value(&path)?;
    if value == 0 {
        return Ok(None);
    }
    // Disks of virtual machines say so unless their host was told otherwise.
    let is_virtual = ["vd", "xvd"].iter().any(|prefix| disk.name.starts_with(prefix));
    let fault = match is_virtual {
        true => Fault::info(
            format!("the virtual disk {} calls itself a spinning one", disk.name),
            "it may not be one; the kernel then reads ahead and orders I/O as if it were",
        )
        .fix(format!("echo 0 > /sys/block/{}/queue/rotational, if it is flash", disk.name)),
        false => Fault::warning(
            format!("{} is a spinning disk", disk.name),
            "a ring is read at random: a spinning disk is slower than most lakes",
        )
        .fix("give Stoker NVMe drives: lsblk -d -o NAME,ROTA,TRAN,MODEL"),
    };
    Ok(Some(fault.saw(path.display(), value)))
}

fn scheduler(machine: &Machine, disk: &Disk) -> Verdict {
    let path = disk.queue("scheduler");
    let text = machine.word(&path)?;
    let chosen = text.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'));
    let chosen = match chosen {
        Some(chosen) => chosen,
        None if text == "none" => "none",
        None => return Err(Gap::senseless(path, &text)),
    };
    let turns = matches!(machine.value::<u8>(disk.queue("rotational")), Ok(1));
    Ok((chosen != "none" && !turns).then(|| {
        Fault::warning(
            format!("the scheduler of {} is {chosen}", disk.name),
            "it holds back and sorts what the ring already batches: more CPU and a longer tail on a drive with its own queues",
        )
        .fix(format!("echo none > /sys/block/{}/queue/scheduler (and a udev rule: ATTR{{queue/scheduler}}=\"none\")", disk.name))
        .saw(path.display(), &text)
    }))
}

/// NVMe drives with a volatile cache take FUA, others need none: an honest kernel says `write back` and 1, or `write
/// through` and 0. `write through` and 1 means that a person told the kernel to leave flushes out.
fn write_cache(machine: &Machine, disk: &Disk) -> Verdict {
    let path = disk.queue("write_cache");
    let text = machine.word(&path)?;
    let fua: Option<u8> = if_there(machine.value(disk.queue("fua")))?;
    let saw = |fault: Fault| match fua {
        Some(fua) => fault.saw(path.display(), &text).saw(disk.queue("fua").display(), fua),
        None => fault.saw(path.display(), &text),
    };
    Ok(match (text.as_str(), fua) {
        ("write through", Some(1)) if disk.is_nvme() => Some(saw(Fault::error(
            format!("the kernel was told that {} has no volatile cache, and it has one", disk.name),
            "flushes are left out: a power cut loses writes that were acknowledged",
        )
        .fix(format!("echo \"write back\" > {}", path.display())))),
        ("write through", _) => None,
        ("write back", _) if disk.is_nvme() => Some(saw(Fault::warning(
            format!("{} reports a volatile write cache, so probably no power-loss protection", disk.name),
            "nothing is lost, since each append is flushed; but each acknowledgement waits for flash, often a millisecond and more",
        )
        .fix("use drives with power-loss protection (they report no volatile cache: nvme id-ctrl /dev/nvmeN | grep vwc)"))),
        ("write back", _) => Some(saw(Fault::info(
            format!("{} has a volatile write cache", disk.name),
            "nothing is lost as long as it obeys flushes; each acknowledgement waits for one",
        ))),
        _ => return Err(Gap::senseless(path, &text)),
    })
}

/// Whether a PCI function has a link that can be narrow; those of virtual machines often have none.
pub fn has_link(machine: &Machine, pci: &Path) -> bool {
    machine.has(pci.join("current_link_speed"))
}

/// Whether a PCI function runs at the width and speed that it can.
pub fn link(machine: &Machine, pci: &Path, name: &str) -> Verdict {
    let (speed, speed_max) =
        (machine.word(pci.join("current_link_speed"))?, machine.word(pci.join("max_link_speed"))?);
    let (width, width_max): (u32, u32) =
        (machine.value(pci.join("current_link_width"))?, machine.value(pci.join("max_link_width"))?);
    let transfers = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
    let (Some(now), Some(best)) = (transfers(&speed), transfers(&speed_max)) else {
        return Err(Gap::senseless(pci.join("current_link_speed"), &speed));
    };
    let address = pci.file_name().unwrap_or_default().to_string_lossy();
    Ok((now < best || width < width_max).then(|| {
        Fault::warning(
            format!("the PCIe link of {name} is x{width} at {speed}, it can x{width_max} at {speed_max}"),
            "the link is the ceiling of what it reads and writes; a bad seat, riser or BIOS setting halves it silently",
        )
        .fix(format!("lspci -s {address} -vv | grep -i lnk; reseat it, check slot and BIOS (link speed Auto)"))
        .saw(pci.join("current_link_speed").display(), &speed)
        .saw(pci.join("current_link_width").display(), width)
    }))
}

fn state(machine: &Machine, disk: &Disk) -> Verdict {
    let controllers = disk.controllers(machine);
    if controllers.is_empty() {
        return Err(Gap::Untold(format!("the controller of {} is not told", disk.name)));
    }
    for controller in controllers {
        let path = controller.join("state");
        let state = machine.one_of(&path, &CONTROLLER_STATES)?;
        if state != "live" {
            let name = controller.file_name().unwrap_or_default().to_string_lossy();
            let fault = Fault::error(
                format!("controller {name} of {} is {state}", disk.name),
                "reads and writes wait or fail until it is live again",
            );
            let fault = fault.fix(format!("dmesg | grep {name}; nvme reset /dev/{name}"));
            return Ok(Some(fault.saw(path.display(), state)));
        }
    }
    Ok(None)
}

fn shared(plan: &Plan, disks: &Disks, at: usize) -> Verdict {
    let own = disks.0[at].as_ref().map_err(Gap::clone)?;
    for (earlier, drive) in disks.0.iter().zip(&plan.drives).take(at) {
        let Ok(earlier) = earlier else { continue };
        if let Some(disk) = own.iter().find(|disk| earlier.iter().any(|other| other.sys == disk.sys)) {
            let fault = Fault::warning(
                format!("it is on the same disk ({}) as {}", disk.name, drive.path.display()),
                "two rings on one disk share its speed and die together: they count as two drives and are one",
            );
            return Ok(Some(
                fault.fix("give each [[drive]] a disk of its own: lsblk").saw("disk", disk.sys.display()),
            ));
        }
    }
    Ok(None)
}
