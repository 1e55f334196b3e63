//! What a ring must hold to at size: memory, footers only, a stable subset. A program of its own and one test at a time:
//! memory is the process's.

use std::path::Path;
use std::sync::Mutex;

use stoker_format::{
    BLOCK, ChunkId, Footer, FooterEntry, Generation, KeyId, RecordFlags, RecordKind, SegmentHeader,
    SegmentId, SegmentKind, SegmentState, Seq, VersionId, VolumeId, encode_footer, footer_span,
};
use stoker_ring::{Buf, Drive, InitOptions, OpenOptions, Put, Retention, Ring};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn dir() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn id(n: u32) -> ChunkId {
    ChunkId::new(VersionId([5; 12]), n)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn memory_stays_under_the_cap_with_many_small_records() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    // The normal run writes a tenth; `check --full` writes a million.
    let count: u32 = if std::env::var_os("STOKER_FULL").is_some() { 1_000_000 } else { 100_000 };
    let dir = dir();
    let path = dir.path().join("ring");
    let size = u64::from(count) * 4608 + (64 << 20);
    Drive::init(&path, &InitOptions { size, segment_size: 8 << 20, ..Default::default() }, 1).unwrap();
    let before = resident();
    let mut options = OpenOptions::default();
    options.settings.pool_bytes = 32 << 20;
    options.settings.queue_bytes_max = 16 << 20;
    options.settings.tables_bytes_max = 16 << 20;
    options.settings.index_bytes_max = count as usize * 160;
    let cap = options.settings.memory_bytes_max();
    let ring = Ring::open(&path, options).unwrap();
    let payload = |n: u32| {
        let mut buf = Buf::heap(BLOCK);
        buf.as_mut_slice().fill(n as u8);
        buf.as_mut_slice()[..4].copy_from_slice(&n.to_le_bytes());
        buf
    };
    block_on(async {
        for first in (0..count).step_by(256) {
            let puts = (first..count.min(first + 256)).map(|n| Put::chunk(id(n), VolumeId(1), payload(n)));
            ring.append(puts.collect()).await.unwrap();
        }
        for n in (0..count).step_by(7) {
            assert_eq!(*ring.read(id(n), 0, BLOCK).await.unwrap(), *payload(n).as_slice());
        }
        let used = resident() - before;
        assert!(used <= cap, "{used} bytes resident, the cap is {cap}");
        eprintln!("{count} records of 4 KiB: {used} bytes resident, cap {cap}");
        ring.close().await.unwrap();
    });
}

/// A segment file with a footer of 63 chunks of 4 MiB and holes where their bytes would be.
fn sparse_segment(path: &Path, drive: &Drive, segment: u32) {
    use std::os::unix::fs::FileExt;
    let shape = drive.shape();
    let (generation, first_seq, nonce) = (Generation(2), Seq(1 + u64::from(segment) * 100), 77);
    let header = SegmentHeader {
        state: SegmentState::Open,
        kind: SegmentKind::User,
        leasable: false,
        ring: shape.ring,
        segment: SegmentId(segment),
        volume: VolumeId(0),
        generation,
        first_seq,
        nonce,
        opened_unix_ms: 1,
        segment_size: u64::from(shape.segment_size),
        key: KeyId(0),
    };
    let span = (4 << 20) + 2 * BLOCK as u32;
    let entries: Vec<FooterEntry> = (0..63)
        .map(|n| FooterEntry {
            chunk: id(segment * 100 + n),
            seq: Seq(first_seq.0 + u64::from(n)),
            header_offset: BLOCK as u32 + n * span,
            payload_offset: 3 * BLOCK as u32 + n * span,
            len: 4 << 20,
            volume: VolumeId(1),
            flags: RecordFlags(0),
            payload_crc: 0,
            kind: RecordKind::Chunk,
            aux_per_block: 0,
            key: KeyId(0),
        })
        .collect();
    let offset = shape.segment_size - footer_span(entries.len()) as u32;
    let footer = Footer {
        ring: shape.ring,
        segment: SegmentId(segment),
        volume: VolumeId(0),
        generation,
        first_seq,
        last_seq: Seq(first_seq.0 + 62),
        nonce,
        closed_unix_ms: 1,
        kind: SegmentKind::User,
        leasable: false,
        records_end: BLOCK as u32 + 63 * span,
        entry_size: 64,
        entry_count: 0,
        entries_offset: offset,
        entries_crc: 0,
    };
    let file = std::fs::File::create(path.join(format!("segment-{segment:08}"))).unwrap();
    file.set_len(u64::from(shape.segment_size)).unwrap();
    file.write_at(&header.encode(), 0).unwrap();
    file.write_at(&encode_footer(&footer, &entries), u64::from(offset)).unwrap();
}

