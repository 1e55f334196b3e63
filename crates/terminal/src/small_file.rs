//! Small files that only their owner may read, replaced durably and at once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::failure::Failure;

/// Largest small file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Replaces a small file of a directory, durably and at once; only the owner can read it.
pub fn write_small(dir: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = dir.join(name);
    let new = dir.join(format!("{name}.new"));
    let write = || -> io::Result<()> {
        // One that a crash left may have another mode.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| Failure::io(path.display(), &e))
}

/// A file of a sane length; none if it is not there.
pub fn read_small(path: &Path) -> Result<Option<String>, Failure> {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(path.display(), &error)),
    }
}
