//! Names of samples, front-coded: each says how much it shares with the one before it, and blocks begin anew so that one name
//! is found without those of other blocks.

use stoker_store::Result;

use super::{NAME_LEN_MAX, beyond, damaged};

const PER_BLOCK: u64 = 16;

/// Takes names one by one.
#[derive(Default)]
pub struct NamesWriter {
    count: u64,
    /// Where blocks begin in `bytes`.
    blocks: Vec<u32>,
    bytes: Vec<u8>,
    last: Vec<u8>,
}

impl NamesWriter {
    pub fn push(&mut self, name: &[u8]) -> Result<()> {
        if name.len() > NAME_LEN_MAX || std::str::from_utf8(name).is_err() {
            let shown = String::from_utf8_lossy(&name[..name.len().min(100)]).into_owned();
            return Err(beyond(format!("{shown}: a sample's name is UTF-8, at most {NAME_LEN_MAX} bytes")));
        }
        let mut shared = 0;
        if self.count.is_multiple_of(PER_BLOCK) {
            let at = u32::try_from(self.bytes.len());
            self.blocks.push(at.map_err(|_| beyond("the names of the samples take more than 4 GiB"))?);
        } else {
            shared = self.last.iter().zip(name).take_while(|(a, b)| a == b).count();
        }
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (name.len() - shared) as u64);
        self.bytes.extend_from_slice(&name[shared..]);
        self.last.truncate(shared);
        self.last.extend_from_slice(&name[shared..]);
        self.count += 1;
        Ok(())
    }

    /// Bytes of the section: the table of blocks, then the blocks.
    pub fn len(&self) -> u64 {
        4 + 4 * self.blocks.len() as u64 + self.bytes.len() as u64
    }

    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Names in a section.
#[derive(Clone, Copy, Debug)]
pub struct NamesReader<'a> {
    table: &'a [u8],
    blocks: &'a [u8],
}

impl<'a> NamesReader<'a> {
    pub fn open(section: &'a [u8], samples: u64) -> Result<NamesReader<'a>> {
        let bad = || damaged("the table of names does not fit");
        let (count, rest) = section.split_first_chunk::<4>().ok_or_else(bad)?;
        let count = u64::from(u32::from_le_bytes(*count));
        if count != samples.div_ceil(PER_BLOCK) {
            return Err(bad());
        }
        let (table, blocks) = rest.split_at_checked(4 * count as usize).ok_or_else(bad)?;
        let reader = NamesReader { table, blocks };
        let mut before = 0;
        for block in 0..count {
            let at = reader.block_at(block);
            if at < before || at > blocks.len() || (block == 0 && at != 0) {
                return Err(bad());
            }
            before = at;
        }
        Ok(reader)
    }

    fn block_at(&self, block: u64) -> usize {
        let at = 4 * block as usize;
        u32::from_le_bytes([self.table[at], self.table[at + 1], self.table[at + 2], self.table[at + 3]])
            as usize
    }

    /// The name of a sample that is there.
    pub fn name(&self, sample: u64) -> Result<Vec<u8>> {
        let mut rest = &self.blocks[self.block_at(sample / PER_BLOCK)..];
        let mut name = Vec::new();
        for _ in 0..=sample % PER_BLOCK {
            let (shared, tail) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            let fits = shared <= name.len() && tail <= NAME_LEN_MAX && shared + tail <= NAME_LEN_MAX;
            let taken = rest.split_at_checked(tail).filter(|_| fits);
            let (tail, behind) = taken.ok_or_else(|| damaged("a name does not fit"))?;
            name.truncate(shared);
            name.extend_from_slice(tail);
            rest = behind;
        }
        Ok(name)
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A small number: nothing in a name is larger than two groups of seven bits.
fn take_varint(bytes: &mut &[u8]) -> Result<usize> {
    let mut value = 0;
    for shift in [0, 7] {
        let (&byte, rest) = bytes.split_first().ok_or_else(|| damaged("a name is cut off"))?;
        *bytes = rest;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged("a length in a name is too large"))
}
