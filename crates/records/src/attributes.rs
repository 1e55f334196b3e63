//! Properties of a file as lake metadata, and back.
//!
//! What S3 knows (content type, headers, user metadata) travels as itself. The rest goes into user metadata with the
//! prefix `stoker-`, so that a volume can be rebuilt from its lake. Whoever reads it back looks at what [`Signer`] left of it: the
//! rest may be anybody's word.

use stoker_format::VersionId;
use stoker_schema::rows::FileRow;
use stoker_store::{Attributes, is_meta_reserved};

use crate::properties::Properties;
use crate::signature::Signer;

const VERSION: &str = "stoker-version";
const ETAG: &str = "stoker-etag";
// An object says which file it is, so that salvage needs no other list. (D48)
const NAME: &str = "stoker-name";
const MODE: &str = "stoker-mode";
const OWNER: &str = "stoker-owner";
const MTIME: &str = "stoker-mtime-ns";
const TAGS: &str = "stoker-tags";
const XATTRS: &str = "stoker-xattrs";
/// Covers the others.
pub(crate) const MAC: &str = "stoker-mac";

/// An MD5 with a count of parts.
const ETAG_LEN_MAX: usize = 32 + "-10000".len();

/// Metadata that the object of a version gets under a lake key. `seq` is a commit that was seen before: of two objects of one name
/// the one with the higher number is the later one.
pub fn to_lake(
    signer: &Signer,
    key: &[u8],
    file: &FileRow,
    properties: &Properties,
    seq: u64,
) -> stoker_lake::Attributes {
    let name = file.name_record.map_or(file.version(), VersionId);
    let mut attributes = describe(file.version(), file.etag.clone(), (name, seq), &properties.attributes);
    signer.sign(key, file.size, &mut attributes);
    attributes
}

/// The same of a version that is not there yet: as long as it can get.
pub fn to_lake_later(signer: &Signer, attributes: &Attributes) -> stoker_lake::Attributes {
    let name = (VersionId::ZERO, u64::MAX);
    let mut attributes = describe(VersionId::ZERO, "0".repeat(ETAG_LEN_MAX), name, attributes);
    signer.sign(b"", 0, &mut attributes);
    attributes
}

/// Metadata of a copy of an object under another lake key, where it is known by its version alone.
pub fn to_lake_copy(
    signer: &Signer,
    key: &[u8],
    version: VersionId,
    object: &stoker_lake::ObjectInfo,
) -> stoker_lake::Attributes {
    let mut attributes = object.attributes.clone().unwrap_or_default();
    attributes.meta.retain(|(name, _)| name != VERSION);
    attributes.meta.push((VERSION.into(), version.to_string()));
    signer.sign(key, object.size, &mut attributes);
    attributes
}

/// Metadata of an object, with its name: the id of its record and a commit. Not signed.
pub fn describe(
    version: VersionId,
    etag: String,
    (name, seq): (VersionId, u64),
    attributes: &Attributes,
) -> stoker_lake::Attributes {
    let mut meta = attributes.meta.clone();
    meta.push((VERSION.into(), version.to_string()));
    meta.push((ETAG.into(), etag));
    meta.push((NAME.into(), format!("{name}-{seq}")));
    if let Some(mode) = attributes.mode {
        meta.push((MODE.into(), format!("{mode:o}")));
    }
    if let Some((uid, gid)) = attributes.owner {
        meta.push((OWNER.into(), format!("{uid}:{gid}")));
    }
    if let Some(mtime_ns) = attributes.mtime_ns {
        meta.push((MTIME.into(), mtime_ns.to_string()));
    }
    if !attributes.tags.is_empty() {
        let tag =
            |(name, value): &(String, String)| format!("{}={}", hex(name.as_bytes()), hex(value.as_bytes()));
        meta.push((TAGS.into(), attributes.tags.iter().map(tag).collect::<Vec<_>>().join("&")));
    }
    if !attributes.xattrs.is_empty() {
        let pair = |(name, value): &(Vec<u8>, Vec<u8>)| format!("{}={}", hex(name), hex(value));
        meta.push((XATTRS.into(), attributes.xattrs.iter().map(pair).collect::<Vec<_>>().join("&")));
    }
    meta.sort();
    let mut headers = attributes.headers.clone();
    headers.sort();
    stoker_lake::Attributes { content_type: attributes.content_type.clone(), headers, meta }
}

