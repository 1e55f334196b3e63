//! Drives behind a fabric: paths, their ANA states, and how the kernel chooses among them.

use crate::disk::is_controller;
use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};

const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";
const MULTIPATH: &str = "/sys/module/nvme_core/parameters/multipath";
/// Controllers of one subsystem that are looked at.
const PATHS_MAX: usize = 256;

const TRANSPORTS: [&str; 5] = ["pcie", "rdma", "tcp", "fc", "loop"];
const ANA_STATES: [&str; 5] = ["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"];

/// What an NVMe controller can be.
pub const CONTROLLER_STATES: [&str; 7] =
    ["new", "live", "resetting", "connecting", "deleting", "deleting (no IO)", "dead"];

/// One way to a subsystem.
struct Path {
    /// The controller.
    name: String,
    transport: &'static str,
    address: String,
    state: &'static str,
    /// State of each namespace over this way; none where the target knows no ANA.
    ana: Vec<&'static str>,
}

impl Path {
    fn is_live(&self) -> bool {
        self.state == "live"
    }

    fn has_ana(&self, state: &str) -> bool {
        self.ana.contains(&state)
    }

    /// Whether bytes can go this way.
    fn is_usable(&self) -> bool {
        self.is_live() && (self.ana.is_empty() || self.has_ana("optimized") || self.has_ana("non-optimized"))
    }

    fn is_best(&self) -> bool {
        self.is_live() && (self.ana.is_empty() || self.has_ana("optimized"))
    }

    fn words(&self) -> String {
        let ana = if self.ana.is_empty() { String::new() } else { format!(" {}", self.ana.join("/")) };
        format!("{} {} {} {}{ana}", self.name, self.transport, self.address, self.state)
    }
}

/// Makes the checks, for every subsystem that is reached over a network.
pub fn check(machine: &Machine, notes: &mut Notes) {
    let names = match machine.names(SUBSYSTEMS) {
        Err(Gap::Missing(_)) => return,
        Err(gap) => return notes.judge("nvmeof.paths", "", Err(gap)),
        Ok(names) => names,
    };
    let mut is_any = false;
    for name in names {
        let paths = match paths(machine, &name) {
            Ok(paths) => paths,
            Err(gap) => {
                notes.judge("nvmeof.paths", name, Err(gap));
                continue;
            }
        };
        if paths.iter().all(|path| path.transport == "pcie") {
            continue;
        }
        is_any = true;
        notes.judge("nvmeof.paths", name.clone(), Ok(reach(&paths)));
        notes.judge("nvmeof.iopolicy", name.clone(), iopolicy(machine, &name, &paths));
    }
    if is_any {
        notes.judge("nvmeof.multipath", "", multipath(machine));
    }
}

fn paths(machine: &Machine, subsystem: &str) -> Result<Vec<Path>, Gap> {
    let base = format!("{SUBSYSTEMS}/{subsystem}");
    let controllers = machine.names(&base)?.into_iter().filter(|name| is_controller(name)).take(PATHS_MAX);
    let path = |name: String| -> Result<Path, Gap> {
        let controller = machine.real(format!("{base}/{name}"))?;
        let mut ana = Vec::new();
        for entry in machine.names(&controller)?.iter().filter(|entry| entry.starts_with("nvme")) {
            ana.extend(if_there(machine.one_of(controller.join(entry).join("ana_state"), &ANA_STATES))?);
        }
        Ok(Path {
            transport: machine.one_of(controller.join("transport"), &TRANSPORTS)?,
            address: if_there(machine.word(controller.join("address")))?.unwrap_or_default(),
            state: machine.one_of(controller.join("state"), &CONTROLLER_STATES)?,
            ana,
            name,
        })
    };
    controllers.map(path).collect()
}

fn saw(fault: Fault, paths: &[Path]) -> Fault {
    paths.iter().fold(fault, |fault, path| fault.saw("path", path.words()))
}

fn reach(paths: &[Path]) -> Option<Fault> {
    const CONNECT: &str = "nvme list-subsys; nvme connect-all, and look at the network and the target";
    let usable = paths.iter().filter(|path| path.is_usable()).count();
    let lost: Vec<&str> =
        paths.iter().filter(|path| !path.is_usable()).map(|path| path.name.as_str()).collect();
    let fault = if usable == 0 {
        Fault::error(
            "no path leads to it",
            "reads and writes wait until a path is back, then fail; a ring on it stops",
        )
    } else if !lost.is_empty() {
        Fault::warning(
            format!("{} of {} paths cannot be used: {}", lost.len(), paths.len(), lost.join(", ")),
            "the loss of the others would take the drive away, and their bandwidth is missing now",
        )
    } else if usable == 1 {
        Fault::warning(
            "only one path leads to it",
            "a cable, port or target port that fails takes the drive away",
        )
    } else if !paths.iter().any(Path::is_best) {
        Fault::warning(
            "none of its paths is optimized",
            "every I/O takes a detour inside the target: it works, and slower",
        )
    } else {
        return None;
    };
    Some(saw(fault.fix(CONNECT), paths))
}

fn iopolicy(machine: &Machine, subsystem: &str, paths: &[Path]) -> Verdict {
    let file = format!("{SUBSYSTEMS}/{subsystem}/iopolicy");
    let policy = machine.word(&file)?;
    let best = paths.iter().filter(|path| path.is_best()).count();
    match policy.as_str() {
        "round-robin" | "queue-depth" => Ok(None),
        "numa" if best < 2 => Ok(None),
        "numa" => Ok(Some(
            Fault::warning(
                format!("{best} optimized paths, and the policy `numa` uses one of them per socket"),
                "the bandwidth of the other paths is not used",
            )
            .fix(format!(
                "echo round-robin > {file} (queue-depth from Linux 6.11 on; udev: ACTION==\"add\", SUBSYSTEM==\"nvme-subsystem\", \
                 ATTR{{iopolicy}}=\"round-robin\")"
            ))
            .saw(file, policy),
        )),
        _ => Err(Gap::senseless(file, &policy)),
    }
}

fn multipath(machine: &Machine) -> Verdict {
    let Some(value) = if_there(machine.one_of(MULTIPATH, &["Y", "N"]))? else { return Ok(None) };
    Ok((value != "Y").then(|| {
        Fault::warning(
            "multipathing of the NVMe driver is off",
            "each path shows as a disk of its own; the loss of one is the loss of a drive",
        )
        .fix("grubby --update-kernel=ALL --args=nvme_core.multipath=Y, and reboot")
        .saw(MULTIPATH, value)
    }))
}
