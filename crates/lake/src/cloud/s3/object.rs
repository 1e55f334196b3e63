//! Whole objects: head, get, put, copy, delete.

use std::ops::Range;

use bytes::Bytes;
use http::{Method, StatusCode};

use super::attributes::{crc64_from, crc64_text, from_headers, to_headers};
use super::http::{Reply, Request, plain_etag};
use super::xml::Element;
use super::{S3Lake, reply::Fault};
use crate::checksum::crc64_pieces;
use crate::error::{LakeError, LakeErrorCode, LakeErrorKind, Result};
use crate::options::Checksum;
use crate::types::{Condition, ObjectInfo, PutOptions};

/// Largest object that one request copies.
const COPY_ONCE_BYTES_MAX: u64 = 5 << 30;

impl S3Lake {
    pub(super) async fn head_object(&self, key: &[u8]) -> Result<Option<ObjectInfo>> {
        let mut request = Request::new(Method::HEAD, self.key(key)?);
        if self.checksum() == Checksum::Crc64Nvme {
            request = request.header("x-amz-checksum-mode", "ENABLED");
        }
        let action = format!("look at `{}`", String::from_utf8_lossy(key));
        let reply = match self.connection.demand(request, &action).await {
            Ok(reply) => reply,
            Err(error) if error.kind == LakeErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(ObjectInfo {
            key: key.to_vec(),
            size: length(&reply)?,
            etag: reply.etag(),
            modified_ms: http_date_ms(reply.header("last-modified")),
            attributes: Some(from_headers(&reply.headers)),
            crc64: whole_crc64(&reply),
        }))
    }

    pub(super) async fn get_object(
        &self,
        key: &[u8],
        range: Range<u64>,
        if_match: Option<&str>,
    ) -> Result<Bytes> {
        if range.start >= range.end {
            return self.get_nothing(key, range, if_match).await;
        }
        let mut request = Request::new(Method::GET, self.key(key)?)
            .header("range", format!("bytes={}-{}", range.start, range.end - 1));
        if let Some(etag) = if_match {
            request = request.header("if-match", format!("\"{etag}\""));
        }
        let action = format!("read `{}`", String::from_utf8_lossy(key));
        let reply = self.connection.demand(request, &action).await?;
        if let Some(etag) = if_match
            && reply.etag() != etag
        {
            // A server that does not know If-Match.
            return Err(changed(key, &reply.etag(), etag));
        }
        let len = usize::try_from(range.end - range.start)
            .map_err(|_| LakeError::invalid("a range larger than the memory"))?;
        if reply.status == StatusCode::PARTIAL_CONTENT {
            let size = total_size(reply.header("content-range")).ok_or_else(|| {
                LakeError::corrupt(format!(
                    "cannot {action}: `{}` is not a range",
                    reply.header("content-range")
                ))
            })?;
            check_range(&range, size)?;
            return reply.bytes(len).await;
        }
        // A server that does not know ranges answers with everything.
        let size = length(&reply)?;
        check_range(&range, size)?;
        let whole =
            usize::try_from(size).map_err(|_| LakeError::invalid("an object larger than the memory"))?;
        Ok(reply.bytes(whole).await?.slice(range.start as usize..range.end as usize))
    }

    /// HTTP has no empty range.
    async fn get_nothing(&self, key: &[u8], range: Range<u64>, if_match: Option<&str>) -> Result<Bytes> {
        let info = self.head_object(key).await?.ok_or_else(|| not_found(key))?;
        match if_match {
            Some(etag) if etag != info.etag => Err(changed(key, &info.etag, etag)),
            _ => check_range(&range, info.size).map(|()| Bytes::new()),
        }
    }

