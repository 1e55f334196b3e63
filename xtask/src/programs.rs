//! The test step of the gate: every test program that `cargo test --workspace` would run, several at the same time. (D120)
//!
//! cargo runs them one after the other, and most of ours wait for nodes more than they compute: a small machine would be idle for
//! half of the step. Each program runs in the folder of its package, as under cargo. What it prints is shown when it ends; one that hangs
//! is ended, and said where it stood. A few tests that did not pass are tried once more with nothing beside them: one that passes then is
//! named at the end, as the machine or the test may be at fault, and one that does not fails the gate.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::scratch::Scratch;
use crate::skipped::Skipped;
use crate::workspace::{cargo, succeeds};

/// Programs that run at the same time.
const AT_ONCE: usize = 3;

/// Tests of one program that run at the same time.
const THREADS: &str = "3";

/// A program that says nothing for so long hangs: each test that ends is a line, and the longest takes a minute.
const SILENCE_MAX: Duration = Duration::from_secs(5 * 60);

/// Tests that are tried once more; if there are others, something is broken. (D121)
const REPEATED_MAX: usize = 4;

/// Those that take longest, which therefore begin first.
const LONG: &[&str] = &["node", "program", "mount", "bytes", "kill_node", "faults", "engines", "benches"];

/// What `cargo test` would run.
struct Program {
    path: PathBuf,
    /// The folder of its package.
    package: PathBuf,
    name: String,
}

/// What is the same for all programs.
struct Surroundings<'a> {
    is_full: bool,
    skipped: &'a Skipped,
    scratch: &'a Scratch,
}

/// Tests of a program that did not pass.
struct Failed {
    program: Program,
    tests: BTreeSet<String>,
}

/// Builds all tests and runs them; true if all passed.
pub fn run(is_full: bool) -> bool {
    let Some(mut programs) = build() else { return false };
    let rank = |program: &Program| LONG.iter().position(|name| *name == program.name).unwrap_or(LONG.len());
    programs.sort_by_key(rank);
    let count = programs.len();
    let skipped = Skipped::new();
    let scratch = Scratch::new();
    let surroundings = Surroundings { is_full, skipped: &skipped, scratch: &scratch };
    let waiting = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = next(&waiting, &failed) {
                    if let Some(tests) = program.failing(None, &surroundings)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(Failed { program, tests });
                    }
                }
            });
        }
    });
    let Ok(failed) = failed.into_inner() else { return false };
    if is_broken(&failed) {
        return false;
    }
    let mut doubtful = Vec::new();
    for Failed { program, tests } in failed {
        if program.failing(Some(&tests), &surroundings).is_some() {
            return false;
        }
        doubtful.extend(tests.iter().map(|test| format!("{} {test}", program.name)));
    }
    eprintln!("{count} test programs passed; now the examples in comments");
    let passed = succeeds(cargo().args(["test", "--workspace", "--locked", "--doc"]));
    skipped.print();
    for test in doubtful {
        eprintln!("DOUBTFUL: {test} passed only when it was tried once more, alone");
    }
    passed
}

/// Whether more failed than a second try is for.
fn is_broken(failed: &[Failed]) -> bool {
    let count: usize = failed.iter().map(|failed| failed.tests.len()).sum();
    count > REPEATED_MAX || failed.iter().any(|failed| failed.tests.is_empty())
}

