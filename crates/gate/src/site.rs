//! The node that is looked at: where its things are on this machine.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stoker_lake::LakeOptions;
use stoker_node::LakePrices;

use crate::config::Config;
use crate::daemon::place::{hand_over_as_root, read_small};
use crate::daemon::{LakePlan, drives};
use crate::failure::Failure;
use crate::settings::{self, Setting};

/// Held while a gate looks at a node.
const LOCK: &str = "gate.lock";

/// A node's directory, its drives and its lake.
pub struct Site {
    pub dir: PathBuf,
    /// Node id.
    pub node: String,
    pub drives: Vec<Drive>,
    pub lake: LakePlan,
    /// Goes when the file is closed, however the process ends.
    _lock: File,
}

/// A drive of the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drive {
    /// Its ring.
    pub path: PathBuf,
    /// The serial number, or the path if it has none.
    pub subject: String,
}

impl Drive {
    pub fn at(path: PathBuf) -> Drive {
        let subject = serial_of(&path).unwrap_or_else(|| path.display().to_string());
        Drive { path, subject }
    }
}

#[derive(Deserialize)]
struct Identity {
    node: String,
}

impl Site {
    /// The node in a directory, or of a configuration.
    pub fn find(dir: &Path, config: Option<&Path>) -> Result<Site, Failure> {
        let config = config.map(Config::read).transpose()?;
        let dir = config.as_ref().map_or(dir, |config| config.node.dir.as_path());
        let dir = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        let path = dir.join("node.json");
        let text = read_small(&path)?.ok_or_else(|| {
            Failure::new(format!("{} is not the directory of a node", dir.display())).hint(
                "name it with --dir, or the configuration with --config; a node makes it at its first start",
            )
        })?;
        let broken = |e: serde_json::Error| Failure::new(format!("{}: {e}", path.display()));
        let Identity { node } = serde_json::from_str(&text).map_err(broken)?;
        if node.is_empty() || node.len() > 40 || !node.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Failure::new(format!("{} holds no id of a node", path.display())));
        }
        let lock = take(&dir)?;
        let kept = settings::file::read(&dir)?;
        let named: Vec<PathBuf> = match &config {
            Some(config) => config.drive.iter().map(|drive| drive.path.clone()).collect(),
            None => kept.drives(),
        };
        let lake = match &config {
            Some(config) => stoker_agent::configured::lake(&config.lake, &dir),
            None => LakePlan {
                url: kept
                    .one(Setting::Lake)
                    .map_or_else(|| format!("file://{}", dir.join("lake").display()), str::to_owned),
                options: LakeOptions::default(),
                is_own: !kept.has(Setting::Lake),
                prices: LakePrices::default(),
            },
        };
        let mut site = Site { node, drives: Vec::new(), lake, dir, _lock: lock };
        site.drives = match named.as_slice() {
            [] => vec![Drive::at(site.dir.join("ring"))],
            named => {
                let sized = named.iter().map(|path| (path.as_path(), Some(0)));
                drives::configured(&site.dir, sized)?.into_iter().map(|drive| Drive::at(drive.path)).collect()
            }
        };
        Ok(site)
    }

    /// The drives that the running node says it has.
    pub fn set_drives(&mut self, paths: impl Iterator<Item = PathBuf>) {
        self.drives = paths.map(Drive::at).collect();
    }

    /// A name that no other gate uses at the same time.
    pub fn name(&self) -> String {
        format!("stoker-gate-{}", self.node)
    }
}

/// Whoever gates as root leaves its files to the user of the service, who could not read them.
impl Drop for Site {
    fn drop(&mut self) {
        hand_over_as_root(&self.dir);
    }
}

fn take(dir: &Path) -> Result<File, Failure> {
    let path = dir.join(LOCK);
    let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = open.map_err(|e| Failure::io(path.display(), &e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Failure::new(format!("another gate looks at the node in {}", dir.display())))
        }
        Err(fs::TryLockError::Error(error)) => Err(Failure::io(path.display(), &error)),
    }
}

/// The serial number of the drive that something lies on.
fn serial_of(path: &Path) -> Option<String> {
    let existing = path.ancestors().find(|path| path.exists())?;
    let meta = fs::metadata(existing).ok()?;
    let device = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let name = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let device = fs::canonicalize(name).ok()?;
    // A partition has none; the drive that it is a part of may.
    let places = [Some(device.as_path()), device.parent()];
    let files =
        places.into_iter().flatten().flat_map(|place| [place.join("serial"), place.join("device/serial")]);
    files
        .filter_map(|file| fs::read_to_string(file).ok())
        .map(|text| text.trim().to_owned())
        .find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_directory_and_by_one_gate_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        assert!(Site::find(dir, None).err().unwrap().cause().contains("not the directory of a node"));
        for broken in ["", "{", "{}", r#"{"node":"../../etc"}"#, r#"{"node":""}"#, r#"{"node":7}"#] {
            fs::write(dir.join("node.json"), broken).unwrap();
            assert!(Site::find(dir, None).is_err(), "{broken}");
        }
        fs::write(dir.join("node.json"), r#"{"node":"00ff","cluster":"11"}"#).unwrap();
        let site = Site::find(dir, None).unwrap();
        assert_eq!((site.name().as_str(), site.drives.len()), ("stoker-gate-00ff", 1));
        assert_eq!(site.drives[0].path, dir.join("ring"));
        assert!(site.lake.is_own && site.lake.url.ends_with("/lake"));
        assert!(Site::find(dir, None).err().unwrap().cause().contains("another gate"));
        drop(site);
        Site::find(dir, None).unwrap();
    }
}
