//! The directory lake does what every lake does, for every legal key.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::suite;
use crate::suite::keys::KeyKind;
use bytes::Bytes;
use stoker_lake::{Attributes, Condition, FileLake, Lake, LakeErrorKind, LakeOptions, PutOptions};

fn check(cases: u32, kind: KeyKind, options: LakeOptions) {
    let runtime = suite::runtime();
    suite::run(cases, kind, |actions| {
        let dir = tempfile::tempdir().unwrap();
        let lake = runtime.block_on(FileLake::open(dir.path(), &options)).unwrap();
        suite::check_actions(&runtime, &lake, actions)
    });
}

#[test]
fn every_legal_key() {
    check(120, KeyKind::Legal, LakeOptions::default());
}

#[test]
fn any_bytes_are_a_key() {
    check(60, KeyKind::Raw, LakeOptions::default());
}

#[test]
fn metadata_beside_the_files() {
    check(60, KeyKind::Legal, LakeOptions { file_sidecar_only: true, ..LakeOptions::default() });
}

/// Runs with a fresh directory and a lake in it.
fn with_lake<F: Future>(test: impl FnOnce(PathBuf, FileLake) -> F) -> F::Output {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let lake = FileLake::open(dir.path(), &LakeOptions::default()).await.unwrap();
        test(dir.path().to_path_buf(), lake).await
    })
}

fn body(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

#[test]
fn plain_keys_are_plain_files() {
    with_lake(|dir, lake| async move {
        for key in ["run/step-1000/model.pt", "50% off+x y\\z", ".hidden", "caf\u{e9}/\u{1f525}"] {
            lake.put(key.as_bytes(), body(key), PutOptions::default()).await.unwrap();
            assert_eq!(fs::read_to_string(dir.join(key)).unwrap(), key);
            fs::copy(dir.join(key), dir.join("copied")).unwrap();
        }
    });
}

#[test]
fn files_of_other_programs_are_objects() {
    with_lake(|dir, lake| async move {
        fs::create_dir_all(dir.join("empty/empty")).unwrap();
        fs::create_dir(dir.join("data")).unwrap();
        fs::write(dir.join("data/file"), "foreign").unwrap();
        std::os::unix::fs::symlink("file", dir.join("data/link")).unwrap();
        std::os::unix::fs::symlink("/", dir.join("root")).unwrap();
        let page = lake.list(b"", None, None, 10).await.unwrap();
        assert_eq!(page.objects.len(), 1, "{page:?}");
        let groups = lake.list(b"", None, Some(b'/'), 10).await.unwrap();
        assert_eq!(groups.prefixes, [b"data/".to_vec()], "an empty directory is no group");
        let info = lake.head(b"data/file").await.unwrap().unwrap();
        assert_eq!((info.size, info.crc64, info.attributes), (7, None, Some(Attributes::default())));
        assert_eq!(page.objects[0].etag, info.etag);
        assert_eq!(lake.get(b"data/file", 1..4, Some(&info.etag)).await.unwrap(), "ore");
        assert_eq!(lake.head(b"data/link").await.unwrap(), None);
        assert_eq!(lake.head(b"root/etc/passwd").await.unwrap(), None);
        // Copies of them have a checksum.
        lake.copy(b"data/file", &info.etag, b"copy", PutOptions::default()).await.unwrap();
        assert_eq!(lake.head(b"copy").await.unwrap().unwrap().crc64, Some(stoker_format::crc64(b"foreign")));
    });
}

#[test]
fn a_foreign_change_is_another_etag() {
    with_lake(|dir, lake| async move {
        let attributes = Attributes { content_type: Some("text/x".into()), ..Attributes::default() };
        let options = PutOptions { attributes, ..PutOptions::default() };
        let path = dir.join("key");
        let etag = lake.put(b"key", body("ours"), options).await.unwrap();
        fs::write(&path, "them").unwrap();
        let answer = lake.get(b"key", 0..4, Some(&etag)).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Changed);
        let info = lake.head(b"key").await.unwrap().unwrap();
        assert_ne!(info.etag, etag);
        assert_eq!((info.crc64, info.attributes), (None, Some(Attributes::default())), "of the old bytes");
        let stale = PutOptions { condition: Condition::Matches(etag), ..PutOptions::default() };
        assert_eq!(lake.put(b"key", body("new"), stale).await.unwrap_err().kind, LakeErrorKind::Changed);
        assert_eq!(fs::read_to_string(&path).unwrap(), "them", "a foreign change was overwritten");
    });
}

