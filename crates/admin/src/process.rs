//! What the kernel says about this process, under the names that all Prometheus clients use.

use std::fs;

use stoker_store::Counter;

/// Ticks per second of the times in `/proc`: a constant of the kernel's interface on every platform that we build for.
const TICKS_PER_S: f64 = 100.0;

/// `process_*`, as far as `/proc` tells.
pub fn counters() -> Vec<Counter> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fds = fs::read_dir("/proc/self/fd").map(|entries| entries.count() as f64).ok();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let rows = [
        ("resident_memory_bytes", "Memory that is in RAM.", kib(&status, "VmRSS:").map(|kib| kib * 1024.0)),
        (
            "resident_memory_max_bytes",
            "Most memory that was in RAM at once.",
            kib(&status, "VmHWM:").map(|kib| kib * 1024.0),
        ),
        ("threads", "Threads.", kib(&status, "Threads:")),
        ("cpu_seconds_total", "User and system time of all threads.", cpu_seconds(&stat)),
        ("start_time_seconds", "When the process began, in seconds since 1970.", start_seconds(&stat, &boot)),
        // One of them is the directory that is being read.
        ("open_fds", "Open file descriptors.", fds.map(|fds| fds - 1.0)),
        ("max_fds", "Most file descriptors that may be open.", fds_max(&limits)),
    ];
    let row = |(name, help, value): (&str, &str, Option<f64>)| {
        value.map(|value| Counter {
            name: format!("process_{name}"),
            help: help.into(),
            labels: Vec::new(),
            value,
        })
    };
    rows.into_iter().filter_map(row).collect()
}

/// The number behind a name in `/proc/self/status`.
fn kib(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// A field of `/proc/self/stat` by its number in proc(5). The name of the program, field 2, may hold anything, also
/// spaces and parentheses, but no field behind it does.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let behind = stat.rsplit_once(')')?.1;
    behind.split_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_S)
}

fn start_seconds(stat: &str, boot: &str) -> Option<f64> {
    let booted: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + stat_field(stat, 22)? / TICKS_PER_S)
}

fn fds_max(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_cannot_move_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 1000 9 9";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(start_seconds(stat, "cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_010.0));
        assert_eq!(cpu_seconds("no such file"), None);
    }

    #[test]
    fn this_process_is_described() {
        let counters = counters();
        for name in [
            "process_resident_memory_bytes",
            "process_resident_memory_max_bytes",
            "process_threads",
            "process_start_time_seconds",
            "process_open_fds",
            "process_max_fds",
        ] {
            let counter = counters.iter().find(|counter| counter.name == name);
            assert!(counter.is_some_and(|counter| counter.value > 0.0), "{name} in {counters:?}");
        }
        assert_eq!(counters.len(), 7);
    }
}