fn next(waiting: &Mutex<VecDeque<Program>>, failed: &Mutex<Vec<Failed>>) -> Option<Program> {
    let is_over = is_broken(&failed.lock().ok()?);
    if is_over { None } else { waiting.lock().ok()?.pop_front() }
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

    /// Runs all tests of it, or some; gives those that did not pass, if any.
    fn failing(
        &self,
        only: Option<&BTreeSet<String>>,
        surroundings: &Surroundings<'_>,
    ) -> Option<BTreeSet<String>> {
        match self.run(only, surroundings) {
            Ok(failing) => failing,
            Err(error) => {
                eprintln!("xtask: {}: {error}", self.path.display());
                Some(BTreeSet::new())
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the gate is the edge: it ends what hangs and tells how long things took"
    )]
    fn run(
        &self,
        only: Option<&BTreeSet<String>>,
        surroundings: &Surroundings<'_>,
    ) -> std::io::Result<Option<BTreeSet<String>>> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = self.command();
        // With nothing beside it, also of its own program, where it is tried once more.
        command.env("RUST_TEST_THREADS", if only.is_some() { "1" } else { THREADS });
        if surroundings.is_full {
            command.env("STOKER_FULL", "1");
        }
        surroundings.skipped.ask(&mut command, &self.name);
        surroundings.scratch.offer(&mut command);
        if let Some(only) = only {
            command.arg("--exact").args(only);
        }
        command.stdout(writer.try_clone()?).stderr(writer);
        let started = Instant::now();
        let mut child = command.spawn()?;
        // Its ends of the pipe are the last ones.
        drop(command);
        let said = Arc::new(Mutex::new(Vec::new()));
        let listening = std::thread::spawn({
            let said = Arc::clone(&said);
            move || listen(reader, &said)
        });
        let (mut length, mut since) = (0, Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            let now = said.lock().map_or(length, |said| said.len());
            if now != length {
                (length, since) = (now, Instant::now());
            }
            if since.elapsed() > SILENCE_MAX {
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let stands = if status.is_none() { end(&mut child)? } else { String::new() };
        let took = started.elapsed().as_secs_f64();
        // Programs that a test left behind may hold the pipe; what one that hangs said is there already.
        if status.is_some() {
            let _ = listening.join();
        }
        let said = said.lock().map(|said| said.clone()).unwrap_or_default();
        let mut out = std::io::stderr().lock();
        writeln!(out, "     Running {} ({took:.1} s)", self.path.display())?;
        out.write_all(&said)?;
        match status {
            Some(status) if status.success() => return Ok(None),
            Some(status) => writeln!(out, "{}: FAILED, {status}", self.name)?,
            None => writeln!(out, "{}: FAILED: silent for {} s\n{stands}", self.name, SILENCE_MAX.as_secs())?,
        }
        drop(out);
        let asked = match only {
            Some(only) => only.clone(),
            None => self.tests()?,
        };
        let said = String::from_utf8_lossy(&said);
        Ok(Some(asked.into_iter().filter(|test| !has_passed(&said, test)).collect()))
    }

    /// The names of its tests.
    fn tests(&self) -> std::io::Result<BTreeSet<String>> {
        let listed = self.command().args(["--list", "--format", "terse"]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        Ok(listed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
    }
}

/// Keeps what a program says.
fn listen(mut reader: std::io::PipeReader, said: &Mutex<Vec<u8>>) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(length @ 1..) = reader.read(&mut piece) {
        if let Ok(mut said) = said.lock() {
            said.extend_from_slice(&piece[..length]);
        }
    }
}

/// Ends a program that hangs; says which threads it had, which are named after tests, and what each waited for in the kernel.
fn end(child: &mut Child) -> std::io::Result<String> {
    let mut stands = String::new();
    for thread in std::fs::read_dir(format!("/proc/{}/task", child.id()))?.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        stands.push_str(&format!("  thread {}, in {}\n", read("comm").trim(), read("wchan").trim()));
    }
    child.kill()?;
    child.wait()?;
    Ok(stands)
}

/// Whether a test passed or was not to be run, by the program's words.
fn has_passed(said: &str, test: &str) -> bool {
    said.lines().any(|line| {
        let result = line.strip_prefix("test ").and_then(|line| line.strip_prefix(test));
        let result = result.map(|result| result.strip_prefix(" - should panic").unwrap_or(result));
        result.is_some_and(|result| result.starts_with(" ... ok") || result.starts_with(" ... ignored"))
    })
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
    #[test]
    fn only_what_passed_is_not_tried_again() {
        let said = "test a::b ... ok\ntest a::bc ... FAILED\ntest c ... ignored, a bench\ntest d - should panic ... ok\ntest e";
        for passed in ["a::b", "c", "d"] {
            assert!(has_passed(said, passed), "{passed}");
        }
        for other in ["a", "a::bc", "e", "b"] {
            assert!(!has_passed(said, other), "{other}");
        }
    }
}
