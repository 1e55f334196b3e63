//! Which node of this machine a command is about that needs none that runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use stoker_host::identity::Identity;

use crate::connect::USUAL_DIRS;

/// A directory, or a configuration that names one. `STOKER_DIR` is for those who say nothing: it must not get in the way of
/// `--config`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Home {
    /// The directory of the node. By default what STOKER_DIR says, ./stoker-data, or /var/lib/stoker.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// The configuration of a node that runs by `stoker serve`: its directory, drives, lake and database.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub config: Option<PathBuf>,
}

impl Home {
    /// The directory, unless the configuration names another.
    pub fn dir(&self) -> PathBuf {
        directory(self.dir.as_deref(), std::env::var_os("STOKER_DIR"))
    }
}

fn directory(said: Option<&Path>, variable: Option<OsString>) -> PathBuf {
    let variable = variable.filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = said.map(Path::to_owned).or(variable) {
        return dir;
    }
    let [here, service] = USUAL_DIRS.map(Path::new);
    if !here.exists() && Identity::exists(service) { service.to_owned() } else { here.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_counts_before_the_environment() {
        let of = |said: Option<&str>, variable: &str| directory(said.map(Path::new), Some(variable.into()));
        assert_eq!(of(Some("a"), "b"), Path::new("a"));
        assert_eq!(of(None, "b"), Path::new("b"));
        assert_eq!(of(None, ""), directory(None, None));
    }
}
