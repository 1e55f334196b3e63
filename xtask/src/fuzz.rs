//! Runs every fuzz target of `fuzz/` for a bounded time. Not a part of the gate: it needs cargo-fuzz.

use std::path::Path;
use std::process::Stdio;

use crate::Failure;
use crate::workspace::{cargo, root, succeeds};

const SECONDS_DEFAULT: u32 = 60;

#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    /// Empty means all.
    targets: Vec<String>,
}

/// Runs the targets one after the other; a failing one does not hide the next.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let options = parse(args)?;
    let known = targets(&root().join("fuzz/fuzz_targets"));
    if known.is_empty() {
        eprintln!("fuzz: there are no targets in fuzz/fuzz_targets");
        return Err(Failure::Failed);
    }
    if let Some(unknown) = options.targets.iter().find(|target| !known.contains(target)) {
        return Err(Failure::Usage(format!("fuzz: no target `{unknown}`; there are: {}", known.join(", "))));
    }
    if !cargo_fuzz_is_installed() {
        eprintln!("fuzz: cargo-fuzz is not installed; install it with: cargo install --locked cargo-fuzz");
        return Err(Failure::Failed);
    }

    let chosen = if options.targets.is_empty() { known } else { options.targets };
    let limit = format!("-max_total_time={}", options.seconds);
    let mut failed = Vec::new();
    for target in &chosen {
        eprintln!("fuzz: {target}, {} s", options.seconds);
        // cargo-fuzz needs the sanitizer flags of a nightly compiler; this switch lets the pinned
        // stable one accept them.
        let mut command = cargo();
        command.env("RUSTC_BOOTSTRAP", "1").args(["fuzz", "run", target, "--", &limit]);
        if !succeeds(&mut command) {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        eprintln!("fuzz: passed, {} targets", chosen.len());
        return Ok(());
    }
    eprintln!(
        "fuzz: failed: {}; the inputs are in fuzz/artifacts/<target>/, and one is replayed with:",
        failed.join(", ")
    );
    eprintln!("    RUSTC_BOOTSTRAP=1 cargo fuzz run <target> fuzz/artifacts/<target>/<input>");
    Err(Failure::Failed)
}

fn parse(args: &[String]) -> Result<Options, Failure> {
    let mut options = Options { seconds: SECONDS_DEFAULT, targets: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let value = args.next().ok_or_else(|| Failure::Usage("fuzz: --seconds needs a number".into()))?;
            // libFuzzer takes 0 for "no limit", which a person who asks for 0 does not expect.
            options.seconds = value.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
                Failure::Usage(format!("fuzz: --seconds needs a number above 0, not `{value}`"))
            })?;
        } else if arg.starts_with('-') {
            return Err(Failure::Usage(format!("fuzz: unknown option `{arg}`")));
        } else {
            options.targets.push(arg.clone());
        }
    }
    Ok(options)
}

/// Names of the targets in a folder, in order; none if the folder is not there.
fn targets(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".rs").map(String::from))
        .collect();
    names.sort();
    names
}

fn cargo_fuzz_is_installed() -> bool {
    succeeds(cargo().args(["fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Option<Options> {
        parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>()).ok()
    }

    #[test]
    fn options() {
        assert_eq!(parsed(&[]), Some(Options { seconds: SECONDS_DEFAULT, targets: vec![] }));
        assert_eq!(
            parsed(&["--seconds", "5", "record"]),
            Some(Options { seconds: 5, targets: vec!["record".into()] })
        );
        assert_eq!(parsed(&["--seconds"]), None);
        assert_eq!(parsed(&["--seconds", "0"]), None);
        assert_eq!(parsed(&["--minutes", "5"]), None);
    }
}
