//! Google Cloud Storage and Azure Blob Storage, through `object_store`.
//!
//! A thin layer: what `object_store` cannot say is refused or done by looking first, never pretended.
//! - Keys that its path type would change (empty, `.` and `..` segments, slashes at the ends, control characters)
//!   are `Invalid`.
//! - An upload cannot be resumed: its parts cannot be listed. They have the numbers 1, 2, 3 and so on, without gaps.
//! - `upload_complete` and `copy` look at the target before they write; a change in between is not seen.
//! - `copy` reads the source and writes it again, so that etag, attributes and condition hold.
//! - An upload to Azure has no attributes: `object_store` cannot send them with the list of blocks.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions,
    PutPayload, UpdateVersion,
};

use super::group::start_after;
use super::store_error::translate;
use crate::Lake;
use crate::checksum::crc64_pieces;
use crate::error::{LakeError, Result};
use crate::key::{KEY_BYTES_MAX, check_key, check_len, check_meta};
use crate::types::{
    Attributes, BoxFuture, Capabilities, Condition, ListPage, ObjectInfo, PartTag, PutOptions,
};

/// Bytes that are read and written at a time by a copy.
const COPY_PART_BYTES: u64 = 16 << 20;
const LIMIT_MAX: usize = 1000;
/// User metadata that both of them hold.
const META_BYTES_MAX: usize = 8 << 10;

/// A bucket or container behind `object_store`.
pub struct StoreLake {
    store: Arc<dyn ObjectStore>,
    uploads: Arc<dyn MultipartStore>,
    pages: Arc<dyn PaginatedListStore>,
    /// What every key begins with: empty, or with a slash at its end.
    root: String,
    name: String,
}

