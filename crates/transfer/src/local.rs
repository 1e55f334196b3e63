//! Files on this machine that are being made: under a name of their own until they are whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use stoker_store::Attributes;

/// Longest name in most file systems.
const NAME_LEN_MAX: usize = 255;

/// A file that is not whole yet; dropped, it is gone.
pub struct PartFile {
    file: File,
    target: PathBuf,
    /// None if the target itself is written: a device or a pipe.
    part: Option<PathBuf>,
}

impl PartFile {
    /// Begins a file that will be at `target`.
    pub fn create(target: &Path) -> io::Result<PartFile> {
        let target_path = target.to_owned();
        if fs::metadata(target).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
            let file = OpenOptions::new().write(true).open(target)?;
            return Ok(PartFile { file, target: target_path, part: None });
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let suffix = format!(".{}-{number}.part", std::process::id());
        let name = target.file_name().unwrap_or(OsStr::new("file")).as_bytes();
        let kept = &name[..name.len().min(NAME_LEN_MAX - suffix.len() - 1)];
        let part = target.with_file_name(OsString::from_vec([b".", kept, suffix.as_bytes()].concat()));
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        Ok(PartFile { file, target: target_path, part: Some(part) })
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it its name. Mode and time of the attributes are set where they are asked for.
    pub fn finish(mut self, preserve: Option<&Attributes>) -> io::Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        if let Some(attributes) = preserve {
            if let Some(mode) = attributes.mode {
                // Never the bits that lend somebody's rights.
                self.file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            }
            if let Some(time) = attributes.mtime_ns.and_then(|ns| u64::try_from(ns).ok()) {
                self.file
                    .set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_nanos(time)))?;
            }
        }
        fs::rename(part, &self.target)?;
        self.part = None;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = fs::remove_file(part);
        }
    }
}

/// The path below a folder that a key stands for. Keys that no file can have, or that lead out of the folder, are
/// refused with the reason.
pub fn path_of(folder: &Path, relative: &[u8]) -> Result<PathBuf, String> {
    let refuse =
        |why: &str| Err(format!("{why}, which no file here can have; get it by itself under another name"));
    for part in relative.split(|byte| *byte == b'/') {
        match part {
            b"" => return refuse("the key has an empty part"),
            b"." | b".." => return refuse("the key has a part `.` or `..`"),
            part if part.len() > NAME_LEN_MAX => return refuse("the key has a part of more than 255 bytes"),
            _ => {}
        }
    }
    let path = Path::new(OsStr::from_bytes(relative));
    // Whatever the loop above forgot.
    assert!(
        path.components().all(|part| matches!(part, Component::Normal(_))),
        "a key leads out of its folder"
    );
    Ok(folder.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_below_their_folder() {
        let folder = Path::new("out");
        assert_eq!(path_of(folder, b"a/b"), Ok("out/a/b".into()));
        assert_eq!(path_of(folder, b"a\xff\n"), Ok(folder.join(OsStr::from_bytes(b"a\xff\n"))));
        let long = [b'x'; 256];
        for key in [&b""[..], b"/etc", b"a//b", b"a/", b"..", b"a/../../b", b"./a", &long] {
            assert!(path_of(folder, key).is_err(), "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("n".repeat(255));
        fs::write(&target, "old").unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let mut part = PartFile::create(&target).unwrap();
        io::Write::write_all(part.file(), b"half").unwrap();
        assert_eq!(names(), 2);
        drop(part);
        assert_eq!((names(), fs::read(&target).unwrap()), (1, b"old".to_vec()));
        let mut part = PartFile::create(&target).unwrap();
        io::Write::write_all(part.file(), b"new").unwrap();
        let attributes =
            Attributes { mode: Some(0o104_640), mtime_ns: Some(1_500_000_000_000), ..Attributes::default() };
        part.finish(Some(&attributes)).unwrap();
        assert_eq!((names(), fs::read(&target).unwrap()), (1, b"new".to_vec()));
        let meta = fs::metadata(&target).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
        assert_eq!(meta.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs(), 1500);
    }
}
