//! How much of the machine the process takes: cores and memory.

use std::fs;

use super::place::read_small;
use crate::failure::Failure;
use crate::{size, sys};

/// Memory by default.
const MEMORY_DEFAULT: u64 = 8 << 30;
/// Less cannot work.
const MEMORY_MIN: u64 = 256 << 20;

/// Cores that the process keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// How many.
    pub count: usize,
    /// How many there are.
    pub of: usize,
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} cores", self.count, self.of)
    }
}

/// Keeps this thread, and all that it starts later, to some of the cores.
pub fn keep_to(wanted: usize) -> Result<Cores, Failure> {
    let (chosen, of) = chosen(wanted)?;
    if chosen.len() < of {
        sys::keep_to_cores(&chosen).map_err(|e| Failure::io("keeping to some cores", &e))?;
    }
    Ok(Cores { count: chosen.len(), of })
}

/// The cores that a process would keep to, and how many there are.
pub fn chosen(wanted: usize) -> Result<(Vec<usize>, usize), Failure> {
    let allowed = sys::cores_allowed().map_err(|e| Failure::io("the cores of this process", &e))?;
    let of = allowed.len();
    if of <= wanted {
        return Ok((allowed, of));
    }
    let with_siblings: Vec<(usize, String)> = allowed.iter().map(|core| (*core, siblings(*core))).collect();
    Ok((choose(&with_siblings, wanted), of))
}

/// The hardware threads that share a core with this one, as text that is equal for all of them.
fn siblings(core: usize) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    fs::read_to_string(path).unwrap_or_else(|_| core.to_string())
}

/// The last ones, since the first ones serve interrupts; no two that share a core as long as there are others.
fn choose(allowed: &[(usize, String)], wanted: usize) -> Vec<usize> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut seen: Vec<&String> = Vec::new();
    for (core, siblings) in allowed.iter().rev() {
        if seen.contains(&siblings) {
            second.push(*core);
        } else {
            seen.push(siblings);
            first.push(*core);
        }
    }
    first.into_iter().chain(second).take(wanted).collect()
}

/// The cap on memory: what was asked for, or what suits the machine.
pub fn memory(wanted: Option<u64>) -> Result<u64, Failure> {
    memory_of(wanted, machine_memory())
}

fn memory_of(wanted: Option<u64>, machine: Option<u64>) -> Result<u64, Failure> {
    let machine = machine.unwrap_or(u64::MAX);
    let bytes = wanted.unwrap_or(MEMORY_DEFAULT.min(machine / 2).max(MEMORY_MIN));
    if bytes < MEMORY_MIN {
        let cause =
            format!("{} of memory are too little: at least {}", size::human(bytes), size::human(MEMORY_MIN));
        return Err(Failure::new(cause).hint("choose a larger --memory or `memory`"));
    }
    if bytes > machine {
        let (bytes, machine) = (size::human(bytes), size::human(machine));
        return Err(Failure::new(format!("{bytes} of memory are more than the {machine} that there are"))
            .hint("choose a smaller --memory or `memory`"));
    }
    Ok(bytes)
}

/// Memory of the machine, or of the control group that we are in.
fn machine_memory() -> Option<u64> {
    let text = read_small("/proc/meminfo".as_ref()).ok()??;
    let kib: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    let groups = read_small("/proc/self/cgroup".as_ref()).ok().flatten().unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    // A limit holds for all that is below it.
    let limits = std::path::Path::new(group).ancestors().filter_map(|group| {
        let text =
            fs::read_to_string(std::path::Path::new("/sys/fs/cgroup").join(group).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    Some(limits.fold(kib * 1024, u64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_suits_the_machine() {
        let gib = 1 << 30;
        for (wanted, machine, expect) in [
            (None, Some(64 * gib), Some(8 * gib)),
            (None, Some(6 * gib), Some(3 * gib)),
            (None, None, Some(8 * gib)),
            (Some(gib), Some(6 * gib), Some(gib)),
            (Some(7 * gib), Some(6 * gib), None),
            (Some(1 << 20), Some(6 * gib), None),
        ] {
            assert_eq!(memory_of(wanted, machine).ok(), expect, "{wanted:?} of {machine:?}");
        }
        assert!(machine_memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn cores_are_the_last_ones_and_whole() {
        let machine = |siblings: &[&str]| -> Vec<(usize, String)> {
            siblings.iter().enumerate().map(|(core, text)| (core, text.to_string())).collect()
        };
        // Siblings side by side, siblings in the second half, none.
        assert_eq!(choose(&machine(&["0-1", "0-1", "2-3", "2-3"]), 2), [3, 1]);
        assert_eq!(choose(&machine(&["0,2", "1,3", "0,2", "1,3"]), 2), [3, 2]);
        assert_eq!(choose(&machine(&["0", "1", "2", "3"]), 3), [3, 2, 1]);
        assert_eq!(choose(&machine(&["0-1", "0-1", "2-3", "2-3"]), 3), [3, 1, 2]);
    }
}
