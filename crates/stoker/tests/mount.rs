//! Real programs on a real mount. Where the machine has no FUSE, or not for us, the tests say so and pass.

#[path = "mount/coherence.rs"]
mod coherence;
#[path = "mount/durable.rs"]
mod durable;
#[path = "mount/locks.rs"]
mod locks;
#[path = "mount/options.rs"]
mod options;
#[path = "mount/posix.rs"]
mod posix;
mod storm;
#[path = "mount/verb.rs"]
mod verb;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

use storm::Node;

/// A node, a volume, and the volume mounted.
struct Rig {
    dir: tempfile::TempDir,
    node: Option<Node>,
    mount: Child,
}

impl Rig {
    /// None if volumes cannot be mounted here.
    fn new() -> Option<Rig> {
        Rig::with(&["up"])
    }

    /// The same with a node that is started like this.
    fn with(verb: &[&str]) -> Option<Rig> {
        if !storm::can_mount() {
            return None;
        }
        let dir = tempfile::TempDir::new().unwrap();
        let node = Node::start(verb, &dir.path().join("node"));
        stoker(dir.path(), &["volume", "create", "files"]);
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let mount = mount(dir.path(), &[]);
        Some(Rig { dir, node: Some(node), mount })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    fn restart(&mut self) {
        self.node.take().unwrap().kill();
        self.node = Some(Node::up(&self.dir.path().join("node")));
    }

    /// Takes the mount away and makes it again: nothing is left in the memory of the kernel or the process.
    fn remount(&mut self) {
        stoker(self.dir.path(), &["umount", self.path("").to_str().unwrap()]);
        assert!(self.mount.wait().unwrap().success());
        self.mount = mount(self.dir.path(), &[]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mnt = self.path("");
        let _ = Command::new(env!("CARGO_BIN_EXE_stoker")).arg("umount").arg("--lazy").arg(mnt).status();
        let _ = self.mount.kill();
        let _ = self.mount.wait();
        if let Some(node) = self.node.take() {
            node.kill();
        }
    }
}

fn stoker(dir: &Path, args: &[&str]) {
    let done =
        Command::new(env!("CARGO_BIN_EXE_stoker")).env("STOKER_DIR", dir.join("node")).args(args).output();
    let done = done.unwrap();
    assert!(done.status.success(), "stoker {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn mount(dir: &Path, args: &[&str]) -> Child {
    storm::mount(&dir.join("node"), "files", &dir.join("mnt"), args)
}

/// Runs a shell script in a directory; false if a program that it needs is not here.
fn sh(at: &Path, needs: &[&str], script: &str) -> bool {
    for program in needs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !found.status.success() {
            stoker_testing::skipped(format_args!("this machine has no {program}"));
            return false;
        }
    }
    let done = Command::new("sh").args(["-ec", script]).current_dir(at).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{script}\n{}\n{words}", String::from_utf8_lossy(&done.stdout));
    true
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A folder beside the mount with files of many lengths, links and modes.
fn sample(rig: &Rig) -> PathBuf {
    let from = rig.dir.path().join("sample");
    for (at, len) in [0, 1, 4095, 4096, 4097, 130_000, 1 << 20, 9_000_000].into_iter().enumerate() {
        let folder = from.join(format!("d{}/deep", at % 3));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("file {at}"));
        fs::write(&path, bytes(at as u64, len)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + at as u32)).unwrap();
    }
    symlink("deep/file 0", from.join("d0/link")).unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    fs::create_dir(from.join("empty")).unwrap();
    from
}

#[test]
fn files_have_several_names() {
    let Some(mut rig) = Rig::new() else { return };
    let mnt = rig.path("");
    let first =
        "echo one > a; mkdir d; ln a d/b; test $(stat -c %h a) = 2; test $(stat -c %i a) = $(stat -c %i d/b)
        echo two >> d/b; printf 'one\\ntwo\\n' | cmp - a
        exec 3>>a; rm a; echo three >&3; exec 3>&-; printf 'one\\ntwo\\nthree\\n' | cmp - d/b
        test $(stat -c %h d/b) = 1; ln d/b c; chmod 604 c; test $(stat -c %a d/b) = 604
        if ln d e || ln c d/b; then exit 9; fi; python3 -c 'import os; os.rename(\"d/b\", \"c\")'; test -e d/b; test -e c
        ln -s c link; ln -P link link2; test $(stat -c %h link2) = 2; rm link link2";
    if !sh(&mnt, &["stat", "cmp", "python3"], first) {
        return;
    }
    rig.remount();
    sh(&mnt, &["cp", "diff"], "cp -al d copy; test $(stat -c %h copy/b) = 3; diff -r d copy; rm -r copy");
    sh(
        &mnt,
        &["git"],
        "export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD; mkdir repo; cd repo; git init -q .; echo 1 > f; git add f
        git -c user.name=n -c user.email=e commit -qm m; cd ..; git clone -q --local repo clone; cd clone; git fsck --strict
        cd ..; test -n \"$(find clone/.git/objects -type f -links 2)\"; rm -rf repo; cd clone; git fsck --strict; git log --oneline",
    );
    rig.restart();
    sh(&mnt, &["stat"], "test $(stat -c %h c) = 2; printf 'one\\ntwo\\nthree\\n' | cmp - c");
}

/// The ends of a file of a terabyte, how much of it is stored, and where.
const FAR: &str = "import os
TIB = 1 << 40
fd = os.open('big', os.O_RDWR)
stat = os.fstat(fd)
assert stat.st_size == TIB + 4 and stat.st_blocks <= 8, stat
assert os.pread(fd, 1 << 16, 0) == bytes(1 << 16) and os.pread(fd, 99, TIB - 2) == b'\\0\\0last'
assert os.lseek(fd, 0, os.SEEK_DATA) == TIB and os.lseek(fd, TIB, os.SEEK_HOLE) == TIB + 4
assert os.lseek(fd, 7, os.SEEK_HOLE) == 7 and os.lseek(fd, 0, os.SEEK_END) == TIB + 4
for whence in (os.SEEK_DATA, os.SEEK_HOLE):
    try:
        os.lseek(fd, TIB + 4, whence)
    except OSError as error:
        assert error.errno == 6, error
    else:
        raise AssertionError('nothing is there')";

#[test]
fn holes_take_no_space_and_do_not_drain_for_ever() {
    let Some(mut rig) = Rig::new() else { return };
    let mnt = rig.path("");
    fs::write(rig.dir.path().join("far.py"), FAR).unwrap();
    let needs = ["truncate", "python3", "du", "cp", "fallocate"];
    let make = "truncate -s 1T big; test $(stat -c '%s %b' big | tr ' ' -) = 1099511627776-0
        printf last | dd of=big bs=4 seek=274877906944 conv=notrunc status=none; python3 ../far.py; test $(du -k big | cut -f1) -le 4
        cp --sparse=always big copy; mv copy big; python3 ../far.py";
    if !sh(&mnt, &needs, make) {
        return;
    }
    rig.remount();
    sh(&mnt, &needs, "python3 ../far.py");
    // What was written and is punched out takes no space either.
    let data = bytes(1, 6 << 20);
    fs::write(rig.path("f"), &data).unwrap();
    sh(
        &mnt,
        &needs,
        "test $(stat -c %b f) = 12288; fallocate -p -o 1048576 -l 2097152 f; sync f; test $(stat -c %b f) = 8192
        fallocate -z -o 5242880 -l 4194304 f; fallocate -n -o 0 -l 99999999 f; fallocate -l 10485760 f; sync f
        test $(stat -c '%s-%b' f) = 10485760-6144; cp --sparse=auto f g; cmp f g; test $(stat -c %b g) -le 6144",
    );
    let mut expect = data;
    expect[1 << 20..3 << 20].fill(0);
    expect[5 << 20..].fill(0);
    expect.resize(10 << 20, 0);
    assert!(fs::read(rig.path("f")).unwrap() == expect);
    rig.restart();
    assert!(fs::read(rig.path("f")).unwrap() == expect);
    // All of it goes to the lake but the one that would be a terabyte of zeros there.
    let node = rig.dir.path().join("node");
    let tell = |args: &[&str]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_stoker")).env("STOKER_DIR", &node).args(args).output().unwrap();
        (done.status.success(), [done.stdout, done.stderr].concat())
    };
    let (is_done, words) = tell(&["drain", "files", "--wait"]);
    let words = String::from_utf8_lossy(&words).into_owned();
    assert!(!is_done && words.contains("big") && words.contains("sparse"), "{words}");
    for verb in [&["conflict", "ls"][..], &["explain", "files/big"]] {
        let (is_done, words) = tell(verb);
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(is_done && words.contains("4 of its 1099511627780 bytes are stored"), "{verb:?}: {words}");
    }
    for name in ["f", "g"] {
        let lake = node.join("lake/files").join(name);
        stoker(rig.dir.path(), &["wait", &format!("files/{name}"), "--drained"]);
        assert!(fs::read(lake).unwrap() == expect, "{name}");
    }
    assert!(!node.join("lake/files/big").exists());
    sh(&mnt, &needs, "python3 ../far.py; truncate -s 0 big; rm big f g");
}

