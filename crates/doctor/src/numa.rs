//! Cores against the sockets that drives and network cards hang on, all by absolute numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cpus::{self, CpuList};
use crate::disk::{self, Disks};
use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine};
use crate::network::Interface;
use crate::plan::Plan;

/// Cores at the start of each node that the system itself keeps to, where there are enough.
const SYSTEM_CORES: usize = 4;

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, disks: &Disks, interfaces: &[Interface], notes: &mut Notes) {
    let cores = plan.cores.as_ref().map_err(|why| Gap::Untold(why.clone()));
    let cores: Result<CpuList, Gap> = cores.map(|cores| cores.iter().copied().collect());
    let nodes = cpus::nodes(machine);
    notes.judge("numa.cores", "", cores.clone().and_then(|cores| online(machine, &cores)));
    notes.judge("numa.siblings", "", cores.clone().and_then(|cores| siblings(machine, &cores)));
    let drives =
        disks.all().into_iter().filter_map(|disk| Some((disk.name.clone(), "drive", disk.pci.clone()?)));
    let cards =
        interfaces.iter().filter_map(|card| Some((card.name.clone(), "network card", card.pci.clone()?)));
    let devices: Vec<(String, &'static str, PathBuf)> = drives.chain(cards).collect();
    let used: Vec<u32> =
        devices.iter().filter_map(|(_, _, pci)| disk::numa_node(machine, pci).ok().flatten()).collect();
    for (name, what, pci) in devices {
        let check = if what == "drive" { "numa.drive" } else { "numa.nic" };
        let verdict = match (&cores, &nodes) {
            (Ok(cores), Ok(nodes)) => {
                near(machine, &Place { what, name: &name, pci: &pci, used: &used }, cores, nodes)
            }
            (Err(gap), _) | (_, Err(gap)) => Err(gap.clone()),
        };
        notes.judge(check, name, verdict);
    }
}

fn online(machine: &Machine, cores: &CpuList) -> Verdict {
    let path = "/sys/devices/system/cpu/online";
    let online = cpus::list(machine, path)?;
    let gone = cores.without(&online);
    Ok((!gone.is_empty()).then(|| {
        Fault::error(
            format!("cores {gone} are configured and not online"),
            "threads that are to run there run somewhere else, or the node does not start",
        )
        .fix(format!("choose among {online}, by absolute numbers: systemctl set-property stoker.service AllowedCPUs={online}"))
        .saw(path, &online)
    }))
}

fn siblings(machine: &Machine, cores: &CpuList) -> Verdict {
    for core in cores.iter() {
        let group = cpus::siblings(machine, core)?;
        let shared = group.common(cores);
        if shared.len() > 1 {
            let fault = Fault::warning(
                format!("cores {shared} are threads of one physical core"),
                "two busy threads of one core slow each other down by more than the second one brings; leave the sibling idle",
            );
            let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            let one_each = first_threads(machine, cores)?;
            let fault = fault.fix(format!("systemctl set-property stoker.service AllowedCPUs={one_each}"));
            return Ok(Some(fault.saw(path, group)));
        }
    }
    Ok(None)
}

/// One thread of each physical core.
fn first_threads(machine: &Machine, cores: &CpuList) -> Result<CpuList, Gap> {
    let mut chosen = Vec::new();
    for core in cores.iter() {
        let group = cpus::siblings(machine, core)?;
        if !chosen.iter().any(|other| group.contains(*other)) {
            chosen.push(core);
        }
    }
    Ok(chosen.into_iter().collect())
}

/// A device whose place matters.
struct Place<'p> {
    what: &'static str,
    name: &'p str,
    pci: &'p Path,
    /// NUMA nodes that drives and cards of the plan are on.
    used: &'p [u32],
}

fn near(machine: &Machine, place: &Place<'_>, cores: &CpuList, nodes: &BTreeMap<u32, CpuList>) -> Verdict {
    let Place { what, name, pci, .. } = place;
    if nodes.len() == 1 {
        return Ok(None);
    }
    let path = pci.join("numa_node");
    let Some(node) = disk::numa_node(machine, pci)? else {
        let fault = Fault::warning(
            format!("the firmware does not say which NUMA node {what} {name} is on"),
            "neither the kernel nor Stoker can keep its interrupts and buffers near it",
        );
        return Ok(Some(
            fault
                .fix("update the BIOS, or set its NUMA setting (NPS) back to the default")
                .saw(path.display(), -1),
        ));
    };
    let own = nodes.get(&node).ok_or_else(|| Gap::senseless(&path, &node.to_string()))?;
    if !own.common(cores).is_empty() {
        return Ok(None);
    }
    let where_now: Vec<String> = nodes
        .iter()
        .filter(|(_, list)| !list.common(cores).is_empty())
        .map(|(node, _)| node.to_string())
        .collect();
    let fault = Fault::warning(
        format!(
            "{what} {name} is on NUMA node {node} (cores {own}); the configured cores {cores} are all on node {}",
            where_now.join(", ")
        ),
        "each byte crosses between the sockets: it works, without a word in any log, and slower. Core numbers are absolute: \
         the first core of node 1 is not 0",
    );
    let advice = suggest(machine, place.used, nodes, cores.len());
    Ok(Some(
        fault
            .fix(format!(
                "systemctl set-property stoker.service AllowedCPUs={advice} (and [node] cores = {} in its configuration)",
                advice.len()
            ))
            .saw(path.display(), node)
            .saw(format!("/sys/devices/system/node/node{node}/cpulist"), own),
    ))
}

/// Physical cores near all devices, past those that the system uses, an equal number on each node.
fn suggest(machine: &Machine, used: &[u32], nodes: &BTreeMap<u32, CpuList>, count: usize) -> CpuList {
    let lists: Vec<&CpuList> =
        nodes.iter().filter(|(node, _)| used.contains(node)).map(|(_, list)| list).collect();
    let each = count.div_ceil(lists.len().max(1)).max(1);
    let of_node = |list: &CpuList| -> Vec<u32> {
        let skip = if list.len() > 4 * SYSTEM_CORES { SYSTEM_CORES } else { 0 };
        let mut chosen: Vec<u32> = Vec::new();
        for core in list.iter().skip(skip) {
            let is_sibling = cpus::siblings(machine, core)
                .is_ok_and(|group| group.iter().next().is_some_and(|first| first != core));
            if chosen.len() < each && !is_sibling {
                chosen.push(core);
            }
        }
        chosen
    };
    lists.into_iter().flat_map(of_node).collect()
}
