//! A run of a tool: bounded in time and in words, and gone with us.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{clock, sys};

/// Most bytes of a tool's words that are kept.
const WORDS_MAX: u64 = 4 << 20;
/// Bytes of its last words that a failure shows.
const LAST_WORDS: usize = 200;
const POLL: Duration = Duration::from_millis(20);
/// A server that a client is to find gets this long to listen.
const HEAD_START: Duration = Duration::from_secs(1);
/// Folders deep that results are looked for.
const DEPTH_MAX: usize = 6;

/// What to run.
pub struct Tool {
    name: String,
    command: Command,
    patience: Duration,
}

impl Tool {
    pub fn new(path: &Path, patience: Duration) -> Tool {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Tool { name, command: Command::new(path), patience }
    }

    #[must_use]
    pub fn args<A: AsRef<str>, const N: usize>(mut self, args: [A; N]) -> Tool {
        self.command.args(args.iter().map(AsRef::as_ref));
        self
    }

    fn start(mut self) -> Result<Running, String> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::stop_with_parent(&mut self.command);
        let mut child = self.command.spawn().map_err(|e| format!("{}: {e}", self.name))?;
        let words = [
            child.stdout.take().map(|from| read(Box::new(from))),
            child.stderr.take().map(|from| read(Box::new(from))),
        ];
        Ok(Running { name: self.name, child, words, patience: self.patience })
    }
}

/// Reads to the end, so that the tool never waits for us, and keeps the beginning.
fn read(mut from: Box<dyn Read + Send>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut words = Vec::new();
        let _ = from.by_ref().take(WORDS_MAX).read_to_end(&mut words);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        words
    })
}

struct Running {
    name: String,
    child: Child,
    words: [Option<JoinHandle<Vec<u8>>>; 2],
    patience: Duration,
}

impl Running {
    /// What it wrote to stdout, once it has ended well.
    fn finish(mut self) -> Result<String, String> {
        let begun = clock::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() < self.patience => thread::sleep(POLL),
                Ok(None) => {
                    return Err(format!("{} was stopped after {} s", self.name, self.patience.as_secs()));
                }
                Err(e) => return Err(format!("{}: {e}", self.name)),
            }
        };
        let mut text = |at: usize| {
            let words = self.words[at].take().and_then(|words| words.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&words).into_owned()
        };
        let (out, err) = (text(0), text(1));
        if status.success() {
            return Ok(out);
        }
        let words = if err.trim().is_empty() { out } else { err };
        Err(format!("{} ended with {status}: {}", self.name, last_words(&words)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The end of what a tool said, on one line and without control characters.
fn last_words(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    let line: String = line.join(" ").chars().filter(|c| !c.is_control()).collect();
    let skip = line.chars().count().saturating_sub(LAST_WORDS);
    line.chars().skip(skip).collect()
}

/// Runs a tool; what it wrote to stdout.
pub fn run(tool: Tool) -> Result<String, String> {
    tool.start()?.finish()
}

/// Runs a server and a client of it; what the client wrote to stdout. The server ends with it.
pub fn run_pair(server: Tool, client: Tool) -> Result<String, String> {
    let mut server = server.start()?;
    let begun = clock::now();
    while begun.elapsed() < HEAD_START {
        if matches!(server.child.try_wait(), Ok(Some(_))) {
            // It could not even listen: its words say why.
            return server.finish().and(Err("its server ended at once".into()));
        }
        thread::sleep(POLL);
    }
    run(client)
}

/// A file whose name ends like this, somewhere below a folder.
pub fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => folders.push((path, depth + 1)),
                Ok(kind) if kind.is_file() && entry.file_name().to_string_lossy().ends_with(name) => {
                    return Some(path);
                }
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tool {
        Tool::new(Path::new("/bin/sh"), Duration::from_secs(20)).args(["-c", script])
    }

    #[test]
    fn words_come_back_and_failures_show_the_last_ones() {
        assert_eq!(run(shell("echo 12 GB/s; echo noise >&2")).unwrap(), "12 GB/s\n");
        let why = run(shell("echo fine; echo 'no such\tdevice' >&2; exit 3")).unwrap_err();
        assert!(why.starts_with("sh ended with") && why.ends_with("no such device"), "{why}");
        let why = run(Tool::new(Path::new("/no/such/tool"), Duration::from_secs(1))).unwrap_err();
        assert!(why.starts_with("tool: "), "{why}");
    }

    #[test]
    fn a_tool_that_never_ends_is_stopped() {
        let tool = Tool::new(Path::new("/bin/sh"), Duration::ZERO).args(["-c", "exec sleep 600"]);
        assert_eq!(run(tool).unwrap_err(), "sh was stopped after 0 s");
    }

    #[test]
    fn a_flood_of_words_is_bounded() {
        let words = run(shell("yes x | head -c 10000000")).unwrap();
        assert_eq!(words.len() as u64, WORDS_MAX);
    }

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let why = run_pair(shell("echo no device >&2; exit 1"), shell("echo 5")).unwrap_err();
        assert!(why.contains("no device"), "{why}");
    }

    #[test]
    fn results_are_found_below() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(find_file(folder.path(), "summary.json"), None);
        fs::write(below.join("x_summary.json"), "{}").unwrap();
        assert_eq!(find_file(folder.path(), "summary.json"), Some(below.join("x_summary.json")));
    }
}
