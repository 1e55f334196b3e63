//! Reads samples before they are asked for: many at once, neighbours together, and never more than memory is allowed for.
//!
//! Reads are made by threads that wait for nothing else: a read of a leased piece blocks its thread for as long as the drive
//! takes, and as many reads are under way as there are threads. They are started when there is work for them.

mod files;
mod group;
mod memory;
mod spent;

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use stoker_store::{Buf, File, Store, alone};
use tokio::runtime::Handle;

use files::Files;
use memory::Memory;
use spent::Spent;

pub use files::{Unread, Wanted};
pub use group::{GAP_MAX, GROUP_BYTES_MAX, GROUP_SAMPLES_MAX, Gatherer, Group, Place, READ_LEN_MAX};
pub use spent::Sums;

/// Least budget: less would not hold a few samples.
pub const MEMORY_MIN: usize = 64 << 10;
/// Most threads of one reader.
pub const THREADS_MAX: usize = 1024;
/// Stack of a thread: it runs one small future.
const STACK_LEN: usize = 1 << 20;

/// What a reader may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that were read and not yet given back.
    pub memory: usize,
    /// Reads under way at once.
    pub threads: usize,
    /// Files that are kept open.
    pub files: usize,
}

/// Reads groups for one process.
pub struct Fetcher {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    runtime: Handle,
    files: Files,
    memory: Mutex<Memory>,
    spent: Spent,
    threads_max: usize,
    queue: Mutex<Queue>,
    work: Condvar,
    #[expect(dead_code, reason = "held for its drop, which comes last")]
    owner: Box<dyn Any + Send + Sync>,
}

#[derive(Default)]
struct Queue {
    groups: VecDeque<Arc<Underway>>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// A group that is read, or was.
pub struct Underway {
    group: Group,
    /// The file of each read.
    wanted: Vec<Arc<Wanted>>,
    slots: Vec<Mutex<Slot>>,
    /// The read that is to be begun next.
    next: AtomicUsize,
    left: AtomicUsize,
    is_cancelled: AtomicBool,
    done: (Mutex<()>, Condvar),
}

/// What came of a read.
struct Slot {
    room: Buf,
    /// Where the bytes are; the error may have been taken.
    found: Result<Range<usize>, Option<Unread>>,
}

impl Fetcher {
    /// Reads through a door whose calls run in that runtime, which is there as long as `owner` is.
    pub fn new(
        store: Arc<dyn Store>,
        runtime: Handle,
        owner: impl Any + Send + Sync,
        limits: Limits,
    ) -> Fetcher {
        let shared = Shared {
            store,
            runtime,
            files: Files::new(limits.files),
            memory: Mutex::new(Memory::new(limits.memory.max(MEMORY_MIN))),
            spent: Spent::default(),
            threads_max: limits.threads.clamp(1, THREADS_MAX),
            queue: Mutex::default(),
            work: Condvar::new(),
            owner: Box::new(owner),
        };
        Fetcher { shared: Arc::new(shared) }
    }

    /// Whether there is memory for this much more.
    pub fn fits(&self, room: usize) -> bool {
        self.shared.memory.lock().unwrap().fits(room)
    }

    /// The most memory that was used at once.
    pub fn memory_peak(&self) -> usize {
        self.shared.memory.lock().unwrap().peak()
    }

    /// What opens and reads took so far, one by one.
    pub fn spent(&self) -> Sums {
        self.shared.spent.sums()
    }

    /// Files that are open.
    pub fn files_open(&self) -> usize {
        self.shared.files.len()
    }

    /// Begins to read a group, whether there is memory or not; `wanted` are the files of its reads. Fails if not a single
    /// thread can be had.
    pub fn begin(&self, group: Group, wanted: Vec<Arc<Wanted>>) -> io::Result<Arc<Underway>> {
        assert_eq!(group.reads.len(), wanted.len(), "a file for each read");
        let mut memory = self.shared.memory.lock().unwrap();
        let slot = |read: &Place| {
            Mutex::new(Slot { room: memory.take(group::room_len(read.len)), found: Err(None) })
        };
        let slots: Vec<Mutex<Slot>> = group.reads.iter().map(slot).collect();
        drop(memory);
        let underway = Arc::new(Underway {
            left: AtomicUsize::new(slots.len()),
            group,
            wanted,
            slots,
            next: AtomicUsize::new(0),
            is_cancelled: AtomicBool::new(false),
            done: Default::default(),
        });
        if !underway.is_done() {
            self.enqueue(&underway).inspect_err(|_| self.shared.give_back(&underway))?;
        }
        Ok(underway)
    }

