//! Files in memory that are given in odd parts, as drives and nodes do.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use stoker_format::{BLOCK, crc32c};
use stoker_gpu::{SLACK, Segment, Source};

/// Files whose bytes say where they are.
pub fn file(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ (number * 97)) as u8).collect()
}

/// Gives at most `part` bytes at once, some way into the room, and refuses what is damaged.
pub struct Parts {
    pub files: Vec<Vec<u8>>,
    pub part: usize,
    pub reads: AtomicUsize,
    /// Flips a bit of this file before it is checked.
    pub damage: Option<(usize, usize)>,
}

impl Parts {
    pub fn new(files: Vec<Vec<u8>>, part: usize) -> Parts {
        Parts { files, part, reads: AtomicUsize::new(0), damage: None }
    }
}

impl Source for Parts {
    type Fault = String;

    fn read(&self, file: usize, offset: u64, len: usize, room: &mut [u8]) -> Result<Range<usize>, String> {
        assert!(room.len() >= len + SLACK && room.as_ptr().addr().is_multiple_of(BLOCK), "room for {len}");
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let (start, skip) = (offset as usize, number * 7 % BLOCK);
        let end = (start + len.min(self.part)).min(self.files[file].len());
        let found = skip..skip + (end - start);
        // What is around the bytes is anything.
        room.fill(0xEE);
        room[found.clone()].copy_from_slice(&self.files[file][start..end]);
        if let Some((damaged, at)) = self.damage
            && damaged == file
            && (start..end).contains(&at)
        {
            room[skip + at - start] ^= 4;
        }
        match crc32c(&room[found.clone()]) == crc32c(&self.files[file][start..end]) {
            true => Ok(found),
            false => Err(format!("damaged at {offset}")),
        }
    }
}

/// Memory to be filled, with guards around each segment.
pub struct Targets {
    memory: Vec<Vec<u8>>,
    ranges: Vec<(usize, u64, u64)>,
}

const GUARD: usize = 64;
const FRESH: u8 = 0xAA;

impl Targets {
    /// For (file, offset, length).
    pub fn new(ranges: &[(usize, u64, u64)]) -> Targets {
        let memory = ranges.iter().map(|range| vec![FRESH; range.2 as usize + 2 * GUARD]).collect();
        Targets { memory, ranges: ranges.to_vec() }
    }

    pub fn segments(&mut self) -> Vec<Segment> {
        let segment = |(memory, &(file, offset, len)): (&mut Vec<u8>, &(usize, u64, u64))| Segment {
            file,
            offset,
            len,
            to: memory[GUARD..].as_mut_ptr().addr() as u64,
        };
        self.memory.iter_mut().zip(&self.ranges).map(segment).collect()
    }

    /// Every byte is the right one, and nothing was written beside them.
    pub fn check(&self, files: &[Vec<u8>]) {
        for (memory, &(file, offset, len)) in self.memory.iter().zip(&self.ranges) {
            let (start, end) = (offset as usize, (offset + len) as usize);
            assert!(memory[GUARD..GUARD + len as usize] == files[file][start..end], "{file} at {offset}");
            self.guards(memory, len);
        }
    }

    /// Nothing was written beside the segments.
    pub fn check_guards(&self) {
        self.memory.iter().zip(&self.ranges).for_each(|(memory, range)| self.guards(memory, range.2));
    }

    fn guards(&self, memory: &[u8], len: u64) {
        let (front, rest) = memory.split_at(GUARD);
        assert!(front.iter().chain(&rest[len as usize..]).all(|byte| *byte == FRESH), "beside a segment");
    }
}
