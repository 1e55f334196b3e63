//! Makes messages wrong.

/// Numbers that are at the edge of something.
const EDGES: [&[u8]; 12] = [
    &[0],
    &[0xff],
    &[0x7f],
    &[0x80],
    &[0xff, 0xff],
    &[0, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0, 0, 0, 0, 0],
    &[0xff; 8],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
];

/// Words at which parsers of text turn.
const WORDS: [&[u8]; 18] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"%",
    b"%00",
    b"%2e%2e/",
    b"../",
    b"/",
    b"?",
    b"&",
    b"=",
    b"\"",
    b"<",
    b"]]>",
    b"-1",
    b"18446744073709551616",
    b"\xf0\x9f\x92\xa9",
    b";q=",
];

/// Chance and what it does to bytes.
pub struct Mutator(u64);

impl Mutator {
    pub fn new(seed: u64, name: &str, thread: u64) -> Mutator {
        let mixed = name
            .bytes()
            .fold(seed << 8 | thread, |sum, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
        Mutator(mixed | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Some changes of a message; `other` is one to take pieces of.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..1 + self.below(4) {
            self.change(bytes, other);
        }
        bytes.truncate(64 << 10);
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() as u64 + 1) as usize;
        let to = (at + 1 + self.below(16) as usize).min(bytes.len());
        match self.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
            2 => self.put(bytes, at, EDGES[self.0 as usize % EDGES.len()]),
            3 => {
                let word = *self.choose(&WORDS);
                bytes.splice(at..at, word.iter().copied());
            }
            4 => drop(bytes.drain(at..to.max(at))),
            5 => {
                let piece = bytes[at..to.max(at)].to_vec();
                let times = 1 + self.below(64) as usize;
                bytes.splice(at..at, piece.repeat(times));
            }
            6 => bytes.truncate(at),
            7 if !other.is_empty() => {
                let from = self.below(other.len() as u64) as usize;
                let until = (from + 1 + self.below(200) as usize).min(other.len());
                bytes.splice(at..to.max(at), other[from..until].iter().copied());
            }
            _ => {
                let random: Vec<u8> = (0..self.below(32)).map(|_| self.below(256) as u8).collect();
                bytes.splice(at..at, random);
            }
        }
    }

    /// Over what is there.
    fn put(&mut self, bytes: &mut [u8], at: usize, edge: &[u8]) {
        for (place, byte) in bytes.iter_mut().skip(at).zip(edge) {
            *place = *byte;
        }
    }
}
