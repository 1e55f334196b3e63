//! What is installed where, the same for every package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, quiet, said, write};
use crate::workspace::root;

/// A file of the checkout, where it goes, and its mode.
const FILES: &[(&str, &str, u32)] = &[
    ("deploy/stoker.service", "usr/lib/systemd/system/stoker.service", 0o644),
    ("deploy/stoker-mount@.service", "usr/lib/systemd/system/stoker-mount@.service", 0o644),
    ("deploy/stoker-csi.service", "usr/lib/systemd/system/stoker-csi.service", 0o644),
    ("deploy/mount.stoker", "usr/sbin/mount.stoker", 0o755),
    ("deploy/stoker.toml", "etc/stoker/stoker.toml", 0o640),
    ("deploy/package/environment", "etc/stoker/environment", 0o600),
    ("LICENSE", "usr/share/doc/stoker/copyright", 0o644),
    ("SECURITY.md", "usr/share/doc/stoker/SECURITY.md", 0o644),
    ("CHANGELOG.md", "usr/share/doc/stoker/changelog", 0o644),
    ("docs/install.md", "usr/share/doc/stoker/install.md", 0o644),
    ("docs/operations.md", "usr/share/doc/stoker/operations.md", 0o644),
];

/// Where units of the checkout look for the program, and where a package puts it.
const LOCAL: &str = "/usr/local/bin/stoker";
const PACKAGED: &str = "/usr/bin/stoker";

/// Makes the tree below the work folder.
pub fn make(dist: &Dist, binary: &Path) -> Result<PathBuf, String> {
    let stage = dist.work.join("tree");
    for (from, to, mode) in FILES {
        let from = root().join(from);
        let text = fs::read_to_string(&from).map_err(said(&from))?;
        let to = stage.join(to);
        write(&to, &text.replace(LOCAL, PACKAGED))?;
        set_mode(&to, *mode)?;
    }
    let program = stage.join("usr/bin/stoker");
    fs::create_dir_all(stage.join("usr/bin")).map_err(said(&program))?;
    quiet(Command::new("strip").arg("-o").arg(&program).arg(binary))?;
    set_mode(&program, 0o755)?;
    generated(&program, &stage.join("usr/share"))?;
    Ok(stage)
}

/// Man pages and completions, as the program itself tells them.
fn generated(program: &Path, share: &Path) -> Result<(), String> {
    let made = share.join("made");
    quiet(Command::new(program).arg("generate").arg(&made))?;
    let places = [
        ("man", "man/man1"),
        ("bash", "bash-completion/completions"),
        ("zsh", "zsh/vendor-completions"),
        ("fish", "fish/vendor_completions.d"),
    ];
    for (from, to) in places {
        let to = share.join(to);
        fs::create_dir_all(&to).map_err(said(&to))?;
        let mut names: Vec<_> =
            fs::read_dir(made.join(from)).map_err(said(&made))?.flatten().map(|one| one.path()).collect();
        names.sort();
        for path in names {
            let name = path.file_name().ok_or("a generated file has no name")?;
            fs::rename(&path, to.join(name)).map_err(said(&path))?;
            if from == "man" {
                quiet(Command::new("gzip").arg("-9n").arg(to.join(name)))?;
            }
        }
    }
    fs::remove_dir_all(&made).map_err(said(&made))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(said(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is renamed would be missed only by whoever makes a release.
    #[test]
    fn every_file_is_there_and_names_one_place_of_the_program() {
        for (from, to, _) in FILES {
            let text =
                fs::read_to_string(root().join(from)).unwrap_or_else(|error| panic!("{from}: {error}"));
            if to.ends_with(".service") {
                assert!(text.contains(LOCAL) && !text.contains(PACKAGED), "{from}");
            }
        }
    }
}
