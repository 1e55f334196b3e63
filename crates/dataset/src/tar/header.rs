//! Headers of members, as ustar has them. A name that does not fit gets a pax header in front, which every reader knows.

use super::{BLOCK, NAME_LEN_MAX};

const NAME: usize = 100;
const PREFIX: usize = 155;
/// Largest number that eleven octal digits hold.
const NUMBER_MAX: u64 = (1 << 33) - 1;

/// Length of what ends a tar.
pub const END_LEN: u64 = 2 * BLOCK;

/// The header of a file. `mtime_s` is cut to what the field holds.
///
/// Panics if the name is empty or too long, or the file has 8 GiB or more: who plans a shard has checked that.
pub fn header(name: &[u8], size: u64, mtime_s: u64) -> Vec<u8> {
    assert!(
        !name.is_empty() && name.len() <= NAME_LEN_MAX && size <= NUMBER_MAX,
        "checked when it was planned"
    );
    let mtime_s = mtime_s.min(NUMBER_MAX);
    if let Some((prefix, rest)) = split(name) {
        return block(prefix, rest, size, mtime_s, b'0').to_vec();
    }
    let record = path_record(name);
    let mut head = block(b"", b"PaxHeaders/member", record.len() as u64, mtime_s, b'x').to_vec();
    head.extend_from_slice(&record);
    head.resize(head.len().next_multiple_of(BLOCK as usize), 0);
    // Readers that do not know pax see the end of the name, where the number and the extension are.
    head.extend_from_slice(&block(b"", &name[name.len() - NAME..], size, mtime_s, b'0'));
    head
}

/// Length of that header.
pub fn header_len(name: &[u8]) -> u64 {
    match split(name) {
        Some(_) => BLOCK,
        None => 2 * BLOCK + (path_record(name).len() as u64).next_multiple_of(BLOCK),
    }
}

/// A name as the two fields of ustar, if it fits.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= NAME {
        return Some((b"", name));
    }
    let first = name.len() - NAME - 1;
    let slash = first + name[first..].iter().position(|byte| *byte == b'/')?;
    let (prefix, rest) = (&name[..slash], &name[slash + 1..]);
    (!prefix.is_empty() && prefix.len() <= PREFIX && !rest.is_empty()).then_some((prefix, rest))
}

/// `LENGTH path=NAME\n`, where the length counts itself.
fn path_record(name: &[u8]) -> Vec<u8> {
    let rest = b" path=".len() + name.len() + 1;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" path=", name, b"\n"].concat()
}

fn block(prefix: &[u8], name: &[u8], size: u64, mtime_s: u64, kind: u8) -> [u8; BLOCK as usize] {
    let mut head = [0; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{mtime_s:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    put(345, prefix);
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}
