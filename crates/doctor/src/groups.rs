//! Control groups: the limits that hold for a process, whichever of the two layouts the machine has.

use std::path::{Path, PathBuf};

use crate::machine::{Gap, Machine, if_there};

/// Groups above a process that are looked at.
const DEPTH_MAX: usize = 64;

/// The process that is meant, as `/proc` names it.
pub fn who(process: Option<u32>) -> String {
    process.map_or("self".to_owned(), |process| process.to_string())
}

/// Directories of the groups of a process for one controller, the innermost first; with the layout.
pub fn above(
    machine: &Machine,
    process: Option<u32>,
    controller: &str,
) -> Result<(Layout, Vec<PathBuf>), Gap> {
    let path = format!("/proc/{}/cgroup", who(process));
    let text = machine.text(&path)?;
    // `4:memory:/a/b` in the old layout, `0::/a/b` in the new one.
    let groups = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let old = groups().find(|(names, _)| names.split(',').any(|name| name == controller));
    let (layout, mount, group) = match old {
        Some((_, group)) => (Layout::Old, Path::new("/sys/fs/cgroup").join(controller), group),
        None => match groups().find(|(names, _)| names.is_empty()) {
            Some((_, group)) => (Layout::New, PathBuf::from("/sys/fs/cgroup"), group),
            None => return Err(Gap::senseless(path, &text)),
        },
    };
    // Inside a container the path may be that of the host, which is not seen; the root of what is seen is our own group then.
    let group = Path::new(group.trim_start_matches('/'));
    let above = group.ancestors().take(DEPTH_MAX).map(|group| mount.join(group));
    Ok((layout, above.filter(|group| machine.has(group)).collect()))
}

/// Version 1 or 2 of control groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// A tree for each controller.
    Old,
    /// One tree.
    New,
}

/// The smallest limit on memory, with the file that says so; none if there is no limit.
pub fn memory_max(machine: &Machine, process: Option<u32>) -> Result<Option<(u64, PathBuf)>, Gap> {
    let (layout, groups) = above(machine, process, "memory")?;
    let file = if layout == Layout::Old { "memory.limit_in_bytes" } else { "memory.max" };
    let mut least: Option<(u64, PathBuf)> = None;
    for path in groups.iter().map(|group| group.join(file)) {
        let Some(text) = if_there(machine.word(&path))? else { continue };
        if text == "max" {
            continue;
        }
        let bytes: u64 = text.parse().map_err(|_| Gap::senseless(&path, &text))?;
        // The old layout writes "no limit" as the largest number of pages.
        let is_limit = bytes < 1 << 62;
        if is_limit && least.as_ref().is_none_or(|(other, _)| bytes < *other) {
            least = Some((bytes, path));
        }
    }
    Ok(least)
}

/// The smallest share of processors in thousandths of one, with the file that says so.
pub fn cpu_millis_max(machine: &Machine, process: Option<u32>) -> Result<Option<(u64, PathBuf)>, Gap> {
    let (layout, groups) = above(machine, process, "cpu")?;
    let mut least: Option<(u64, PathBuf)> = None;
    for group in &groups {
        let (path, text) = match layout {
            Layout::New => (group.join("cpu.max"), if_there(machine.word(group.join("cpu.max")))?),
            Layout::Old => {
                let quota = if_there(machine.word(group.join("cpu.cfs_quota_us")))?;
                let period = if_there(machine.word(group.join("cpu.cfs_period_us")))?;
                (
                    group.join("cpu.cfs_quota_us"),
                    quota.zip(period).map(|(quota, period)| format!("{quota} {period}")),
                )
            }
        };
        let Some(text) = text else { continue };
        let (quota, period) = text.split_once(' ').unwrap_or((&text, "100000"));
        if quota == "max" || quota.starts_with('-') {
            continue;
        }
        let number = |part: &str| part.parse::<u64>().ok().filter(|number| *number > 0);
        let (Some(quota), Some(period)) = (number(quota), number(period)) else {
            return Err(Gap::senseless(path, &text));
        };
        let millis = quota.saturating_mul(1_000) / period;
        if least.as_ref().is_none_or(|(other, _)| millis < *other) {
            least = Some((millis, path));
        }
    }
    Ok(least)
}
