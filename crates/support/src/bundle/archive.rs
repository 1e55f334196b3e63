//! A `.tar.gz` without compression: the forms are simple, and a bundle is small.

use std::io::{self, Write};

use crc_fast::{CrcAlgorithm, Digest};

const BLOCK: usize = 512;
/// Most bytes of a stored piece of deflate.
const STORED_MAX: usize = u16::MAX as usize;
/// Longest name that the plain form of tar has room for.
const NAME_MAX: usize = 100;

/// An archive under way.
pub struct Archive<W> {
    to: W,
    modified_s: u64,
    sum: Digest,
    /// Bytes of the tar.
    plain: u64,
    /// Bytes of the file.
    written: u64,
    waiting: Vec<u8>,
}

impl<W: Write> Archive<W> {
    /// Begins; every entry has this time.
    pub fn begin(mut to: W, modified_s: u64) -> io::Result<Archive<W>> {
        // Magic, deflate, no flags, no time, no hints, some system.
        to.write_all(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255])?;
        let sum = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        Ok(Archive { to, modified_s, sum, plain: 0, written: 10, waiting: Vec::new() })
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        assert!(name.len() <= NAME_MAX, "names of ours are short");
        let mut head = [0u8; BLOCK];
        head[..name.len()].copy_from_slice(name.as_bytes());
        let mut field = |at: usize, text: String| head[at..at + text.len()].copy_from_slice(text.as_bytes());
        field(100, "0000600\0".into());
        field(108, "0000000\0".into());
        field(116, "0000000\0".into());
        field(124, format!("{:011o}\0", bytes.len()));
        field(136, format!("{:011o}\0", self.modified_s));
        field(148, "        ".into());
        field(156, "0".into());
        field(257, "ustar\x0000".into());
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.put(&head)?;
        self.put(bytes)?;
        let padding = bytes.len().next_multiple_of(BLOCK) - bytes.len();
        self.put(&[0; BLOCK][..padding])
    }

    /// Ends it; gives the length of the file.
    pub fn end(mut self) -> io::Result<u64> {
        self.put(&[0; 2 * BLOCK])?;
        let rest = std::mem::take(&mut self.waiting);
        self.stored(&rest, 1)?;
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&(self.sum.finalize() as u32).to_le_bytes());
        tail[4..].copy_from_slice(&(self.plain as u32).to_le_bytes());
        self.to.write_all(&tail)?;
        self.to.flush()?;
        Ok(self.written + tail.len() as u64)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.plain += bytes.len() as u64;
        self.waiting.extend_from_slice(bytes);
        while self.waiting.len() > STORED_MAX {
            let rest = self.waiting.split_off(STORED_MAX);
            let piece = std::mem::replace(&mut self.waiting, rest);
            self.stored(&piece, 0)?;
        }
        Ok(())
    }

    /// A piece as it is; the first bit says whether it is the last.
    fn stored(&mut self, piece: &[u8], last: u8) -> io::Result<()> {
        let len = piece.len() as u16;
        self.to.write_all(&[last])?;
        self.to.write_all(&len.to_le_bytes())?;
        self.to.write_all(&(!len).to_le_bytes())?;
        self.to.write_all(piece)?;
        self.written += 5 + piece.len() as u64;
        Ok(())
    }
}
