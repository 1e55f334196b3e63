//! Aligned memory that the drive reads and writes without a copy.
//!
//! A [`Buf`] starts on a block boundary, may have headroom in front of its data (so that a record header and its
//! payload leave in one write), and knows whether it lies in the registered arena of a [`Pool`]. Nothing else
//! allocates I/O memory. A crate of its own, because gateways fill such buffers and must not know the ring. [`Places`] are the
//! other thing of which a node has only so many: connections.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use stoker_format::BLOCK;

mod arena;
mod hatch;
mod places;
mod sums;

use sums::Sums;

pub use hatch::{HatchIn, HatchOut, SLOT_LEN};
pub use places::{Place, Places};

/// Room kept in front of pooled data: the largest record header (16 MiB of payload) fits.
pub const HEADROOM: usize = 20 << 10;

const HUGE: usize = 2 << 20;

/// Rounds up to whole blocks.
pub const fn blocks_up(len: usize) -> usize {
    len.div_ceil(BLOCK) * BLOCK
}

enum Home {
    Heap(Layout),
    Pool {
        pool: Arc<Pool>,
        class: usize,
    },
    Nowhere,
    /// Bytes are lent out: whoever is last gives the memory back.
    Shared(Arc<Buf>),
    Foreign(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

/// Block-aligned memory that travels to the drive and back as itself.
pub struct Buf {
    base: NonNull<u8>,
    headroom: usize,
    capacity: usize,
    len: usize,
    home: Home,
    /// Of the bytes in use, if they came by [`Self::fill`] and [`Self::grow`] alone.
    sums: Option<Box<Sums>>,
}

// SAFETY: a Buf owns its memory exclusively (heap, a pool slot handed out once, or a foreign owner that the
// constructor's contract makes exclusive), so moving it between threads moves the only access.
unsafe impl Send for Buf {}
// SAFETY: shared access only reads; mutation needs `&mut`.
unsafe impl Sync for Buf {}

impl Buf {
    /// Allocates zeroed heap memory for `len` bytes, outside every pool.
    pub fn heap(len: usize) -> Buf {
        let capacity = blocks_up(len.max(1));
        let layout = Layout::from_size_align(capacity, BLOCK).expect("block-aligned layout");
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(raw).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Buf { base, headroom: 0, capacity, len, home: Home::Heap(layout), sums: None }
    }

    /// Holds nothing and costs nothing; stands in while the real memory is on its way.
    pub fn none() -> Buf {
        Buf { base: NonNull::dangling(), headroom: 0, capacity: 0, len: 0, home: Home::Nowhere, sums: None }
    }

    /// Copies bytes into fresh heap memory; for tests and small control data.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::heap(bytes.len());
        buf.as_mut_slice().copy_from_slice(bytes);
        buf
    }

    /// Wraps memory that a caller owns (a NumPy array, a pinned tensor), to be used in place.
    ///
    /// # Safety
    /// `ptr` is block-aligned and valid for reads and writes of `capacity` bytes (a multiple of the block size)
    /// until `owner` is dropped, and nobody else touches that memory while this Buf lives.
    pub unsafe fn foreign(
        ptr: NonNull<u8>,
        capacity: usize,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buf {
        assert!(
            ptr.as_ptr().addr().is_multiple_of(BLOCK) && capacity.is_multiple_of(BLOCK) && len <= capacity
        );
        Buf { base: ptr, headroom: 0, capacity, len, home: Home::Foreign(owner), sums: None }
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: headroom lies inside the allocation.
        unsafe { self.base.as_ptr().add(self.headroom) }
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that fit; always whole blocks.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// True if the memory is this process's own and belongs to no pool.
    pub fn is_heap(&self) -> bool {
        matches!(self.home, Home::Heap(_))
    }

    /// Changes how many bytes are in use; memory is always initialised, so growing shows old bytes.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity && !self.is_lent());
        if len != self.len {
            self.sums = None;
        }
        self.len = len;
    }

    /// Copies bytes behind those in use, and sums them on the way. Panics if they do not fit.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.capacity - self.len);
        let mut sums = self.sums.take();
        if sums.is_none() && self.len == 0 {
            sums = Some(Box::new(Sums::new(self.capacity)));
        }
        for step in bytes.chunks(sums.as_ref().map_or(sums::STEP, |sums| sums.step())) {
            let at = self.len;
            self.len += step.len();
            self.as_mut_slice()[at..].copy_from_slice(step);
            if let Some(sums) = &mut sums {
                sums.grew(self.as_slice());
            }
        }
        self.sums = sums;
    }

    /// [`Self::fill`] shall sum CRC-64 alone, for bytes whose blocks are summed where they are written. The buffer is empty.
    pub fn sum_crc64(&mut self) {
        assert!(self.is_empty());
        self.sums = Some(Box::new(Sums::only_crc64()));
    }

    /// The same with a CRC32C of all bytes.
    pub fn sum_crc32c(&mut self) {
        assert!(self.is_empty());
        self.sums = Some(Box::new(Sums::whole()));
    }

    /// Room behind the bytes in use, for one who writes in place and then calls [`Self::grow`].
    pub fn spare_mut(&mut self) -> &mut [u8] {
        // SAFETY: `data+len..data+capacity` is inside the initialised allocation, and `&mut self` makes it the only
        // access.
        unsafe { std::slice::from_raw_parts_mut(self.data().add(self.len), self.capacity - self.len) }
    }

    /// Takes in the first `len` bytes of [`Self::spare_mut`] and sums their blocks. No CRC-64 is known of them.
    pub fn grow(&mut self, len: usize) {
        self.grow_by(len, Sums::new, Sums::grew_by_blocks);
    }

    /// The same with a CRC-64 of all bytes.
    pub fn grow_summed(&mut self, len: usize) {
        for at in (0..len).step_by(sums::STEP) {
            self.grow_by(sums::STEP.min(len - at), Sums::new, Sums::grew);
        }
    }

    /// The same, summed as a whole: less work, for bytes that go to a reader. A ring that takes them sums them again.
    pub fn grow_whole(&mut self, len: usize) {
        self.grow_by(len, |_| Sums::whole(), Sums::grew_by_blocks);
    }

    fn grow_by(&mut self, len: usize, begin: impl Fn(usize) -> Sums, grew: impl Fn(&mut Sums, &[u8])) {
        assert!(len <= self.capacity - self.len);
        let mut sums = self.sums.take();
        if sums.is_none() && self.len == 0 {
            sums = Some(Box::new(begin(self.capacity)));
        }
        self.len += len;
        if let Some(sums) = &mut sums {
            grew(sums, self.as_slice());
        }
        self.sums = sums;
    }

    /// Sums the blocks of the bytes in use, unless that is done: for one who needs the sums more than once.
    pub fn sum(&mut self) {
        if !self.sums.as_ref().is_some_and(|sums| sums.cover(self.len)) {
            let mut sums = Box::new(Sums::new(self.capacity));
            sums.grew_by_blocks(self.as_slice());
            self.sums = Some(sums);
        }
    }

    /// CRC32C of the bytes in use, if it is known from filling them in.
    pub fn crc32c(&self) -> Option<u32> {
        self.sums.as_ref()?.crc32c(self.as_slice())
    }

    /// CRC-64/NVME of the bytes in use, if it is known from filling them in.
    pub fn crc64(&self) -> Option<u64> {
        self.sums.as_ref()?.crc64(self.len)
    }

    /// CRC32C of each block in use, if it is known from filling them in.
    pub fn take_block_table(&mut self) -> Option<Vec<u32>> {
        self.sums.take()?.into_table(self.as_slice())
    }

    /// The bytes in use.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `data..data+len` is inside the initialised allocation that self owns.
        unsafe { std::slice::from_raw_parts(self.data(), self.len) }
    }

