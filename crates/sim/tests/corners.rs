//! Corners that a review found: each of these once lost a record, hung a caller or filled the ring.

use std::sync::Arc;
use stoker_format::*;
use stoker_ring::Retention;
use stoker_ring::buffer::{Buf, Pool};
use stoker_ring::engine::*;
use stoker_ring::error::*;
use stoker_ring::index::*;
use stoker_ring::recovery::{self, Report, Shape};
use stoker_ring::settings::{Settings, SyncMode};
use stoker_ring::stats::{NoWake, Stats};
use stoker_ring::tables::Tables;
use stoker_sim::drive::{Faults, SimDrive};
use stoker_sim::rng::Rng;
const RING: RingId = RingId([7; 16]);
struct H {
    engine: Engine<u64>,
    index: Arc<Index>,
    drive: SimDrive,
    fl: Vec<Command>,
    rng: Rng,
    done: Vec<(u64, Result<()>)>,
    us: u64,
    size: u32,
    n: u32,
    set: Settings,
}
fn base() -> Settings {
    Settings { index_bytes_max: 64 << 20, ..Settings::default() }
}
impl H {
    fn new(n: u32, size: u32, set: Settings) -> H {
        H::open(SimDrive::new(n, size, Faults::default()), n, size, set).unwrap()
    }
    fn open(drive: SimDrive, n: u32, size: u32, set: Settings) -> Result<H> {
        let index = Index::new(set.index_entries_max(), n, 5, Arc::new(NoWake));
        let r =
            recovery::recover(&drive, Shape { ring: RING, segment_size: size, segment_count: n }, &index)?;
        let mut rg = Rng::new(9);
        let engine = Engine::new(EngineParts {
            settings: set.clone(),
            ring: RING,
            segment_size: size,
            index: index.clone(),
            tables: Arc::new(Tables::new(1 << 20)),
            stats: Arc::new(Stats::default()),
            pool: Pool::new(8 << 20).unwrap(),
            segments: r.segments,
            next_seq: r.next_seq,
            entropy: Box::new(move || rg.number()),
        });
        let mut h =
            H { engine, index, drive, fl: vec![], rng: Rng::new(1), done: vec![], us: 0, size, n, set };
        h.run();
        Ok(h)
    }
    fn pump(&mut self) {
        self.us += 50;
        self.engine.set_time(self.us / 1000, self.us);
        self.engine.pump();
        self.fl.extend(self.engine.take_commands());
        for d in self.engine.take_done() {
            self.done.push((d.token, d.result));
        }
    }
    fn one(&mut self, c: Command) {
        let (op, out) = match c.io {
            Io::Scan { segment } => {
                let s = &self.engine.segments()[segment as usize];
                let p = RecordPlace {
                    ring: RING,
                    generation: s.generation,
                    nonce: s.nonce,
                    offset: 0,
                    segment_size: self.size,
                };
                (
                    c.op,
                    Outcome::Scanned(
                        recovery::scan(&self.drive, segment, &p, &mut Report::default()).unwrap().lines,
                    ),
                )
            }
            io => self.drive.execute(c.op, io, &mut self.rng),
        };
        self.engine.complete(op, out);
        self.pump();
    }
    fn run(&mut self) {
        self.pump();
        let mut k = 0;
        while !self.fl.is_empty() {
            let c = self.fl.remove(0);
            self.one(c);
            k += 1;
            assert!(k < 200_000, "livelock: {}", self.engine.describe());
        }
    }
    fn put(&mut self, c: ChunkId, v: u32, ret: Retention, b: &[u8], t: u64) {
        self.engine.append(
            Append {
                chunk: c,
                volume: VolumeId(v),
                kind: RecordKind::Chunk,
                retention: ret,
                payload: Buf::copy_of(b),
                crcs: Crcs::of(b),
                seal: None,
            },
            t,
        );
    }
    fn res(&self, t: u64) -> Option<&Result<()>> {
        self.done.iter().find(|d| d.0 == t).map(|d| &d.1)
    }
    fn reopen(mut self) -> Result<H> {
        let d = self.drive.crash(std::iter::empty(), 0, &mut self.rng);
        H::open(d, self.n, self.size, self.set)
    }
}
fn id(n: u32) -> ChunkId {
    ChunkId::new(VersionId([3; 12]), n)
}

