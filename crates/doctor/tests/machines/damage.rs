//! Files with anything in them: the examination ends, and says what it could not read.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::plans;
use super::tree::Tree;

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// What a file becomes.
#[derive(Clone, Debug)]
enum Fate {
    Bytes(Vec<u8>),
    Number(i128),
    Gone,
    Directory,
    Loop,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Fate::Bytes),
        "[0-9a-z:,. /\\-\\[\\]\n]{0,80}".prop_map(|text| Fate::Bytes(text.into_bytes())),
        any::<i128>().prop_map(Fate::Number),
        Just(Fate::Number(-1)),
        Just(Fate::Number(i128::from(u64::MAX))),
        Just(Fate::Gone),
        Just(Fate::Directory),
        Just(Fate::Loop),
    ]
}

fn apply(path: &Path, fate: &Fate) {
    fs::remove_file(path).unwrap();
    match fate {
        Fate::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Fate::Number(number) => fs::write(path, number.to_string()).unwrap(),
        Fate::Gone => {}
        Fate::Directory => fs::create_dir(path).unwrap(),
        Fate::Loop => symlink(path.file_name().unwrap(), path).unwrap(),
    }
}

/// What a file was: its bytes and mode, or where it led.
type Old = Result<(Vec<u8>, fs::Permissions), PathBuf>;

fn restore(path: &Path, old: &Old) {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    match old {
        Ok((bytes, mode)) => {
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, mode.clone()).unwrap();
        }
        Err(target) => symlink(target, path).unwrap(),
    }
}

#[test]
fn anything_in_any_file_is_no_panic() {
    for (name, plan, cases) in [
        ("healthy", plans::gpu_node(), 48),
        ("laptop", plans::laptop(), 48),
        ("container", plans::container(), 48),
    ] {
        let tree = Tree::of(name);
        let mut all = Vec::new();
        files(tree.root(), &mut all);
        let changes = proptest::collection::vec((0..all.len(), fate()), 1..12);
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let outcome = runner.run(&changes, |changes| {
            let mut changed: Vec<(&Path, Old)> = Vec::new();
            for (at, fate) in &changes {
                let path = all[*at].as_path();
                if changed.iter().any(|(other, _)| *other == path) {
                    continue;
                }
                let meta = fs::symlink_metadata(path).unwrap();
                changed.push((
                    path,
                    match meta.is_symlink() {
                        true => Err(fs::read_link(path).unwrap()),
                        false => Ok((fs::read(path).unwrap(), meta.permissions())),
                    },
                ));
                apply(path, fate);
            }
            let report = tree.examine(&plan);
            let text = report.text();
            prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            changed.iter().for_each(|(path, old)| restore(path, old));
            Ok(())
        });
        outcome.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        // Everything was put back, so that the runs were of this machine.
        assert_eq!(tree.examine(&plan).findings, Tree::of(name).examine(&plan).findings);
    }
}

#[test]
fn garbage_everywhere_is_no_fault() {
    let tree = Tree::of("healthy");
    let mut all = Vec::new();
    files(tree.root(), &mut all);
    for path in all.iter().filter(|path| !fs::symlink_metadata(path).unwrap().is_symlink()) {
        fs::write(path, b"\xff\xfe garbage \x00\x1b[31m").unwrap();
    }
    let mut plan = plans::gpu_node();
    plan.keys.clear();
    let report = tree.examine(&plan);
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
    // A file that is to be JSON is a fault if it is none; garbage in files of the kernel is none.
    assert_eq!(found.iter().filter(|check| **check != "gds.cufile").count(), 0, "{}", report.text());
    assert!(report.unseen.len() > 60, "{}", report.summary());
}