/// `renameat2` of the C library, with these flags.
const RENAME: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
done = libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), int(sys.argv[3]))
print(0 if done == 0 else ctypes.get_errno())";

#[test]
fn names_are_exchanged() {
    let Some(mut rig) = Rig::new() else { return };
    let mnt = rig.path("");
    if !sh(&mnt, &["python3"], "echo one > a; echo two > b; mkdir d e; echo in > d/f; echo out > e/g") {
        return;
    }
    let (exchange, whiteout) = (libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT);
    let rename = |from: &str, to: &str, flags: u32| -> i32 {
        let flags = flags.to_string();
        let done = Command::new("python3").args(["-c", RENAME, from, to, &flags]).current_dir(&mnt).output();
        String::from_utf8(done.unwrap().stdout).unwrap().trim().parse().unwrap()
    };
    assert_eq!(rename("a", "b", exchange), 0);
    assert_eq!(rename("d", "e", exchange), 0);
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"two\n");
    assert_eq!(fs::read(rig.path("e/f")).unwrap(), b"in\n");
    assert_eq!(rename("a", "d", exchange), 0);
    assert_eq!(fs::read(rig.path("a/g")).unwrap(), b"out\n");
    assert_eq!(rename("a", "nothing", exchange), libc::ENOENT);
    assert_eq!(rename("a", "a/g", exchange), libc::EINVAL);
    assert_eq!(rename("b", "c", whiteout), libc::EINVAL);
    rig.remount();
    for (name, bytes) in [("d", "two\n"), ("b", "one\n"), ("e/f", "in\n"), ("a/g", "out\n")] {
        assert_eq!(fs::read(rig.path(name)).unwrap(), bytes.as_bytes(), "{name}");
    }
}

