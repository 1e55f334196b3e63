//! Close to open on two mounts, with the caches of both kernels on: random operations against a model. Whoever opens a file
//! sees what was closed, renamed, linked, removed or put by S3 before, on the other mount as well, however fresh the names and
//! lengths are that its kernel believes.
//!
//! `STOKER_FIRST=1 STOKER_SEEDS=1000` runs others; `STOKER_FULL=1` runs 100,000.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_client::Client;

use crate::storm::cell::{connect_in, home};
use crate::storm::{self, Dice, Node};

const STEPS: u64 = 14;
/// Sequences at the same time, each in a directory of its own.
const WORKERS: u64 = 8;
const FILES: [&str; 8] = ["f0", "f1", "f2", "d0/f0", "d0/f1", "d1/f0", "d1/f1", "d1/f2"];
/// Sequences that found something.
const KEPT: [u64; 1] = [113_560];
const DIRECTORIES: [&str; 2] = ["d0", "d1"];

/// Two mounts of one volume.
struct Pair {
    mounts: Vec<(PathBuf, Child)>,
    client: Client,
    runtime: tokio::runtime::Runtime,
    // In this order: the nodes end before their directories go.
    _nodes: Vec<Node>,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// None if volumes cannot be mounted here.
    fn new(nodes: usize) -> Option<Pair> {
        if !storm::can_mount() {
            return None;
        }
        let dir = tempfile::TempDir::new().unwrap();
        let lake = dir.path().join("lake");
        fs::create_dir(&lake).unwrap();
        let first = Node::start(&["up", "--lake", lake.to_str().unwrap()], &home(dir.path(), 0));
        let mut all = vec![first];
        for at in 1..nodes {
            all.push(Node::join(&all[0], &[], &home(dir.path(), at)));
        }
        let mounts = [0, 1].map(|at| {
            let mnt = dir.path().join(format!("mnt-{at}"));
            fs::create_dir(&mnt).unwrap();
            let child = storm::mount(&home(dir.path(), at % nodes), "data", &mnt, &[]);
            (mnt, child)
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(connect_in(&home(dir.path(), 0)));
        Some(Pair { mounts: mounts.into(), client, runtime, _nodes: all, _dir: dir })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for (at, child) in self.mounts.drain(..) {
            storm::unmount(&at, child);
        }
    }
}

/// Bytes that a mount has and nobody else.
struct Pending {
    mount: usize,
    id: usize,
    file: File,
    bytes: Vec<u8>,
}

/// What is there.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    directories: BTreeSet<String>,
    /// Files that had several names once.
    linked: BTreeSet<usize>,
    pending: Option<Pending>,
}

fn laid_over(bytes: &[u8], fresh: &[u8]) -> Vec<u8> {
    let mut both = bytes.to_vec();
    both.resize(both.len().max(fresh.len()), 0);
    both[..fresh.len()].copy_from_slice(fresh);
    both
}

impl Model {
    fn has_parent(&self, path: &str) -> bool {
        path.rsplit_once('/').is_none_or(|(parent, _)| self.directories.contains(parent))
    }

    fn is_empty(&self, directory: &str) -> bool {
        !self.names.keys().any(|name| name.starts_with(&format!("{directory}/")))
    }

    fn make(&mut self, path: &str, bytes: Vec<u8>) {
        self.names.insert(path.to_owned(), self.files.len());
        self.files.push(bytes);
    }

    /// Whoever opens a file on a mount sees what waits there, and publishes it when it closes the file.
    fn settle(&mut self, mount: usize, id: usize) {
        if let Some(pending) = self.pending.as_mut().filter(|it| it.mount == mount && it.id == id) {
            let fresh = std::mem::take(&mut pending.bytes);
            self.files[id] = laid_over(&self.files[id], &fresh);
        }
    }

    /// What an open by this name on this mount may show.
    fn shown(&mut self, mount: usize, path: &str) -> Vec<Option<Vec<u8>>> {
        let Some(id) = self.names.get(path).copied() else { return vec![None] };
        self.settle(mount, id);
        let bytes = self.files[id].clone();
        let mut shown = vec![Some(bytes.clone())];
        // What waits is published by itself after some seconds.
        if let Some(pending) = self.pending.as_ref().filter(|it| it.id == id) {
            shown.push(Some(laid_over(&bytes, &pending.bytes)));
        }
        shown
    }
}

struct Sequence<'p> {
    pair: &'p Pair,
    seed: u64,
    dice: Dice,
    model: Model,
    /// Files that stay open, only to be open.
    held: Vec<File>,
    log: Vec<String>,
}

