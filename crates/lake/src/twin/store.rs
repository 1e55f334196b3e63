//! The objects of the simulated lake and what calls do to them. No faults in here.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::error::{LakeError, Result};
use crate::types::{Attributes, Capabilities, Condition, ListPage, ObjectInfo, PartTag, PutOptions};

/// One object of the simulated lake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinObject {
    /// The bytes.
    pub body: Bytes,
    /// The etag.
    pub etag: String,
    /// Its properties.
    pub attributes: Attributes,
    /// CRC-64/NVME of the bytes.
    pub crc64: u64,
    /// When it was written, by the lake's counter.
    pub modified_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Upload {
    pub key: Vec<u8>,
    pub attributes: Attributes,
    pub parts: BTreeMap<u32, (String, Bytes)>,
}

#[derive(Debug)]
pub(super) struct Store {
    pub objects: BTreeMap<Vec<u8>, TwinObject>,
    pub uploads: BTreeMap<String, Upload>,
    pub capabilities: Capabilities,
    /// Every write has another number: it makes etags, upload ids and times.
    writes: u64,
}

impl Store {
    pub fn new(capabilities: Capabilities) -> Store {
        Store { objects: BTreeMap::new(), uploads: BTreeMap::new(), capabilities, writes: 0 }
    }

    pub fn head(&self, key: &[u8]) -> Option<ObjectInfo> {
        let object = self.objects.get(key)?;
        Some(info(key, object, Some(object.attributes.clone())))
    }

    pub fn get(&self, key: &[u8], range: Range<u64>, if_match: Option<&str>) -> Result<Bytes> {
        let object = self.matching(key, if_match)?;
        let size = object.body.len() as u64;
        if range.start > range.end || range.end > size {
            return Err(LakeError::invalid(format!("bytes {range:?} of an object of {size} bytes")));
        }
        Ok(object.body.slice(range.start as usize..range.end as usize))
    }

    pub fn put(&mut self, key: &[u8], body: &[Bytes], options: &PutOptions) -> Result<String> {
        let mut joined = BytesMut::new();
        for piece in body {
            joined.extend_from_slice(piece);
        }
        if joined.len() as u64 > self.capabilities.put_bytes_max {
            return Err(LakeError::invalid("larger than one put may be"));
        }
        self.write(key, joined.freeze(), options.attributes.clone(), options)
    }

    pub fn upload_begin(&mut self, key: &[u8], attributes: Attributes) -> String {
        self.writes += 1;
        let id = format!("upload{:x}", self.writes);
        self.uploads.insert(id.clone(), Upload { key: key.to_vec(), attributes, parts: BTreeMap::new() });
        id
    }

    pub fn upload_part(&mut self, key: &[u8], id: &str, number: u32, body: &[Bytes]) -> Result<PartTag> {
        if number == 0 || number > self.capabilities.parts_max {
            return Err(LakeError::invalid(format!("part {number}")));
        }
        let bytes: Bytes = body.concat().into();
        // Like in S3 the same bytes have the same tag: a part that comes twice is no other part.
        let etag = format!("{:016x}", stoker_format::crc64(&bytes));
        if bytes.len() as u64 > self.capabilities.part_bytes_max {
            return Err(LakeError::invalid("larger than a part may be"));
        }
        let size = bytes.len() as u64;
        self.upload_of(key, id)?.parts.insert(number, (etag.clone(), bytes));
        Ok(PartTag { number, etag, size })
    }

    pub fn upload_parts(&mut self, key: &[u8], id: &str) -> Result<Vec<PartTag>> {
        let parts = self.upload_of(key, id)?.parts.iter();
        Ok(parts
            .map(|(&number, (etag, bytes))| PartTag { number, etag: etag.clone(), size: bytes.len() as u64 })
            .collect())
    }

