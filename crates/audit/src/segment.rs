//! The files of a log: numbered segments, the newest heads, and how far segments were put into the volume.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::head::Head;
use crate::line::{Begin, Hash, LINE_LEN_MAX, Line, follow, parse};

/// Heads of the segment that is open, the newest last.
pub const HEADS: &str = "heads.jsonl";
const SHIPPED: &str = "shipped";
/// What a crash left of a line, or what somebody made of one.
const TORN: &str = "torn";
const START: &str = "segment-";
const END: &str = ".jsonl";

/// The name of a segment's file.
pub fn name(number: u64) -> String {
    format!("{START}{number:010}{END}")
}

/// The number in the name of a segment's file.
pub fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(START)?.strip_suffix(END)?;
    let is_number = digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The segments in a directory, oldest first.
pub fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(number) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes the file of a segment, or opens it to go on.
pub(crate) fn open_to_append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Replaces a small file, so that it is there whole after any crash.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&new, dir.join(name))?;
    sync_dir(dir)
}

/// The heads that were signed, oldest first. What a crash left of one is none.
pub fn heads(path: &Path) -> io::Result<Vec<Head>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(fault) => return Err(fault),
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The highest segment that was put into the volume, with all before it.
pub(crate) fn shipped(dir: &Path) -> u64 {
    fs::read_to_string(dir.join(SHIPPED)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

pub(crate) fn set_shipped(dir: &Path, number: u64) -> io::Result<()> {
    replace(dir, SHIPPED, format!("{number}\n").as_bytes())
}

/// Lines of a segment, with how many bytes of the file they end at. A last line without an end is none yet.
pub struct Lines {
    reader: BufReader<File>,
    offset: u64,
    line: Vec<u8>,
}

impl Lines {
    /// Of a file.
    pub fn open(path: &Path) -> io::Result<Lines> {
        Ok(Lines {
            reader: BufReader::with_capacity(256 << 10, File::open(path)?),
            offset: 0,
            line: Vec::new(),
        })
    }

    /// The next one, without its end of line.
    pub fn next_line(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        self.line.clear();
        let count = (&mut self.reader).take(LINE_LEN_MAX as u64).read_until(b'\n', &mut self.line)?;
        if self.line.pop() != Some(b'\n') {
            return Ok(None);
        }
        self.offset += count as u64;
        Ok(Some((&self.line, self.offset)))
    }
}

/// How far the lines of a segment are what was written.
#[derive(Debug)]
pub(crate) struct Sound {
    pub begin: Begin,
    /// Bytes.
    pub len: u64,
    pub chain: Hash,
    /// The last event.
    pub seq: u64,
    pub is_closed: bool,
}

/// Reads a segment from its begin on, as far as it is what was written; none if not even its begin is.
pub(crate) fn scan(path: &Path) -> io::Result<Option<Sound>> {
    let mut lines = Lines::open(path)?;
    let Some((line, len)) = lines.next_line()? else { return Ok(None) };
    let Some(Line::Begin(begin)) = parse(line) else { return Ok(None) };
    let Some(chain) = Hash::parse(&begin.prev).and_then(|prev| follow(prev, line)) else { return Ok(None) };
    let seq = begin.first.saturating_sub(1);
    let mut sound = Sound { begin, len, chain, seq, is_closed: false };
    while let Some((line, len)) = lines.next_line()? {
        let Some(chain) = follow(sound.chain, line).filter(|_| !sound.is_closed) else { break };
        match parse(line) {
            Some(Line::Entry(entry)) if entry.seq == sound.seq + 1 => sound.seq = entry.seq,
            Some(Line::End(_)) => sound.is_closed = true,
            _ => break,
        }
        (sound.chain, sound.len) = (chain, len);
    }
    Ok(Some(sound))
}

/// Takes away what stands behind the sound part of a segment, and keeps it beside.
pub(crate) fn cut_torn(path: &Path, len: u64) -> io::Result<u64> {
    let whole = fs::read(path)?;
    let torn = whole.get(len as usize..).unwrap_or_default();
    if torn.is_empty() {
        return Ok(0);
    }
    let mut beside = open_to_append(&path.with_extension(TORN))?;
    io::Write::write_all(&mut beside, torn)?;
    beside.sync_all()?;
    let file = File::options().write(true).open(path)?;
    file.set_len(len)?;
    file.sync_all()?;
    Ok(torn.len() as u64)
}

/// Adds a head to those that were signed, or puts it in their place.
pub(crate) fn write_head(dir: &Path, line: &[u8], replaces: bool) -> io::Result<()> {
    if replaces {
        return replace(dir, HEADS, line);
    }
    let mut file = open_to_append(&dir.join(HEADS))?;
    io::Write::write_all(&mut file, line)?;
    file.sync_data()
}
