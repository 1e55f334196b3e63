//! A program of others, run without a shell, for a bounded time, of whose output a bounded part is kept.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{clock, sys};

/// How often it is looked whether a program ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long output is waited for after a program ended: something that it left behind may hold the pipe open for ever.
const REST_MAX: Duration = Duration::from_secs(1);
/// Characters of its output that go into a message.
const WORDS_MAX: usize = 300;

/// How long it may take, and what is kept of each of its outputs. The rest is read and dropped, so that it can go on.
#[derive(Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    pub bytes: usize,
}

/// What a program did.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Something of its output was dropped.
    pub is_cut: bool,
}

/// Why there is no output.
#[derive(PartialEq, Eq, Debug)]
pub enum Failed {
    /// There is no such program.
    Missing,
    /// It cannot be started, or did not end.
    Other(String),
}

impl Output {
    /// How it ended and what it said about it, in a line.
    pub fn words(&self) -> String {
        let said = if self.stderr.trim_ascii().is_empty() { &self.stdout } else { &self.stderr };
        match one_line(said) {
            said if said.is_empty() => self.status.to_string(),
            said => format!("{}: {said}", self.status),
        }
    }
}

/// The beginning of foreign bytes as one line without anything that a terminal would take for a command.
pub fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * WORDS_MAX)]);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    words.join(" ").chars().take(WORDS_MAX).collect()
}

/// Runs a program. What is still there when the time is over is killed, with everything in its process group.
pub async fn run(program: &Path, words: &[impl AsRef<OsStr>], limits: Limits) -> Result<Output, Failed> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let name = program.display().to_string();
    let ran = tokio::task::spawn_blocking(move || run_blocking(&mut command, limits)).await;
    match ran {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(Failed::Missing),
        Ok(Err(error)) => Err(Failed::Other(format!("{name}: {error}"))),
        Err(error) => Err(Failed::Other(format!("{name}: {error}"))),
    }
}

fn run_blocking(command: &mut Command, limits: Limits) -> io::Result<Output> {
    let deadline = clock::now() + limits.time;
    let mut child = command.spawn()?;
    let stdout = Collector::start(child.stdout.take(), limits.bytes);
    let stderr = Collector::start(child.stderr.take(), limits.bytes);
    let Some(status) = wait(&mut child, deadline)? else {
        sys::kill_group(child.id());
        child.wait()?;
        let words = format!("did not end within {} s and was killed", limits.time.as_secs_f32());
        return Err(io::Error::new(io::ErrorKind::TimedOut, words));
    };
    let until = clock::now() + REST_MAX;
    let (stdout, stderr) = (stdout.take(until), stderr.take(until));
    Ok(Output { status, is_cut: stdout.1 || stderr.1, stdout: stdout.0, stderr: stderr.0 })
}

/// None if the time is over before it ends. It is not waited for then, so that its number is still its own.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// Reads a pipe to its end in a thread of its own, and keeps the beginning.
struct Collector {
    kept: Arc<Mutex<(Vec<u8>, bool)>>,
    ended: mpsc::Receiver<()>,
}

impl Collector {
    fn start(pipe: Option<impl Read + Send + 'static>, bytes_max: usize) -> Collector {
        let kept: Arc<Mutex<(Vec<u8>, bool)>> = Arc::default();
        let (end, ended) = mpsc::channel();
        let into = kept.clone();
        std::thread::spawn(move || {
            let _end = end;
            let mut piece = [0; 8 << 10];
            let Some(mut pipe) = pipe else { return };
            loop {
                let got = match pipe.read(&mut piece) {
                    Ok(0) => return,
                    Ok(got) => got,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
                let mut kept = into.lock().unwrap();
                let fits = got.min(bytes_max - kept.0.len());
                kept.0.extend_from_slice(&piece[..fits]);
                kept.1 |= fits < got;
            }
        });
        Collector { kept, ended }
    }

    /// What came, and whether something was dropped.
    fn take(self, until: Instant) -> (Vec<u8>, bool) {
        let left = until.saturating_duration_since(clock::now());
        let is_whole = self.ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
        let mut kept = self.kept.lock().unwrap();
        (std::mem::take(&mut kept.0), kept.1 || !is_whole)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(60), bytes: 4 << 10 };

    /// Writes a program for `sh`. Another process writes it: a file that we have open for writing can be inherited by a
    /// child of another test, and a program that is open for writing cannot be run.
    pub fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        path
    }

    #[tokio::test]
    async fn words_arrive_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let program =
            script(dir.path(), "say", "cat; for word; do echo \"<$word>\"; done; echo no >&2; exit 3");
        let output = run(&program, &["a b", "$(id)", ";'\"*", ""], LIMITS).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), "<a b>\n<$(id)>\n<;'\"*>\n<>\n");
        assert!(!output.is_cut);
        assert_eq!(output.words(), "exit status: 3: no");
    }

    #[tokio::test]
    async fn a_program_that_talks_too_much_ends_and_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "talk", "head -c 1000000 /dev/zero; exit 0");
        let output = run(&program, &[""; 0], LIMITS).await.unwrap();
        assert!(output.status.success() && output.is_cut);
        assert_eq!(output.stdout.len(), LIMITS.bytes);
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "hang", "sleep 1000 & echo $! > \"$1\"; wait");
        let pid = dir.path().join("pid");
        let limits = Limits { time: Duration::from_secs(2), ..LIMITS };
        let failed = run(&program, &[pid.as_os_str()], limits).await.unwrap_err();
        assert!(
            matches!(&failed, Failed::Other(why) if why.contains("did not end within 2 s")),
            "{failed:?}"
        );
        let pid = std::fs::read_to_string(pid).unwrap();
        // Whoever inherits it may not have waited for it yet. Alone it would run for far longer than this looks.
        let is_alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
        };
        for _ in 0..4_000 {
            if !is_alive() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sys::terminate(pid.trim().parse().unwrap());
        panic!("what it started was not killed");
    }

    #[tokio::test]
    async fn what_it_leaves_behind_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "leave", "sleep 1000 & echo $!");
        let output = run(&program, &[""; 0], LIMITS).await.unwrap();
        assert!(output.status.success());
        let left: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        sys::terminate(left);
    }

    #[tokio::test]
    async fn programs_that_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(run(&dir.path().join("none"), &[""; 0], LIMITS).await.unwrap_err(), Failed::Missing);
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "x").unwrap();
        assert!(matches!(run(&plain, &[""; 0], LIMITS).await, Err(Failed::Other(_))));
    }

    #[test]
    fn foreign_bytes_in_a_line() {
        assert_eq!(one_line(b" a\n\x1b[31mb\t\xff "), "a [31mb \u{fffd}");
        assert_eq!(one_line(&[b'x'; 10_000]).len(), WORDS_MAX);
    }
}
