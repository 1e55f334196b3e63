//! Verification of a whole stripe: does the parity fit the data, and if not, which shard is wrong.
//!
//! At each place the parity that was stored and the parity that the data gives differ by a syndrome. A wrong parity shard shows in its own
//! syndrome alone. A wrong data shard shows in all of them, in the proportions of its column, which no other column has. So with two or
//! more parity shards one wrong shard at a place is found. Two wrong ones at the same place are told from one with three or more parity
//! shards; with two they may look like one other shard. Checksums find those.

use std::ops::Range;

use crate::codec::{Codec, check_count, check_lengths};
use crate::error::Error;
use crate::field::multiply;
use crate::matrix;
use crate::scheme::ShardSet;

/// So much is encoded again at a time: parity of it stays in the first cache.
const BLOCK: usize = 4096;

/// What a stripe's parity says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Parity shards that do not fit the data somewhere.
    pub disagreeing: ShardSet,
    /// Shards that are wrong, by their number. They explain all that is wrong if [`Self::unexplained_bytes`] is 0.
    pub wrong: Vec<WrongShard>,
    /// Places at which more than one shard is wrong, or which one cannot be known.
    pub unexplained_bytes: usize,
}

/// A shard that does not fit the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShard {
    /// Its number.
    pub shard: usize,
    /// From its first wrong byte to its last.
    pub range: Range<usize>,
    /// Wrong bytes.
    pub bytes: usize,
}

impl Verdict {
    /// Whether all shards fit.
    pub fn is_sound(&self) -> bool {
        self.disagreeing.is_empty()
    }

    /// The shard that is wrong, if one alone explains everything.
    pub fn culprit(&self) -> Option<usize> {
        match &self.wrong[..] {
            [one] if self.unexplained_bytes == 0 => Some(one.shard),
            _ => None,
        }
    }

    fn blame(&mut self, shard: usize, at: usize) {
        match self.wrong.binary_search_by_key(&shard, |wrong| wrong.shard) {
            // Places come in order.
            Ok(place) => {
                let wrong = &mut self.wrong[place];
                (wrong.range.end, wrong.bytes) = (at + 1, wrong.bytes + 1);
            }
            Err(place) => self.wrong.insert(place, WrongShard { shard, range: at..at + 1, bytes: 1 }),
        }
    }
}

impl Codec {
    /// Compares the parity of a stripe with its data. Takes all shards in order.
    pub fn verify(&self, shards: &[&[u8]]) -> Result<Verdict, Error> {
        let scheme = self.scheme();
        check_count(scheme.width(), shards.len())?;
        let len = shards[0].len();
        check_lengths(len, shards)?;
        let (data, parity) = shards.split_at(scheme.data());
        let mut room = vec![0; BLOCK.min(len) * scheme.parity()];
        let mut verdict = Verdict::default();
        for from in (0..len).step_by(BLOCK) {
            let to = len.min(from + BLOCK);
            let data: Vec<&[u8]> = data.iter().map(|shard| &shard[from..to]).collect();
            let parity: Vec<&[u8]> = parity.iter().map(|shard| &shard[from..to]).collect();
            let mut made: Vec<&mut [u8]> =
                room.chunks_mut(BLOCK.min(len)).map(|made| &mut made[..to - from]).collect();
            self.encode(&data, &mut made)?;
            if made.iter().zip(&parity).any(|(made, parity)| **made != **parity) {
                self.locate(from, &made, &parity, &mut verdict);
            }
        }
        Ok(verdict)
    }

    /// Blames a shard for each place of a block at which parity disagrees.
    fn locate(&self, from: usize, made: &[&mut [u8]], parity: &[&[u8]], verdict: &mut Verdict) {
        let scheme = self.scheme();
        let rows: Vec<Vec<u8>> =
            (scheme.data()..scheme.width()).map(|shard| matrix::row(scheme, shard)).collect();
        for at in 0..parity[0].len() {
            let syndromes: Vec<u8> =
                made.iter().zip(parity).map(|(made, parity)| made[at] ^ parity[at]).collect();
            let shown: Vec<usize> = (0..syndromes.len()).filter(|&row| syndromes[row] != 0).collect();
            shown.iter().for_each(|row| verdict.disagreeing.insert(scheme.data() + row));
            // In the proportions of a column: s0 * c1 = s1 * c0 and so on.
            let fits = |column: &usize| {
                let fits = |row: usize| {
                    multiply(syndromes[0], rows[row][*column]) == multiply(syndromes[row], rows[0][*column])
                };
                (1..rows.len()).all(fits)
            };
            match shown[..] {
                [] => {}
                _ if rows.len() == 1 => verdict.unexplained_bytes += 1,
                [row] => verdict.blame(scheme.data() + row, from + at),
                _ => match (0..scheme.data()).find(fits) {
                    Some(shard) => verdict.blame(shard, from + at),
                    None => verdict.unexplained_bytes += 1,
                },
            }
        }
    }
}
