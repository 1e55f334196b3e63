//! A node in a process of its own, and the binary that asks it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A running node. A test that fails takes it along.
pub struct Node {
    pub child: Child,
    pub ready: Value,
    pub dir: PathBuf,
}

impl Node {
    pub fn up(dir: &Path) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.args(["up", "--json", "--size", "256MiB", "--memory", "256MiB", "--dir"]).arg(dir);
        command.args(["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Node::start(command, dir)
    }

    pub fn start(mut command: Command, dir: &Path) -> Node {
        command.env_remove("STOKER_DIR").stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not ready: {e}: {line}"));
        Node { child, ready, dir: dir.to_owned() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a node in it, and room for local files beside it.
pub struct Rig {
    pub node: Node,
    pub folder: tempfile::TempDir,
}

pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {} {}", self.text(), self.err))
    }

    pub fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }

    pub fn json_lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Asks the node in that directory.
pub fn ask(dir: &Path, args: &[&str]) -> Ran {
    ran(binary().args(args).env("STOKER_DIR", dir))
}

/// Asks the node in that directory for something that works.
#[track_caller]
pub fn done(dir: &Path, args: &[&str]) -> Ran {
    let ran = ask(dir, args);
    assert_eq!(ran.code, 0, "stoker {args:?}: {}{}", ran.text(), ran.err);
    ran
}

pub fn ran(command: &mut Command) -> Ran {
    let done = command.output().unwrap();
    Ran {
        code: done.status.code().unwrap_or(-1),
        out: done.stdout,
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    for name in ["STOKER_DIR", "STOKER_ENDPOINT", "STOKER_TOKEN"] {
        command.env_remove(name);
    }
    command
}

impl Rig {
    pub fn new() -> Rig {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let node = Node::up(&folder.path().join("node"));
        Rig { node, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary, with the folder of local files as its own.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = binary();
        command.args(args).env("STOKER_DIR", &self.node.dir).current_dir(self.folder.path());
        command
    }

    pub fn run(&self, args: &str) -> Ran {
        ran(&mut self.command(&args.split(' ').collect::<Vec<_>>()))
    }

    #[track_caller]
    pub fn succeed(&self, args: &str) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "stoker {args}: {}{}", ran.text(), ran.err);
        ran
    }

    /// Fails with exit code 1, prints nothing as data, names the cause and gives the hint.
    #[track_caller]
    pub fn refuse(&self, args: &str, cause: &str, hint: &str) {
        let ran = self.run(args);
        assert_eq!(ran.code, 1, "stoker {args}: {}{}", ran.text(), ran.err);
        assert!(ran.out.is_empty(), "stoker {args} printed data: {}", ran.text());
        assert!(ran.err.starts_with("stoker: ") && ran.err.contains(cause), "stoker {args}: {}", ran.err);
        assert!(
            hint.is_empty() || ran.err.contains(&format!("  hint: {hint}")),
            "stoker {args}: {}",
            ran.err
        );
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }
}

pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Names and contents of the files below a folder; sockets have none. What a node that runs takes away meanwhile is left out.
pub fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in there(fs::read_dir(&next)).into_iter().flatten() {
            let entry = entry.unwrap();
            let path = entry.path();
            let Some(kind) = there(entry.file_type()) else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && let Some(bytes) = there(fs::read(&path))
            {
                found.push((path.strip_prefix(folder).unwrap().to_owned(), bytes));
            }
        }
    }
    found.sort();
    found
}

/// What was read, unless it is not there any more.
#[track_caller]
fn there<T>(read: std::io::Result<T>) -> Option<T> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.unwrap()),
    }
}

/// Waits until something holds; the time is a limit for a broken node, not an order of events.
#[track_caller]
pub fn wait_for(holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("never came true");
}
