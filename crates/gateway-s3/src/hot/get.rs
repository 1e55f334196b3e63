//! GetObject and HeadObject.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use stoker_store::{Checksum, File, FileInfo, Key, Store};

use crate::answer::{self, Answer, AnswerBody};
use crate::clock;
use crate::counters::Counters;
use crate::lifecycle::add_expiration;
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::versions::{add_version, key_asked, missing, not_of_marker};

use super::condition::{ReadCondition, Verdict, failed, range_counts};
use super::file_body::PIECE_BYTES_MAX;
use super::range::Range;
use super::{FileBody, attributes, checksum};

/// Parameters that replace headers of the answer.
const OVERRIDES: [(&str, HeaderName); 6] = [
    ("response-content-type", header::CONTENT_TYPE),
    ("response-content-language", header::CONTENT_LANGUAGE),
    ("response-expires", header::EXPIRES),
    ("response-cache-control", header::CACHE_CONTROL),
    ("response-content-disposition", header::CONTENT_DISPOSITION),
    ("response-content-encoding", header::CONTENT_ENCODING),
];

/// A request to read a file.
pub(crate) struct Read<'a> {
    /// Where the file is.
    pub(crate) volume: &'a str,
    /// Its name.
    pub(crate) key: &'a Key,
    /// Parameters.
    pub(crate) query: &'a Query,
    /// Headers.
    pub(crate) headers: &'a HeaderMap,
}

/// What part of a file is asked for.
struct Extent {
    start: u64,
    end: u64,
    partial: bool,
    /// The number of the part that it is.
    part: Option<usize>,
    parts_count: Option<usize>,
}

/// Answers with bytes.
pub(crate) async fn get_object(
    store: &dyn Store,
    read: Read<'_>,
    counters: &Arc<Counters>,
) -> Result<Answer> {
    let key = key_asked(read.key, read.query)?;
    attributes::refuse_customer_key(read.headers)?;
    let file = match store.open(read.volume, &key).await {
        Ok(file) => file,
        Err(fault) => return Err(missing(store, read.volume, read.key, read.query, fault).await),
    };
    let info = file.info();
    if let Some(answer) = judged(&read, info)? {
        return Ok(answer);
    }
    let extent = extent(&read, info)?;
    let mut answer = head(&read, info, &extent)?;
    add_part_checksum(store, &read, info, &extent, &mut answer).await?;
    let len = extent.end - extent.start;
    if len > 0 {
        // The first piece is read before the answer begins, so that its failure still has a code.
        let first = first_piece(file.as_ref(), extent.start, len).await?;
        *answer.body_mut() = if first.len() as u64 == len {
            AnswerBody::whole(first)
        } else {
            AnswerBody::file(FileBody::new(file, first, extent.start, extent.end, Arc::clone(counters)))
        };
    }
    Ok(answer)
}

/// Answers with the same headers and no bytes.
pub(crate) async fn head_object(store: &dyn Store, read: Read<'_>) -> Result<Answer> {
    let key = key_asked(read.key, read.query)?;
    attributes::refuse_customer_key(read.headers)?;
    let info = match store.stat(read.volume, &key).await {
        Ok(info) => info,
        Err(fault) => return Err(missing(store, read.volume, read.key, read.query, fault).await),
    };
    if let Some(version) = info.past.as_ref().filter(|version| version.is_marker) {
        return Err(not_of_marker(version));
    }
    match judged(&read, &info)? {
        Some(answer) => Ok(answer),
        None => {
            let extent = extent(&read, &info)?;
            let mut answer = head(&read, &info, &extent)?;
            add_part_checksum(store, &read, &info, &extent, &mut answer).await?;
            Ok(answer)
        }
    }
}

/// The checksums of the parts of a version, in their order; none if they were not kept, or the file is another one by now.
pub(crate) async fn part_checksums(
    store: &dyn Store,
    volume: &str,
    info: &FileInfo,
) -> Result<Vec<Checksum>> {
    let (version, sums) = store.part_checksums(volume, &info.key).await?;
    let is_whole = version == info.version && sums.len() == info.part_sizes.len();
    Ok(if is_whole { sums } else { Vec::new() })
}

/// The checksum of the part that was asked for by its number.
async fn add_part_checksum(
    store: &dyn Store,
    read: &Read<'_>,
    info: &FileInfo,
    extent: &Extent,
    answer: &mut Answer,
) -> Result<()> {
    let Some(part) = extent.part.filter(|_| wants_checksum(read.headers) && info.part_sizes.len() > 1) else {
        return Ok(());
    };
    if let Some(sum) = part_checksums(store, read.volume, info).await?.get(part - 1) {
        answer.headers_mut().insert(checksum::header_of(sum.kind), value(&checksum::text_of(sum))?);
        let form = checksum::shown(&info.checksums).map(checksum::type_of).unwrap_or("COMPOSITE");
        answer.headers_mut().insert("x-amz-checksum-type", HeaderValue::from_static(form));
    }
    Ok(())
}

