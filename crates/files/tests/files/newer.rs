//! Changes that wait while somebody else publishes the same file: who moved to another node, and who was cut off.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_files::{Change, Errno, Files, Handle, Newer, Options, ROOT};
use stoker_store::{EDIT_NOW_LEN_MAX, ErrorKind, Store, StoreError};

use crate::gate::{Call, Gate, When};
use crate::rig::{Rig, close, get, options, put, walk};

/// As an NFS gateway wants it.
fn dropping(place: &str) -> Options {
    Options { newer: Newer::Drop, ..options(place) }
}

/// A file system whose losses are counted.
struct Door {
    files: Files,
    options: Options,
}

impl Door {
    async fn new(store: Arc<dyn Store>, options: Options) -> Door {
        Door { files: Files::open(store, "data", options.clone()).await.unwrap(), options }
    }

    fn losses(&self) -> u64 {
        self.options.losses.load(Ordering::Acquire)
    }

    async fn open(&self, name: &str) -> Arc<Handle> {
        let ino = walk(&self.files, name).await.unwrap();
        self.files.open_file(ino, true).await.unwrap()
    }

    /// A write that is durable when it is answered, as long as somebody else comes first.
    async fn write_durably(&self, handle: &Handle, offset: u64, bytes: &[u8]) {
        for _ in 0..100 {
            match self.files.write(handle, offset, bytes, false).await {
                Err(Errno::EAGAIN) => continue,
                written => assert_eq!(written, Ok(bytes.len())),
            }
            match self.files.fsync(handle).await {
                Err(Errno::EAGAIN) => {}
                synced => return synced.unwrap(),
            }
        }
        panic!("somebody else always comes first");
    }
}

/// The client wrote here, went on there with the same bytes, and wrote newer ones there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_waited_do_not_replace_newer_ones() {
    let rig = Rig::new().await;
    for is_asked_for in [true, false] {
        let gate = Gate::new(rig.store());
        let mut small = dropping("here");
        if !is_asked_for {
            small.dirty_max = Duration::ZERO;
        }
        let (here, there) =
            (Door::new(gate.clone(), small).await, Door::new(rig.store(), dropping("there")).await);
        put(&here.files, ROOT, "f", b"..........").await.unwrap();
        let (a, b) = (here.open("f").await, there.open("f").await);
        let mut held = gate.hold(Call::Edit, When::Before);
        here.files.write(&a, 0, b"old", false).await.unwrap();
        // Whoever publishes it is on its way when newer bytes are published elsewhere.
        let syncing = is_asked_for.then(|| {
            let (files, a) = (here.files.clone(), a.clone());
            tokio::spawn(async move { files.fsync(&a).await })
        });
        held.reached().await;
        there.write_durably(&b, 0, b"old").await;
        there.write_durably(&b, 0, b"new").await;
        held.go();
        match syncing {
            Some(syncing) => assert_eq!(syncing.await.unwrap(), Err(Errno::EAGAIN)),
            None => {
                while here.files.load().1 > 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        assert_eq!(here.losses(), 1, "whoever wrote it is told");
        assert_eq!(here.files.load().1, 0, "nothing waits");
        assert_eq!(here.files.fsync(&a).await, Ok(()));
        for files in [&here.files, &there.files] {
            assert_eq!(get(files, "f").await.unwrap(), b"new.......");
        }
        // It goes on as the file that it is now.
        here.write_durably(&a, 5, b"more").await;
        assert_eq!(get(&rig.remote("client").await, "f").await.unwrap(), b"new..more.");
        assert_eq!((here.losses(), there.losses()), (1, 0));
        here.files.unlink(ROOT, b"f").await.unwrap();
        close(&here.files, a).await.unwrap();
        there.files.release(b.id).await;
    }
}

/// Lengths are changes, too; and whoever comes back is shown what is published, not what waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_sees_what_is_published() {
    let rig = Rig::new().await;
    let (here, there) =
        (Door::new(rig.store(), dropping("here")).await, Door::new(rig.store(), dropping("there")).await);
    for way in ["lookup", "getattr", "read", "cut"] {
        put(&here.files, ROOT, "f", b"..........").await.unwrap();
        let (a, b) = (here.open("f").await, there.open("f").await);
        match way {
            "cut" => here.files.truncate(a.ino(), 2).await.unwrap(),
            _ => drop(here.files.write(&a, 0, b"old", false).await.unwrap()),
        }
        there.write_durably(&b, 0, b"newer bytes").await;
        let before = here.losses();
        let size = match way {
            "lookup" => here.files.lookup(ROOT, b"f").await.unwrap().size,
            "getattr" => here.files.getattr(a.ino()).await.unwrap().size,
            "read" => here.files.read(&a, 3, 100).await.unwrap().len() as u64 + 3,
            _ => {
                assert_eq!(here.files.fsync(&a).await, Err(Errno::EAGAIN));
                here.files.peek(a.ino()).unwrap().size
            }
        };
        assert_eq!((size, here.losses() - before), (11, 1), "{way}");
        assert_eq!(&here.files.read(&a, 0, 100).await.unwrap()[..], b"newer bytes", "{way}");
        assert_eq!(close(&here.files, a).await, Ok(()), "{way}");
        close(&there.files, b).await.unwrap();
        here.files.unlink(ROOT, b"f").await.unwrap();
    }
}

