//! Files that are published in passing while they grow.

use std::sync::Arc;

use stoker_client::{Client, Endpoint};
use stoker_files::{Files, Handle, Options, ROOT, RenameFlag, XattrMode};
use stoker_store::Key;

use crate::gate::{Call, Gate};
use crate::rig::{MAKE, Rig, close, get, keys, options, walk};

const MIB: usize = 1 << 20;

/// Numbers that make a publish in passing of every few pieces.
fn often(place: &str) -> Options {
    let mut often = options(place);
    often.file_bytes_max = 8 * MIB;
    often.stream_from = 4 << 20;
    often
}

/// File systems in the process of the node and over its socket.
async fn both(rig: &Rig) -> [Files; 2] {
    let endpoint = Endpoint::Unix(rig.folder.path().join("stoker.sock"));
    let client = Client::connect(&endpoint, None).await.unwrap();
    [rig.files_with(often("near")).await, Files::open(Arc::new(client), "data", often("far")).await.unwrap()]
}

fn piece(at: usize, len: usize) -> Vec<u8> {
    (0..len).map(|byte| (byte / 7 + at * 31 + 1) as u8).collect()
}

async fn append(files: &Files, handle: &Handle, model: &mut Vec<u8>, bytes: &[u8]) {
    assert_eq!(files.write(handle, 0, bytes, true).await, Ok(bytes.len()));
    model.extend_from_slice(bytes);
}

async fn published(rig: &Rig, name: &str) -> u64 {
    let info = rig.store().stat("data", &Key::new(name).unwrap()).await;
    info.map_or(0, |info| info.size)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_is_published_while_it_grows() {
    let rig = Rig::new().await;
    for files in both(&rig).await {
        let (attr, handle) = files.create(ROOT, b"long", MAKE, false).await.unwrap();
        let (mut model, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        for at in 0..40 {
            append(&files, &handle, &mut model, &piece(at, MIB + at)).await;
            seen.insert(published(&rig, "long").await);
            assert!(files.load().1 <= 10 * MIB, "what waits is bounded");
        }
        assert!(seen.len() > 2, "{seen:?}");
        assert!(seen.iter().all(|size| *size as usize <= model.len()));
        assert_eq!(files.getattr(attr.ino).await.unwrap().size, model.len() as u64);
        assert!(files.read(&handle, 0, 64 * MIB).await.unwrap() == model);
        close(&files, handle).await.unwrap();
        assert_eq!(files.load().1, 0);
        assert!(get(&rig.remote("there").await, "long").await.unwrap() == model);
        files.unlink(ROOT, b"long").await.unwrap();
    }
}

/// Anything else that is done with the file comes while its front is being published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_a_file_in_flight_happens_to_all_of_it() {
    let rig = Rig::new().await;
    for files in both(&rig).await {
        for way in ["overwrite", "cut", "longer", "hole", "read", "xattr", "rename", "unlink", "link", "sync"]
        {
            let (attr, handle) = files.create(ROOT, b"f", MAKE, false).await.unwrap();
            let mut model = Vec::new();
            let mut name = "f";
            for at in 0..16 {
                append(&files, &handle, &mut model, &piece(at, MIB)).await;
                if at % 5 != 4 {
                    continue;
                }
                let half = model.len() / 2;
                match way {
                    "overwrite" => {
                        files.write(&handle, half as u64, b"other bytes", false).await.unwrap();
                        model[half..half + 11].copy_from_slice(b"other bytes");
                    }
                    "cut" => {
                        files.truncate(attr.ino, half as u64).await.unwrap();
                        model.truncate(half);
                    }
                    "longer" => {
                        files.truncate(attr.ino, (model.len() + 5000) as u64).await.unwrap();
                        model.resize(model.len() + 5000, 0);
                    }
                    "hole" => {
                        files.write(&handle, (model.len() + 7000) as u64, b"behind", false).await.unwrap();
                        model.resize(model.len() + 7000, 0);
                        model.extend_from_slice(b"behind");
                    }
                    "read" => {
                        let bytes = files.read(&handle, half as u64, 100_000).await.unwrap();
                        assert!(bytes == model[half..half + 100_000]);
                    }
                    "xattr" => {
                        files.set_xattr(attr.ino, b"user.n", &[at as u8], XattrMode::Any).await.unwrap();
                    }
                    "rename" => {
                        let to = if name == "f" { "g" } else { "f" };
                        let flag = RenameFlag::Replace;
                        files.rename(ROOT, name.as_bytes(), ROOT, to.as_bytes(), flag).await.unwrap();
                        name = to;
                    }
                    "unlink" if at == 4 => files.unlink(ROOT, b"f").await.unwrap(),
                    "link" if at == 4 => drop(files.link(attr.ino, ROOT, b"second").await.unwrap()),
                    "sync" => {
                        files.fsync(&handle).await.unwrap();
                        assert_eq!(published(&rig, "f").await, model.len() as u64);
                    }
                    _ => {}
                }
            }
            assert!(files.read(&handle, 0, 64 * MIB).await.unwrap() == model, "{way}");
            close(&files, handle).await.unwrap();
            assert_eq!(files.load().1, 0, "{way}");
            let there = rig.remote("there").await;
            let expect: &[&str] = match way {
                "unlink" => &[],
                "link" => &["f", "second"],
                _ => &[name],
            };
            assert_eq!(keys(&rig).await, expect, "{way}");
            for name in expect {
                assert!(get(&there, name).await.unwrap() == model, "{way}");
                if way == "xattr" {
                    let ino = walk(&there, name).await.unwrap();
                    assert_eq!(there.xattr(ino, b"user.n").unwrap(), [14]);
                }
                files.unlink(ROOT, name.as_bytes()).await.unwrap();
            }
        }
    }
}

/// Somebody else publishes the file while it grows here; both keep what they wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_flight_that_others_change_keeps_its_bytes() {
    let rig = Rig::new().await;
    for here in both(&rig).await {
        let there = rig.remote("there").await;
        let (_, handle) = here.create(ROOT, b"f", MAKE, true).await.unwrap();
        let mut model = vec![0; 10];
        here.write(&handle, 0, &model, false).await.unwrap();
        here.fsync(&handle).await.unwrap();
        for at in 0..25 {
            append(&here, &handle, &mut model, &piece(at, MIB)).await;
            if at % 5 == 4 {
                let ino = walk(&there, "f").await.unwrap();
                let other = there.open_file(ino, false).await.unwrap();
                there.write(&other, at as u64 / 5, b"X", false).await.unwrap();
                close(&there, other).await.unwrap();
                model[at / 5] = b'X';
            }
        }
        close(&here, handle).await.unwrap();
        assert!(get(&there, "f").await.unwrap() == model);
        here.unlink(ROOT, b"f").await.unwrap();
    }
}

