//! Files whose names change while they are written to, here and at other doors.

use std::sync::Arc;
use std::time::Duration;

use stoker_files::{Change, Errno, Files, Handle, ROOT, RenameFlag, XattrMode};
use stoker_store::{ErrorKind, LakeMode, StoreError, Subject, VolumeOptions, VolumePolicy};

use crate::gate::{Call, Gate, When};
use crate::rig::{MAKE, Rig, close, delete_object, get, keys, names, options, put, walk};

async fn open(files: &Files, path: &str) -> Arc<Handle> {
    files.open_file(walk(files, path).await.unwrap(), false).await.unwrap()
}

/// However the name goes, and whether or not somebody here looked for it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_a_file_is_told() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    for way in ["unlink", "rename", "replace", "s3"] {
        for is_looked_for in [false, true] {
            put(&here, ROOT, "f", b"published").await.unwrap();
            put(&there, ROOT, "g", b"another").await.unwrap();
            let (reader, writer) = (open(&here, "f").await, open(&here, "f").await);
            here.write(&writer, 3, b"not yet", false).await.unwrap();
            walk(&there, "f").await.unwrap();
            match way {
                "unlink" => there.unlink(ROOT, b"f").await.unwrap(),
                "replace" => there.rename(ROOT, b"g", ROOT, b"f", RenameFlag::Replace).await.unwrap(),
                "rename" => there.rename(ROOT, b"f", ROOT, b"h", RenameFlag::Replace).await.unwrap(),
                _ => delete_object(&rig, "f").await,
            }
            if is_looked_for {
                if way != "rename" {
                    names(&here, ROOT).await;
                }
                let _ = here.lookup(ROOT, b"f").await;
            }
            let why = format!("{way}, looked for: {is_looked_for}");
            for _ in 0..2 {
                assert_eq!(here.fsync(&writer).await, Err(Errno::ESTALE), "{why}");
            }
            assert_eq!(here.write(&writer, 0, b"more", false).await, Err(Errno::ESTALE), "{why}");
            assert_eq!(close(&here, writer).await, Err(Errno::ESTALE), "{why}");
            here.release(reader.id).await;
            assert_eq!(here.load().1, 0, "nothing waits: {why}");
            // What others made of the names is as they made it, and can be used.
            let (name, bytes): (&str, &[u8]) = match way {
                "rename" => ("h", b"published"),
                "replace" => ("f", b"another"),
                _ => ("g", b"another"),
            };
            assert_eq!(get(&here, name).await.unwrap(), bytes, "{why}");
            let handle = open(&here, name).await;
            here.write(&handle, 0, b"A", false).await.unwrap();
            close(&here, handle).await.unwrap();
            for name in names(&there, ROOT).await {
                there.unlink(ROOT, name.as_bytes()).await.unwrap();
            }
        }
    }
}

/// Whoever has a file open to read it can, whatever becomes of its name and before whichever read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_can_be_read() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"first").await.unwrap();
    let early = open(&here, "f").await;
    here.hold(&early).await.unwrap();
    walk(&there, "f").await.unwrap();
    there.unlink(ROOT, b"f").await.unwrap();
    assert_eq!(here.lookup(ROOT, b"f").await.err(), Some(Errno::ENOENT));
    assert_eq!(&here.read(&early, 0, 100).await.unwrap()[..], b"first");
    close(&here, early).await.unwrap();
    // Who opens a newer version brings it to those who have the file open; it goes before anybody read it.
    put(&here, ROOT, "g", b"first").await.unwrap();
    let reader = open(&here, "g").await;
    here.hold(&reader).await.unwrap();
    let writer = there.open_file(walk(&there, "g").await.unwrap(), false).await.unwrap();
    there.write(&writer, 0, b"second", false).await.unwrap();
    close(&there, writer).await.unwrap();
    here.refresh(reader.ino()).await.unwrap();
    there.unlink(ROOT, b"g").await.unwrap();
    assert_eq!(here.lookup(ROOT, b"g").await.err(), Some(Errno::ENOENT));
    assert_eq!(&here.read(&reader, 0, 100).await.unwrap()[..], b"first");
    close(&here, reader).await.unwrap();
}

