//! A server of the benchmark's own: started, listened to, measured and always stopped.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::{clock, sys};

/// Linux counts CPU time for user space in hundredths of a second, whatever its own tick is.
const TICKS_PER_S: f64 = 100.0;
/// A server has this long to be ready, and to stop.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);
/// What is dropped while it runs has this many polls to stop by itself.
const STOP_POLLS: u32 = 50;
/// Lines of a log that a failure shows.
const LOG_LINES: usize = 8;

/// A running server; killed when dropped, and by the kernel if we are killed.
pub struct Process {
    name: &'static str,
    child: RefCell<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts it with its words going to a file.
    pub fn start(name: &'static str, mut command: Command, log: PathBuf) -> Result<Process, Failure> {
        let failed = |e| Failure::io(log.display(), &e);
        let words = File::options().append(true).create(true).open(&log).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(words);
        sys::stop_with_parent(&mut command);
        let child = command.spawn().map_err(|e| Failure::io(name, &e))?;
        Ok(Process { name, child: child.into(), log })
    }

    /// The first line that it prints.
    pub fn first_line(&self) -> Result<String, Failure> {
        let stdout = self
            .child
            .borrow_mut()
            .stdout
            .take()
            .ok_or_else(|| Failure::new("the output was taken before"))?;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            let _ = tell.send(lines.next().and_then(Result::ok));
            // Read to the end, so that it never has to wait for us.
            lines.for_each(drop);
        });
        match told.recv_timeout(PATIENCE) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(self.failure("stopped before it was ready")),
            Err(_) => Err(self.failure("is not ready after two minutes")),
        }
    }

    /// Waits until it takes connections.
    pub fn wait_for(&self, address: SocketAddr) -> Result<(), Failure> {
        self.wait_until("does not take connections", || TcpStream::connect(address).is_ok())
    }

    /// Waits until something holds, asked again and again.
    pub fn wait_until(&self, or: &str, mut holds: impl FnMut() -> bool) -> Result<(), Failure> {
        let begun = clock::now();
        while begun.elapsed() < PATIENCE {
            if holds() {
                return Ok(());
            }
            if self.has_ended() {
                return Err(self.failure("stopped"));
            }
            thread::sleep(POLL);
        }
        Err(self.failure(or))
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(&self) -> Result<(), Failure> {
        sys::terminate(self.pid());
        self.wait()
    }

    /// Waits until it has stopped by itself.
    pub fn wait(&self) -> Result<(), Failure> {
        let begun = clock::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.child.borrow_mut().try_wait() {
                return if status.success() {
                    Ok(())
                } else {
                    Err(self.failure(&format!("ended with {status}")))
                };
            }
            thread::sleep(POLL);
        }
        Err(self.failure("does not stop"))
    }

    /// User and system time of the server and of the processes that it started, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let server = self.pid();
        let stats = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((pid, parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
        });
        let ticks = stats.filter(|(pid, stat)| *pid == server || stat.parent == server);
        ticks.map(|(_, stat)| stat.ticks as f64 / TICKS_PER_S).sum()
    }

    /// What it takes of the machine's memory, without the processes that it started.
    pub fn memory(&self) -> Result<Memory, Failure> {
        let path = format!("/proc/{}/status", self.pid());
        let text = fs::read_to_string(&path).map_err(|e| Failure::io(&path, &e))?;
        parse_memory(&text).ok_or_else(|| self.failure("does not tell its memory"))
    }

    fn pid(&self) -> u32 {
        self.child.borrow().id()
    }

    fn has_ended(&self) -> bool {
        !matches!(self.child.borrow_mut().try_wait(), Ok(None))
    }

    /// What went wrong, with the last words of the server.
    pub fn failure(&self, what: &str) -> Failure {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        Failure::new(format!("{} {what}", self.name)).hint(if last.is_empty() {
            "it said nothing".into()
        } else {
            last
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // A master that is killed outright leaves its workers behind; one that is asked takes them along.
        sys::terminate(self.pid());
        for _ in 0..STOP_POLLS {
            if self.has_ended() {
                return;
            }
            thread::sleep(POLL);
        }
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub resident_bytes: u64,
    /// The most so far.
    pub resident_max_bytes: u64,
}

/// Reads `/proc/PID/status`.
fn parse_memory(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    Some(Memory { resident_bytes: field("VmRSS")?, resident_max_bytes: field("VmHWM")? })
}

struct Stat {
    parent: u32,
    ticks: u64,
}

/// Reads `/proc/PID/stat`. The name of the program is in parentheses and may hold anything.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks: number(11)? + number(12)? })
}

/// A port of this machine that nobody listens on.
pub fn free_port() -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|e| Failure::io("127.0.0.1", &e))
}

/// A program by the variable that names it, else by a name on the path or in one of the other places.
pub fn find_program(variable: &str, name: &str, places: &[PathBuf]) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).map(|folder| folder.join(name));
    folders.chain(places.iter().cloned()).find(|path| path.is_file())
}

/// Where `tests/clients/run.py` puts the programs that it installs.
pub fn test_cache() -> PathBuf {
    match std::env::var_os("STOKER_CACHE") {
        Some(path) => PathBuf::from(path),
        None => {
            let home = std::env::var_os("HOME").unwrap_or_default();
            Path::new(&home).join(".cache/stoker-tests")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_look_like_fields() {
        let line = "77 (a) 1 (b) S 12 77 77 0 -1 4194560 103 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.parent, stat.ticks), (12, 300));
        for broken in ["", "77 (a", "77 (a) S", "77 (a) S x 1 1 1 1 1 1 1 1 1 1 1 1"] {
            assert!(parse_stat(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn memory_is_told_in_bytes() {
        let text = "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nVmSwap:\t 0 kB\n";
        let expect = Memory { resident_bytes: 1 << 20, resident_max_bytes: 2 << 20 };
        assert_eq!(parse_memory(text), Some(expect));
        for broken in ["", "VmRSS:\t1 kB\n", "VmHWM:\tx kB\nVmRSS:\t1 kB\n", "VmHWM: 1\nVmRSS: 1\n"] {
            assert_eq!(parse_memory(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_server_that_fails_shows_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck >&2; exit 3"]);
        let process = Process::start("sh", command, dir.path().join("log")).unwrap();
        let text = format!("{:?}", process.first_line().unwrap_err());
        assert!(text.contains("no such luck"), "{text}");
    }

    #[test]
    fn a_server_is_measured_with_its_children_and_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap 'kill $!; exit 0' TERM; (i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; \
             echo ready; exec sleep 60) & wait",
        ]);
        let process = Process::start("sh", command, dir.path().join("log")).unwrap();
        assert_eq!(process.first_line().unwrap(), "ready");
        assert!(process.cpu_seconds() > 0.0);
        process.stop().unwrap();
    }
}
