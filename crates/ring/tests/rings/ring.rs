//! A ring on real files: ext4 with O_DIRECT where the tests run, io_uring and its fallback.

use std::path::Path;

use stoker_format::{ChunkId, RecordKind, VersionId, VolumeId};
use stoker_ring::{
    Buf, Drive, DriveKind, ErrorKind, InitOptions, IoMode, OpenOptions, Put, Retention, Ring, Settings,
    SyncMode,
};

const MIB: u64 = 1 << 20;

fn dir() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn init(path: &Path, segments: u64, segment_size: u64) {
    let options = InitOptions { size: segments * segment_size + MIB, segment_size, ..Default::default() };
    Drive::init(path, &options, 1).unwrap();
}

fn open_with(path: &Path, change: impl FnOnce(&mut Settings)) -> Ring {
    let mut options = OpenOptions::default();
    options.settings.pool_bytes = 32 << 20;
    change(&mut options.settings);
    Ring::open(path, options).unwrap()
}

fn open(path: &Path) -> Ring {
    open_with(path, |_| {})
}

fn id(n: u32) -> ChunkId {
    ChunkId::new(VersionId([9; 12]), n)
}

fn bytes(n: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .collect()
}

fn put(n: u32, len: usize) -> Put {
    Put::chunk(id(n), VolumeId(1), Buf::copy_of(&bytes(n, len)))
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

const LENS: [usize; 9] = [1, 512, 4095, 4096, 4097, 20_000, 65_536, 65_537, 400_000];

async fn write_and_check(ring: &Ring) {
    let puts = LENS.iter().enumerate().map(|(n, &len)| put(n as u32, len)).collect();
    let bufs = ring.append(puts).await.unwrap();
    assert_eq!(bufs.len(), LENS.len());
    check(ring).await;
}

async fn check(ring: &Ring) {
    for (n, &len) in LENS.iter().enumerate() {
        let want = bytes(n as u32, len);
        assert_eq!(*ring.read(id(n as u32), 0, len).await.unwrap(), want[..]);
        let (from, to) = (len / 3, len / 3 + len.div_ceil(2));
        assert_eq!(*ring.read(id(n as u32), from, to - from).await.unwrap(), want[from..to]);
    }
}

#[test]
fn every_engine_and_sync_mode_writes_what_every_other_reads() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 16, 4 * MIB);
    let modes = [
        (IoMode::Uring, SyncMode::Dsync),
        (IoMode::Uring, SyncMode::Flush),
        (IoMode::Psync, SyncMode::Dsync),
        (IoMode::Psync, SyncMode::Flush),
    ];
    block_on(async {
        for (io, sync) in modes {
            let ring = open_with(&path, |s| (s.io, s.sync) = (io, sync));
            write_and_check(&ring).await;
            ring.close().await.unwrap();
            let ring = open(&path);
            check(&ring).await;
            let report = ring.status().await.unwrap().recovery;
            assert_eq!(
                (report.scanned, report.torn, report.corrupt),
                (0, 0, 0),
                "a clean stop leaves footers only"
            );
            ring.delete((0..LENS.len() as u32).map(id).collect()).await.unwrap();
            ring.close().await.unwrap();
        }
    });
}

#[test]
fn a_driver_that_is_a_task_serves_its_own_thread_and_others() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, 4 * MIB);
    for io in [IoMode::Uring, IoMode::Psync] {
        let mut options = OpenOptions::default();
        (options.settings.pool_bytes, options.settings.io) = (16 << 20, io);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (ring, driver) = Ring::open_local(&path, options).unwrap();
            let driver = tokio::spawn(driver);
            write_and_check(&ring).await;
            let other = ring.clone();
            let elsewhere = std::thread::spawn(move || block_on(async move { check(&other).await }));
            while !elsewhere.is_finished() {
                tokio::task::yield_now().await;
            }
            elsewhere.join().unwrap();
            ring.delete((0..LENS.len() as u32).map(id).collect()).await.unwrap();
            ring.close().await.unwrap();
            driver.await.unwrap().unwrap();
        });
    }
}

