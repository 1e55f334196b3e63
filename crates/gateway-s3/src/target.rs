//! What a request is about: from host and path to volume and key. Paths are never normalised: `..`, `//` and control
//! characters are parts of keys like any other.

use stoker_store::{KEY_LEN_MAX, Key, check_bucket_name};

use crate::percent::{self, Plus};
use crate::refusal::{Code, Refusal, Result};

/// What a request is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The service.
    Root,
    /// A volume.
    Volume(String),
    /// A file.
    Object(String, Key),
}

impl Target {
    /// Reads host and raw path. A host below one of the domains names the volume; any other host means path style.
    pub(crate) fn parse(host: Option<&str>, raw_path: &str, domains: &[String]) -> Result<Target> {
        let Some(path) = raw_path.strip_prefix('/') else {
            return Err(Refusal::new(Code::InvalidURI, "The path has to start with a slash."));
        };
        let (volume, raw_key) = match host.and_then(|host| volume_of_host(host, domains)) {
            Some(volume) => (volume.to_owned(), path),
            None if path.is_empty() => return Ok(Target::Root),
            None => {
                let (volume, key) = path.split_once('/').unwrap_or((path, ""));
                (text(volume)?, key)
            }
        };
        if let Err(error) = check_bucket_name(&volume) {
            return Err(Refusal::from(error).with("BucketName", volume));
        }
        if raw_key.is_empty() {
            return Ok(Target::Volume(volume));
        }
        Ok(Target::Object(volume, key_of(text(raw_key)?)?))
    }

    /// The volume, if there is one.
    pub(crate) fn volume(&self) -> Option<&str> {
        match self {
            Target::Root => None,
            Target::Volume(volume) | Target::Object(volume, _) => Some(volume),
        }
    }
}

/// Takes a key that was decoded already.
pub(crate) fn key_of(text: String) -> Result<Key> {
    if text.len() > KEY_LEN_MAX {
        let length = text.len();
        return Err(Refusal::new(Code::KeyTooLongError, "Your key is too long.")
            .with("Size", length.to_string())
            .with("MaxSizeAllowed", KEY_LEN_MAX.to_string()));
    }
    Ok(Key::new(text)?)
}

fn text(raw: &str) -> Result<String> {
    percent::decode(raw.as_bytes(), Plus::Plus)
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| Refusal::new(Code::InvalidURI, "The path is not properly percent-encoded UTF-8."))
}

/// The label in front of one of the domains.
pub(crate) fn volume_of_host<'h>(host: &'h str, domains: &[String]) -> Option<&'h str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    domains.iter().find_map(|domain| {
        let dot = name.len().checked_sub(domain.len() + 1)?;
        let (volume, rest) = (name.get(..dot)?, name.get(dot..)?);
        let below = rest.starts_with('.') && rest[1..].eq_ignore_ascii_case(domain) && !volume.is_empty();
        below.then_some(volume)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(host: &str, path: &str) -> Result<Target> {
        Target::parse(Some(host), path, &["s3.example.com".to_owned(), "localhost".to_owned()])
    }

    fn object(volume: &str, key: &[u8]) -> Target {
        Target::Object(volume.to_owned(), Key::new(key).unwrap())
    }

    #[test]
    fn both_styles_name_the_same() {
        for (host, path) in [
            ("127.0.0.1:9000", "/vol/a/b"),
            ("vol.s3.example.com", "/a/b"),
            ("vol.S3.Example.com:80", "/a/b"),
            ("vol.localhost:9000", "/a/b"),
            ("s3.example.com", "/vol/a/b"),
            ("other.org", "/vol/a/b"),
        ] {
            assert_eq!(parse(host, path).unwrap(), object("vol", b"a/b"), "{host} {path}");
        }
        assert_eq!(parse("my.vol.localhost", "/").unwrap(), Target::Volume("my.vol".to_owned()));
        assert_eq!(parse("localhost", "/vol/").unwrap(), Target::Volume("vol".to_owned()));
        assert_eq!(parse("localhost", "/").unwrap(), Target::Root);
    }

    #[test]
    fn keys_are_decoded_once_and_never_normalised() {
        for (path, key) in [
            ("/vol/a//b/../c/", &b"a//b/../c/"[..]),
            ("/vol//a", b"/a"),
            ("/vol/%2e%2e", b".."),
            ("/vol/a%252F", b"a%2F"),
            ("/vol/a%2Fb", b"a/b"),
            ("/vol/a+b%20c", b"a+b c"),
            ("/vol/%01%0d%7f", b"\x01\r\x7f"),
            ("/vol/%C3%A4", "ä".as_bytes()),
        ] {
            assert_eq!(parse("h", path).unwrap(), object("vol", key), "{path}");
        }
    }

    #[test]
    fn bad_names_get_their_codes() {
        let long = format!("/vol/{}", "k".repeat(1025));
        for (path, code) in [
            ("/vol/%00", Code::InvalidArgument),
            ("/vol/%", Code::InvalidURI),
            ("/vol/%ff", Code::InvalidURI),
            ("/Vol/a", Code::InvalidBucketName),
            ("/..%2Fa/b", Code::InvalidBucketName),
            ("//a", Code::InvalidBucketName),
            ("*", Code::InvalidURI),
            (&long, Code::KeyTooLongError),
        ] {
            assert_eq!(parse("h", path).unwrap_err().code, code, "{path}");
        }
        let longest = format!("/vol/{}", "k".repeat(1024));
        assert!(parse("h", &longest).is_ok());
    }
}
