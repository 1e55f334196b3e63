//! Properties of files: from the headers of a request, and into the headers of an answer.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use stoker_store::{Access, Attributes, is_meta_reserved};

use crate::percent::{self, Plus};
use crate::refusal::{Code, Refusal, Result};
use crate::versions::lock_of_headers;

/// Most bytes of user metadata, names and values together.
const META_BYTES_MAX: usize = 2048;
/// In front of names of user metadata that would be ours.
const ESCAPE: &str = "x-";
/// Most tags of a file.
const TAGS_MAX: usize = 10;
/// Most tags of a bucket.
const BUCKET_TAGS_MAX: usize = 50;
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

/// Storage classes that may be asked for. Every file is in the first tier while it is here and in the class of the bucket once it is in
/// the lake, so all of them are STANDARD for whoever asks; one that S3 does not know is refused.
const STORAGE_CLASSES: [&str; 8] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
];

/// Standard headers that are kept with a file.
const KEPT: [&str; 5] =
    ["cache-control", "content-disposition", "content-encoding", "content-language", "expires"];

/// What a file gets when nobody says what it is.
pub(crate) const CONTENT_TYPE_DEFAULT: &str = "binary/octet-stream";

/// Reads the properties that a request gives a file, which will belong to whom the key maps to.
pub(crate) fn of_headers(headers: &HeaderMap, access: &Access) -> Result<Attributes> {
    refuse_unsupported(headers)?;
    let mut attributes = Attributes {
        owner: Some((access.uid, access.gid)),
        tags: tags_of_header(headers)?,
        lock: lock_of_headers(headers)?,
        ..Attributes::default()
    };
    let mut meta_bytes = 0;
    for (name, value) in headers {
        if *name == http::header::CONTENT_TYPE {
            attributes.content_type = Some(text(value)).filter(|value| !value.is_empty());
        } else if let Some(name) = name.as_str().strip_prefix("x-amz-meta-") {
            let value = text(value);
            meta_bytes += name.len() + value.len();
            let name = &*kept_name(name);
            match attributes.meta.iter_mut().find(|(other, _)| other == name) {
                Some((_, old)) => *old = format!("{old},{value}"),
                None => attributes.meta.push((name.to_owned(), value)),
            }
        } else if KEPT.contains(&name.as_str()) {
            let mut value = text(value);
            if name.as_str() == "content-encoding" {
                value = without_aws_chunked(&value);
            }
            if value.is_empty() {
                continue;
            }
            match attributes.headers.iter_mut().find(|(other, _)| other == name.as_str()) {
                Some((_, old)) => *old = format!("{old}, {value}"),
                None => attributes.headers.push((name.as_str().to_owned(), value)),
            }
        }
    }
    if meta_bytes > META_BYTES_MAX {
        return Err(Refusal::new(
            Code::MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size.",
        )
        .with("Size", meta_bytes.to_string())
        .with("MaxSizeAllowed", META_BYTES_MAX.to_string()));
    }
    Ok(attributes)
}

/// Writes the properties of a file into the headers of an answer.
pub(crate) fn into_headers(attributes: &Attributes, headers: &mut HeaderMap) {
    let content_type = attributes.content_type.as_deref().and_then(|value| HeaderValue::from_str(value).ok());
    headers.insert(
        http::header::CONTENT_TYPE,
        content_type.unwrap_or(HeaderValue::from_static(CONTENT_TYPE_DEFAULT)),
    );
    for (name, value) in &attributes.headers {
        insert(headers, name, value);
    }
    for (name, value) in &attributes.meta {
        insert(headers, &format!("x-amz-meta-{}", shown_name(name)), value);
    }
    if !attributes.tags.is_empty() {
        headers.insert("x-amz-tagging-count", HeaderValue::from(attributes.tags.len()));
    }
}

/// The name under which user metadata is kept: what would pass for our own gets a prefix more, so that nobody speaks in our name and
/// a node of Stoker can be the lake of another one.
fn kept_name(name: &str) -> Cow<'_, str> {
    if is_meta_reserved(name.trim_start_matches(ESCAPE)) {
        format!("{ESCAPE}{name}").into()
    } else {
        name.into()
    }
}

/// The name that was sent.
fn shown_name(kept: &str) -> &str {
    let is_escaped = is_meta_reserved(kept.trim_start_matches(ESCAPE));
    kept.strip_prefix(ESCAPE).filter(|_| is_escaped).unwrap_or(kept)
}