#[test]
fn a_block_device_works_like_a_file() {
    use std::process::Command;
    let dir = dir();
    let image = dir.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(65 * MIB).unwrap();
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let Some(attached) = attached.ok().filter(|out| out.status.success()) else {
        stoker_testing::skipped("no loop device can be had here");
        return;
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let path = Path::new(&device);
    let outcome = std::panic::catch_unwind(|| {
        let options = InitOptions { segment_size: 4 * MIB, ..Default::default() };
        Drive::init(path, &options, 1).unwrap();
        assert_eq!(Drive::init(path, &options, 1).unwrap_err().kind, ErrorKind::Invalid, "not without force");
        block_on(async {
            for _ in 0..2 {
                let ring = open(path);
                write_and_check(&ring).await;
                ring.close().await.unwrap();
            }
            let ring = open(path);
            check(&ring).await;
            ring.close().await.unwrap();
        });
    });
    let detached = Command::new("losetup").args(["--detach", &device]).status();
    outcome.unwrap();
    assert!(detached.unwrap().success());
}

#[test]
fn polling_modes_work_or_say_why_not() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, 4 * MIB);
    block_on(async {
        let ring = open_with(&path, |s| s.sqpoll = true);
        write_and_check(&ring).await;
        assert!(ring.status().await.unwrap().io_engine.contains("SQPOLL"));
        ring.delete((0..LENS.len() as u32).map(id).collect()).await.unwrap();
        ring.close().await.unwrap();
        let ring = open_with(&path, |s| s.iopoll = true);
        write_and_check(&ring).await;
        let status = ring.status().await.unwrap();
        let says_why_not = status.io_fallback.is_some_and(|why| why.contains("IOPOLL"));
        assert!(status.io_engine.contains("IOPOLL") || says_why_not);
        ring.close().await.unwrap();
    });
}

#[test]
fn a_file_drive_works_like_a_directory() {
    let dir = dir();
    let path = dir.path().join("ring.img");
    let options =
        InitOptions { size: 65 * MIB, segment_size: 4 * MIB, kind: DriveKind::File, ..Default::default() };
    Drive::init(&path, &options, 1).unwrap();
    block_on(async {
        let ring = open(&path);
        write_and_check(&ring).await;
        drop(ring.clone());
        ring.close().await.unwrap();
        let ring = open(&path);
        check(&ring).await;
        assert_eq!(ring.lease(id(1)).await.unwrap_err().kind, ErrorKind::Invalid);
        ring.close().await.unwrap();
    });
}

#[test]
fn tmpfs_has_no_direct_io_and_the_status_says_so() {
    let Ok(dir) = tempfile::TempDir::new_in("/dev/shm") else {
        stoker_testing::skipped("no tmpfs at /dev/shm");
        return;
    };
    let path = dir.path().join("ring");
    init(&path, 8, MIB);
    block_on(async {
        let ring = open(&path);
        let puts = (0..20).map(|n| put(n, 30_000)).collect();
        ring.append(puts).await.unwrap();
        eprintln!("tmpfs: direct {}", ring.status().await.unwrap().direct);
        assert_eq!(*ring.read(id(7), 0, 30_000).await.unwrap(), bytes(7, 30_000)[..]);
        ring.close().await.unwrap();
    });
}

#[test]
fn what_was_deleted_stays_deleted_and_what_was_written_stays_without_a_clean_stop() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, 4 * MIB);
    block_on(async {
        let ring = open(&path);
        ring.append((0..50).map(|n| put(n, 3000)).collect()).await.unwrap();
        ring.delete((0..25).map(id).collect()).await.unwrap();
        // A copy of the files is what a kill would leave.
        let copy = dir.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            // A segment that is just being made has this name for a moment only.
            if !entry.file_name().to_string_lossy().ends_with(".new") {
                std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
            }
        }
        let found = open(&copy);
        assert!(found.status().await.unwrap().recovery.scanned > 0);
        for n in 0..50 {
            match found.read(id(n), 0, 3000).await {
                Ok(view) => assert!(n >= 25 && *view == bytes(n, 3000)[..]),
                Err(e) => assert!(n < 25 && e.kind == ErrorKind::NotFound),
            }
        }
        found.close().await.unwrap();
        ring.close().await.unwrap();
    });
}

#[test]
fn a_full_ring_of_dirty_bytes_refuses_and_takes_data_again_after_deletes() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, MIB);
    block_on(async {
        let ring = open(&path);
        ring.wait_prepared().await.unwrap();
        let mut kept = 0;
        let refused = loop {
            match ring.append_one(put(kept, 100_000)).await {
                Ok(_) => kept += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind, ErrorKind::Full);
        assert!(kept >= 40, "only {kept} of about 60 fitted");
        ring.delete((0..kept / 2).map(id).collect()).await.unwrap();
        for n in 1000..1010 {
            ring.append_one(put(n, 100_000)).await.unwrap();
        }
        for n in kept / 2..kept {
            assert_eq!(*ring.read(id(n), 0, 100_000).await.unwrap(), bytes(n, 100_000)[..]);
        }
        ring.close().await.unwrap();
    });
}

#[test]
fn clean_records_make_room_and_never_draining_ones_have_a_share() {
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, MIB);
    block_on(async {
        let ring = open(&path);
        ring.wait_prepared().await.unwrap();
        for n in 0..300 {
            ring.append_one(put(n, 100_000)).await.unwrap();
            assert_eq!(ring.mark_clean(vec![id(n)]).await.unwrap(), 1);
        }
        assert!(ring.stats().evicted_records.get() > 200);
        let never = |n| Put { retention: Retention::Never, kind: RecordKind::Chunk, ..put(n, 100_000) };
        let mut n = 1000;
        let refused = loop {
            match ring.append_one(never(n)).await {
                Ok(_) => n += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind, ErrorKind::Full);
        assert!(refused.message.contains("share"), "{refused}");
        assert!(n - 1000 >= 30, "half of 8 MiB holds more than {}", n - 1000);
        ring.append_one(put(5000, 100_000)).await.unwrap();
        ring.close().await.unwrap();
    });
}

