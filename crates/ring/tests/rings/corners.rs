//! Corners that a review found: each of these once hung a caller or harmed a drive.

use std::time::Duration;
use stoker_format::{ChunkId, RecordKind, VersionId, VolumeId};
use stoker_ring::*;
const MIB: u64 = 1 << 20;
fn dir() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
fn id(n: u32) -> ChunkId {
    ChunkId::new(VersionId([9; 12]), n)
}
fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tx.send(f());
    });
    rx.recv_timeout(Duration::from_secs(8)).ok()
}
fn rt() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap()
}
fn opts(pool: usize) -> OpenOptions {
    let mut o = OpenOptions::default();
    o.settings.pool_bytes = pool;
    o
}
#[test]
fn a_pool_cut_small_still_serves_a_large_request() {
    let got = within(|| {
        let pool = Pool::new(2 << 20).unwrap();
        let mut all = vec![];
        while let Some(b) = pool.take(4096) {
            all.push(b);
        }
        drop(all);
        assert_eq!(pool.in_use(), 0);
        rt().block_on(pool.get(1 << 20)).len()
    });
    assert!(got.is_some(), "an idle pool never answers get(1 MiB)");
}
#[test]
fn two_closes_both_return() {
    let d = dir();
    let p = d.path().join("ring");
    Drive::init(&p, &InitOptions { size: 16 * MIB, segment_size: MIB, ..Default::default() }, 1).unwrap();
    let ok = within(move || {
        rt().block_on(async {
            let a = Ring::open(&p, opts(8 << 20)).unwrap();
            let b = a.clone();
            a.append_one(Put::chunk(id(1), VolumeId(1), Buf::copy_of(&[1; 100]))).await.unwrap();
            let (x, y) = tokio::join!(a.close(), b.close());
            (x.is_ok(), y.is_ok())
        })
    });
    assert!(ok.is_some(), "one of two close() calls never returns");
}
#[test]
fn a_lease_on_a_flat_drive_is_refused_and_does_no_harm() {
    let d = dir();
    let p = d.path().join("flat");
    Drive::init(
        &p,
        &InitOptions { size: 17 * MIB, segment_size: MIB, kind: DriveKind::File, ..Default::default() },
        1,
    )
    .unwrap();
    rt().block_on(async {
        let ring = Ring::open(&p, opts(8 << 20)).unwrap();
        ring.wait_prepared().await.unwrap();
        ring.set_leasable(VolumeId(1), true).await.unwrap();
        ring.append_one(Put::chunk(id(1), VolumeId(1), Buf::copy_of(&[1; 100]))).await.unwrap();
        let _ = ring.lease(id(1)).await;
        let after = ring.append_one(Put::chunk(id(2), VolumeId(1), Buf::copy_of(&[1; 100]))).await;
        assert!(after.is_ok(), "the drive is poisoned: {:?}", after.err());
    });
}
#[test]
fn readers_that_wait_for_memory_do_not_stop_writers() {
    let d = dir();
    let p = d.path().join("ring");
    Drive::init(&p, &InitOptions { size: 8 * MIB, segment_size: MIB, ..Default::default() }, 1).unwrap();
    let ok = within(move || {
        rt().block_on(async {
            let ring = Ring::open(&p, opts(2 << 20)).unwrap();
            ring.wait_prepared().await.unwrap();
            for n in 0..56u32 {
                let put = Put {
                    chunk: id(n),
                    volume: VolumeId(1),
                    kind: RecordKind::Chunk,
                    retention: Retention::Clean,
                    payload: Buf::copy_of(&vec![n as u8; 60_000]),
                    seal: None,
                };
                ring.append_one(put).await.unwrap();
                if n % 8 == 0 {
                    eprintln!("{n} {}", ring.status().await.unwrap().detail);
                }
            }
            eprintln!(
                "{:?} evicted {}",
                ring.status().await.unwrap().segments,
                ring.stats().evicted_records.get()
            );
            let mut slots = vec![];
            while let Some(b) = ring.pool().take(60_000) {
                slots.push(b);
            }
            while let Some(b) = ring.pool().take(4096) {
                std::mem::forget(b);
            }
            eprintln!("{} slots, {} live", slots.len(), ring.pages().flatten().count());
            let chunks: Vec<ChunkId> = ring.pages().flatten().map(|i| i.chunk).collect();
            let reads = join_all(chunks.into_iter().map(|c| {
                let r = ring.clone();
                async move { r.read(c, 0, 60_000).await.is_ok() }
            }));
            let heap: Vec<Buf> = (0..50).map(|_| Buf::copy_of(&[7; 60_000])).collect();
            let slots: Vec<Buf> = heap.into_iter().chain(slots).collect();
            let writes = join_all(slots.into_iter().enumerate().map(|(n, b)| {
                let r = ring.clone();
                async move {
                    r.append_one(Put {
                        chunk: id(1000 + n as u32),
                        volume: VolumeId(1),
                        kind: RecordKind::Chunk,
                        retention: Retention::Dirty,
                        payload: b,
                        seal: None,
                    })
                    .await
                    .is_ok()
                }
            }));
            tokio::join!(reads, writes)
        })
    });
    assert!(
        ok.is_some(),
        "deadlock: readers hold pins and wait for slots, writers hold slots and wait for pins"
    );
}
#[test]
fn callers_hear_of_a_local_driver_that_was_dropped() {
    let d = dir();
    let p = d.path().join("ring");
    Drive::init(&p, &InitOptions { size: 16 * MIB, segment_size: MIB, ..Default::default() }, 1).unwrap();
    let ok = within(move || {
        rt().block_on(async {
            let (ring, driver) = Ring::open_local(&p, opts(8 << 20)).unwrap();
            drop(driver);
            ring.append_one(Put::chunk(id(1), VolumeId(1), Buf::copy_of(&[1; 100]))).await.is_err()
        })
    });
    assert!(ok.is_some(), "append hangs for ever");
}

