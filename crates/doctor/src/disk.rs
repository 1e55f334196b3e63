//! The physical disks behind the drives of a plan, through partitions, encryption and volume groups.

use std::path::{Path, PathBuf};

use crate::filesystem;
use crate::machine::{Gap, Machine, if_there};
use crate::mounts::{Mount, Mounts};
use crate::plan::{DriveKind, Plan};

/// Layers between a file system and a disk.
const LAYERS_MAX: usize = 8;
/// Disks behind one drive.
const DISKS_MAX: usize = 128;

/// A whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// As the kernel calls it, such as `nvme0n1`.
    pub name: String,
    /// Its directory in `/sys/devices`.
    pub sys: PathBuf,
    /// The directory of the partition that is used, if not the whole.
    pub partition: Option<PathBuf>,
    /// The function on the PCI bus that it hangs on, if it hangs on one.
    pub pci: Option<PathBuf>,
}

impl Disk {
    /// Whether it speaks NVMe.
    pub fn is_nvme(&self) -> bool {
        self.name.starts_with("nvme")
    }

    /// Directories of its NVMe controllers: the one that it is in, or all of a subsystem with several ports.
    pub fn controllers(&self, machine: &Machine) -> Vec<PathBuf> {
        let above = self.sys.parent().unwrap_or(&self.sys);
        if above.file_name().is_some_and(|name| is_controller(&name.to_string_lossy())) {
            return vec![above.to_owned()];
        }
        let names = machine.names(above).unwrap_or_default().into_iter().filter(|name| is_controller(name));
        names.take(DISKS_MAX).filter_map(|name| machine.real(above.join(name)).ok()).collect()
    }

    /// A file of its queue.
    pub fn queue(&self, name: &str) -> PathBuf {
        self.sys.join("queue").join(name)
    }
}

/// The disks behind each drive, in the order of the plan. Empty for a drive that is on no disk.
pub struct Disks(pub Vec<Result<Vec<Disk>, Gap>>);

impl Disks {
    /// Finds them.
    pub fn find(machine: &Machine, plan: &Plan, mounts: &Mounts) -> Disks {
        let of_drive = |drive: &crate::plan::Drive| match drive.is_there() {
            true => behind(machine, mounts, &drive.path, drive.kind),
            false => Ok(Vec::new()),
        };
        Disks(plan.drives.iter().map(of_drive).collect())
    }

    /// Every disk once.
    pub fn all(&self) -> Vec<&Disk> {
        let mut all: Vec<&Disk> = Vec::new();
        for disk in self.0.iter().flatten().flatten() {
            if !all.iter().any(|other| other.sys == disk.sys) {
                all.push(disk);
            }
        }
        all
    }
}

/// The disks behind a path: a block device if it is one, otherwise what its file system is on. None for a path that is on no
/// disk of this machine.
pub fn disks_behind(machine: &Machine, path: &Path) -> Result<Vec<Disk>, Gap> {
    let real = machine.real(path).unwrap_or_else(|_| path.to_owned());
    let kind = if real.starts_with("/dev") { DriveKind::Device } else { DriveKind::Files };
    behind(machine, &Mounts::read(machine, None), path, kind)
}

fn behind(machine: &Machine, mounts: &Mounts, path: &Path, kind: DriveKind) -> Result<Vec<Disk>, Gap> {
    match kind {
        DriveKind::Files => match behind_mount(machine, mounts.of(machine, path)?)? {
            Some(sys) => physical(machine, &sys),
            None => Ok(Vec::new()),
        },
        DriveKind::Device => {
            let real = machine.real(path).unwrap_or_else(|_| path.to_owned());
            let name = real.file_name().ok_or_else(|| Gap::Missing(real.clone()))?;
            physical(machine, &machine.real(Path::new("/sys/class/block").join(name))?)
        }
    }
}

/// The block device of a mount in `/sys`; none for a file system that is on no device of this machine.
fn behind_mount(machine: &Machine, mount: &Mount) -> Result<Option<PathBuf>, Gap> {
    if let Some(sys) = if_there(machine.real(format!("/sys/dev/block/{}", mount.device)))? {
        return Ok(Some(sys));
    }
    // File systems over several devices have a number of their own, and name one of them.
    let Some(device) = mount.source.strip_prefix("/dev/") else {
        return match filesystem::is_local(&mount.kind) {
            true => {
                Err(Gap::Untold(format!("which disks {} ({}) is on is not told", mount.source, mount.kind)))
            }
            false => Ok(None),
        };
    };
    let real = machine.real(Path::new("/dev").join(device));
    let name = real.ok().and_then(|path| Some(path.file_name()?.to_owned())).unwrap_or_else(|| device.into());
    machine.real(Path::new("/sys/class/block").join(name)).map(Some)
}

/// The disks below a block device.
fn physical(machine: &Machine, sys: &Path) -> Result<Vec<Disk>, Gap> {
    let (mut disks, mut left) = (Vec::new(), vec![(sys.to_owned(), 0)]);
    while let Some((sys, layer)) = left.pop() {
        let is_partition = machine.has(sys.join("partition"));
        let whole = if is_partition { sys.parent().unwrap_or(&sys).to_owned() } else { sys.clone() };
        let slaves = if_there(machine.names(whole.join("slaves")))?.unwrap_or_default();
        if !slaves.is_empty() && layer < LAYERS_MAX && left.len() < DISKS_MAX {
            for slave in slaves {
                left.push((machine.real(whole.join("slaves").join(slave))?, layer + 1));
            }
            continue;
        }
        let Some(name) = whole.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
        let mut disk =
            Disk { name, partition: is_partition.then_some(sys), pci: pci_above(&whole), sys: whole };
        if disk.pci.is_none() && disk.is_nvme() {
            disk.pci = disk.controllers(machine).iter().find_map(|controller| pci_above(controller));
        }
        if disks.len() < DISKS_MAX && !disks.contains(&disk) {
            disks.push(disk);
        }
    }
    Ok(disks)
}

/// The last part of a path in `/sys/devices` that is an address on the PCI bus, with what is before it.
pub fn pci_above(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .find(|part| part.file_name().is_some_and(|name| is_pci(&name.to_string_lossy())))
        .map(Path::to_owned)
}

/// `nvme3`, and not `nvme3n1` nor `nvme-subsys3`.
pub fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `0000:17:00.0`
pub fn is_pci(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let hex = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.len() == 4 && parts.iter().all(hex) && parts[0].len() >= 4 && name.matches(':').count() == 2
}

/// Which NUMA node a PCI function is on; none if the firmware did not say.
pub fn numa_node(machine: &Machine, pci: &Path) -> Result<Option<u32>, Gap> {
    let node: i64 = machine.value(pci.join("numa_node"))?;
    Ok(u32::try_from(node).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_the_bus() {
        for (name, expect) in [
            ("0000:17:00.0", true),
            ("10000:e1:00.0", true),
            ("pci0000:16", false),
            ("nvme0n1", false),
            ("0000:17.00:0", true),
            ("", false),
            (":::", false),
        ] {
            assert_eq!(is_pci(name), expect, "{name}");
        }
        let path = Path::new("/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/nvme/nvme0/nvme0n1");
        assert!(pci_above(path).unwrap().ends_with("0000:16:01.0/0000:17:00.0"));
        assert_eq!(pci_above(Path::new("/sys/devices/virtual/block/dm-0")), None);
    }
}
