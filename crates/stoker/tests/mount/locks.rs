//! Locks and appends by programs on two mounts of two nodes, and what becomes of a mount that was away.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::sh;
use crate::storm::cell::home;
use crate::storm::{self, Node};

/// Two nodes, and a mount by each.
struct Pair {
    mounts: Vec<(PathBuf, Child)>,
    // In this order: the nodes end before their directories go.
    _nodes: Vec<Node>,
    dir: tempfile::TempDir,
}

impl Pair {
    /// None if volumes cannot be mounted here.
    fn new() -> Option<Pair> {
        if !storm::can_mount() {
            return None;
        }
        let dir = tempfile::TempDir::new().unwrap();
        let lake = dir.path().join("lake");
        fs::create_dir(&lake).unwrap();
        let first = Node::start(&["up", "--lake", lake.to_str().unwrap()], &home(dir.path(), 0));
        let second = Node::join(&first, &[], &home(dir.path(), 1));
        let mounts = [0, 1].map(|at| {
            let mnt = dir.path().join(format!("mnt-{at}"));
            fs::create_dir(&mnt).unwrap();
            let child = storm::mount(&home(dir.path(), at), "data", &mnt, &[]);
            (mnt, child)
        });
        Some(Pair { mounts: mounts.into(), _nodes: vec![first, second], dir })
    }

    fn at(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].0.join(name)
    }

    /// Stops the process of a mount as soon as it hears a line, and lets it go on at the next one. A process that is started later would have to
    /// close what is open on the mount, and wait for it.
    fn remote_control(&self, mount: usize) -> Child {
        let script = "read line; kill -STOP $0; echo stopped; read line; kill -CONT $0; echo goes on";
        let pid = self.mounts[mount].1.id().to_string();
        let mut command = Command::new("sh");
        command.args(["-ec", script, &pid]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    }
}

/// Presses the button, and waits until it is done.
fn press(control: &mut Child) {
    control.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let said = control.stdout.as_mut().unwrap().read(&mut [0; 100]).unwrap();
    assert!(said > 0, "it was not done");
}

