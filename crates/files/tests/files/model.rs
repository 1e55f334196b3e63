//! Random operations, on the file system and on a plain model of one. Every answer must be the same, errors included.
//!
//! `STOKER_SEEDS=100 STOKER_FIRST=1` runs more of them.

use std::collections::BTreeMap;

use stoker_files::{Allocate, Change, Errno, Files, Handle, Kind, ROOT, RenameFlag, Seek};

use crate::rig::{MAKE, Rig, close, get, mkdir, names, put, walk};

/// What a path is.
#[derive(Clone, PartialEq, Debug)]
enum Thing {
    /// Several names may have one.
    File(usize),
    Directory,
    Symlink(Vec<u8>),
}

/// A file system: paths without a `/` at the front; the root is the empty path.
struct Model(BTreeMap<String, Thing>, Vec<(Vec<u8>, u32)>);

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Model {
    fn parent(&self, path: &str) -> Result<(), Errno> {
        match self.0.get(split(path).0) {
            Some(Thing::Directory) => Ok(()),
            Some(_) => Err(Errno::ENOTDIR),
            // Some directory on the way may be a file.
            None => self.way(split(path).0),
        }
    }

    fn way(&self, path: &str) -> Result<(), Errno> {
        self.parent(path)?;
        Err(Errno::ENOENT)
    }

    fn is_empty(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        !self.0.keys().any(|key| key.starts_with(&inside))
    }

    fn make(&mut self, path: &str, thing: Thing) -> Result<(), Errno> {
        self.parent(path)?;
        if self.0.contains_key(path) {
            return Err(Errno::EEXIST);
        }
        self.0.insert(path.to_owned(), thing);
        Ok(())
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>, Errno> {
        self.parent(path)?;
        match self.0.get_mut(path) {
            Some(Thing::File(id)) => Ok(&mut self.1[*id].0),
            Some(Thing::Directory) => Err(Errno::EISDIR),
            Some(Thing::Symlink(_)) => Err(Errno::EINVAL),
            None => Err(Errno::ENOENT),
        }
    }

    fn put(&mut self, path: &str, bytes: Vec<u8>) -> Result<(), Errno> {
        match self.file(path) {
            Ok(held) => *held = bytes,
            Err(Errno::ENOENT) => {
                self.make(path, Thing::File(self.1.len()))?;
                self.1.push((bytes, MAKE.mode));
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn remove(&mut self, path: &str, wants_directory: bool) -> Result<(), Errno> {
        self.parent(path)?;
        match (self.0.get(path), wants_directory) {
            (None, _) => return Err(Errno::ENOENT),
            (Some(Thing::Directory), false) => return Err(Errno::EISDIR),
            (Some(Thing::Directory), true) if !self.is_empty(path) => return Err(Errno::ENOTEMPTY),
            (Some(Thing::Directory), true) => {}
            (Some(_), true) => return Err(Errno::ENOTDIR),
            (Some(_), false) => {}
        }
        self.0.remove(path);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, flag: RenameFlag) -> Result<(), Errno> {
        self.parent(from)?;
        let source = self.0.get(from).cloned().ok_or(Errno::ENOENT)?;
        self.parent(to)?;
        if flag == RenameFlag::Exchange {
            return self.exchange(from, to);
        }
        if source == Thing::Directory && to.starts_with(&format!("{from}/")) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = self.0.get(to) {
            // Names of one file both stay.
            if from == to || (matches!(source, Thing::File(_)) && source == *target) {
                return Ok(());
            }
            if flag == RenameFlag::NoReplace {
                return Err(Errno::EEXIST);
            }
            match (source == Thing::Directory, *target == Thing::Directory) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.is_empty(to) => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        let inside = format!("{from}/");
        let moved: Vec<String> =
            self.0.keys().filter(|key| *key == from || key.starts_with(&inside)).cloned().collect();
        for key in moved {
            let thing = self.0.remove(&key).unwrap();
            self.0.insert(format!("{to}{}", &key[from.len()..]), thing);
        }
        Ok(())
    }
}

impl Model {
    fn link(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.parent(from)?;
        let source = self.0.get(from).cloned().ok_or(Errno::ENOENT)?;
        match source {
            Thing::Directory => Err(Errno::EPERM),
            source => self.make(to, source),
        }
    }

    fn exchange(&mut self, first: &str, second: &str) -> Result<(), Errno> {
        if !self.0.contains_key(second) {
            return Err(Errno::ENOENT);
        }
        let (in_first, in_second) = (format!("{first}/"), format!("{second}/"));
        if second.starts_with(&in_first) || first.starts_with(&in_second) {
            return Err(Errno::EINVAL);
        }
        let old = std::mem::take(&mut self.0);
        self.0 = old
            .into_iter()
            .map(|(key, thing)| {
                let moved = |from: &str, to: &str| {
                    let rest =
                        key.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
                    Some(format!("{to}{rest}"))
                };
                (moved(first, second).or_else(|| moved(second, first)).unwrap_or(key), thing)
            })
            .collect();
        Ok(())
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "a-", "a0"];
        let depth = 1 + self.below(3);
        (0..depth).map(|_| names[self.below(names.len())]).collect::<Vec<_>>().join("/")
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.below(10) {
            0 => 0,
            1 => self.below(700_000),
            _ => self.below(9_000),
        };
        let seed = self.below(250);
        (0..len).map(|at| (at * 7 + seed) as u8 | 1).collect()
    }
}

/// The directory of a path, and the last name.
async fn place<'p>(files: &Files, path: &'p str) -> Result<(u64, &'p str), Errno> {
    let (parent, name) = split(path);
    Ok((walk(files, parent).await?, name))
}

async fn step(
    dice: &mut Dice,
    files: &Files,
    model: &mut Model,
) -> (String, Result<(), Errno>, Result<(), Errno>) {
    let path = dice.path();
    match dice.below(20) {
        0..=2 => {
            let bytes = dice.bytes();
            let done = async {
                let (parent, name) = place(files, &path).await?;
                match files.lookup(parent, name.as_bytes()).await {
                    Ok(attr) if attr.kind == Kind::Symlink => Err(Errno::EINVAL),
                    _ => put(files, parent, name, &bytes).await,
                }
            };
            (format!("put {path} {}", bytes.len()), done.await, model.put(&path, bytes))
        }
        3..=5 => {
            let (at, bytes, append) = (dice.below(12_000), dice.bytes(), dice.below(4) == 0);
            let done = async {
                let ino = walk(files, &path).await?;
                let handle = files.open_file(ino, false).await?;
                files.write(&handle, at as u64, &bytes, append).await?;
                close(files, handle).await
            };
            let expect = model.file(&path).map(|held| {
                let at = if append { held.len() } else { at };
                if !bytes.is_empty() {
                    held.resize(held.len().max(at + bytes.len()), 0);
                    held[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            });
            (format!("write {path} {at} {} {append}", bytes.len()), done.await, expect)
        }
        6 => {
            let size = dice.below(20_000);
            let done = async { files.truncate(walk(files, &path).await?, size as u64).await };
            (
                format!("truncate {path} {size}"),
                done.await,
                model.file(&path).map(|held| held.resize(size, 0)),
            )
        }
        7 => {
            let done = async {
                let (parent, name) = place(files, &path).await?;
                mkdir(files, parent, name).await.map(drop)
            };
            (format!("mkdir {path}"), done.await, model.make(&path, Thing::Directory))
        }
        8 => {
            let done = async {
                let (parent, name) = place(files, &path).await?;
                files.make(parent, name.as_bytes(), Kind::Symlink, MAKE, b"target").await.map(drop)
            };
            (format!("symlink {path}"), done.await, model.make(&path, Thing::Symlink(b"target".to_vec())))
        }
        9 => {
            let wants_directory = dice.below(2) == 0;
            let done = async {
                let (parent, name) = place(files, &path).await?;
                match wants_directory {
                    true => files.rmdir(parent, name.as_bytes()).await,
                    false => files.unlink(parent, name.as_bytes()).await,
                }
            };
            (format!("remove {path} {wants_directory}"), done.await, model.remove(&path, wants_directory))
        }
        10 | 11 => {
            let to = dice.path();
            let flag = match dice.below(8) {
                0 | 1 => RenameFlag::NoReplace,
                2..=4 => RenameFlag::Exchange,
                _ => RenameFlag::Replace,
            };
            let done = async {
                let (parent, name) = place(files, &path).await?;
                files.lookup(parent, name.as_bytes()).await?;
                let (new_parent, new_name) = place(files, &to).await?;
                files.rename(parent, name.as_bytes(), new_parent, new_name.as_bytes(), flag).await
            };
            (format!("rename {path} {to} {flag:?}"), done.await, model.rename(&path, &to, flag))
        }
        12 | 13 => {
            // Holes: made, filled, moved, and asked for while nothing of it is published.
            let (offset, len) = (dice.below(900_000), 1 + dice.below(700_000));
            let (at, bytes, grow) = (dice.below(900_000), dice.bytes(), dice.below(2) == 0);
            let mut expect = model.file(&path).map(|held| held.clone());
            if let Ok(held) = &mut expect {
                if !bytes.is_empty() {
                    held.resize(held.len().max(at + bytes.len()), 0);
                    held[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                held.iter_mut().skip(offset).take(len).for_each(|byte| *byte = 0);
                let end = if grow { offset + len } else { 0 };
                held.resize(held.len().max(end), 0);
            }
            let known = expect.clone();
            let done = async {
                let handle = files.open_file(walk(files, &path).await?, false).await?;
                files.write(&handle, at as u64, &bytes, false).await?;
                files.allocate(&handle, offset as u64, len as u64, Allocate::Zero { grow }).await?;
                if let Ok(known) = &known {
                    check_holes(files, &handle, known, "not published").await;
                }
                close(files, handle).await
            };
            let done = done.await;
            let expect = expect.and_then(|held| model.file(&path).map(|file| *file = held));
            (format!("punch {path} {offset} {len} {grow}, write {at} {}", bytes.len()), done, expect)
        }
        14 => {
            let size = dice.below(2_000_000);
            let done = async { files.truncate(walk(files, &path).await?, size as u64).await };
            let expect = model.file(&path).map(|held| held.resize(size, 0));
            (format!("truncate {path} {size}"), done.await, expect)
        }
        15..=18 => {
            let to = dice.path();
            let done = async {
                let ino = walk(files, &path).await?;
                if files.getattr(ino).await?.kind == Kind::Directory {
                    return Err(Errno::EPERM);
                }
                let (parent, name) = place(files, &to).await?;
                files.link(ino, parent, name.as_bytes()).await.map(drop)
            };
            (format!("link {path} {to}"), done.await, model.link(&path, &to))
        }
        _ => {
            let mode = dice.below(0o777) as u32;
            let done = async {
                let ino = walk(files, &path).await?;
                if files.getattr(ino).await?.kind != Kind::File {
                    return Err(Errno::EINVAL);
                }
                files.set(ino, Change { mode: Some(mode), ..Change::default() }).await.map(drop)
            };
            let expect = model.parent(&path).and_then(|()| match model.0.get(&path) {
                Some(Thing::File(id)) => {
                    model.1[*id].1 = mode;
                    Ok(())
                }
                Some(_) => Err(Errno::EINVAL),
                None => Err(Errno::ENOENT),
            });
            (format!("chmod {path} {mode:o}"), done.await, expect)
        }
    }
}

/// The stretches of a file as `lseek` finds them: zeros where there are holes, and none of them of no length. Gives the bytes
/// outside of them.
async fn check_holes(files: &Files, handle: &Handle, bytes: &[u8], when: &str) -> u64 {
    let (mut at, mut stored) = (0, 0);
    let size = bytes.len() as u64;
    while at < size {
        let data = match files.seek(handle, at, Seek::Data).await {
            Err(Errno::ENXIO) => size,
            found => found.unwrap(),
        };
        assert!((at..=size).contains(&data), "{when}: {data} from {at}");
        assert!(bytes[at as usize..data as usize].iter().all(|byte| *byte == 0), "{when}: bytes in a hole");
        if data == size {
            break;
        }
        let hole = files.seek(handle, data, Seek::Hole).await.unwrap();
        assert!(hole > data && hole <= size, "{when}: {hole} from {data}");
        (at, stored) = (hole, stored + hole - data);
    }
    for what in [Seek::Data, Seek::Hole] {
        assert_eq!(files.seek(handle, size, what).await, Err(Errno::ENXIO), "{when}");
    }
    stored
}

/// Everything that is there, compared.
async fn compare(files: &Files, model: &Model, when: &str) {
    for (path, thing) in &model.0 {
        let ino = walk(files, path).await.unwrap_or_else(|errno| panic!("{when}: {path} is {errno:?}"));
        match thing {
            Thing::Directory => {
                let inside = |key: &&String| !key.is_empty() && *key != path && split(key).0 == path;
                let mut expect: Vec<String> =
                    model.0.keys().filter(inside).map(|key| split(key).1.to_owned()).collect();
                expect.sort();
                assert_eq!(names(files, ino).await, expect, "{when}: {path}");
            }
            Thing::File(id) => {
                let (bytes, mode) = &model.1[*id];
                let names = model.0.values().filter(|other| *other == thing).count() as u32;
                let attr = files.getattr(ino).await.unwrap();
                let found = (attr.size, attr.mode, attr.nlink);
                assert_eq!(found, (bytes.len() as u64, *mode, names), "{when}: {path}");
                assert!(get(files, path).await.unwrap() == *bytes, "{when}: bytes of {path}");
                let handle = files.open_file(ino, false).await.unwrap();
                let stored = check_holes(files, &handle, bytes, when).await;
                files.release(handle.id).await;
                assert_eq!(files.getattr(ino).await.unwrap().allocated, stored, "{when}: {path}");
            }
            Thing::Symlink(target) => {
                assert_eq!(&files.readlink(ino).await.unwrap()[..], target, "{when}: {path}");
            }
        }
    }
}

async fn history(seed: u64, steps: usize) {
    let rig = Rig::new().await;
    let mut dice = Dice(seed);
    let mut files = rig.remote("model").await;
    let mut model = Model(BTreeMap::from([(String::new(), Thing::Directory)]), Vec::new());
    for at in 0..steps {
        let (what, found, expect) = step(&mut dice, &files, &mut model).await;
        eprintln!("seed {seed}, step {at}: {what}: {expect:?}");
        assert_eq!(found, expect, "seed {seed}, step {at}: {what}");
        if dice.below(40) == 0 {
            compare(&files, &model, &format!("seed {seed}, step {at}: {what}")).await;
            // Another file system sees the same.
            files = rig.remote("model").await;
        }
    }
    compare(&files, &model, &format!("seed {seed}, end")).await;
    compare(&rig.files("other").await, &model, &format!("seed {seed}, elsewhere")).await;
    assert_eq!(files.load().1, 0, "nothing waits");
    assert!(walk(&files, "").await.unwrap() == ROOT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_that_of_the_model() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first = number("STOKER_FIRST", 1);
    for seed in first..first + number("STOKER_SEEDS", 2) {
        history(seed, 400).await;
    }
}