#[test]
fn folders_are_copied_and_packed_as_they_are() {
    let Some(mut rig) = Rig::new() else { return };
    let from = sample(&rig);
    let mnt = rig.path("");
    assert!(sh(
        &mnt,
        &["cp", "diff", "tar"],
        &format!("cp -a {} copy && diff -r --no-dereference {0} copy", from.display())
    ));
    sh(
        &mnt,
        &[],
        "mkdir out && tar cf a.tar copy && tar xf a.tar -C out && diff -r --no-dereference copy out/copy",
    );
    rig.remount();
    sh(&mnt, &[], &format!("diff -r --no-dereference {} out/copy", from.display()));
    // Modes and times, too.
    let show = "find . -type f -printf '%P %m %s %T@ %y %l\\n' | sort";
    let list = |at: &Path| {
        let done = Command::new("sh").args(["-c", show]).current_dir(at).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(list(&from), list(&mnt.join("copy")));
    sh(&mnt, &[], "rm -r copy out a.tar && test -z \"$(ls -A)\"");
}

#[test]
fn git_and_sqlite_work() {
    let Some(mut rig) = Rig::new() else { return };
    let from = sample(&rig);
    let mnt = rig.path("");
    let git = format!(
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
         git init -q a && cp -r {}/. a && cd a && git config user.email a@b && git config user.name n
         git add -A && git commit -qm one && echo x >> 'd1/deep/file 1' && git commit -qam two
         cd .. && git clone -q a b && cd b && git gc -q && git fsck --strict && test -z \"$(git status --porcelain)\"
         git log --oneline | wc -l | grep -q 2",
        from.display()
    );
    sh(&mnt, &["git"], &git);
    let sqlite = "python3 - <<'E'
import sqlite3, threading
def work(n):
    db = sqlite3.connect('db.sqlite', timeout=60)
    for at in range(15):
        with db:
            db.execute('insert into t values (?, ?)', (n * 1000 + at, 'x' * 900))
    db.close()
db = sqlite3.connect('db.sqlite')
db.execute('create table t (id integer primary key, text text)')
db.commit()
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
assert db.execute('select count(*) from t').fetchone() == (45,)
assert db.execute('pragma integrity_check').fetchone() == ('ok',)
db.execute('delete from t where id % 2'); db.commit(); db.execute('vacuum')
db.close()
E";
    if sh(&mnt, &["python3"], sqlite) {
        rig.remount();
        let check = "python3 -c \"import sqlite3; db = sqlite3.connect('db.sqlite'); \
                     assert db.execute('pragma integrity_check').fetchone() == ('ok',); \
                     assert db.execute('select count(*) from t').fetchone()[0] == 24\"";
        sh(&mnt, &[], check);
    }
}

#[test]
fn calls_mean_what_they_mean_elsewhere() {
    let Some(mut rig) = Rig::new() else { return };
    let at = |name: &str| rig.path(name);
    // Appends go to the end, wherever the writer stands.
    fs::write(at("log"), "one\n").unwrap();
    let mut log = OpenOptions::new().append(true).open(at("log")).unwrap();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.write_all(b"two\n").unwrap();
    assert_eq!(fs::read_to_string(at("log")).unwrap(), "one\ntwo\n");
    // A name is made once.
    let exclusive = |name: &str| OpenOptions::new().write(true).create_new(true).open(at(name));
    exclusive("lock").unwrap();
    assert_eq!(exclusive("lock").unwrap_err().kind(), ErrorKind::AlreadyExists);
    // A file without a name lives while it is open.
    let mut gone =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(at("gone")).unwrap();
    gone.write_all(b"before").unwrap();
    fs::remove_file(at("gone")).unwrap();
    gone.write_all(b" after").unwrap();
    gone.sync_all().unwrap();
    let mut text = String::new();
    gone.seek(SeekFrom::Start(0)).unwrap();
    gone.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), gone.metadata().unwrap().nlink()), ("before after", 0));
    assert!(!at("gone").exists());
    // A rename replaces, and whoever has the old one open keeps it.
    fs::write(at("new"), "new").unwrap();
    let old = File::open(at("log")).unwrap();
    fs::rename(at("new"), at("log")).unwrap();
    assert_eq!(fs::read(at("log")).unwrap(), b"new");
    let mut held = [0; 3];
    old.read_exact_at(&mut held, 4).unwrap();
    assert_eq!(&held, b"two");
    // Directories move with what is in them, over empty ones.
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/c/file"), "deep").unwrap();
    fs::create_dir(at("z")).unwrap();
    fs::rename(at("a"), at("z")).unwrap();
    assert_eq!(fs::read(at("z/b/c/file")).unwrap(), b"deep");
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::rename(at("z"), at("z/b/c/d"))), Some(libc::EINVAL));
    assert_eq!(errno(fs::remove_dir(at("z"))), Some(libc::ENOTEMPTY));
    assert_eq!(errno(fs::remove_file(at("z"))), Some(libc::EISDIR));
    assert_eq!(errno(fs::create_dir(at("z"))), Some(libc::EEXIST));
    assert_eq!(errno(fs::write(at(&"x".repeat(256)), "")), Some(libc::ENAMETOOLONG));
    assert_eq!(errno(fs::write(at("log/x"), "")), Some(libc::ENOTDIR));
    assert_eq!(errno(fs::hard_link(at("z"), at("link"))), Some(libc::EPERM));
    assert_eq!(errno(fs::hard_link(at("log"), at("z"))), Some(libc::EEXIST));
    symlink("loop", at("loop")).unwrap();
    assert_eq!(errno(fs::write(at("loop"), "")), Some(libc::ELOOP));
    // Holes are zeros; the length is what it was set to.
    let sparse =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(at("sparse")).unwrap();
    sparse.write_all_at(b"end", 3_000_000).unwrap();
    sparse.set_len(4_000_000).unwrap();
    drop(sparse);
    let mut expect = vec![0; 4_000_000];
    expect[3_000_000..3_000_003].copy_from_slice(b"end");
    // Bytes of O_DIRECT are the same.
    fs::write(at("direct"), bytes(5, 1 << 20)).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(at("direct")).unwrap();
    let mut read = vec![0; 1 << 20];
    direct.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes(5, 1 << 20));
    drop((log, gone, old, direct));
    let xattr = "python3 -c \"
