//! How wide a stripe is, and sets of its shards.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Most data shards of a stripe.
pub const DATA_MAX: usize = 32;
/// Most parity shards of a stripe.
pub const PARITY_MAX: usize = 8;

/// `k+m`: data shards and parity shards. Shards are numbered from 0, data first. Written `8+2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheme {
    data: u8,
    parity: u8,
}

impl Scheme {
    /// A scheme of 1 to [`DATA_MAX`] data shards and 1 to [`PARITY_MAX`] parity shards.
    pub fn new(data: usize, parity: usize) -> Result<Self, Error> {
        if !(1..=DATA_MAX).contains(&data) || !(1..=PARITY_MAX).contains(&parity) {
            return Err(Error::Scheme { data, parity });
        }
        Ok(Self { data: data as u8, parity: parity as u8 })
    }

    /// Data shards: as many as are needed to read.
    pub fn data(self) -> usize {
        usize::from(self.data)
    }

    /// Parity shards: as many as may be lost.
    pub fn parity(self) -> usize {
        usize::from(self.parity)
    }

    /// All shards.
    pub fn width(self) -> usize {
        self.data() + self.parity()
    }

    /// Checks a shard's number.
    pub(crate) fn check(self, shard: usize) -> Result<(), Error> {
        if shard < self.width() { Ok(()) } else { Err(Error::ShardIndex { shard, width: self.width() }) }
    }

    /// The shards of a list, each of which must be there and only once.
    pub(crate) fn set(self, shards: &[usize]) -> Result<ShardSet, Error> {
        let mut set = ShardSet::default();
        for &shard in shards {
            self.check(shard)?;
            if set.contains(shard) {
                return Err(Error::ShardTwice { shard });
            }
            set.insert(shard);
        }
        Ok(set)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scheme({self})")
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
            text.parse().ok().filter(|_| plain)
        };
        let parts = text.split_once('+').and_then(|(data, parity)| Some((number(data)?, number(parity)?)));
        let (data, parity) = parts.ok_or(Error::SchemeText)?;
        Self::new(data, parity)
    }
}

/// Shards of one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct ShardSet(u64);

impl ShardSet {
    /// All shards of a scheme.
    pub fn all(scheme: Scheme) -> Self {
        Self((1 << scheme.width()) - 1)
    }

    /// Adds a shard. Panics if no scheme has it.
    pub fn insert(&mut self, shard: usize) {
        assert!(shard < DATA_MAX + PARITY_MAX, "shard {shard} of no scheme");
        self.0 |= 1 << shard;
    }

    /// Whether the shard is one of them.
    pub fn contains(self, shard: usize) -> bool {
        shard < 64 && self.0 >> shard & 1 == 1
    }

    /// How many they are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in the other set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// In the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&shard| self.contains(shard))
    }
}

impl FromIterator<usize> for ShardSet {
    fn from_iter<T: IntoIterator<Item = usize>>(shards: T) -> Self {
        let mut set = Self::default();
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Display for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        self.iter().enumerate().try_for_each(|(at, shard)| {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{shard}")
        })
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardSet({self})")
    }
}