/// The version that an object says it is.
pub fn version(kept: &stoker_lake::Attributes) -> Option<&str> {
    find(kept, VERSION)
}

/// The name that an object was written under, by the id of its record, and a commit that was seen before.
pub fn name(kept: &stoker_lake::Attributes) -> Option<(VersionId, u64)> {
    let (name, seq) = find(kept, NAME)?.rsplit_once('-')?;
    Some((name.parse().ok()?, seq.parse().ok()?))
}

/// Whether two descriptions differ at most in when they were written.
pub fn is_same(kept: &stoker_lake::Attributes, wanted: &stoker_lake::Attributes) -> bool {
    let lasting = |attributes: &stoker_lake::Attributes| -> Vec<(String, String)> {
        attributes.meta.iter().filter(|(name, _)| name != NAME && name != MAC).cloned().collect()
    };
    // A lake gives a type to an object that was sent without one.
    let same_type = wanted.content_type.is_none() || kept.content_type == wanted.content_type;
    same_type && kept.headers == wanted.headers && lasting(kept) == lasting(wanted)
}

/// The S3 ETag that an object of ours had.
pub fn etag(kept: &stoker_lake::Attributes) -> Option<String> {
    find(kept, ETAG).map(str::to_owned)
}

fn find<'k>(kept: &'k stoker_lake::Attributes, name: &str) -> Option<&'k str> {
    let mut found = kept.meta.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
    found.next().filter(|_| found.next().is_none())
}

/// Properties of an object. What cannot be read is left out.
pub fn from_lake(kept: &stoker_lake::Attributes) -> Properties {
    let own = |(name, _): &&(String, String)| !is_meta_reserved(name);
    let owner = find(kept, OWNER).and_then(|text| text.split_once(':'));
    let bytes_pairs = |name| find(kept, name).map(pairs).unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    Properties {
        attributes: Attributes {
            content_type: kept.content_type.clone(),
            headers: kept.headers.clone(),
            meta: kept.meta.iter().filter(own).cloned().collect(),
            tags: bytes_pairs(TAGS).into_iter().filter_map(|(a, b)| Some((text(a)?, text(b)?))).collect(),
            mode: find(kept, MODE).and_then(|mode| u32::from_str_radix(mode, 8).ok()),
            owner: owner.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?))),
            mtime_ns: find(kept, MTIME).and_then(|mtime| mtime.parse().ok()),
            xattrs: bytes_pairs(XATTRS),
            lock: None,
        },
        ..Properties::default()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks_exact(2).map(pair).collect())?
}

fn pairs(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((unhex(name)?, unhex(value)?))
    };
    text.split('&').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_survive_the_lake() {
        let attributes = Attributes {
            content_type: Some("text/plain".into()),
            headers: vec![("cache-control".into(), "no-cache".into())],
            meta: vec![("colour".into(), "red".into())],
            tags: vec![("a b".into(), "ü=&".into())],
            mode: Some(0o100644),
            owner: Some((1000, 100)),
            mtime_ns: Some(-5),
            xattrs: vec![(b"user.x".to_vec(), vec![0, 255])],
            lock: None,
        };
        let properties = Properties { attributes, ..Properties::default() };
        let (file, signer) = (crate::testing::file_row(), Signer::new(&[[1; 32]]));
        let to_lake = |seq| to_lake(&signer, b"a", &file, &properties, seq);
        let kept = to_lake(77);
        assert_eq!(name(&kept), Some((file.version(), 77)));
        assert!(is_same(&kept, &to_lake(78)));
        assert_eq!(from_lake(&kept).attributes, properties.attributes);
        assert_eq!(version(&kept), Some(file.version().to_string().as_str()));
        assert_eq!(etag(&kept), Some(file.etag.clone()));
    }

    #[test]
    fn a_value_that_is_there_twice_is_none() {
        let twice = [("stoker-version", "1"), ("stoker-version", "2"), ("stoker-etag", "e")];
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let kept =
            stoker_lake::Attributes { meta: twice.map(pair).to_vec(), ..stoker_lake::Attributes::default() };
        assert_eq!((version(&kept), etag(&kept)), (None, Some("e".to_owned())));
    }
}