#[test]
fn flush_mode_poison_answers_everyone() {
    let mut h = H::new(8, 1 << 20, Settings { sync: SyncMode::Flush, small_bytes_max: 4096, ..base() });
    h.put(id(0), 1, Retention::Dirty, &[1; 100], 99);
    h.run();
    h.put(id(1), 1, Retention::Dirty, &[1; 50_000], 1);
    h.put(id(2), 1, Retention::Dirty, &[2; 50_000], 2);
    h.pump();
    assert_eq!(h.fl.len(), 2);
    let a = h.fl.remove(0);
    let b = h.fl.remove(0);
    h.engine.complete(a.op, Outcome::Failed("EIO".into()));
    h.pump();
    h.one(b);
    h.run();
    assert!(h.res(1).is_some());
    assert!(!h.engine.is_busy());
    assert!(h.res(2).is_some(), "append 2 is never answered");
}
#[test]
fn close_segments_on_a_poisoned_drive_is_answered() {
    let mut h = H::new(8, 1 << 20, base());
    h.put(id(0), 1, Retention::Dirty, &[1; 100], 99);
    h.run();
    h.put(id(1), 1, Retention::Dirty, &[1; 100_000], 1);
    h.pump();
    let a = h.fl.remove(0);
    h.engine.complete(a.op, Outcome::Failed("EIO".into()));
    h.run();
    h.engine.close_open(5);
    h.run();
    assert!(h.res(5).is_some(), "close_segments is never answered");
}
#[test]
fn bulk_delete_as_large_record_keeps_room_for_its_lines() {
    let size = 4 << 20;
    let mut h = H::new(8, size, Settings { small_bytes_max: 16 << 10, ..base() });
    let mut n = 0;
    let len = |n: u32| if n < 57 { 65536 } else { 20_000 };
    while n < 63 {
        h.put(id(n), 1, Retention::Dirty, &vec![n as u8; len(n)], n as u64);
        h.run();
        n += 1;
    }
    let seg = h.index.get(&id(0)).unwrap().segment;
    for k in 0..1 {
        let dead: Vec<ChunkId> = (0..2000).map(|i| id(1_000_000 + k * 2000 + i)).collect();
        h.engine.delete(&dead, 1000 + u64::from(k));
        h.run();
    }
    let s = &h.engine.segments()[seg as usize];
    let foot = footer_span(s.lines.len());
    eprintln!("state {:?} cursor {} + footer {} vs size {}", s.state, s.cursor, foot, size);
    h.engine.close_open(7);
    h.run();
    let mut h = h.reopen().unwrap();
    let lost: Vec<u32> = (0..n)
        .filter(|i| match h.index.get(&id(*i)) {
            None => true,
            Some(e) => {
                h.drive.peek(e.segment, e.payload_offset as usize, len(*i)).unwrap()
                    != vec![*i as u8; len(*i)]
            }
        })
        .collect();
    h.run();
    assert!(lost.is_empty(), "acknowledged records lost or overwritten: {lost:?}");
}
#[test]
fn bulk_deletes_do_not_fill_the_ring() {
    let mut h = H::new(12, 256 << 10, base());
    let max = h.engine.deaths_max() as u32;
    for k in 0..400u32 {
        let dead: Vec<ChunkId> = (0..max).map(|i| id(k * max + i)).collect();
        h.engine.delete(&dead, u64::from(k));
        h.run();
        assert!(
            matches!(h.res(u64::from(k)), Some(Ok(()))),
            "delete {k} of {max}: {:?}; {:?}",
            h.res(u64::from(k)),
            h.engine.counts()
        );
    }
}
#[test]
fn deaths_behind_one_old_segment_do_not_pile_up() {
    let mut h = H::new(12, 256 << 10, Settings { never_share: 0.5, ..base() });
    // One segment full of must-keep bytes, never worth reclaiming.
    for n in 0..7 {
        h.put(id(n), 1, Retention::Never, &vec![1; 32 << 10], 9_000_000 + u64::from(n));
        h.run();
    }
    for k in 100..40_000u32 {
        h.put(id(k), 1, Retention::Dirty, &[1; 64], u64::from(k) * 2);
        h.run();
        h.engine.delete(&[id(k)], u64::from(k) * 2 + 1);
        h.run();
        let d: u32 = h.engine.segments().iter().map(|s| s.deaths).sum();
        if k % 2000 == 0 {
            eprintln!("{k}: {d} deaths, live {}", h.index.len());
        }
        assert!(
            matches!(h.res(u64::from(k) * 2), Some(Ok(()))),
            "put {k}: {:?}; {d} deaths kept, {} live records",
            h.res(u64::from(k) * 2),
            h.index.len()
        );
        h.done.clear();
    }
}
#[test]
fn mark_dirty_during_a_move_sticks() {
    let index = Index::new(1000, 4, 1, Arc::new(NoWake));
    let e = |seg, seq, marks| Entry {
        seq: Seq(seq),
        segment: seg,
        header_offset: 4096,
        payload_offset: 8192,
        len: 9,
        crc: 0,
        volume: VolumeId(1),
        marks,
    };
    let from = e(0, 1, Marks::CLEAN);
    index.insert(id(1), from).unwrap();
    let to = e(1, 2, Marks::CLEAN.with(Marks::RESCUED)); // the copy is on its way
    index.remark(&id(1), |m| m.without(Marks::CLEAN)); // mark_dirty is answered
    index.relocate(&id(1), &from, to);
    assert!(index.get(&id(1)).unwrap().marks.must_keep(), "a record made must-keep again is evictable");
}
#[test]
fn put_again_in_another_volume_survives() {
    let mut h = H::new(8, 1 << 20, base());
    h.put(id(1), 1, Retention::Dirty, &[1; 100], 1);
    h.run();
    h.engine.delete(&[id(1)], 2);
    h.run();
    h.put(id(1), 2, Retention::Dirty, &[2; 100], 3);
    h.run();
    assert!(matches!(h.res(3), Some(Ok(()))));
    let h = h.reopen().unwrap();
    assert!(h.index.get(&id(1)).is_some(), "acknowledged record lost");
}
#[test]
fn a_ring_at_its_index_cap_opens_again() {
    let mut h = H::new(16, 1 << 20, Settings { index_bytes_max: 1024 * ENTRY_BYTES, ..base() });
    for k in 0..20u32 {
        for i in 0..100 {
            h.put(id(k * 100 + i), 1, Retention::Dirty, &[1; 64], u64::from(k * 100 + i));
        }
        h.run();
    }
    eprintln!("{} live, cap {}", h.index.len(), h.index.max());
    assert!(h.reopen().map(|_| ()).is_ok(), "cannot be opened again with the same settings");
}
struct Flaky<'a>(&'a SimDrive, u32, usize, usize);
impl recovery::Media for Flaky<'_> {
    fn exists(&self, s: u32) -> Result<bool> {
        self.0.exists(s)
    }
    fn read(&self, s: u32, o: u32, b: &mut Buf) -> std::io::Result<()> {
        if s == self.1 && (o as usize) < self.3 && self.2 < o as usize + b.len() {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.0.read(s, o, b)
    }
    fn leased(&self, s: u32) -> bool {
        self.0.leased(s)
    }
    fn foreign_is_error(&self) -> bool {
        false
    } // a flat drive
}
use recovery::Media;
#[test]
fn a_read_error_while_scanning_is_not_silence() {
    let mut h = H::new(8, 1 << 20, base());
    for n in 0..5 {
        h.put(id(n), 1, Retention::Dirty, &[n as u8; 3000], u64::from(n));
        h.run();
    }
    let e = h.index.get(&id(2)).unwrap();
    let d = h.drive.crash(std::iter::empty(), 0, &mut h.rng);
    let at = e.header_offset as usize / 4096 * 4096;
    let index = Index::new(9999, 8, 5, Arc::new(NoWake));
    let r = recovery::recover(
        &Flaky(&d, e.segment, at, at + 4096),
        Shape { ring: RING, segment_size: 1 << 20, segment_count: 8 },
        &index,
    );
    let r = r.unwrap();
    assert!(
        r.report.unreadable_blocks > 0,
        "EIO on one block: an acknowledged record is gone without a word"
    );
    assert_eq!(index.len(), 4, "only what lies in the unreadable block is missing");
    assert_eq!(
        r.segments[e.segment as usize].state,
        stoker_ring::engine::State::Damaged,
        "never to be reused"
    );
}
#[test]
fn a_read_error_on_both_headers_does_not_make_a_segment_unprepared() {
    let mut h = H::new(8, 1 << 20, base());
    for n in 0..100 {
        h.put(id(n), 1, Retention::Dirty, &vec![n as u8; 60_000], u64::from(n));
        h.run();
        if !matches!(h.res(u64::from(n)), Some(Ok(()))) {
            break;
        }
    }
    let d = h.drive.crash(std::iter::empty(), 0, &mut h.rng);
    let index = Index::new(9999, 8, 5, Arc::new(NoWake));
    struct All<'a>(Flaky<'a>);
    impl Media for All<'_> {
        fn exists(&self, s: u32) -> Result<bool> {
            self.0.exists(s)
        }
        fn read(&self, _: u32, _: u32, _: &mut Buf) -> std::io::Result<()> {
            Err(std::io::Error::from_raw_os_error(5))
        }
        fn leased(&self, s: u32) -> bool {
            self.0.leased(s)
        }
        fn foreign_is_error(&self) -> bool {
            false
        }
    }
    let r = recovery::recover(
        &All(Flaky(&d, 0, 0, 0)),
        Shape { ring: RING, segment_size: 1 << 20, segment_count: 8 },
        &index,
    );
    if let Ok(r) = &r {
        let st: Vec<_> = r.segments.iter().map(|s| s.state).collect();
        panic!(
            "recovery succeeds; every segment will be made anew over {} acknowledged records: {st:?}",
            h.index.len()
        );
    }
}
#[test]
fn one_failed_read_in_reclaim_does_not_drop_dirty_records() {
    let mut h = H::new(8, 1 << 20, base());
    let mut n = 0;
    let mut failed = false;
    while n < 400 && !failed {
        h.put(id(n), 1, Retention::Dirty, &vec![n as u8; 30_000], u64::from(n));
        if n % 3 != 0 {
            let t = 10_000 + u64::from(n);
            h.run();
            h.engine.delete(&[id(n)], t);
        }
        h.pump();
        while !h.fl.is_empty() {
            let c = h.fl.remove(0);
            let moving = h.engine.describe().contains("Moving");
            if moving && !failed && matches!(c.io, Io::Read { .. }) {
                failed = true;
                h.engine.complete(c.op, Outcome::Failed("ENOMEM".into()));
                h.pump();
            } else {
                h.one(c);
            }
        }
        n += 1;
    }
    let lost: Vec<u32> = (0..n)
        .filter(|k| {
            k % 3 == 0 && matches!(h.res(u64::from(*k)), Some(Ok(()))) && h.index.get(&id(*k)).is_none()
        })
        .collect();
    assert!(failed && lost.is_empty(), "failed {failed}; acknowledged dirty records dropped: {lost:?}");
}
#[test]
fn a_lease_held_across_a_restart_and_a_lap_shows_the_old_bytes() {
    let mut h = H::new(16, 128 << 10, base());
    h.engine.set_leasable(VolumeId(1), true);
    h.put(id(0), 1, Retention::Dirty, &[7; 10_000], 1);
    h.run();
    assert!(matches!(h.res(1), Some(Ok(()))), "{:?}", h.res(1));
    h.engine.lease(&id(0), 2);
    h.run();
    assert!(matches!(h.res(2), Some(Ok(()))), "{:?}", h.res(2));
    let entry = h.index.get(&id(0)).unwrap();
    let inode = h.drive.inode(entry.segment);
    // Nobody tells the next boot of the lease but the mark on the drive.
    let mut h = h.reopen().unwrap();
    h.engine.set_leasable(VolumeId(1), true);
    h.engine.delete(&[id(0)], 3);
    h.run();
    for n in 100..400 {
        h.put(id(n), 1, Retention::Dirty, &[n as u8; 10_000], u64::from(n) * 2);
        h.run();
        h.engine.delete(&[id(n)], u64::from(n) * 2 + 1);
        h.run();
    }
    assert_ne!(h.drive.inode(entry.segment), inode, "the ring never came round to the leased segment");
    let shown = h.drive.leased_bytes(inode, entry.payload_offset as usize, 10_000);
    assert_eq!(shown, Some(&[7; 10_000][..]));
}
