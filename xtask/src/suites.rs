//! `cargo xtask clients`, `apps`, `api`, `console`, `oidc`, `telemetry`, `collectors`, `guest`, `walk`, `patroni`, `packages`, `kubernetes`, `large` and `open`: programs of others against real
//! nodes, each by a script below `tests/`.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use crate::Failure;
use crate::workspace::{built, cargo, root, succeeds};

/// What a suite ends with if what it needs could not be had.
const EXIT_NOT_HERE: i32 = 3;

/// What runs, and what it is called where it cannot run.
pub struct Suite {
    pub name: &'static str,
    script: &'static str,
    what: &'static str,
    /// It loads what cargo builds for Python.
    needs_binding: bool,
    /// What the program is built with beside its defaults.
    features: &'static str,
}

const fn suite(name: &'static str, script: &'static str, what: &'static str) -> Suite {
    Suite { name, script, what, needs_binding: false, features: "" }
}

/// Real S3 clients.
pub const CLIENTS: Suite = suite("clients", "tests/clients/run.py", "real clients");
/// Real applications on a mount, and by NFS.
pub const APPS: Suite = suite("apps", "tests/apps/run.py", "applications");
/// A real Prometheus and a real Alertmanager.
pub const TELEMETRY: Suite = suite("telemetry", "tests/telemetry/run.py", "Prometheus and Alertmanager");
/// A receiver of OpenTelemetry's traces, and Kafka.
pub const COLLECTORS: Suite = Suite {
    features: "otel,kafka",
    ..suite("collectors", "tests/collectors/run.py", "a collector of traces, and Kafka")
};
/// The NFS client of a Linux kernel.
pub const GUEST: Suite = suite("guest", "tests/guest/run.py", "the NFS client of a Linux kernel");
/// What an operator does with three machines, while clients work.
pub const WALK: Suite = suite("walk", "tests/walk/run.py", "the operator's walk");
/// A database that fails over under load.
pub const PATRONI: Suite = suite("patroni", "tests/patroni/run.py", "PostgreSQL under Patroni");

/// What machines without Rust install: packages, image, chart.
pub const PACKAGES: Suite = suite("packages", "tests/packages/run.py", "packages in clean roots");

/// The CSI driver below an API server and a kubelet.
pub const KUBERNETES: Suite = suite("kubernetes", "tests/kubernetes/run.py", "an API server and a kubelet");

/// Jobs under Slurm.
pub const SLURM: Suite = suite("slurm", "tests/slurm/run.py", "a controller and nodes of Slurm");

/// Files that are larger than the rings, by every way, cut in the middle.
pub const LARGE: Suite = Suite {
    needs_binding: true,
    ..suite("large", "tests/large/run.py", "files that are larger than the rings")
};

/// Files that stay open while a small ring turns over.
pub const OPEN: Suite =
    Suite { needs_binding: true, ..suite("open", "tests/open/run.py", "files that stay open") };

/// The admin API against its own document.
pub const API: Suite = suite("api", "tests/api/run.py", "schemathesis over the admin API");
/// The console in a browser.
pub const CONSOLE: Suite = suite("console", "tests/console/run.py", "the console in Chromium");
/// Users of an OpenID provider, with boto3 and a browser's walk.
pub const OIDC: Suite = suite("oidc", "tests/oidc/run.py", "an OpenID provider");

/// The Python package.
pub const PYTHON: Suite =
    Suite { needs_binding: true, ..suite("python", "python/tests/run.py", "tests of the Python package") };

/// What is to be done if the suite cannot run: no network, no Python, no FUSE, no emulator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Say so and pass.
    Skip,
    /// Fail.
    Fail,
}

impl Suite {
    /// Builds the program and runs the suite; arguments go through as they are.
    pub fn run(&self, args: &[String]) -> Result<(), Failure> {
        self.run_or(args, Without::Fail)
    }

    /// The same, for a gate that has to be green on a machine that lacks what the suite needs.
    pub fn run_or(&self, args: &[String], without: Without) -> Result<(), Failure> {
        self.build(without)?;
        let status = self.command(args).status();
        self.judge(status, without)
    }

    /// The same without building; what it printed comes back with it.
    pub fn run_quietly(&self, args: &[String], without: Without) -> (Result<(), Failure>, Vec<u8>) {
        let mut printed = Vec::new();
        let status = self.capture(args, &mut printed);
        (self.judge(status, without), printed)
    }

    /// Builds what the suite runs.
    pub fn build(&self, without: Without) -> Result<(), Failure> {
        // The gate has built it with its tests a moment ago. Built by itself it would have other features, and everything below it too.
        let is_built = without == Without::Skip && program().is_file() && self.features.is_empty();
        let mut build = cargo();
        if self.needs_binding {
            // With the features that the tests were built with, so that only what is loaded by Python is new.
            build.args(["build", "--workspace", "--locked"]);
        } else if is_built {
            return Ok(());
        } else {
            build.args(["build", "--package", "stoker", "--locked"]);
            if !self.features.is_empty() {
                build.args(["--features", self.features]);
            }
        }
        if succeeds(&mut build) { Ok(()) } else { Err(Failure::Failed) }
    }

    fn command(&self, args: &[String]) -> Command {
        let mut python = Command::new("python3");
        python.current_dir(root()).args(["-B", self.script, "--stoker"]).arg(program()).args(args);
        python
    }

    /// One pipe for both of its streams, so that the order of lines stays.
    fn capture(&self, args: &[String], printed: &mut Vec<u8>) -> std::io::Result<ExitStatus> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // It holds the ends for writing too.
        drop(command);
        reader.read_to_end(printed)?;
        child.wait()
    }

    fn judge(&self, status: std::io::Result<ExitStatus>, without: Without) -> Result<(), Failure> {
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) if status.code() == Some(EXIT_NOT_HERE) && without == Without::Skip => {
                eprintln!("xtask: skipped: {}, because what they need cannot be had here", self.what);
                Ok(())
            }
            Err(error) if without == Without::Skip => {
                eprintln!("xtask: skipped: {}, because python3 cannot be started: {error}", self.what);
                Ok(())
            }
            Ok(_) => Err(Failure::Failed),
            Err(error) => {
                eprintln!("xtask: cannot start python3: {error}");
                Err(Failure::Failed)
            }
        }
    }
}

fn program() -> PathBuf {
    built("debug", "stoker")
}
