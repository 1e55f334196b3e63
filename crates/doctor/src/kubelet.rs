//! Whether Kubernetes leaves a node its cores and its memory.

use crate::cpus::CpuList;
use crate::finding::{Fault, Notes, Verdict};
use crate::groups::who;
use crate::machine::{Gap, Machine};
use crate::memory::{human, told};
use crate::plan::Plan;
use crate::reservation::with_siblings;

const CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// Huge pages of the usual size.
const HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Where kubeadm puts flags, which do the same.
const FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// Makes the checks, if there is a kubelet and the node is not one of its pods.
pub fn check(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    let is_pod = machine
        .text(format!("/proc/{}/cgroup", who(plan.process)))
        .is_ok_and(|text| text.contains("kubepods"));
    let text = match machine.text(CONFIG) {
        Err(Gap::Missing(_)) => return,
        _ if is_pod => return,
        Ok(text) if !text.contains("KubeletConfiguration") => Err(Gap::senseless(CONFIG, &text)),
        text => text,
    };
    notes.judge("kubelet.cores", "", text.clone().and_then(|text| cores(machine, plan, &text)));
    notes.judge("kubelet.memory", "", text.and_then(|text| memory(plan, &text)));
}

/// What a pod needs that is to have cores and memory of its own, near its drives: for those who run nodes as pods.
pub fn check_policies(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    let text = machine.text(CONFIG).and_then(|text| match text.contains("KubeletConfiguration") {
        true => Ok(text),
        false => Err(Gap::senseless(CONFIG, &text)),
    });
    notes.judge("kubelet.cpu_policy", "", text.clone().map(|text| cpu_policy(&text)));
    notes.judge("kubelet.topology_policy", "", text.map(|text| topology_policy(machine, &text)));
    notes.judge("kubelet.huge_pages", "", huge_pages(machine, plan));
}

fn cpu_policy(text: &str) -> Option<Fault> {
    let found = value(text, "cpuManagerPolicy").unwrap_or("none");
    (found != "static").then(|| {
        Fault::warning(
            format!("the policy of the CPU manager is {found}: no pod has cores of its own"),
            "a node that shares its cores with a training job acknowledges late and misses pings",
        )
        .fix(format!(
            "in {CONFIG}: cpuManagerPolicy: static, and reservedSystemCPUs; rm /var/lib/kubelet/cpu_manager_state; systemctl restart \
             kubelet"
        ))
        .saw(CONFIG, format!("cpuManagerPolicy: {found}"))
    })
}

fn topology_policy(machine: &Machine, text: &str) -> Option<Fault> {
    // One memory is near everything.
    machine.text("/sys/devices/system/node/node1/cpulist").ok()?;
    let found = value(text, "topologyManagerPolicy").unwrap_or("none");
    (!["single-numa-node", "restricted", "best-effort"].contains(&found)).then(|| {
        Fault::warning(
            format!("the policy of the topology manager is {found}, and the machine has several NUMA nodes"),
            "cores, memory and huge pages of the pod may be far from its drives",
        )
        .fix(format!(
            "in {CONFIG}: topologyManagerPolicy: single-numa-node (or best-effort); systemctl restart kubelet"
        ))
        .saw(CONFIG, format!("topologyManagerPolicy: {found}"))
    })
}

/// A pod gets huge pages only of those that the machine set aside before the kubelet started.
fn huge_pages(machine: &Machine, plan: &Plan) -> Verdict {
    let pages = machine.text(HUGE)?;
    let count: u64 = pages.trim().parse().map_err(|_| Gap::senseless(HUGE, &pages))?;
    let cap = told(&plan.memory_bytes)?;
    Ok((count == 0).then(|| {
        Fault::info(
            "the machine has set no huge pages of 2 MiB aside, so no pod can ask for any",
            "buffers then lie in small pages, which costs a little CPU",
        )
        .fix(format!(
            "sysctl -w vm.nr_hugepages={} && echo vm.nr_hugepages={0} > /etc/sysctl.d/91-stoker.conf; systemctl restart kubelet",
            (cap / 4) >> 21
        ))
        .saw(HUGE, count)
    }))
}

