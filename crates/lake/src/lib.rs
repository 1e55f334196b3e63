//! The object store behind a volume: a narrow trait over raw keys.
//!
//! A [`Lake`] knows nothing of volumes, versions or chunks. It reads, writes, copies, deletes and lists whole
//! objects, with conditions, and it never answers with bytes it is not sure of.
//!
//! It must not know volumes, versions or chunks.

#![forbid(unsafe_code)]

mod checksum;
mod cloud;
mod error;
mod file;
mod key;
mod opener;
mod options;
mod place;
mod retry;
mod rng;
mod stats;
mod switch;
mod twin;
mod types;
mod url;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use cloud::{S3Lake, StoreLake};
pub use error::{LakeError, LakeErrorCode, LakeErrorKind, Result};
pub use file::FileLake;
pub use key::KEY_BYTES_MAX;
pub use opener::LakeOpener;
pub use options::{Checksum, LakeOptions, RetryOptions};
pub use place::Place;
pub use retry::{RetryLake, RuntimeTimer, Timer};
pub use stats::{LATENCY_MS, LakeStats, Operation, OperationStats};
pub use switch::Switch;
pub use twin::{FaultCounts, Faults, TwinLake, TwinObject};
pub use types::{
    Attributes, BoxFuture, Capabilities, Condition, ListPage, ObjectInfo, PartTag, PutOptions, Silence,
};

/// An object store. Keys are raw bytes relative to the lake's root, 1 to 1024 bytes long.
pub trait Lake: Send + Sync + 'static {
    /// Looks at one object; `None` if there is none.
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>>;

    /// Reads the bytes `range` of an object that must still have the etag `if_match`.
    ///
    /// Gone is `NotFound`, changed is `Changed`. A range that ends behind the object is `Invalid`, a body that
    /// is short is an error: the answer always has the length that was asked for.
    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>>;

    /// Writes a whole object and gives its etag.
    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>>;

    /// Begins an upload in parts and gives its id.
    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>>;

    /// Writes one part. The same number again replaces the part.
    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>>;

    /// Parts that the lake already has, by number, to resume an upload.
    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>>;

    /// Makes an object of the parts, which come in ascending order, and gives its etag.
    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>>;

    /// Drops an upload and its parts. An upload that is gone is Ok.
    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Copies inside this lake; `if_match` is the etag of the source. Gives the etag of the copy.
    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>>;

    /// Deletes an object if its etag still matches, otherwise `Changed`. Gone is Ok.
    ///
    /// A lake without a conditional delete looks first and deletes then; a change in between is lost there.
    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>>;

    /// Lists keys with the prefix, in byte order, strictly after `after`.
    ///
    /// With a delimiter, keys that have one behind the prefix are grouped like S3 does. Objects and groups
    /// together are at most `limit`.
    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>>;

    /// What this lake can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether an object of this key and these attributes could be here: `Invalid` names the limit that it breaks. Asks
    /// nobody, so that it can be asked before bytes are taken for the lake.
    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        let can = self.capabilities();
        key::check_len(key, can.key_bytes_max)?;
        let bytes = attributes.meta.iter().map(|(name, value)| name.len() + value.len()).sum();
        key::check_meta(bytes, can.meta_bytes_max)
    }

    /// Whether a write to this key got no answer since [`Lake::end_doubt`], although its call may have succeeded: a try
    /// that was sent again can still take effect, after everything that was done since. Lakes that send nothing twice
    /// leave that to the error of the call.
    fn is_doubted(&self, _key: &[u8]) -> bool {
        false
    }

    /// Whoever owns the key has written down that there is a doubt.
    fn end_doubt(&self, _key: &[u8]) {}

    /// The lake in words, like `s3://bucket/prefix`. Never a secret.
    fn describe(&self) -> String;

    /// What the lake was asked so far; `None` where nobody counts. Lakes from [`open`] count.
    fn stats(&self) -> Option<LakeStats> {
        None
    }

    /// Whether it does not answer now, and since when; known long before a call is given up. Lakes from [`open`] know.
    fn silence(&self) -> Option<Silence> {
        None
    }
}

/// Whether a url can be one of a lake; nobody is asked.
pub fn check_url(url: &str) -> Result<()> {
    url::LakeUrl::parse(url).map(|_| ())
}

/// Opens the lake of a url: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
/// `file:///directory`, or an absolute path.
///
/// The lake retries, limits and counts as [`RetryLake`] says.
pub async fn open(url: &str, options: &LakeOptions) -> Result<Arc<dyn Lake>> {
    let lake = open_once(url, options).await?;
    Ok(Arc::new(RetryLake::new(lake, options.retry, Arc::new(RuntimeTimer::new()))))
}

/// The same, with a switch that replaces the way there later: other keys, another endpoint, other limits.
pub async fn open_switched(url: &str, options: &LakeOptions) -> Result<(Arc<dyn Lake>, Switch)> {
    Ok(Switch::around(open_once(url, options).await?, options))
}

/// A lake that tries nothing again.
async fn open_once(url: &str, options: &LakeOptions) -> Result<Arc<dyn Lake>> {
    let url = url::LakeUrl::parse(url)?;
    Ok(match url.scheme {
        url::Scheme::File => {
            let umask = url.query.first().map(|(_, umask)| umask.clone());
            let options = LakeOptions { file_umask: options.file_umask.clone().or(umask), ..options.clone() };
            Arc::new(FileLake::open(&url.directory_path(), &options).await?)
        }
        url::Scheme::S3 => Arc::new(S3Lake::open(&url, options)?),
        url::Scheme::Gcs => Arc::new(cloud::open_gcs(&url, options)?),
        url::Scheme::Azure => Arc::new(cloud::open_azure(&url, options)?),
    })
}
