//! Leases of an open file: which parts of it can be read from the drive, and the reads.
//!
//! Whatever goes wrong here is no failure: the caller asks the node for the bytes, and the node repairs or reports.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use stoker_format::{BLOCK, crc32c};
use stoker_store::{Buf, LeaseExtent, NoLease, is_alone};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use super::Client;
use super::link::{Link, Reply};
use super::segments::LeaseFiles;
use super::spare::BUFFER_LEN;
use crate::lease;
use crate::message::{Request, Response};

/// How far ahead a reader that goes from front to back asks.
const WINDOW: u64 = 64 << 20;
/// How much one asks for at once that will want all of a file: as many pieces as one answer has, of the usual length.
const WINDOW_OF_ALL: u64 = 256 << 20;
/// Extents that a file remembers; the oldest go first.
const EXTENTS_MAX: usize = 256;
/// Separate stretches without leases above which a file asks no more.
const CLOSED_MAX: usize = 64;

/// Pieces here and there after which a reader is taken for one that will want all of the file.
const JUMPS: u32 = 8;

/// How long a file asks for no leases after the node had none to give.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads up to this are done by the thread that asks.
const SHORT: usize = 64 << 10;

/// What is known of a file's leases in one connection.
pub(super) struct FileLeases {
    link: Arc<Link>,
    file: u64,
    known: Mutex<Known>,
    /// Those who miss the same piece at once ask once.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    /// By their offset in the file.
    extents: BTreeMap<u64, Arc<Extent>>,
    order: VecDeque<u64>,
    /// Where the node has to be asked for bytes.
    closed: Vec<Range<u64>>,
    /// Where the last lease ended.
    next: u64,
    /// Times that the node was asked for a piece away from the last one.
    jumps: u32,
    /// Whether the reader said that it will want all of the file.
    wants_all: bool,
    /// Until when the node is not asked for leases, because it had no more to give.
    paused_until: Option<Instant>,
}

/// A place on the drive and the lease that allows to look there.
struct Extent {
    place: LeaseExtent,
    grant: Arc<Grant>,
}

/// A lease; ends when the last extent of it is forgotten.
struct Grant {
    link: Arc<Link>,
    id: u64,
    files: Weak<LeaseFiles>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.link.end_lease(self.id);
    }
}

/// What is known of an offset.
enum Look {
    Leased(Arc<Extent>),
    Closed,
    Unknown,
}

impl Known {
    fn look(&self, offset: u64) -> Look {
        let near = self.extents.range(..=offset).next_back();
        if let Some((_, extent)) = near.filter(|(_, extent)| offset < extent.place.end()) {
            return Look::Leased(extent.clone());
        }
        let closed = self.closed.len() > CLOSED_MAX
            || self.paused_until.is_some_and(|until| Instant::now() < until)
            || self.closed.iter().any(|range| range.contains(&offset));
        if closed { Look::Closed } else { Look::Unknown }
    }

    /// From where on and how much to ask for: a reader that goes on where the last lease ended will want more, and so will
    /// one that jumps about in a file of which there is room for all. Who wants all gets what is missing in front, too.
    fn wish(&mut self, offset: u64, len: u64) -> (u64, u64) {
        let has_room = self.extents.len() <= EXTENTS_MAX / 2;
        if self.wants_all && has_room {
            return (self.gap_start(offset).max(offset.saturating_sub(WINDOW_OF_ALL / 2)), WINDOW_OF_ALL);
        }
        let goes_on = (self.next..self.next.saturating_add(WINDOW)).contains(&offset);
        self.jumps += u32::from(!goes_on);
        let roams = self.jumps > JUMPS && has_room;
        (offset, if goes_on || roams { len.max(WINDOW) } else { len })
    }

    /// Where that begins of which nothing is known, in front of an offset.
    fn gap_start(&self, offset: u64) -> u64 {
        let leased = self.extents.range(..=offset).next_back().map(|(_, extent)| extent.place.end());
        let closed = self.closed.iter().map(|range| range.end).filter(|end| *end <= offset);
        closed.chain(leased).max().unwrap_or(0).min(offset)
    }

