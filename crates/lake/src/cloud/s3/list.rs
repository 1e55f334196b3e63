//! Listings.

use http::Method;

use super::S3Lake;
use super::http::{Request, plain_etag};
use crate::error::{LakeError, Result};
use crate::key::KEY_BYTES_MAX;
use crate::types::{ListPage, ObjectInfo};
use crate::url::percent_decode;

/// Most keys of one answer.
const LIMIT_MAX: usize = 1000;

impl S3Lake {
    pub(super) async fn list_objects(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> Result<ListPage> {
        if limit == 0 {
            return Err(LakeError::invalid("a listing of nothing; ask for at least one entry"));
        }
        let root = &self.connection.config().root;
        let limit = limit.min(LIMIT_MAX);
        let whole_prefix = format!("{root}{}", text(prefix)?);
        let mut request = Request::new(Method::GET, "")
            .query("list-type", "2")
            .query("encoding-type", "url")
            .query("max-keys", limit.to_string());
        if !whole_prefix.is_empty() {
            request = request.query("prefix", whole_prefix);
        }
        if let Some(after) = after {
            request = request.query("start-after", start_after(root, prefix, after, delimiter)?);
        }
        if let Some(delimiter) = delimiter {
            if !delimiter.is_ascii() {
                return Err(LakeError::invalid("a delimiter is an ASCII character"));
            }
            request = request.query("delimiter", char::from(delimiter).to_string());
        }
        let action = format!("list `{}`", String::from_utf8_lossy(prefix));
        let answer = self.document(request, &action).await?;
        let bad = || LakeError::corrupt(format!("cannot {action}: the answer is damaged"));
        let is_encoded = answer.text_of("EncodingType") == "url";
        let relative = |text: &str| -> Option<Vec<u8>> {
            let key = if is_encoded { decode(text)? } else { text.as_bytes().to_vec() };
            key.strip_prefix(root.as_bytes()).map(<[u8]>::to_vec)
        };
        let is_new = |key: &[u8]| after.is_none_or(|after| key > after);
        let mut page = ListPage::default();
        let mut last: Option<Vec<u8>> = None;
        for object in answer.all("Contents") {
            let key = relative(object.text_of("Key")).ok_or_else(bad)?;
            last = last.max(Some(key.clone()));
            // The root itself may be an object, made by a console; it has no key here.
            if is_new(&key) && !key.is_empty() {
                page.objects.push(ObjectInfo {
                    size: object.text_of("Size").parse().map_err(|_| bad())?,
                    etag: plain_etag(object.text_of("ETag")),
                    modified_ms: iso_date_ms(object.text_of("LastModified")).unwrap_or(0),
                    attributes: None,
                    crc64: None,
                    key,
                });
            }
        }
        for group in answer.all("CommonPrefixes") {
            let group = relative(group.text_of("Prefix")).ok_or_else(bad)?;
            last = last.max(Some(group.clone()));
            if is_new(&group) {
                page.prefixes.push(group);
            }
        }
        page.objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        page.prefixes.sort_unstable();
        if answer.text_of("IsTruncated") == "true" {
            page.next = last;
        }
        Ok(page)
    }
}

/// The key after which a server has to go on.
///
/// Behind a group that is the greatest key that the group can hold, because the keys of the group come after its
/// name and would make the group once more.
fn start_after(root: &str, prefix: &[u8], after: &[u8], delimiter: Option<u8>) -> Result<String> {
    let after_text = text(after)?;
    let group = delimiter.and_then(|delimiter| {
        let rest = after.strip_prefix(prefix)?;
        let at = rest.iter().position(|&byte| byte == delimiter)?;
        Some(&after_text[..prefix.len() + at + 1])
    });
    let Some(group) = group else { return Ok(format!("{root}{after_text}")) };
    let mut key = format!("{root}{group}");
    for greatest in ['\u{10ffff}', '\u{ffff}', '\u{7ff}', '\u{7f}'] {
        while key.len() + greatest.len_utf8() <= KEY_BYTES_MAX {
            key.push(greatest);
        }
    }
    Ok(key)
}

fn text(key: &[u8]) -> Result<&str> {
    std::str::from_utf8(key).map_err(|_| LakeError::invalid("a key of S3 is UTF-8; this one is not"))
}

/// Amazon writes a blank as `+`, others as `%20`; a plus itself is `%2B` everywhere.
fn decode(text: &str) -> Option<Vec<u8>> {
    percent_decode(&text.replace('+', " "))
}

/// Milliseconds since 1970 of `2009-10-12T17:50:30.000Z`.
fn iso_date_ms(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    let ms = if text.get(19..20) == Some(".") { number(20..23).unwrap_or(0) } else { 0 };
    Some((days * 86_400 + seconds) * 1000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_listings() {
        assert_eq!(iso_date_ms("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(iso_date_ms("2000-02-29T00:00:00Z"), Some(951_782_400_000));
        assert_eq!(iso_date_ms("2023-11-14T22:13:20.123Z"), Some(1_700_000_000_123));
        for text in ["", "2023", "x023-11-14T22:13:20Z", "1969-01-01T00:00:00Z", "2023-13-01T00:00:00Z"] {
            assert_eq!(iso_date_ms(text), None);
        }
    }

    #[test]
    fn a_group_is_left_behind_its_last_key() {
        assert_eq!(start_after("r/", b"", b"a", Some(b'/')).unwrap(), "r/a");
        assert_eq!(start_after("", b"", b"a/b", None).unwrap(), "a/b");
        assert_eq!(start_after("", b"a/", b"a/b", Some(b'/')).unwrap(), "a/b");
        for group in ["a/", "ab/", "abc/", "abcd/"] {
            let key = start_after("", b"", group.as_bytes(), Some(b'/')).unwrap();
            assert!(key.starts_with(group) && key.len() == KEY_BYTES_MAX);
            let mut greater = group.to_owned();
            while greater.len() + 4 <= KEY_BYTES_MAX {
                greater.push('\u{10ffff}');
            }
            assert!(key >= greater);
        }
    }

    #[test]
    fn names_in_listings_are_decoded() {
        assert_eq!(decode("a+b%2Bc%20d%C3%A9").unwrap(), "a b+c d\u{e9}".as_bytes());
        assert_eq!(decode("%zz"), None);
    }
}
