//! What a file lake knows of an object beyond its bytes, and where that lies.
//!
//! A record is text in the extended attribute `user.stoker.object` of the file itself, written before the file
//! gets its name, so that bytes and record appear together. Where the file system refuses the attribute, or
//! the record is too large for it, the same text is a file in `.stoker-meta`, named by the identity of the file
//! that it describes (inode, time, size) and not by its key: so it follows a rename, and a record of an older
//! file is never taken for that of a newer one.
//!
//! A record states the size and the time of the file. When a foreign program has changed the file they differ,
//! and the record counts for nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::mode::Modes;
use crate::types::Attributes;

const ATTRIBUTE: &str = "user.stoker.object";
const FIRST_LINE: &str = "stoker object 1";
/// S3 holds at most 2 KiB of user metadata and 8 KiB of headers; this leaves room for escapes.
pub(super) const RECORD_BYTES_MAX: usize = 48 * 1024;

/// What tells a file from every other, for as long as nobody writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub ino: u64,
    pub size: u64,
    pub mtime_ns: i128,
}

impl Identity {
    pub fn of(stat: &rustix::fs::Stat) -> Identity {
        let mtime_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        Identity { ino: stat.st_ino, size: u64::try_from(stat.st_size).unwrap_or(0), mtime_ns }
    }

    /// The etag of a file that has no record.
    pub fn etag(&self) -> String {
        format!("f{:x}-{:x}-{:x}", self.ino, self.mtime_ns, self.size)
    }

    pub fn modified_ms(&self) -> u64 {
        u64::try_from(self.mtime_ns / 1_000_000).unwrap_or(0)
    }

    fn sidecar(&self) -> String {
        format!("{:x}-{:x}-{:x}", self.ino, self.mtime_ns, self.size)
    }
}

/// The record of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub size: u64,
    pub mtime_ns: i128,
    pub crc64: u64,
    /// Random, so that the same bytes written twice have two etags.
    pub stamp: u64,
    pub attributes: Attributes,
}

impl Record {
    pub fn etag(&self) -> String {
        format!("{:016x}-{:016x}", self.crc64, self.stamp)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "{FIRST_LINE}\nsize {}\nmtime_ns {}\ncrc64 {:016x}\nstamp {:016x}\n",
            self.size, self.mtime_ns, self.crc64, self.stamp
        );
        if let Some(value) = &self.attributes.content_type {
            text.push_str(&format!("type {}\n", escape(value)));
        }
        for (name, value) in &self.attributes.headers {
            text.push_str(&format!("header {} {}\n", escape(name), escape(value)));
        }
        for (name, value) in &self.attributes.meta {
            text.push_str(&format!("meta {} {}\n", escape(name), escape(value)));
        }
        text.into_bytes()
    }

    /// `None` for text that is not a record: a foreign program may have written anything.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let (mut size, mut mtime_ns, mut crc64, mut stamp) = (None, None, None, None);
        let mut attributes = Attributes::default();
        for line in lines {
            let (word, rest) = line.split_once(' ')?;
            match word {
                "size" => size = Some(rest.parse().ok()?),
                "mtime_ns" => mtime_ns = Some(rest.parse().ok()?),
                "crc64" => crc64 = Some(u64::from_str_radix(rest, 16).ok()?),
                "stamp" => stamp = Some(u64::from_str_radix(rest, 16).ok()?),
                "type" => attributes.content_type = Some(unescape(rest)?),
                "header" => attributes.headers.push(pair(rest)?),
                "meta" => attributes.meta.push(pair(rest)?),
                // A later version may add lines that this one can do without.
                _ => {}
            }
        }
        Some(Record { size: size?, mtime_ns: mtime_ns?, crc64: crc64?, stamp: stamp?, attributes })
    }

    /// The record still describes the file.
    pub fn fits(&self, identity: &Identity) -> bool {
        self.size == identity.size && self.mtime_ns == identity.mtime_ns
    }
}

/// Where records are read and written.
pub(super) struct Records {
    /// The directory of sidecars, once there is one.
    root: OwnedFd,
    /// Never use extended attributes.
    sidecar_only: bool,
    modes: Modes,
}

impl Records {
    pub fn new(root: OwnedFd, sidecar_only: bool, modes: Modes) -> Records {
        Records { root, sidecar_only, modes }
    }

