//! What a program was told is durable is there after the mount process was killed in that moment. It is read at another door.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use super::{Rig, bytes, mount, sh};
use crate::storm::{self, cell};

/// The ways to open a file so that each write is durable when it returns.
const WAYS: [(&str, bool, i32); 8] = [
    ("sync", false, libc::O_SYNC),
    ("dsync", false, libc::O_DSYNC),
    ("sync-append", false, libc::O_SYNC | libc::O_APPEND),
    ("dsync-append", false, libc::O_DSYNC | libc::O_APPEND),
    ("dsync-direct", false, libc::O_DSYNC | libc::O_DIRECT),
    ("dsync-both", true, libc::O_DSYNC),
    ("sync-both-append", true, libc::O_SYNC | libc::O_APPEND),
    ("dsync-both-direct", true, libc::O_DSYNC | libc::O_DIRECT),
];

/// Writes with flags of one call, and waits with the files open.
const PWRITEV: &str = "import os, sys
at = sys.argv[1]
kept = []
for name, flag in (('rwf-dsync', os.RWF_DSYNC), ('rwf-sync', os.RWF_SYNC)):
    for how, mode in (('', os.O_WRONLY), ('-both', os.O_RDWR)):
        fd = os.open(os.path.join(at, name + how), mode | os.O_CREAT, 0o644)
        assert os.pwritev(fd, [b'first '], 0, flag) == 6
        assert os.pwritev(fd, [b'second'], 6, flag) == 6
        kept.append(fd)
print('written', flush=True)
sys.stdin.read()";

/// Reads files by the node's socket: nothing of the mount has a part in it.
fn check(rig: &Rig, expect: &BTreeMap<String, Vec<u8>>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cell::connect_in(&rig.dir.path().join("node")).await;
        for (name, bytes) in expect {
            let found = storm::read_in(&client, "files", name).await.unwrap();
            let lens = (found.as_ref().map(Vec::len), bytes.len());
            assert!(found.as_ref() == Some(bytes), "{name} is not what was written: {lens:?} bytes");
        }
    });
}

/// No handler runs, nothing is flushed; and the directory can be used again.
fn kill(rig: &mut Rig) {
    rig.mount.kill().unwrap();
    rig.mount.wait().unwrap();
}

fn python(rig: &Rig) -> Option<Child> {
    if !sh(rig.dir.path(), &["python3"], "true") {
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-c", PWRITEV])
        .arg(rig.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "written\n");
    Some(child)
}

#[test]
fn a_write_that_is_said_to_be_durable_is_there_after_a_kill() {
    let Some(mut rig) = Rig::new() else { return };
    for round in 0..3_u64 {
        // First: a process that is made closes, and so publishes, what its parent has open.
        let child = if round == 0 { python(&rig) } else { None };
        let mut expect = BTreeMap::new();
        let mut open = Vec::new();
        for (at, (name, reads, flags)) in WAYS.into_iter().enumerate() {
            let name = format!("{round}-{name}");
            let content = bytes(round * 100 + at as u64, 4096 * (1 + at * 70));
            let mut options = OpenOptions::new();
            options.write(true).read(reads).create(true).truncate(false).custom_flags(flags);
            let mut file = options.open(rig.path(&name)).unwrap();
            let (front, back) = content.split_at(4096);
            file.write_all(front).unwrap();
            file.write_all(back).unwrap();
            open.push(file);
            expect.insert(name, content);
        }
        kill(&mut rig);
        if let Some(mut child) = child {
            for name in ["rwf-dsync", "rwf-dsync-both", "rwf-sync", "rwf-sync-both"] {
                expect.insert(name.to_owned(), b"first second".to_vec());
            }
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        check(&rig, &expect);
        drop(open);
        rig.mount = mount(rig.dir.path(), &[]);
    }
}

/// `sync DIRECTORY` is an fsync of the mount's root, and all that waits is published by it.
#[test]
fn an_fsync_of_the_root_publishes_all_that_waits() {
    let Some(mut rig) = Rig::new() else { return };
    let mut expect = BTreeMap::new();
    let mut open = Vec::new();
    for at in 0..20_u64 {
        let (name, content) = (format!("d{}/f{at}", at % 3), bytes(at, 700 * at as usize));
        std::fs::create_dir_all(rig.path(&format!("d{}", at % 3))).unwrap();
        let mut file = File::create(rig.path(&name)).unwrap();
        file.write_all(&content).unwrap();
        open.push(file);
        expect.insert(name, content);
    }
    File::open(rig.path("")).unwrap().sync_all().unwrap();
    kill(&mut rig);
    check(&rig, &expect);
    drop(open);
    rig.mount = mount(rig.dir.path(), &[]);
}

/// With `-o sync` nothing waits, however a file was opened.
#[test]
fn a_mount_with_sync_keeps_nothing_back() {
    let Some(mut rig) = Rig::new() else { return };
    kill(&mut rig);
    rig.mount = mount(rig.dir.path(), &["-o", "sync"]);
    let mut expect = BTreeMap::new();
    let mut open = Vec::new();
    for at in 0..6_u64 {
        let (name, content) = (format!("f{at}"), bytes(at, 3000 * (1 + at as usize)));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).read(at % 2 == 0).create_new(true).open(rig.path(&name)).unwrap();
        file.write_all(&content).unwrap();
        open.push(file);
        expect.insert(name, content);
    }
    kill(&mut rig);
    check(&rig, &expect);
    drop(open);
    rig.mount = mount(rig.dir.path(), &[]);
    let mut text = Vec::new();
    File::open(rig.path("f3")).unwrap().read_to_end(&mut text).unwrap();
    assert_eq!(text, expect["f3"]);
}
