//! Writing, copying and deleting objects.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::lock::{TempFile, random_u64};
use super::name::{Place, names};
use super::read::{Object, check_match};
use super::record::{Identity, Record};
use super::tree::{descend, descend_making, file_segment, find};
use super::{Inner, crash, fail_key, now_s};
use crate::error::{LakeError, Result};
use crate::types::{Attributes, Condition, PutOptions};

/// How often a writer tries again because others make and remove the same directories.
const PLACE_TRIES_MAX: usize = 100;
const COPY_BYTES: usize = 1 << 20;

impl Inner {
    pub(super) fn put(&self, key: &[u8], body: &[Bytes], options: &PutOptions) -> Result<String> {
        let fail = fail_key("write", key);
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        crash::point("temporary file made");
        let crc64 = write_body(&mut temp.file, body).map_err(&fail)?;
        self.finish(key, &mut temp, crc64, &options.attributes, options)
    }

    pub(super) fn copy(
        &self,
        from: &[u8],
        if_match: &str,
        to: &[u8],
        options: &PutOptions,
    ) -> Result<String> {
        let fail = fail_key("copy", from);
        let source = self.open_matching(from, Some(if_match))?;
        let mut temp = self.writer()?.session.file().map_err(&fail)?;
        let identity = source.found.identity;
        let file = File::from(source.found.file);
        let crc64 = match &source.record {
            Some(record) => {
                // Inside the kernel, by reference where the file system can.
                let copied = io::copy(&mut &file, &mut temp.file).map_err(&fail)?;
                if copied != identity.size {
                    return Err(LakeError::corrupt(format!("copied {copied} of {} bytes", identity.size)));
                }
                record.crc64
            }
            None => copy_summing(&file, &mut temp.file).map_err(&fail)?,
        };
        self.check_unchanged(from, &file, &identity)?;
        crash::point("copied");
        self.finish(to, &mut temp, crc64, &options.attributes, options)
    }

    pub(super) fn delete(&self, key: &[u8], if_match: Option<&str>) -> Result<()> {
        let fail = fail_key("delete", key);
        let writer = self.writer()?;
        let Some(dir) = self.tree.parent(key).map_err(&fail)? else { return Ok(()) };
        let lock = writer.locks.key(key).map_err(&fail)?;
        let segment = file_segment(key);
        let Some(found) = find(&dir, segment).map_err(&fail)? else { return Ok(()) };
        let record = self.records.read(&found.file, &found.identity).map_err(&fail)?;
        let object = Object { found, record };
        check_match(key, &object, if_match)?;
        // The file beside first: alone it would come to light again after a crash.
        for place in [Place::Beside, Place::Own] {
            let path = names(segment, place);
            let Some(dir) = descend(&dir, &path).map_err(&fail)? else { continue };
            let name = path.last().expect("a segment has a name");
            match rustix::fs::unlinkat(&dir, name.as_slice(), AtFlags::empty()) {
                Ok(()) => {
                    crash::point("unlinked");
                    rustix::fs::fsync(&dir).map_err(|error| fail(error.into()))?;
                }
                // A directory of the same name is of other keys.
                Err(Errno::NOENT | Errno::ISDIR | Errno::NOTDIR) => {}
                Err(error) => return Err(fail(error.into())),
            }
        }
        drop(lock);
        self.forget(&object.found.identity);
        crash::point("deleted");
        self.tree.prune(key).map_err(&fail)
    }

    /// Gives a written file its record and its place; answers its etag.
    pub(super) fn finish(
        &self,
        key: &[u8],
        temp: &mut TempFile,
        crc64: u64,
        attributes: &Attributes,
        options: &PutOptions,
    ) -> Result<String> {
        let fail = fail_key("write", key);
        if options.crc64.is_some_and(|expected| expected != crc64) {
            return Err(LakeError::corrupt(format!(
                "the bytes of `{}` have the checksum {crc64:016x}, not the expected one; send them again",
                String::from_utf8_lossy(key)
            )));
        }
        let mode = self.modes.object(attributes);
        rustix::fs::fchmod(&temp.file, mode).map_err(|error| fail(error.into()))?;
        temp.file.set_modified(self.modified_now()).map_err(&fail)?;
        // The file system may round the time.
        let identity = Identity::of(&rustix::fs::fstat(&temp.file).map_err(|error| fail(error.into()))?);
        let record = Record {
            size: identity.size,
            mtime_ns: identity.mtime_ns,
            crc64,
            stamp: random_u64().map_err(&fail)?,
            attributes: attributes.clone(),
        };
        self.records.write(&temp.file, &identity, &record).map_err(&fail)?;
        crash::point("record written");
        if let Err(error) = temp.file.sync_all() {
            self.forget(&identity);
            return Err(fail(error));
        }
        crash::point("file synced");
        match self.place(key, temp, &options.condition) {
            Ok(()) => Ok(record.etag()),
            // The file has its name, perhaps not durably: its record stays with it.
            Err(error) if temp.is_placed() => Err(error),
            Err(error) => {
                self.forget(&identity);
                self.tree.prune(key).map_err(&fail)?;
                Err(error)
            }
        }
    }