#[test]
fn rotten_bytes_are_not_answered() {
    with_lake(|dir, lake| async move {
        let path = dir.join("key");
        let etag = lake.put(b"key", body("sound"), PutOptions::default()).await.unwrap();
        // As a drive does it: no program wrote, so the time stays.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "xound").unwrap();
        fs::File::open(&path).unwrap().set_modified(modified).unwrap();
        let answer = lake.get(b"key", 0..5, Some(&etag)).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Corrupt);
    });
}

#[test]
fn a_file_steps_aside_for_a_directory_and_stays_readable() {
    with_lake(|dir, lake| async move {
        let etag = lake.put(b"foo", body("file"), PutOptions::default()).await.unwrap();
        lake.put(b"foo/bar", body("below"), PutOptions::default()).await.unwrap();
        assert_eq!(lake.get(b"foo", 0..4, Some(&etag)).await.unwrap(), "file", "the etag survives the move");
        assert_eq!(fs::read_to_string(dir.join("foo/bar")).unwrap(), "below");
        assert_eq!(fs::read_to_string(dir.join(".stoker-ffoo")).unwrap(), "file");
        lake.delete(b"foo/bar", None).await.unwrap();
        assert!(!dir.join("foo").exists(), "an empty directory stays");
        assert_eq!(lake.get(b"foo", 0..4, Some(&etag)).await.unwrap(), "file");
        lake.delete(b"foo", Some(&etag)).await.unwrap();
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".stoker-tmp"]);
    });
}

#[test]
fn readers_and_writers_of_clashing_keys_at_the_same_time() {
    let rounds = if suite::full() { 2000 } else { 60 };
    with_lake(|_dir, lake| async move {
        let lake = Arc::new(lake);
        lake.put(b"k", body("always"), PutOptions::default()).await.unwrap();
        let mut tasks = Vec::new();
        for task in 0..4 {
            let lake = lake.clone();
            tasks.push(tokio::spawn(async move {
                for round in 0..rounds {
                    // Directories come and go where the file `k` wants to be.
                    let key = format!("k/{task}/{}", round % 2);
                    let etag = lake.put(key.as_bytes(), body("x"), PutOptions::default()).await.unwrap();
                    assert_eq!(lake.get(b"k", 0..6, None).await.unwrap(), "always");
                    if task == 0 {
                        lake.put(b"k", body("always"), PutOptions::default()).await.unwrap();
                    }
                    lake.delete(key.as_bytes(), Some(&etag)).await.unwrap();
                    assert_eq!(lake.head(key.as_bytes()).await.unwrap(), None);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let page = lake.list(b"", None, None, 10).await.unwrap();
        assert_eq!(page.objects.len(), 1, "{page:?}");
    });
}

#[test]
fn of_many_who_create_only_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        // Two lakes on one directory, like two nodes.
        let options = LakeOptions::default();
        let open = || FileLake::open(dir.path(), &options);
        let lakes = [Arc::new(open().await.unwrap()), Arc::new(open().await.unwrap())];
        for round in 0..20 {
            let mut tasks = Vec::new();
            for task in 0..8 {
                let lake = lakes[task % 2].clone();
                tasks.push(tokio::spawn(async move {
                    let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
                    lake.put(format!("dir/{round}").as_bytes(), body("x"), options).await
                }));
            }
            let mut won = 0;
            for task in tasks {
                match task.await.unwrap() {
                    Ok(_) => won += 1,
                    Err(error) => assert_eq!(error.kind, LakeErrorKind::Changed),
                }
            }
            assert_eq!(won, 1);
        }
    });
}

#[test]
fn an_upload_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = suite::runtime();
    let attributes = Attributes { meta: vec![("who".into(), "me".into())], ..Attributes::default() };
    let (upload, first) = runtime.block_on(async {
        let lake = FileLake::open(dir.path(), &LakeOptions::default()).await.unwrap();
        let upload = lake.upload_begin(b"big", attributes.clone()).await.unwrap();
        let first = lake.upload_part(b"big", &upload, 1, body("one ")).await.unwrap();
        (upload, first)
    });
    runtime.block_on(async {
        let lake = FileLake::open(dir.path(), &LakeOptions::default()).await.unwrap();
        assert_eq!(lake.upload_parts(b"big", &upload).await.unwrap(), std::slice::from_ref(&first));
        assert_eq!(lake.upload_parts(b"other", &upload).await.unwrap_err().kind, LakeErrorKind::NotFound);
        let second = lake.upload_part(b"big", &upload, 2, body("two")).await.unwrap();
        let options = PutOptions { crc64: Some(stoker_format::crc64(b"one two")), ..PutOptions::default() };
        let wrong = PutOptions { crc64: Some(1), ..PutOptions::default() };
        let parts = vec![first, second];
        let answer = lake.upload_complete(b"big", &upload, parts.clone(), wrong).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Corrupt);
        let etag = lake.upload_complete(b"big", &upload, parts, options).await.unwrap();
        let info = lake.head(b"big").await.unwrap().unwrap();
        assert_eq!((info.etag, info.size, info.attributes), (etag, 7, Some(attributes)));
        assert_eq!(lake.get(b"big", 0..7, None).await.unwrap(), "one two");
    });
}

