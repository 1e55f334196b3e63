//! `cargo xtask dist`: what a machine without Rust installs. One folder with archives, packages, an SBOM, release notes,
//! checksums and, with a key, their signature.
//!
//! Everything that is not Rust is done by the tools that every packager has; a package whose tool lacks is left out, in words. (D155)

mod packages;
mod release;
mod sbom;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

const USAGE: &str = "\
dist [--binary PATH] [--out DIR] [--release N] [--only KINDS] [--sign gpg:KEY | minisign:FILE] [--wheel]";

/// What is made, in this order.
const KINDS: &[&str] = &["tar", "deb", "rpm", "sbom", "notes"];

/// What somebody wants.
struct Options {
    /// A program that is there already; otherwise it is built.
    binary: Option<PathBuf>,
    out: PathBuf,
    /// Which package of this version it is.
    release: u32,
    only: Vec<String>,
    signer: Option<release::Signer>,
    wheel: bool,
}

/// What every package knows.
struct Dist {
    version: String,
    release: u32,
    /// As uname says it.
    machine: String,
    /// The newest version of glibc that the program asks for.
    glibc: String,
    /// Seconds since 1970 that every file is dated with, so that the same commit gives the same bytes.
    epoch: String,
    out: PathBuf,
    /// Where things lie while they are made.
    work: PathBuf,
}

impl Dist {
    /// The name of an archive without its ending.
    fn name(&self) -> String {
        format!("stoker-{}-linux-{}", self.version, self.machine)
    }
}

/// Makes the folder.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let options = parse(args)?;
    make(&options).map_err(|message| {
        eprintln!("dist: {message}");
        Failure::Failed
    })
}

fn parse(args: &[String]) -> Result<Options, Failure> {
    let mut options = Options {
        binary: None,
        out: built("dist", ""),
        release: 1,
        only: Vec::new(),
        signer: None,
        wheel: false,
    };
    let wrong = |what: &str| Failure::Usage(format!("dist: {what}\n  {USAGE}"));
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--wheel" {
            options.wheel = true;
            continue;
        }
        let known = ["--binary", "--out", "--release", "--only", "--sign"];
        if !known.contains(&arg.as_str()) {
            return Err(wrong(&format!("`{arg}` is not known")));
        }
        let value = args.next().ok_or_else(|| wrong(&format!("{arg} needs a value")))?;
        match arg.as_str() {
            "--binary" => options.binary = Some(PathBuf::from(value)),
            "--out" => options.out = PathBuf::from(value),
            "--release" => options.release = value.parse().map_err(|_| wrong("--release is a number"))?,
            "--only" => options.only = value.split(',').map(str::to_owned).collect(),
            _ => options.signer = Some(release::Signer::parse(value).map_err(|what| wrong(&what))?),
        }
    }
    if let Some(kind) = options.only.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(wrong(&format!("--only takes {}, not `{kind}`", KINDS.join(", "))));
    }
    Ok(options)
}

fn make(options: &Options) -> Result<(), String> {
    let binary = match &options.binary {
        Some(path) => path.clone(),
        None => build()?,
    };
    fs::create_dir_all(&options.out).map_err(said(&options.out))?;
    let out = fs::canonicalize(&options.out).map_err(said(&options.out))?;
    let work = out.join("work");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(said(&work))?;
    let program = fs::read(&binary).map_err(said(&binary))?;
    let dist = Dist {
        version: version()?,
        release: options.release,
        machine: output(Command::new("uname").arg("-m"))?,
        glibc: glibc(&program).unwrap_or_else(|| "2.17".to_owned()),
        epoch: epoch(),
        out,
        work,
    };
    let stage = tree::make(&dist, &binary)?;
    let wants = |kind: &str| options.only.is_empty() || options.only.iter().any(|one| one == kind);
    if wants("tar") {
        packages::tar(&dist, &stage)?;
        packages::symbols(&dist, &binary)?;
    }
    if wants("deb") {
        packages::deb(&dist, &stage)?;
    }
    if wants("rpm") {
        packages::rpm(&dist, &stage)?;
    }
    if wants("sbom") {
        sbom::write(&dist)?;
    }
    if wants("notes") {
        release::notes(&dist)?;
    }
    if options.wheel {
        release::wheel(&dist)?;
    }
    fs::remove_dir_all(&dist.work).map_err(said(&dist.work))?;
    release::seal(&dist, options.signer.as_ref())?;
    eprintln!("dist: made {}", dist.out.display());
    Ok(())
}

/// The release with its names and lines: the packages get the program without, and they an archive of their own.
fn build() -> Result<PathBuf, String> {
    let done = succeeds(cargo().args(["build", "--locked", "--package", "stoker", "--profile", "symbols"]));
    if done { Ok(built("symbols", "stoker")) } else { Err("the release cannot be built".to_owned()) }
}

/// The version of the workspace.
fn version() -> Result<String, String> {
    let manifest = root().join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(said(&manifest))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    line.and_then(|rest| rest.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or("Cargo.toml has no version".to_owned())
}

/// The newest `GLIBC_x.y` that a program names.
fn glibc(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let minor = |at: usize| -> Option<u32> {
        let digits: Vec<u8> =
            program[at + MARK.len()..].iter().copied().take(3).take_while(u8::is_ascii_digit).collect();
        String::from_utf8(digits).ok()?.parse().ok()
    };
    let places = (0..program.len().saturating_sub(MARK.len())).filter(|at| program[*at..].starts_with(MARK));
    places.filter_map(minor).max().map(|minor| format!("2.{minor}"))
}

/// When the commit was made, or what the environment says.
fn epoch() -> String {
    let commit = || output(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"])).ok();
    std::env::var("SOURCE_DATE_EPOCH").ok().or_else(commit).unwrap_or_else(|| "0".to_owned())
}

/// What a command says on stdout, in one line.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Runs a command whose words matter only if it fails.
fn quiet(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// True if a program can be started here.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
}

/// An error with the path that it is about.
fn said(path: &Path) -> impl Fn(std::io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

/// Writes a file and the folders above it.
fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(said(parent))?;
    }
    fs::write(path, text).map_err(said(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_that_is_named_counts() {
        let check = |program: &[u8], expect: Option<&str>| assert_eq!(glibc(program).as_deref(), expect);
        check(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.17\0", Some("2.34"));
        check(b"GLIBC_2.", None);
        check(b"GLIBC_2.x GLIBC_PRIVATE", None);
        check(b"", None);
    }

    #[test]
    fn arguments_are_read_and_anything_else_is_refused() {
        let parsed = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        let options = parsed(&["--binary", "b", "--only", "deb,tar", "--release", "2"]).ok().unwrap();
        assert_eq!((options.binary, options.release, options.only.len()), (Some("b".into()), 2, 2));
        for wrong in
            [&["--binary"][..], &["--only", "exe"], &["--sign", "me"], &["--release", "x"], &["more"]]
        {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_workspace_has_a_version() {
        assert!(version().unwrap().split('.').count() == 3);
    }
}