/// Whoever only read, or took the name away here, has lost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_nothing_is_not_told() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"published").await.unwrap();
    let reader = open(&here, "f").await;
    assert_eq!(&here.read(&reader, 0, 100).await.unwrap()[..], b"published");
    put(&here, ROOT, "g", b"published").await.unwrap();
    let late = open(&here, "g").await;
    walk(&there, "g").await.unwrap();
    there.unlink(ROOT, b"g").await.unwrap();
    assert_eq!(here.lookup(ROOT, b"g").await.err(), Some(Errno::ENOENT));
    assert_eq!(here.read(&late, 0, 100).await.err(), Some(Errno::ESTALE), "its bytes are nowhere");
    close(&here, late).await.unwrap();
    walk(&there, "f").await.unwrap();
    there.unlink(ROOT, b"f").await.unwrap();
    assert_eq!(here.lookup(ROOT, b"f").await.err(), Some(Errno::ENOENT));
    assert_eq!(&here.read(&reader, 0, 100).await.unwrap()[..], b"published");
    close(&here, reader).await.unwrap();
    // Found under its new name before anything was asked of it.
    put(&here, ROOT, "f", b"published").await.unwrap();
    let writer = open(&here, "f").await;
    here.write(&writer, 0, b"P", false).await.unwrap();
    walk(&there, "f").await.unwrap();
    there.rename(ROOT, b"f", ROOT, b"g", RenameFlag::Replace).await.unwrap();
    assert_eq!(here.lookup(ROOT, b"g").await.unwrap().ino, writer.ino());
    close(&here, writer).await.unwrap();
    assert_eq!(get(&there, "g").await.unwrap(), b"Published");
    there.unlink(ROOT, b"g").await.unwrap();
    put(&here, ROOT, "f", b"published").await.unwrap();
    let writer = open(&here, "f").await;
    here.write(&writer, 0, b"P", false).await.unwrap();
    here.unlink(ROOT, b"f").await.unwrap();
    here.write(&writer, 1, b"U", false).await.unwrap();
    here.fsync(&writer).await.unwrap();
    assert_eq!(&here.read(&writer, 0, 100).await.unwrap()[..], b"PUblished");
    close(&here, writer).await.unwrap();
    assert_eq!(keys(&rig).await, [""; 0]);
}

/// A listing that was asked for before an append, and answered after it, shows the file as it was. It is longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_late_rolls_nothing_back() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let files = Files::open(gate.clone(), "data", options("here")).await.unwrap();
    put(&files, ROOT, "log", b"one ").await.unwrap();
    put(&files, ROOT, "old", b"x").await.unwrap();
    for call in [Call::List, Call::Entry] {
        let handle = open(&files, "log").await;
        let mut held = gate.hold(call, When::After);
        let asking = tokio::spawn({
            let files = files.clone();
            async move {
                match call {
                    Call::List => drop(names(&files, ROOT).await),
                    _ => drop(files.lookup(ROOT, b"log").await.unwrap()),
                }
            }
        });
        held.reached().await;
        files.write(&handle, 0, b"two ", true).await.unwrap();
        files.fsync(&handle).await.unwrap();
        held.go();
        asking.await.unwrap();
        files.write(&handle, 0, b"three ", true).await.unwrap();
        close(&files, handle).await.unwrap();
    }
    let whole = b"one two three two three ";
    assert_eq!(get(&files, "log").await.unwrap(), whole);
    assert_eq!(get(&rig.remote("there").await, "log").await.unwrap(), whole);
    // Names that were made and taken away meanwhile are what they are now.
    let mut held = gate.hold(Call::Entry, When::After);
    let asking = tokio::spawn({
        let files = files.clone();
        async move { files.lookup(ROOT, b"new").await }
    });
    held.reached().await;
    let (_, handle) = files.create(ROOT, b"new", MAKE, true).await.unwrap();
    held.go();
    asking.await.unwrap().unwrap();
    files.write(&handle, 0, b"new", false).await.unwrap();
    close(&files, handle).await.unwrap();
    assert_eq!(get(&files, "new").await.unwrap(), b"new");
    let handle = open(&files, "old").await;
    let mut held = gate.hold(Call::List, When::After);
    let asking = tokio::spawn({
        let files = files.clone();
        async move { names(&files, ROOT).await }
    });
    held.reached().await;
    files.unlink(ROOT, b"old").await.unwrap();
    held.go();
    assert_eq!(asking.await.unwrap(), ["log", "new"]);
    close(&files, handle).await.unwrap();
    assert_eq!(keys(&rig).await, ["log", "new"]);
}