    pub(super) async fn put_object(
        &self,
        key: &[u8],
        body: Vec<Bytes>,
        options: &PutOptions,
    ) -> Result<String> {
        self.look_first(key, &options.condition).await?;
        let mut request = Request::new(Method::PUT, self.key(key)?);
        request.headers = to_headers(&options.attributes)?;
        request = self.in_class(request);
        if self.checksum() == Checksum::Crc64Nvme {
            let crc64 = options.crc64.unwrap_or_else(|| crc64_pieces(&body));
            request = request.header("x-amz-checksum-crc64nvme", crc64_text(crc64));
        }
        let request = self.condition(request, &options.condition).body(body);
        let action = format!("write `{}`", String::from_utf8_lossy(key));
        let reply = self.connection.demand(request, &action).await;
        let etag = conditional(key, &options.condition, reply)?.etag();
        if etag.is_empty() {
            return Err(LakeError::corrupt(format!(
                "cannot {action}: the answer has no etag; is this an S3 server?"
            )));
        }
        Ok(etag)
    }

    pub(super) async fn copy_object(
        &self,
        from: &[u8],
        if_match: &str,
        to: &[u8],
        options: &PutOptions,
    ) -> Result<String> {
        let source = self.head_object(from).await?.ok_or_else(|| not_found(from))?;
        if source.etag != if_match {
            return Err(changed(from, &source.etag, if_match));
        }
        if let (Some(expected), Some(crc64)) = (options.crc64, source.crc64)
            && expected != crc64
        {
            return Err(LakeError::corrupt(format!(
                "`{}` has the checksum {crc64:016x}, not {expected:016x}",
                String::from_utf8_lossy(from)
            )));
        }
        if source.size > COPY_ONCE_BYTES_MAX {
            return self.copy_in_parts(from, &source, to, options).await;
        }
        // Not every server honours a condition on the target of a copy.
        self.check_target(to, &options.condition).await?;
        let mut request = self.copy_request(Request::new(Method::PUT, self.key(to)?), from, if_match)?;
        request.headers.extend(to_headers(&options.attributes)?);
        request = self.in_class(request).header("x-amz-metadata-directive", "REPLACE");
        if self.checksum() == Checksum::Crc64Nvme {
            request = request.header("x-amz-checksum-algorithm", "CRC64NVME");
        }
        let request = self.condition(request, &options.condition);
        let action = format!("copy `{}`", String::from_utf8_lossy(from));
        let answer = self.document(request, &action).await?;
        let etag = plain_etag(answer.text_of("ETag"));
        if etag.is_empty() {
            return Err(LakeError::corrupt(format!("cannot {action}: the answer has no etag")));
        }
        Ok(etag)
    }

