//! Which files go into which shard, and where. It follows from names and sizes alone, so a second run plans the same.

use std::ops::Range;

use stoker_format::crc64;
use stoker_store::ErrorKind;

use crate::fault::{Fault, Result};
use crate::inputs::Inputs;
use crate::seal::{SAMPLE_LEN_MAX, SHARD_LEN_MAX, SHARDS_MAX};
use crate::tar;

/// A shard to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedShard {
    /// Its files.
    pub inputs: Range<usize>,
    /// Its length, with the end mark.
    pub size: u64,
}

/// A sample to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedSample<'a> {
    pub stem: &'a [u8],
    pub start: u64,
    pub len: u64,
    pub inputs: Range<usize>,
}

/// Shards of at most so many bytes, unless a single sample is longer.
pub fn shards(inputs: &Inputs, shard_bytes: u64) -> Result<Vec<PlannedShard>> {
    let mut shards = Vec::new();
    let (mut first, mut size) = (0, 0u64);
    let mut at = 0;
    while at < inputs.len() {
        let (end, len) = sample_at(inputs, at)?;
        if size > 0 && size + len + tar::END_LEN > shard_bytes {
            shards.push(PlannedShard { inputs: first..at, size: size + tar::END_LEN });
            (first, size) = (at, 0);
        }
        size += len;
        at = end;
    }
    shards.push(PlannedShard { inputs: first..at, size: size + tar::END_LEN });
    let too_large = shards.iter().any(|shard| shard.size > SHARD_LEN_MAX);
    if shards.len() as u64 > SHARDS_MAX || too_large {
        let message = format!(
            "{} shards: there may be {SHARDS_MAX}, of {SHARD_LEN_MAX} bytes each; choose another length of shards",
            shards.len()
        );
        return Err(Fault::new(inputs.source().path(), ErrorKind::Invalid, message));
    }
    Ok(shards)
}

/// The samples of a shard.
pub fn samples<'a>(
    inputs: &'a Inputs,
    shard: &PlannedShard,
) -> impl Iterator<Item = Result<PlannedSample<'a>>> + use<'a> {
    let (mut at, mut start, last) = (shard.inputs.start, 0, shard.inputs.end);
    std::iter::from_fn(move || {
        if at >= last {
            return None;
        }
        Some(sample_at(inputs, at).map(|(end, len)| {
            let stem = tar::stem(inputs.get(at).name);
            let sample = PlannedSample { stem, start, len, inputs: at..end };
            (at, start) = (end, start + len);
            sample
        }))
    })
}

/// Where the sample that begins with this file ends, and how long it is in a tar.
fn sample_at(inputs: &Inputs, first: usize) -> Result<(usize, u64)> {
    let stem = tar::stem(inputs.get(first).name);
    let (mut at, mut len) = (first, 0u64);
    while at < inputs.len() {
        let input = inputs.get(at);
        if tar::stem(input.name) != stem {
            break;
        }
        let longer = input.tar_len().and_then(|more| len.checked_add(more));
        let Some(longer) = longer.filter(|len| *len <= SAMPLE_LEN_MAX) else {
            let message = "its sample has 4 GiB or more: a sample is read as a whole, so make smaller ones";
            return Err(Fault::new(inputs.path_of(input.name), ErrorKind::Invalid, message));
        };
        (at, len) = (at + 1, longer);
    }
    Ok((at, len))
}

/// What tells the files of a shard, as they were found, from any others.
pub fn digest(inputs: &Inputs, shard: &PlannedShard) -> String {
    let mut sum = 0;
    let mut bytes = Vec::new();
    for index in shard.inputs.clone() {
        let input = inputs.get(index);
        bytes.clear();
        bytes.extend_from_slice(&(input.name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(input.name);
        bytes.extend_from_slice(&input.size.to_le_bytes());
        bytes.extend_from_slice(&input.mtime_ns.to_le_bytes());
        bytes.extend_from_slice(&input.version);
        bytes.extend_from_slice(&u64::to_le_bytes(sum));
        sum = crc64(&bytes);
    }
    format!("{sum:016x}-{}", shard.inputs.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Source;

    fn inputs(files: &[(&str, u64)]) -> Inputs {
        let mut inputs = Inputs::new(Source::Local("in".into()));
        for (name, size) in files {
            inputs.push(name.as_bytes(), *size, 0, [0; 12]).unwrap();
        }
        inputs
    }

    #[test]
    fn samples_are_not_divided() {
        let inputs = inputs(&[("a.cls", 1), ("a.jpg", 600), ("b.jpg", 512), ("c.jpg", 5000), ("d.jpg", 0)]);
        let planned = shards(&inputs, 4096 + 1024).unwrap();
        let ranges: Vec<_> = planned.iter().map(|shard| (shard.inputs.clone(), shard.size)).collect();
        assert_eq!(
            ranges,
            [(0..3, 1024 + 1536 + 1024 + 1024), (3..4, 512 + 5120 + 1024), (4..5, 512 + 1024)]
        );
        let found: Vec<_> = samples(&inputs, &planned[0]).map(|sample| sample.unwrap()).collect();
        assert_eq!((found[0].start, found[0].len, found[0].stem), (0, 2560, &b"a"[..]));
        assert_eq!((found[1].start, found[1].len, found[1].stem), (2560, 1024, &b"b"[..]));
    }

    #[test]
    fn a_sample_that_no_seal_can_hold_is_named() {
        let inputs = inputs(&[("a.jpg", 1), ("b.bin", u64::from(u32::MAX))]);
        let fault = shards(&inputs, 1 << 20).unwrap_err();
        assert!(fault.path().ends_with("b.bin"), "{fault}");
        let inputs = self::inputs(&[("a.bin", u64::MAX)]);
        assert!(shards(&inputs, 1 << 20).is_err());
    }
}
