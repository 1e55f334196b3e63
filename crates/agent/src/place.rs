//! The directory of a node: held by one process, with small files that only its owner may read.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
pub use crate::small_file::{read_small, write_small};
use crate::sys;

/// A directory that nobody else uses as long as this lives.
pub struct Place {
    dir: PathBuf,
    /// Its lock goes when the file is closed, however the process ends.
    _lock: File,
}

impl Place {
    /// Makes the directory if it is not there, and takes it.
    pub fn take(dir: &Path) -> Result<Place, Failure> {
        let dir = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        check_directory(&dir)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|e| Failure::io(dir.display(), &e))?;
        let path = dir.join("lock");
        let open =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut lock = open.map_err(|e| Failure::io(path.display(), &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(in_use(&dir, &lock)),
            Err(fs::TryLockError::Error(error)) => return Err(Failure::io(path.display(), &error)),
        }
        // Only for the words of those who come too late.
        let written =
            lock.set_len(0).and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()));
        written.map_err(|e| Failure::io(path.display(), &e))?;
        Ok(Place { dir, _lock: lock })
    }

    /// Takes the directory of a node that does not run, which must be one.
    pub fn of_node(dir: &Path) -> Result<Place, Failure> {
        if !dir.join("node.json").exists() {
            let cause = format!("{} is not the directory of a node", dir.display());
            return Err(Failure::new(cause).hint("name it with --dir, or the configuration with --config"));
        }
        Place::take(dir)
    }

    /// The directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// User and group that the directory belongs to.
    pub fn owner(&self) -> Result<(u32, u32), Failure> {
        let meta = fs::metadata(&self.dir).map_err(|e| Failure::io(self.dir.display(), &e))?;
        Ok((meta.uid(), meta.gid()))
    }

    /// A small file; none if it is not there.
    pub fn read(&self, name: &str) -> Result<Option<String>, Failure> {
        read_small(&self.dir.join(name))
    }

    /// Replaces a small file, durably and at once; only the owner can read it.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        write_small(&self.dir, name, text)
    }
}

impl Drop for Place {
    /// Whoever joins or restores as root does it for the user of the service: files of root would keep that from starting.
    fn drop(&mut self) {
        hand_over_as_root(&self.dir);
    }
}

/// Gives what root left in the directory of a node to the user of the node.
pub fn hand_over_as_root(dir: &Path) {
    if sys::user().0 != 0 {
        return;
    }
    if let Ok(owner) = fs::metadata(dir)
        && owner.uid() != 0
    {
        hand_over(dir, owner.uid(), owner.gid());
    }
}

/// Gives the files of root in a directory to another user. Best effort: whoever cannot use one says so. (D118)
fn hand_over(dir: &Path, user: u32, group: u32) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let open =
            File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(entry.path());
        let Ok(file) = open else { continue };
        // A file with a second name may be somebody else's, who is not to lose it by that.
        let is_ours =
            file.metadata().is_ok_and(|meta| meta.is_file() && meta.nlink() == 1 && meta.uid() == 0);
        if is_ours {
            let _ = std::os::unix::fs::fchown(&file, Some(user), Some(group));
        }
    }
}

/// Refuses what is there and is no directory.
pub fn check_directory(dir: &Path) -> Result<(), Failure> {
    match fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => Err(Failure::new(format!("{} is not a directory", dir.display()))
            .hint("--dir names the directory of a node; it is made if it is not there")),
        _ => Ok(()),
    }
}

fn in_use(dir: &Path, lock: &File) -> Failure {
    let mut pid = String::new();
    let _ = lock.take(20).read_to_string(&mut pid);
    let who = match pid.trim().parse::<u32>() {
        Ok(pid) => format!("another stoker (process {pid})"),
        Err(_) => "another stoker".into(),
    };
    Failure::new(format!("{} is in use by {who}", dir.display()))
        .hint("stop the other process, or choose another --dir")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(&dir.path().join("a/b")).unwrap();
        let Some(Failure::Failed { cause, .. }) = Place::take(place.dir()).err() else {
            panic!("taken twice")
        };
        assert!(cause.contains(&format!("process {}", std::process::id())), "{cause}");
        let again = place.dir().to_path_buf();
        drop(place);
        Place::take(&again).unwrap();
    }

    /// As root only, as on machines of operators.
    #[test]
    fn what_root_leaves_is_for_the_owner_of_the_directory() {
        if sys::user().0 != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let [linked, elsewhere] = ["linked", "elsewhere"].map(|name| other.path().join(name));
        fs::write(&linked, "").unwrap();
        fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1234), Some(5678)).unwrap();
        let place = Place::take(dir.path()).unwrap();
        place.write("cluster.keys", "secret").unwrap();
        fs::hard_link(&linked, dir.path().join("hard")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.path().join("soft")).unwrap();
        drop(place);
        let owner = |path: &Path| fs::metadata(path).map(|meta| (meta.uid(), meta.gid())).unwrap();
        assert_eq!(owner(&dir.path().join("cluster.keys")), (1234, 5678));
        assert_eq!(owner(&dir.path().join("lock")), (1234, 5678));
        assert_eq!((owner(&linked).0, owner(&elsewhere).0), (0, 0));
    }

    #[test]
    fn small_files_are_replaced_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(dir.path()).unwrap();
        assert_eq!(place.read("token").unwrap(), None);
        fs::write(dir.path().join("token.new"), "left by a crash").unwrap();
        for text in ["long text", "short"] {
            place.write("token", text).unwrap();
            assert_eq!(place.read("token").unwrap().as_deref(), Some(text));
        }
        let mode = fs::metadata(dir.path().join("token")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!dir.path().join("token.new").exists());
    }
}