    pub(super) async fn delete_object(&self, key: &[u8], if_match: Option<&str>) -> Result<()> {
        let action = format!("delete `{}`", String::from_utf8_lossy(key));
        let request = || Ok::<_, LakeError>(Request::new(Method::DELETE, self.key(key)?));
        let answer = match if_match {
            None => self.connection.demand(request()?, &action).await,
            Some(etag) => {
                // Few servers know a conditional delete; the look before is for the others.
                match self.head_object(key).await? {
                    None => return Ok(()),
                    Some(info) if info.etag != etag => return Err(changed(key, &info.etag, etag)),
                    Some(_) => {}
                }
                let careful = request()?.header("if-match", format!("\"{etag}\""));
                match self.connection.demand(careful, &action).await {
                    Err(error) if error.kind == LakeErrorKind::Invalid => {
                        self.connection.demand(request()?, &action).await
                    }
                    answer => answer,
                }
            }
        };
        match answer {
            Ok(reply) => reply.document().await.map(|_| ()),
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Names the source of a copy.
    pub(super) fn copy_request(&self, request: Request, from: &[u8], if_match: &str) -> Result<Request> {
        let source = format!("{}/{}", self.connection.config().bucket, self.key(from)?);
        Ok(request
            .header(
                "x-amz-copy-source",
                stoker_sigv4::percent_encode(source.as_bytes(), stoker_sigv4::Slash::Keep),
            )
            .header("x-amz-copy-source-if-match", format!("\"{if_match}\"")))
    }

    /// Sends a request whose answer is a document, which may be an error although its status is a success.
    pub(super) async fn document(&self, request: Request, action: &str) -> Result<Element> {
        let reply = self.connection.demand(request, action).await?;
        let bytes = reply.document().await?;
        let Some(answer) = Element::parse(&bytes) else {
            return Err(LakeError::corrupt(format!(
                "cannot {action}: the answer is not XML; is this an S3 server?"
            )));
        };
        if answer.name == "Error" {
            return Err(self.connection.error(&Fault::inside(&answer), action));
        }
        Ok(answer)
    }

    /// Names the storage class of what is written, if one was chosen.
    pub(super) fn in_class(&self, request: Request) -> Request {
        match &self.connection.config().storage_class {
            Some(class) => request.header("x-amz-storage-class", class.as_str()),
            None => request,
        }
    }

    /// Adds a condition for servers that honour it.
    pub(super) fn condition(&self, request: Request, condition: &Condition) -> Request {
        match condition {
            _ if !self.connection.config().conditional => request,
            Condition::None => request,
            Condition::Absent => request.header("if-none-match", "*"),
            Condition::Matches(etag) => request.header("if-match", format!("\"{etag}\"")),
        }
    }

    /// For servers that do not honour conditions.
    pub(super) async fn look_first(&self, key: &[u8], condition: &Condition) -> Result<()> {
        if self.connection.config().conditional { Ok(()) } else { self.check_target(key, condition).await }
    }

    async fn check_target(&self, key: &[u8], condition: &Condition) -> Result<()> {
        if *condition == Condition::None {
            return Ok(());
        }
        match (condition, self.head_object(key).await?) {
            (Condition::Absent, Some(info)) => Err(changed(key, &info.etag, "absent")),
            (Condition::Matches(etag), Some(info)) if info.etag != *etag => {
                Err(changed(key, &info.etag, etag))
            }
            (Condition::Matches(etag), None) => Err(changed(key, "none", etag)),
            _ => Ok(()),
        }
    }
}

/// A write whose condition is an etag fails with `NotFound` if there is no object; that is a failed condition.
pub(super) fn conditional<T>(key: &[u8], condition: &Condition, answer: Result<T>) -> Result<T> {
    match (condition, answer) {
        (Condition::Matches(etag), Err(error))
            if error.kind == LakeErrorKind::NotFound && error.code == LakeErrorCode::NoSuchKey =>
        {
            Err(changed(key, "none", etag))
        }
        (_, answer) => answer,
    }
}

fn changed(key: &[u8], actual: &str, expected: &str) -> LakeError {
    LakeError::changed(format!("`{}` has the etag {actual}, not {expected}", String::from_utf8_lossy(key)))
}

fn not_found(key: &[u8]) -> LakeError {
    LakeError::not_found(format!("no object `{}`", String::from_utf8_lossy(key)))
}

fn check_range(range: &Range<u64>, size: u64) -> Result<()> {
    if range.start > range.end || range.end > size {
        return Err(LakeError::invalid(format!("bytes {range:?} of an object of {size} bytes")));
    }
    Ok(())
}

/// The size behind the slash of `bytes 0-9/443`.
fn total_size(content_range: &str) -> Option<u64> {
    content_range.strip_prefix("bytes ")?.split_once('/')?.1.parse().ok()
}

fn length(reply: &Reply) -> Result<u64> {
    reply
        .header("content-length")
        .parse()
        .map_err(|_| LakeError::corrupt("the answer does not state its length"))
}

/// The checksum, if it is that of the whole object and not one of checksums of parts.
fn whole_crc64(reply: &Reply) -> Option<u64> {
    if reply.header("x-amz-checksum-type") == "COMPOSITE" {
        return None;
    }
    crc64_from(reply.header("x-amz-checksum-crc64nvme"))
}

/// Milliseconds since 1970 of a date in a header; 0 if it is none.
fn http_date_ms(text: &str) -> u64 {
    let since =
        httpdate::parse_http_date(text).ok().and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_millis() as u64)
}