impl Sequence<'_> {
    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.pair.mounts[mount].0.join(format!("s{}", self.seed)).join(name)
    }

    fn pick<'n>(&mut self, from: &[&'n str]) -> &'n str {
        from[self.dice.below(from.len() as u64) as usize]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.dice.below(8) {
            0 => 0,
            1 => 4096 + self.dice.below(70_000) as usize,
            _ => 1 + self.dice.below(300) as usize,
        };
        storm::content(self.dice.below(1 << 40), len)
    }

    fn fail(&self, what: &str) -> ! {
        let seed = self.seed;
        panic!(
            "{what}\n{}\nSTOKER_FIRST={seed} STOKER_SEEDS=1 cargo test -p stoker --test mount coherence",
            self.log.join("\n")
        )
    }

    /// An operation went as the model says.
    fn expect<T>(&self, done: &io::Result<T>, expect: Result<(), ErrorKind>) {
        let found = done.as_ref().map(drop).map_err(io::Error::kind);
        if found != expect {
            self.fail(&format!("expected {expect:?}, got {:?}", done.as_ref().map(drop)));
        }
    }

    fn check(&mut self, mount: usize, name: &str) {
        let found = File::open(self.path(mount, name)).and_then(|mut file| {
            let len = file.metadata()?.len();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            assert_eq!(
                len,
                bytes.len() as u64,
                "the length that an open file shows: {}",
                self.log.join("\n")
            );
            Ok(bytes)
        });
        let found = match found {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => self.fail(&format!("reading {name} on mount {mount}: {error}")),
        };
        let shown = self.model.shown(mount, name);
        if !shown.contains(&found) {
            let lens = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(Vec::len);
            let expect: Vec<_> = shown.iter().map(lens).collect();
            self.fail(&format!("{name} on mount {mount}: {:?} bytes, expected {expect:?}", lens(&found)));
        }
    }

    /// Lets a mount's kernel believe something.
    fn prime(&mut self, mount: usize, name: &str) {
        let how = self.dice.below(6);
        self.log.push(format!("  mount {mount} primes {name}, {how}"));
        match how {
            0..=2 => drop(fs::metadata(self.path(mount, name))),
            3 => drop(fs::read_dir(self.path(mount, "")).map(Iterator::count)),
            4 => self.check(mount, name),
            _ => {}
        }
    }

    /// A name is made or removed in a directory that another mount may have moved: whoever opened the directory knows.
    fn arrive(&self, mount: usize, name: &str) {
        if let Some((directory, _)) = name.split_once('/') {
            drop(fs::read_dir(self.path(mount, directory)));
        }
    }

    fn change(&mut self, mount: usize, name: &str) {
        let bytes = self.bytes();
        let (how, reads) = (self.dice.below(4), self.dice.below(2) == 0);
        self.log.push(format!("mount {mount} changes {name}, {how} {reads}, {} bytes", bytes.len()));
        let mut options = OpenOptions::new();
        options.read(reads).write(true);
        if how == 0 {
            options.custom_flags(libc::O_APPEND);
        }
        let at = self.dice.below(600) as usize;
        let done = options.open(self.path(mount, name)).and_then(|mut file| match how {
            0 => file.write_all(&bytes),
            1 => file.set_len(at as u64),
            2 => file.write_all_at(&bytes, at as u64),
            _ => file.write_all(&bytes),
        });
        let id = self.model.names.get(name).copied();
        self.expect(&done, id.map(drop).ok_or(ErrorKind::NotFound));
        let Some(id) = id else { return };
        self.model.settle(mount, id);
        let held = &mut self.model.files[id];
        let at = match how {
            0 => held.len(),
            1 => return held.resize(at, 0),
            2 => at,
            _ => 0,
        };
        if !bytes.is_empty() {
            held.resize(held.len().max(at + bytes.len()), 0);
            held[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn put(&mut self, mount: usize, name: &str, exclusive: bool) {
        let bytes = self.bytes();
        self.log.push(format!("mount {mount} puts {name}, {} bytes, exclusive {exclusive}", bytes.len()));
        self.arrive(mount, name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(!exclusive).create_new(exclusive);
        let done = options.open(self.path(mount, name)).and_then(|mut file| {
            if exclusive {
                drop(fs::metadata(self.path(1 - mount, name)));
            }
            file.write_all(&bytes)
        });
        match self.model.names.get(name).copied() {
            Some(_) if exclusive => self.expect(&done, Err(ErrorKind::AlreadyExists)),
            Some(id) => {
                self.expect(&done, Ok(()));
                self.model.settle(mount, id);
                self.model.files[id] = bytes;
            }
            None if !self.model.has_parent(name) => self.expect(&done, Err(ErrorKind::NotFound)),
            None => {
                self.expect(&done, Ok(()));
                self.model.make(name, bytes);
            }
        }
    }

    /// What S3 does with a PUT: other bytes for a file that always had one name; one of several names becomes another file.
    fn put_object(&mut self, name: &str) {
        if !self.model.has_parent(name) {
            return;
        }
        let bytes = self.bytes();
        self.log.push(format!("S3 puts {name}, {} bytes", bytes.len()));
        let key = format!("s{}/{name}", self.seed);
        self.pair.runtime.block_on(storm::put(&self.pair.client, &key, &bytes)).unwrap();
        let id = self.model.names.get(name).copied();
        match id.filter(|id| !self.model.linked.contains(id)) {
            Some(id) => self.model.files[id] = bytes,
            None => self.model.make(name, bytes),
        }
    }

    fn remove(&mut self, mount: usize, name: &str) {
        self.log.push(format!("mount {mount} removes {name}"));
        self.arrive(mount, name);
        let done = fs::remove_file(self.path(mount, name));
        let removed = self.model.names.remove(name);
        self.expect(&done, removed.map(drop).ok_or(ErrorKind::NotFound));
    }

    fn rename(&mut self, mount: usize, name: &str, to: &str) {
        self.log.push(format!("mount {mount} renames {name} to {to}"));
        self.arrive(mount, name);
        self.arrive(mount, to);
        let done = fs::rename(self.path(mount, name), self.path(mount, to));
        let Some(id) = self.model.names.get(name).copied().filter(|_| self.model.has_parent(to)) else {
            return self.expect(&done, Err(ErrorKind::NotFound));
        };
        self.expect(&done, Ok(()));
        // Names of one file both stay.
        if self.model.names.get(to) != Some(&id) {
            self.model.names.remove(name);
            self.model.names.insert(to.to_owned(), id);
        }
    }

    fn link(&mut self, mount: usize, name: &str, to: &str) {
        self.log.push(format!("mount {mount} links {name} as {to}"));
        self.arrive(mount, name);
        self.arrive(mount, to);
        let done = fs::hard_link(self.path(mount, name), self.path(mount, to));
        let id = self.model.names.get(name).copied().filter(|_| self.model.has_parent(to));
        match (id, self.model.names.contains_key(to)) {
            (None, _) => self.expect(&done, Err(ErrorKind::NotFound)),
            (_, true) => self.expect(&done, Err(ErrorKind::AlreadyExists)),
            (Some(id), false) => {
                self.expect(&done, Ok(()));
                self.model.names.insert(to.to_owned(), id);
                self.model.linked.insert(id);
            }
        }
    }

    fn directory(&mut self, mount: usize) {
        let at = self.dice.below(2) as usize;
        let (name, to) = (DIRECTORIES[at], DIRECTORIES[1 - at]);
        let (is_there, how) = (self.model.directories.contains(name), self.dice.below(3));
        self.log.push(format!("mount {mount} changes directory {name}, {how}"));
        match how {
            0 => {
                let done = fs::create_dir(self.path(mount, name));
                self.expect(&done, if is_there { Err(ErrorKind::AlreadyExists) } else { Ok(()) });
                self.model.directories.insert(name.to_owned());
            }
            1 if is_there && self.model.is_empty(name) => {
                let done = fs::remove_dir(self.path(mount, name));
                self.expect(&done, Ok(()));
                self.model.directories.remove(name);
            }
            2 if is_there && self.model.is_empty(to) => {
                let done = fs::rename(self.path(mount, name), self.path(mount, to));
                self.expect(&done, Ok(()));
                self.model.directories.remove(name);
                self.model.directories.insert(to.to_owned());
                let moved = |key: String| match key.strip_prefix(&format!("{name}/")) {
                    Some(rest) => format!("{to}/{rest}"),
                    None => key,
                };
                let names = std::mem::take(&mut self.model.names);
                self.model.names = names.into_iter().map(|(key, id)| (moved(key), id)).collect();
            }
            _ => {}
        }
    }

    /// A file stays open, with bytes that were not synced if it is to be written to.
    fn hold(&mut self, mount: usize, name: &str) {
        let writes = self.dice.below(2) == 0 && self.model.pending.is_none();
        let reads = !writes || self.dice.below(2) == 0;
        self.log.push(format!("mount {mount} holds {name}, writes {writes}, reads {reads}"));
        let opened = OpenOptions::new().read(reads).write(writes).open(self.path(mount, name));
        let id = self.model.names.get(name).copied();
        self.expect(&opened, id.map(drop).ok_or(ErrorKind::NotFound));
        let (Ok(mut file), Some(id)) = (opened, id) else { return };
        if !writes {
            return self.held.push(file);
        }
        let bytes = self.bytes();
        let done = file.write_all(&bytes);
        self.expect(&done, Ok(()));
        self.model.pending = Some(Pending { mount, id, file, bytes });
    }

    /// The one that was written to is closed. If somebody took its name, it may be told so.
    fn release(&mut self) {
        let Some(pending) = self.model.pending.take() else { return };
        self.log.push(format!("mount {} releases", pending.mount));
        match pending.file.sync_all() {
            Ok(()) if pending.bytes.is_empty() => {}
            Ok(()) => {
                let held = &mut self.model.files[pending.id];
                *held = laid_over(held, &pending.bytes);
            }
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
            Err(error) => self.fail(&format!("sync: {error}")),
        }
    }

    fn step(&mut self) {
        let mount = self.dice.below(2) as usize;
        let (name, to) = (self.pick(&FILES), self.pick(&FILES));
        for name in [name, to] {
            self.prime(1 - mount, name);
        }
        match self.dice.below(16) {
            0..=2 => self.put(mount, name, false),
            3 => self.put(mount, name, true),
            4..=7 => self.change(mount, name),
            8 => self.put_object(name),
            9 => self.remove(mount, name),
            10 | 11 => self.rename(mount, name, to),
            12 => self.link(mount, name, to),
            13 => self.directory(mount),
            14 => self.hold(mount, name),
            _ => self.release(),
        }
        for name in [name, to] {
            self.check(1 - mount, name);
        }
        if self.dice.below(3) == 0 {
            self.check(mount, name);
        }
    }

    fn run(mut self) {
        fs::create_dir(self.path(0, "")).unwrap();
        for name in DIRECTORIES {
            fs::create_dir(self.path(0, name)).unwrap();
            self.model.directories.insert(name.to_owned());
        }
        for _ in 0..STEPS {
            self.step();
        }
        self.release();
        self.held.clear();
        for (mount, name) in [0, 1].into_iter().flat_map(|mount| FILES.map(|name| (mount, name))) {
            self.check(mount, name);
        }
        fs::remove_dir_all(self.path(1, "")).unwrap();
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn sequences(nodes: usize, quick: u64) {
    let Some(pair) = Pair::new(nodes) else { return };
    let full = if std::env::var_os("STOKER_FULL").is_some() { 100_000 } else { quick };
    let first = number("STOKER_FIRST").unwrap_or(1);
    let end = first + number("STOKER_SEEDS").unwrap_or(full);
    let next = AtomicU64::new(first);
    let run = |seed| {
        let (pair, model, dice) = (&pair, Model::default(), Dice::new(seed));
        Sequence { pair, seed, dice, model, held: Vec::new(), log: Vec::new() }.run();
    };
    KEPT.into_iter().filter(|seed| !(first..end).contains(seed)).for_each(run);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < end) {
                    run(seed);
                }
            });
        }
    });
}

