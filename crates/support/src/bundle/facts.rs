//! Facts about the machine, as the kernel tells them.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::clock;

/// Most bytes of a log or of a file of the kernel.
const BYTES_MAX: usize = 4 << 20;

/// Lines of the journal.
const JOURNAL_LINES: &str = "5000";

/// Settings of a block device that matter to a ring.
const QUEUE: [&str; 10] = [
    "rotational",
    "scheduler",
    "logical_block_size",
    "physical_block_size",
    "write_cache",
    "fua",
    "nr_requests",
    "max_sectors_kb",
    "io_poll",
    "read_ahead_kb",
];

fn read(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes[..bytes.len().min(BYTES_MAX)]).into_owned())
}

/// Files with what the kernel says.
pub fn machine(dir: Option<&Path>) -> Vec<(String, String)> {
    let files =
        ["version", "meminfo", "cpuinfo", "loadavg", "diskstats", "mounts", "self/limits", "self/cgroup"];
    let mut found: Vec<(String, String)> = files
        .iter()
        .filter_map(|name| {
            let path = if *name == "mounts" { "self/mounts" } else { name };
            let text = read(&Path::new("/proc").join(path))?;
            Some((format!("machine/{}.txt", name.replace('/', "-")), text))
        })
        .collect();
    found.push(("machine/drives.txt".into(), drives()));
    let mut kernel = String::new();
    for name in
        ["vm/dirty_ratio", "vm/nr_hugepages", "vm/swappiness", "fs/aio-max-nr", "kernel/io_uring_disabled"]
    {
        if let Some(value) = read(&Path::new("/proc/sys").join(name)) {
            let _ = writeln!(kernel, "{name} {}", value.trim());
        }
    }
    found.push(("machine/kernel.txt".into(), kernel));
    if let Some((free, total)) = dir.and_then(|dir| stoker_ring::disk_space(dir).ok()) {
        found.push(("machine/space.txt".into(), format!("free {free}\ntotal {total}\n")));
    }
    found
}

fn drives() -> String {
    let mut text = String::new();
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return text };
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let base = Path::new("/sys/block").join(&name);
        let value = |file: &str| read(&base.join(file)).map(|text| text.trim().to_owned());
        let _ = write!(text, "{} sectors={}", name.to_string_lossy(), value("size").unwrap_or_default());
        for file in ["device/model", "device/firmware_rev"] {
            let _ =
                write!(text, " {}={:?}", file.trim_start_matches("device/"), value(file).unwrap_or_default());
        }
        for file in QUEUE {
            let _ = write!(text, " {file}={:?}", value(&format!("queue/{file}")).unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

/// Names, sizes, modes and times of what is in a directory; never what is in a file.
pub fn listing(dir: &Path) -> String {
    let mut text = String::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return text };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(meta) = entry.metadata() else { continue };
        let modified = clock::rfc3339(u64::try_from(meta.mtime()).unwrap_or(0) * 1_000);
        let name = entry.file_name();
        let _ = writeln!(text, "{:o} {} {modified} {}", meta.mode(), meta.len(), name.to_string_lossy());
    }
    text
}

/// Names of variables that could matter; not their values.
pub fn environment_names(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    const PREFIXES: [&str; 5] = ["STOKER_", "AWS_", "GOOGLE_", "AZURE_", "RUST_"];
    let mut names: Vec<String> = variables
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    names.sort();
    names
}

/// The end of a file, if it is there.
pub fn end_of(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    Some(bytes[bytes.len().saturating_sub(BYTES_MAX)..].to_vec())
}

/// The end of the log: of a file, or of the journal. Also says why there is none.
pub fn log(file: Option<&Path>) -> (Vec<u8>, Option<String>) {
    if let Some(path) = file {
        return match std::fs::read(path) {
            Ok(bytes) => (bytes[bytes.len().saturating_sub(BYTES_MAX)..].to_vec(), None),
            Err(error) => (Vec::new(), Some(format!("{}: {error}", path.display()))),
        };
    }
    let journal = Command::new("journalctl")
        .args(["--no-pager", "--output=short-iso", "--unit=stoker*", "--lines", JOURNAL_LINES])
        .output();
    match journal {
        Ok(output) if output.status.success() => {
            let bytes = output.stdout;
            (bytes[bytes.len().saturating_sub(BYTES_MAX)..].to_vec(), None)
        }
        _ => (Vec::new(), Some("no journal can be read; give the node's log with --log".into())),
    }
}