    /// Lends the bytes in use, to be read while this one travels: the same bytes go to a drive and to a peer at once.
    /// While any loan lives, the bytes cannot be changed; what lies in front of and behind them can.
    pub fn lend(&mut self) -> Loan {
        if !matches!(self.home, Home::Shared(_)) {
            let home = std::mem::replace(&mut self.home, Home::Nowhere);
            let (base, headroom, capacity, len) = (self.base, self.headroom, self.capacity, self.len);
            self.home = Home::Shared(Arc::new(Buf { base, headroom, capacity, len, home, sums: None }));
        }
        let Home::Shared(owner) = &self.home else { unreachable!("shared above") };
        Loan { _owner: owner.clone(), data: NonNull::new(self.data()).expect("never null"), len: self.len }
    }

    fn is_lent(&self) -> bool {
        matches!(&self.home, Home::Shared(owner) if Arc::strong_count(owner) > 1)
    }

    /// The bytes in use, writable. Panics while they are lent.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(!self.is_lent(), "lent bytes do not change");
        self.sums = None;
        // SAFETY: as above, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.data(), self.len) }
    }

    /// Zeroes what a whole-block write would carry beyond the bytes in use, so that no old memory reaches the drive.
    pub fn zero_tail(&mut self) {
        let (len, padded) = (self.len, blocks_up(self.len));
        // SAFETY: capacity is whole blocks, so `len..padded` is inside the allocation.
        unsafe { std::ptr::write_bytes(self.data().add(len), 0, padded - len) };
    }

    /// True if a record header fits in front of the data.
    pub fn has_headroom(&self) -> bool {
        self.headroom == HEADROOM
    }

    /// The last `n` bytes in front of the data, if there is that much headroom.
    pub fn head_mut(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom {
            return None;
        }
        // SAFETY: `data-n..data` is headroom inside the allocation; `&mut self` makes it the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data().sub(n), n) })
    }

    /// The last `n` bytes in front of the data, as a write would carry them.
    pub fn head(&self, n: usize) -> &[u8] {
        assert!(n <= self.headroom);
        // SAFETY: `data-n..data` is initialised headroom inside the allocation.
        unsafe { std::slice::from_raw_parts(self.data().sub(n), n) }
    }

    /// Where a write that carries `head` bytes of headroom starts; for the code that talks to the kernel.
    pub fn io_ptr(&self, head: usize) -> *mut u8 {
        assert!(head <= self.headroom);
        // SAFETY: `head` bytes of headroom lie in front of the data.
        unsafe { self.data().sub(head) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: allocated in `heap` with this layout and freed once.
            Home::Heap(layout) => unsafe { dealloc(self.base.as_ptr(), *layout) },
            Home::Pool { pool, class } => {
                let offset = self.base.as_ptr().addr() - pool.arena.as_ptr().addr();
                pool.give_back(*class, offset);
            }
            Home::Foreign(_) | Home::Nowhere | Home::Shared(_) => {}
        }
    }
}