    fn enqueue(&self, underway: &Arc<Underway>) -> io::Result<()> {
        let reads = underway.slots.len();
        let mut queue = self.shared.queue.lock().unwrap();
        queue.groups.push_back(underway.clone());
        let missing = reads.saturating_sub(queue.idle).min(self.shared.threads_max - queue.threads);
        for _ in 0..missing {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("stoker-read".to_owned()).stack_size(STACK_LEN);
            match thread.spawn(move || shared.work()) {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => {
                    queue.groups.pop_back();
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        drop(queue);
        if reads == 1 {
            self.shared.work.notify_one()
        } else {
            self.shared.work.notify_all()
        }
        Ok(())
    }

    /// Takes the memory of a group back. One that is still read gives it back itself.
    pub fn end(&self, underway: &Underway) {
        underway.is_cancelled.store(true, Ordering::SeqCst);
        if underway.is_done() {
            self.shared.give_back(underway);
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        // Threads end by themselves: one may be in the middle of a read that nobody should have to wait for.
        let mut queue = self.shared.queue.lock().unwrap();
        queue.is_closed = true;
        queue.groups.clear();
        self.shared.work.notify_all();
    }
}

impl Shared {
    /// What a thread does.
    fn work(&self) {
        while let Some((underway, index)) = self.next() {
            if !underway.is_cancelled.load(Ordering::Relaxed) {
                let mut slot = underway.slots[index].lock().unwrap();
                let (read, wanted) = (underway.group.reads[index], &underway.wanted[index]);
                let Slot { room, found } = &mut *slot;
                let call = || self.runtime.block_on(self.read(read, wanted, room.as_mut_slice()));
                // Somebody waits for this read, whatever happens to it.
                let done = catch_unwind(AssertUnwindSafe(|| alone(call)));
                *found = done.unwrap_or_else(|_| Err(files::given_up())).map_err(Some);
            }
            if underway.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                drop(underway.done.0.lock().unwrap());
                underway.done.1.notify_all();
                if underway.is_cancelled.load(Ordering::SeqCst) {
                    self.give_back(&underway);
                }
            }
        }
    }

    /// The next read; none when there will be none.
    fn next(&self) -> Option<(Arc<Underway>, usize)> {
        let mut queue = self.queue.lock().unwrap();
        loop {
            if queue.is_closed {
                queue.threads -= 1;
                return None;
            }
            if let Some(underway) = queue.groups.front() {
                let underway = underway.clone();
                let index = underway.next.fetch_add(1, Ordering::Relaxed);
                if index + 1 == underway.slots.len() {
                    queue.groups.pop_front();
                }
                return Some((underway, index));
            }
            queue.idle += 1;
            queue = self.work.wait(queue).unwrap();
            queue.idle -= 1;
        }
    }

    async fn read(&self, read: Place, wanted: &Wanted, room: &mut [u8]) -> Result<Range<usize>, Unread> {
        if read.len == 0 {
            return Ok(0..0);
        }
        let file = self.files.get(self.store.as_ref(), read.file, wanted, &self.spent).await?;
        let begun = spent::now();
        let found = fill(file.as_ref(), read.offset, read.len, room).await;
        self.spent.read(begun);
        found
    }

    /// Once for each group: whoever finds its buffers gone finds nothing to give.
    fn give_back(&self, underway: &Underway) {
        for slot in &underway.slots {
            let room = std::mem::replace(&mut slot.lock().unwrap().room, Buf::none());
            self.memory.lock().unwrap().give_back(room);
        }
    }
}

/// Fills memory with bytes of a file; says where in it they are.
async fn fill(file: &dyn File, offset: u64, len: usize, room: &mut [u8]) -> Result<Range<usize>, Unread> {
    let mut found = file.read_within(offset, len, room).await?;
    if found.is_empty() {
        return Err(files::cut_off());
    }
    if found.start + len > room.len() {
        room.copy_within(found.clone(), 0);
        found = 0..found.len();
    }
    // A stored piece ended; what follows cannot be read to a place behind it that begins inside of a block.
    while found.len() < len {
        let bytes = file.read(offset + found.len() as u64, len - found.len()).await?;
        if bytes.is_empty() {
            return Err(files::cut_off());
        }
        let count = bytes.len().min(len - found.len());
        room[found.end..found.end + count].copy_from_slice(&bytes[..count]);
        found.end += count;
    }
    Ok(found)
}

impl Underway {
    /// What is read.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The file that holds a sample.
    pub fn wanted(&self, index: usize) -> &Arc<Wanted> {
        &self.wanted[self.group.read_of[index] as usize]
    }

    /// Whether all reads have ended.
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// Waits until all reads have ended, but not longer than this; says whether they have.
    pub fn wait(&self, limit: Duration) -> bool {
        let (lock, done) = &self.done;
        let waited = done.wait_timeout_while(lock.lock().unwrap(), limit, |()| !self.is_done());
        drop(waited);
        self.is_done()
    }

    /// Looks at the bytes of a sample; none if its read failed. All reads have ended, and the group was not given back.
    pub fn look<T>(&self, index: usize, see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let start = self.group.start(index);
        let range = start..start + self.group.places[index].len;
        self.look_read(self.group.read_of[index] as usize, |bytes| see(&bytes[range]))
    }

    /// The same for all bytes of a read.
    pub fn look_read<T>(&self, number: usize, see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let slot = self.slots[number].lock().unwrap();
        let found = slot.found.as_ref().ok()?;
        Some(see(&slot.room.as_slice()[found.clone()]))
    }

    /// Why the read of a sample failed; said once.
    pub fn fault(&self, index: usize) -> Option<Unread> {
        let mut slot = self.slots[self.group.read_of[index] as usize].lock().unwrap();
        slot.found.as_mut().err()?.take()
    }
}
