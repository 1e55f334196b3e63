//! The header `x-amz-copy-source`. It is a form value, not a path: `+` is a space there, and a client that means a plus writes `%2B`.

use http::HeaderMap;
use stoker_store::{Key, check_bucket_name};

use crate::percent::{self, Plus};
use crate::refusal::{Code, Refusal, Result};
use crate::target::key_of;
use crate::versions::key_of_version;

const HEADER: &str = "x-amz-copy-source";
const VERSION: &[u8] = b"?versionId=";

/// Which file is to be copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopySource {
    pub(super) volume: String,
    pub(super) key: Key,
}

impl CopySource {
    /// Reads the header, once and strictly: a source that two readers could see differently would copy the wrong file.
    pub(super) fn of(headers: &HeaderMap) -> Result<CopySource> {
        let raw = headers.get(HEADER).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let (name, version) = match raw.windows(VERSION.len()).rposition(|window| window == VERSION) {
            Some(at) => (&raw[..at], Some(&raw[at + VERSION.len()..])),
            None => (raw, None),
        };
        let version = version.map(|version| std::str::from_utf8(version).unwrap_or("?"));
        let name = percent::decode(name, Plus::Space)
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| invalid("Copy Source must be URL-encoded UTF-8."))?;
        let name = name.strip_prefix('/').unwrap_or(&name);
        if name.starts_with("arn:") {
            return Err(Refusal::new(
                Code::NotImplemented,
                "The copy source has to be bucket/key: access points are not implemented.",
            ));
        }
        let (volume, key) = name.split_once('/').filter(|(_, key)| !key.is_empty()).ok_or_else(|| {
            invalid("Copy Source must mention the source bucket and key: sourcebucket/sourcekey.")
        })?;
        if let Err(error) = check_bucket_name(volume) {
            return Err(Refusal::from(error).with("BucketName", volume));
        }
        let key = key_of_version(&key_of(key.to_owned())?, version)?;
        Ok(CopySource { volume: volume.to_owned(), key })
    }
}

fn invalid(message: &'static str) -> Refusal {
    Refusal::new(Code::InvalidArgument, message).with("ArgumentName", HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CopySource> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
        CopySource::of(&headers)
    }

    #[test]
    fn a_plus_is_a_space_and_the_rest_is_decoded_once() {
        for (text, key) in [
            ("/vol/a+b", "a b"),
            ("vol/a+b", "a b"),
            ("vol/a%20b", "a b"),
            ("vol/a%2Bb", "a+b"),
            ("vol/a%2bb", "a+b"),
            ("vol%2Fa%2Fb", "a/b"),
            ("vol/a%252Bb", "a%2Bb"),
            ("vol/a%25b", "a%b"),
            ("vol/%C3%A4", "ä"),
            ("vol/ä", "ä"),
            ("vol//a", "/a"),
            ("vol/../a", "../a"),
            ("vol/a?b", "a?b"),
            ("vol/a?versionId=null", ".stoker-versions/a/null"),
            ("vol/a%3FversionId=7", "a?versionId=7"),
        ] {
            let source = CopySource { volume: "vol".to_owned(), key: Key::new(key).unwrap() };
            assert_eq!(read(text).unwrap(), source, "{text}");
        }
    }

    #[test]
    fn nonsense_gets_its_code() {
        let long = format!("vol/{}", "k".repeat(1025));
        for (text, code) in [
            ("", Code::InvalidArgument),
            ("vol", Code::InvalidArgument),
            ("vol/", Code::InvalidArgument),
            ("/vol/", Code::InvalidArgument),
            ("vol/%", Code::InvalidArgument),
            ("vol/%zz", Code::InvalidArgument),
            ("vol/%ff", Code::InvalidArgument),
            ("vol/a%00", Code::InvalidArgument),
            ("Vol/a", Code::InvalidBucketName),
            ("//a", Code::InvalidBucketName),
            ("vol/a?versionId=7", Code::NoSuchVersion),
            ("arn:aws:s3:us-east-1:123456789012:accesspoint/x/object/a", Code::NotImplemented),
            (&long, Code::KeyTooLongError),
        ] {
            assert_eq!(read(text).unwrap_err().code, code, "{text}");
        }
    }
}
