//! The host cache.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stoker_gpu::cache::{BLOCK, Cache, Hit};

use crate::source::file;

fn keep(cache: &Cache, name: &str, bytes: &[u8], step: usize) -> Result<(), String> {
    let fill = cache.begin(name, bytes.len() as u64)?;
    for (number, part) in bytes.chunks(step).enumerate() {
        fill.put((number * step) as u64, part);
    }
    fill.finish(|offset, into| {
        into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]);
        Ok::<_, ()>(())
    })
}

/// All bytes of a hit, read in steps.
fn all(hit: &Hit, len: usize, step: usize) -> Option<Vec<u8>> {
    let (mut found, mut room) = (Vec::new(), vec![0; step + 2 * BLOCK]);
    while found.len() < len {
        let part = hit.read(found.len() as u64, step.min(len - found.len()), &mut room)?;
        assert!(!part.is_empty() && part.len() <= step);
        found.extend_from_slice(&room[part]);
    }
    Some(found)
}

fn entries(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let path = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path();
    fs::read_dir(dir)
        .unwrap()
        .map(path)
        .filter(|path| path.extension().is_some_and(|found| found == kind))
        .collect()
}

#[test]
fn what_was_kept_is_found_whole() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("c"), 1 << 30).unwrap();
    for len in [1, 4095, BLOCK, BLOCK + 1, 5 * BLOCK - 7, 1_000_003] {
        let bytes = file(len, len);
        // Steps that share no blocks, and some that cut every block.
        for (number, step) in [BLOCK, 3 * BLOCK, 200_001].into_iter().enumerate() {
            let name = format!("{len} {number}");
            keep(&cache, &name, &bytes, step).unwrap();
            let hit = cache.find(&name, len as u64).unwrap();
            for step in [1 << 20, 10_001] {
                assert!(all(&hit, len, step).unwrap() == bytes, "{name} in steps of {step}");
            }
            assert!(hit.read(len as u64, 1, &mut [0; 2 * BLOCK]).is_none(), "behind the end");
        }
        assert!(cache.find("another", len as u64).is_none());
    }
    assert!(entries(&folder.path().join("c"), "part").is_empty());
}

#[test]
fn damage_anywhere_is_never_given() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("c"), 1 << 30).unwrap();
    let bytes = file(1, 300_000);
    for number in 0..40u64 {
        keep(&cache, "one", &bytes, 1 << 20).unwrap();
        let [path] = &entries(&folder.path().join("c"), "weights")[..] else { panic!("one file") };
        let kept = fs::File::options().read(true).write(true).open(path).unwrap();
        let len = kept.metadata().unwrap().len();
        // The head, the table, and then the bytes; between are zeros that mean nothing.
        let at = match number {
            0..10 => number * 409,
            10..15 => 4096 + number % 5 * 4,
            _ => len - 1 - number * 7001 % bytes.len() as u64,
        };
        let mut byte = [0];
        kept.read_exact_at(&mut byte, at).unwrap();
        kept.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
        match cache.find("one", bytes.len() as u64) {
            None => assert!(number < 15, "the head at {at} is good"),
            Some(hit) => {
                assert!(number >= 15, "the head at {at} is bad");
                assert!(all(&hit, bytes.len(), 1 << 20).is_none(), "damage at {at} was given");
                assert!(hit.is_damaged());
            }
        }
        assert!(cache.find("one", bytes.len() as u64).is_none(), "it is not found again");
        assert!(!path.exists());
    }
    // One that was cut short.
    keep(&cache, "one", &bytes, 1 << 20).unwrap();
    let hit = cache.find("one", bytes.len() as u64).unwrap();
    let [path] = &entries(&folder.path().join("c"), "weights")[..] else { panic!("one file") };
    fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
    assert!(all(&hit, bytes.len(), 1 << 20).is_none());
}

#[test]
fn the_oldest_go_and_those_in_use_stay() {
    let folder = tempfile::tempdir().unwrap();
    // Room for three: a head with its table, and the bytes.
    let cache = Cache::open(&folder.path().join("c"), 3 * ((2 << 20) + 100_000)).unwrap();
    let bytes = file(1, 100_000);
    for name in ["a", "b", "c"] {
        keep(&cache, name, &bytes, 1 << 20).unwrap();
    }
    let held = cache.find("b", 100_000).unwrap();
    let fits = |name: &str| keep(&cache, name, &bytes, 1 << 20);
    fits("d").unwrap();
    let there = |name| cache.find(name, 100_000).is_some();
    assert!(there("b") && there("d"), "what is in use stays, what is new is there");
    assert_eq!(["a", "c"].into_iter().filter(|name| there(name)).count(), 1, "one of them went");
    assert!(cache.begin("large", 1 << 30).is_err(), "what never fits is refused");
    assert!(all(&held, 100_000, 1 << 20).unwrap() == bytes);
}

#[test]
fn parts_of_the_dead_go_and_parts_of_the_living_stay() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("c");
    let cache = Cache::open(&dir, 1 << 30).unwrap();
    let living = cache.begin("one", 100_000).unwrap();
    fs::write(dir.join("1-1.part"), "of a process that was killed").unwrap();
    drop(cache.begin("two", 100_000).unwrap());
    assert_eq!(entries(&dir, "part").len(), 1, "the one that is held");
    let rest = |_, into: &mut [u8]| {
        into.fill(7);
        Ok::<_, ()>(())
    };
    assert!(living.finish(rest).is_ok());
    assert!(cache.find("one", 100_000).is_some() && cache.find("two", 100_000).is_none());
}

#[test]
fn a_fill_that_lacks_too_much_or_cannot_read_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("c"), 1 << 30).unwrap();
    let fill = cache.begin("one", 100 * BLOCK as u64).unwrap();
    assert!(fill.finish(|_, _| Ok::<_, ()>(())).is_err());
    let fill = cache.begin("one", 10 * BLOCK as u64).unwrap();
    assert!(fill.finish(|_, _| Err(())).is_err());
    assert!(
        cache.find("one", 100 * BLOCK as u64).is_none() && cache.find("one", 10 * BLOCK as u64).is_none()
    );
    assert!(entries(&folder.path().join("c"), "part").is_empty());
}

#[test]
fn directories_that_others_can_use_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Cache::open(&open, 1).is_err());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    assert!(Cache::open(&link, 1).is_err());
    assert!(Cache::open(&folder.path().join("a/b"), 1).is_err(), "no parents are made");
}