/// What cannot be a header (another door may have stored it) is left out.
fn insert(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) =
        (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
    {
        headers.insert(name, value);
    }
}

/// A header's value as text: UTF-8 if it is, else Latin-1.
fn text(value: &HeaderValue) -> String {
    let bytes = value.as_bytes().trim_ascii();
    String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| bytes.iter().copied().map(char::from).collect())
}

/// `aws-chunked` says how the body travels, not what it is. The rest stays as it was written.
fn without_aws_chunked(value: &str) -> String {
    let is_content = |coding: &&str| !coding.trim().eq_ignore_ascii_case("aws-chunked");
    let rest: Vec<&str> = value.split(',').filter(is_content).collect();
    rest.join(",").trim().to_owned()
}

/// Headers of SSE-C, without `x-amz-`.
fn is_customer_key(rest: &str) -> bool {
    rest.strip_prefix("copy-source-").unwrap_or(rest).starts_with("server-side-encryption-customer-")
}

/// Refuses a key for something that is not encrypted with one, as S3 does.
pub(crate) fn refuse_customer_key(headers: &HeaderMap) -> Result<()> {
    let named = |name: &&str| name.strip_prefix("x-amz-").is_some_and(is_customer_key);
    match headers.keys().map(HeaderName::as_str).find(named) {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            Code::InvalidRequest,
            "The encryption parameters are not applicable to this object.",
        )
        .with("Header", name)),
    }
}

/// Refuses headers that ask for something that would not happen.
fn refuse_unsupported(headers: &HeaderMap) -> Result<()> {
    for (name, value) in headers {
        let name = name.as_str();
        let Some(rest) = name.strip_prefix("x-amz-") else {
            continue;
        };
        let value = value.as_bytes();
        if rest == "acl" && !matches!(value, b"private" | b"bucket-owner-full-control" | b"bucket-owner-read")
        {
            return Err(Refusal::new(Code::AccessControlListNotSupported, "The bucket does not allow ACLs."));
        }
        if rest.starts_with("grant-") {
            return Err(Refusal::new(Code::AccessControlListNotSupported, "The bucket does not allow ACLs."));
        }
        if rest == "storage-class" && !STORAGE_CLASSES.iter().any(|class| class.as_bytes() == value) {
            return Err(Refusal::new(
                Code::InvalidStorageClass,
                "The storage class you specified is not valid",
            ));
        }
        if is_customer_key(rest) {
            return Err(Refusal::new(
                Code::NotImplemented,
                "Server-side encryption with keys of the customer (SSE-C) is not implemented: nothing was written.",
            )
            .with("Header", name));
        }
        if rest.starts_with("server-side-encryption")
            || rest == "website-redirect-location"
            || rest == "write-offset-bytes"
        {
            return Err(Refusal::new(
                Code::NotImplemented,
                "A header you provided implies functionality that is not implemented.",
            )
            .with("Header", name));
        }
    }
    Ok(())
}

/// Tags as `x-amz-tagging` carries them.
pub(crate) fn tags_of_header(headers: &HeaderMap) -> Result<Vec<(String, String)>> {
    let Some(value) = headers.get("x-amz-tagging") else {
        return Ok(Vec::new());
    };
    let decoded = |text: &[u8]| {
        percent::decode(text, Plus::Space).and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
            Refusal::new(
                Code::InvalidArgument,
                "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag \
                 name duplicates.",
            )
        })
    };
    let mut tags = Vec::new();
    for pair in value.as_bytes().split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
        let middle = pair.iter().position(|&byte| byte == b'=');
        let (key, value) = middle.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
        tags.push((decoded(key)?, decoded(value)?));
    }
    check_tags(&tags)?;
    Ok(tags)
}

/// Refuses tags that S3 would refuse.
pub(crate) fn check_tags(tags: &[(String, String)]) -> Result<()> {
    if tags.len() > TAGS_MAX {
        return Err(Refusal::new(Code::InvalidTag, "Object tags cannot be greater than 10."));
    }
    check_each_tag(tags)
}

/// The same for a bucket.
pub(crate) fn check_bucket_tags(tags: &[(String, String)]) -> Result<()> {
    if tags.len() > BUCKET_TAGS_MAX {
        return Err(Refusal::new(Code::InvalidTag, "Bucket tag count cannot be greater than 50"));
    }
    check_each_tag(tags)
}

