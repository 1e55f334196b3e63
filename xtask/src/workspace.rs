//! Where the repository is and how cargo is called in it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The repository root: the folder above this package.
///
/// Read at run time, because a target directory shared by two checkouts may hold a binary that was
/// compiled in the other one.
pub fn root() -> PathBuf {
    match env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) {
        Some(package) => package.parent().map_or(package.clone(), PathBuf::from),
        None => PathBuf::from("."),
    }
}

/// The cargo that started us, to run in the repository root. `CARGO_TARGET_DIR` is inherited.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    if in_ci() {
        command.env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_PROGRESS_WHEN", "never");
    }
    command
}

/// Where cargo puts a program, by the folder of its profile.
pub fn built(profile: &str, name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join(profile).join(name)
}

/// Runs a command to its end with its output streamed; true if it succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("xtask: cannot start {}: {error}", command.get_program().to_string_lossy());
            false
        }
    }
}

/// True when a build server reads our output, which wants plain lines.
pub fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}
