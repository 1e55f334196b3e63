//! File systems of the drives and of the node's directory, and how they are mounted.

use std::path::Path;

use crate::finding::{Fault, Notes};
use crate::machine::{Gap, Machine};
use crate::mounts::{Mount, Mounts};
use crate::plan::{DriveKind, Plan};

/// What we think of a file system under a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Its bytes are on a device of ours, and stay.
    Local,
    /// Its bytes are gone with the power or with the container.
    Fleeting,
    /// It is somebody else's machine, and what a flush means there is not for us to know.
    Remote,
    /// Many machines serve it, and a flush is one.
    Parallel,
    /// A program serves it.
    Program,
}

fn kind(name: &str) -> Kind {
    match name {
        "tmpfs" | "ramfs" | "devtmpfs" | "overlay" | "aufs" | "squashfs" => Kind::Fleeting,
        "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" => Kind::Remote,
        "lustre" | "gpfs" | "wekafs" | "beegfs" | "ceph" | "9p" | "virtiofs" => Kind::Parallel,
        "fuse" | "fuseblk" => Kind::Program,
        name if name.starts_with("fuse.") => Kind::Program,
        _ => Kind::Local,
    }
}

/// Whether its bytes are on a device of this machine.
pub fn is_local(name: &str) -> bool {
    kind(name) == Kind::Local
}

const FSTAB: &str = "/etc/fstab";

const REMOTE_FIX: &str = "put the drive on a local NVMe with ext4 or XFS, and give the other as [lake] url = \"file:///DIRECTORY\"";

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, mounts: &Mounts, notes: &mut Notes) {
    let drives = plan
        .drives
        .iter()
        .filter(|drive| drive.kind == DriveKind::Files && drive.is_there())
        .map(|drive| &drive.path);
    let mut seen: Vec<&Path> = Vec::new();
    for path in drives.chain(&plan.dir) {
        if seen.contains(&path.as_path()) {
            continue;
        }
        seen.push(path);
        let subject = path.display().to_string();
        match mounts.of(machine, path) {
            Ok(mount) => {
                mount_checks(mount, &subject, notes);
                if machine.has(FSTAB) {
                    let verdict = machine.text(FSTAB).map(|text| next_boot(&text, mount));
                    notes.judge("filesystem.fstab", subject, verdict);
                }
            }
            Err(gap) => notes.judge("filesystem.kind", subject, Err(gap)),
        }
    }
    if plan.drives.is_empty() && plan.dir.is_none() {
        notes.judge(
            "filesystem.kind",
            "",
            Err(Gap::Untold("no drive and no directory of a node is named".to_owned())),
        );
    }
}

fn mount_checks(mount: &Mount, subject: &str, notes: &mut Notes) {
    notes.judge("filesystem.kind", subject, Ok(kind_fault(mount)));
    notes.judge("filesystem.barrier", subject, Ok(barrier(mount)));
    notes.judge("filesystem.options", subject, Ok(options(mount)));
}

fn saw(fault: Fault, mount: &Mount) -> Fault {
    let Mount { at, kind, source, options, .. } = mount;
    fault.saw("mountinfo", format!("{source} on {} type {kind} ({})", at.display(), options.join(",")))
}

fn kind_fault(mount: &Mount) -> Option<Fault> {
    let name = &mount.kind;
    let fault = match kind(name) {
        Kind::Local => return None,
        Kind::Fleeting => Fault::error(
            format!("it is on {name}, which keeps nothing"),
            "what was acknowledged is gone with the power or with the container; a receipt promises that it is not",
        )
        .fix("mount a drive of the machine there; in Kubernetes a local volume or hostPath, with docker -v /mnt/nvme0:/mnt/nvme0"),
        Kind::Remote => Fault::error(
            format!("it is on {name}, a file system of another machine"),
            "a drive is a device of this machine: locks, O_DIRECT and the meaning of a flush depend on a server there, \
             and its loss takes all nodes along. Such a file system can be the lake",
        )
        .fix(REMOTE_FIX),
        Kind::Parallel => Fault::warning(
            format!("it is on {name}, which is no device of this machine"),
            "the first tier would be as slow as what it stands in front of, and two copies in two nodes would be one. Such a \
             file system can be the lake",
        )
        .fix(REMOTE_FIX),
        Kind::Program => Fault::warning(
            format!("it is on {name}, which a program serves"),
            "whether a flush reaches a device is up to that program, and O_DIRECT usually does not",
        )
        .fix("put it on ext4 or XFS of a local device"),
    };
    Some(saw(fault, mount))
}

const BARRIER_OFF: [&str; 3] = ["nobarrier", "barrier=0", "nobarriers"];

/// What the next boot will do, if it is not so already.
fn next_boot(fstab: &str, mount: &Mount) -> Option<Fault> {
    if BARRIER_OFF.iter().any(|option| mount.has(option)) {
        return None;
    }
    let lines = fstab.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    for line in lines {
        let mut fields = line.split_whitespace().skip(1);
        let (Some(at), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let off = options.split(',').find(|option| BARRIER_OFF.contains(option));
        if let Some(off) = off.filter(|_| Path::new(at) == mount.at) {
            let why = match kind {
                "xfs" => {
                    "XFS does not know the option any more: it is not mounted at the next boot, and the ring is not there"
                }
                _ => {
                    "after the next boot flushes do not reach the drive: a power cut loses what was acknowledged"
                }
            };
            let fault = Fault::error(format!("`{off}` is in {FSTAB} for {at}"), why);
            return Some(fault.fix(format!("sed -i 's/\\b{off}\\b,\\?//' {FSTAB}")).saw(FSTAB, line));
        }
    }
    None
}

fn barrier(mount: &Mount) -> Option<Fault> {
    let off = BARRIER_OFF.into_iter().find(|option| mount.has(option))?;
    let fault = Fault::error(
        format!("it is mounted with `{off}`"),
        "flushes do not reach the drive: after a power cut the file system itself can be damaged, and acknowledged bytes are lost. \
         On drives with power-loss protection a flush costs nothing, so the option gains nothing either",
    );
    let on = if mount.kind == "ext4" { "barrier=1" } else { "barrier" };
    Some(saw(
        fault.fix(format!(
            "mount -o remount,{on} {0} && sed -i 's/\\b{off}\\b,\\?//' /etc/fstab",
            mount.at.display()
        )),
        mount,
    ))
}

fn options(mount: &Mount) -> Option<Fault> {
    let at = mount.at.display();
    let fault = if mount.has("ro") {
        Fault::error(
            "it is mounted read-only",
            "nothing can be written; file systems also turn read-only by themselves when the drive fails",
        )
        .fix(format!("dmesg | tail -50; mount -o remount,rw {at}"))
    } else if let Some(option) = ["sync", "dirsync"].into_iter().find(|option| mount.has(option)) {
        Fault::warning(
            format!("it is mounted with `{option}`"),
            "everything is flushed one by one; the ring flushes what must be, and shares flushes between appends",
        )
        .fix(format!("mount -o remount,async {at}"))
    } else if mount.has("data=journal") {
        Fault::warning(
            "it is mounted with `data=journal`",
            "every byte is written twice, and ext4 ignores O_DIRECT there",
        )
        .fix(format!("edit /etc/fstab to data=ordered, then umount {at} && mount {at}"))
    } else {
        return None;
    };
    Some(saw(fault, mount))
}
