//! Whether Kubernetes leaves a node its cores and its memory.

use crate::cpus::CpuList;
use crate::finding::{Fault, Notes, Verdict};
use crate::groups::who;
use crate::machine::{Gap, Machine};
use crate::memory::{human, told};
use crate::plan::Plan;
use crate::reservation::with_siblings;

const CONFIG: &str = "/var/lib/kubelet/config.yaml";

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
