//! Uploads in parts.
//!
//! An upload is a directory `upload-ID` in `.stoker-tmp`: a file `key`, a file `record` with the attributes, and a
//! file for each part, whose name states number, checksum and size. The bytes of a part are in that file, or, if its
//! name says so, in the [`body`](super::body). It lives until it is completed or aborted, whatever happens to the process.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::body::{BODY_PREFIX, BodyId, body_name};
use super::lock::{TempFile, UPLOAD_PREFIX, random_u64, remove_tree};
use super::record::{RECORD_BYTES_MAX, Record};
use super::tree::{open_dir, open_file};
use super::write::write_body;
use super::{Inner, crash, fail_key};
use crate::error::{LakeError, Result};
use crate::key::KEY_BYTES_MAX;
use crate::types::{Attributes, PartTag, PutOptions};

/// Most parts of an upload, as in S3.
pub(super) const PARTS_MAX: u32 = 10_000;
pub(super) const KEY_FILE: &[u8] = b"key";
pub(super) const RECORD_FILE: &[u8] = b"record";

impl Inner {
    pub(super) fn upload_begin(&self, key: &[u8], attributes: Attributes) -> Result<String> {
        let fail = fail_key("begin an upload of", key);
        let tmp = &self.writer()?.tmp;
        let record = Record { size: 0, mtime_ns: 0, crc64: 0, stamp: 0, attributes }.encode();
        if record.len() > RECORD_BYTES_MAX {
            return Err(LakeError::invalid(format!(
                "the attributes take {} bytes, the limit is {RECORD_BYTES_MAX}",
                record.len()
            )));
        }
        let begin = || -> io::Result<String> {
            let upload = format!("{:016x}{:016x}", random_u64()?, random_u64()?);
            let dir = super::tree::open_or_make_dir(tmp, dir_name(&upload).as_bytes(), self.modes)?;
            write_file(&dir, RECORD_FILE, &record)?;
            crash::point("upload record written");
            write_file(&dir, KEY_FILE, key)?;
            rustix::fs::fsync(&dir)?;
            Ok(upload)
        };
        begin().map_err(fail)
    }

    pub(super) fn upload_part(
        &self,
        key: &[u8],
        upload: &str,
        number: u32,
        body: &[Bytes],
    ) -> Result<PartTag> {
        let fail = fail_key("write a part of", key);
        if number == 0 || number > PARTS_MAX {
            return Err(LakeError::invalid(format!(
                "part {number}; parts have the numbers 1 to {PARTS_MAX}"
            )));
        }
        let dir = self.upload_dir(key, upload)?;
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        if let Some(part) = self.part_in_body(key, upload, &dir, (number, size), body)? {
            return Ok(part.tag());
        }
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        let crc64 = write_body(&mut temp.file, body).map_err(&fail)?;
        // The clock of the file system is too coarse to tell which of two parts came later.
        temp.file.set_modified(self.modified_now()).map_err(&fail)?;
        temp.file.sync_all().map_err(&fail)?;
        crash::point("part synced");
        let part = Part { number, crc64, size, place: None };
        temp.rename_to(&dir, part.file_name().as_bytes()).map_err(&fail)?;
        crash::point("part renamed");
        rustix::fs::fsync(&dir).map_err(|error| fail(error.into()))?;
        Ok(part.tag())
    }

    /// Writes a part to where it will be in the object, if there is a place for it.
    fn part_in_body(
        &self,
        key: &[u8],
        upload: &str,
        dir: &OwnedFd,
        (number, size): (u32, u64),
        pieces: &[Bytes],
    ) -> Result<Option<Part>> {
        let fail = fail_key("write a part of", key);
        let Some(body) = self.writer()?.bodies.of(upload, dir).map_err(&fail)? else { return Ok(None) };
        let is_object = body.is_object.read().unwrap_or_else(PoisonError::into_inner);
        if *is_object {
            return Err(gone(key, upload));
        }
        let Some(offset) = body.reserve(number, size) else { return Ok(None) };
        // Only what was not written may be written again: from here on its name may be known.
        let crc64 = body.write(offset, pieces).map_err(|error| {
            body.release(number);
            fail(error)
        })?;
        crash::point("part synced");
        let part = Part { number, crc64, size, place: Some((body.id, offset)) };
        let name = || -> io::Result<()> {
            let marker = make_file(dir, part.file_name().as_bytes())?;
            // As with a part in a file of its own.
            marker.set_modified(self.modified_now())?;
            crash::point("part named");
            Ok(rustix::fs::fsync(dir)?)
        };
        name().map_err(fail)?;
        Ok(Some(part))
    }

