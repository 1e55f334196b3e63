//! The project's own automation. One file per subcommand; CI calls `check` and nothing else. (D9)
//!
//! Standard library only: the gate has to build in seconds on a fresh machine, and it must not fail
//! because of a dependency that it is there to judge.

mod check;
mod dist;
mod fuzz;
mod programs;
mod scratch;
mod sim;
mod skipped;
mod suites;
mod tidy;
mod upgrade;
mod workspace;

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

  check [--full | --long]     the one gate: format, lints, tidy, tests, simulation, clients, applications
  tidy                        the rules that the compiler does not check
  sim ring --seeds N [--first S] [...]
                              the ring simulation in release mode; arguments go through as they are
  clients [--tier full] [...] real S3 clients against a real node; arguments go to tests/clients/run.py
  apps [--tier full] [...]    real applications on a mount and by NFS; arguments go to tests/apps/run.py
  python [...]                the Python package; arguments go to python/tests/run.py
  api [...]                   the admin API against its OpenAPI document; arguments go to tests/api/run.py
  console [...]               the console in headless Chromium; arguments go to tests/console/run.py
  oidc [...]                  users of a real OpenID provider, by boto3 and a browser; arguments go to tests/oidc/run.py
  telemetry [...]             a real Prometheus and Alertmanager; arguments go to tests/telemetry/run.py
  collectors [...]            traces at a receiver of OTLP, events in Kafka; arguments go to tests/collectors/run.py
  guest [...]                 the NFS client of a Linux kernel, emulated; arguments go to tests/guest/run.py
  walk [...]                  what an operator does with three machines, while clients work; arguments go to tests/walk/run.py
  patroni [...]               a catalog in PostgreSQL whose primary is killed; arguments go to tests/patroni/run.py
  large [...]                 files larger than the rings, by S3, a mount and Python; arguments go to tests/large/run.py
  open [...]                  files that stay open while a small ring turns over; arguments go to tests/open/run.py
  dist [--binary PATH] [--out DIR] [--release N] [--only KINDS] [--sign gpg:KEY | minisign:FILE] [--wheel]
                              archives, Debian package, RPM, SBOM, notes and checksums of a release
  packages [...]              the packages in clean roots; arguments go to tests/packages/run.py
  kubernetes [...]            the CSI driver below an API server and a kubelet; arguments go to tests/kubernetes/run.py
  slurm [--size 8GiB] [...]   jobs under a controller and nodes of Slurm; arguments go to tests/slurm/run.py
  upgrade                     builds the release before, and upgrades a cell of it node by node, under load
  fuzz [--seconds N] [TARGET ...]
                              every decoder on random bytes, N seconds each (needs cargo-fuzz)

Exit code: 0 passed, 1 failed, 2 the command line was wrong.
";

/// How a subcommand failed. What went wrong has been printed by then, except for `Usage`.
enum Failure {
    /// Something that was checked is not as it should be.
    Failed,
    /// The command line was wrong; the text says how.
    Usage(String),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed) => ExitCode::from(1),
        Err(Failure::Usage(what)) => {
            eprintln!("xtask: {what}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(args: &[String]) -> Result<(), Failure> {
    let Some((command, rest)) = args.split_first() else {
        return Err(Failure::Usage("no command given".into()));
    };
    match command.as_str() {
        "check" => check::run(rest),
        "tidy" => tidy::run(rest),
        "sim" => sim::run(rest),
        "clients" => suites::CLIENTS.run(rest),
        "apps" => suites::APPS.run(rest),
        "api" => suites::API.run(rest),
        "console" => suites::CONSOLE.run(rest),
        "oidc" => suites::OIDC.run(rest),
        "telemetry" => suites::TELEMETRY.run(rest),
        "collectors" => suites::COLLECTORS.run(rest),
        "guest" => suites::GUEST.run(rest),
        "walk" => suites::WALK.run(rest),
        "patroni" => suites::PATRONI.run(rest),
        "large" => suites::LARGE.run(rest),
        "open" => suites::OPEN.run(rest),
        "python" => suites::PYTHON.run(rest),
        "packages" => suites::PACKAGES.run(rest),
        "kubernetes" => suites::KUBERNETES.run(rest),
        "slurm" => suites::SLURM.run(rest),
        "dist" => dist::run(rest),
        "upgrade" => upgrade::run(rest),
        "fuzz" => fuzz::run(rest),
        "help" | "--help" | "-h" => {
            // A reader that closed the pipe has seen enough.
            let _ = std::io::stdout().write_all(USAGE.as_bytes());
            Ok(())
        }
        other => Err(Failure::Usage(format!("unknown command `{other}`"))),
    }
}
