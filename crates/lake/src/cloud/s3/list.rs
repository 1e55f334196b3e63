//! Listings.

use http::Method;

use super::S3Lake;
use super::http::{Request, plain_etag};
use crate::cloud::group::start_after;
use crate::error::{LakeError, Result};
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
    fn names_in_listings_are_decoded() {
        assert_eq!(decode("a+b%2Bc%20d%C3%A9").unwrap(), "a b+c d\u{e9}".as_bytes());
        assert_eq!(decode("%zz"), None);
    }
}
