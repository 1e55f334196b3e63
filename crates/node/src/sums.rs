//! Sums of lake objects: what was drained keeps them in the catalog, beside the layout, by lake key and etag. Every byte that comes
//! from a lake is held against them before anybody sees it ([`stage`](crate::stage)); so copies by reference, links and renamed
//! files need none of their own. [`notes`](crate::sum_notes) has those of objects that were there before us. (D80)
//!
//! An object is summed in pieces as long as the chunks of its file, so that a read asks for no more than the chunk that it wants.

use std::ops::Range;

use stoker_catalog::kv::{Row, Write, prefix_end};
use stoker_format::{VolumeId, crc32c, crc32c_combine};
use stoker_schema::rows::{Layout, RowValue, SUMS_PER_ROW, SumsRow, keys};

/// Shorter pieces cost more rows than they save bytes.
const PIECE_MIN: u64 = 64 << 10;

/// Pieces of one object: their rows fit into one commit.
const PIECES_MAX: u64 = 1 << 18;

/// Bytes of a piece of an object of that size whose chunks are so long.
pub(crate) fn piece_len(chunk_len: u32, size: u64) -> u32 {
    let mut len = u64::from(chunk_len.max(1));
    if len < PIECE_MIN {
        len *= PIECE_MIN.div_ceil(len);
    }
    while size.div_ceil(len) > PIECES_MAX {
        len *= 2;
    }
    u32::try_from(len).unwrap_or(1 << 31)
}

/// The same for a file.
pub(crate) fn piece_len_of(layout: &Layout, chunk_bytes: u32, size: u64) -> u32 {
    match layout {
        Layout::Simple { chunk_len } => piece_len(*chunk_len, size),
        Layout::Rows | Layout::Sparse { .. } => piece_len(chunk_bytes, size),
    }
}

/// What is known of the bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sums {
    piece_len: u32,
    /// Bytes from the beginning of each piece, and their sum; 0 bytes where nothing is known.
    pieces: Vec<(u32, u32)>,
}

impl Sums {
    /// Out of the rows of an object; none if they tell of another one, or nothing.
    pub fn of(rows: &[Row], etag: &str) -> stoker_catalog::Result<Option<Sums>> {
        let mut found: Option<Sums> = None;
        for row in rows {
            let (Some(number), SumsRow { etag: of, piece_len, sums }) =
                (keys::sums_number(&row.key), SumsRow::of(row)?)
            else {
                continue;
            };
            let first = number as usize * SUMS_PER_ROW;
            let is_odd = piece_len == 0 || sums.len() > SUMS_PER_ROW || first as u64 >= PIECES_MAX;
            if of != etag || is_odd || sums.iter().any(|(len, _)| *len > piece_len) {
                continue;
            }
            let known = found.get_or_insert(Sums { piece_len, pieces: Vec::new() });
            if known.piece_len != piece_len {
                continue;
            }
            let len = known.pieces.len().max(first + sums.len());
            known.pieces.resize(len, (0, 0));
            known.pieces[first..first + sums.len()].copy_from_slice(&sums);
        }
        Ok(found)
    }

    pub fn piece_len(&self) -> u32 {
        self.piece_len
    }

    /// Bytes of memory.
    pub fn weight(&self) -> usize {
        self.pieces.len() * size_of::<(u32, u32)>()
    }

    /// Whether it is known of every piece.
    pub fn is_whole(&self) -> bool {
        self.pieces.iter().all(|(len, _)| *len > 0)
    }

    /// What a row says of a piece, by the bytes that are summed.
    fn piece(&self, at: u64) -> Option<(Range<u64>, u32)> {
        let (len, sum) = *self.pieces.get(usize::try_from(at).ok()?)?;
        let start = at * u64::from(self.piece_len);
        (len > 0).then_some((start..start + u64::from(len), sum))
    }

    /// What has to be fetched so that every byte of a range that is summed can be checked.
    pub fn around(&self, range: &Range<u64>) -> Range<u64> {
        let len = u64::from(self.piece_len);
        let holds = |at: u64| {
            let (piece, _) = self.piece(at / len)?;
            piece.contains(&at).then_some(piece)
        };
        let start = holds(range.start).map_or(range.start, |piece| piece.start);
        let end = holds(range.end.saturating_sub(1)).map_or(range.end, |piece| piece.end);
        start..end.max(range.end)
    }

