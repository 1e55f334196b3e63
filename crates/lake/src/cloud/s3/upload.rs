//! Uploads in parts, and copies of what is too large for one.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::Method;

use super::S3Lake;
use super::attributes::{crc64_text, to_headers};
use super::http::{Request, plain_etag};
use super::object::conditional;
use super::xml;
use crate::checksum::crc64_pieces;
use crate::error::{LakeError, Result};
use crate::options::Checksum;
use crate::types::{Attributes, ObjectInfo, PartTag, PutOptions};

/// Parts of a copy, and how many at once.
const COPY_PART_BYTES: u64 = 1 << 30;
const COPY_PARTS_AT_ONCE: usize = 8;

impl S3Lake {
    pub(super) async fn begin(&self, key: &[u8], attributes: &Attributes) -> Result<String> {
        let mut request = Request::new(Method::POST, self.key(key)?).query("uploads", "");
        request.headers = to_headers(attributes)?;
        request = self.in_class(request);
        if self.checksum() == Checksum::Crc64Nvme {
            request = request
                .header("x-amz-checksum-algorithm", "CRC64NVME")
                .header("x-amz-checksum-type", "FULL_OBJECT");
        }
        let action = format!("begin an upload of `{}`", String::from_utf8_lossy(key));
        let answer = self.document(request, &action).await?;
        match answer.text_of("UploadId") {
            "" => Err(LakeError::corrupt(format!("cannot {action}: the answer has no upload id"))),
            upload => Ok(upload.to_owned()),
        }
    }

    pub(super) async fn part(
        &self,
        key: &[u8],
        upload: &str,
        number: u32,
        body: Vec<Bytes>,
    ) -> Result<PartTag> {
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let mut request = self.part_request(key, upload, number)?;
        if self.checksum() == Checksum::Crc64Nvme {
            request = request.header("x-amz-checksum-crc64nvme", crc64_text(crc64_pieces(&body)));
        }
        let action = format!("write part {number} of `{}`", String::from_utf8_lossy(key));
        let reply = self.connection.demand(request.body(body), &action).await?;
        match reply.etag() {
            etag if etag.is_empty() => {
                Err(LakeError::corrupt(format!("cannot {action}: the answer has no etag")))
            }
            etag => Ok(PartTag { number, etag, size }),
        }
    }

    pub(super) async fn parts(&self, key: &[u8], upload: &str) -> Result<Vec<PartTag>> {
        let action = format!("list the parts of `{}`", String::from_utf8_lossy(key));
        let bad = || LakeError::corrupt(format!("cannot {action}: a part has no number or size"));
        let mut listed: Vec<(PartTag, String)> = Vec::new();
        loop {
            let mut request = Request::new(Method::GET, self.key(key)?)
                .query("uploadId", upload)
                .query("max-parts", "1000");
            if let Some((last, _)) = listed.last() {
                request = request.query("part-number-marker", last.number.to_string());
            }
            let answer = self.document(request, &action).await?;
            let before = listed.len();
            for part in answer.all("Part") {
                let tag = PartTag {
                    number: part.text_of("PartNumber").parse().map_err(|_| bad())?,
                    etag: plain_etag(part.text_of("ETag")),
                    size: part.text_of("Size").parse().map_err(|_| bad())?,
                };
                listed.push((tag, part.text_of("LastModified").to_owned()));
            }
            if answer.text_of("IsTruncated") != "true" || listed.len() == before {
                return Ok(newest(listed));
            }
        }
    }