    pub(super) fn upload_parts(&self, key: &[u8], upload: &str) -> Result<Vec<PartTag>> {
        let dir = self.upload_dir(key, upload)?;
        let mut parts = read_parts(&dir).map_err(fail_key("list the parts of", key))?;
        // A part that was written twice may be here twice; the later one counts.
        parts.retain(|sent| !sent.is_over);
        parts.sort_by_key(|sent| (sent.part.number, std::cmp::Reverse(sent.mtime_ns)));
        parts.dedup_by_key(|sent| sent.part.number);
        Ok(parts.into_iter().map(|sent| sent.part.tag()).collect())
    }

    pub(super) fn upload_complete(
        &self,
        key: &[u8],
        upload: &str,
        parts: &[PartTag],
        options: &PutOptions,
    ) -> Result<String> {
        let fail = fail_key("complete the upload of", key);
        let dir = self.upload_dir(key, upload)?;
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(LakeError::invalid("an upload is completed with its parts in ascending order"));
        }
        let record = read_file(&dir, RECORD_FILE, RECORD_BYTES_MAX).map_err(&fail)?;
        let record = record.as_deref().and_then(Record::decode).ok_or_else(|| {
            LakeError::corrupt(format!("the record of the upload {upload} is damaged; begin it again"))
        })?;
        let mut crc64 = 0;
        let mut found = Vec::new();
        let mut known: HashMap<(u32, u64, u64), Sent> = HashMap::new();
        for sent in read_parts(&dir).map_err(&fail)? {
            let part = sent.part;
            // Of two with the same bytes, the one that need not be copied.
            let slot = known.entry((part.number, part.crc64, part.size));
            match slot {
                Entry::Vacant(slot) => drop(slot.insert(sent)),
                Entry::Occupied(mut slot) if part.place.is_some() && !sent.is_over => drop(slot.insert(sent)),
                Entry::Occupied(_) => {}
            }
        }
        for tag in parts {
            let missing = || {
                LakeError::invalid(format!(
                    "part {} is not in the upload {upload}; send it again",
                    tag.number
                ))
            };
            let part = Part::of(tag).ok_or_else(missing)?;
            let sent = known.get(&(part.number, part.crc64, part.size)).ok_or_else(missing)?;
            if sent.is_over {
                return Err(gone(key, upload));
            }
            crc64 = stoker_format::crc64_combine(crc64, part.crc64, part.size);
            found.push(sent.part);
        }
        let etag = match self.complete_body(key, upload, &found, crc64, (&record.attributes, options))? {
            Some(etag) => etag,
            None => {
                let mut temp = self.join_parts(key, upload, &dir, &found)?;
                self.finish(key, &mut temp, crc64, &record.attributes, options)?
            }
        };
        crash::point("upload placed");
        self.drop_upload(upload).map_err(&fail)?;
        Ok(etag)
    }

    /// The body becomes the object, if it has these parts and nothing else.
    fn complete_body(
        &self,
        key: &[u8],
        upload: &str,
        parts: &[Part],
        crc64: u64,
        (attributes, options): (&Attributes, &PutOptions),
    ) -> Result<Option<String>> {
        let fail = fail_key("complete the upload of", key);
        let Some(body) = self.writer()?.bodies.get(upload) else { return Ok(None) };
        let mut end = 0;
        for part in parts {
            if part.place != Some((body.id, end)) {
                return Ok(None);
            }
            end += part.size;
        }
        // Nobody writes to it from here on.
        let mut is_object = body.is_object.write().unwrap_or_else(PoisonError::into_inner);
        if *is_object {
            return Err(gone(key, upload));
        }
        // Parts that were sent and are not wanted.
        if body.file.metadata().map_err(&fail)?.len() != end {
            body.file.set_len(end).map_err(&fail)?;
        }
        crash::point("parts joined");
        let dir = self.upload_dir(key, upload)?;
        let file = body.file.try_clone().map_err(&fail)?;
        let mut temp = TempFile::named(dir, body_name(body.id), file);
        // It stays where it is unless it gets its place: whoever completes it again needs it.
        let etag = self.finish(key, &mut temp, crc64, attributes, options);
        *is_object = temp.is_placed();
        etag.map(Some)
    }

    /// The parts one behind the other in a new file.
    fn join_parts(&self, key: &[u8], upload: &str, dir: &OwnedFd, parts: &[Part]) -> Result<TempFile> {
        let fail = fail_key("complete the upload of", key);
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        for part in parts {
            let (name, offset) = match part.place {
                Some((body, offset)) => (body_name(body), offset),
                None => (part.file_name(), 0),
            };
            // A body that is gone has become an object, and what is left of the upload is about to go.
            let file =
                open_file(dir, &[name.into_bytes()]).map_err(&fail)?.ok_or_else(|| gone(key, upload))?;
            let mut file = File::from(file);
            file.seek(SeekFrom::Start(offset)).map_err(&fail)?;
            // Inside the kernel, by reference where the file system can.
            let copied = io::copy(&mut file.take(part.size), &mut temp.file).map_err(&fail)?;
            if copied != part.size {
                return Err(LakeError::corrupt(format!(
                    "part {} has {copied} bytes instead of {}; send it again",
                    part.number, part.size
                )));
            }
        }
        crash::point("parts joined");
        Ok(temp)
    }

    pub(super) fn upload_abort(&self, key: &[u8], upload: &str) -> Result<()> {
        if !is_id(upload) {
            return Ok(());
        }
        self.drop_upload_of(key, upload)
    }

    fn drop_upload_of(&self, key: &[u8], upload: &str) -> Result<()> {
        self.writer()?;
        self.drop_upload(upload).map_err(fail_key("abort the upload of", key))
    }

    fn drop_upload(&self, upload: &str) -> io::Result<()> {
        match &self.writer {
            Some(writer) => {
                writer.bodies.close(upload);
                let name = dir_name(upload);
                // The key goes first: without it the rest is no upload any more, even after a crash.
                if let Some(dir) = open_dir(&writer.tmp, name.as_bytes())? {
                    let _ = rustix::fs::unlinkat(&dir, KEY_FILE, AtFlags::empty());
                    crash::point("upload key removed");
                }
                remove_tree(&writer.tmp, name.as_bytes())
            }
            None => Ok(()),
        }
    }

    /// The directory of an upload of this key.
    fn upload_dir(&self, key: &[u8], upload: &str) -> Result<OwnedFd> {
        let fail = fail_key("find the upload of", key);
        let gone = || gone(key, upload);
        if !is_id(upload) {
            return Err(gone());
        }
        let tmp = &self.writer()?.tmp;
        let dir = open_dir(tmp, dir_name(upload).as_bytes()).map_err(&fail)?.ok_or_else(gone)?;
        match read_file(&dir, KEY_FILE, KEY_BYTES_MAX).map_err(&fail)? {
            Some(begun) if begun == key => Ok(dir),
            _ => Err(gone()),
        }
    }
}

