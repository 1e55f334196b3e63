//! Looking at objects and reading them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bytes::Bytes;

use super::record::{Identity, Record};
use super::tree::{Found, file_segment, find};
use super::{Inner, fail_key};
use crate::error::{LakeError, Result};
use crate::types::{Attributes, ObjectInfo};

/// An open object and what is known of it.
pub(super) struct Object {
    pub found: Found,
    pub record: Option<Record>,
}

impl Object {
    pub fn etag(&self) -> String {
        etag(&self.found.identity, self.record.as_ref())
    }

    pub fn size(&self) -> u64 {
        self.found.identity.size
    }
}

/// The etag of a file with this identity and this valid record.
pub(super) fn etag(identity: &Identity, record: Option<&Record>) -> String {
    record.map_or_else(|| identity.etag(), Record::etag)
}

impl Inner {
    pub(super) fn head(&self, key: &[u8]) -> Result<Option<ObjectInfo>> {
        let Some(object) = self.open_object(key)? else { return Ok(None) };
        Ok(Some(ObjectInfo {
            key: key.to_vec(),
            size: object.size(),
            etag: object.etag(),
            modified_ms: object.found.identity.modified_ms(),
            crc64: object.record.as_ref().map(|record| record.crc64),
            attributes: Some(match object.record {
                Some(record) => record.attributes,
                None => Attributes::default(),
            }),
        }))
    }

    pub(super) fn get(&self, key: &[u8], range: Range<u64>, if_match: Option<&str>) -> Result<Bytes> {
        let object = self.open_matching(key, if_match)?;
        if range.start > range.end || range.end > object.size() {
            return Err(LakeError::invalid(format!(
                "bytes {}..{} of an object of {} bytes",
                range.start,
                range.end,
                object.size()
            )));
        }
        let identity = object.found.identity;
        let file = File::from(object.found.file);
        let len = usize::try_from(range.end - range.start)
            .map_err(|_| LakeError::invalid("a range larger than the memory"))?;
        let mut bytes = vec![0; len];
        let read = file.read_exact_at(&mut bytes, range.start);
        self.check_unchanged(key, &file, &identity)?;
        read.map_err(fail_key("read", key))?;
        if let Some(record) = &object.record
            && range == (0..identity.size)
            && stoker_format::crc64(&bytes) != record.crc64
        {
            return Err(LakeError::corrupt(format!(
                "the bytes of `{}` differ from its checksum; check the file system and restore the file",
                String::from_utf8_lossy(key)
            )));
        }
        Ok(Bytes::from(bytes))
    }

    /// Opens an object that must be there, with this etag.
    pub(super) fn open_matching(&self, key: &[u8], if_match: Option<&str>) -> Result<Object> {
        let Some(object) = self.open_object(key)? else {
            return Err(LakeError::not_found(format!("no object `{}`", String::from_utf8_lossy(key))));
        };
        check_match(key, &object, if_match)?;
        Ok(object)
    }

    /// Somebody who writes into the file itself must not mix old and new bytes into one answer.
    pub(super) fn check_unchanged(&self, key: &[u8], file: &File, before: &Identity) -> Result<()> {
        let stat = rustix::fs::fstat(file).map_err(|error| fail_key("read", key)(error.into()))?;
        if Identity::of(&stat) != *before {
            return Err(LakeError::changed(format!(
                "`{}` was changed by another program while it was read",
                String::from_utf8_lossy(key)
            )));
        }
        Ok(())
    }

    pub(super) fn open_object(&self, key: &[u8]) -> Result<Option<Object>> {
        let fail = fail_key("open", key);
        let Some(dir) = self.tree.parent(key).map_err(&fail)? else { return Ok(None) };
        let Some(found) = find(&dir, file_segment(key)).map_err(&fail)? else { return Ok(None) };
        let record = self.records.read(&found.file, &found.identity).map_err(&fail)?;
        Ok(Some(Object { found, record }))
    }
}

/// The object has this etag.
pub(super) fn check_match(key: &[u8], object: &Object, if_match: Option<&str>) -> Result<()> {
    match if_match {
        Some(expected) if expected != object.etag() => Err(LakeError::changed(format!(
            "`{}` has the etag {}, not {expected}",
            String::from_utf8_lossy(key),
            object.etag()
        ))),
        _ => Ok(()),
    }
}
