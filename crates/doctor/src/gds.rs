//! GPUDirect Storage: whether a GPU could read from the drives without the CPU's memory in between.
//!
//! Only for machines with an NVIDIA GPU.

use serde_json::Value;

use crate::disk::is_pci;
use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine};
use crate::mounts::{Mount, Mounts};
use crate::plan::{DriveKind, Plan};

const DRIVER: &str = "/sys/bus/pci/drivers/nvidia";
const MODULES: &str = "/sys/module";
const MODULE: &str = "nvidia_fs";
const CUFILE: &str = "/etc/cufile.json";

/// How far cuFile goes with a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Support {
    Full,
    Partial,
    No,
}

/// The matrix. What is not in it is not supported.
fn support(kind: &str) -> Support {
    match kind {
        "ext4" | "xfs" | "lustre" | "gpfs" | "wekafs" => Support::Full,
        "beegfs" => Support::Partial,
        _ => Support::No,
    }
}

/// Whether the machine has a GPU whose driver runs.
pub fn has_gpu(machine: &Machine) -> bool {
    machine.names(DRIVER).is_ok_and(|names| names.iter().any(|name| is_pci(name)))
}

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, mounts: &Mounts, notes: &mut Notes) {
    if !has_gpu(machine) {
        return;
    }
    let settings = settings(machine);
    let uses_p2p = settings.as_ref().is_ok_and(|settings| is_on(settings, "use_pci_p2pdma"));
    notes.judge("gds.nvidia_fs", "", module(machine, uses_p2p));
    notes.judge("gds.cufile", "", cufile(settings));
    for drive in plan.drives.iter().filter(|drive| drive.kind == DriveKind::Files && drive.is_there()) {
        let subject = drive.path.display().to_string();
        notes.judge("gds.filesystem", subject, mounts.of(machine, &drive.path).map(filesystem));
    }
}

fn module(machine: &Machine, uses_p2p: bool) -> Verdict {
    let is_loaded = machine.names(MODULES)?.iter().any(|name| name == MODULE);
    Ok((!is_loaded && !uses_p2p).then(|| {
        Fault::warning(
            "the kernel module nvidia-fs is not loaded",
            "cuFile falls back to reads through memory of the CPU (compatibility mode): it works, and slower",
        )
        .fix("apt-get install nvidia-fs-dkms || dnf install nvidia-fs-dkms; modprobe nvidia-fs; /usr/local/cuda/gds/tools/gdscheck -p")
        .saw(MODULES, format!("no {MODULE}"))
    }))
}

/// The settings of cuFile.
fn settings(machine: &Machine) -> Result<Value, Gap> {
    let text = machine.text(CUFILE)?;
    serde_json::from_str(&without_comments(&text))
        .map_err(|error| Gap::Unreadable(CUFILE.into(), error.to_string()))
}

fn is_on(settings: &Value, name: &str) -> bool {
    settings["properties"][name] == Value::Bool(true)
}

fn cufile(settings: Result<Value, Gap>) -> Verdict {
    let settings = match settings {
        Ok(settings) => settings,
        Err(Gap::Missing(_)) => return Ok(None),
        Err(gap @ Gap::Unreadable(..)) => {
            let fault = Fault::warning(
                "the settings of cuFile cannot be read",
                "cuFile uses its defaults instead, or refuses to start",
            );
            return Ok(Some(
                fault
                    .fix(format!("python3 -m json.tool {CUFILE} (without its // comments)"))
                    .saw(CUFILE, gap),
            ));
        }
        Err(gap) => return Err(gap),
    };
    Ok(is_on(&settings, "allow_compat_mode").then(|| {
        Fault::info(
            "cuFile may fall back to reads through memory of the CPU",
            "where the direct way does not work nobody is told; it is only slower",
        )
        .fix(format!("\"allow_compat_mode\": false in {CUFILE} makes it an error"))
        .saw(CUFILE, "allow_compat_mode: true")
    }))
}

fn filesystem(mount: &Mount) -> Option<Fault> {
    let kind = &mount.kind;
    let why = "programs that read a lease with cuFile do so through memory of the CPU";
    let fault = match support(kind) {
        Support::Full if kind == "ext4" && mount.has("data=writeback") => {
            Fault::warning("cuFile wants ext4 with data=ordered, it is mounted with data=writeback", why).fix(
                format!("edit /etc/fstab to data=ordered, then umount {0} && mount {0}", mount.at.display()),
            )
        }
        Support::Full => return None,
        Support::Partial => Fault::warning(format!("cuFile supports {kind} in part"), why)
            .fix("check the versions: /usr/local/cuda/gds/tools/gdscheck -p"),
        Support::No => Fault::warning(format!("cuFile does not support {kind}"), why)
            .fix("use ext4 or XFS on a local NVMe"),
    };
    Some(fault.saw("mountinfo", format!("{} on {} type {kind}", mount.source, mount.at.display())))
}

/// The file that comes with cuFile has comments, which JSON has not.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let (mut in_string, mut escaped, mut end) = (false, false, line.len());
        for (at, c) in line.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                '/' if !in_string && line[at..].starts_with("//") => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        plain.push_str(&line[..end]);
        plain.push('\n');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix() {
        for (kind, expect) in [
            ("ext4", Support::Full),
            ("xfs", Support::Full),
            ("lustre", Support::Full),
            ("gpfs", Support::Full),
            ("wekafs", Support::Full),
            ("beegfs", Support::Partial),
            ("nfs", Support::No),
            ("nfs4", Support::No),
            ("cifs", Support::No),
            ("smb3", Support::No),
            ("btrfs", Support::No),
        ] {
            assert_eq!(support(kind), expect, "{kind}");
        }
    }

    #[test]
    fn comments_go_and_addresses_stay() {
        let text = "{ // a\n \"url\": \"http://x\\\"//y\", // b\n \"n\": 1 }";
        let value: Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!(value["url"], "http://x\"//y");
    }
}
