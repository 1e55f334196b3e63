//! A process that is killed between any two steps leaves every object whole: old or new.
//!
//! The test starts itself again as a child that changes a lake and dies at a random point. The child writes
//! down what it is about to do and what is done; the parent opens the lake afterwards and compares. The next
//! child goes on where the last one died.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;

use super::{FileLake, crash};
use crate::rng::Rng;
use crate::{Attributes, Lake, LakeOptions, PutOptions};

const DIR: &str = "STOKER_LAKE_CRASH_DIR";
const SEED: &str = "STOKER_LAKE_CRASH_SEED";
const KEYS: [&str; 9] = ["foo", "foo/x", "foo/x/y", "foo/", "foo//", "a//b", "a", "deep/1/2/3", "plain"];
const BODY_BYTES_MAX: u64 = 100_000;
/// More than any action has steps, and a few actions.
const STEPS_MAX: u64 = 120;

#[test]
fn no_half_object_after_a_crash() {
    let full = std::env::var_os("STOKER_FULL").is_some_and(|value| value == "1");
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lake")).unwrap();
    let mut model = BTreeMap::new();
    for seed in 0..if full { 1000 } else { 60 } {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::crash_tests::child", "--nocapture"])
            .env(DIR, dir.path())
            .env(SEED, seed.to_string())
            .output()
            .unwrap();
        assert_eq!(
            status.status.code(),
            Some(crash::EXIT_CODE),
            "seed {seed}: the child was to die\n{}",
            String::from_utf8_lossy(&status.stderr)
        );
        runtime().block_on(check(dir.path(), seed, &mut model));
    }
}

/// Compares the lake with what the child wrote down.
async fn check(dir: &Path, seed: u64, model: &mut BTreeMap<String, Option<u64>>) {
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    std::fs::remove_file(dir.join("log")).unwrap();
    let mut pending: Option<(String, Option<u64>)> = None;
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["write", key, version] => pending = Some((key.to_owned(), Some(version.parse().unwrap()))),
            ["delete", key] => pending = Some((key.to_owned(), None)),
            ["done"] => {
                let (key, version) = pending.take().unwrap();
                model.insert(key, version);
            }
            _ => panic!("damaged log line `{line}`"),
        }
    }
    let lake = open(dir).await;
    let sessions = std::fs::read_dir(dir.join("lake/.stoker-tmp")).unwrap();
    let sessions = sessions
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("session-"));
    assert_eq!(sessions.count(), 1, "seed {seed}: what the dead left was not removed");
    for key in KEYS {
        let expected = model.get(key).copied().flatten();
        let actual = version_of(&lake, key, seed).await;
        let is_new = pending.as_ref().is_some_and(|(other, version)| other == key && *version == actual);
        assert!(
            actual == expected || is_new,
            "seed {seed}: `{key}` is {actual:?}, not {expected:?} or {pending:?}"
        );
        model.insert(key.to_owned(), actual);
    }
    let listed = lake.list(b"", None, None, 100).await.unwrap();
    let listed = listed.objects.iter().map(|info| String::from_utf8(info.key.clone()).unwrap());
    let listed: Vec<_> = listed.filter(|key| !key.starts_with("source")).collect();
    let mut there: Vec<_> = KEYS.into_iter().filter(|key| model[*key].is_some()).map(str::to_owned).collect();
    there.sort();
    assert_eq!(listed, there, "seed {seed}");
}

/// The version of an object, which must be whole.
async fn version_of(lake: &FileLake, key: &str, seed: u64) -> Option<u64> {
    let info = lake.head(key.as_bytes()).await.unwrap()?;
    let bytes = lake.get(key.as_bytes(), 0..info.size, Some(&info.etag)).await.unwrap();
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, body(version), "seed {seed}: `{key}` is not whole");
    let attributes = info.attributes.unwrap();
    assert_eq!(
        attributes.content_type,
        Some(format!("version/{version}")),
        "seed {seed}: attributes of another"
    );
    Some(version)
}

/// What the killed process does. Without its environment there is nothing to do.
#[test]
fn child() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    let seed: u64 = seed.parse().unwrap();
    runtime().block_on(work(Path::new(&dir), seed));
}

async fn work(dir: &Path, seed: u64) {
    let mut log = OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let mut rng = Rng::new(seed);
    let lake = open(dir).await;
    crash::arm(rng.below(STEPS_MAX) as i64);
    for action in 0.. {
        let key = KEYS[rng.below(KEYS.len() as u64) as usize];
        let version = seed * 1000 + action;
        let options = PutOptions { attributes: attributes(version), ..PutOptions::default() };
        match rng.below(8) {
            0..=2 => {
                writeln!(log, "write {key} {version}").unwrap();
                lake.put(key.as_bytes(), vec![body(version)], options).await.unwrap();
            }
            3 | 4 => {
                writeln!(log, "write {key} {version}").unwrap();
                upload(&lake, key.as_bytes(), version).await;
            }
            5 => {
                let from = format!("source{}", rng.below(3));
                let bytes = lake.put(from.as_bytes(), vec![body(version)], PutOptions::default());
                let etag = bytes.await.unwrap();
                writeln!(log, "write {key} {version}").unwrap();
                lake.copy(from.as_bytes(), &etag, key.as_bytes(), options).await.unwrap();
                writeln!(log, "done").unwrap();
                lake.delete(from.as_bytes(), Some(&etag)).await.unwrap();
                continue;
            }
            _ => {
                writeln!(log, "delete {key}").unwrap();
                lake.delete(key.as_bytes(), None).await.unwrap();
            }
        }
        writeln!(log, "done").unwrap();
    }
}

async fn upload(lake: &FileLake, key: &[u8], version: u64) {
    let bytes = body(version);
    let upload = lake.upload_begin(key, attributes(version)).await.unwrap();
    let third = bytes.len() / 3;
    let mut parts = Vec::new();
    for (number, range) in [(1, 0..third), (2, third..2 * third), (3, 2 * third..bytes.len())] {
        parts.push(lake.upload_part(key, &upload, number, vec![bytes.slice(range)]).await.unwrap());
    }
    lake.upload_complete(key, &upload, parts, PutOptions::default()).await.unwrap();
}

fn attributes(version: u64) -> Attributes {
    Attributes { content_type: Some(format!("version/{version}")), ..Attributes::default() }
}

/// Bytes that state their version first.
fn body(version: u64) -> Bytes {
    let mut rng = Rng::new(version);
    let len = 8 + rng.below(BODY_BYTES_MAX) as usize;
    let mut bytes = version.to_le_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

async fn open(dir: &Path) -> FileLake {
    FileLake::open(&dir.join("lake"), &LakeOptions::default()).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}
