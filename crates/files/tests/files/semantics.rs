//! What `docs/semantics.md` promises of files, one test for each promise.

use std::sync::Arc;

use stoker_files::{Allocate, Change, Errno, Kind, Make, ROOT, RenameFlag, XattrMode};
use stoker_store::Key;

use crate::rig::{MAKE, Rig, close, delete_object, get, keys, mkdir, names, options, put, put_object, walk};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_file_is_seen_by_who_opens_it_then() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let dir = mkdir(&here, ROOT, "dir").await.unwrap();
    put(&here, dir, "f", b"first").await.unwrap();
    assert_eq!(get(&there, "dir/f").await.unwrap(), b"first");
    // Shorter, and from the other side.
    let ino = walk(&there, "dir/f").await.unwrap();
    let handle = there.open_file(ino, false).await.unwrap();
    there.truncate(ino, 0).await.unwrap();
    there.write(&handle, 0, b"2nd", false).await.unwrap();
    close(&there, handle).await.unwrap();
    assert_eq!(get(&here, "dir/f").await.unwrap(), b"2nd");
    // And through the door that S3 has.
    let file = rig.store().open("data", &Key::new("dir/f").unwrap()).await.unwrap();
    assert_eq!(&file.read(0, 100).await.unwrap()[..], b"2nd");
    assert_eq!(file.info().attributes.mode, Some(0o100_640));
    assert_eq!(file.info().inode, ino);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_of_one_file_each_keep_their_bytes() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"..........").await.unwrap();
    let (a, b) = (walk(&here, "f").await.unwrap(), walk(&there, "f").await.unwrap());
    let (a, b) = (here.open_file(a, false).await.unwrap(), there.open_file(b, false).await.unwrap());
    here.write(&a, 2, b"aa", false).await.unwrap();
    there.write(&b, 6, b"bb", false).await.unwrap();
    close(&here, a).await.unwrap();
    close(&there, b).await.unwrap();
    assert_eq!(get(&here, "f").await.unwrap(), b"..aa..bb..");
}

