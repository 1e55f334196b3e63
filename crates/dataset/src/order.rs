//! The order of an epoch: which sample comes at which position.
//!
//! An order is a function, not a list: a billion samples cost no memory, and any position can be asked for by itself. What it
//! says for a key is part of the format of resume states: it must never change.

/// Rounds of the network, and keys of a permutation.
pub const ROUNDS: usize = 8;

/// Most elements: more are not counted with exact 64-bit arithmetic.
pub const ELEMENTS_MAX: u64 = 1 << 62;

/// A 64-bit finalizer: each bit of the result depends on each bit of the value.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A pseudo-random permutation of the numbers below a count that keeps nothing but its keys.
///
/// A Feistel network over pairs of numbers below `side`, where `side` squared is the next square at or above the count; what
/// falls outside of the range is sent through again until it falls inside, which is hardly ever needed.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    side: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Of the numbers below `count`; none if they are too many.
    pub fn new(count: u64, keys: [u64; ROUNDS]) -> Option<Permutation> {
        let side = count.saturating_sub(1).isqrt() + 1;
        (count <= ELEMENTS_MAX).then_some(Permutation { count, side, keys })
    }

    /// How many elements there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The element at a position; none behind the last.
    pub fn at(&self, position: u64) -> Option<u64> {
        if position >= self.count {
            return None;
        }
        let side = self.side;
        let mut position = position;
        loop {
            let (mut left, mut right) = (position / side, position % side);
            for key in self.keys {
                (left, right) = (right, (left + mix(right ^ key) % side) % side);
            }
            position = left * side + right;
            if position < self.count {
                return Some(position);
            }
        }
    }

    /// Where an element is: the inverse of [`Self::at`].
    pub fn position_of(&self, element: u64) -> Option<u64> {
        if element >= self.count {
            return None;
        }
        let side = self.side;
        let mut element = element;
        loop {
            let (mut left, mut right) = (element / side, element % side);
            for key in self.keys.iter().rev() {
                (left, right) = ((right + side - mix(left ^ key) % side) % side, left);
            }
            element = left * side + right;
            if element < self.count {
                return Some(element);
            }
        }
    }
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub enum Order {
    /// As the dataset has them.
    Plain(u64),
    /// Blocks of neighbours, shuffled; blocks of one are a global shuffle.
    Blocks {
        /// How many samples there are.
        count: u64,
        /// Samples of a block.
        block: u64,
        /// Which block comes when.
        blocks: Permutation,
        /// Where the first block begins.
        shift: u64,
        /// How many the last block lacks.
        missing: u64,
        /// Position behind the block that is short.
        short_end: u64,
    },
}

impl Order {
    /// Shuffles `count` samples in blocks of `block`; none if they are too many. The second keys say where blocks begin.
    pub fn shuffled(count: u64, block: u64, keys: [u64; ROUNDS], shift_keys: [u64; ROUNDS]) -> Option<Order> {
        let block = block.clamp(1, count.max(1));
        let blocks = Permutation::new(count.div_ceil(block), keys)?;
        if block == 1 {
            return Some(Order::Blocks { count, block, blocks, shift: 0, missing: 0, short_end: count });
        }
        let shift = Permutation::new(count, shift_keys)?.at(0)? % block;
        let missing = blocks.count() * block - count;
        // The last block may be short: positions behind it are as if it were not.
        let short_end = (blocks.position_of(blocks.count() - 1)? + 1) * block - missing;
        Some(Order::Blocks { count, block, blocks, shift, missing, short_end })
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        match self {
            Order::Plain(count) | Order::Blocks { count, .. } => *count,
        }
    }

    /// The sample at a position; none behind the last.
    pub fn sample(&self, position: u64) -> Option<u64> {
        match self {
            Order::Plain(count) => (position < *count).then_some(position),
            Order::Blocks { block: 1, blocks, .. } => blocks.at(position),
            Order::Blocks { count, block, blocks, shift, missing, short_end } => {
                if position >= *count {
                    return None;
                }
                let position = if position >= *short_end { position + missing } else { position };
                let found = blocks.at(position / block)?;
                Some((found * block + position % block + shift) % count)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [u64; ROUNDS] = [1, 2, 3, 0x9E37_79B9_7F4A_7C15, 5, u64::MAX, 7, 8];

    #[test]
    fn every_element_has_one_position() {
        for count in [0, 1, 2, 3, 10, 99, 100, 101, 1000, 4097] {
            let shuffle = Permutation::new(count, KEYS).unwrap();
            let mut seen: Vec<u64> = (0..count).map(|at| shuffle.at(at).unwrap()).collect();
            assert!(seen.iter().enumerate().all(|(at, one)| shuffle.position_of(*one) == Some(at as u64)));
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count));
            assert_eq!((shuffle.at(count), shuffle.position_of(count)), (None, None));
        }
    }

    #[test]
    fn the_largest_is_counted_exactly() {
        let shuffle = Permutation::new(ELEMENTS_MAX, KEYS).unwrap();
        for at in [0, 1, ELEMENTS_MAX / 3, ELEMENTS_MAX - 1] {
            assert_eq!(shuffle.position_of(shuffle.at(at).unwrap()), Some(at));
        }
        assert!(Permutation::new(ELEMENTS_MAX + 1, KEYS).is_none());
    }

    #[test]
    fn orders_have_every_sample_once() {
        for count in [0, 1, 2, 10, 99, 100, 1001] {
            for block in [1, 2, 7, 64, 5000] {
                let order = Order::shuffled(count, block, KEYS, [9; ROUNDS]).unwrap();
                let mut seen: Vec<u64> = (0..count).map(|at| order.sample(at).unwrap()).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..count), "{count} in blocks of {block}");
                assert_eq!(order.sample(count), None);
            }
        }
        assert_eq!((Order::Plain(5).sample(4), Order::Plain(5).sample(5)), (Some(4), None));
    }
}