    /// The valid record of an open file, if it has one.
    pub fn read(&self, file: &impl AsFd, identity: &Identity) -> io::Result<Option<Record>> {
        if let Some(record) = read_attribute(file)?
            && record.fits(identity)
        {
            return Ok(Some(record));
        }
        Ok(self.read_sidecar(identity)?.filter(|record| record.fits(identity)))
    }

    /// Gives a file its record. The file must not be written to afterwards.
    pub fn write(&self, file: &impl AsFd, identity: &Identity, record: &Record) -> io::Result<()> {
        let text = record.encode();
        if text.len() > RECORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the attributes take {} bytes, the limit is {RECORD_BYTES_MAX}", text.len()),
            ));
        }
        if !self.sidecar_only {
            match rustix::fs::fsetxattr(file, ATTRIBUTE, &text, XattrFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.write_sidecar(identity, &text)
    }

    /// Drops the sidecar of a file that is no more, if it had one.
    pub fn forget(&self, identity: &Identity) -> io::Result<()> {
        let Some(dir) = self.sidecars(&identity.sidecar())? else { return Ok(()) };
        match rustix::fs::unlinkat(&dir, identity.sidecar(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read_sidecar(&self, identity: &Identity) -> io::Result<Option<Record>> {
        let name = identity.sidecar();
        let Some(dir) = self.sidecars(&name)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX as u64).read_to_end(&mut text)?;
        Ok(Record::decode(&text))
    }

    fn write_sidecar(&self, identity: &Identity, text: &[u8]) -> io::Result<()> {
        let name = identity.sidecar();
        let top = super::tree::open_or_make_dir(&self.root, super::name::META.as_bytes(), self.modes)?;
        let dir = super::tree::open_or_make_dir(&top, bucket(&name).as_bytes(), self.modes)?;
        // The name is that of a file that nobody else can see yet, so nobody else writes here. What a crash
        // left behind is replaced.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(rustix::fs::openat(&dir, name, flags, self.modes.file())?);
        file.write_all(text)?;
        file.sync_all()?;
        rustix::fs::fsync(&dir)?;
        Ok(())
    }

    fn sidecars(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        super::tree::open_dir(&self.root, format!("{}/{}", super::name::META, bucket(name)).as_bytes())
    }
}

/// Sidecars lie in 256 directories, so that none grows too large.
fn bucket(name: &str) -> String {
    format!("{:02x}", stoker_format::crc64(name.as_bytes()) & 0xff)
}

fn read_attribute(file: &impl AsFd) -> io::Result<Option<Record>> {
    let mut text = vec![0; 1024];
    loop {
        match rustix::fs::fgetxattr(file, ATTRIBUTE, text.as_mut_slice()) {
            Ok(len) => return Ok(Record::decode(&text[..len])),
            Err(Errno::RANGE) if text.len() < RECORD_BYTES_MAX => text.resize(text.len() * 8, 0),
            Err(Errno::RANGE | Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once(' ')?;
    Some((unescape(name)?, unescape(value)?))
}

/// Keeps a value in its line and a name in its word.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '%' | ' ' | '\n' | '\r' => escaped.push_str(&format!("%{:02x}", character as u32)),
            _ => escaped.push(character),
        }
    }
    escaped
}

fn unescape(escaped: &str) -> Option<String> {
    let mut pieces = escaped.split('%');
    let mut value = pieces.next()?.to_owned();
    for piece in pieces {
        let code = piece.get(..2)?;
        value.push(char::from(u8::from_str_radix(code, 16).ok()?));
        value.push_str(&piece[2..]);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_round_trip(
            size in any::<u64>(), mtime in any::<i64>(), crc64 in any::<u64>(), stamp in any::<u64>(),
            content_type in prop::option::of(".{0,20}"),
            meta in prop::collection::vec((".{0,9}", ".{0,20}"), 0..4),
        ) {
            let attributes = Attributes { content_type, headers: meta.clone(), meta };
            let record = Record { size, mtime_ns: i128::from(mtime) * 1000, crc64, stamp, attributes };
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn foreign_text_never_panics(text in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut line = FIRST_LINE.as_bytes().to_vec();
            line.push(b'\n');
            line.extend_from_slice(&text);
            Record::decode(&line);
        }
    }
}