    /// The first piece whose bytes are not what they were; `start` is where these bytes begin in the object.
    pub fn mismatch(&self, start: u64, bytes: &[u8]) -> Option<u64> {
        let len = u64::from(self.piece_len);
        let end = start + bytes.len() as u64;
        (start / len..end.div_ceil(len)).find(|at| {
            let Some((piece, sum)) = self.piece(*at) else { return false };
            let is_all_there = piece.start >= start && piece.end <= end;
            is_all_there
                && crc32c(&bytes[(piece.start - start) as usize..(piece.end - start) as usize]) != sum
        })
    }

    /// Whether every byte of a range is summed.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let len = u64::from(self.piece_len);
        (range.start / len..range.end.div_ceil(len)).all(|at| {
            let end = range.end.min((at + 1) * len);
            self.piece(at).is_some_and(|(piece, _)| piece.end >= end)
        })
    }

    /// Adds what was seen of a piece, unless more is known; true if that is new.
    pub fn add(&mut self, at: u64, len: u32, sum: u32) -> bool {
        let Some(at) = usize::try_from(at).ok().filter(|at| (*at as u64) < PIECES_MAX) else { return false };
        if len == 0 || len > self.piece_len || self.pieces.get(at).is_some_and(|known| known.0 >= len) {
            return false;
        }
        let count = self.pieces.len().max(at + 1);
        self.pieces.resize(count, (0, 0));
        self.pieces[at] = (len, sum);
        true
    }

    /// Nothing yet.
    pub fn empty(piece_len: u32) -> Sums {
        Sums { piece_len: piece_len.max(1), pieces: Vec::new() }
    }

    /// The rows of an object, in the place of all that were there.
    pub fn writes(sums: Option<&Sums>, volume: VolumeId, key: &[u8], etag: &str) -> Vec<Write> {
        let all = keys::sums_all(volume, key);
        let end = prefix_end(&all).expect("a table is not 0xff");
        let mut writes = vec![Write::DeleteRange(all, end)];
        let Some(sums) = sums else { return writes };
        writes.extend(sums.pieces.chunks(SUMS_PER_ROW).zip(0..).map(|(pieces, number)| {
            let (etag, piece_len, sums) = (etag.to_owned(), sums.piece_len, pieces.to_vec());
            Write::Put(keys::sums(volume, key, number), SumsRow { etag, piece_len, sums }.encode())
        }));
        writes
    }
}

/// Sums bytes that come in any order.
pub(crate) struct Summer {
    piece_len: u64,
    /// By where they begin; neighbours within a piece are one.
    runs: std::collections::BTreeMap<u64, (u64, u32)>,
}

impl Summer {
    pub fn new(piece_len: u32) -> Summer {
        Summer { piece_len: u64::from(piece_len.max(1)), runs: Default::default() }
    }

