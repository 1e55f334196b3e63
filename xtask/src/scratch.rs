//! Where tests put their temporary files: in memory, if there is plenty. (D192)
//!
//! Some two hundred nodes with rings of their own write a hundred gigabytes that are gone a moment later, and a small machine would wait
//! for its drive most of the time. Tests that are about a drive put their files beside the test programs instead.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory, on every Linux.
const MEMORY: &str = "/dev/shm";

/// Names of folders there, with the number of the process that made them.
const PREFIX: &str = "stoker-tests-";

/// What has to be free there, and what the machine has to have left beside what runs: the tests need half of it.
const ROOM_KIB: u64 = 12 << 20;
const LEFT_KIB: u64 = 16 << 20;

/// A folder that goes with this value; none where memory is short, and the usual place is taken.
pub struct Scratch(Option<PathBuf>);

impl Scratch {
    pub fn new() -> Scratch {
        remove_old(Path::new(MEMORY));
        let is_offered = is_suitable(&read("/proc/mounts"))
            && available_kib(&read("/proc/meminfo")) >= LEFT_KIB
            && free_kib(MEMORY) >= ROOM_KIB;
        let folder = is_offered.then(|| Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id())));
        Scratch(folder.filter(|folder| std::fs::create_dir(folder).is_ok()))
    }

    /// Tells a program of it.
    pub fn offer(&self, command: &mut Command) {
        if let Some(folder) = &self.0 {
            command.env("TMPDIR", folder);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Folders of gates that were killed.
fn remove_old(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it is in memory, and programs in it may be run.
fn is_suitable(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next(), fields.next(), fields.next());
        let has = |option: &str| options.is_some_and(|options| options.split(',').any(|one| one == option));
        place == Some(MEMORY) && kind == Some("tmpfs") && has("rw") && !has("noexec")
    })
}

fn available_kib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

fn free_kib(place: &str) -> u64 {
    let said = Command::new("df").args(["-Pk", place]).output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    let line = said.lines().nth(1).unwrap_or_default();
    line.split_whitespace().nth(3).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_only_where_programs_may_run_in_it() {
        assert!(is_suitable("proc /proc proc rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n"));
        for other in [
            "",
            "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,size=65536k 0 0",
            "shm /dev/shm tmpfs ro 0 0",
            "/dev/vda /dev/shm ext4 rw 0 0",
        ] {
            assert!(!is_suitable(other), "{other}");
        }
    }

    #[test]
    fn free_memory_is_read() {
        assert_eq!(available_kib("MemTotal: 24000000 kB\nMemAvailable:   17000001 kB\n"), 17_000_001);
        assert_eq!(available_kib("MemTotal: 24000000 kB"), 0);
    }

    #[test]
    fn folders_of_gates_that_are_gone_are_removed() {
        let place = std::env::temp_dir().join(format!("scratch-test-{}", std::process::id()));
        let (own, old) =
            (place.join(format!("{PREFIX}{}", std::process::id())), place.join(format!("{PREFIX}0")));
        for folder in [&own, &old] {
            std::fs::create_dir_all(folder).unwrap();
        }
        remove_old(&place);
        assert!(own.exists() && !old.exists());
        std::fs::remove_dir_all(place).unwrap();
    }
}
