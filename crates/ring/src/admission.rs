//! Decides which lake reads may enter flash.
//!
//! Training reads every byte once per epoch: a plain cache would cycle and hit nothing. Here a chunk enters on its
//! second touch, and when the ring is full only if it is clearly hotter than the coldest segment. Ties lose, so a
//! stable subset stays. Frequencies fade by halving, so that yesterday's dataset gives way to today's.

use stoker_format::ChunkId;

/// How much hotter than the coldest resident a newcomer must be, in touches. In a loop over a set, a newcomer that was
/// touched in this lap is up to one ahead of residents that were not yet, and halving rounds up to one more away. (D8)
const MARGIN: f64 = 2.0;

/// What is known when a chunk asks to enter.
#[derive(Clone, Copy, Debug)]
pub struct Occasion {
    /// Someone asked for it by name (stage, prefetch).
    pub staged: bool,
    /// The ring has space that nothing must leave for.
    pub room: bool,
    /// Mean touches per clean record in the coldest segment that could be given up; None if nothing clean is left.
    pub coldest: Option<f64>,
}

/// A count-min sketch of chunk touches, four bits a counter.
pub struct Admission {
    counters: Vec<u8>,
    mask: usize,
    since_halving: u64,
    halving_every: u64,
}

impl Admission {
    /// A sketch for about `chunks` distinct chunks; memory is two bytes a chunk.
    pub fn new(chunks: usize) -> Admission {
        let width = (chunks.max(1024) * 4).next_power_of_two();
        Admission { counters: vec![0; width / 2], mask: width - 1, since_halving: 0, halving_every: u64::MAX }
    }

    /// Sets the fading: with `residents` in a full ring, some laps over them halve every frequency. While there is room
    /// nothing fades, because how many will be resident is not known yet.
    pub fn set_residents(&mut self, residents: Option<usize>) {
        self.halving_every = residents.map_or(u64::MAX, |n| (n as u64 * 4).max(1024));
    }

    /// Notes the touch of a chunk that is not here, and how many touches of others went by (`hits`); true if everything was halved, so that segment heat can be halved with it.
    pub fn touch(&mut self, chunk: &ChunkId, hits: u64) -> bool {
        let low = self.frequency(chunk);
        if low < 15 {
            for slot in self.slots(chunk) {
                // Conservative update: only the smallest counters grow.
                if self.read(slot) == low {
                    self.write(slot, low + 1);
                }
            }
        }
        self.since_halving += 1 + hits;
        if self.since_halving < self.halving_every {
            return false;
        }
        self.since_halving = 0;
        self.counters.iter_mut().for_each(|pair| *pair = (*pair >> 1) & 0x77);
        true
    }

    /// Estimated touches of a chunk in the present window.
    pub fn frequency(&self, chunk: &ChunkId) -> u8 {
        self.slots(chunk).into_iter().map(|slot| self.read(slot)).min().unwrap_or(0)
    }

    /// Whether a chunk that was just touched may be written to flash.
    pub fn admits(&self, chunk: &ChunkId, occasion: Occasion) -> bool {
        let frequency = f64::from(self.frequency(chunk));
        if occasion.staged {
            return occasion.room || occasion.coldest.is_some();
        }
        if frequency < 2.0 {
            return false;
        }
        occasion.room || occasion.coldest.is_some_and(|coldest| frequency > coldest + MARGIN)
    }

    fn slots(&self, chunk: &ChunkId) -> [usize; 4] {
        let bytes = chunk.to_bytes();
        let (a, b) = bytes.split_at(8);
        let word = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("eight bytes"));
        let mut hash = word(a) ^ word(b).rotate_left(29) ^ 0x9e37_79b9_7f4a_7c15;
        std::array::from_fn(|_| {
            hash ^= hash >> 32;
            hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
            (hash >> 20) as usize & self.mask
        })
    }

    fn read(&self, slot: usize) -> u8 {
        self.counters[slot / 2] >> (slot % 2 * 4) & 15
    }

    fn write(&mut self, slot: usize, value: u8) {
        let shift = slot % 2 * 4;
        let pair = &mut self.counters[slot / 2];
        *pair = *pair & !(15 << shift) | value << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_format::VersionId;

    fn chunk(n: u32) -> ChunkId {
        ChunkId::new(VersionId([3; 12]), n)
    }

    #[test]
    fn first_touch_stays_out_second_enters_while_there_is_room() {
        let mut admission = Admission::new(1000);
        let occasion = Occasion { staged: false, room: true, coldest: None };
        admission.touch(&chunk(1), 0);
        assert!(!admission.admits(&chunk(1), occasion));
        assert!(admission.admits(&chunk(1), Occasion { staged: true, ..occasion }));
        admission.touch(&chunk(1), 0);
        assert!(admission.admits(&chunk(1), occasion));
    }

    #[test]
    fn ties_leave_residents_alone() {
        let mut admission = Admission::new(1000);
        for _ in 0..3 {
            admission.touch(&chunk(1), 0);
        }
        let full = |coldest| Occasion { staged: false, room: false, coldest };
        assert!(!admission.admits(&chunk(1), full(Some(2.5))));
        assert!(admission.admits(&chunk(1), full(Some(0.5))));
        assert!(!admission.admits(&chunk(1), full(None)));
    }

    #[test]
    fn frequencies_fade() {
        let mut admission = Admission::new(1000);
        admission.set_residents(Some(1));
        for _ in 0..8 {
            admission.touch(&chunk(1), 0);
        }
        let mut halved = 0;
        for n in 0..10_000u32 {
            halved += u32::from(admission.touch(&chunk(100 + n), 0));
        }
        assert_eq!(halved, 9);
        assert!(admission.frequency(&chunk(1)) <= 1);
    }
}