import os
os.setxattr('log', 'user.name', b'value'); assert os.getxattr('log', 'user.name') == b'value'
assert os.listxattr('log') == ['user.name']
os.chmod('log', 0o640); os.utime('log', ns=(5, 1234567890123456789))
import mmap
f = open('sparse', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[10:14] = b'mmap'; m.flush(); m.close(); f.close()
import fcntl
f = open('lock'); fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)
\"";
    let has_python = sh(&rig.path(""), &["python3"], xattr);
    rig.remount();
    let at = |name: &str| rig.path(name);
    if has_python {
        expect[10..14].copy_from_slice(b"mmap");
        let meta = fs::metadata(at("log")).unwrap();
        assert_eq!(
            (meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()),
            (0o640, 1_234_567_890, 123_456_789)
        );
        sh(&at(""), &[], "python3 -c \"import os; assert os.getxattr('log', 'user.name') == b'value'\"");
    }
    assert!(fs::read(at("sparse")).unwrap() == expect);
    assert_eq!(fs::read(at("z/b/c/file")).unwrap(), b"deep");
}

/// The node is killed again and again while files are copied. Programs wait, and nothing is missing.
/// The kernel still sends that files were closed when nobody uses the mount any more.
#[test]
fn a_mount_that_was_just_used_ends_well() {
    let Some(mut rig) = Rig::new() else { return };
    for round in 0..8 {
        let open: Vec<File> =
            (0..300).map(|at| File::create(rig.path(&format!("{round} {at}"))).unwrap()).collect();
        drop(open);
        rig.remount();
        assert_eq!(fs::read_dir(rig.path("")).unwrap().count(), 300 * (round + 1));
    }
}

