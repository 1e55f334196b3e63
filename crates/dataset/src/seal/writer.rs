//! Makes a seal. What grows with the samples is two numbers and the coded name of each.

use stoker_format::{crc64, crc64_combine};
use stoker_store::Result;

use super::names::NamesWriter;
use super::*;

/// How long the pieces are in which a seal is handed out.
const PIECE: usize = 1 << 20;

/// Takes shards and their samples in order.
pub struct SealWriter {
    shards: Shards,
    shards_len: u64,
    flags: u32,
    firsts: Vec<u64>,
    starts: Vec<u32>,
    lens: Vec<u32>,
    names: NamesWriter,
    bytes: u64,
    /// Where the last sample of the present shard begins.
    start_min: u64,
}

impl SealWriter {
    /// A seal of tar shards with names of samples. `made` says by whom.
    pub fn new(volume: impl Into<String>, made: serde_json::Value) -> SealWriter {
        SealWriter {
            shards: Shards { volume: volume.into(), shards: Vec::new(), made },
            shards_len: 0,
            flags: FLAG_NAMES | FLAG_TAR,
            firsts: Vec::new(),
            starts: Vec::new(),
            lens: Vec::new(),
            names: NamesWriter::default(),
            bytes: 0,
            start_min: 0,
        }
    }

    /// Leaves names away.
    pub fn without_names(mut self) -> SealWriter {
        assert!(self.starts.is_empty(), "before the first sample");
        self.flags &= !FLAG_NAMES;
        self
    }

    /// Samples are ranges of any files, not members of tars.
    pub fn of_ranges(mut self) -> SealWriter {
        self.flags &= !FLAG_TAR;
        self
    }

    /// Begins the next shard.
    pub fn shard(&mut self, row: ShardRow) -> Result<()> {
        if row.size > SHARD_LEN_MAX {
            return Err(beyond(format!("{}: a shard has at most {SHARD_LEN_MAX} bytes", row.key)));
        }
        self.shards_len += (row.key.len() + row.version.len() + row.etag.len()) as u64;
        if self.shards.shards.len() as u64 == SHARDS_MAX || self.shards_len > SHARDS_LEN_MAX {
            return Err(beyond(format!("a seal has at most {SHARDS_MAX} shards: make larger ones")));
        }
        self.firsts.push(self.starts.len() as u64);
        self.shards.shards.push(row);
        self.start_min = 0;
        Ok(())
    }

    /// Adds a sample of the shard that was begun last, behind the one before.
    ///
    /// Panics if there is no shard.
    pub fn sample(&mut self, start: u64, len: u64, name: &[u8]) -> Result<()> {
        let shard = self.shards.shards.last().expect("a shard was begun");
        let shown = || format!("{}, sample {}", shard.key, String::from_utf8_lossy(name));
        let inside = start.checked_add(len).is_some_and(|end| end <= shard.size);
        if !inside || !start.is_multiple_of(GRAIN) || start < self.start_min {
            return Err(beyond(format!("{}: out of order, or not inside its shard", shown())));
        }
        let Ok(len) = u32::try_from(len) else {
            return Err(beyond(format!(
                "{}: a sample has less than 4 GiB, this one has {len} bytes",
                shown()
            )));
        };
        if self.starts.len() as u64 == SAMPLES_MAX {
            return Err(beyond(format!("a seal has at most {SAMPLES_MAX} samples")));
        }
        if self.flags & FLAG_NAMES != 0 {
            self.names.push(name)?;
        }
        self.starts.push((start / GRAIN) as u32);
        self.lens.push(len);
        self.bytes += u64::from(len);
        self.start_min = start;
        Ok(())
    }

    /// The finished seal.
    pub fn finish(mut self) -> Result<Sealed> {
        self.firsts.push(self.starts.len() as u64);
        let shards = serde_json::to_vec(&self.shards).map_err(|error| beyond(error.to_string()))?;
        if shards.len() as u64 > SHARDS_LEN_MAX {
            return Err(beyond(format!("the list of shards has more than {SHARDS_LEN_MAX} bytes")));
        }
        let samples = self.starts.len() as u64;
        let names_len = if self.flags & FLAG_NAMES != 0 { self.names.len() } else { 0 };
        let lens = [shards.len() as u64, 8 * self.firsts.len() as u64, 4 * samples, 4 * samples, names_len];
        let mut header = [0; HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &self.flags.to_le_bytes());
        put(16, &samples.to_le_bytes());
        put(24, &(self.shards.shards.len() as u64).to_le_bytes());
        put(32, &self.bytes.to_le_bytes());
        let mut at = HEADER_LEN as u64;
        for (section, len) in lens.into_iter().enumerate() {
            at = at.next_multiple_of(ALIGN);
            put(SECTIONS_AT + 16 * section, &at.to_le_bytes());
            put(SECTIONS_AT + 16 * section + 8, &len.to_le_bytes());
            at += len;
        }
        let crc = crc64(&header[..HEADER_CRC_AT]);
        header[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        Ok(Sealed { header, shards, len: at + CRC_LEN as u64, writer: self })
    }
}

/// A seal that is ready to be written.
pub struct Sealed {
    header: [u8; HEADER_LEN],
    shards: Vec<u8>,
    len: u64,
    writer: SealWriter,
}

impl Sealed {
    /// Length of the file.
    #[expect(clippy::len_without_is_empty, reason = "a seal is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How many samples it has.
    pub fn samples(&self) -> u64 {
        self.writer.starts.len() as u64
    }