#[test]
fn coherence_of_two_mounts_of_one_node() {
    sequences(1, 240);
}

#[test]
fn coherence_of_mounts_of_two_nodes() {
    sequences(2, 60);
}

/// The plain case, again and again: looked at, changed elsewhere, read.
#[test]
fn a_closed_file_is_read_whole_on_the_other_mount() {
    let Some(pair) = Pair::new(1) else { return };
    let [a, b] = [0, 1].map(|at: usize| pair.mounts[at].0.join("log"));
    let mut expect = Vec::new();
    for round in 0..50_u8 {
        let mut file = OpenOptions::new().append(true).create(true).open(&a).unwrap();
        file.write_all(&[round; 100]).unwrap();
        drop(file);
        expect.extend_from_slice(&[round; 100]);
        assert!(fs::read(&b).unwrap() == expect, "round {round}");
        assert_eq!(fs::metadata(&b).unwrap().len(), expect.len() as u64);
    }
    pair.runtime.block_on(storm::put(&pair.client, "log", b"short")).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"short");
    // One whose kernel believes the old length appends behind the new one, and reads what is there.
    let mut file = OpenOptions::new().read(true).append(true).open(&a).unwrap();
    file.write_all(b" and long").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"short and long");
}

/// A file whose other name is in a directory that was moved elsewhere is open to all by the one that it kept.
#[test]
fn a_directory_that_moves_takes_no_other_name_along() {
    let Some(pair) = Pair::new(1) else { return };
    let [a, b] = [0, 1].map(|at: usize| pair.mounts[at].0.clone());
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("f"), "bytes").unwrap();
    fs::hard_link(a.join("f"), a.join("d/g")).unwrap();
    for name in ["f", "d/g"] {
        assert_eq!(fs::read(b.join(name)).unwrap(), b"bytes");
    }
    fs::rename(a.join("d"), a.join("e")).unwrap();
    assert_eq!(fs::read(b.join("d/g")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(a.join("f"), "others").unwrap();
    for name in ["f", "e/g"] {
        assert_eq!(fs::read(b.join(name)).unwrap(), b"others", "{name}");
    }
}