async fn join_all<F: Future>(fs: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut fs: Vec<_> = fs.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut all = true;
        for (f, o) in &mut fs {
            if o.is_none() {
                match f.as_mut().poll(cx) {
                    std::task::Poll::Ready(v) => *o = Some(v),
                    _ => all = false,
                }
            }
        }
        if all { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    fs.into_iter().map(|f| f.1.unwrap()).collect()
}
#[test]
fn a_copy_from_the_lake_does_not_make_must_keep_bytes_droppable() {
    let d = dir();
    let p = d.path().join("ring");
    Drive::init(&p, &InitOptions { size: 16 * MIB, segment_size: MIB, ..Default::default() }, 1).unwrap();
    rt().block_on(async {
        let ring = Ring::open(&p, opts(8 << 20)).unwrap();
        let clean = |n: u32| Put {
            retention: Retention::Clean,
            ..Put::chunk(id(n), VolumeId(1), Buf::copy_of(&[2; 200]))
        };
        ring.append_one(Put::chunk(id(1), VolumeId(1), Buf::copy_of(&[2; 100]))).await.unwrap();
        ring.append_one(clean(1)).await.unwrap();
        let kept = ring.stat(&id(1)).unwrap();
        assert_eq!((kept.len, kept.clean), (200, false));
        ring.append_one(clean(2)).await.unwrap();
        assert!(ring.stat(&id(2)).unwrap().clean);
        ring.mark_clean(vec![id(1)]).await.unwrap();
        ring.append_one(clean(1)).await.unwrap();
        assert!(ring.stat(&id(1)).unwrap().clean);
        ring.close().await.unwrap();
    });
}

/// What users wrote lies in plain bytes on a drive, so nobody but its owner may read the files.
#[test]
fn the_files_of_a_drive_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for kind in [DriveKind::Directory, DriveKind::File] {
        let d = dir();
        let p = d.path().join("below/ring");
        if kind == DriveKind::File {
            std::fs::create_dir(d.path().join("below")).unwrap();
        }
        let init = InitOptions { size: 17 * MIB, segment_size: MIB, kind, ..Default::default() };
        Drive::init(&p, &init, 1).unwrap();
        let files = || match kind {
            DriveKind::Directory => {
                std::fs::read_dir(&p).unwrap().map(|entry| entry.unwrap().path()).collect()
            }
            _ => vec![p.clone()],
        };
        let write = || {
            rt().block_on(async {
                let ring = Ring::open(&p, opts(8 << 20)).unwrap();
                ring.wait_prepared().await.unwrap();
                ring.append_one(Put::chunk(id(1), VolumeId(1), Buf::copy_of(&[1; 100]))).await.unwrap();
                ring.close().await.unwrap();
            });
        };
        write();
        files().iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
        if kind == DriveKind::Directory {
            assert_eq!(mode(&p), 0o700);
        }
        // An older release left them open to everybody.
        let is_data =
            |file: &std::path::Path| kind == DriveKind::File || file.to_string_lossy().contains("segment-");
        for file in files().iter().filter(|file| is_data(file)) {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        write();
        files().iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
    }
}
