//! What is tried on the machine: nothing that stays.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stoker_doctor::{Clock, Direct, DriveKind, Known, Plan};
use stoker_format::BLOCK;
use stoker_ring::{Buf, Settings};

use super::database;
use super::subject::Subject;
use crate::sys;

/// The plan of a node with everything that can be tried.
pub fn with_probes(subject: &Subject) -> Plan {
    let mut plan = subject.plan();
    plan.uring = match stoker_ring::uring_allowed(&Settings::default()) {
        Ok(()) => Ok(Ok(())),
        Err(error) => error.raw_os_error().map(Err).ok_or_else(|| error.to_string()),
    };
    plan.clock = match sys::clock_is_synchronised() {
        Ok(is_synchronised) => Ok(Clock { is_synchronised }),
        Err(error) => Err(format!("adjtimex: {error}")),
    };
    for drive in &mut plan.drives {
        drive.direct = match drive.kind {
            DriveKind::Device => read_device(&drive.path),
            DriveKind::Files => try_files(&drive.path, &subject.own_ring()),
        };
    }
    if let Some(url) = subject.database() {
        match database::ask(url) {
            Ok((database, offset_ms)) => {
                plan.offsets_ms.push(("PostgreSQL".to_owned(), offset_ms));
                plan.database = Some(Ok(database));
            }
            Err(why) => plan.database = Some(Err(why)),
        }
    }
    plan
}

/// A device holds bytes of somebody, so that it is only read.
fn read_device(path: &Path) -> Known<Direct> {
    let read = || -> io::Result<()> {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        file.read_exact_at(Buf::heap(BLOCK).as_mut_slice(), 0)
    };
    outcome(path, read())
}

/// Writes a block into a file beside the ring, and reads it back.
fn try_files(path: &Path, own_ring: &Path) -> Known<Direct> {
    // The drive in a node's own directory is made at its first start; others must be there.
    if !path.exists() && path != own_ring {
        return Ok(Direct::Absent);
    }
    let Some(folder) = path.ancestors().find(|folder| folder.is_dir()) else {
        return Err(format!("{} is in no directory", path.display()));
    };
    let scratch = Scratch(folder.join(format!(".stoker-doctor-{}", std::process::id())));
    outcome(path, scratch.try_block())
}

fn outcome(path: &Path, done: io::Result<()>) -> Known<Direct> {
    match done {
        Ok(()) => Ok(Direct::Works),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINVAL) => Ok(Direct::Refused),
            Some(libc::EACCES | libc::EPERM) => {
                Err(format!("{}: {error}; run it as the user of the node", path.display()))
            }
            Some(libc::ENOENT) => Ok(Direct::Absent),
            _ => Ok(Direct::Failed(error.to_string())),
        },
    }
}

/// A file that goes, however the attempt ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Scratch {
    fn try_block(&self) -> io::Result<()> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_DIRECT);
        let file = options.open(&self.0)?;
        let mut block = Buf::heap(BLOCK);
        block.as_mut_slice().fill(0x5a);
        file.write_all_at(block.as_slice(), 0)?;
        file.sync_data()?;
        let mut back = Buf::heap(BLOCK);
        file.read_exact_at(back.as_mut_slice(), 0)?;
        match back.as_slice() == block.as_slice() {
            true => Ok(()),
            false => Err(io::Error::other("what was read back is not what was written")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("node/ring");
        assert!(matches!(try_files(&own, &own), Ok(Direct::Works | Direct::Refused)));
        assert!(matches!(try_files(dir.path(), &own), Ok(Direct::Works | Direct::Refused)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_drive_that_is_not_mounted_is_a_fault() {
        let gone = Path::new("/no/such/drive");
        assert_eq!(try_files(gone, Path::new("/var/lib/stoker/ring")), Ok(Direct::Absent));
        assert_eq!(read_device(gone), Ok(Direct::Absent));
    }
}
