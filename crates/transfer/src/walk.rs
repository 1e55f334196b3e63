//! The files below a folder on this machine.
//!
//! Links to files are followed, links to folders are not: so there are no loops. Folders without files have no key.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::{FileError, Item, Named, source};
use crate::failure::Failure;
use crate::show;

/// Folders in folders that are entered; deeper keys would be too long anyway.
const DEPTH_MAX: usize = 512;

/// A file.
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// Its path below the folder, with slashes.
    pub relative: Vec<u8>,
    /// Bytes of it.
    pub size: u64,
}

impl Named for Found {
    fn name(&self) -> String {
        show::name(&self.relative)
    }
}

/// The files below a folder, in the order of their names.
pub fn files(folder: PathBuf) -> mpsc::Receiver<Item<Found>> {
    source(move |items| async move {
        let walk = tokio::task::spawn_blocking(move || {
            let _ = visit(&folder, &mut |item| items.blocking_send(item).is_ok());
        });
        let _ = walk.await;
    })
}

/// Bytes of all files below a folder, as far as they can be seen.
pub fn bytes(folder: &Path) -> u64 {
    let mut total = 0;
    let _ = visit(folder, &mut |item| {
        total += item.map_or(0, |found| found.size);
        true
    });
    total
}

/// Nobody wants more items.
struct Enough;

fn visit(folder: &Path, give: &mut impl FnMut(Item<Found>) -> bool) -> Result<(), Enough> {
    let mut stack = vec![entries(folder, &[], give)?];
    while let Some(level) = stack.last_mut() {
        let Some((name, prefix)) = level.pop() else {
            stack.pop();
            continue;
        };
        let relative = [&prefix[..], name.as_bytes()].concat();
        let path = folder.join(OsString::from_vec(relative.clone()));
        let failed = |why: String| Err(FileError { name: path.display().to_string(), why });
        let link = fs::symlink_metadata(&path);
        let item = match link.and_then(|link| Ok((link.is_symlink(), fs::metadata(&path)?))) {
            Ok((false, meta)) if meta.is_dir() => {
                if stack.len() >= DEPTH_MAX {
                    failed(format!("more than {DEPTH_MAX} folders deep"))
                } else {
                    let below = [&relative[..], b"/"].concat();
                    let next = entries(&path, &below, give)?;
                    stack.push(next);
                    continue;
                }
            }
            Ok((true, meta)) if meta.is_dir() => {
                failed("a link to a folder; copy that folder by itself".into())
            }
            Ok((_, meta)) if meta.is_file() => Ok(Found { relative, size: meta.len(), path }),
            Ok(_) => failed("neither a file nor a folder".into()),
            Err(error) => failed(error.to_string()),
        };
        if !give(item) {
            return Err(Enough);
        }
    }
    Ok(())
}

/// Names in a folder, last first, each with the path in front of it.
fn entries(
    folder: &Path,
    prefix: &[u8],
    give: &mut impl FnMut(Item<Found>) -> bool,
) -> Result<Vec<(OsString, Vec<u8>)>, Enough> {
    let read = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<OsString> = match read {
        Ok(names) => names,
        Err(error) => {
            let failure = Failure::io(folder.display(), &error);
            let told = give(Err(FileError::new(folder.display().to_string(), &failure)));
            return if told { Ok(Vec::new()) } else { Err(Enough) };
        }
    };
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| (name, prefix.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_found_once_and_links_do_not_lead_in_circles() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("b/deep")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("b/deep/x"), "12345").unwrap();
        fs::write(at("a"), "1").unwrap();
        symlink("..", at("b/up")).unwrap();
        symlink("a", at("link")).unwrap();
        symlink("nowhere", at("lost")).unwrap();
        symlink("self", at("self")).unwrap();
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        let _ = visit(folder.path(), &mut |item| {
            match item {
                Ok(file) => found.push((String::from_utf8(file.relative).unwrap(), file.size)),
                Err(error) => errors.push(Path::new(&error.name).file_name().unwrap().to_owned()),
            }
            true
        });
        let expect = [("a", 1), ("b/deep/x", 5), ("link", 1)];
        assert_eq!(found, expect.map(|(name, size)| (name.to_owned(), size)));
        assert_eq!(errors, ["up", "lost", "self"]);
        assert_eq!(bytes(folder.path()), 7);
    }
}