    pub fn add(&mut self, mut start: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.piece_len - start % self.piece_len;
            let (now, rest) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            let (len, sum) = (now.len() as u64, crc32c(now));
            let before = self.runs.range_mut(..start).next_back();
            match before.filter(|(at, run)| **at + run.0 == start && !start.is_multiple_of(self.piece_len)) {
                Some((_, run)) => *run = (run.0 + len, crc32c_combine(run.1, sum, len)),
                None => drop(self.runs.insert(start, (len, sum))),
            }
            (start, bytes) = (start + len, rest);
        }
    }

    /// The sums of an object of that size, if all of it was seen.
    pub fn finish(self, size: u64) -> Option<Sums> {
        let mut sums = Sums::empty(u32::try_from(self.piece_len).ok()?);
        let mut runs = self.runs.into_iter().peekable();
        let mut end = 0;
        while let Some((start, (mut len, mut sum))) = runs.next() {
            while let Some((_, (more, next))) =
                runs.next_if(|(at, _)| *at == start + len && *at % self.piece_len != 0)
            {
                (len, sum) = (len + more, crc32c_combine(sum, next, more));
            }
            let is_next = start == end && start.is_multiple_of(self.piece_len);
            if !is_next || !sums.add(start / self.piece_len, u32::try_from(len).ok()?, sum) {
                return None;
            }
            end = start + len;
        }
        (end == size).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn summed(len: usize, piece: u32) -> (Vec<u8>, Sums) {
        let bytes = bytes(len);
        let mut summer = Summer::new(piece);
        summer.add(0, &bytes);
        (bytes, summer.finish(len as u64).unwrap())
    }

    #[test]
    fn pieces_are_as_long_as_chunks_and_not_too_many() {
        let check = |chunk, size, expect| assert_eq!(piece_len(chunk, size), expect, "{chunk} {size}");
        check(4 << 20, 10 << 20, 4 << 20);
        check(4 << 10, 1, 64 << 10);
        check(5_000, 1, 70_000);
        check(0, 1, 64 << 10);
        check(4 << 20, 5 << 40, 32 << 20);
        check(u32::MAX, 0, u32::MAX);
    }

    #[test]
    fn bytes_in_any_order_and_in_any_lengths_have_the_same_sums() {
        let (bytes, expect) = summed(1_000, 100);
        for step in [1, 7, 64, 100, 150, 999] {
            let mut summer = Summer::new(100);
            let mut parts: Vec<(usize, &[u8])> = bytes.chunks(step).enumerate().collect();
            parts.sort_by_key(|(at, _)| at * 13 % 11);
            parts.iter().for_each(|(at, part)| summer.add((at * step) as u64, part));
            assert_eq!(summer.finish(1_000), Some(expect.clone()), "{step}");
        }
        let mut short = Summer::new(100);
        short.add(0, &bytes[..990]);
        assert_eq!(short.finish(1_000), None);
        let mut holed = Summer::new(100);
        holed.add(0, &bytes[..300]);
        holed.add(301, &bytes[301..]);
        assert_eq!(holed.finish(1_000), None);
        assert_eq!(Summer::new(100).finish(0), Some(Sums::empty(100)));
    }

    #[test]
    fn every_flip_is_found_and_what_lies_around_is_fetched() {
        let (mut bytes, sums) = summed(950, 100);
        let check = |range: Range<u64>, around: Range<u64>| {
            assert_eq!(sums.around(&range), around, "{range:?}");
            assert!(sums.covers(&range), "{range:?}");
        };
        check(0..100, 0..100);
        check(5..6, 0..100);
        check(99..101, 0..200);
        check(900..950, 900..950);
        check(949..950, 900..950);
        assert_eq!(sums.mismatch(0, &bytes), None);
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            assert_eq!(sums.mismatch(0, &bytes), Some(at as u64 / 100), "{at}");
            bytes[at] ^= 4;
        }
        // Half of a piece proves nothing.
        bytes[10] ^= 1;
        assert_eq!(sums.mismatch(5, &bytes[5..]), None);
    }

    #[test]
    fn what_was_seen_once_is_known_and_the_rest_is_not() {
        let (bytes, whole) = summed(950, 100);
        let mut sums = Sums::empty(100);
        assert!(sums.add(3, 100, crc32c(&bytes[300..400])));
        assert!(sums.add(9, 50, crc32c(&bytes[900..])));
        assert!(!sums.add(9, 50, 0) && !sums.add(1, 101, 0) && !sums.add(1 << 60, 5, 0));
        assert_eq!((sums.is_whole(), whole.is_whole()), (false, true));
        assert_eq!(sums.around(&(310..320)), 300..400);
        assert_eq!(sums.around(&(250..350)), 250..400);
        assert_eq!(sums.around(&(100..200)), 100..200);
        assert!(sums.covers(&(310..320)) && !sums.covers(&(250..350)) && !sums.covers(&(949..951)));
        assert_eq!(sums.mismatch(0, &bytes), None);
    }

    #[test]
    fn rows_bring_back_what_was_written() {
        let mut sums = Sums::empty(100);
        for at in 0..SUMS_PER_ROW as u64 + 5 {
            assert!(sums.add(at, 100, at as u32));
        }
        let writes = Sums::writes(Some(&sums), VolumeId(3), b"a/b", "e");
        let rows: Vec<Row> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Put(key, value) => Some(Row { key: key.clone(), value: value.clone(), seq: 1 }),
                _ => None,
            })
            .collect();
        assert_eq!((writes.len(), rows.len()), (3, 2));
        assert_eq!(Sums::of(&rows, "e").unwrap(), Some(sums));
        assert_eq!(Sums::of(&rows, "f").unwrap(), None);
        assert!(rows.iter().all(|row| row.key.starts_with(&keys::sums_all(VolumeId(3), b"a/b"))));
    }
}
