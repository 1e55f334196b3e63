//! Frames: what a chunk is made of. `docs/logs.md` draws the bytes.
//!
//! A frame is a note that zstd skips and a frame of zstd. So `zstd -dc` of a chunk, or of all chunks of a node one behind the other, is what
//! the program wrote, and we know when it wrote each piece. (D250)

use std::fmt;

/// Most bytes of a program in one frame.
pub const RAW_LEN_MAX: usize = 1 << 20;
/// Most times in one frame.
pub const MARKS_MAX: usize = 1024;
/// Longest frame: what no compression makes smaller, with its note.
pub const FRAME_LEN_MAX: usize = RAW_LEN_MAX + (64 << 10);

/// One of the sixteen numbers by which zstd knows what to skip.
const SKIP: u32 = 0x184D_2A5B;
const MAGIC: &[u8; 4] = b"stlg";
const VERSION: u8 = 1;
const END: u8 = 1;
const NOTE_LEN: usize = 40;
const MARK_LEN: usize = 8;
const HEAD_LEN: usize = 8 + NOTE_LEN;
const LEVEL: i32 = 3;

/// Bytes of a program, and when it wrote them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The number of the frame of its writer.
    pub seq: u64,
    /// Nothing follows of this writer.
    pub is_end: bool,
    /// Bytes that were dropped before these.
    pub dropped: u64,
    /// When the bytes from an offset on were written, milliseconds since 1970; offsets ascend and the first is 0.
    pub marks: Vec<(usize, u64)>,
    /// Bytes.
    pub raw: Vec<u8>,
}

/// What is wrong with bytes that should be a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

fn fault(why: impl Into<String>) -> Fault {
    Fault(why.into())
}

impl Frame {
    /// Its bytes. More than fit are a bug of the caller, whose times may be too many: those behind the last that fits are as that one.
    pub fn encode(&self) -> Result<Vec<u8>, Fault> {
        assert!(self.raw.len() <= RAW_LEN_MAX, "a frame of {} bytes", self.raw.len());
        let packed = match self.raw.is_empty() {
            true => Vec::new(),
            false => zstd::bulk::compress(&self.raw, LEVEL)
                .map_err(|error| fault(format!("zstd cannot compress: {error}")))?,
        };
        let marks = &self.marks[..self.marks.len().min(MARKS_MAX)];
        let begun_ms = marks.iter().map(|(_, at_ms)| *at_ms).min().unwrap_or(0);
        let note_len = NOTE_LEN + marks.len() * MARK_LEN;
        let mut bytes = Vec::with_capacity(8 + note_len + packed.len());
        bytes.extend(SKIP.to_le_bytes());
        bytes.extend((note_len as u32).to_le_bytes());
        bytes.extend(MAGIC);
        bytes.extend([VERSION, if self.is_end { END } else { 0 }]);
        bytes.extend((marks.len() as u16).to_le_bytes());
        bytes.extend(self.seq.to_le_bytes());
        bytes.extend((self.raw.len() as u32).to_le_bytes());
        bytes.extend((packed.len() as u32).to_le_bytes());
        bytes.extend(self.dropped.to_le_bytes());
        bytes.extend(begun_ms.to_le_bytes());
        for (offset, at_ms) in marks {
            bytes.extend((*offset as u32).to_le_bytes());
            bytes.extend(u32::try_from(at_ms - begun_ms).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes.extend(packed);
        Ok(bytes)
    }

    /// The frame at the front of these bytes and its length; none if they end before it does.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Fault> {
        let Some(head) = Head::decode(bytes)? else { return Ok(None) };
        let len = head.len();
        let Some(body) = bytes.get(HEAD_LEN..len) else { return Ok(None) };
        let (marks, packed) = body.split_at(head.marks * MARK_LEN);
        let marks = head.read_marks(marks)?;
        let raw = match head.packed_len {
            0 => Vec::new(),
            _ => zstd::bulk::decompress(packed, head.raw_len)
                .map_err(|error| fault(format!("zstd cannot decompress it: {error}")))?,
        };
        if raw.len() != head.raw_len {
            return Err(fault(format!("it says that it has {} bytes and has {}", head.raw_len, raw.len())));
        }
        let frame = Frame { seq: head.seq, is_end: head.is_end, dropped: head.dropped, marks, raw };
        Ok(Some((frame, len)))
    }
}

/// The part of a frame that says how long the others are.
struct Head {
    is_end: bool,
    marks: usize,
    seq: u64,
    raw_len: usize,
    packed_len: usize,
    dropped: u64,
    begun_ms: u64,
}

impl Head {
    fn len(&self) -> usize {
        HEAD_LEN + self.marks * MARK_LEN + self.packed_len
    }

