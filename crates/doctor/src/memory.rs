//! The cap on memory against what there is, and huge pages for buffers.

use crate::finding::{Fault, Notes, Verdict};
use crate::groups;
use crate::machine::{Gap, Machine, if_there};
use crate::plan::{Known, Plan};

const MEMINFO: &str = "/proc/meminfo";
const HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const HUGE_BYTES: u64 = 2 << 20;
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    notes.judge("memory.cap", "", cap(machine, plan));
    notes.judge("memory.group", "", group(machine, plan));
    notes.judge("memory.huge_pages", "", huge_pages(machine, plan));
}

/// What the plan says, or why it does not.
pub fn told<T: Copy>(value: &Known<T>) -> Result<T, Gap> {
    value.as_ref().copied().map_err(|why| Gap::Untold(why.clone()))
}

/// Bytes for people.
pub fn human(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes >= 10 << 30 => format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30)),
        _ if bytes >= 1 << 30 => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Memory of the machine.
pub fn total(machine: &Machine) -> Result<u64, Gap> {
    let text = machine.text(MEMINFO)?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib.saturating_mul(1024)).ok_or_else(|| Gap::senseless(MEMINFO, &text))
}

fn cap(machine: &Machine, plan: &Plan) -> Verdict {
    let (cap, total) = (told(&plan.memory_bytes)?, total(machine)?);
    let (cap_text, total_text) = (human(cap), human(total));
    let why = "the kernel kills the node, or a training job, when memory runs out; what is cached in the node must leave room";
    Ok(if cap > total {
        Some(Fault::error(format!("the cap of {cap_text} is more than the {total_text} that there are"), why))
    } else if cap > total / 4 * 3 {
        Some(Fault::warning(format!("the cap of {cap_text} is most of the {total_text} that there are"), why))
    } else {
        None
    }
    .map(|fault| {
        fault
            .fix("set [node] memory to at most half of the machine, in `stoker up` with --memory")
            .saw(MEMINFO, total_text)
    }))
}

fn group(machine: &Machine, plan: &Plan) -> Verdict {
    let cap = told(&plan.memory_bytes)?;
    let Some((limit, path)) = groups::memory_max(machine, plan.process)? else { return Ok(None) };
    let (cap_text, limit_text) = (human(cap), human(limit));
    // Buffers, cache and index are in the cap; stacks, code and pages of files that are written come on top.
    let fault = if cap > limit {
        Fault::error(
            format!("the cap of {cap_text} is more than the {limit_text} of the control group"),
            "the kernel kills the node once its cache is full",
        )
    } else if cap > limit / 8 * 7 {
        Fault::warning(
            format!("the cap of {cap_text} leaves little of the {limit_text} of the control group"),
            "what is not in the cap (stacks, connections, pages of files) counts for the group, too: the kernel may kill the node",
        )
    } else {
        return Ok(None);
    };
    let wanted = human(cap / 4 * 5);
    Ok(Some(
        fault
            .fix(format!("systemctl set-property stoker.service MemoryMax={}; in a pod resources.limits.memory of {wanted}", cap / 4 * 5))
            .saw(path.display(), limit),
    ))
}

fn huge_pages(machine: &Machine, plan: &Plan) -> Verdict {
    let pool = told(&plan.pool_bytes)?;
    // A node that runs has its pages; then what counts is how many there are.
    let file = if plan.process.is_some() { "nr_hugepages" } else { "free_hugepages" };
    let path = format!("{HUGE}/{file}");
    let pages: u64 = if_there(machine.value(&path))?.unwrap_or(0);
    if pages.saturating_mul(HUGE_BYTES) >= pool {
        return Ok(None);
    }
    let transparent = machine.word(TRANSPARENT)?;
    if !["[always]", "[madvise]", "[never]"].iter().any(|choice| transparent.contains(choice)) {
        return Err(Gap::senseless(TRANSPARENT, &transparent));
    }
    let what = format!("{pages} huge pages of 2 MiB for {} of buffers", human(pool));
    let wanted = pool.div_ceil(HUGE_BYTES);
    let fault = match transparent.contains("[always]") || transparent.contains("[madvise]") {
        true => Fault::info(
            what,
            "the kernel joins pages where it can instead; reserved ones are there for certain, also after weeks",
        ),
        false => Fault::warning(
            format!("{what}, and transparent ones are off"),
            "registered buffers lie in small pages: more work for each I/O, in the kernel and in the IOMMU",
        ),
    };
    Ok(Some(
        fault
            .fix(format!("sysctl -w vm.nr_hugepages={wanted} && echo vm.nr_hugepages={wanted} > /etc/sysctl.d/91-stoker.conf"))
            .saw(path, pages)
            .saw(TRANSPARENT, transparent),
    ))
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn bytes_are_readable() {
        let gib = 1 << 30;
        for (bytes, text) in [
            (0, "0 MiB"),
            (512 << 20, "512 MiB"),
            (8 * gib, "8 GiB"),
            (gib + (gib >> 1), "1.5 GiB"),
            (100 * gib + 7, "100 GiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