    fn close(&mut self, range: Range<u64>) {
        match self.closed.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ => self.closed.push(range),
        }
    }

    /// Remembers extents; returns those that are forgotten for them, to be dropped without a lock.
    fn add(&mut self, extents: Vec<Arc<Extent>>) -> Vec<Arc<Extent>> {
        let mut gone = Vec::new();
        for extent in extents {
            let offset = extent.place.offset;
            self.next = extent.place.end();
            match self.extents.insert(offset, extent) {
                Some(old) => gone.push(old),
                None => self.order.push_back(offset),
            }
        }
        while self.order.len() > EXTENTS_MAX {
            let oldest = self.order.pop_front();
            gone.extend(oldest.and_then(|offset| self.extents.remove(&offset)));
        }
        gone
    }

    /// Reads an extent through the node from now on.
    fn distrust(&mut self, extent: &Extent) -> Option<Arc<Extent>> {
        self.close(extent.place.offset..extent.place.end());
        self.order.retain(|offset| *offset != extent.place.offset);
        self.extents.remove(&extent.place.offset)
    }
}

impl FileLeases {
    pub fn new(link: Arc<Link>, file: u64) -> FileLeases {
        FileLeases { link, file, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// Verified bytes from the drive, at least one and at most `len`; none if the node has to be asked.
    pub async fn read(&self, client: &Client, offset: u64, len: usize) -> Option<Bytes> {
        let (extent, files) = self.place(client, offset, len).await?;
        let plan = Plan::new(&extent.place, offset, len, BUFFER_LEN)?;
        let mut buf = client.0.spares.take(plan.len);
        buf.set_len(plan.len);
        let reading = extent.clone();
        let view = plan.view.clone();
        // An O_DIRECT read blocks its thread for as long as the drive takes. A thread that waits for this one read may as
        // well do it; on a thread that others wait for, too, a short one costs less than two switches of threads.
        let is_short = plan.len <= SHORT && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        let read = match is_short {
            _ if is_alone() => Ok(plan.fill(&reading.place, &files, buf)),
            true => Ok(tokio::task::block_in_place(|| plan.fill(&reading.place, &files, buf))),
            false => tokio::task::spawn_blocking(move || plan.fill(&reading.place, &files, buf)).await,
        };
        match read {
            Ok(Ok(buf)) => Some(client.0.spares.freeze(buf).slice(view)),
            Ok(Err(error)) => self.distrust(&extent, error),
            Err(_) => None,
        }
    }

    /// The same into memory that begins on a block boundary, by the thread that asks: it may be blocked. Says where in the
    /// memory the bytes are.
    pub async fn read_within(
        &self,
        client: &Client,
        offset: u64,
        len: usize,
        room: &mut [u8],
    ) -> Option<Range<usize>> {
        if !room.as_ptr().addr().is_multiple_of(BLOCK) {
            return None;
        }
        let (extent, files) = self.place(client, offset, len).await?;
        let plan = Plan::new(&extent.place, offset, len, room.len() / BLOCK * BLOCK)?;
        match plan.run(&extent.place, &files, &mut room[..plan.len]) {
            Ok(()) => Some(plan.view),
            Err(error) => self.distrust(&extent, error),
        }
    }

    /// The extent at an offset and the files that show it; none if the node has to be asked for the bytes.
    async fn place(
        &self,
        client: &Client,
        offset: u64,
        len: usize,
    ) -> Option<(Arc<Extent>, Arc<LeaseFiles>)> {
        if !self.link.gives_leases() {
            return None;
        }
        let mut look = self.known.lock().unwrap().look(offset);
        if matches!(look, Look::Unknown) {
            let _turn = self.asking.lock().await;
            look = self.known.lock().unwrap().look(offset);
            if matches!(look, Look::Unknown) {
                look = self.ask(client, offset, len as u64).await;
            }
        }
        let Look::Leased(extent) = look else { return None };
        // None: the connection is over, and its leases with it.
        let files = extent.grant.files.upgrade()?;
        Some((extent, files))
    }

    fn distrust<T>(&self, extent: &Extent, error: io::Error) -> Option<T> {
        tracing::warn!("a leased piece cannot be used, the node is asked for it: {error}");
        let gone = self.known.lock().unwrap().distrust(extent);
        drop(gone);
        None
    }

    /// The reader will want all of the file, in any order.
    pub fn wants_all(&self) {
        self.known.lock().unwrap().wants_all = true;
    }

    async fn ask(&self, client: &Client, offset: u64, len: u64) -> Look {
        let (from, wish) = self.known.lock().unwrap().wish(offset, len);
        if from < offset {
            // What is in front may have no lease, or be all that one answer has.
            self.ask_at(client, from, wish).await;
            let look = self.known.lock().unwrap().look(offset);
            if !matches!(look, Look::Unknown) {
                return look;
            }
        }
        self.ask_at(client, offset, wish).await
    }

    async fn ask_at(&self, client: &Client, offset: u64, wish: u64) -> Look {
        let request = Request::Lease { file: self.file, offset, len: wish };
        let id = self.link.new_id();
        // A connection that is lost shows at the read that follows.
        let Ok(Ok(reply)) = client.within(&request, self.link.call(id, &request)).await else {
            return Look::Closed;
        };
        let Reply { response, payload, descriptors } = reply;
        let places = match response {
            Response::Lease { places } => places,
            Response::NoLease { reason: NoLease::Limit, .. } => {
                // Others have what there is; that passes.
                self.known.lock().unwrap().paused_until = Some(Instant::now() + PAUSE);
                return Look::Closed;
            }
            Response::NoLease { reason, until } => {
                tracing::debug!("no lease at {offset}: {reason:?}");
                self.known.lock().unwrap().close(offset..until.max(offset + 1));
                return Look::Closed;
            }
            _ => {
                self.known.lock().unwrap().close(offset..offset + 1);
                return Look::Closed;
            }
        };
        let Some((extents, files)) = descriptors.and_then(|all| lease::decode(&places, &payload, all)) else {
            self.link.release(id);
            self.link.give_up_leases("descriptors do not arrive, or do not fit what was said of them");
            return Look::Closed;
        };
        let files = self.link.keep_lease(id, files);
        let grant = Arc::new(Grant { link: self.link.clone(), id, files });
        let held = |place| Arc::new(Extent { place, grant: grant.clone() });
        let mut known = self.known.lock().unwrap();
        let gone = known.add(extents.into_iter().map(held).collect());
        let look = known.look(offset);
        drop(known);
        drop(gone);
        // A node that leases another place than the one that was asked for would be asked for ever.
        if matches!(look, Look::Unknown) { Look::Closed } else { look }
    }
}

/// A read of whole blocks of a file that covers whole blocks of an extent that cover the wanted bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    /// Start in the file, on a block boundary.
    start: u64,
    /// Whole blocks.
    len: usize,
    /// Blocks of the extent, by number; each is checked.
    blocks: Range<usize>,
    /// Where the first of them starts in what was read.
    data_start: usize,
    /// The wanted bytes in what was read.
    view: Range<usize>,
}

impl Plan {
    /// Plans a read of at most `len` bytes at an offset inside the extent, as far as a buffer of whole blocks goes; none if
    /// that is nowhere.
    fn new(place: &LeaseExtent, offset: u64, len: usize, room: usize) -> Option<Plan> {
        let skip = (offset - place.offset) as usize;
        // Two blocks may be read for one byte each, in front and behind.
        let len = len.min(place.len as usize - skip).min(room);
        let plan = Plan::of(place, skip, len);
        match plan.len.saturating_sub(room) {
            0 if len > 0 => Some(plan),
            over if over < len => Some(Plan::of(place, skip, len - over)).filter(|plan| plan.len <= room),
            _ => None,
        }
    }