/// Bytes of a [`Buf`] that somebody else has at the same time.
pub struct Loan {
    _owner: Arc<Buf>,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: a loan only reads bytes that nobody changes while it lives, in memory that its owner keeps.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `data..data+len` is initialised memory of the owner. The Buf that lent it refuses to change or lengthen
        // what is in use while a loan lives, and touches only what lies in front of and behind it.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.len, self.capacity)
    }
}

/// Data capacities of the slots that an arena is cut into. The odd ones are for pieces with the blocks around them.
const CLASSES: [usize; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    (512 << 10) + (32 << 10),
    1 << 20,
    (1 << 20) + (128 << 10),
    4 << 20,
    8 << 20,
    16 << 20,
];

struct Free {
    next: usize,
    /// Slots cut so far, and slots handed out.
    cut: [usize; CLASSES.len()],
    out: usize,
    lists: [Vec<usize>; CLASSES.len()],
    waiters: Vec<Waker>,
}

/// A fixed arena of huge-page memory, cut into slots; shared by the rings of a node and registered with each.
pub struct Pool {
    arena: NonNull<u8>,
    size: usize,
    me: Weak<Pool>,
    free: Mutex<Free>,
    in_use: AtomicUsize,
    dry: AtomicUsize,
}

// SAFETY: the arena is only reached through slots that `free` hands out once each.
unsafe impl Send for Pool {}
// SAFETY: as above; the free lists are behind a mutex.
unsafe impl Sync for Pool {}

impl Pool {
    /// Maps an arena of `size` bytes (rounded up to 2 MiB); it never grows.
    pub fn new(size: usize) -> std::io::Result<Arc<Pool>> {
        let size = size.max(HUGE).div_ceil(HUGE) * HUGE;
        let arena = arena::map_arena(size, HUGE)?;
        Ok(Arc::new_cyclic(|me| Pool {
            arena,
            size,
            me: me.clone(),
            free: Mutex::new(Free {
                next: 0,
                cut: [0; CLASSES.len()],
                out: 0,
                lists: Default::default(),
                waiters: Vec::new(),
            }),
            in_use: AtomicUsize::new(0),
            dry: AtomicUsize::new(0),
        }))
    }

    /// Bytes of the arena.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes handed out at present.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// How often a request found no slot.
    pub fn dry(&self) -> usize {
        self.dry.load(Ordering::Relaxed)
    }

    /// The whole arena, to be registered with the kernel.
    pub fn region(&self) -> (*mut u8, usize) {
        (self.arena.as_ptr(), self.size)
    }