/// Whoever began an upload and died before it could say so left a directory that nobody knows.
#[test]
fn an_upload_without_parts_goes_after_an_hour() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = suite::runtime();
    let open = || runtime.block_on(FileLake::open(dir.path(), &LakeOptions::default())).unwrap();
    let begin = |lake: &FileLake| runtime.block_on(lake.upload_begin(b"big", Attributes::default())).unwrap();
    let lake = open();
    let [empty, young, used] = [begin(&lake), begin(&lake), begin(&lake)];
    runtime.block_on(lake.upload_part(b"big", &used, 1, body("one"))).unwrap();
    drop(lake);
    let at = |upload: &str| dir.path().join(".stoker-tmp").join(format!("upload-{upload}"));
    for upload in [&empty, &used] {
        let dir = std::fs::File::open(at(upload)).unwrap();
        let begun = dir.metadata().unwrap().modified().unwrap();
        dir.set_modified(begun - std::time::Duration::from_secs(2 * 3600)).unwrap();
    }
    let _lake = open();
    assert!(!at(&empty).exists());
    assert!(at(&young).exists() && at(&used).exists());
}

/// The bytes that an upload's directory has for itself.
fn upload_files(dir: &std::path::Path) -> Vec<(String, u64)> {
    let mut uploads = std::fs::read_dir(dir.join(".stoker-tmp")).unwrap().map(|entry| entry.unwrap().path());
    let upload = uploads.find(|path| path.to_str().unwrap().contains("/upload-")).unwrap();
    let files = std::fs::read_dir(upload).unwrap().map(|entry| entry.unwrap());
    let sized = files.map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len()));
    let mut sized: Vec<(String, u64)> = sized.filter(|(name, _)| name.contains('-')).collect();
    sized.sort();
    sized
}

