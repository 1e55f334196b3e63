//! Attributes as headers of S3, there and back.
//!
//! A header holds printable ASCII. Other values of user metadata travel as RFC 2047 words
//! (`=?UTF-8?B?...?=`), which is also how S3 itself answers them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;

use crate::error::{LakeError, Result};
use crate::key::check_meta;
use crate::types::Attributes;

const HEADERS: [&str; 5] =
    ["cache-control", "content-disposition", "content-encoding", "content-language", "expires"];
const META: &str = "x-amz-meta-";
/// Most bytes of user metadata. Some servers count the prefix of the names, so that it is counted here.
pub(super) const META_BYTES_MAX: usize = 2 << 10;
const WORD_START: &str = "=?UTF-8?B?";
const WORD_END: &str = "?=";

/// Headers that give an object its attributes.
pub(super) fn to_headers(attributes: &Attributes) -> Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    if let Some(content_type) = &attributes.content_type {
        headers.push(("content-type".to_owned(), content_type.clone()));
    }
    for (name, value) in &attributes.headers {
        if !HEADERS.contains(&name.as_str()) {
            return Err(LakeError::invalid(format!("`{name}` is not a header that S3 keeps with an object")));
        }
        headers.push((name.clone(), value.clone()));
    }
    for (name, value) in &attributes.meta {
        let is_legal =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_legal) {
            return Err(LakeError::invalid(format!("`{name}` is not a name of metadata that S3 can hold")));
        }
        headers.push((format!("{META}{name}"), encode_value(value)));
    }
    Ok(headers)
}

/// Whether S3 would take them.
pub(super) fn check(attributes: &Attributes) -> Result<()> {
    let headers = to_headers(attributes)?;
    if let Some((name, _)) = headers.iter().find(|(_, value)| http::HeaderValue::from_str(value).is_err()) {
        return Err(LakeError::invalid(format!("the value of `{name}` is not one that a header can hold")));
    }
    let meta = headers.iter().filter(|(name, _)| name.starts_with(META));
    check_meta(meta.map(|(name, value)| name.len() + value.len()).sum(), META_BYTES_MAX)
}

/// The attributes that an answer states.
pub(super) fn from_headers(headers: &HeaderMap) -> Attributes {
    let text =
        |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let mut meta: Vec<(String, String)> = headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix(META)?;
            Some((name.to_owned(), decode_value(&String::from_utf8_lossy(value.as_bytes()))))
        })
        .collect();
    meta.sort();
    Attributes {
        content_type: text("content-type"),
        headers: HEADERS.iter().filter_map(|&name| Some((name.to_owned(), text(name)?))).collect(),
        meta,
    }
}

fn encode_value(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && value.trim() == value
        && !value.contains("  ")
        && !value.contains("=?");
    if is_plain { value.to_owned() } else { format!("{WORD_START}{}{WORD_END}", BASE64.encode(value)) }
}

fn decode_value(value: &str) -> String {
    let decode = || {
        let word = value.get(..WORD_START.len())?.eq_ignore_ascii_case(WORD_START);
        let word = value[WORD_START.len()..].strip_suffix(WORD_END).filter(|_| word)?;
        String::from_utf8(BASE64.decode(word).ok()?).ok()
    };
    decode().unwrap_or_else(|| value.to_owned())
}

/// The CRC-64/NVME as S3 writes it.
pub(super) fn crc64_text(crc64: u64) -> String {
    BASE64.encode(crc64.to_be_bytes())
}

/// The CRC-64/NVME from what S3 wrote.
pub(super) fn crc64_from(text: &str) -> Option<u64> {
    Some(u64::from_be_bytes(BASE64.decode(text).ok()?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    fn round_trip(attributes: &Attributes) -> Attributes {
        let mut map = HeaderMap::new();
        for (name, value) in to_headers(attributes).unwrap() {
            map.insert(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(&value).unwrap(),
            );
        }
        from_headers(&map)
    }

    proptest! {
        #[test]
        fn every_value_survives(meta in prop::collection::btree_map("[a-z0-9_.-]{1,8}", ".{0,20}", 0..4)) {
            let attributes = Attributes {
                content_type: Some("text/plain".into()),
                headers: vec![("cache-control".into(), "no-cache".into()), ("expires".into(), "0".into())],
                meta: meta.into_iter().collect(),
            };
            prop_assert_eq!(round_trip(&attributes), attributes);
        }
    }

    #[test]
    fn odd_values_travel_as_words() {
        assert_eq!(encode_value("plain"), "plain");
        assert_eq!(encode_value("\u{e9}"), "=?UTF-8?B?w6k=?=");
        assert_eq!(decode_value("=?utf-8?B?w6k=?="), "\u{e9}");
        assert_eq!(decode_value("=?UTF-8?B?!!?="), "=?UTF-8?B?!!?=");
    }

    #[test]
    fn names_that_are_no_headers_are_refused() {
        for name in ["", "a b", "\u{e9}", "A", "a:b"] {
            let attributes = Attributes { meta: vec![(name.into(), "x".into())], ..Attributes::default() };
            assert!(to_headers(&attributes).is_err(), "{name}");
        }
        let attributes = Attributes { headers: vec![("host".into(), "x".into())], ..Attributes::default() };
        assert!(to_headers(&attributes).is_err());
    }

    #[test]
    fn limits_are_those_of_requests() {
        let attributes = |name: &str, value: String| Attributes {
            meta: vec![(name.to_owned(), value)],
            ..Attributes::default()
        };
        let room = META_BYTES_MAX - "x-amz-meta-a".len();
        assert!(check(&attributes("a", "v".repeat(room))).is_ok());
        for (bad, hint) in [
            (attributes("a", "v".repeat(room + 1)), "at most 2048 bytes"),
            // It travels as a word, which is longer.
            (attributes("a", "\u{e9}".repeat(room / 2)), "at most 2048 bytes"),
            (attributes("a+b", String::new()), "`a+b`"),
            (Attributes { content_type: Some("a\nb".into()), ..Attributes::default() }, "content-type"),
        ] {
            let error = check(&bad).unwrap_err();
            assert!(error.message.contains(hint), "{error}");
        }
    }

    #[test]
    fn checksums_are_written_like_s3_does() {
        // The check value of CRC-64/NVME.
        let crc64 = stoker_format::crc64(b"123456789");
        assert_eq!(crc64, 0xae8b_1486_0a79_9888);
        assert_eq!(crc64_from(&crc64_text(crc64)), Some(crc64));
        assert_eq!(crc64_from("AAAA"), None);
    }
}