/// Both believe that they made it. Listed before it is closed, it is still the file of who made it here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_two_make_is_not_dropped_when_it_is_listed() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let (attr, handle) = here.create(ROOT, b"f", MAKE, false).await.unwrap();
    here.write(&handle, 0, b"made here", false).await.unwrap();
    put(&there, ROOT, "f", b"made there, and longer").await.unwrap();
    assert_eq!(names(&here, ROOT).await, ["f"]);
    here.fsync(&handle).await.unwrap();
    assert_eq!(get(&there, "f").await.unwrap(), b"made here");
    // It goes on as one file, with the number that it has here.
    assert_eq!(names(&here, ROOT).await, ["f"]);
    assert_eq!(here.lookup(ROOT, b"f").await.unwrap().ino, attr.ino);
    here.write(&handle, 0, b" and more", true).await.unwrap();
    here.fsync(&handle).await.unwrap();
    assert_eq!(get(&there, "f").await.unwrap(), b"made here and more");
    let theirs = open(&there, "f").await;
    there.write(&theirs, 0, b"MADE", false).await.unwrap();
    close(&there, theirs).await.unwrap();
    assert_eq!(here.getattr(attr.ino).await.unwrap().ino, attr.ino);
    assert_eq!(&here.read(&handle, 0, 100).await.unwrap()[..], b"MADE here and more");
    here.rename(ROOT, b"f", ROOT, b"g", RenameFlag::Replace).await.unwrap();
    here.write(&handle, 0, b"!", true).await.unwrap();
    close(&here, handle).await.unwrap();
    assert_eq!(get(&there, "g").await.unwrap(), b"MADE here and more!");
    assert_eq!(keys(&rig).await, ["g"]);
}

/// Nobody's bytes are mixed with those of a file that took the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_took_the_name_is_another_file() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"the first file").await.unwrap();
    put(&there, ROOT, "g", b"THE SECOND FILE").await.unwrap();
    let (reader, writer) = (open(&here, "f").await, open(&here, "f").await);
    walk(&there, "f").await.unwrap();
    there.rename(ROOT, b"g", ROOT, b"f", RenameFlag::Replace).await.unwrap();
    here.write(&writer, 4, b"x", false).await.unwrap();
    assert_eq!(here.read(&reader, 0, 3).await.err(), Some(Errno::ESTALE));
    assert_eq!(close(&here, writer).await, Err(Errno::ESTALE));
    here.release(reader.id).await;
    assert_eq!(get(&there, "f").await.unwrap(), b"THE SECOND FILE");
    assert_eq!(get(&here, "f").await.unwrap(), b"THE SECOND FILE");
}

/// A rename comes while bytes are being published, because they are many or because they are old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_waits_for_a_publish() {
    for is_old in [false, true] {
        let rig = Rig::new().await;
        let gate = Gate::new(rig.store());
        let mut small = options("here");
        match is_old {
            true => small.dirty_max = Duration::ZERO,
            false => small.file_bytes_max = 1000,
        }
        let files = Files::open(gate.clone(), "data", small).await.unwrap();
        put(&files, ROOT, "f", b"").await.unwrap();
        let handle = open(&files, "f").await;
        let (mut edit, mut rename) =
            (gate.hold(Call::Edit, When::Before), gate.hold(Call::Rename, When::After));
        let writing = tokio::spawn({
            let (files, handle) = (files.clone(), handle.clone());
            async move {
                files.write(&handle, 0, &[1; 2000], true).await?;
                // The second one makes room for itself, unless somebody else comes first.
                if is_old { Ok(0) } else { files.write(&handle, 0, &[2; 2000], true).await }
            }
        });
        edit.reached().await;
        let renaming = tokio::spawn({
            let files = files.clone();
            async move { files.rename(ROOT, b"f", ROOT, b"g", RenameFlag::Replace).await }
        });
        // If it did not wait it would be done in the store by then, and the publish would find no file.
        for _ in 0..10_000 {
            if rename.is_reached() {
                break;
            }
            tokio::task::yield_now().await;
        }
        edit.go();
        writing.await.unwrap().unwrap();
        // The answer of the rename comes when what was being published is published, or lost.
        while is_old && files.load().1 > 0 {
            tokio::task::yield_now().await;
        }
        rename.go();
        renaming.await.unwrap().unwrap();
        close(&files, handle).await.unwrap();
        let model = [[1; 2000], [2; 2000]].concat();
        assert!(get(&files, "g").await.unwrap() == model[..if is_old { 2000 } else { 4000 }]);
        assert_eq!(keys(&rig).await, ["g"]);
    }
}