#[test]
fn parts_are_written_once() {
    use std::os::unix::fs::MetadataExt;
    with_lake(|dir, lake| async move {
        // In any order, as several senders bring them.
        let upload = lake.upload_begin(b"big", Attributes::default()).await.unwrap();
        let mut parts = Vec::new();
        for number in [2, 1, 3, 4] {
            let text = format!("part{number}")[..if number == 4 { 2 } else { 5 }].to_owned();
            parts.push(lake.upload_part(b"big", &upload, number, body(&text)).await.unwrap());
        }
        parts.sort_by_key(|part| part.number);
        assert_eq!(lake.upload_parts(b"big", &upload).await.unwrap(), parts);
        let files = upload_files(&dir);
        let bodies: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("body-")).collect();
        assert_eq!((bodies.len(), bodies[0].1), (1, 17), "{files:?}");
        assert!(files.iter().all(|(name, len)| name.starts_with("body-") || *len == 0), "{files:?}");
        let inode = |path: &std::path::Path| std::fs::metadata(path).unwrap().ino();
        let uploads = std::fs::read_dir(dir.join(".stoker-tmp")).unwrap().map(|entry| entry.unwrap().path());
        let written = uploads.map(|path| path.join(&bodies[0].0)).find(|path| path.exists()).unwrap();
        let before = inode(&written);
        // One that must not be leaves everything as it was.
        let absent = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        lake.put(b"big", body("old"), PutOptions::default()).await.unwrap();
        let answer = lake.upload_complete(b"big", &upload, parts.clone(), absent.clone()).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Changed);
        lake.delete(b"big", None).await.unwrap();
        lake.upload_complete(b"big", &upload, parts.clone(), absent).await.unwrap();
        assert_eq!(lake.get(b"big", 0..17, None).await.unwrap(), "part1part2part3pa");
        assert_eq!(inode(&dir.join("big")), before);
        let late = lake.upload_part(b"big", &upload, 5, body("late")).await;
        assert_eq!(late.unwrap_err().kind, LakeErrorKind::NotFound);
        assert_eq!(lake.get(b"big", 0..17, None).await.unwrap(), "part1part2part3pa");
    });
}

#[test]
fn parts_that_do_not_fit_together_are_joined() {
    with_lake(|_dir, lake| async move {
        // The last one first, one twice with other bytes, one that is not wanted in the end.
        let upload = lake.upload_begin(b"big", Attributes::default()).await.unwrap();
        let send = |number, text: &'static str| lake.upload_part(b"big", &upload, number, body(text));
        let third = send(3, "3").await.unwrap();
        let second = send(2, "second").await.unwrap();
        send(1, "wrong").await.unwrap();
        let first = send(1, "first ").await.unwrap();
        send(4, "unwanted").await.unwrap();
        let listed = lake.upload_parts(b"big", &upload).await.unwrap();
        assert_eq!(listed[..3], [first.clone(), second.clone(), third.clone()]);
        let parts = vec![first, second, third];
        lake.upload_complete(b"big", &upload, parts, PutOptions::default()).await.unwrap();
        assert_eq!(lake.get(b"big", 0..13, None).await.unwrap(), "first second3");
    });
}

#[test]
fn what_is_not_wanted_is_cut_off() {
    with_lake(|_dir, lake| async move {
        let upload = lake.upload_begin(b"big", Attributes::default()).await.unwrap();
        let first = lake.upload_part(b"big", &upload, 1, body("first")).await.unwrap();
        lake.upload_part(b"big", &upload, 2, body("second")).await.unwrap();
        lake.upload_complete(b"big", &upload, vec![first], PutOptions::default()).await.unwrap();
        let info = lake.head(b"big").await.unwrap().unwrap();
        assert_eq!((info.size, lake.get(b"big", 0..5, None).await.unwrap()), (5, "first".into()));
    });
}

#[test]
fn upload_ids_lead_nowhere_else() {
    with_lake(|_dir, lake| async move {
        for upload in ["", "..", "../..", "lock", "00000000000000000000000000000000"] {
            assert_eq!(lake.upload_parts(b"k", upload).await.unwrap_err().kind, LakeErrorKind::NotFound);
            assert_eq!(lake.upload_abort(b"k", upload).await, Ok(()));
        }
    });
}

#[test]
fn a_missing_directory_is_not_made_silently() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("not-mounted");
    suite::runtime().block_on(async {
        let error = FileLake::open(&path, &LakeOptions::default()).await.err().unwrap();
        assert_eq!(error.kind, LakeErrorKind::NotFound);
        assert!(error.message.contains("mount"), "{error}");
        let options = LakeOptions { create_root: true, ..LakeOptions::default() };
        FileLake::open(&path, &options).await.unwrap();
        assert!(path.exists());
    });
}