impl StoreLake {
    /// A lake below `root` of a store, which is given by its three sides. `name` is its url, for words.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        uploads: Arc<dyn MultipartStore>,
        pages: Arc<dyn PaginatedListStore>,
        root: &str,
        name: String,
    ) -> StoreLake {
        let root = if root.is_empty() { String::new() } else { format!("{root}/") };
        StoreLake { store, uploads, pages, root, name }
    }

    fn path(&self, key: &[u8]) -> Result<Path> {
        let text = std::str::from_utf8(check_key(key)?)
            .map_err(|_| LakeError::invalid("a key of this lake is UTF-8; this one is not"))?;
        let whole = format!("{}{text}", self.root);
        if whole.len() > KEY_BYTES_MAX {
            return Err(LakeError::invalid(format!(
                "with the lake's prefix the key has {} bytes",
                whole.len()
            )));
        }
        let bad = || {
            LakeError::invalid(format!(
                "this lake cannot hold `{}`: no empty, `.` or `..` parts, no slash at an end, no control characters",
                text.escape_debug()
            ))
        };
        let path = Path::parse(&whole).map_err(|_| bad())?;
        if path.as_ref() == whole { Ok(path) } else { Err(bad()) }
    }

    async fn meta(&self, key: &[u8]) -> Result<Option<(ObjectMeta, Attributes)>> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&self.path(key)?, options).await {
            Ok(answer) => Ok(Some((answer.meta, from_store(&answer.attributes)))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(translate("look at", key, error)),
        }
    }

    async fn head_object(&self, key: &[u8]) -> Result<Option<ObjectInfo>> {
        Ok(self.meta(key).await?.map(|(meta, attributes)| ObjectInfo {
            key: key.to_vec(),
            size: meta.size,
            etag: etag(&meta),
            modified_ms: modified_ms(&meta),
            attributes: Some(attributes),
            crc64: None,
        }))
    }

    async fn get_object(&self, key: &[u8], range: Range<u64>, if_match: Option<&str>) -> Result<Bytes> {
        let is_empty = range.start >= range.end;
        let (meta, answer) = if is_empty {
            let meta = self.meta(key).await?.ok_or_else(|| not_found(key))?.0;
            (meta, None)
        } else {
            let options =
                GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
            match self.store.get_opts(&self.path(key)?, options).await {
                Ok(answer) => (answer.meta.clone(), Some(answer)),
                // A range behind the end is an error that the stores tell apart in no common way.
                Err(object_store::Error::Generic { store, source }) => match self.meta(key).await? {
                    Some((meta, _)) if range.end > meta.size => (meta, None),
                    _ => return Err(translate("read", key, object_store::Error::Generic { store, source })),
                },
                Err(error) => return Err(translate("read", key, error)),
            }
        };
        // The answer says which object its bytes are of: no condition is needed.
        check_match(key, &meta, if_match)?;
        if range.start > range.end || range.end > meta.size {
            return Err(LakeError::invalid(format!("bytes {range:?} of an object of {} bytes", meta.size)));
        }
        let Some(answer) = answer else { return Ok(Bytes::new()) };
        let bytes = answer.bytes().await.map_err(|error| translate("read", key, error))?;
        let len = range.end - range.start;
        if bytes.len() as u64 != len {
            // It ended early; nothing says that the object is damaged.
            return Err(LakeError::unavailable(format!(
                "the body has {} bytes instead of {len}",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    async fn put_object(&self, key: &[u8], body: Vec<Bytes>, options: &PutOptions) -> Result<String> {
        let path = self.path(key)?;
        check_crc64(&body, options)?;
        let mode = match &options.condition {
            Condition::None => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Matches(expected) => {
                let (meta, _) = self.meta(key).await?.ok_or_else(|| changed(key, "none", expected))?;
                check_match(key, &meta, Some(expected))?;
                PutMode::Update(UpdateVersion { e_tag: meta.e_tag, version: meta.version })
            }
        };
        let attributes = to_store(&options.attributes)?;
        let store_options = object_store::PutOptions { mode, attributes, ..Default::default() };
        let payload: PutPayload = body.into_iter().collect();
        let answer = self.store.put_opts(&path, payload, store_options).await;
        let answer = answer.map_err(|error| translate("write", key, error))?;
        self.etag_of(key, answer.e_tag).await
    }

    async fn complete(
        &self,
        key: &[u8],
        upload: &str,
        parts: &[PartTag],
        options: &PutOptions,
    ) -> Result<String> {
        let is_whole = parts.iter().zip(1..).all(|(part, number)| part.number == number);
        if parts.is_empty() || !is_whole {
            return Err(LakeError::invalid("the parts of an upload to this lake are 1, 2, 3 and so on"));
        }
        self.check_target(key, &options.condition).await?;
        let ids = parts.iter().map(|part| PartId { content_id: part.etag.clone() }).collect();
        let answer = self.uploads.complete_multipart(&self.path(key)?, &upload.to_owned(), ids).await;
        let answer = answer.map_err(|error| translate("complete the upload of", key, error))?;
        self.etag_of(key, answer.e_tag).await
    }

    async fn copy_object(
        &self,
        from: &[u8],
        if_match: &str,
        to: &[u8],
        options: &PutOptions,
    ) -> Result<String> {
        let source = self.meta(from).await?.ok_or_else(|| not_found(from))?.0;
        check_match(from, &source, Some(if_match))?;
        if source.size <= COPY_PART_BYTES {
            let body = self.get_object(from, 0..source.size, Some(if_match)).await?;
            return self.put_object(to, vec![body], options).await;
        }
        let upload = self.begin(to, &options.attributes).await?;
        let copy = async {
            let part_bytes = COPY_PART_BYTES.max(source.size.div_ceil(10_000));
            let mut parts = Vec::new();
            for index in 0..source.size.div_ceil(part_bytes) {
                let range = index * part_bytes..source.size.min((index + 1) * part_bytes);
                let body = self.get_object(from, range, Some(if_match)).await?;
                parts.push(self.part(to, &upload, index as u32 + 1, vec![body]).await?);
            }
            self.complete(to, &upload, &parts, options).await
        };
        let answer = copy.await;
        if answer.is_err() {
            // Best effort: the error that matters is the first.
            if let Err(error) = self.abort(to, &upload).await {
                tracing::warn!(%error, "the parts of a copy that failed stay in the lake");
            }
        }
        answer
    }

    async fn begin(&self, key: &[u8], attributes: &Attributes) -> Result<String> {
        let options = PutMultipartOptions { attributes: to_store(attributes)?, ..Default::default() };
        let answer = self.uploads.create_multipart_opts(&self.path(key)?, options).await;
        answer.map_err(|error| translate("begin an upload of", key, error))
    }

    async fn part(&self, key: &[u8], upload: &str, number: u32, body: Vec<Bytes>) -> Result<PartTag> {
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let index = number.checked_sub(1).ok_or_else(|| LakeError::invalid("parts have numbers from 1"))?;
        let payload: PutPayload = body.into_iter().collect();
        let answer =
            self.uploads.put_part(&self.path(key)?, &upload.to_owned(), index as usize, payload).await;
        let part = answer.map_err(|error| translate("write a part of", key, error))?;
        Ok(PartTag { number, etag: part.content_id, size })
    }

    async fn abort(&self, key: &[u8], upload: &str) -> Result<()> {
        match self.uploads.abort_multipart(&self.path(key)?, &upload.to_owned()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(translate("abort the upload of", key, error)),
        }
    }

    async fn delete_object(&self, key: &[u8], if_match: Option<&str>) -> Result<()> {
        if if_match.is_some() {
            let Some((meta, _)) = self.meta(key).await? else { return Ok(()) };
            check_match(key, &meta, if_match)?;
        }
        match self.store.delete(&self.path(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(translate("delete", key, error)),
        }
    }

    async fn list_objects(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> Result<ListPage> {
        if limit == 0 || delimiter.is_some_and(|delimiter| delimiter != b'/') {
            return Err(LakeError::invalid("a listing has at least one entry and groups by `/` only"));
        }
        let text =
            std::str::from_utf8(prefix).map_err(|_| LakeError::invalid("a prefix of this lake is UTF-8"))?;
        let whole_prefix = format!("{}{text}", self.root);
        let offset = after.map(|after| start_after(&self.root, prefix, after, delimiter)).transpose()?;
        let mut page = ListPage::default();
        let mut page_token = None;
        let mut last: Option<Vec<u8>> = None;
        loop {
            let options = PaginatedListOptions {
                offset: offset.clone(),
                delimiter: delimiter.map(|_| "/".into()),
                max_keys: Some(limit.min(LIMIT_MAX)),
                page_token: page_token.take(),
                ..Default::default()
            };
            let prefix_option = (!whole_prefix.is_empty()).then_some(whole_prefix.as_str());
            let answer = self.pages.list_paginated(prefix_option, options).await;
            let answer = answer.map_err(|error| translate("list", prefix, error))?;
            let is_new = |key: &[u8]| after.is_none_or(|after| key > after);
            for meta in answer.result.objects {
                let Some(key) = meta.location.as_ref().strip_prefix(&self.root) else { continue };
                let key = key.as_bytes().to_vec();
                last = last.max(Some(key.clone()));
                if is_new(&key) && key.starts_with(prefix) {
                    page.objects.push(ObjectInfo {
                        size: meta.size,
                        etag: etag(&meta),
                        modified_ms: modified_ms(&meta),
                        attributes: None,
                        crc64: None,
                        key,
                    });
                }
            }
            for group in answer.result.common_prefixes {
                let Some(group) = group.as_ref().strip_prefix(&self.root) else { continue };
                let group = format!("{group}/").into_bytes();
                last = last.max(Some(group.clone()));
                if is_new(&group) {
                    page.prefixes.push(group);
                }
            }
            page_token = answer.page_token;
            let is_empty = page.objects.is_empty() && page.prefixes.is_empty();
            if page_token.is_none() || !is_empty {
                break;
            }
        }
        page.objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        page.prefixes.sort_unstable();
        page.next = last.filter(|_| page_token.is_some());
        Ok(page)
    }

    async fn check_target(&self, key: &[u8], condition: &Condition) -> Result<()> {
        if *condition == Condition::None {
            return Ok(());
        }
        match (condition, self.meta(key).await?) {
            (Condition::Absent, Some((meta, _))) => Err(changed(key, &etag(&meta), "absent")),
            (Condition::Matches(expected), None) => Err(changed(key, "none", expected)),
            (Condition::Matches(expected), Some((meta, _))) => check_match(key, &meta, Some(expected)),
            _ => Ok(()),
        }
    }

    /// The etag of an answer, or else of a look at the object.
    async fn etag_of(&self, key: &[u8], e_tag: Option<String>) -> Result<String> {
        match e_tag {
            Some(e_tag) => Ok(plain(&e_tag)),
            None => Ok(etag(&self.meta(key).await?.ok_or_else(|| not_found(key))?.0)),
        }
    }
}

impl Lake for StoreLake {
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

    fn upload_parts<'a>(&'a self, _key: &'a [u8], _upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        Box::pin(async {
            Err(LakeError::not_found(
                "this lake cannot list the parts of an upload; abort it and begin again",
            ))
        })
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
        Capabilities {
            part_bytes_min: 5 << 20,
            part_bytes_max: 4000 << 20,
            parts_max: 10_000,
            put_bytes_max: 5000 << 20,
            conditional_put: true,
            conditional_complete: false,
            checksums: false,
            copy_bytes_max: 4 << 40,
            key_bytes_max: KEY_BYTES_MAX - self.root.len().min(KEY_BYTES_MAX),
            meta_bytes_max: META_BYTES_MAX,
        }
    }

    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        check_len(key, self.capabilities().key_bytes_max)?;
        self.path(key)?;
        to_store(attributes)?;
        check_meta(attributes.meta.iter().map(|(name, value)| name.len() + value.len()).sum(), META_BYTES_MAX)
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

fn to_store(attributes: &Attributes) -> Result<object_store::Attributes> {
    let mut out = object_store::Attributes::new();
    if let Some(content_type) = &attributes.content_type {
        out.insert(Attribute::ContentType, content_type.clone().into());
    }
    for (name, value) in &attributes.headers {
        let attribute = match name.as_str() {
            "cache-control" => Attribute::CacheControl,
            "content-disposition" => Attribute::ContentDisposition,
            "content-encoding" => Attribute::ContentEncoding,
            "content-language" => Attribute::ContentLanguage,
            _ => return Err(LakeError::invalid(format!("`{name}` is not a header that this lake keeps"))),
        };
        out.insert(attribute, value.clone().into());
    }
    for (name, value) in &attributes.meta {
        out.insert(Attribute::Metadata(name.clone().into()), value.clone().into());
    }
    Ok(out)
}

fn from_store(attributes: &object_store::Attributes) -> Attributes {
    let mut out = Attributes::default();
    for (attribute, value) in attributes {
        let header = |name: &str| (name.to_owned(), value.to_string());
        match attribute {
            Attribute::ContentType => out.content_type = Some(value.to_string()),
            Attribute::CacheControl => out.headers.push(header("cache-control")),
            Attribute::ContentDisposition => out.headers.push(header("content-disposition")),
            Attribute::ContentEncoding => out.headers.push(header("content-encoding")),
            Attribute::ContentLanguage => out.headers.push(header("content-language")),
            Attribute::Metadata(name) => out.meta.push((name.to_string(), value.to_string())),
            _ => {}
        }
    }
    out.headers.sort();
    out.meta.sort();
    out
}

fn check_crc64(body: &[Bytes], options: &PutOptions) -> Result<()> {
    match options.crc64 {
        Some(expected) if crc64_pieces(body) != expected => {
            Err(LakeError::corrupt("the bytes differ from their checksum; send them again"))
        }
        _ => Ok(()),
    }
}

fn etag(meta: &ObjectMeta) -> String {
    plain(meta.e_tag.as_deref().unwrap_or_default())
}

fn plain(e_tag: &str) -> String {
    e_tag.trim_start_matches("W/").trim_matches('"').to_owned()
}

fn modified_ms(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0)
}

fn check_match(key: &[u8], meta: &ObjectMeta, if_match: Option<&str>) -> Result<()> {
    match if_match {
        Some(expected) if expected != etag(meta) => Err(changed(key, &etag(meta), expected)),
        _ => Ok(()),
    }
}

fn changed(key: &[u8], actual: &str, expected: &str) -> LakeError {
    LakeError::changed(format!("`{}` has the etag {actual}, not {expected}", String::from_utf8_lossy(key)))
}

fn not_found(key: &[u8]) -> LakeError {
    LakeError::not_found(format!("no object `{}`", String::from_utf8_lossy(key)))
}