/// Somebody else moved a file away and back, and it was looked for in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_comes_back_is_the_same_file() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"bytes").await.unwrap();
    let handle = open(&here, "f").await;
    walk(&there, "f").await.unwrap();
    there.rename(ROOT, b"f", ROOT, b"g", RenameFlag::Replace).await.unwrap();
    assert_eq!(here.lookup(ROOT, b"f").await.err(), Some(Errno::ENOENT));
    assert_eq!(here.write(&handle, 0, b"B", false).await, Err(Errno::ESTALE));
    there.rename(ROOT, b"g", ROOT, b"f", RenameFlag::Replace).await.unwrap();
    assert_eq!(here.lookup(ROOT, b"f").await.unwrap().ino, handle.ino());
    here.write(&handle, 0, b"B", false).await.unwrap();
    close(&here, handle).await.unwrap();
    assert_eq!(get(&there, "f").await.unwrap(), b"Bytes");
}

/// The bytes are on their way with the old properties when new ones come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_that_change_during_a_publish_are_kept() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let files = Files::open(gate.clone(), "data", options("here")).await.unwrap();
    let (attr, handle) = files.create(ROOT, b"f", MAKE, true).await.unwrap();
    files.set_xattr(attr.ino, b"user.old", b"value", XattrMode::Any).await.unwrap();
    files.write(&handle, 0, b"bytes", false).await.unwrap();
    let mut held = gate.hold(Call::Edit, When::After);
    let syncing = tokio::spawn({
        let (files, handle) = (files.clone(), handle.clone());
        async move { files.fsync(&handle).await }
    });
    held.reached().await;
    let change = Change { mode: Some(0o600), mtime_ns: Some(5_000), ..Change::default() };
    files.set(attr.ino, change).await.unwrap();
    let changing = tokio::spawn({
        let files = files.clone();
        async move {
            files.set_xattr(attr.ino, b"user.new", b"value", XattrMode::Any).await?;
            files.remove_xattr(attr.ino, b"user.old").await
        }
    });
    held.go();
    syncing.await.unwrap().unwrap();
    changing.await.unwrap().unwrap();
    close(&files, handle).await.unwrap();
    for files in [files, rig.remote("there").await] {
        let attr = files.lookup(ROOT, b"f").await.unwrap();
        assert_eq!((attr.mode, attr.mtime_ns, attr.size), (0o600, 5_000, 5));
        assert_eq!(files.xattrs(attr.ino).unwrap(), [b"user.new"]);
    }
}

/// Nothing changes however often it is tried: others wrote to the object in the lake that has the bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_that_stays_is_an_error() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let mut hasty = options("here");
    hasty.conflict_patience = Duration::from_millis(50);
    let files = Files::open(gate.clone(), "data", hasty).await.unwrap();
    put(&files, ROOT, "f", b"bytes").await.unwrap();
    let handle = open(&files, "f").await;
    let fault = StoreError::about(ErrorKind::Conflict, Subject::Lake, "the object was changed");
    gate.refuse(Call::Open, fault.clone());
    gate.refuse(Call::Edit, fault);
    assert_eq!(files.read(&handle, 0, 10).await.err(), Some(Errno::EIO));
    files.write(&handle, 0, b"B", false).await.unwrap();
    assert_eq!(files.fsync(&handle).await, Err(Errno::EIO));
    files.release(handle.id).await;
    assert_eq!(files.load().1, 0);
}

/// The file that was to be replaced has its name, and what is written to it then is seen there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_fails_changes_nothing() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let files = Files::open(gate.clone(), "data", options("here")).await.unwrap();
    put(&files, ROOT, "new", b"new").await.unwrap();
    put(&files, ROOT, "old", b"old").await.unwrap();
    let handle = open(&files, "old").await;
    gate.refuse(Call::Rename, StoreError::new(ErrorKind::Denied, "not now"));
    let done = files.rename(ROOT, b"new", ROOT, b"old", RenameFlag::Replace).await;
    assert_eq!(done, Err(Errno::EACCES));
    files.write(&handle, 0, b"O", false).await.unwrap();
    close(&files, handle).await.unwrap();
    assert_eq!(get(&rig.remote("there").await, "old").await.unwrap(), b"Old");
    assert_eq!(keys(&rig).await, ["new", "old"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_whose_answer_is_lost_is_made_once() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let files = Files::open(gate.clone(), "data", options("here")).await.unwrap();
    put(&files, ROOT, "f", b"f").await.unwrap();
    let ino = files.lookup(ROOT, b"f").await.unwrap().ino;
    gate.lose(Call::Link);
    assert_eq!(files.link(ino, ROOT, b"g").await.unwrap().nlink, 2);
    assert_eq!(get(&rig.remote("there").await, "g").await.unwrap(), b"f");
}

/// Asked a second time, an exchange would undo itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_whose_answer_is_lost_is_made_once() {
    let rig = Rig::new().await;
    let gate = Gate::new(rig.store());
    let files = Files::open(gate.clone(), "data", options("here")).await.unwrap();
    put(&files, ROOT, "f", b"f").await.unwrap();
    put(&files, ROOT, "g", b"g").await.unwrap();
    let dir = crate::rig::mkdir(&files, ROOT, "d").await.unwrap();
    put(&files, dir, "in", b"in").await.unwrap();
    for (first, second) in [("f", "g"), ("d", "f"), ("g", "f")] {
        gate.lose(Call::Rename);
        files.rename(ROOT, first.as_bytes(), ROOT, second.as_bytes(), RenameFlag::Exchange).await.unwrap();
    }
    for files in [&files, &rig.remote("there").await] {
        assert_eq!(get(files, "d").await.unwrap(), b"g");
        assert_eq!(get(files, "f").await.unwrap(), b"f");
        assert_eq!(get(files, "g/in").await.unwrap(), b"in");
    }
}