    pub fn upload_complete(
        &mut self,
        key: &[u8],
        id: &str,
        parts: &[PartTag],
        options: &PutOptions,
    ) -> Result<String> {
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(LakeError::invalid("an upload is completed with its parts in ascending order"));
        }
        let part_bytes_min = self.capabilities.part_bytes_min;
        let upload = self.upload_of(key, id)?;
        let mut body = BytesMut::new();
        for (index, tag) in parts.iter().enumerate() {
            match upload.parts.get(&tag.number) {
                Some((etag, bytes)) if *etag == tag.etag => {
                    if index + 1 < parts.len() && (bytes.len() as u64) < part_bytes_min {
                        return Err(LakeError::invalid(format!("part {} is too small", tag.number)));
                    }
                    body.extend_from_slice(bytes);
                }
                _ => {
                    return Err(LakeError::invalid(format!(
                        "part {} is not there; send it again",
                        tag.number
                    )));
                }
            }
        }
        let attributes = upload.attributes.clone();
        let etag = self.write(key, body.freeze(), attributes, options)?;
        self.uploads.remove(id);
        Ok(etag)
    }

    pub fn upload_abort(&mut self, id: &str) {
        self.uploads.remove(id);
    }

    pub fn copy(&mut self, from: &[u8], if_match: &str, to: &[u8], options: &PutOptions) -> Result<String> {
        let body = self.matching(from, Some(if_match))?.body.clone();
        self.write(to, body, options.attributes.clone(), options)
    }

    pub fn delete(&mut self, key: &[u8], if_match: Option<&str>) -> Result<()> {
        if self.objects.contains_key(key) {
            self.matching(key, if_match)?;
            self.objects.remove(key);
        }
        Ok(())
    }

    pub fn list(&self, prefix: &[u8], after: Option<&[u8]>, delimiter: Option<u8>, limit: usize) -> ListPage {
        let mut page = ListPage::default();
        let mut last: Option<Vec<u8>> = None;
        for (key, object) in self.objects.range(prefix.to_vec()..) {
            let Some(rest) = key.strip_prefix(prefix) else { break };
            let at = delimiter.and_then(|delimiter| rest.iter().position(|&byte| byte == delimiter));
            let item = at.map_or(key.as_slice(), |at| &key[..prefix.len() + at + 1]);
            if after.is_some_and(|after| item <= after) || last.as_deref() == Some(item) {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == limit {
                page.next = last;
                break;
            }
            last = Some(item.to_vec());
            match at {
                Some(_) => page.prefixes.push(item.to_vec()),
                None => page.objects.push(info(key, object, None)),
            }
        }
        page
    }

    fn write(
        &mut self,
        key: &[u8],
        body: Bytes,
        attributes: Attributes,
        options: &PutOptions,
    ) -> Result<String> {
        let old = self.objects.get(key);
        let holds = match &options.condition {
            Condition::None => true,
            Condition::Absent => old.is_none(),
            Condition::Matches(etag) => old.is_some_and(|old| old.etag == *etag),
        };
        if !holds {
            return Err(LakeError::changed(format!(
                "the condition of `{}` does not hold",
                key.escape_ascii()
            )));
        }
        let crc64 = stoker_format::crc64(&body);
        if options.crc64.is_some_and(|expected| expected != crc64) {
            return Err(LakeError::corrupt("the bytes differ from their checksum; send them again"));
        }
        self.writes += 1;
        let etag = format!("twin{:x}", self.writes);
        let object = TwinObject { body, etag: etag.clone(), attributes, crc64, modified_ms: self.writes };
        self.objects.insert(key.to_vec(), object);
        Ok(etag)
    }

    fn matching(&self, key: &[u8], if_match: Option<&str>) -> Result<&TwinObject> {
        let name = key.escape_ascii();
        let object =
            self.objects.get(key).ok_or_else(|| LakeError::not_found(format!("no object `{name}`")))?;
        match if_match {
            Some(etag) if etag != object.etag => {
                Err(LakeError::changed(format!("`{name}` has the etag {}, not {etag}", object.etag)))
            }
            _ => Ok(object),
        }
    }

    fn upload_of(&mut self, key: &[u8], id: &str) -> Result<&mut Upload> {
        match self.uploads.get_mut(id) {
            Some(upload) if upload.key == key => Ok(upload),
            _ => Err(LakeError::not_found(format!("no upload {id}; begin it again"))),
        }
    }
}

fn info(key: &[u8], object: &TwinObject, attributes: Option<Attributes>) -> ObjectInfo {
    ObjectInfo {
        key: key.to_vec(),
        size: object.body.len() as u64,
        etag: object.etag.clone(),
        modified_ms: object.modified_ms,
        attributes,
        crc64: Some(object.crc64),
    }
}
