//! Uploads in parts.
//!
//! An upload is a directory `upload-ID` in `.stoker-tmp`: a file `key`, a file `record` with the attributes, and a
//! file for each part, whose name states number, checksum and size. It lives until it is completed or aborted,
//! whatever happens to the process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::lock::{UPLOAD_PREFIX, random_u64, remove_tree};
use super::record::{RECORD_BYTES_MAX, Record};
use super::tree::{open_dir, open_file};
use super::write::write_body;
use super::{Inner, crash, fail_key};
use crate::error::{LakeError, Result};
use crate::key::KEY_BYTES_MAX;
use crate::types::{Attributes, PartTag, PutOptions};

/// Most parts of an upload, as in S3.
pub(super) const PARTS_MAX: u32 = 10_000;
const KEY_FILE: &[u8] = b"key";
const RECORD_FILE: &[u8] = b"record";

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
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        let crc64 = write_body(&mut temp.file, body).map_err(&fail)?;
        // The clock of the file system is too coarse to tell which of two parts came later.
        temp.file.set_modified(self.modified_now()).map_err(&fail)?;
        temp.file.sync_all().map_err(&fail)?;
        crash::point("part synced");
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let part = Part { number, crc64, size };
        temp.rename_to(&dir, part.file_name().as_bytes()).map_err(&fail)?;
        crash::point("part renamed");
        rustix::fs::fsync(&dir).map_err(|error| fail(error.into()))?;
        Ok(part.tag())
    }

    pub(super) fn upload_parts(&self, key: &[u8], upload: &str) -> Result<Vec<PartTag>> {
        let dir = self.upload_dir(key, upload)?;
        let mut parts = read_parts(&dir).map_err(fail_key("list the parts of", key))?;
        // A part that was written twice may be here twice; the later one counts.
        parts.sort_by_key(|(part, mtime_ns)| (part.number, std::cmp::Reverse(*mtime_ns)));
        parts.dedup_by_key(|(part, _)| part.number);
        Ok(parts.into_iter().map(|(part, _)| part.tag()).collect())
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
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        let mut crc64 = 0;
        for tag in parts {
            let missing = || {
                LakeError::invalid(format!(
                    "part {} is not in the upload {upload}; send it again",
                    tag.number
                ))
            };
            let part = Part::of(tag).ok_or_else(missing)?;
            let name = part.file_name().into_bytes();
            let file = File::from(open_file(&dir, &[name]).map_err(&fail)?.ok_or_else(missing)?);
            // Inside the kernel, by reference where the file system can.
            let copied = io::copy(&mut &file, &mut temp.file).map_err(&fail)?;
            if copied != part.size {
                return Err(LakeError::corrupt(format!(
                    "part {} has {copied} bytes instead of {}; send it again",
                    part.number, part.size
                )));
            }
            crc64 = stoker_format::crc64_combine(crc64, part.crc64, part.size);
        }
        crash::point("parts joined");
        let etag = self.finish(key, temp, crc64, &record.attributes, options)?;
        crash::point("upload placed");
        self.drop_upload(upload).map_err(&fail)?;
        Ok(etag)
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
        let gone = || {
            LakeError::not_found(format!(
                "no upload {upload} of `{}`; begin it again",
                String::from_utf8_lossy(key)
            ))
        };
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

/// A part, as the name of its file states it.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    crc64: u64,
    size: u64,
}

impl Part {
    fn file_name(&self) -> String {
        format!("{:05}-{:016x}-{:x}", self.number, self.crc64, self.size)
    }

    fn tag(&self) -> PartTag {
        PartTag { number: self.number, etag: format!("{:016x}-{:x}", self.crc64, self.size), size: self.size }
    }

    fn of(tag: &PartTag) -> Option<Part> {
        Part::parse(&format!("{:05}-{}", tag.number, tag.etag)).filter(|part| part.size == tag.size)
    }

    fn parse(name: &str) -> Option<Part> {
        let (number, rest) = name.split_once('-')?;
        let (crc64, size) = rest.split_once('-')?;
        let part = Part {
            number: number.parse().ok()?,
            crc64: u64::from_str_radix(crc64, 16).ok()?,
            size: u64::from_str_radix(size, 16).ok()?,
        };
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

fn write_file(dir: &OwnedFd, name: &[u8], bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)?;
    file.sync_all()
}

fn read_file(dir: &OwnedFd, name: &[u8], bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_file(dir, &[name.to_vec()])? else { return Ok(None) };
    let mut bytes = Vec::new();
    File::from(file).take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn read_parts(dir: &OwnedFd) -> io::Result<Vec<(Part, i64)>> {
    let mut parts = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Some(part) = entry.file_name().to_str().ok().and_then(Part::parse) else { continue };
        let stat = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
        parts.push((part, mtime_ns));
    }
    Ok(parts)
}