#[test]
fn keys_have_a_length() {
    with_lake(|_dir, lake| async move {
        for key in [Vec::new(), vec![b'k'; 1025]] {
            let answer = lake.put(&key, body("x"), PutOptions::default()).await;
            assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Invalid);
        }
        // The deepest that there are.
        for key in [vec![b'/'; 1024], [b'.', b'/'].repeat(512), vec![0; 1024]] {
            lake.put(&key, body("x"), PutOptions::default()).await.unwrap();
            assert_eq!(lake.list(b"", None, None, 10).await.unwrap().objects[0].key, key);
            lake.delete(&key, None).await.unwrap();
        }
    });
}

#[test]
fn large_attributes_find_a_place() {
    with_lake(|_dir, lake| async move {
        // More than an inode's extended attributes hold on many file systems.
        let attributes = Attributes { meta: vec![("a".into(), "x".repeat(9000))], ..Attributes::default() };
        let options = PutOptions { attributes: attributes.clone(), ..PutOptions::default() };
        lake.put(b"k", body("x"), options).await.unwrap();
        assert_eq!(lake.head(b"k").await.unwrap().unwrap().attributes, Some(attributes));
        let attributes = Attributes { meta: vec![("a".into(), "x".repeat(90_000))], ..Attributes::default() };
        let options = PutOptions { attributes, ..PutOptions::default() };
        assert_eq!(lake.put(b"k", body("x"), options).await.unwrap_err().kind, LakeErrorKind::Invalid);
    });
}

/// The mode of everything below a directory, by its path.
fn modes(dir: &std::path::Path) -> Vec<(PathBuf, bool, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            found.push((path.clone(), meta.is_dir(), meta.permissions().mode() & 0o7777));
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// A file that only its owner may read must not be readable by everybody in the lake.
#[test]
fn objects_have_the_mode_of_their_file_and_no_more_than_the_umask() {
    let with_mode = |mode: &str| PutOptions {
        attributes: Attributes { meta: vec![("stoker-mode".into(), mode.into())], ..Attributes::default() },
        ..PutOptions::default()
    };
    let runtime = suite::runtime();
    for (umask, expected, dirs) in
        [(None, [0o600, 0o600, 0o600], 0o700), (Some("0027"), [0o600, 0o640, 0o640], 0o750)]
    {
        for sidecar_only in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let options =
                LakeOptions { file_sidecar_only: sidecar_only, create_root: true, ..LakeOptions::default() };
            let root = dir.path().join("made/lake");
            let query = umask.map(|umask| format!("?umask={umask}")).unwrap_or_default();
            runtime.block_on(async {
                let lake =
                    stoker_lake::open(&format!("file://{}{query}", root.display()), &options).await.unwrap();
                lake.put(b"a/own", body("x"), with_mode("100600")).await.unwrap();
                lake.put(b"a/all", body("x"), with_mode("100644")).await.unwrap();
                let upload = lake.upload_begin(b"a/parts", with_mode("104644").attributes).await.unwrap();
                let part = lake.upload_part(b"a/parts", &upload, 1, body("x")).await.unwrap();
                lake.upload_complete(b"a/parts", &upload, vec![part], PutOptions::default()).await.unwrap();
                let modes = modes(&dir.path().join("made"));
                for (name, expected) in ["own", "all", "parts"].into_iter().zip(expected) {
                    let object = modes.iter().find(|(path, ..)| path.ends_with(format!("a/{name}"))).unwrap();
                    assert_eq!(object.2, expected, "{umask:?} {object:?}");
                }
                for (path, is_dir, mode) in modes {
                    let allowed = if is_dir { dirs } else { dirs & 0o666 };
                    assert_eq!(mode & !allowed, 0, "{umask:?} {path:?} has {mode:o}");
                }
            });
        }
    }
    let error = runtime.block_on(stoker_lake::open("file:///tmp?umask=0888", &LakeOptions::default()));
    assert!(error.err().unwrap().message.contains("umask"));
}
