//! IOMMU groups: whether each drive has one of its own, and what a mapping costs.

use std::path::PathBuf;

use crate::disk::{Disk, Disks};
use crate::finding::{Fault, Notes, Verdict};
use crate::gds;
use crate::machine::{Gap, Machine, if_there};

/// Class of NVMe controllers on the PCI bus.
const CLASS_NVME: &str = "0x0108";

/// Makes the checks. A machine without IOMMU has no groups, and nothing to check.
pub fn check(machine: &Machine, disks: &Disks, notes: &mut Notes) {
    let mut seen: Vec<PathBuf> = Vec::new();
    for disk in disks.all().into_iter().filter(|disk| disk.is_nvme()) {
        let Some(pci) = &disk.pci else { continue };
        let group = match if_there(machine.real(pci.join("iommu_group"))) {
            Ok(None) => continue,
            Ok(Some(group)) => group,
            Err(gap) => {
                notes.judge("iommu.group", disk.name.clone(), Err(gap));
                continue;
            }
        };
        // One word about a group, however many drives are in it.
        if !seen.contains(&group) {
            notes.judge("iommu.group", disk.name.clone(), shared(machine, &group));
            notes.judge("iommu.mode", disk.name.clone(), mode(machine, disk, &group));
            seen.push(group);
        }
    }
}

fn shared(machine: &Machine, group: &std::path::Path) -> Verdict {
    let mut drives = Vec::new();
    for address in machine.names(group.join("devices"))? {
        let class = machine.word(group.join("devices").join(&address).join("class"))?;
        if class.starts_with(CLASS_NVME) {
            drives.push(address);
        }
    }
    let number = group.file_name().unwrap_or_default().to_string_lossy();
    Ok((drives.len() > 1).then(|| {
        Fault::warning(
            format!("{} NVMe drives are in IOMMU group {number} ({})", drives.len(), drives.join(", ")),
            "the switch or root port above them does not isolate (no ACS): a single drive cannot be given to VFIO, and a drive that \
             errs can write into what belongs to another",
        )
        .fix(
            "enable ACS in the BIOS (AMD: AmdSetup.ACSEnable, by Redfish: PATCH /redfish/v1/Systems/1/Bios/Settings), boot with iommu=pt; \
             pcie_acs_override does nothing in a stock kernel",
        )
        .saw(group.join("devices").display(), drives.join(" "))
    }))
}

fn mode(machine: &Machine, disk: &Disk, group: &std::path::Path) -> Verdict {
    let path = group.join("type");
    let Some(mode) = if_there(machine.word(&path))? else { return Ok(None) };
    let what = match mode.as_str() {
        "identity" => return Ok(None),
        "DMA" | "DMA-FQ" => format!("every I/O of {} is mapped in the IOMMU (mode {mode})", disk.name),
        _ => return Err(Gap::senseless(path, &mode)),
    };
    let why = "a mapping for each I/O costs CPU, and GPUs read from drives directly only where the IOMMU passes addresses through";
    let fault = if gds::has_gpu(machine) { Fault::warning(what, why) } else { Fault::info(what, why) };
    Ok(Some(
        fault.fix("grubby --update-kernel=ALL --args=iommu=pt, and reboot (Debian: GRUB_CMDLINE_LINUX, update-grub)").saw(path.display(), &mode),
    ))
}
