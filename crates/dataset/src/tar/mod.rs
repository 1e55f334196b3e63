//! Tar files: headers as we write them, a scanner for headers that others wrote, and the members of a sample in memory.

mod header;
mod sample;
mod scanner;

pub use header::{END_LEN, header, header_len};
pub use sample::{NoSample, Piece, Pieces, divide, pieces};
pub use scanner::{Member, Scanner, members};

/// Headers and bytes of members start at multiples of this.
pub const BLOCK: u64 = 512;

/// Longest name of a member.
pub const NAME_LEN_MAX: usize = 4096;

/// Length with the padding behind it; none if no file can be that long.
pub fn padded(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(BLOCK)
}

/// What the members of a sample have in common: the name up to the first dot of its last part.
pub fn stem(name: &[u8]) -> &[u8] {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    match name[last..].iter().position(|byte| *byte == b'.') {
        Some(dot) => &name[..last + dot],
        None => name,
    }
}

/// Whether WebDataset reads a member of this name: it wants something in front of the dot and a dot.
pub fn has_extension(name: &[u8]) -> bool {
    let stem = stem(name);
    stem.len() < name.len() && !stem.is_empty() && !stem.ends_with(b"/")
}

#[cfg(test)]
mod tests;