    pub(super) async fn complete(
        &self,
        key: &[u8],
        upload: &str,
        parts: &[PartTag],
        options: &PutOptions,
    ) -> Result<String> {
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(LakeError::invalid("an upload is completed with its parts in ascending order"));
        }
        self.look_first(key, &options.condition).await?;
        let mut text =
            String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for part in parts {
            text.push_str(&format!(
                "<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag></Part>",
                part.number,
                xml::escape(&part.etag)
            ));
        }
        text.push_str("</CompleteMultipartUpload>");
        let mut request = Request::new(Method::POST, self.key(key)?)
            .query("uploadId", upload)
            .header("content-type", "application/xml")
            .body(vec![Bytes::from(text)]);
        if let (Checksum::Crc64Nvme, Some(crc64)) = (self.checksum(), options.crc64) {
            request = request
                .header("x-amz-checksum-crc64nvme", crc64_text(crc64))
                .header("x-amz-checksum-type", "FULL_OBJECT");
        }
        let request = self.condition(request, &options.condition);
        let action = format!("complete the upload of `{}`", String::from_utf8_lossy(key));
        let answer = conditional(key, &options.condition, self.document(request, &action).await)?;
        match plain_etag(answer.text_of("ETag")) {
            etag if etag.is_empty() => {
                Err(LakeError::corrupt(format!("cannot {action}: the answer has no etag")))
            }
            etag => Ok(etag),
        }
    }

    pub(super) async fn abort(&self, key: &[u8], upload: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, self.key(key)?).query("uploadId", upload);
        let action = format!("abort the upload of `{}`", String::from_utf8_lossy(key));
        match self.connection.demand(request, &action).await {
            Ok(reply) => reply.document().await.map(|_| ()),
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Copies an object that is too large for one request.
    pub(super) async fn copy_in_parts(
        &self,
        from: &[u8],
        source: &ObjectInfo,
        to: &[u8],
        options: &PutOptions,
    ) -> Result<String> {
        let upload = self.begin(to, &options.attributes).await?;
        let answer = self.copy_parts(from, source, to, &upload, options).await;
        if answer.is_err() {
            // Best effort: the error that matters is the first.
            if let Err(error) = self.abort(to, &upload).await {
                tracing::warn!(%error, "the parts of a copy that failed stay in the lake");
            }
        }
        answer
    }

    async fn copy_parts(
        &self,
        from: &[u8],
        source: &ObjectInfo,
        to: &[u8],
        upload: &str,
        options: &PutOptions,
    ) -> Result<String> {
        let copies = part_ranges(source.size).into_iter().map(|(number, start, end)| async move {
            let request = self.copy_request(self.part_request(to, upload, number)?, from, &source.etag)?;
            let request = request.header("x-amz-copy-source-range", format!("bytes={start}-{}", end - 1));
            let action = format!("copy part {number} of `{}`", String::from_utf8_lossy(from));
            let answer = self.document(request, &action).await?;
            Ok::<_, LakeError>(PartTag {
                number,
                etag: plain_etag(answer.text_of("ETag")),
                size: end - start,
            })
        });
        let parts: Vec<PartTag> = stream::iter(copies).buffered(COPY_PARTS_AT_ONCE).try_collect().await?;
        let options = PutOptions { crc64: options.crc64.or(source.crc64), ..options.clone() };
        self.complete(to, upload, &parts, &options).await
    }

    fn part_request(&self, key: &[u8], upload: &str, number: u32) -> Result<Request> {
        Ok(Request::new(Method::PUT, self.key(key)?)
            .query("partNumber", number.to_string())
            .query("uploadId", upload))
    }
}

/// Each part once. Some servers also list a part that a later one of the same number replaced; where times do
/// not tell which is which, neither counts, and the caller sends the part again.
fn newest(mut listed: Vec<(PartTag, String)>) -> Vec<PartTag> {
    // Times of one server are texts of one length, so they compare like times.
    listed.sort_by(|(a, a_time), (b, b_time)| (a.number, b_time).cmp(&(b.number, a_time)));
    let mut parts = Vec::new();
    for same in listed.chunk_by(|(a, _), (b, _)| a.number == b.number) {
        let is_clear = same.len() == 1 || same[0].1 != same[1].1 || same[0].0 == same[1].0;
        if is_clear {
            parts.push(same[0].0.clone());
        }
    }
    parts
}

/// Numbers and bytes of the parts of a copy: at most 10,000, of one size but the last.
fn part_ranges(size: u64) -> Vec<(u32, u64, u64)> {
    let part_bytes = COPY_PART_BYTES.max(size.div_ceil(10_000));
    (0..size.div_ceil(part_bytes))
        .map(|index| (index as u32 + 1, index * part_bytes, size.min((index + 1) * part_bytes)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_was_replaced_does_not_count() {
        let part = |number, etag: &str, time: &str| {
            (PartTag { number, etag: etag.into(), size: 1 }, format!("2026-01-01T00:00:0{time}Z"))
        };
        let listed = vec![
            part(1, "new", "2"),
            part(1, "old", "1"),
            part(2, "only", "1"),
            part(3, "one", "1"),
            part(3, "other", "1"),
            part(4, "old", "1"),
            part(4, "new", "3"),
        ];
        let parts = newest(listed);
        let etags: Vec<(u32, &str)> = parts.iter().map(|part| (part.number, part.etag.as_str())).collect();
        assert_eq!(etags, [(1, "new"), (2, "only"), (4, "new")]);
    }

    #[test]
    fn parts_of_a_copy_cover_it() {
        for size in [1, COPY_PART_BYTES, COPY_PART_BYTES + 1, 5 << 30, (5 << 30) + 7, 48 << 40] {
            let ranges = part_ranges(size);
            assert!(ranges.len() <= 10_000);
            let mut at = 0;
            for (index, (number, start, end)) in ranges.iter().enumerate() {
                assert_eq!((*number as usize, *start), (index + 1, at));
                assert!(end > start && end - start <= 5 << 30);
                at = *end;
            }
            assert_eq!(at, size);
        }
    }
}
