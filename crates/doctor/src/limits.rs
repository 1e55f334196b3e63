//! Limits of the process: descriptors, locked memory, share of the processors.

use crate::cpus::CpuList;
use crate::finding::{Fault, Notes, Verdict};
use crate::groups::{self, who};
use crate::machine::{Gap, Machine};
use crate::memory::{human, told};
use crate::plan::Plan;

/// The capability that locks as much memory as it likes.
const CAP_IPC_LOCK: u32 = 14;

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    notes.judge("limits.descriptors", "", descriptors(machine, plan));
    notes.judge("limits.locked_memory", "", locked_memory(machine, plan));
    notes.judge("limits.cpu_quota", "", cpu_quota(machine, plan));
    notes.judge("limits.cores", "", cores(machine, plan));
}

/// The soft limit of that name; none if there is no limit.
fn limit(machine: &Machine, plan: &Plan, name: &str) -> Result<Option<u64>, Gap> {
    let path = format!("/proc/{}/limits", who(plan.process));
    let text = machine.text(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value =
        line.and_then(|line| line.split_whitespace().next()).ok_or_else(|| Gap::senseless(&path, &text))?;
    match value {
        "unlimited" => Ok(None),
        value => value.parse().map(Some).map_err(|_| Gap::senseless(&path, value)),
    }
}

/// A field of the process's status.
fn status(machine: &Machine, plan: &Plan, name: &str) -> Result<String, Gap> {
    let path = format!("/proc/{}/status", who(plan.process));
    let text = machine.text(&path)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned()).ok_or_else(|| Gap::senseless(path, &text))
}

fn descriptors(machine: &Machine, plan: &Plan) -> Verdict {
    let needed = told(&plan.descriptors)?;
    let Some(limit) = limit(machine, plan, "Max open files")? else { return Ok(None) };
    Ok((limit < needed).then(|| {
        Fault::warning(
            format!("{limit} open files are allowed, up to {needed} can be needed"),
            "segments and connections are descriptors: at the limit new clients are turned away",
        )
        .fix(format!("systemctl edit stoker: [Service] LimitNOFILE={}", needed.next_power_of_two()))
        .saw(format!("/proc/{}/limits", who(plan.process)), format!("Max open files {limit}"))
    }))
}

fn locked_memory(machine: &Machine, plan: &Plan) -> Verdict {
    let needed = told(&plan.pool_bytes)?;
    let Some(limit) = limit(machine, plan, "Max locked memory")? else { return Ok(None) };
    if limit >= needed {
        return Ok(None);
    }
    let capabilities = status(machine, plan, "CapEff")?;
    let bits = u64::from_str_radix(&capabilities, 16).map_err(|_| Gap::senseless("CapEff", &capabilities))?;
    if bits >> CAP_IPC_LOCK & 1 == 1 {
        return Ok(None);
    }
    Ok(Some(
        Fault::warning(
            format!("{} of memory may be locked, buffers are {}", human(limit), human(needed)),
            "buffers cannot be registered with io_uring: the kernel looks their pages up again for each I/O",
        )
        .fix(
            "systemctl edit stoker: [Service] LimitMEMLOCK=infinity (in a container the capability IPC_LOCK)",
        )
        .saw(format!("/proc/{}/limits", who(plan.process)), format!("Max locked memory {limit}")),
    ))
}

fn cpu_quota(machine: &Machine, plan: &Plan) -> Verdict {
    let cores = plan.cores.as_ref().map_err(|why| Gap::Untold(why.clone()))?.len() as u64;
    let Some((millis, path)) = groups::cpu_millis_max(machine, plan.process)? else { return Ok(None) };
    Ok((millis < cores * 1_000).then(|| {
        Fault::warning(
            format!("the control group has {}.{:03} processors, {cores} cores are configured", millis / 1_000, millis % 1_000),
            "once the share of a period is used up all threads stand still until the next: a tail of up to 100 ms, and missed pings",
        )
        .fix("remove the CPU limit and reserve cores instead (in a pod: whole CPUs, requests equal to limits, static CPU manager)")
        .saw(path.display(), format!("{millis} thousandths"))
    }))
}

fn cores(machine: &Machine, plan: &Plan) -> Verdict {
    let cores: CpuList =
        plan.cores.as_ref().map_err(|why| Gap::Untold(why.clone()))?.iter().copied().collect();
    let text = status(machine, plan, "Cpus_allowed_list")?;
    let allowed: CpuList = text.parse().map_err(|_| Gap::senseless("Cpus_allowed_list", &text))?;
    let refused = cores.without(&allowed);
    Ok((!refused.is_empty()).then(|| {
        Fault::warning(
            format!("cores {refused} are configured, and the process may not run on them"),
            "its threads crowd on the cores that are left",
        )
        .fix(format!("systemctl set-property stoker.service AllowedCPUs={cores}"))
        .saw(format!("/proc/{}/status", who(plan.process)), format!("Cpus_allowed_list {allowed}"))
    }))
}