/// Bytes are sent again by who wrote them; what was set is not, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_are_kept_when_bytes_are_dropped() {
    let rig = Rig::new().await;
    let (here, there) =
        (Door::new(rig.store(), dropping("here")).await, Door::new(rig.store(), dropping("there")).await);
    put(&here.files, ROOT, "f", b"..........").await.unwrap();
    let (a, b) = (here.open("f").await, there.open("f").await);
    here.files.write(&a, 0, b"old", false).await.unwrap();
    let change = Change { mode: Some(0o600), uid: Some(77), ..Change::default() };
    here.files.set(a.ino(), change).await.unwrap();
    there.write_durably(&b, 0, b"new").await;
    assert_eq!(here.files.fsync(&a).await, Err(Errno::EAGAIN));
    assert_eq!(here.files.fsync(&a).await, Ok(()));
    let found = rig.remote("client").await.lookup(ROOT, b"f").await.unwrap();
    assert_eq!((found.mode, found.uid, found.size), (0o600, 77, 10));
    assert_eq!(get(&there.files, "f").await.unwrap(), b"new.......");
}

/// Who lost the name as well is told once, and goes on with the file if it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_gone_takes_the_bytes_with_it() {
    let rig = Rig::new().await;
    let (here, there) =
        (Door::new(rig.store(), dropping("here")).await, Door::new(rig.store(), dropping("there")).await);
    for way in ["removed", "replaced", "renamed"] {
        put(&here.files, ROOT, "f", b"first").await.unwrap();
        put(&there.files, ROOT, "g", b"second").await.unwrap();
        let a = here.open("f").await;
        here.files.write(&a, 0, b"WAITS", false).await.unwrap();
        walk(&there.files, "f").await.unwrap();
        let flag = stoker_files::RenameFlag::Replace;
        match way {
            "removed" => there.files.unlink(ROOT, b"f").await.unwrap(),
            "replaced" => there.files.rename(ROOT, b"g", ROOT, b"f", flag).await.unwrap(),
            _ => there.files.rename(ROOT, b"f", ROOT, b"h", flag).await.unwrap(),
        }
        let before = here.losses();
        assert_eq!(here.files.fsync(&a).await, Err(Errno::ESTALE), "{way}");
        assert_eq!(here.losses(), before + 1, "{way}");
        assert_eq!(here.files.write(&a, 0, b"more", false).await, Err(Errno::ESTALE), "{way}");
        match way {
            "removed" => assert_eq!(walk(&here.files, "f").await, Err(Errno::ENOENT)),
            "replaced" => assert_eq!(get(&here.files, "f").await.unwrap(), b"second"),
            _ => {
                // Still open here, and found under its new name: it is sent again there.
                assert_eq!(walk(&here.files, "h").await, Ok(a.ino()));
                here.write_durably(&a, 0, b"again").await;
                assert_eq!(get(&there.files, "h").await.unwrap(), b"again");
            }
        }
        here.files.release(a.id).await;
        for name in [b"f", b"g", b"h"] {
            let _ = there.files.unlink(ROOT, name).await;
        }
    }
}

/// The version that somebody else seems to have published is the own one, of which nobody heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_whose_answer_is_lost_is_not_somebody_elses() {
    let rig = Rig::new().await;
    for newer in [Newer::Drop, Newer::Merge] {
        let calls = [(Call::Edit, 5), (Call::Finish, EDIT_NOW_LEN_MAX + 5)];
        for ((call, len), append) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
            let gate = Gate::new(rig.store());
            let here = Door::new(gate.clone(), Options { newer, ..options("here") }).await;
            put(&here.files, ROOT, "f", b"..........").await.unwrap();
            let a = here.open("f").await;
            let bytes = vec![7; len];
            here.files.write(&a, 0, &bytes, append).await.unwrap();
            gate.lose(call);
            assert_eq!(here.files.fsync(&a).await, Ok(()), "{newer:?} {call:?}");
            assert!(gate.has_lost_all());
            assert_eq!(here.losses(), 0, "{newer:?} {call:?}");
            let found = get(&rig.remote("client").await, "f").await.unwrap();
            let at = if append { 10 } else { 0 };
            assert_eq!(found.len(), if append { 10 + len } else { len.max(10) }, "{newer:?} {call:?}");
            assert!(found[at..][..len] == bytes, "{newer:?} {call:?}");
            close(&here.files, a).await.unwrap();
            here.files.unlink(ROOT, b"f").await.unwrap();
        }
    }
}

