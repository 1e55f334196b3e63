//! Reads a seal where it lies. Nothing in it is believed before both checksums and all bounds were checked; after that a
//! sample is found by two look-ups.

use stoker_format::crc64;
use stoker_store::Result;

use super::names::NamesReader;
use super::*;

/// A seal in memory.
#[derive(Debug)]
pub struct Seal<'a> {
    shards: Shards,
    firsts: Vec<u64>,
    starts: &'a [u8],
    lens: &'a [u8],
    names: Option<NamesReader<'a>>,
    flags: u32,
    samples: u64,
    bytes: u64,
    identity: u64,
}

/// Where a sample lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Which shard.
    pub shard: usize,
    /// First byte in it.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl<'a> Seal<'a> {
    /// Checks everything, once.
    pub fn open(bytes: &'a [u8]) -> Result<Seal<'a>> {
        if bytes.len() < HEADER_LEN + CRC_LEN || &bytes[..8] != MAGIC {
            return Err(damaged("it does not begin like one, or is too short"));
        }
        let version = u32_at(bytes, 8);
        if crc64(&bytes[..HEADER_CRC_AT]) != u64_at(bytes, HEADER_CRC_AT) {
            return Err(damaged("the checksum of its header does not hold"));
        }
        let flags = u32_at(bytes, 12);
        if version != VERSION || flags & !(FLAG_NAMES | FLAG_TAR) != 0 {
            return Err(beyond(format!(
                "a seal of a newer release (version {version}): use that one to read it"
            )));
        }
        let (body, crc) = bytes.split_at(bytes.len() - CRC_LEN);
        let identity = u64_at(crc, 0);
        if crc64(body) != identity {
            return Err(damaged("its checksum does not hold"));
        }
        let (samples, shards) = (u64_at(bytes, 16), u64_at(bytes, 24));
        if samples > SAMPLES_MAX || shards > SHARDS_MAX {
            return Err(damaged("it says that it has more than a seal can have"));
        }
        let names_len = (flags & FLAG_NAMES == 0).then_some(0);
        let [of_shards, of_firsts, starts, lens, names] =
            sections(body, [None, Some(8 * (shards + 1)), Some(4 * samples), Some(4 * samples), names_len])?;
        let seal = Seal {
            shards: shards_of(of_shards, shards)?,
            firsts: of_firsts.chunks_exact(8).map(|first| u64_at(first, 0)).collect(),
            starts,
            lens,
            names: match names_len {
                None => Some(NamesReader::open(names, samples)?),
                Some(_) => None,
            },
            flags,
            samples,
            bytes: u64_at(bytes, 32),
            identity,
        };
        seal.check_samples()?;
        Ok(seal)
    }

    fn check_samples(&self) -> Result<()> {
        let ascends = self.firsts.is_sorted() && self.firsts.first() == Some(&0);
        if !ascends || self.firsts.last() != Some(&self.samples) {
            return Err(damaged("samples belong to no shard"));
        }
        let mut total = 0;
        for (shard, row) in self.shards.shards.iter().enumerate() {
            let mut before = 0;
            for number in self.firsts[shard]..self.firsts[shard + 1] {
                let (start, len) = self.range(number);
                if start < before || start + len > row.size {
                    return Err(damaged(format!("sample {number} is not inside {}", row.key)));
                }
                before = start;
                total += len;
            }
        }
        if total != self.bytes {
            return Err(damaged("the lengths of its samples do not add up"));
        }
        Ok(())
    }

    fn range(&self, number: u64) -> (u64, u64) {
        let at = 4 * number as usize;
        (u64::from(u32_at(self.starts, at)) * GRAIN, u64::from(u32_at(self.lens, at)))
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Bytes of all samples.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The volume of the shards.
    pub fn volume(&self) -> &str {
        &self.shards.volume
    }

    /// The shards in order.
    pub fn shards(&self) -> &[ShardRow] {
        &self.shards.shards
    }

    /// Who made it.
    pub fn made(&self) -> &serde_json::Value {
        &self.shards.made
    }

    /// Whether samples are members of tars.
    pub fn is_tar(&self) -> bool {
        self.flags & FLAG_TAR != 0
    }

    /// What tells this dataset from all others.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Where a sample lies; none if there is no such sample.
    pub fn sample(&self, number: u64) -> Option<Sample> {
        if number >= self.samples {
            return None;
        }
        let shard = self.firsts.partition_point(|first| *first <= number) - 1;
        let (start, len) = self.range(number);
        Some(Sample { shard, start, len })
    }

    /// The name of a sample; none if there is no such sample, or if samples have no names.
    pub fn name(&self, number: u64) -> Result<Option<Vec<u8>>> {
        match &self.names {
            Some(names) if number < self.samples => names.name(number).map(Some),
            _ => Ok(None),
        }
    }
}

/// The sections, in order and inside; those of a known length have it.
fn sections(body: &[u8], lens: [Option<u64>; SECTIONS]) -> Result<[&[u8]; SECTIONS]> {
    let mut found = [&body[..0]; SECTIONS];
    let mut end = HEADER_LEN as u64;
    for (section, want) in lens.into_iter().enumerate() {
        let (offset, len) =
            (u64_at(body, SECTIONS_AT + 16 * section), u64_at(body, SECTIONS_AT + 16 * section + 8));
        if len == 0 && want == Some(0) {
            continue;
        }
        let inside = offset.checked_add(len).is_some_and(|end| end <= body.len() as u64);
        if !inside || offset != end.next_multiple_of(ALIGN) || want.is_some_and(|want| want != len) {
            return Err(damaged("a section is not where it should be"));
        }
        end = offset + len;
        found[section] = &body[offset as usize..end as usize];
    }
    // Nothing may hide behind the last section but its padding.
    if body.len() as u64 - end >= ALIGN {
        return Err(damaged("there is something behind its last section"));
    }
    Ok(found)
}

fn shards_of(section: &[u8], count: u64) -> Result<Shards> {
    if section.len() as u64 > SHARDS_LEN_MAX {
        return Err(damaged("its list of shards is too long"));
    }
    let shards: Shards =
        serde_json::from_slice(section).map_err(|error| damaged(format!("its list of shards: {error}")))?;
    if shards.shards.len() as u64 != count {
        return Err(damaged("its list of shards has another length than its header says"));
    }
    Ok(shards)
}
