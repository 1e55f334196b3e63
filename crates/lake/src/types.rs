//! The plain types that travel through the [`Lake`](crate::Lake) trait.

use std::future::Future;
use std::pin::Pin;

/// A boxed future, so that the trait can be an object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Properties that travel with an object.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The media type.
    pub content_type: Option<String>,
    /// Any of cache-control, content-disposition, content-encoding, content-language and expires; names in
    /// lower case, sorted by name.
    pub headers: Vec<(String, String)>,
    /// User metadata without prefix; names in lower case, sorted by name.
    pub meta: Vec<(String, String)>,
}

/// What a lake says about one object.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key, relative to the lake's root.
    pub key: Vec<u8>,
    /// Length of the object.
    pub size: u64,
    /// Changes whenever the object changes. Opaque; without quotes.
    pub etag: String,
    /// Time of the last change, milliseconds since 1970.
    pub modified_ms: u64,
    /// Properties; `None` in listings.
    pub attributes: Option<Attributes>,
    /// CRC-64/NVME of the whole object, if the lake knows it.
    pub crc64: Option<u64>,
}

/// What must be true of a key for a write to happen; otherwise the write fails with `Changed`.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// There is no object under the key.
    Absent,
    /// The object under the key has this etag.
    Matches(String),
}

/// How an object is written.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// Properties of the new object. Ignored by `upload_complete`: an upload has those of its begin.
    pub attributes: Attributes,
    /// What must be true of the key.
    pub condition: Condition,
    /// CRC-64/NVME of the whole object. Given, it is checked by the lake that can, and stored.
    pub crc64: Option<u64>,
}

/// One part of an upload that the lake has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTag {
    /// Number of the part, from 1.
    pub number: u32,
    /// The lake's tag of the part.
    pub etag: String,
    /// Length of the part.
    pub size: u64,
}

/// A piece of a listing.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// Objects in byte order of their keys.
    pub objects: Vec<ObjectInfo>,
    /// Groups (they end with the delimiter), in byte order.
    pub prefixes: Vec<Vec<u8>>,
    /// Continue after this; `None` when the listing is complete.
    pub next: Option<Vec<u8>>,
}

/// What a lake can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Smallest part of an upload, the last one excepted.
    pub part_bytes_min: u64,
    /// Largest part of an upload.
    pub part_bytes_max: u64,
    /// Most parts of an upload.
    pub parts_max: u32,
    /// Largest object that one `put` can write.
    pub put_bytes_max: u64,
    /// `put` honours its condition.
    pub conditional_put: bool,
    /// `upload_complete` honours its condition.
    pub conditional_complete: bool,
    /// The lake checks and stores CRC-64/NVME.
    pub checksums: bool,
    /// Largest object that `copy` can copy.
    pub copy_bytes_max: u64,
    /// Longest key, the lake's prefix not counted.
    pub key_bytes_max: usize,
    /// Most bytes of user metadata, names and values together, as the lake counts them.
    pub meta_bytes_max: usize,
}

/// A lake that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// For how long, in milliseconds.
    pub ms: u64,
    /// What went wrong with the last request, if one ended.
    pub error: Option<String>,
}