/// Directories that only a lake has, which others write to, have no number in the catalog.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_the_lake_has_the_same_number_everywhere() {
    let rig = Rig::new().await;
    let policy = VolumePolicy { lake_mode: LakeMode::Shared, ..VolumePolicy::default() };
    let lake = rig.folder.path().join("theirs");
    for path in ["a/deep", "b/deep", "c"] {
        std::fs::create_dir_all(lake.join(path)).unwrap();
        std::fs::write(lake.join(path).join("f"), path).unwrap();
    }
    let url = Some(format!("file://{}", lake.display()));
    rig.store().volume_create("shared", VolumeOptions { lake: url, policy: Some(policy) }).await.unwrap();
    let numbers = async |place: &str, order: &[&str]| {
        let files = Files::open(rig.store(), "shared", options(place)).await.unwrap();
        let mut found = std::collections::BTreeMap::new();
        for path in order {
            let ino = walk(&files, path).await.unwrap();
            assert_eq!(files.recall_directory(ino).await.unwrap().ino, ino, "{path}");
            assert_eq!(get(&files, &format!("{path}/f")).await.unwrap(), path.as_bytes());
            found.insert((*path).to_owned(), ino);
        }
        (files, found)
    };
    let (_, here) = numbers("here", &["a/deep", "b/deep", "c"]).await;
    let (there, again) = numbers("there", &["c", "b/deep", "a/deep"]).await;
    assert_eq!(here, again);
    assert_eq!(here.values().collect::<std::collections::BTreeSet<_>>().len(), 3);
    // Of one that nobody looked for since, a number says nothing.
    let (later, _) = numbers("later", &["c"]).await;
    assert_eq!(later.recall_directory(here["a/deep"]).await.err(), Some(Errno::ESTALE));
    // The catalog knows one as soon as something is made in it. Files that are open there go on.
    let dir = walk(&there, "a/deep").await.unwrap();
    let (_, handle) = there.create(dir, b"new", MAKE, true).await.unwrap();
    for bytes in [b"one ", b"two "] {
        assert_eq!(walk(&there, "a/deep").await.unwrap(), dir);
        there.write(&handle, 0, bytes, true).await.unwrap();
        there.fsync(&handle).await.unwrap();
    }
    close(&there, handle).await.unwrap();
    let known = walk(&later, "a/deep").await.unwrap();
    assert_eq!(get(&later, "a/deep/new").await.unwrap(), b"one two ");
    assert_eq!(there.recall_directory(known).await.unwrap().ino, dir);
}

/// At an unmount, say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_keeps_nothing_else_from_being_published() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let paths: Vec<String> = (0..9).map(|at| format!("f{at}")).collect();
    let mut handles = Vec::new();
    for path in &paths {
        put(&files, ROOT, path, b"bytes").await.unwrap();
        let handle = open(&files, path).await;
        files.write(&handle, 0, b"B", false).await.unwrap();
        handles.push(handle);
    }
    delete_object(&rig, "f4").await;
    assert_eq!(files.sync().await, Err(Errno::ESTALE));
    assert_eq!(files.load().1, 0);
    let there = rig.remote("there").await;
    for path in paths.iter().filter(|path| *path != "f4") {
        assert_eq!(get(&there, path).await.unwrap(), b"Bytes");
    }
}