fn check_each_tag(tags: &[(String, String)]) -> Result<()> {
    for (index, (key, value)) in tags.iter().enumerate() {
        let (key_chars, value_chars) = (key.chars().count(), value.chars().count());
        if key_chars == 0 || key_chars > TAG_KEY_CHARS_MAX {
            return Err(Refusal::new(Code::InvalidTag, "The TagKey you have provided is invalid."));
        }
        if value_chars > TAG_VALUE_CHARS_MAX {
            return Err(Refusal::new(Code::InvalidTag, "The TagValue you have provided is invalid."));
        }
        if tags[..index].iter().any(|(other, _)| other == key) {
            return Err(Refusal::new(Code::InvalidTag, "Cannot provide multiple tags with the same key."));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Attributes> {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| {
                (name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
            })
            .collect();
        of_headers(&headers, &Access { uid: 7, gid: 8, ..Access::default() })
    }

    #[test]
    fn names_like_ours_are_kept_as_others_and_shown_as_sent() {
        let check = |sent: &str, kept: &str| {
            assert_eq!(kept_name(sent), kept);
            assert_eq!(shown_name(kept), sent);
        };
        check("a", "a");
        check("stoker-etag", "x-stoker-etag");
        check("x-stoker-etag", "x-x-stoker-etag");
        check("x-a", "x-a");
        check("stoker-set", "stoker-set");
        check("x-stoker-set", "x-stoker-set");
    }

    #[test]
    fn properties_come_back_as_they_were_sent() {
        let pairs = [
            ("content-type", "text/plain"),
            ("cache-control", "no-cache"),
            ("content-encoding", "aws-chunked, gzip"),
            ("x-amz-meta-name", "wert ä"),
            ("x-amz-tagging", "a=1&b%20c=%26"),
        ];
        let attributes = read(&pairs).unwrap();
        assert_eq!(attributes.owner, Some((7, 8)));
        assert_eq!(attributes.tags, [("a".to_owned(), "1".to_owned()), ("b c".to_owned(), "&".to_owned())]);
        let mut headers = HeaderMap::new();
        into_headers(&attributes, &mut headers);
        assert_eq!(headers["content-type"], "text/plain");
        assert_eq!(headers["content-encoding"], "gzip");
        assert_eq!(headers["x-amz-meta-name"].as_bytes(), "wert ä".as_bytes());
        assert_eq!(headers["x-amz-tagging-count"], "2");
        assert_eq!(read(&[("content-encoding", "aws-chunked")]).unwrap().headers, []);
        for (sent, kept) in [
            ("gzip, deflate", "gzip, deflate"),
            ("gzip,deflate", "gzip,deflate"),
            ("deflate , gzip", "deflate , gzip"),
            ("aws-chunked,gzip, br", "gzip, br"),
            ("gzip, AWS-Chunked, br", "gzip, br"),
            ("gzip,aws-chunked", "gzip"),
        ] {
            let found = read(&[("content-encoding", sent)]).unwrap().headers;
            assert_eq!(found, [("content-encoding".to_owned(), kept.to_owned())], "{sent}");
        }
    }

    #[test]
    fn the_type_has_a_default() {
        let mut headers = HeaderMap::new();
        into_headers(&Attributes::default(), &mut headers);
        assert_eq!(headers["content-type"], "binary/octet-stream");
    }

    #[test]
    fn what_would_not_happen_is_refused() {
        let long = "x".repeat(2049);
        let many: String = (0..11).map(|n| format!("k{n}=v&")).collect();
        for (name, value, code) in [
            ("x-amz-acl", "public-read", Code::AccessControlListNotSupported),
            ("x-amz-grant-read", "id=1", Code::AccessControlListNotSupported),
            ("x-amz-storage-class", "COLD", Code::InvalidStorageClass),
            ("x-amz-server-side-encryption-customer-algorithm", "AES256", Code::NotImplemented),
            ("x-amz-server-side-encryption", "AES256", Code::NotImplemented),
            ("x-amz-object-lock-mode", "GOVERNANCE", Code::InvalidArgument),
            ("x-amz-meta-a", &long, Code::MetadataTooLarge),
            ("x-amz-tagging", "a=1&a=2", Code::InvalidTag),
            ("x-amz-tagging", &many, Code::InvalidTag),
            ("x-amz-tagging", "=1", Code::InvalidTag),
            ("x-amz-tagging", "%zz", Code::InvalidArgument),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err().code, code, "{name}");
        }
        for fine in [
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD_IA"),
            ("x-amz-meta-a", &long[..2040]),
        ] {
            assert!(read(&[fine]).is_ok(), "{}", fine.0);
        }
    }
}