/// Both believe that they made the file; it is what the one wrote who closed it last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_two_make_is_that_of_the_last() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    for files in [&here, &there] {
        assert_eq!(files.lookup(ROOT, b"f").await.err(), Some(Errno::ENOENT));
    }
    let (_, a) = here.create(ROOT, b"f", MAKE, false).await.unwrap();
    let (_, b) = there.create(ROOT, b"f", MAKE, false).await.unwrap();
    here.write(&a, 0, b"a longer text", false).await.unwrap();
    there.write(&b, 0, b"short", false).await.unwrap();
    close(&here, a).await.unwrap();
    close(&there, b).await.unwrap();
    assert_eq!(get(&here, "f").await.unwrap(), b"short");
    assert_eq!(get(&there, "f").await.unwrap(), b"short");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exclusive_name_is_taken_everywhere_at_once() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let (_, handle) = here.create(ROOT, b"lock", MAKE, true).await.unwrap();
    assert_eq!(there.create(ROOT, b"lock", MAKE, true).await.err(), Some(Errno::EEXIST));
    close(&here, handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_a_name_lives_while_it_is_open() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let big = vec![7; 1 << 20];
    for is_published in [false, true] {
        let (attr, handle) = files.create(ROOT, b"gone", MAKE, is_published).await.unwrap();
        files.write(&handle, 0, &big, false).await.unwrap();
        files.unlink(ROOT, b"gone").await.unwrap();
        assert_eq!(files.lookup(ROOT, b"gone").await.err(), Some(Errno::ENOENT));
        files.write(&handle, 5, b"more", false).await.unwrap();
        files.fsync(&handle).await.unwrap();
        let bytes = files.read(&handle, 4, 6).await.unwrap();
        assert_eq!(&bytes[..], b"\x07more\x07");
        assert_eq!(files.getattr(attr.ino).await.unwrap().nlink, 0);
        files.release(handle.id).await;
    }
    // The same for one that is replaced.
    put(&files, ROOT, "old", b"old bytes").await.unwrap();
    put(&files, ROOT, "new", b"new bytes").await.unwrap();
    let handle = files.open_file(walk(&files, "old").await.unwrap(), false).await.unwrap();
    files.rename(ROOT, b"new", ROOT, b"old", RenameFlag::Replace).await.unwrap();
    assert_eq!(get(&files, "old").await.unwrap(), b"new bytes");
    assert_eq!(&files.read(&handle, 0, 100).await.unwrap()[..], b"old bytes");
    files.release(handle.id).await;
    let all = rig
        .store()
        .list("data", stoker_store::ListRequest { limit: 10, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(all.entries.len(), 1, "{all:?}");
    assert_eq!(names(&files, ROOT).await, ["old"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_several_names() {
    let rig = Rig::new().await;
    let files = rig.remote("here").await;
    let dir = mkdir(&files, ROOT, "dir").await.unwrap();
    put(&files, ROOT, "a", b"bytes").await.unwrap();
    let ino = walk(&files, "a").await.unwrap();
    let linked = files.link(ino, dir, b"b").await.unwrap();
    assert_eq!((linked.ino, linked.nlink), (ino, 2));
    assert_eq!(files.link(ino, dir, b"b").await.err(), Some(Errno::EEXIST));
    assert_eq!(files.link(dir, ROOT, b"d2").await.err(), Some(Errno::EPERM));
    // Written through one, read through the other, before and after it is published.
    let writer = files.open_file(walk(&files, "dir/b").await.unwrap(), false).await.unwrap();
    files.write(&writer, 5, b" and more", false).await.unwrap();
    assert_eq!(get(&files, "a").await.unwrap(), b"bytes and more");
    close(&files, writer).await.unwrap();
    files.set(ino, Change { mode: Some(0o604), ..Change::default() }).await.unwrap();
    let there = rig.files("there").await;
    for name in ["a", "dir/b"] {
        assert_eq!(get(&there, name).await.unwrap(), b"bytes and more", "{name}");
        let attr = there.getattr(walk(&there, name).await.unwrap()).await.unwrap();
        assert_eq!((attr.ino, attr.nlink, attr.mode), (ino, 2, 0o604), "{name}");
    }
    // One name goes while the file is open through the other.
    let open = files.open_file(ino, false).await.unwrap();
    files.unlink(ROOT, b"a").await.unwrap();
    files.write(&open, 0, b"BYTES", false).await.unwrap();
    assert_eq!(files.getattr(ino).await.unwrap().nlink, 1);
    close(&files, open).await.unwrap();
    assert_eq!(get(&there, "dir/b").await.unwrap(), b"BYTES and more");
    assert_eq!(names(&there, ROOT).await, ["dir"]);
    // A rename onto another name of the file does nothing, an exchange with another file moves one of the names.
    files.link(ino, ROOT, b"c").await.unwrap();
    files.rename(dir, b"b", ROOT, b"c", RenameFlag::Replace).await.unwrap();
    put(&files, ROOT, "other", b"other").await.unwrap();
    files.rename(ROOT, b"other", ROOT, b"c", RenameFlag::Exchange).await.unwrap();
    assert_eq!(walk(&there, "other").await, Ok(ino));
    files.unlink(dir, b"b").await.unwrap();
    files.unlink(ROOT, b"other").await.unwrap();
    assert_eq!(walk(&files, "dir/b").await, Err(Errno::ENOENT));
    assert_eq!(get(&there, "c").await.unwrap(), b"other");
}

/// Names of a file that this file system never heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_to_a_lost_name_is_under_the_others() {
    let rig = Rig::new().await;
    for way in ["unlinked", "replaced", "unlinked after that", "removed elsewhere", "put"] {
        let (here, there) = (rig.remote("here").await, rig.files("there").await);
        put(&here, ROOT, "a", b"bytes").await.unwrap();
        let ino = walk(&here, "a").await.unwrap();
        let open = here.open_file(ino, false).await.unwrap();
        here.write(&open, 0, b"B", false).await.unwrap();
        let known = walk(&there, "a").await.unwrap();
        there.link(known, ROOT, b"b").await.unwrap();
        match way {
            "unlinked" => here.unlink(ROOT, b"a").await.unwrap(),
            "replaced" => {
                put(&here, ROOT, "new", b"new").await.unwrap();
                here.rename(ROOT, b"new", ROOT, b"a", RenameFlag::Replace).await.unwrap();
            }
            "unlinked after that" => {
                here.fsync(&open).await.unwrap();
                here.unlink(ROOT, b"a").await.unwrap();
                assert_eq!(here.lookup(ROOT, b"b").await.unwrap().ino, ino);
            }
            "removed elsewhere" => {
                assert_eq!(here.lookup(ROOT, b"b").await.unwrap().ino, ino);
                there.unlink(ROOT, b"a").await.unwrap();
            }
            _ => {
                assert_eq!(here.lookup(ROOT, b"b").await.unwrap().ino, ino);
                put_object(&rig, "a", b"new").await;
            }
        }
        here.write(&open, 1, b"Y", false).await.unwrap();
        close(&here, open).await.unwrap();
        assert_eq!(get(&there, "b").await.unwrap(), b"BYtes", "{way}");
        let attr = there.getattr(walk(&there, "b").await.unwrap()).await.unwrap();
        assert_eq!((attr.ino, attr.nlink), (ino, 1), "{way}");
        let all =
            rig.store().list("data", stoker_store::ListRequest { limit: 10, ..Default::default() }).await;
        let all = all.unwrap().entries;
        let is_ours = |entry: &stoker_store::ListEntry| entry.name().starts_with(b".stoker/");
        assert!(!all.iter().any(is_ours), "{way}: {all:?}");
        for name in ["a", "b"] {
            let _ = there.unlink(ROOT, name.as_bytes()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_swap_what_they_are() {
    let rig = Rig::new().await;
    let files = rig.remote("here").await;
    let dir = mkdir(&files, ROOT, "dir").await.unwrap();
    put(&files, dir, "inside", b"inside").await.unwrap();
    // One that no other file system knows yet, and one with bytes that wait: both follow their names.
    let (new, handle) = files.create(ROOT, b"new", MAKE, false).await.unwrap();
    files.write(&handle, 0, b"new", false).await.unwrap();
    put(&files, ROOT, "old", b"old").await.unwrap();
    let old = walk(&files, "old").await.unwrap();
    let open = files.open_file(old, false).await.unwrap();
    files.write(&open, 3, b" and more", false).await.unwrap();
    let swap = async |from: &str, to: &str| {
        files.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameFlag::Exchange).await
    };
    swap("new", "old").await.unwrap();
    assert_eq!((walk(&files, "old").await, walk(&files, "new").await), (Ok(new.ino), Ok(old)));
    files.write(&open, 12, b"!", false).await.unwrap();
    files.write(&handle, 3, b"er", false).await.unwrap();
    close(&files, open).await.unwrap();
    close(&files, handle).await.unwrap();
    swap("dir", "new").await.unwrap();
    assert_eq!(walk(&files, "new").await, Ok(dir));
    assert_eq!(swap("dir", "nothing").await, Err(Errno::ENOENT));
    let below = files.rename(ROOT, b"new", dir, b"inside", RenameFlag::Exchange).await;
    assert_eq!(below, Err(Errno::EINVAL));
    for files in [&files, &rig.files("there").await] {
        assert_eq!(names(files, ROOT).await, ["dir", "new", "old"]);
        assert_eq!(get(files, "old").await.unwrap(), b"newer");
        assert_eq!(get(files, "dir").await.unwrap(), b"old and more!");
        assert_eq!(get(files, "new/inside").await.unwrap(), b"inside");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarts_is_waited_for() {
    let mut rig = Rig::new().await;
    let files = rig.remote("here").await;
    let (_, handle) = files.create(ROOT, b"f", MAKE, false).await.unwrap();
    let mut model = vec![0u8; 0];
    // Enough to be sent ahead, so that some of it is in the node that stops.
    for at in 0..20u8 {
        let piece = vec![at; 1 << 20];
        files.write(&handle, model.len() as u64, &piece, false).await.unwrap();
        model.extend(piece);
    }
    rig.stop().await;
    let writing = tokio::spawn({
        let (files, handle) = (files.clone(), handle.clone());
        async move {
            files.write(&handle, 20 << 20, b"end", false).await?;
            files.fsync(&handle).await
        }
    });
    rig.start().await;
    writing.await.unwrap().unwrap();
    model.extend(b"end");
    let handle: Arc<_> = handle;
    files.release(handle.id).await;
    assert!(get(&files, "f").await.unwrap() == model);
    assert!(get(&rig.files("new").await, "f").await.unwrap() == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_gets_the_error_of_a_local_file_system() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let dir = mkdir(&files, ROOT, "dir").await.unwrap();
    put(&files, dir, "f", b"x").await.unwrap();
    let file = walk(&files, "dir/f").await.unwrap();
    let long = vec![b'x'; 256];
    assert_eq!(files.lookup(ROOT, &long).await.err(), Some(Errno::ENAMETOOLONG));
    assert_eq!(files.create(ROOT, &long, MAKE, false).await.err(), Some(Errno::ENAMETOOLONG));
    assert_eq!(files.lookup(file, b"x").await.err(), Some(Errno::ENOTDIR));
    assert_eq!(mkdir(&files, ROOT, "dir").await.err(), Some(Errno::EEXIST));
    assert_eq!(files.rmdir(ROOT, b"dir").await.err(), Some(Errno::ENOTEMPTY));
    assert_eq!(files.rmdir(dir, b"f").await.err(), Some(Errno::ENOTDIR));
    assert_eq!(files.unlink(ROOT, b"dir").await.err(), Some(Errno::EISDIR));
    assert_eq!(files.unlink(ROOT, b"nothing").await.err(), Some(Errno::ENOENT));
    let rename = async |from: (u64, &str), to: (u64, &str), flag| {
        files.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flag).await.err()
    };
    let replace = RenameFlag::Replace;
    assert_eq!(rename((ROOT, "dir"), (dir, "below"), replace).await, Some(Errno::EINVAL));
    assert_eq!(rename((ROOT, "dir"), (dir, "f"), replace).await, Some(Errno::EINVAL));
    assert_eq!(rename((dir, "f"), (ROOT, "dir"), replace).await, Some(Errno::EISDIR));
    put(&files, ROOT, "g", b"y").await.unwrap();
    assert_eq!(rename((ROOT, "g"), (dir, "f"), RenameFlag::NoReplace).await, Some(Errno::EEXIST));
    assert_eq!(rename((ROOT, "dir"), (ROOT, "g"), replace).await, Some(Errno::ENOTDIR));
    assert_eq!(files.open_file(dir, false).await.err(), Some(Errno::EISDIR));
    assert_eq!(files.truncate(file, u64::MAX).await.err(), Some(Errno::EFBIG));
    assert_eq!(files.readlink(file).await.err(), Some(Errno::EINVAL));
    assert_eq!(files.xattr(file, b"user.x").err(), Some(Errno::ENODATA));
    assert_eq!(files.create(ROOT, b".stoker", MAKE, false).await.err(), Some(Errno::EPERM));
    assert_eq!(files.getattr(1 << 50).await.err(), Some(Errno::ESTALE));
    // A path that is longer than POSIX has them.
    let mut at = ROOT;
    let deep = "d".repeat(250);
    let mut ends = Vec::new();
    for _ in 0..18 {
        match mkdir(&files, at, &deep).await {
            Ok(ino) => at = ino,
            Err(errno) => ends.push(errno),
        }
    }
    assert_eq!(ends.first(), Some(&Errno::ENAMETOOLONG));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_stay_with_the_file() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let dir = mkdir(&files, ROOT, "dir").await.unwrap();
    put(&files, dir, "f", b"bytes").await.unwrap();
    let ino = walk(&files, "dir/f").await.unwrap();
    let change =
        Change { mode: Some(0o4711), uid: Some(11), mtime_ns: Some(123_456_789_012), ..Change::default() };
    files.set(ino, change).await.unwrap();
    files.set_xattr(ino, b"user.a", b"one", XattrMode::Create).await.unwrap();
    files.set_xattr(ino, b"user.b", b"two", XattrMode::Any).await.unwrap();
    files.remove_xattr(ino, b"user.b").await.unwrap();
    assert_eq!(files.set_xattr(ino, b"user.a", b"", XattrMode::Create).await, Err(Errno::EEXIST));
    assert_eq!(files.set_xattr(ino, b"user.c", b"", XattrMode::Replace).await, Err(Errno::ENODATA));
    let make = Make { mode: 0o777, ..MAKE };
    files.make(dir, b"link", Kind::Symlink, make, b"../elsewhere").await.unwrap();
    files.set(dir, Change { mode: Some(0o1700), ..Change::default() }).await.unwrap();
    // A change in the middle keeps them; only the time is new.
    let handle = files.open_file(ino, false).await.unwrap();
    files.write(&handle, 1, b"Y", false).await.unwrap();
    files.set(ino, Change { mtime_ns: Some(5_000), ..Change::default() }).await.unwrap();
    close(&files, handle).await.unwrap();
    let other = rig.remote("there").await;
    let attr = other.getattr(walk(&other, "dir/f").await.unwrap()).await.unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.mtime_ns, attr.size), (0o4711, 11, 8, 5_000, 5));
    assert_eq!(other.xattr(attr.ino, b"user.a").unwrap(), b"one");
    assert_eq!(other.xattrs(attr.ino).unwrap(), [b"user.a"]);
    let link = walk(&other, "dir/link").await.unwrap();
    assert_eq!(&other.readlink(link).await.unwrap()[..], b"../elsewhere");
    assert_eq!(other.getattr(walk(&other, "dir").await.unwrap()).await.unwrap().mode, 0o1700);
    assert_eq!(names(&other, walk(&other, "dir").await.unwrap()).await, ["f", "link"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_and_zeros_are_as_asked_for() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let (_, handle) = files.create(ROOT, b"f", MAKE, false).await.unwrap();
    files.write(&handle, 0, &[1; 100], false).await.unwrap();
    files.allocate(&handle, 50, 100, Allocate::Reserve).await.unwrap();
    files.allocate(&handle, 10, 20, Allocate::Zero { grow: false }).await.unwrap();
    files.allocate(&handle, 90, 20, Allocate::Zero { grow: true }).await.unwrap();
    files.allocate(&handle, 0, 120, Allocate::Grow).await.unwrap();
    files.write(&handle, 0, b"end", true).await.unwrap();
    close(&files, handle).await.unwrap();
    let mut model = vec![1; 100];
    model[10..30].fill(0);
    model[90..].fill(0);
    model.resize(120, 0);
    model.extend(b"end");
    assert_eq!(get(&rig.files("there").await, "f").await.unwrap(), model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_takes_no_more_says_so() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    put(&files, ROOT, "small", b"fits").await.unwrap();
    let mut policy = rig.store().volume("data").await.unwrap().policy;
    policy.quota_bytes = 1000;
    rig.store().volume_set("data", policy.clone()).await.unwrap();
    let (_, handle) = files.create(ROOT, b"large", MAKE, false).await.unwrap();
    files.write(&handle, 0, &[1; 5000], false).await.unwrap();
    assert_eq!(files.fsync(&handle).await, Err(Errno::EDQUOT));
    files.release(handle.id).await;
    assert_eq!(files.lookup(ROOT, b"large").await.err(), Some(Errno::ENOENT));
    assert_eq!(files.load().1, 0);
    policy.lake_mode = stoker_store::LakeMode::ReadOnly;
    rig.store().volume_set("data", policy).await.unwrap();
    assert_eq!(mkdir(&files, ROOT, "dir").await.err(), Some(Errno::EROFS));
    assert_eq!(files.unlink(ROOT, b"small").await.err(), Some(Errno::EROFS));
    let small = walk(&files, "small").await.unwrap();
    let change = Change { mode: Some(0o777), ..Change::default() };
    assert_eq!(files.set(small, change).await.err(), Some(Errno::EROFS));
    assert_eq!(files.getattr(small).await.unwrap().mode, MAKE.mode);
    assert_eq!(get(&files, "small").await.unwrap(), b"fits");
}

/// More entries than one page has, some of them not published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_directories_are_listed_whole() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let mut expect: Vec<String> = (0..1100).map(|at| format!("f{at:05}")).collect();
    for name in &expect {
        files.make(ROOT, name.as_bytes(), Kind::File, MAKE, b"").await.unwrap();
    }
    let (_, handle) = files.create(ROOT, b"a-new-one", MAKE, false).await.unwrap();
    mkdir(&files, ROOT, "zdir").await.unwrap();
    expect.insert(0, "a-new-one".into());
    expect.push("zdir".into());
    assert_eq!(names(&files, ROOT).await, expect);
    close(&files, handle).await.unwrap();
    assert_eq!(names(&files, ROOT).await, expect);
    // Nothing stays in memory of what was only shown.
    let other = rig.files("there").await;
    assert_eq!(names(&other, ROOT).await, expect);
    assert_eq!(other.load().0, 1);
}

/// Its first bytes are on their way under the old name when it gets another one, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_is_renamed_while_it_is_written() {
    let rig = Rig::new().await;
    let mut small = options("here");
    small.file_bytes_max = 14 << 20;
    let files = rig.files_with(small).await;
    let mut pieces = (0..).map(|at: u32| vec![at as u8; 1 << 20]);
    for is_exclusive in [false, true] {
        for way in ["file", "directory", "unlink"] {
            let dir = mkdir(&files, ROOT, "d").await.unwrap();
            let (_, handle) = files.create(dir, b"long", MAKE, is_exclusive).await.unwrap();
            let mut model = Vec::new();
            for at in 0..20 {
                if at == 10 {
                    match way {
                        "file" => files.rename(dir, b"long", ROOT, b"moved", RenameFlag::Replace).await,
                        "directory" => files.rename(ROOT, b"d", ROOT, b"moved", RenameFlag::Replace).await,
                        _ => files.unlink(dir, b"long").await,
                    }
                    .unwrap();
                }
                let piece = pieces.next().unwrap();
                files.write(&handle, model.len() as u64, &piece, false).await.unwrap();
                model.extend(piece);
            }
            files.fsync(&handle).await.unwrap();
            let why = format!("{way}, exclusive: {is_exclusive}");
            assert!(files.read(&handle, 0, 32 << 20).await.unwrap() == model, "{why}");
            close(&files, handle).await.unwrap();
            let (at, expect): (_, &[&str]) = match way {
                "file" => (Some("moved"), &["d/", "moved"]),
                "directory" => (Some("moved/long"), &["moved/", "moved/long"]),
                _ => (None, &["d/"]),
            };
            assert_eq!(keys(&rig).await, expect, "{why}");
            if let Some(at) = at {
                assert!(get(&rig.remote("there").await, at).await.unwrap() == model, "{why}");
            }
            for name in expect {
                delete_object(&rig, name).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_no_paths_are_not_shown() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let odd = [".", "..", "./x", "../x", "/x", "d/.", "d/..", "d/./x", "d/../x", "d//x", "d/e//x", ".stoker"];
    for name in odd.into_iter().chain(["d/f", "f"]) {
        put_object(&rig, name, b"bytes").await;
    }
    assert_eq!(names(&files, ROOT).await, ["d", "f"]);
    let dir = walk(&files, "d").await.unwrap();
    assert_eq!(names(&files, dir).await, ["e", "f"]);
    assert_eq!(names(&files, walk(&files, "d/e").await.unwrap()).await, [""; 0]);
    let (page, more) = files.page(dir, None, 1).await.unwrap();
    assert_eq!((page[0].name.as_slice(), more), (&b"e"[..], true));
    assert_eq!(get(&files, "d/f").await.unwrap(), b"bytes");
}

/// An append that is refused and tried again is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_fails_leaves_nothing() {
    let rig = Rig::new().await;
    let mut small = options("here");
    small.file_bytes_max = 10_000;
    let files = rig.files_with(small).await;
    let mut policy = rig.store().volume("data").await.unwrap().policy;
    policy.quota_bytes = 1000;
    rig.store().volume_set("data", policy.clone()).await.unwrap();
    let (attr, handle) = files.create(ROOT, b"log", MAKE, true).await.unwrap();
    let (mut model, mut refused) = (Vec::new(), 0);
    for at in 0..12 {
        let piece = vec![at; 4000];
        let before = (files.getattr(attr.ino).await.unwrap().size, files.load().1);
        match files.write(&handle, 0, &piece, true).await {
            Ok(_) => model.extend(piece),
            Err(errno) => {
                assert_eq!(errno, Errno::EDQUOT);
                assert_eq!((files.getattr(attr.ino).await.unwrap().size, files.load().1), before);
                refused += 1;
            }
        }
        if refused == 4 {
            policy.quota_bytes = 0;
            rig.store().volume_set("data", policy.clone()).await.unwrap();
        }
    }
    assert_eq!(refused, 4);
    close(&files, handle).await.unwrap();
    assert!(get(&files, "log").await.unwrap() == model);
}