/// The value of a key, wherever it is indented; YAML as the kubelet's is written, one key on a line.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(':'))?;
    let value = line.split(" #").next().unwrap_or(line);
    Some(value.trim().trim_matches(['"', '\'']))
}

fn cores(machine: &Machine, plan: &Plan, text: &str) -> Verdict {
    let cores: CpuList =
        plan.cores.as_ref().map_err(|why| Gap::Untold(why.clone()))?.iter().copied().collect();
    let wanted = with_siblings(machine, &cores);
    let flags = machine.text(FLAGS).unwrap_or_default();
    let flag = flags
        .split_once("--reserved-cpus=")
        .map(|(_, rest)| rest.split([' ', '"', '\n']).next().unwrap_or(rest));
    let reserved = value(text, "reservedSystemCPUs").or(flag).unwrap_or("");
    let list: CpuList = reserved.parse().map_err(|_| Gap::senseless(CONFIG, reserved))?;
    let open = wanted.without(&list);
    let all: CpuList = wanted.iter().chain(list.iter()).collect();
    Ok((!open.is_empty()).then(|| {
        Fault::warning(
            format!("the kubelet gives cores {open} to pods, and Stoker runs on them or beside them"),
            "a training job on the same cores makes the node late: slow acknowledgements, missed pings",
        )
        .fix(format!(
            "in {CONFIG}: cpuManagerPolicy: static, reservedSystemCPUs: \"{all}\"; rm /var/lib/kubelet/cpu_manager_state; \
             systemctl restart kubelet"
        ))
        .saw(CONFIG, format!("reservedSystemCPUs: {reserved}"))
    }))
}

fn memory(plan: &Plan, text: &str) -> Verdict {
    let cap = told(&plan.memory_bytes)?;
    // `memory:` below `systemReserved:`; what evicts pods has a key of its own.
    let below = text.split_once("systemReserved:").map(|(_, below)| below);
    let block = below.map(|below| {
        let mut lines = below.lines();
        let inline = lines.next().unwrap_or_default().replace(['{', '}', ','], "\n");
        let more: Vec<&str> = lines.take_while(|line| line.starts_with([' ', '\t'])).collect();
        format!("{inline}\n{}", more.join("\n"))
    });
    let written = block.as_deref().and_then(|block| value(block, "memory")).unwrap_or("0");
    let reserved = quantity(written).ok_or_else(|| Gap::senseless(CONFIG, written))?;
    Ok((reserved < cap).then(|| {
        Fault::warning(
            format!("the kubelet keeps {} from pods, the cap of Stoker alone is {}", human(reserved), human(cap)),
            "it promises memory to pods that the node uses; when all want theirs, the kernel kills one of them",
        )
        .fix(format!("in {CONFIG}: systemReserved: {{memory: {}Mi}}; systemctl restart kubelet", (cap + (1 << 30)) >> 20))
        .saw(CONFIG, format!("systemReserved memory: {written}"))
    }))
}

/// A quantity as Kubernetes writes it.
fn quantity(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_the_managers() {
        let cpu = |text: &str| cpu_policy(text).is_some();
        assert!(cpu("kind: KubeletConfiguration\n") && cpu("cpuManagerPolicy: none"));
        assert!(!cpu("cpuManagerPolicy: static   # ours") && !cpu("cpuManagerPolicy: \"static\""));
        // Without a machine nobody knows of a second NUMA node.
        assert!(topology_policy(&Machine::at("/nowhere"), "topologyManagerPolicy: none").is_none());
    }

    #[test]
    fn quantities() {
        for (text, expect) in [
            ("20Gi", Some(20 << 30)),
            ("512Mi", Some(512 << 20)),
            ("7", Some(7)),
            ("1G", Some(1_000_000_000)),
            ("x", None),
            ("9e99", None),
        ] {
            assert_eq!(quantity(text), expect, "{text}");
        }
    }
}