/// A mount is cut off from the catalog. Whoever goes on elsewhere is not overwritten when it is back; without that nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_was_cut_off_stands_back() {
    let rig = Rig::new().await;
    for is_changed in [true, false] {
        let gate = Gate::new(rig.store());
        let (here, there) =
            (Door::new(gate.clone(), options("here")).await, Door::new(rig.store(), options("there")).await);
        put(&here.files, ROOT, "f", b"..........").await.unwrap();
        let (a, b) = (here.open("f").await, there.open("f").await);
        here.files.write(&a, 0, b"old", false).await.unwrap();
        gate.refuse(Call::Edit, StoreError::new(ErrorKind::Unavailable, "cut off"));
        let syncing = tokio::spawn({
            let (files, a) = (here.files.clone(), a.clone());
            async move { files.fsync(&a).await }
        });
        gate.has_refused().await;
        if is_changed {
            there.write_durably(&b, 0, b"new").await;
        }
        gate.allow();
        let synced = syncing.await.unwrap();
        if is_changed {
            assert_eq!((synced, here.losses()), (Err(Errno::ESTALE), 1));
            // Whoever has it open hears of it until it is closed.
            assert_eq!(here.files.write(&a, 0, b"more", false).await, Err(Errno::ESTALE));
            assert_eq!(close(&here.files, a).await, Err(Errno::ESTALE));
            assert_eq!(get(&here.files, "f").await.unwrap(), b"new.......");
            let a = here.open("f").await;
            here.write_durably(&a, 3, b"!").await;
            close(&here.files, a).await.unwrap();
            assert_eq!(get(&there.files, "f").await.unwrap(), b"new!......");
        } else {
            assert_eq!((synced, here.losses()), (Ok(()), 0));
            close(&here.files, a).await.unwrap();
            assert_eq!(get(&there.files, "f").await.unwrap(), b"old.......");
        }
        there.files.release(b.id).await;
        here.files.unlink(ROOT, b"f").await.unwrap();
    }
}

/// A client as NFS has them: it keeps what it wrote until a commit tells the verifier that the write told, and sends it
/// again otherwise. Like a kernel it sends a range as it is now.
struct Client {
    doors: [Door; 2],
    handles: [Arc<Handle>; 2],
    at: usize,
    model: Vec<u8>,
    /// What was written and not committed: from, to, node and its count of losses.
    uncommitted: Vec<(usize, usize, usize, u64)>,
}

impl Client {
    async fn write(&mut self, from: usize, to: usize, byte: u8) {
        if self.model.len() < to {
            self.model.resize(to, 0);
        }
        self.model[from..to].fill(byte);
        self.send(from, to).await;
    }

    async fn send(&mut self, from: usize, to: usize) {
        let door = &self.doors[self.at];
        let losses = door.losses();
        while let Err(errno) =
            door.files.write(&self.handles[self.at], from as u64, &self.model[from..to], false).await
        {
            assert_eq!(errno, Errno::EAGAIN);
        }
        self.uncommitted.push((from, to, self.at, losses));
    }

    /// Commits until nothing is left to be sent.
    async fn commit(&mut self) {
        while !self.uncommitted.is_empty() {
            let door = &self.doors[self.at];
            match door.files.fsync(&self.handles[self.at]).await {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => panic!("{errno:?}"),
            }
            let verifier = (self.at, door.losses());
            let again: Vec<_> =
                self.uncommitted.drain(..).filter(|(_, _, at, losses)| (*at, *losses) != verifier).collect();
            for (from, to, ..) in again {
                self.send(from, to).await;
            }
        }
    }
}

/// A client goes from node to node, at any moment, and each node publishes what waits whenever it likes. Whatever was committed is
/// there. More with `STOKER_SEEDS`; `STOKER_FIRST` is the first of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_moves_loses_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, seeds) = (number("STOKER_FIRST").unwrap_or(1), number("STOKER_SEEDS").unwrap_or(12));
    let rig = Rig::new().await;
    let reader = rig.remote("reader").await;
    for seed in first..first + seeds {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut dice = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        let name = format!("f{seed}");
        put(&reader, ROOT, &name, b"").await.unwrap();
        let doors =
            [Door::new(rig.store(), dropping("a")).await, Door::new(rig.store(), dropping("b")).await];
        let handles = [doors[0].open(&name).await, doors[1].open(&name).await];
        let mut client = Client { doors, handles, at: 0, model: Vec::new(), uncommitted: Vec::new() };
        for step in 0..60 {
            let from = dice(200) as usize;
            let (to, byte) = (from + 1 + dice(60) as usize, 1 + dice(255) as u8);
            match dice(10) {
                0..4 => client.write(from, to, byte).await,
                4..6 => client.at = 1 - client.at,
                6 => {
                    // Durable at once, over whatever waits.
                    if client.model.len() < to {
                        client.model.resize(to, 0);
                    }
                    client.model[from..to].fill(byte);
                    let (door, handle) = (&client.doors[client.at], &client.handles[client.at]);
                    door.write_durably(handle, from as u64, &client.model[from..to]).await;
                }
                // Whoever has something publishes it; that it had to stand back is not for the client.
                7 => drop(client.doors[dice(2) as usize].files.sync().await),
                _ => {
                    client.commit().await;
                    let found = get(&reader, &name).await.unwrap();
                    assert!(found == client.model, "seed {seed}, step {step}");
                }
            }
        }
        client.commit().await;
        for door in &client.doors {
            let _ = door.files.sync().await;
        }
        assert!(get(&reader, &name).await.unwrap() == client.model, "seed {seed}");
    }
}