    /// Puts a finished file in its place if the condition holds.
    fn place(&self, key: &[u8], temp: &mut TempFile, condition: &Condition) -> Result<()> {
        let fail = fail_key("write", key);
        let writer = self.writer()?;
        let now_s = now_s();
        for _ in 0..PLACE_TRIES_MAX {
            let dir = match self.tree.make_parent(key, &writer.locks, now_s) {
                Ok(dir) => dir,
                Err(error) if is_race(&error) => continue,
                Err(error) => return Err(fail(error)),
            };
            let _lock = writer.locks.key(key).map_err(&fail)?;
            let segment = file_segment(key);
            let old = match find(&dir, segment).map_err(&fail)? {
                Some(found) => {
                    let record = self.records.read(&found.file, &found.identity).map_err(&fail)?;
                    Some(Object { found, record })
                }
                None => None,
            };
            check_condition(key, condition, old.as_ref())?;
            let place = match &old {
                Some(object) => object.found.place,
                None if is_dir(&dir, &names(segment, Place::Own)).map_err(&fail)? => Place::Beside,
                None => Place::Own,
            };
            let path = names(segment, place);
            let renamed = descend_making(&dir, &path, now_s, self.modes).and_then(|dir| {
                temp.rename_to(&dir, path.last().expect("a segment has a name"))?;
                Ok(dir)
            });
            match renamed {
                Ok(dir) => {
                    crash::point("renamed");
                    rustix::fs::fsync(&dir).map_err(|error| fail(error.into()))?;
                    if let Some(old) = old {
                        self.forget(&old.found.identity);
                    }
                    return Ok(());
                }
                Err(error) if is_race(&error) => continue,
                Err(error) => return Err(fail(error)),
            }
        }
        Err(LakeError::busy(format!(
            "others make and remove the directories of `{}` all the time",
            String::from_utf8_lossy(key)
        )))
    }

    /// Removes the sidecar of a file that is gone. One that stays is only litter.
    fn forget(&self, identity: &Identity) {
        if let Err(error) = self.records.forget(identity) {
            tracing::debug!(%error, "a metadata file was not removed");
        }
    }
}

/// Writes pieces to a file and gives the CRC-64/NVME of all.
pub(super) fn write_body(file: &mut File, body: &[Bytes]) -> io::Result<u64> {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for piece in body {
        file.write_all(piece)?;
        digest.update(piece);
    }
    Ok(digest.finalize())
}

fn copy_summing(mut from: &File, to: &mut File) -> io::Result<u64> {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut piece = vec![0; COPY_BYTES];
    from.seek(SeekFrom::Start(0))?;
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            return Ok(digest.finalize());
        }
        to.write_all(&piece[..len])?;
        digest.update(&piece[..len]);
    }
}

fn check_condition(key: &[u8], condition: &Condition, old: Option<&Object>) -> Result<()> {
    let key = String::from_utf8_lossy(key);
    match (condition, old) {
        (Condition::None, _) | (Condition::Absent, None) => Ok(()),
        (Condition::Absent, Some(_)) => Err(LakeError::changed(format!("`{key}` exists already"))),
        (Condition::Matches(_), None) => Err(LakeError::changed(format!("`{key}` is gone"))),
        (Condition::Matches(etag), Some(object)) if *etag == object.etag() => Ok(()),
        (Condition::Matches(etag), Some(object)) => {
            Err(LakeError::changed(format!("`{key}` has the etag {}, not {etag}", object.etag())))
        }
    }
}

/// Another writer made or removed a directory in between.
fn is_race(error: &io::Error) -> bool {
    let race = [Errno::NOENT, Errno::ISDIR, Errno::NOTDIR, Errno::NOTEMPTY, Errno::EXIST];
    Errno::from_io_error(error).is_some_and(|errno| race.contains(&errno))
}

fn is_dir(dir: &std::os::fd::OwnedFd, path: &[Vec<u8>]) -> io::Result<bool> {
    let Some(dir) = descend(dir, path)? else { return Ok(false) };
    Ok(super::tree::open_dir(&dir, path.last().expect("a segment has a name"))?.is_some())
}
