//! Where figures were measured; a figure without it is none.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

/// Kernel, processors and file system.
pub fn describe(dir: &Path) -> Value {
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpus": thread::available_parallelism().map_or(0, usize::from),
        "cpu": cpu_model(),
        "filesystem": filesystem_of(dir),
    })
}

/// What else the machine had to do.
pub fn load_average() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(String::new(), |(_, name)| name.trim().to_owned())
}

/// Type of the file system with the longest mount point that holds the directory.
fn filesystem_of(dir: &Path) -> String {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let mounts = read("/proc/self/mounts");
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let best = fields.filter(|(point, _)| dir.starts_with(point)).max_by_key(|(point, _)| point.len());
    best.map_or(String::new(), |(_, kind)| kind.to_owned())
}