#[test]
fn a_lease_shows_its_bytes_after_the_ring_went_round() {
    use std::os::unix::fs::FileExt;
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, MIB);
    block_on(async {
        let ring = open(&path);
        assert!(ring.set_leasable(VolumeId(1), true).await.unwrap());
        ring.append_one(put(1, 50_000)).await.unwrap();
        let lease = ring.lease(id(1)).await.unwrap();
        ring.mark_clean(vec![id(1)]).await.unwrap();
        for n in 100..400 {
            ring.append_one(put(n, 100_000)).await.unwrap();
            ring.mark_clean(vec![id(n)]).await.unwrap();
        }
        // The leased record itself may be gone or have got a second chance elsewhere; the leased file is what counts.
        assert!(ring.stats().replaced_segments.get() >= 1);
        let file = std::fs::File::from(lease.file);
        let mut seen = Buf::heap(lease.len as usize);
        seen.set_len(seen.capacity());
        let start = lease.offset / 4096 * 4096;
        file.read_exact_at(seen.as_mut_slice(), start).unwrap();
        let skip = (lease.offset - start) as usize;
        assert_eq!(seen.as_slice()[skip..][..40_000], bytes(1, 50_000)[..40_000]);
        assert!(file.write_at(&[0; 4096], 0).is_err(), "a lease is read-only");
        ring.close().await.unwrap();
    });
}

#[test]
fn bad_drives_get_clear_errors() {
    let dir = dir();
    let path = dir.path().join("ring");
    let kind = |result: stoker_ring::Result<Ring>| result.err().expect("an error").kind;
    assert_eq!(kind(Ring::open(&path, OpenOptions::default())), ErrorKind::NotFound);
    init(&path, 8, MIB);
    let ring = open(&path);
    assert_eq!(kind(Ring::open(&path, OpenOptions::default())), ErrorKind::Locked);
    block_on(async {
        ring.wait_prepared().await.unwrap();
        ring.append_one(put(1, 1000)).await.unwrap();
        assert_eq!(ring.read(id(1), 990, 11).await.unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(ring.read(id(2), 0, 1).await.unwrap_err().kind, ErrorKind::NotFound);
        let too_large = ring.record_len_max() + 1;
        assert_eq!(ring.append_one(put(3, too_large)).await.unwrap_err().kind, ErrorKind::Invalid);
        ring.close().await.unwrap();
    });
    let again = InitOptions { size: 16 * MIB, segment_size: MIB, ..Default::default() };
    assert_eq!(Drive::init(&path, &again, 1).unwrap_err().kind, ErrorKind::Invalid);
    let other = OpenOptions { cluster: Some(stoker_format::ClusterId([1; 16])), ..Default::default() };
    assert_eq!(kind(Ring::open(&path, other)), ErrorKind::Foreign);
    let segment = std::fs::File::options().write(true).open(path.join("segment-00000003")).unwrap();
    segment.set_len(1000).unwrap();
    let error = Ring::open(&path, OpenOptions::default()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("segment-00000003"), "{error}");
    let huge = InitOptions { size: 1 << 60, segment_size: 1 << 30, ..Default::default() };
    assert_ne!(Drive::init(&dir.path().join("huge"), &huge, 1).unwrap_err().message, "");
}

#[test]
fn rot_is_found_by_reads_and_by_the_scrubber_and_never_returned() {
    use std::os::unix::fs::FileExt;
    let dir = dir();
    let path = dir.path().join("ring");
    init(&path, 8, 4 * MIB);
    block_on(async {
        let ring = open(&path);
        ring.append((0..5).map(|n| put(n, 300_000)).collect()).await.unwrap();
        let info = ring.stat(&id(3)).unwrap();
        ring.close().await.unwrap();
        let file = std::fs::File::options()
            .write(true)
            .open(path.join(format!("segment-{:08}", info.segment)))
            .unwrap();
        file.write_at(b"rot", u64::from(info.payload_offset) + 100_000).unwrap();
        let ring = open(&path);
        assert_eq!(ring.read(id(3), 0, 300_000).await.unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(*ring.read(id(3), 0, 90_000).await.unwrap(), bytes(3, 300_000)[..90_000]);
        let mut cursor = Default::default();
        assert_eq!(ring.scrub(&mut cursor, usize::MAX).await.unwrap(), vec![id(3)]);
        ring.close().await.unwrap();
    });
}