    fn decode(bytes: &[u8]) -> Result<Option<Head>, Fault> {
        if !SKIP.to_le_bytes().starts_with(&bytes[..bytes.len().min(4)]) {
            return Err(fault("it begins with something else than a note of Stoker"));
        }
        let Some(head) = bytes.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if &head[8..12] != MAGIC {
            return Err(fault("its note is not of Stoker"));
        }
        if head[12] != VERSION {
            return Err(fault(format!(
                "its note has version {}, and this release knows {VERSION}",
                head[12]
            )));
        }
        let marks = usize::from(u16::from_le_bytes([head[14], head[15]]));
        let (raw_len, packed_len) = (u32_at(24) as usize, u32_at(28) as usize);
        let is_sound = marks <= MARKS_MAX
            && u32_at(4) as usize == NOTE_LEN + marks * MARK_LEN
            && raw_len <= RAW_LEN_MAX
            && (raw_len == 0) == (packed_len == 0)
            && (raw_len == 0) == (marks == 0)
            && HEAD_LEN + marks * MARK_LEN + packed_len <= FRAME_LEN_MAX;
        if !is_sound {
            return Err(fault("lengths in its note do not fit each other"));
        }
        Ok(Some(Head {
            is_end: head[13] & END != 0,
            marks,
            seq: u64_at(16),
            raw_len,
            packed_len,
            dropped: u64_at(32),
            begun_ms: u64_at(40),
        }))
    }

    fn read_marks(&self, bytes: &[u8]) -> Result<Vec<(usize, u64)>, Fault> {
        let mut marks = Vec::with_capacity(self.marks);
        for mark in bytes.chunks_exact(MARK_LEN) {
            let word = |at: usize| u32::from_le_bytes([mark[at], mark[at + 1], mark[at + 2], mark[at + 3]]);
            let (offset, at_ms) = (word(0) as usize, self.begun_ms.saturating_add(u64::from(word(4))));
            let is_next = marks.last().map_or(offset == 0, |(before, _)| *before < offset);
            if !is_next || offset >= self.raw_len {
                return Err(fault("times in its note are not in order"));
            }
            marks.push((offset, at_ms));
        }
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            seq: 7,
            is_end: true,
            dropped: 3,
            marks: vec![(0, 1_000), (6, 1_500), (9, 900)],
            raw: b"first\nsecond\n".repeat(50),
        }
    }

    #[test]
    fn frames_are_what_they_were_and_plain_to_zstd() {
        let (one, end) = (frame(), Frame { seq: 8, is_end: true, ..Frame::default() });
        let bytes = [one.encode().unwrap(), end.encode().unwrap()].concat();
        let (found, len) = Frame::decode(&bytes).unwrap().unwrap();
        assert_eq!(found, one);
        assert_eq!(Frame::decode(&bytes[len..]).unwrap(), Some((end, bytes.len() - len)));
        assert_eq!(zstd::stream::decode_all(&bytes[..]).unwrap(), one.raw);
    }

    #[test]
    fn a_frame_that_is_cut_is_not_there_yet() {
        let bytes = frame().encode().unwrap();
        for len in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..len]).unwrap(), None, "{len}");
        }
    }

    #[test]
    fn foreign_bytes_are_a_fault_and_no_panic() {
        let sound = frame().encode().unwrap();
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut bytes = sound.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(Some((frame, len))) = Frame::decode(&bytes) {
                    assert!(frame.raw.len() <= RAW_LEN_MAX && len <= bytes.len());
                }
            }
        }
        assert!(Frame::decode(b"no frame at all").is_err());
        assert!(Frame::decode(&zstd::bulk::compress(b"plain zstd", 3).unwrap()).is_err());
        // A short frame that would become very long.
        let mut bomb = sound;
        bomb[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Frame::decode(&bomb).is_err());
    }

    #[test]
    fn what_does_not_compress_fits() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let raw: Vec<u8> = (0..RAW_LEN_MAX).map(|_| next()).collect();
        let marks = (0..MARKS_MAX * 2).map(|at| (at, at as u64)).collect();
        let bytes = Frame { raw: raw.clone(), marks, ..Frame::default() }.encode().unwrap();
        assert!(bytes.len() <= FRAME_LEN_MAX);
        let (found, _) = Frame::decode(&bytes).unwrap().unwrap();
        assert_eq!((found.raw, found.marks.len()), (raw, MARKS_MAX));
    }
}
