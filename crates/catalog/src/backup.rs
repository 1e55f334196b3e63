//! The file that rows of a catalog travel in: a backup, or a part of one. It knows no engine.
//!
//! A header, blocks of rows in the order of their keys, an end. Every block has its checksum, and the end has one over
//! everything before it, so a file that is damaged or cut off is never taken for a whole one. A reader holds one block at
//! a time. The bytes are drawn in `docs/data-file.md`.

use std::io::{self, Read, Write};

use stoker_format::{ClusterId, crc32c, crc64, crc64_combine};

use crate::error::{CatalogError, Result};
use crate::kv::{KEY_BYTES_MAX, PAGE_BYTES, Row, VALUE_BYTES_MAX};

const MAGIC: [u8; 8] = *b"STKRROWS";
/// Version of the form that is written; older ones are read.
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 64;
/// A block holds at most a page, and a row or two more than that.
const BLOCK_BYTES_MAX: usize = PAGE_BYTES + 4 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) + (1 << 20);
/// Length of a block that marks the end.
const END: u32 = 0;
const END_BYTES: usize = 24;
/// Key length, value length and number of a row.
const ROW_HEADER_BYTES: usize = 16;

/// Which rows a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All of one state.
    Whole,
    /// Those that a node keeps beside the catalog: volumes and access keys.
    Kept,
}

/// What a file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which rows it has.
    pub kind: Kind,
    /// Whose they are.
    pub cluster: ClusterId,
    /// Every commit up to this one is in it.
    pub seq: u64,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
}

/// What a whole file held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Everything that went by, for the checksum at the end.
#[derive(Debug, Clone, Copy)]
struct Passed {
    bytes: u64,
    sum: u64,
}

impl Passed {
    fn nothing() -> Passed {
        Passed { bytes: 0, sum: crc64(b"") }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.sum = crc64_combine(self.sum, crc64(bytes), bytes.len() as u64);
        self.bytes += bytes.len() as u64;
    }
}

/// Writes a file.
pub struct Writer<W> {
    to: W,
    passed: Passed,
    rows: u64,
    last: Option<Vec<u8>>,
}

impl<W: Write> Writer<W> {
    /// Begins with the header.
    pub fn begin(to: W, header: &Header) -> io::Result<Writer<W>> {
        let mut writer = Writer { to, passed: Passed::nothing(), rows: 0, last: None };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = match header.kind {
            Kind::Whole => 1,
            Kind::Kept => 2,
        };
        bytes[12..28].copy_from_slice(&header.cluster.0);
        bytes[28..36].copy_from_slice(&header.seq.to_le_bytes());
        bytes[36..44].copy_from_slice(&header.created_ms.to_le_bytes());
        let sum = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Adds rows behind those before. At most a page of them.
    pub fn rows(&mut self, rows: &[Row]) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut body = Vec::new();
        for row in rows {
            assert!(self.last.as_ref().is_none_or(|last| *last < row.key), "rows come in order");
            body.extend_from_slice(&(row.key.len() as u32).to_le_bytes());
            body.extend_from_slice(&(row.value.len() as u32).to_le_bytes());
            body.extend_from_slice(&row.seq.to_le_bytes());
            body.extend_from_slice(&row.key);
            body.extend_from_slice(&row.value);
            self.last = Some(row.key.clone());
        }
        assert!(body.len() <= BLOCK_BYTES_MAX, "a page of rows is not longer");
        self.rows += rows.len() as u64;
        let head = [(body.len() as u32).to_le_bytes(), crc32c(&body).to_le_bytes()].concat();
        self.put(&head)?;
        self.put(&body)
    }

    /// Ends the file; gives back what it was written to, which is not flushed.
    pub fn end(mut self) -> io::Result<(W, Summary)> {
        let mut bytes = [0; END_BYTES];
        bytes[..4].copy_from_slice(&END.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.rows.to_le_bytes());
        bytes[16..].copy_from_slice(&self.passed.sum.to_le_bytes());
        self.put(&bytes)?;
        Ok((self.to, Summary { rows: self.rows, bytes: self.passed.bytes }))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.passed.add(bytes);
        self.to.write_all(bytes)
    }
}

