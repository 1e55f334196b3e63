//! What to take away from everything else on the machine, so that a node has it.

use serde::Serialize;

use crate::cpus::{self, CpuList};
use crate::machine::Machine;
use crate::plan::Plan;

/// Beside the cap: stacks, code, pages of files.
const MEMORY_MORE: u64 = 1 << 30;

/// Cores and memory that belong to Stoker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reservation {
    /// The cores that it runs on, by absolute numbers.
    pub cores: String,
    /// The same with their siblings, which are to stay idle.
    pub cores_with_siblings: String,
    /// The cap on memory, and a little more.
    pub memory_bytes: u64,
    /// Lines for the configuration of the kubelet, beside what the system itself needs.
    pub kubelet: Vec<String>,
    /// The command that reserves the same for a service of systemd.
    pub systemd: String,
}

impl Reservation {
    /// Of a plan; none if it does not say which cores and how much memory.
    pub fn of(machine: &Machine, plan: &Plan) -> Option<Reservation> {
        let cores: CpuList = plan.cores.as_ref().ok()?.iter().copied().collect();
        let memory_bytes = plan.memory_bytes.as_ref().ok()?.saturating_add(MEMORY_MORE);
        let whole = with_siblings(machine, &cores);
        if cores.is_empty() {
            return None;
        }
        let mib = memory_bytes >> 20;
        Some(Reservation {
            cores: cores.to_string(),
            cores_with_siblings: whole.to_string(),
            memory_bytes,
            kubelet: vec![
                "cpuManagerPolicy: static".to_owned(),
                format!("reservedSystemCPUs: \"{whole}\"   # with the cores of the system itself"),
                format!("systemReserved: {{memory: {mib}Mi}}   # more than what the system itself has"),
                "topologyManagerPolicy: single-numa-node   # where the node is a pod, or best-effort"
                    .to_owned(),
            ],
            systemd: format!("systemctl set-property stoker.service AllowedCPUs={cores} MemoryMax={mib}M"),
        })
    }
}

/// Cores with all threads of their physical cores, as far as the machine tells.
pub fn with_siblings(machine: &Machine, cores: &CpuList) -> CpuList {
    let of = |core: u32| cpus::siblings(machine, core).unwrap_or_else(|_| [core].into_iter().collect());
    cores.iter().flat_map(|core| of(core).iter().chain([core]).collect::<Vec<_>>()).collect()
}