#[test]
fn a_node_that_is_killed_is_waited_for() {
    let Some(mut rig) = Rig::new() else { return };
    let from = sample(&rig);
    let mnt = rig.path("");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let script = format!(
                    "rm -rf copy && cp -r {} copy && diff -r --no-dereference {0} copy",
                    from.display()
                );
                sh(&mnt, &[], &script);
                rounds += 1;
            }
            rounds
        });
        for _ in 0..3 {
            // Something is on its way when it dies.
            while !mnt.join("copy/d1").exists() && !copying.is_finished() {
                std::thread::yield_now();
            }
            rig.restart();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(copying.join().unwrap() > 0);
    });
    rig.remount();
    sh(&mnt, &[], &format!("diff -r --no-dereference {} copy", from.display()));
}

/// What was synced is there after the mount process was killed, and the directory can be mounted again.
#[test]
fn a_mount_that_is_killed_loses_nothing_that_was_synced() {
    let Some(mut rig) = Rig::new() else { return };
    let mut synced = Vec::new();
    for at in 0..20u64 {
        let (name, content) = (format!("f{at}"), bytes(at, 1000 * at as usize));
        let mut file = File::create(rig.path(&name)).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        file.write_all(b"not synced").unwrap();
        // Left open: closing would sync.
        std::mem::forget(file);
        synced.push((name, content));
    }
    rig.mount.kill().unwrap();
    rig.mount.wait().unwrap();
    assert_eq!(fs::metadata(rig.path("")).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    rig.mount = mount(rig.dir.path(), &[]);
    for (name, content) in synced {
        let found = fs::read(rig.path(&name)).unwrap();
        assert!(found.starts_with(&content), "{name}");
    }
}

/// As a data loader keeps its shards: open before the drain, read after the eviction, whatever becomes of the name.
#[test]
fn a_file_that_stays_open_is_read_after_its_drain_and_eviction() {
    let Some(mut rig) = Rig::with(&["up", "--size", "128MiB"]) else { return };
    let shards = ["kept", "replaced", "deleted"];
    let content = |at: usize| bytes(at as u64 + 1, 9_000_000);
    for (at, name) in shards.iter().enumerate() {
        fs::write(rig.path(name), content(at)).unwrap();
    }
    // Nothing of them is in the memory of the kernel.
    rig.remount();
    let files: Vec<File> = shards.iter().map(|name| File::open(rig.path(name)).unwrap()).collect();
    let read = |at: usize| {
        let mut found = vec![0; 9_000_000];
        files[at].read_exact_at(&mut found, 0).map(|()| found)
    };
    for file in &files {
        file.read_exact_at(&mut [0; 10], 0).unwrap();
    }
    stoker(rig.dir.path(), &["drain", "files", "--wait"]);
    let go_round = |seed: u64| {
        for number in 0..8 {
            fs::write(rig.path("filler"), bytes(seed + number, 20_000_000)).unwrap();
            stoker(rig.dir.path(), &["drain", "files", "--wait"]);
        }
    };
    go_round(100);
    assert!(fs::read(rig.path("kept")).unwrap() == content(0), "opened beside the first one");
    fs::write(rig.path("new"), b"new").unwrap();
    fs::rename(rig.path("new"), rig.path("replaced")).unwrap();
    fs::remove_file(rig.path("deleted")).unwrap();
    stoker(rig.dir.path(), &["drain", "files", "--wait"]);
    go_round(200);
    for (at, name) in shards.iter().enumerate() {
        assert!(read(at).unwrap() == content(at), "{name}");
    }
    assert_eq!(fs::read(rig.path("replaced")).unwrap(), b"new");
}

/// A second node that knows nothing but the lake shows the same.
#[test]
fn what_a_file_is_survives_the_lake() {
    let Some(mut rig) = Rig::new() else { return };
    let make = r#"
import os
os.chdir("MNT")
with open("file", "wb") as file:
    file.write(b"bytes")
os.setxattr("file", "user.color", b"blue")
os.chown("file", 1000, 1001)
os.chmod("file", 0o4640)
os.utime("file", ns=(1_500_000_000_123_456_789, 1_500_000_000_123_456_789))
os.symlink("file", "link")
os.lchown("link", 5, 6)
os.mkdir("empty")
os.chmod("empty", 0o711)
os.chown("empty", 7, 8)
os.makedirs("some/where")
open("some/where/nothing", "wb").close()
os.utime("some/where/nothing", ns=(-5, 1_500_000_000_000_000_007))
os.mkfifo("pipe", 0o600)
os.mknod("disk", 0o060640, os.makedev(8, 1))
os.mknod("tape", 0o020604, os.makedev(9, 2))
"#;
    let show = r#"
import os
os.chdir("MNT")
found = {}
for path in ("file", "link", "empty", "some", "some/where", "some/where/nothing", "pipe", "disk", "tape"):
    stat = os.lstat(path)
    # The time of a directory is that of its mkdir, as far as others are concerned.
    time = 0 if path in ("some", "some/where") else stat.st_mtime_ns
    accessed = 0 if path in ("some", "some/where") else stat.st_atime_ns
    found[path] = (oct(stat.st_mode), stat.st_uid, stat.st_gid, stat.st_size, time, accessed, stat.st_rdev)
print(sorted(found.items()), os.readlink("link"), open("link", "rb").read(), os.listxattr("file"), os.getxattr("file", "user.color"))
print(os.listdir("empty"), sorted(os.listdir(".")), sorted(os.listdir("some/where")))
"#;
    let mnt = rig.path("");
    let python = |script: &str| {
        let script = script.replace("MNT", mnt.to_str().unwrap());
        let done = Command::new("python3").args(["-c", &script]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    if !sh(&mnt, &["python3"], "true") {
        return;
    }
    python(make);
    let before = python(show);
    assert!(before.contains("0o104640") && before.contains("blue"), "{before}");
    assert!(before.contains("0o60640") && before.contains("0o10600") && before.contains("2049"), "{before}");
    stoker(rig.dir.path(), &["drain", "files", "--wait"]);
    stoker(rig.dir.path(), &["umount", mnt.to_str().unwrap()]);
    assert!(rig.mount.wait().unwrap().success());
    rig.node.take().unwrap().stop();
    fs::rename(rig.dir.path().join("node"), rig.dir.path().join("first")).unwrap();
    // Another cluster would take it for plain content: what says whose word metadata is are the keys.
    fs::create_dir(rig.dir.path().join("node")).unwrap();
    for name in ["node.json", "cluster.keys"] {
        fs::copy(rig.dir.path().join("first").join(name), rig.dir.path().join("node").join(name)).unwrap();
    }
    rig.node = Some(Node::up(&rig.dir.path().join("node")));
    let lake = format!("file://{}", rig.dir.path().join("first/lake/files").display());
    stoker(rig.dir.path(), &["volume", "create", "files", "--lake", &lake, "--lake-mode", "owned"]);
    // By name first: that is right from the beginning, while the lake is still being listed.
    rig.mount = mount(rig.dir.path(), &[]);
    assert_eq!(fs::read_link(rig.path("link")).unwrap(), Path::new("file"));
    loop {
        let shown = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .env("STOKER_DIR", rig.dir.path().join("node"))
            .args(["volume", "ls"])
            .output()
            .unwrap();
        if String::from_utf8_lossy(&shown.stdout)
            .lines()
            .any(|l| l.starts_with("files ") && l.contains(" 9 files"))
        {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    rig.remount();
    assert_eq!(python(show), before);
}
