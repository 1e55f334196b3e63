//! A bucket of S3, or of anything that speaks it.
//!
//! Every call is one signed request of ours, so that keys stay raw, conditions reach the server and checksums are
//! full-object CRC-64/NVME. [`sign`] makes signatures, [`http`] sends, [`reply`] turns bad answers into words,
//! [`object`], [`upload`] and [`list`] are the operations, [`credentials`] finds the keys.

mod attributes;
mod config;
mod credentials;
mod http;
mod list;
mod object;
mod reply;
mod upload;
mod xml;

use std::ops::Range;

use bytes::Bytes;

use crate::Lake;
use crate::error::{LakeError, Result};
use crate::key::{KEY_BYTES_MAX, check_key, check_len};
use crate::options::{Checksum, LakeOptions};
use crate::types::{Attributes, BoxFuture, Capabilities, ListPage, ObjectInfo, PartTag, PutOptions};
use crate::url::LakeUrl;

use self::http::Connection;
use config::Config;
use credentials::{CredentialSource, Profile};

/// A bucket of S3, or of anything that speaks it.
pub struct S3Lake {
    connection: Connection,
}

impl S3Lake {
    /// Opens a bucket. Nothing is sent yet: list one key to see whether it can be used.
    pub(crate) fn open(url: &LakeUrl, options: &LakeOptions) -> Result<S3Lake> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let profile = Profile::read(env);
        let config = Config::new(url, options, env, |name| profile.get(name))?;
        let credentials = CredentialSource::new(options, &config.region, env, |name| profile.get(name))?;
        Ok(S3Lake { connection: Connection::new(config, credentials)? })
    }

    /// Where a bucket is asked for, in words like `https://host`.
    pub(crate) fn endpoint(url: &LakeUrl, options: &LakeOptions) -> Result<String> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let profile = Profile::read(env);
        Ok(Config::new(url, options, env, |name| profile.get(name))?.endpoint)
    }

    /// The whole key in the bucket.
    fn key(&self, key: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(check_key(key)?)
            .map_err(|_| LakeError::invalid("a key of S3 is UTF-8; this one is not"))?;
        let whole = format!("{}{text}", self.connection.config().root);
        if whole.len() > KEY_BYTES_MAX {
            return Err(LakeError::invalid(format!(
                "with the lake's prefix the key has {} bytes; S3 holds {KEY_BYTES_MAX}",
                whole.len()
            )));
        }
        Ok(whole)
    }

    fn checksum(&self) -> Checksum {
        self.connection.config().checksum
    }
}

impl Lake for S3Lake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        Box::pin(self.head_object(key))
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(self.get_object(key, range, if_match))
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.put_object(key, body, &options).await })
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.begin(key, &attributes).await })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        Box::pin(self.part(key, upload, number, body))
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        Box::pin(self.parts(key, upload))
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.complete(key, upload, &parts, &options).await })
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.abort(key, upload))
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.copy_object(from, if_match, to, &options).await })
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.delete_object(key, if_match))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(self.list_objects(prefix, after, delimiter, limit))
    }

    fn capabilities(&self) -> Capabilities {
        let config = self.connection.config();
        Capabilities {
            part_bytes_min: 5 << 20,
            part_bytes_max: 5 << 30,
            parts_max: 10_000,
            put_bytes_max: 5 << 30,
            conditional_put: config.conditional,
            conditional_complete: config.conditional,
            checksums: config.checksum != Checksum::None,
            copy_bytes_max: 5 << 40,
            key_bytes_max: KEY_BYTES_MAX - config.root.len().min(KEY_BYTES_MAX),
            meta_bytes_max: attributes::META_BYTES_MAX,
        }
    }

    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        check_len(key, self.capabilities().key_bytes_max)?;
        self.key(key)?;
        attributes::check(attributes)
    }

    fn describe(&self) -> String {
        let config = self.connection.config();
        format!("s3://{}/{}", config.bucket, config.root.trim_end_matches('/'))
    }
}