    /// Bytes of the arena that a slot for `len` bytes takes.
    pub fn slot_bytes(len: usize) -> usize {
        stride(class_of(len))
    }

    /// Takes a slot with headroom for `len` bytes; None when the arena is used up or `len` exceeds its largest slot.
    pub fn take(&self, len: usize) -> Option<Buf> {
        self.take_below(len, self.size)
    }

    /// The same, if no more than `limit` bytes are handed out then; what lies behind is not cut for it.
    fn take_below(&self, len: usize, limit: usize) -> Option<Buf> {
        let class = CLASSES.iter().position(|&c| c >= len)?;
        let (class, offset) = {
            let mut free = self.free.lock().unwrap();
            if self.in_use() + stride(class) > limit {
                self.dry.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            // The fitting class first, then fresh arena, then a larger slot that lies idle.
            let found = if let Some(offset) = free.lists[class].pop() {
                (class, offset)
            } else if free.next + stride(class) <= limit {
                free.next += stride(class);
                free.cut[class] += 1;
                (class, free.next - stride(class))
            } else {
                let larger = (class + 1..CLASSES.len()).find(|&c| !free.lists[c].is_empty());
                let Some(c) = larger else {
                    self.dry.fetch_add(1, Ordering::Relaxed);
                    return None;
                };
                (c, free.lists[c].pop()?)
            };
            free.out += 1;
            self.in_use.fetch_add(stride(found.0), Ordering::Relaxed);
            found
        };
        // SAFETY: `offset + stride` is inside the arena.
        let base = unsafe { self.arena.add(offset) };
        let pool = self.me.upgrade()?;
        Some(Buf {
            base,
            headroom: HEADROOM,
            capacity: CLASSES[class],
            len,
            home: Home::Pool { pool, class },
            sums: None,
        })
    }

    /// Takes a slot, waiting for one to come back; a request larger than any slot gets heap memory.
    pub async fn get(&self, len: usize) -> Buf {
        self.get_below(len, self.size).await
    }

    /// The same, but `reserve` bytes are left to those who call [`Self::get`], unless the slot would never fit then.
    pub async fn get_leaving(&self, len: usize, reserve: usize) -> Buf {
        let limit = self.size.saturating_sub(reserve);
        let fits = stride(class_of(len)) <= limit;
        self.get_below(len, if fits { limit } else { self.size }).await
    }

    async fn get_below(&self, len: usize, limit: usize) -> Buf {
        if len > CLASSES[CLASSES.len() - 1] || stride(class_of(len)) > self.size {
            return Buf::heap(len);
        }
        std::future::poll_fn(|cx| {
            if let Some(buf) = self.take_below(len, limit) {
                return std::task::Poll::Ready(buf);
            }
            // Up to the limit, some of what is handed out has to come back first; then there may be room to cut.
            if self.in_use() + stride(class_of(len)) <= limit && !self.will_have(len) {
                return std::task::Poll::Ready(Buf::heap(len));
            }
            self.free.lock().unwrap().waiters.push(cx.waker().clone());
            // A slot may have come back between the look and the registration.
            match self.take_below(len, limit) {
                Some(buf) => std::task::Poll::Ready(buf),
                None => std::task::Poll::Pending,
            }
        })
        .await
    }

    /// False if the arena is cut into smaller slots altogether, so that waiting for one could last for ever.
    fn will_have(&self, len: usize) -> bool {
        self.free.lock().unwrap().cut[class_of(len)..].iter().any(|&count| count > 0)
    }

    fn give_back(&self, class: usize, offset: usize) {
        self.in_use.fetch_sub(stride(class), Ordering::Relaxed);
        let waiters = {
            let mut free = self.free.lock().unwrap();
            free.lists[class].push(offset);
            free.out -= 1;
            if free.out == 0 {
                // Idle: the arena may be cut anew, for another mix of sizes.
                free.next = 0;
                free.cut = [0; CLASSES.len()];
                free.lists.iter_mut().for_each(Vec::clear);
            }
            std::mem::take(&mut free.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

fn class_of(len: usize) -> usize {
    CLASSES.iter().position(|&c| c >= len).unwrap_or(CLASSES.len() - 1)
}

const fn stride(class: usize) -> usize {
    HEADROOM + CLASSES[class]
}

impl Drop for Pool {
    fn drop(&mut self) {
        arena::unmap_arena(self.arena, self.size);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes in use)", self.in_use(), self.size)
    }
}

#[cfg(test)]
mod tests;