fn gone(key: &[u8], upload: &str) -> LakeError {
    LakeError::not_found(format!("no upload {upload} of `{}`; begin it again", String::from_utf8_lossy(key)))
}

/// A part, as the name of its file states it.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    crc64: u64,
    size: u64,
    /// The body that has its bytes, and where they begin there.
    place: Option<(BodyId, u64)>,
}

impl Part {
    fn file_name(&self) -> String {
        let own = format!("{:05}-{}", self.number, self.tag().etag);
        match self.place {
            Some(((lake, count), offset)) => format!("{own}@{lake:016x}-{count:x}-{offset:x}"),
            None => own,
        }
    }

    fn tag(&self) -> PartTag {
        PartTag { number: self.number, etag: format!("{:016x}-{:x}", self.crc64, self.size), size: self.size }
    }

    fn of(tag: &PartTag) -> Option<Part> {
        let part = Part::parse(&format!("{:05}-{}", tag.number, tag.etag));
        part.filter(|part| part.size == tag.size && part.place.is_none())
    }

    fn parse(name: &str) -> Option<Part> {
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (own, place) = match name.split_once('@') {
            Some((own, place)) => (own, Some(place)),
            None => (name, None),
        };
        let (number, rest) = own.split_once('-')?;
        let (crc64, size) = rest.split_once('-')?;
        let place = match place {
            Some(place) => {
                let mut words = place.split('-').map(hex);
                Some(((words.next()??, words.next()??), words.next()??))
            }
            None => None,
        };
        let part = Part { number: number.parse().ok()?, crc64: hex(crc64)?, size: hex(size)?, place };
        (part.file_name() == name).then_some(part)
    }
}

fn dir_name(upload: &str) -> String {
    format!("{UPLOAD_PREFIX}{upload}")
}

/// The id comes from outside and becomes a name.
fn is_id(upload: &str) -> bool {
    upload.len() == 32 && upload.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn make_file(dir: &OwnedFd, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?))
}

fn write_file(dir: &OwnedFd, name: &[u8], bytes: &[u8]) -> io::Result<()> {
    let mut file = make_file(dir, name)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read_file(dir: &OwnedFd, name: &[u8], bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_file(dir, &[name.to_vec()])? else { return Ok(None) };
    let mut bytes = Vec::new();
    File::from(file).take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// A part that was sent.
struct Sent {
    part: Part,
    mtime_ns: i64,
    /// Its body is gone: it became an object, and what is left of the upload is about to go.
    is_over: bool,
}

fn read_parts(dir: &OwnedFd) -> io::Result<Vec<Sent>> {
    let (mut parts, mut bodies) = (Vec::new(), HashSet::new());
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with(BODY_PREFIX) {
            bodies.insert(name.to_owned());
        }
        let Some(part) = Part::parse(name) else { continue };
        let stat = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
        parts.push(Sent { part, mtime_ns, is_over: false });
    }
    for sent in &mut parts {
        sent.is_over = sent.part.place.is_some_and(|(body, _)| !bodies.contains(&body_name(body)));
    }
    Ok(parts)
}
