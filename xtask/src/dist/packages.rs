//! The forms in which the tree is handed out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::{Dist, has, quiet, said, write};
use crate::workspace::root;

/// Scripts of the Debian package, as dpkg names them.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// An archive with everything, for machines without a package manager of ours.
pub fn tar(dist: &Dist, stage: &Path) -> Result<(), String> {
    let folder = dist.work.join(dist.name());
    quiet(Command::new("cp").arg("-a").arg(stage).arg(&folder))?;
    archive(dist, &format!("{}.tar.gz", dist.name()), &dist.name())
}

/// Names and lines of a program that has them, and where a debugger looks for them.
pub fn symbols(dist: &Dist, binary: &Path) -> Result<(), String> {
    let name = format!("{}-debug", dist.name());
    let debug = dist.work.join(&name).join("usr/lib/debug/usr/bin/stoker.debug");
    let sections = super::output(Command::new("objdump").arg("-h").arg(binary));
    if !sections.is_ok_and(|sections| sections.contains(".debug_line") || sections.contains(".debug_info")) {
        eprintln!("dist: left out: {name}.tar.gz, because {} has no names and lines", binary.display());
        return Ok(());
    }
    write(&debug, "")?;
    quiet(
        Command::new("objcopy")
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .arg(binary)
            .arg(&debug),
    )?;
    archive(dist, &format!("{name}.tar.gz"), &name)
}

/// The same tree gives the same bytes, whoever packs it.
fn archive(dist: &Dist, name: &str, folder: &str) -> Result<(), String> {
    let tar = dist.work.join(name.trim_end_matches(".gz"));
    let owner = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"];
    let time = format!("--mtime=@{}", dist.epoch);
    quiet(
        Command::new("tar").args(owner).arg(time).arg("-C").arg(&dist.work).arg("-cf").arg(&tar).arg(folder),
    )?;
    quiet(Command::new("gzip").arg("-9nf").arg(&tar))?;
    let packed = dist.work.join(name);
    fs::rename(&packed, dist.out.join(name)).map_err(said(&packed))
}

/// A package for Debian and Ubuntu.
pub fn deb(dist: &Dist, stage: &Path) -> Result<(), String> {
    if !has("dpkg-deb") {
        eprintln!("dist: left out: the Debian package, because this machine has no dpkg-deb");
        return Ok(());
    }
    let machine = match dist.machine.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let folder = dist.work.join("deb");
    quiet(Command::new("cp").arg("-a").arg(stage).arg(&folder))?;
    let size = super::output(Command::new("du").args(["-sk", "--apparent-size"]).arg(stage))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let own = root().join("deploy/package/debian");
    let control = fs::read_to_string(own.join("control")).map_err(said(&own))?;
    let control = control
        .replace("@VERSION@", &format!("{}-{}", dist.version.replace('-', "~"), dist.release))
        .replace("@MACHINE@", machine)
        .replace("@GLIBC@", &dist.glibc)
        .replace("@SIZE@", &size);
    write(&folder.join("DEBIAN/control"), &control)?;
    write(&folder.join("DEBIAN/conffiles"), "/etc/stoker/stoker.toml\n/etc/stoker/environment\n")?;
    for script in SCRIPTS {
        let from = own.join(script);
        let to = folder.join("DEBIAN").join(script);
        write(&to, &fs::read_to_string(&from).map_err(said(&from))?)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).map_err(said(&to))?;
    }
    // Folders that a careful umask of the packager closed would be closed on every machine.
    quiet(Command::new("find").arg(&folder).args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]))?;
    let mut pack = Command::new("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", &dist.epoch).args(["--root-owner-group", "-Zxz", "--build"]);
    let name = format!("stoker_{}-{}_{machine}.deb", dist.version.replace('-', "~"), dist.release);
    quiet(pack.arg(&folder).arg(dist.out.join(name)))
}

/// A package for Fedora, RHEL, SUSE and their like.
pub fn rpm(dist: &Dist, stage: &Path) -> Result<(), String> {
    if !has("rpmbuild") {
        eprintln!("dist: left out: the RPM, because this machine has no rpmbuild");
        return Ok(());
    }
    let top = dist.work.join("rpm");
    fs::create_dir_all(&top).map_err(said(&top))?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let mut pack = Command::new("rpmbuild");
    pack.env("SOURCE_DATE_EPOCH", &dist.epoch).args(["-bb", "--target", &dist.machine]);
    pack.args(define("_topdir", &top.display().to_string()));
    pack.args(define("stoker_tree", &stage.display().to_string()));
    pack.args(define("stoker_version", &dist.version.replace('-', "~")));
    pack.args(define("stoker_release", &dist.release.to_string()));
    quiet(pack.arg(root().join("deploy/package/stoker.spec")))?;
    let made = top.join("RPMS").join(&dist.machine);
    for one in fs::read_dir(&made).map_err(said(&made))?.flatten() {
        fs::rename(one.path(), dist.out.join(one.file_name())).map_err(said(&one.path()))?;
    }
    Ok(())
}
