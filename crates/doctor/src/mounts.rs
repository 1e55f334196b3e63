//! What is mounted where, as `/proc/self/mountinfo` tells it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::machine::{Gap, Machine};

/// Mounts that are looked at; a node with very many containers has some thousands.
const MOUNTS_MAX: usize = 65_536;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub at: PathBuf,
    /// `ext4`, `xfs` and so on.
    pub kind: String,
    /// The device, a host and directory, or a word.
    pub source: String,
    /// Major and minor number of the device.
    pub device: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

impl Mount {
    /// Whether it has that option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|other| other == option)
    }
}

/// All mounts, those that hide others last.
pub struct Mounts(Result<Vec<Mount>, Gap>);

impl Mounts {
    /// As a process sees them; without one, as we do.
    pub fn read(machine: &Machine, process: Option<u32>) -> Mounts {
        let of = |who: &str| machine.text(format!("/proc/{who}/mountinfo"));
        let text = match process.map(|process| of(&process.to_string())) {
            Some(Ok(text)) => Ok(text),
            _ => of("self"),
        };
        Mounts(text.map(|text| text.lines().take(MOUNTS_MAX).filter_map(mount).collect()))
    }

    /// The mount that a path lies on.
    pub fn of(&self, machine: &Machine, path: &Path) -> Result<&Mount, Gap> {
        let real = machine.real(path).unwrap_or_else(|_| path.to_owned());
        let mounts = self.0.as_ref().map_err(Gap::clone)?;
        let below = mounts.iter().filter(|mount| real.starts_with(&mount.at));
        let last = below.max_by_key(|mount| mount.at.components().count());
        last.ok_or_else(|| Gap::Untold(format!("no mount holds {}", path.display())))
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn mount(line: &str) -> Option<Mount> {
    let (place, rest) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let device = place.nth(2)?.to_owned();
    let at = unescape(place.nth(1)?);
    let own = place.next()?;
    let mut rest = rest.split(' ');
    let kind = rest.next()?.to_owned();
    let source = unescape(rest.next()?).to_string_lossy().into_owned();
    let options = own.split(',').chain(rest.next().unwrap_or("").split(','));
    let mut options: Vec<String> = options.filter(|option| !option.is_empty()).map(str::to_owned).collect();
    // Either half can make a mount read-only; `rw` of the other half says nothing then.
    if options.iter().any(|option| option == "ro") {
        options.retain(|option| option != "rw");
    }
    Some(Mount { at, kind, source, device, options })
}

/// The kernel writes space, tab, newline and backslash in octal.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| bytes[at] == b'\\') {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_mounts() {
        let line = "36 35 259:2 /sub /mnt/with\\040space rw,noatime master:1 shared:2 - xfs /dev/nvme0n1p1 rw,ro,nobarrier";
        let mount = mount(line).unwrap();
        assert_eq!(mount.at, Path::new("/mnt/with space"));
        assert_eq!((mount.kind.as_str(), mount.device.as_str()), ("xfs", "259:2"));
        assert!(mount.has("noatime") && mount.has("nobarrier") && mount.has("ro") && !mount.has("rw"));
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", " - ", "1 2 3", "1 2 3 4 5 - ext4", "1 2 3:4 / /a rw - ext4", "\\ - \\"] {
            assert_eq!(mount(line), None, "{line}");
        }
    }
}