impl Drop for Pair {
    fn drop(&mut self) {
        for (at, child) in self.mounts.drain(..) {
            storm::unmount(&at, child);
        }
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Adds one to the number in a file, so often, each time under a lock.
const COUNTER: &str = "import fcntl, os, sys
path, how, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
for _ in range(rounds):
    (fcntl.flock if how == 'flock' else fcntl.lockf)(fd, fcntl.LOCK_EX)
    number = int(os.pread(fd, 100, 0) or 0)
    os.pwrite(fd, str(number + 1).encode(), 0)
    (fcntl.flock if how == 'flock' else fcntl.lockf)(fd, fcntl.LOCK_UN)
";

#[test]
fn who_has_a_lock_is_alone_and_sees_what_the_one_before_wrote() {
    let Some(pair) = Pair::new() else { return };
    fs::write(pair.dir.path().join("counter.py"), COUNTER).unwrap();
    let script = "for how in flock fcntl; do
        for mount in 0 1 0 1; do python3 counter.py mnt-$mount/$how $how 25 & all=\"$all $!\"; done
        for one in $all; do wait $one; done; all=
        for mount in 0 1; do test $(cat mnt-$mount/$how) = 100; done
    done";
    sh(pair.dir.path(), &["python3"], script);
}

#[test]
fn locks_mean_the_same_between_mounts_as_between_processes() {
    let Some(pair) = Pair::new() else { return };
    fs::write(pair.at(0, "f"), b"0123456789").unwrap();
    let (a, b) = (open(&pair.at(0, "f")), open(&pair.at(1, "f")));
    a.lock_shared().unwrap();
    b.try_lock_shared().unwrap();
    assert!(matches!(a.try_lock(), Err(TryLockError::WouldBlock)), "two share it");
    b.unlock().unwrap();
    a.try_lock().unwrap();
    assert!(matches!(b.try_lock_shared(), Err(TryLockError::WouldBlock)));
    let other = open(&pair.at(0, "f"));
    assert!(
        matches!(other.try_lock(), Err(TryLockError::WouldBlock)),
        "each open file is somebody of its own"
    );
    // A copy of the descriptor is the same open file: the lock ends with the last of them.
    let copy = a.try_clone().unwrap();
    drop(a);
    assert!(matches!(b.try_lock(), Err(TryLockError::WouldBlock)));
    drop(copy);
    // Linux frees it some moments after the close returned.
    b.lock().unwrap();
    drop(b);

    // Ranges, and what becomes of them when a process closes any descriptor of the file, or ends.
    let script = "import fcntl, os, signal, struct, subprocess, sys
here, there = sys.argv[1:3]
def tries(path, kind, start, len):
    code = '''import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try: fcntl.lockf(fd, int(sys.argv[2]) | fcntl.LOCK_NB, int(sys.argv[4]), int(sys.argv[3]))
except BlockingIOError: sys.exit(7)'''
    return subprocess.run([sys.executable, '-c', code, path, str(int(kind)), str(start), str(len)]).returncode == 0
fd = os.open(here, os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 100, 100)
fcntl.lockf(fd, fcntl.LOCK_SH, 10, 0)
for path in (here, there):
    assert not tries(path, fcntl.LOCK_SH, 150, 10), path
    assert not tries(path, fcntl.LOCK_EX, 5, 1), path
    assert tries(path, fcntl.LOCK_SH, 5, 1), path
    assert tries(path, fcntl.LOCK_EX, 200, 0), path
    assert tries(path, fcntl.LOCK_EX, 20, 80), path
fcntl.lockf(fd, fcntl.LOCK_UN, 20, 140)
for path in (here, there):
    assert tries(path, fcntl.LOCK_EX, 140, 20), path
    assert not tries(path, fcntl.LOCK_EX, 139, 2), path
    assert not tries(path, fcntl.LOCK_EX, 160, 1), path
# Who asks from another mount hears that somebody has it, and where.
ask = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1000, 0)
other = os.open(there, os.O_RDWR)
kind, _, start, length, pid = struct.unpack('hhqqi4x', fcntl.fcntl(other, fcntl.F_GETLK, ask))
assert (kind, start, length) == (fcntl.F_RDLCK, 0, 10), (kind, start, length)
# A signal calls away whoever waits; it has nothing then.
class Called(Exception): pass
def call(*_): raise Called()
signal.signal(signal.SIGALRM, call)
signal.setitimer(signal.ITIMER_REAL, 1)
try:
    fcntl.lockf(other, fcntl.LOCK_EX, 10, 100)
    raise AssertionError('two have it')
except Called:
    pass
# Closing any descriptor gives back all that the process has there.
os.close(os.open(here, os.O_RDONLY))
assert tries(there, fcntl.LOCK_EX, 0, 0)
fcntl.lockf(fd, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    fd = os.open(there + '2', os.O_RDWR | os.O_CREAT)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
fd = os.open(here + '2', os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX)
";
    fs::write(pair.dir.path().join("ranges.py"), script).unwrap();
    sh(pair.dir.path(), &["python3"], "python3 ranges.py mnt-0/f mnt-1/f");
}

/// A mount that is away for longer than a lease loses its locks, and what is written after that goes nowhere.
#[test]
fn who_lost_a_lock_writes_nothing_more() {
    let Some(pair) = Pair::new() else { return };
    fs::write(pair.at(0, "f"), b"before").unwrap();
    let mut control = pair.remote_control(0);
    let mut away = open(&pair.at(0, "f"));
    away.lock().unwrap();
    away.write_all(b"mine, and not published").unwrap();
    press(&mut control);
    let mut heir = open(&pair.at(1, "f"));
    // Waits until the lease is over.
    heir.lock().unwrap();
    let mut found = String::new();
    heir.read_to_string(&mut found).unwrap();
    assert!(found == "before" || found == "mine, and not published", "{found}");
    heir.rewind().unwrap();
    heir.set_len(0).unwrap();
    heir.write_all(b"theirs").unwrap();
    heir.sync_all().unwrap();
    press(&mut control);
    assert!(control.wait().unwrap().success());
    // The mount hears of it before it publishes anything.
    let told = away.write_all(b"late").and_then(|()| away.sync_all());
    let told = told.and_then(|()| {
        std::thread::sleep(Duration::from_secs(1));
        away.sync_all()
    });
    assert_eq!(told.unwrap_err().kind(), ErrorKind::StaleNetworkFileHandle);
    drop(away);
    assert_eq!(fs::read(pair.at(1, "f")).unwrap(), b"theirs");
    assert_eq!(fs::read(pair.at(0, "f")).unwrap(), b"theirs", "opened again, it is a file like any other");
    // And can be locked again, once it is free.
    let again = open(&pair.at(0, "f"));
    assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
    drop(heir);
    again.lock().unwrap();
}

#[test]
fn appends_from_two_mounts_keep_every_line() {
    const WRITERS: usize = 6;
    const LINES: usize = 150;
    let Some(pair) = Pair::new() else { return };
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let path = pair.at(writer % 2, "log");
            std::thread::spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for line in 0..LINES {
                    log.write_all(format!("{writer} {line} {}\n", "x".repeat(line % 70)).as_bytes()).unwrap();
                    if line % 10 == writer {
                        log.sync_all().unwrap();
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for mount in 0..2 {
        let text = fs::read_to_string(pair.at(mount, "log")).unwrap();
        let mut next = [0; WRITERS];
        for found in text.lines() {
            let words: Vec<&str> = found.split(' ').collect();
            let (writer, line): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            assert_eq!(next[writer], line, "writer {writer}: {found:?}");
            assert_eq!(words[2], "x".repeat(line % 70));
            next[writer] += 1;
        }
        assert_eq!(next, [LINES; WRITERS], "mount {mount}");
    }
}