    /// How many shards.
    pub fn shards(&self) -> u64 {
        self.writer.shards.shards.len() as u64
    }

    /// Bytes of all samples.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes
    }

    /// The identity of the dataset: the sum at the end of the file.
    pub fn identity(&self) -> u64 {
        let mut pieces = self.pieces();
        pieces.by_ref().for_each(drop);
        pieces.sum.expect("all pieces were made")
    }

    /// The file, piece by piece.
    pub fn pieces(&self) -> Pieces<'_> {
        Pieces { sealed: self, part: Part::Header, index: 0, at: 0, crc: 0, sum: None }
    }

    /// The file in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len as usize);
        self.pieces().for_each(|piece| whole.extend_from_slice(&piece));
        whole
    }

    /// Adds the next bytes of a part from an index on, at most about a piece; gives the index behind them, none at the end.
    fn part(&self, part: Part, index: usize, out: &mut Vec<u8>) -> Option<usize> {
        let writer = &self.writer;
        match part {
            Part::Header => add_bytes(&self.header, index, out),
            Part::Shards => add_bytes(&self.shards, index, out),
            Part::Firsts => add(&writer.firsts, index, out, |first| first.to_le_bytes()),
            Part::Starts => add(&writer.starts, index, out, |start| start.to_le_bytes()),
            Part::Lens => add(&writer.lens, index, out, |len| len.to_le_bytes()),
            Part::NamesCount | Part::NamesTable | Part::Names if writer.flags & FLAG_NAMES == 0 => None,
            Part::NamesCount => {
                add(&[writer.names.blocks().len() as u32], index, out, |count| count.to_le_bytes())
            }
            Part::NamesTable => add(writer.names.blocks(), index, out, |block| block.to_le_bytes()),
            Part::Names => add_bytes(writer.names.bytes(), index, out),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Header,
    Shards,
    Firsts,
    Starts,
    Lens,
    NamesCount,
    NamesTable,
    Names,
}

impl Part {
    /// What follows, and whether it starts a section.
    fn next(self) -> Option<(Part, bool)> {
        match self {
            Part::Header => Some((Part::Shards, true)),
            Part::Shards => Some((Part::Firsts, true)),
            Part::Firsts => Some((Part::Starts, true)),
            Part::Starts => Some((Part::Lens, true)),
            Part::Lens => Some((Part::NamesCount, true)),
            Part::NamesCount => Some((Part::NamesTable, false)),
            Part::NamesTable => Some((Part::Names, false)),
            Part::Names => None,
        }
    }
}

fn add<T: Copy, const N: usize>(
    items: &[T],
    index: usize,
    out: &mut Vec<u8>,
    encode: impl Fn(T) -> [u8; N],
) -> Option<usize> {
    let end = items.len().min(index + PIECE / N);
    items[index..end].iter().for_each(|item| out.extend_from_slice(&encode(*item)));
    (end < items.len()).then_some(end)
}

fn add_bytes(bytes: &[u8], index: usize, out: &mut Vec<u8>) -> Option<usize> {
    add(bytes, index, out, |byte| [byte])
}

/// The pieces of a seal, each about a megabyte, the sum last.
pub struct Pieces<'a> {
    sealed: &'a Sealed,
    part: Part,
    index: usize,
    at: u64,
    crc: u64,
    /// Of the whole, once the last piece was given.
    sum: Option<u64>,
}

impl Iterator for Pieces<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.sum.is_some() {
            return None;
        }
        let mut piece = Vec::new();
        let mut is_last = false;
        while piece.len() < PIECE && !is_last {
            match (self.sealed.part(self.part, self.index, &mut piece), self.part.next()) {
                (Some(index), _) => self.index = index,
                (None, Some((part, is_section))) => {
                    (self.part, self.index) = (part, 0);
                    let at = self.at + piece.len() as u64;
                    let padding = if is_section { at.next_multiple_of(ALIGN) - at } else { 0 };
                    piece.resize(piece.len() + padding as usize, 0);
                }
                (None, None) => is_last = true,
            }
        }
        self.at += piece.len() as u64;
        self.crc = crc64_combine(self.crc, crc64(&piece), piece.len() as u64);
        if is_last {
            piece.extend_from_slice(&self.crc.to_le_bytes());
            self.sum = Some(self.crc);
        }
        Some(piece)
    }
}