    fn of(place: &LeaseExtent, skip: usize, len: usize) -> Plan {
        let blocks = skip / BLOCK..(skip + len).div_ceil(BLOCK);
        let first = place.at + (blocks.start * BLOCK) as u64;
        let last = place.at + (blocks.end * BLOCK).min(place.len as usize) as u64;
        let start = first / BLOCK as u64 * BLOCK as u64;
        let data_start = (first - start) as usize;
        let view = data_start + skip - blocks.start * BLOCK;
        Plan {
            start,
            len: (last - start).next_multiple_of(BLOCK as u64) as usize,
            blocks,
            data_start,
            view: view..view + len,
        }
    }

    /// Fills a buffer of the right length.
    fn fill(&self, place: &LeaseExtent, files: &[Arc<File>], mut buf: Buf) -> io::Result<Buf> {
        self.run(place, files, buf.as_mut_slice()).map(|()| buf)
    }

    /// Reads and checks; blocks.
    fn run(&self, place: &LeaseExtent, files: &[Arc<File>], into: &mut [u8]) -> io::Result<()> {
        let file = files.get(place.descriptor).ok_or(io::ErrorKind::NotFound)?;
        let mut filled = 0;
        while filled < self.len {
            match file.read_at(&mut into[filled..], self.start + filled as u64) {
                // What goes on inside a block could not be read with O_DIRECT.
                Ok(count) if count > 0 && count.is_multiple_of(BLOCK) => filled += count,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.bad_block(place, into) {
            None => Ok(()),
            Some(block) => {
                let message = format!("block {block} of the piece at {} fails its CRC", place.offset);
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    /// The first block whose CRC differs.
    fn bad_block(&self, place: &LeaseExtent, bytes: &[u8]) -> Option<usize> {
        self.blocks.clone().find(|&block| {
            let start = self.data_start + (block - self.blocks.start) * BLOCK;
            let len = BLOCK.min(place.len as usize - block * BLOCK);
            match (bytes.get(start..start + len), place.table.get(block)) {
                (Some(bytes), Some(&expected)) => crc32c(bytes) != expected,
                _ => true,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64, at: u64, len: u32) -> LeaseExtent {
        LeaseExtent { offset, len, descriptor: 0, at, table: Arc::new([]) }
    }

    #[test]
    fn plans_cover_whole_blocks_and_show_the_range() {
        let check = |at, len, skip: u64, n, want: (u64, usize, Range<usize>, Range<usize>)| {
            let plan = Plan::new(&place(1000, at, len), 1000 + skip, n, BUFFER_LEN).unwrap();
            assert_eq!((plan.start, plan.len, plan.blocks, plan.view), want);
        };
        check(8192, 10_000, 0, 99_999, (8192, 12_288, 0..3, 0..10_000));
        check(8192, 10_000, 4096, 4096, (12_288, 4096, 1..2, 0..4096));
        check(8192, 10_000, 5000, 10, (12_288, 4096, 1..2, 904..914));
        check(8192 + 192, 4000, 100, 50, (8192, 8192, 0..1, 292..342));
        check(8192, 4 << 20, 0, 4 << 20, (8192, 4 << 20, 0..1024, 0..4 << 20));
    }

    #[test]
    fn plans_fit_a_buffer() {
        for at in [4096, 4096 + 64] {
            for skip in [0, 1, 4095, 4096, 5_000_000] {
                let plan = Plan::new(&place(0, at, 16 << 20), skip, usize::MAX, BUFFER_LEN).unwrap();
                assert!(plan.len <= BUFFER_LEN && plan.view.len() >= BUFFER_LEN - 3 * BLOCK, "{plan:?}");
                assert!(plan.view.end <= plan.len);
            }
        }
    }

    #[test]
    fn plans_fit_memory_of_the_caller() {
        for (at, skip, len) in [(4096, 0, 1), (4096, 4095, 2), (4096, 5000, 17_000), (4096 + 64, 4000, 9000)]
        {
            for room in (0..12).map(|blocks| blocks * BLOCK) {
                match Plan::new(&place(0, at, 1 << 20), skip, len, room) {
                    Some(plan) => {
                        assert!(plan.len <= room && !plan.view.is_empty() && plan.view.end <= plan.len);
                        assert!(plan.view.len() == len || room <= len + 2 * BLOCK, "{plan:?} in {room}");
                    }
                    None => assert!(room <= 2 * BLOCK, "{room}"),
                }
            }
        }
    }

    #[test]
    fn closed_stretches_grow_together_and_end_the_asking() {
        let mut known = Known::default();
        for chunk in 0..1000 {
            known.close(chunk * 10..chunk * 10 + 10);
        }
        assert!(matches!(known.closed[..], [Range { start: 0, end: 10_000 }]));
        assert!(matches!(known.look(9_999), Look::Closed));
        assert!(matches!(known.look(10_000), Look::Unknown));
        for chunk in 0..=CLOSED_MAX as u64 {
            known.close(20_000 + chunk * 20..20_000 + chunk * 20 + 10);
        }
        assert!(matches!(known.look(10_000), Look::Closed));
    }

    #[test]
    fn readers_from_front_to_back_ask_ahead() {
        let mut known = Known::default();
        assert_eq!(known.wish(0, 10), (0, WINDOW));
        known.next = 1 << 40;
        assert_eq!((known.wish(0, 10), known.wish(1 << 40, 10)), ((0, 10), (1 << 40, WINDOW)));
        (1..JUMPS).for_each(|_| assert_eq!(known.wish(5, 10), (5, 10)));
        assert_eq!(known.wish(5, 10), (5, WINDOW), "one that seems to want all of it");
    }

    #[test]
    fn who_wants_all_asks_for_what_is_missing() {
        let mut known = Known { wants_all: true, ..Known::default() };
        assert_eq!(known.wish(100 << 20, 10), (0, WINDOW_OF_ALL));
        known.close(10..50);
        known.close(200 << 20..201 << 20);
        assert_eq!(known.wish(100 << 20, 10), (50, WINDOW_OF_ALL));
        assert_eq!(known.wish(1 << 40, 10), ((1 << 40) - WINDOW_OF_ALL / 2, WINDOW_OF_ALL));
    }
}