/// Reads a file. What it gives is to be believed only once the end was reached: nothing may be done before that which
/// could not be undone.
pub struct Reader<R> {
    from: R,
    header: Header,
    passed: Passed,
    rows: u64,
    last: Option<Vec<u8>>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn begin(mut from: R) -> Result<Reader<R>> {
        let mut bytes = [0; HEADER_BYTES];
        fill(&mut from, &mut bytes)?;
        if bytes[..8] != MAGIC {
            return Err(CatalogError::foreign("this is not a backup of a catalog"));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version > VERSION {
            return Err(CatalogError::foreign(format!(
                "the file has version {version} and this program reads up to {VERSION}; update the program"
            )));
        }
        if crc32c(&bytes[..HEADER_BYTES - 4]).to_le_bytes() != bytes[HEADER_BYTES - 4..] {
            return Err(damaged("its header"));
        }
        let kind = match bytes[10] {
            1 => Kind::Whole,
            2 => Kind::Kept,
            _ => return Err(damaged("its header")),
        };
        let header = Header {
            kind,
            cluster: ClusterId(part(&bytes, 12)),
            seq: u64::from_le_bytes(part(&bytes, 28)),
            created_ms: u64::from_le_bytes(part(&bytes, 36)),
        };
        let mut passed = Passed::nothing();
        passed.add(&bytes);
        Ok(Reader { from, header, passed, rows: 0, last: None, ended: false })
    }

    /// What the file says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was read so far.
    pub fn summary(&self) -> Summary {
        Summary { rows: self.rows, bytes: self.passed.bytes }
    }

    /// The next rows; none once the whole file was read and is sound.
    pub fn next_rows(&mut self) -> Result<Option<Vec<Row>>> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; 8];
        fill(&mut self.from, &mut head)?;
        let length = u32::from_le_bytes(part(&head, 0));
        if length == END {
            return self.end(&head).map(|()| None);
        }
        if length as usize > BLOCK_BYTES_MAX {
            return Err(damaged("the length of a block"));
        }
        let mut body = vec![0; length as usize];
        fill(&mut self.from, &mut body)?;
        if crc32c(&body).to_le_bytes() != head[4..] {
            return Err(damaged("a block"));
        }
        self.passed.add(&head);
        self.passed.add(&body);
        let rows = self.decode(&body)?;
        self.rows += rows.len() as u64;
        Ok(Some(rows))
    }

    fn end(&mut self, head: &[u8; 8]) -> Result<()> {
        let mut rest = [0; END_BYTES - 8];
        fill(&mut self.from, &mut rest)?;
        let (rows, sum) = (u64::from_le_bytes(part(&rest, 0)), u64::from_le_bytes(part(&rest, 8)));
        if head[4..] != [0; 4] || rows != self.rows || sum != self.passed.sum {
            return Err(damaged("its end"));
        }
        if self.from.read(&mut [0]).map_err(|error| unreadable(&error))? != 0 {
            return Err(damaged("what is behind its end"));
        }
        self.passed.add(head);
        self.passed.add(&rest);
        self.ended = true;
        Ok(())
    }

    fn decode(&mut self, mut body: &[u8]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        while !body.is_empty() {
            let (head, rest) = body.split_at_checked(ROW_HEADER_BYTES).ok_or_else(|| damaged("a row"))?;
            let key_len = u32::from_le_bytes(part(head, 0)) as usize;
            let value_len = u32::from_le_bytes(part(head, 4)) as usize;
            if key_len == 0 || key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
                return Err(damaged("the length of a row"));
            }
            let (key, rest) = rest.split_at_checked(key_len).ok_or_else(|| damaged("a row"))?;
            let (value, rest) = rest.split_at_checked(value_len).ok_or_else(|| damaged("a row"))?;
            if self.last.as_ref().is_some_and(|last| last.as_slice() >= key) {
                return Err(damaged("the order of its rows"));
            }
            self.last = Some(key.to_vec());
            let seq = u64::from_le_bytes(part(head, 8));
            rows.push(Row { key: key.to_vec(), value: value.to_vec(), seq });
            body = rest;
        }
        Ok(rows)
    }
}

/// The bytes at a place that is surely there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many as asked for")
}

fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => CatalogError::corrupt(
            "the backup is cut off; it was not finished, or not copied whole: take another one",
        ),
        _ => unreadable(&error),
    })
}

fn unreadable(error: &io::Error) -> CatalogError {
    CatalogError::unavailable(format!("the backup cannot be read: {error}"))
}

fn damaged(what: &str) -> CatalogError {
    CatalogError::corrupt(format!("the backup is damaged: {what} is not as it was written; take another one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const HEADER: Header = Header { kind: Kind::Whole, cluster: ClusterId([7; 16]), seq: 9, created_ms: 5 };

    fn row(number: u32) -> Row {
        let value = vec![number as u8; number as usize % 100];
        Row { key: number.to_be_bytes().to_vec(), value, seq: u64::from(number) }
    }

    fn written(rows: &[Row]) -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new(), &HEADER).unwrap();
        rows.chunks(7).for_each(|rows| writer.rows(rows).unwrap());
        let (bytes, summary) = writer.end().unwrap();
        assert_eq!(summary, Summary { rows: rows.len() as u64, bytes: bytes.len() as u64 });
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Row>> {
        let mut reader = Reader::begin(bytes)?;
        assert_eq!(*reader.header(), HEADER);
        let mut all = Vec::new();
        while let Some(rows) = reader.next_rows()? {
            all.extend(rows);
        }
        Ok(all)
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        for count in [0, 1, 7, 50] {
            let rows: Vec<Row> = (0..count).map(row).collect();
            assert_eq!(read(&written(&rows)).unwrap(), rows);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let rows: Vec<Row> = (0..20).map(row).collect();
        let good = written(&rows);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(read(&bad).is_err(), "byte {at}");
            assert!(read(&good[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(read(&[&good[..], &[0]].concat()).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(read(&[0; 100]).unwrap_err().kind, ErrorKind::Foreign);
    }
}