fn wants_checksum(headers: &HeaderMap) -> bool {
    let mode = headers.get("x-amz-checksum-mode");
    mode.is_some_and(|mode| mode.as_bytes().eq_ignore_ascii_case(b"ENABLED"))
}

async fn first_piece(file: &dyn File, start: u64, len: u64) -> Result<Bytes> {
    let want = usize::try_from(len).map_or(PIECE_BYTES_MAX, |len| len.min(PIECE_BYTES_MAX));
    let first = file.read(start, want).await?;
    if first.is_empty() || first.len() > want {
        return Err(Refusal::new(Code::InternalError, "The file is not as long as it says."));
    }
    Ok(first)
}

/// The answer if the conditions do not hold.
fn judged(read: &Read<'_>, info: &FileInfo) -> Result<Option<Answer>> {
    let condition = ReadCondition::of(read.headers);
    match condition.judge(&info.etag, info.modified_ms) {
        Verdict::Proceed => Ok(None),
        Verdict::Failed => Err(failed(condition.header_of(Verdict::Failed))),
        Verdict::NotModified => {
            let mut answer = answer::bare(StatusCode::NOT_MODIFIED);
            identify(answer.headers_mut(), info)?;
            Ok(Some(answer))
        }
    }
}

fn extent(read: &Read<'_>, info: &FileInfo) -> Result<Extent> {
    let range = read.headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    if let Some(number) = read.query.get("partNumber") {
        if range.is_some() {
            return Err(Refusal::new(
                Code::InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter.",
            ));
        }
        return part_extent(number, info);
    }
    let range = range.filter(|_| range_counts(read.headers, info));
    match Range::parse(range, info.size) {
        Range::Whole => {
            Ok(Extent { start: 0, end: info.size, partial: false, part: None, parts_count: None })
        }
        Range::Part(start, end) => Ok(Extent { start, end, partial: true, part: None, parts_count: None }),
        Range::Unsatisfiable => {
            Err(Refusal::new(Code::InvalidRange, "The requested range is not satisfiable.")
                .with("RangeRequested", range.unwrap_or_default())
                .with("ActualObjectSize", info.size.to_string()))
        }
    }
}

fn part_extent(number: &str, info: &FileInfo) -> Result<Extent> {
    let number =
        number.parse::<usize>().ok().filter(|number| (1..=10_000).contains(number)).ok_or_else(|| {
            Refusal::new(
                Code::InvalidArgument,
                "Part number must be an integer between 1 and 10000, inclusive.",
            )
        })?;
    if info.part_sizes.is_empty() && number == 1 {
        return Ok(Extent {
            start: 0,
            end: info.size,
            partial: info.size > 0,
            part: None,
            parts_count: None,
        });
    }
    let Some(len) = info.part_sizes.get(number - 1) else {
        return Err(Refusal::new(Code::InvalidPartNumber, "The requested partnumber is not satisfiable."));
    };
    let start = info.part_sizes[..number - 1].iter().sum::<u64>();
    let parts_count = Some(info.part_sizes.len());
    Ok(Extent { start, end: start + len, partial: info.size > 0, part: Some(number), parts_count })
}

/// Status and headers.
fn head(read: &Read<'_>, info: &FileInfo, extent: &Extent) -> Result<Answer> {
    let mut answer = answer::bare(if extent.partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK });
    let headers = answer.headers_mut();
    attributes::into_headers(&info.attributes, headers);
    identify(headers, info)?;
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(extent.end - extent.start));
    if extent.partial {
        let range = format!("bytes {}-{}/{}", extent.start, extent.end.saturating_sub(1), info.size);
        headers.insert(header::CONTENT_RANGE, value(&range)?);
    }
    add_expiration(headers, info.expires.as_ref());
    if let Some(count) = extent.parts_count {
        headers.insert("x-amz-mp-parts-count", HeaderValue::from(count));
    }
    // A checksum of the whole beside a part of it would make clients see damage.
    if wants_checksum(read.headers)
        && !extent.partial
        && let Some(shown) = checksum::shown(&info.checksums)
    {
        headers.insert(checksum::header_of(shown.kind), value(&checksum::text_of(shown))?);
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksum::type_of(shown)));
    }
    for (name, header) in OVERRIDES {
        if let Some(text) = read.query.get(name) {
            headers.insert(header, value(text)?);
        }
    }
    Ok(answer)
}

fn identify(headers: &mut HeaderMap, info: &FileInfo) -> Result<()> {
    headers.insert(header::ETAG, etag_value(&info.etag)?);
    let modified = httpdate::fmt_http_date(clock::from_unix_ms(info.modified_ms));
    headers.insert(header::LAST_MODIFIED, value(&modified)?);
    add_version(headers, info.past.as_ref());
    Ok(())
}

/// An etag in its quotes.
pub(crate) fn etag_value(etag: &str) -> Result<HeaderValue> {
    value(&format!("\"{etag}\""))
}

fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|_| Refusal::new(Code::InvalidArgument, "A value cannot be sent in a header."))
}
