//! Blocks in memory: the ones that were used lately, in a fixed number of bytes.
//!
//! A queue with a second chance: what was used since it came to the front goes to the end once more. Blocks that come by once
//! leave without having pushed out what is used.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::digest::{Digest, DigestMap};

/// What a block costs besides its bytes.
const OVERHEAD: u64 = 128;

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub bytes: Bytes,
    pub sum: u64,
    pub expires_ms: u64,
    /// It is in the volume, or on its way there.
    pub is_admitted: bool,
}

impl Held {
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + OVERHEAD
    }
}

struct Slot {
    held: Held,
    is_used: bool,
    /// Tells a place in the queue from those of blocks of the same name before.
    turn: u64,
}

/// The memory of a cache.
pub(crate) struct Memory {
    bytes_max: u64,
    bytes: u64,
    slots: DigestMap<Slot>,
    queue: VecDeque<(Digest, u64)>,
    turn: u64,
}

impl Memory {
    pub fn new(bytes_max: u64) -> Memory {
        Memory { bytes_max, bytes: 0, slots: DigestMap::default(), queue: VecDeque::new(), turn: 0 }
    }

    /// Bytes in use, with what blocks cost besides.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// A block, without using it.
    pub fn peek(&self, digest: &Digest) -> Option<&Held> {
        self.slots.get(digest).map(|slot| &slot.held)
    }

    /// A block that is used.
    pub fn get(&mut self, digest: &Digest) -> Option<&mut Held> {
        let slot = self.slots.get_mut(digest)?;
        slot.is_used = true;
        Some(&mut slot.held)
    }

    /// Puts a block in; returns what had to leave for it, which may be the block itself.
    pub fn insert(&mut self, digest: Digest, held: Held) -> Vec<(Digest, Held)> {
        self.remove(&digest);
        if held.cost() > self.bytes_max {
            return vec![(digest, held)];
        }
        self.bytes += held.cost();
        self.turn += 1;
        self.queue.push_back((digest, self.turn));
        self.slots.insert(digest, Slot { held, is_used: false, turn: self.turn });
        let mut gone = Vec::new();
        while self.bytes > self.bytes_max {
            let Some((digest, turn)) = self.queue.pop_front() else { break };
            match self.slots.get_mut(&digest) {
                Some(slot) if slot.turn != turn => {}
                Some(slot) if slot.is_used => {
                    slot.is_used = false;
                    self.queue.push_back((digest, turn));
                }
                Some(_) => gone.extend(self.remove(&digest).map(|held| (digest, held))),
                None => {}
            }
        }
        self.tidy();
        gone
    }

    pub fn remove(&mut self, digest: &Digest) -> Option<Held> {
        let slot = self.slots.remove(digest)?;
        self.bytes -= slot.held.cost();
        Some(slot.held)
    }

    pub fn clear(&mut self) {
        *self = Memory::new(self.bytes_max);
    }

    /// Drops places of blocks that are gone before there are more of them than blocks.
    fn tidy(&mut self) {
        if self.queue.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.queue.retain(|(digest, turn)| slots.get(digest).is_some_and(|slot| slot.turn == *turn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u8) -> Digest {
        Digest([n; 16])
    }

    fn held(len: usize) -> Held {
        Held { bytes: Bytes::from(vec![0; len]), sum: 0, expires_ms: u64::MAX, is_admitted: false }
    }

    #[test]
    fn used_blocks_stay() {
        let mut memory = Memory::new(3 * (1000 + OVERHEAD));
        for n in 0..3 {
            assert!(memory.insert(digest(n), held(1000)).is_empty());
        }
        assert!(memory.get(&digest(0)).is_some());
        let gone = memory.insert(digest(3), held(1000));
        assert_eq!(gone.iter().map(|(digest, _)| digest.0[0]).collect::<Vec<_>>(), [1]);
        assert!(memory.peek(&digest(0)).is_some() && memory.len() == 3);
    }

    #[test]
    fn memory_is_bounded() {
        let mut memory = Memory::new(10_000);
        for n in 0..=255 {
            memory.insert(digest(n), held(usize::from(n) * 10 + 1));
            if n % 3 == 0 {
                memory.remove(&digest(n));
            }
            memory.insert(digest(n / 2), held(5));
            assert!(memory.bytes() <= 10_000 && memory.queue.len() <= 2 * memory.len() + 65);
        }
        assert_eq!(memory.insert(digest(9), held(20_000)).len(), 1, "larger than all of it");
        assert!(memory.peek(&digest(9)).is_none());
        memory.clear();
        assert_eq!((memory.bytes(), memory.len()), (0, 0));
    }
}