#[test]
fn reopening_a_hundred_gibibytes_reads_footers_only() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let dir = dir();
    let path = dir.path().join("ring");
    // Made small so that no space is needed, then given the geometry of a large drive.
    Drive::init(&path, &InitOptions { size: 64 << 20, segment_size: 8 << 20, ..Default::default() }, 1)
        .unwrap();
    let file = path.join("superblock");
    let bytes = std::fs::read(&file).unwrap();
    let mut superblock = stoker_format::Superblock::decode(&bytes[..BLOCK]).unwrap();
    (superblock.segment_size, superblock.segment_count, superblock.update) = (256 << 20, 402, 9);
    let block = superblock.encode();
    std::fs::write(&file, [block, block].concat()).unwrap();
    {
        let drive = Drive::open_read_only(&path).unwrap();
        (0..400).for_each(|segment| sparse_segment(&path, &drive, segment));
    }
    let drive = Drive::open_read_only(&path).unwrap();
    let wake = std::sync::Arc::new(stoker_ring::stats::NoWake);
    let index = stoker_ring::index::Index::new(1 << 20, 402, 1, wake);
    let recovered = stoker_ring::recovery::recover(&drive, drive.shape(), &index).unwrap();
    let report = recovered.report;
    assert_eq!((report.footers, report.scanned, report.records), (400, 0, 400 * 63));
    assert!(report.bytes_read <= 400 * 4 * BLOCK as u64, "{} bytes read", report.bytes_read);
}

/// Every chunk once per pass, in a new order each time.
fn shuffled(count: u32, pass: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = pass * 7919 + 1;
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

#[test]
fn a_working_set_of_one_and_a_half_rings_keeps_a_stable_subset() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let dir = dir();
    let path = dir.path().join("ring");
    let (capacity, len) = (256 << 20, 120 << 10);
    Drive::init(&path, &InitOptions { size: capacity, segment_size: 1 << 20, ..Default::default() }, 1)
        .unwrap();
    let mut options = OpenOptions::default();
    options.settings.pool_bytes = 32 << 20;
    let ring = Ring::open(&path, options).unwrap();
    let count = (capacity * 3 / 2 / len as u64) as u32;
    let ratios: Vec<f64> = block_on(async {
        ring.wait_prepared().await.unwrap();
        let mut buf = ring.pool().get(len).await;
        let mut ratios = Vec::new();
        for pass in 0..5 {
            let mut hits = 0;
            for n in shuffled(count, pass) {
                match ring.read_into(id(n), 0, len, buf).await {
                    Ok(view) => {
                        hits += 1;
                        buf = view.into_buf();
                    }
                    Err(_) => {
                        buf = ring.pool().get(len).await;
                        if ring.admits(id(n), false).await.unwrap() {
                            buf.set_len(len);
                            let put =
                                Put { retention: Retention::Clean, ..Put::chunk(id(n), VolumeId(1), buf) };
                            buf = ring.append_one(put).await.unwrap();
                        }
                    }
                }
            }
            ratios.push(f64::from(hits) / f64::from(count));
        }
        ring.close().await.unwrap();
        ratios
    });
    eprintln!("hit ratio per pass: {ratios:.3?}");
    // The first pass is cold and the second admits what was touched twice; from then on a stable subset stays.
    let last_three = ratios[2..].iter().sum::<f64>() / 3.0;
    assert!(last_three >= 0.6, "hit ratio {last_three:.3} over three passes, per pass {ratios:.3?}");
}
