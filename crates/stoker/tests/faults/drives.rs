//! Drives that can be filled, throttled and broken: loop devices and directories on file systems of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::net::try_run;

/// Room beside a ring, for whoever shares the drive with it, and for segments that are replaced while a lease holds the old file.
const BESIDE_MIB: u64 = 256;

/// Where throttles are set.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

/// What a drive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory on a file system that can be filled.
    Directory,
    /// A block device whose medium can be taken away.
    Device,
    /// A directory on a file system on a block device, which can be throttled.
    FileSystem,
}

/// A drive on a file system of its own, which goes when this is dropped.
pub struct Drive {
    kind: Kind,
    place: PathBuf,
    device: Option<String>,
}

fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().map_err(|fault| fault.to_string())?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
        false => Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

impl Drive {
    /// Makes one that holds a ring of this size; says why it cannot be had.
    pub fn make(place: &Path, kind: Kind, ring_mib: u64) -> Result<Drive, String> {
        std::fs::create_dir_all(place).map_err(|fault| fault.to_string())?;
        let size = ring_mib + if kind == Kind::FileSystem { 3 * BESIDE_MIB } else { BESIDE_MIB };
        let at = place.to_str().ok_or("a path that is text")?;
        try_run("mount", &format!("-t tmpfs -o size={size}m none {at}"))?;
        let mut drive = Drive { kind, place: place.to_owned(), device: None };
        if kind != Kind::Directory {
            let medium = drive.medium();
            let file = std::fs::File::create(&medium).map_err(|fault| fault.to_string())?;
            // A file system needs some of it, and whoever measures the drive.
            let beside_mib = if kind == Kind::FileSystem { 2 * BESIDE_MIB } else { 0 };
            file.set_len((ring_mib + beside_mib) << 20).map_err(|fault| fault.to_string())?;
            drive.device = Some(output("losetup", &["-f", "--show", medium.to_str().unwrap()])?);
        }
        if kind == Kind::FileSystem {
            let (device, top) = (drive.device.clone().unwrap_or_default(), drive.top());
            output("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device])?;
            std::fs::create_dir(&top).map_err(|fault| fault.to_string())?;
            output("mount", &[&device, top.to_str().ok_or("a path that is text")?])?;
        }
        Ok(drive)
    }

    fn medium(&self) -> PathBuf {
        self.place.join("medium")
    }

    /// The directory of a file system of its own.
    fn top(&self) -> PathBuf {
        self.place.join("top")
    }

    /// What a node is told.
    pub fn path(&self) -> String {
        let text = |path: PathBuf| path.to_str().expect("text").to_owned();
        match (self.kind, &self.device) {
            (Kind::Device, Some(device)) => device.clone(),
            (Kind::FileSystem, _) => text(self.top()),
            _ => text(self.place.clone()),
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Somebody else takes all room that is left on the file system.
    pub fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.place.join("somebody")).unwrap();
        while file.write_all(&[1; 64 << 10]).is_ok() {}
    }

    pub fn free(&self) {
        std::fs::remove_file(self.place.join("somebody")).unwrap();
    }

    /// The medium is gone: reads and writes fail.
    pub fn break_down(&self) {
        let file = std::fs::File::options().write(true).open(self.medium()).unwrap();
        let shrink = format!("-o remount,size=4k {}", self.place.to_str().unwrap());
        // Writes that are under way make it longer again.
        let mut last = Ok(());
        for _ in 0..1_000 {
            file.set_len(0).unwrap();
            last = try_run("mount", &shrink);
            if last.is_ok() {
                return;
            }
        }
        last.unwrap();
    }

    /// A process reads and writes at most so many times a second; says why that cannot be had.
    pub fn throttle(&self, pid: u32, ops_per_s: u64) -> Result<Throttle, String> {
        let device = self.device.as_ref().ok_or("it is no block device")?;
        let name = device.trim_start_matches("/dev/");
        let number =
            std::fs::read_to_string(format!("/sys/block/{name}/dev")).map_err(|fault| fault.to_string())?;
        let group = PathBuf::from(format!("{BLKIO}/stoker-faults-{pid}"));
        std::fs::create_dir_all(&group).map_err(|fault| format!("{}: {fault}", group.display()))?;
        let throttle = Throttle { group, pid };
        for way in ["read", "write"] {
            let rule = format!("{} {ops_per_s}", number.trim());
            throttle.write(&format!("blkio.throttle.{way}_iops_device"), &rule)?;
        }
        throttle.write("cgroup.procs", &pid.to_string())?;
        Ok(throttle)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if self.kind == Kind::FileSystem {
            let _ = output("umount", &["-l", self.top().to_str().unwrap_or_default()]);
        }
        if let Some(device) = &self.device {
            let _ = output("losetup", &["-d", device]);
        }
        let _ = output("umount", &["-l", self.place.to_str().unwrap_or_default()]);
    }
}

/// A process in a group of its own whose drive is slow, until this is dropped.
pub struct Throttle {
    group: PathBuf,
    pid: u32,
}

impl Throttle {
    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.group.join(name);
        std::fs::write(&path, text).map_err(|fault| format!("{}: {fault}", path.display()))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{BLKIO}/cgroup.procs"), self.pid.to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}
