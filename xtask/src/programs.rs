//! The test step of the gate: every test program that `cargo test --workspace` would run, several at the same time.
//!
//! cargo runs them one after the other, and most of ours wait for nodes more than they compute: a small machine would be idle for
//! half of the step. Each program runs in the folder of its package, as under cargo. What it prints is shown when it ends; one that hangs
//! is ended with its name.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::workspace::{cargo, succeeds};

/// Programs that run at the same time.
const AT_ONCE: usize = 2;

/// Tests of one program that run at the same time.
const THREADS: &str = "2";

/// A program that is not done by then hangs.
const PROGRAM_MAX: Duration = Duration::from_secs(20 * 60);

/// Those that take longest, which therefore begin first.
const LONG: &[&str] = &["node", "program", "mount", "bytes", "kill_node", "faults", "engines", "benches"];

/// What `cargo test` would run.
struct Program {
    path: PathBuf,
    /// The folder of its package.
    package: PathBuf,
    name: String,
}

/// Builds all tests and runs them; true if all passed.
pub fn run(is_full: bool) -> bool {
    let Some(mut programs) = build() else { return false };
    let rank = |program: &Program| LONG.iter().position(|name| *name == program.name).unwrap_or(LONG.len());
    programs.sort_by_key(rank);
    let count = programs.len();
    let waiting = Mutex::new(VecDeque::from(programs));
    let has_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed)
                    && let Some(program) = next(&waiting)
                {
                    if !program.passes(is_full) {
                        has_failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    if has_failed.into_inner() {
        return false;
    }
    eprintln!("{count} test programs passed; now the examples in comments");
    succeeds(cargo().args(["test", "--workspace", "--locked", "--doc"]))
}

fn next(waiting: &Mutex<VecDeque<Program>>) -> Option<Program> {
    waiting.lock().ok()?.pop_front()
}

/// Builds them; none if that failed.
fn build() -> Option<Vec<Program>> {
    let mut command = cargo();
    command.args([
        "test",
        "--workspace",
        "--locked",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let built = command.stdout(Stdio::piped()).spawn().and_then(|child| child.wait_with_output());
    let built = match built {
        Ok(built) => built,
        Err(error) => {
            eprintln!("xtask: cannot start cargo: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&built.stdout);
    built.status.success().then(|| text.lines().filter_map(Program::parse).collect())
}

impl Program {
    /// A message of cargo about a program with tests.
    fn parse(message: &str) -> Option<Program> {
        // Its target may have tests; this is about what was built of it.
        let (_, profile) = message.split_once(r#""profile":{"#)?;
        let (profile, _) = profile.split_once('}')?;
        if !message.contains(r#""reason":"compiler-artifact""#) || !profile.contains(r#""test":true"#) {
            return None;
        }
        let path = PathBuf::from(text_of(message, "executable")?);
        let package = Path::new(&text_of(message, "manifest_path")?).parent()?.to_owned();
        let file = path.file_name()?.to_str()?;
        let name = file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned();
        Some(Program { path, package, name })
    }

    fn passes(&self, is_full: bool) -> bool {
        match self.run(is_full) {
            Ok(passed) => passed,
            Err(error) => {
                eprintln!("xtask: {}: {error}", self.path.display());
                false
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the gate is the edge: it ends what hangs and tells how long things took"
    )]
    fn run(&self, is_full: bool) -> std::io::Result<bool> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .env("RUST_TEST_THREADS", THREADS);
        if is_full {
            command.env("STOKER_FULL", "1");
        }
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let started = Instant::now();
        let mut child = command.spawn()?;
        // Its ends of the pipe are the last ones.
        drop(command);
        let said = std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = reader.read_to_end(&mut said);
            said
        });
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if started.elapsed() > PROGRAM_MAX => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let took = started.elapsed().as_secs_f64();
        let passed = status.is_some_and(|status| status.success());
        let mut out = std::io::stderr().lock();
        writeln!(out, "     Running {} ({took:.1} s)", self.path.display())?;
        // Programs that a test left behind may hold the pipe; what one that hangs said is printed by then.
        if status.is_some() {
            out.write_all(&said.join().unwrap_or_default())?;
        }
        match status {
            Some(status) if !status.success() => writeln!(out, "{}: FAILED, {status}", self.name)?,
            Some(_) => {}
            None => writeln!(out, "{}: FAILED: not done after {} s", self.name, PROGRAM_MAX.as_secs())?,
        }
        Ok(passed)
    }
}

/// The text of a field in a line of JSON that cargo wrote. Paths with quotes in them are not ours.
fn text_of(message: &str, field: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!(r#""{field}":""#))?;
    rest.split_once('"').map(|(text, _)| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_what_to_run() {
        let message = |test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"x","manifest_path":"/w/crates/node/Cargo.toml","target":{{"kind":["test"],"name":"node","test":true}},"profile":{{"opt_level":"0","test":{test}}},"features":[],"filenames":["/t/node-0a"],"executable":"/t/deps/node-0a1b","fresh":true}}"#
            )
        };
        let found = Program::parse(&message(true)).unwrap();
        assert_eq!((found.path, found.package), ("/t/deps/node-0a1b".into(), "/w/crates/node".into()));
        assert_eq!(found.name, "node");
        assert!(Program::parse(&message(false)).is_none(), "the program itself, which tests start");
        for other in ["", "{}", &message(true).replace("compiler-artifact", "build-finished")] {
            assert!(Program::parse(other).is_none());
        }
    }
}