/// The node goes away while the front of a file is being published, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_flight_outlives_its_node() {
    let mut rig = Rig::new().await;
    let [_, files] = both(&rig).await;
    let (_, handle) = files.create(ROOT, b"f", MAKE, false).await.unwrap();
    let mut model = Vec::new();
    for at in 0..30 {
        append(&files, &handle, &mut model, &piece(at, MIB)).await;
        if at % 10 == 9 {
            rig.stop().await;
            rig.start().await;
        }
    }
    close(&files, handle).await.unwrap();
    assert!(get(&rig.files("there").await, "f").await.unwrap() == model);
}

/// The version is published, and nobody hears of it; then something is done that depends on what is published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_whose_answer_is_lost_changes_nothing() {
    let rig = Rig::new().await;
    for is_exclusive in [false, true] {
        for way in ["close", "cut", "cut and write", "unlink", "replace"] {
            let why = format!("{way}, exclusive: {is_exclusive}");
            let gate = Gate::new(rig.store());
            let files = Files::open(gate.clone(), "data", often("here")).await.unwrap();
            let (attr, handle) = files.create(ROOT, b"f", MAKE, is_exclusive).await.unwrap();
            let mut model = Vec::new();
            gate.lose(Call::Finish);
            for at in 0..6 {
                append(&files, &handle, &mut model, &piece(at, MIB)).await;
            }
            // It is under way; whether it was done is not known here.
            while !gate.has_lost_all() {
                tokio::task::yield_now().await;
            }
            match way {
                "cut" | "cut and write" => {
                    files.truncate(attr.ino, 0).await.unwrap();
                    model.clear();
                    if way == "cut and write" {
                        append(&files, &handle, &mut model, &piece(9, 1000)).await;
                    }
                }
                "unlink" => {
                    files.unlink(ROOT, b"f").await.unwrap();
                    assert_eq!(keys(&rig).await.iter().filter(|key| *key == "f").count(), 0, "{why}");
                }
                "replace" => {
                    crate::rig::put(&files, ROOT, "g", b"another").await.unwrap();
                    files.rename(ROOT, b"g", ROOT, b"f", RenameFlag::Replace).await.unwrap();
                }
                _ => {}
            }
            files.fsync(&handle).await.unwrap();
            assert!(files.read(&handle, 0, 64 * MIB).await.unwrap() == model, "{why}");
            close(&files, handle).await.unwrap();
            assert_eq!(files.load().1, 0, "{why}");
            let expect: &[&str] = if way == "unlink" { &[] } else { &["f"] };
            assert_eq!(keys(&rig).await, expect, "{why}");
            if way == "unlink" {
                continue;
            }
            let there = rig.remote("there").await;
            let bytes = get(&there, "f").await.unwrap();
            assert!(if way == "replace" { bytes == b"another" } else { bytes == model }, "{why}");
            there.unlink(ROOT, b"f").await.unwrap();
        }
    }
}

/// A file takes the name of another one that is open, and whose front was just published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_flight_that_is_replaced_lives_while_it_is_open() {
    let rig = Rig::new().await;
    for files in both(&rig).await {
        let (_, handle) = files.create(ROOT, b"g", MAKE, false).await.unwrap();
        let mut model = Vec::new();
        for at in 0..6 {
            append(&files, &handle, &mut model, &piece(at, MIB)).await;
        }
        while published(&rig, "g").await == 0 {
            tokio::task::yield_now().await;
        }
        crate::rig::put(&files, ROOT, "f", b"another").await.unwrap();
        files.rename(ROOT, b"f", ROOT, b"g", RenameFlag::Replace).await.unwrap();
        for at in 6..20 {
            append(&files, &handle, &mut model, &piece(at, MIB)).await;
        }
        assert!(files.read(&handle, 0, 64 * MIB).await.unwrap() == model);
        files.release(handle.id).await;
        assert_eq!(get(&files, "g").await.unwrap(), b"another");
        assert_eq!(keys(&rig).await, ["g"]);
        files.unlink(ROOT, b"g").await.unwrap();
    }
}
