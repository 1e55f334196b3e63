//! What a path of the registry means.

use crate::digest::Digest;

/// Longest name of a repository.
const NAME_LEN_MAX: usize = 255;
/// Longest tag.
const TAG_LEN_MAX: usize = 128;

/// A tag or a digest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reference {
    /// May be another content tomorrow.
    Tag(String),
    /// Is the content.
    Digest(Digest),
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Whether this is a registry.
    Base,
    /// A manifest.
    Manifest(String, Reference),
    /// A blob.
    Blob(String, Digest),
    /// All tags of a repository.
    Tags(String),
}

/// What is wrong with a path: the code of the specification, and words.
pub type Wrong = (&'static str, &'static str);

impl Asked {
    /// Reads a path.
    pub fn parse(path: &str) -> Result<Asked, Wrong> {
        let rest = path.strip_prefix("/v2").ok_or(("UNSUPPORTED", "everything is below /v2/"))?;
        let rest = match rest {
            "" | "/" => return Ok(Asked::Base),
            rest => rest.strip_prefix('/').ok_or(("UNSUPPORTED", "everything is below /v2/"))?,
        };
        if let Some(name) = rest.strip_suffix("/tags/list") {
            return Ok(Asked::Tags(repository(name)?));
        }
        let (head, last) =
            rest.rsplit_once('/').ok_or(("UNSUPPORTED", "there are manifests, blobs and tags"))?;
        match head.rsplit_once('/') {
            Some((name, "manifests")) => Ok(Asked::Manifest(repository(name)?, reference(last)?)),
            Some((name, "blobs")) => {
                let digest =
                    Digest::parse(last).ok_or(("DIGEST_INVALID", "a digest is sha256: and 64 hex digits"))?;
                Ok(Asked::Blob(repository(name)?, digest))
            }
            _ => Err(("UNSUPPORTED", "there are manifests, blobs and tags, and nothing is written")),
        }
    }
}

/// Parts of lower-case letters and digits, with `.`, `_`, `__` or dashes between them, and `/` between parts.
fn repository(name: &str) -> Result<String, Wrong> {
    let wrong =
        ("NAME_INVALID", "a repository is named with lower-case letters, digits, `.`, `_`, `-` and `/`");
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|byte| is_plain(*byte))
            && bytes.last().is_some_and(|byte| is_plain(*byte))
            && bytes.iter().all(|byte| is_plain(*byte) || b"._-".contains(byte))
            && !part.contains("..")
    };
    let is_sound = name.len() <= NAME_LEN_MAX && name.split('/').all(is_part);
    if is_sound { Ok(name.to_owned()) } else { Err(wrong) }
}

fn reference(text: &str) -> Result<Reference, Wrong> {
    if text.contains(':') {
        let digest =
            Digest::parse(text).ok_or(("DIGEST_INVALID", "a digest is sha256: and 64 hex digits"))?;
        return Ok(Reference::Digest(digest));
    }
    let bytes = text.as_bytes();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_sound = text.len() <= TAG_LEN_MAX
        && bytes.first().is_some_and(|byte| is_word(*byte))
        && bytes.iter().all(|byte| is_word(*byte) || b".-".contains(byte));
    match is_sound {
        true => Ok(Reference::Tag(text.to_owned())),
        false => Err(("MANIFEST_INVALID", "a tag has letters, digits, `_`, `.` and `-`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        let hex = "ab".repeat(32);
        let digest = Digest::parse(&format!("sha256:{hex}")).unwrap();
        let name = || "library/alpine".to_owned();
        for (path, expect) in [
            ("/v2".to_owned(), Ok(Asked::Base)),
            ("/v2/".to_owned(), Ok(Asked::Base)),
            ("/v2/library/alpine/tags/list".to_owned(), Ok(Asked::Tags(name()))),
            (
                "/v2/library/alpine/manifests/3.20-r1".to_owned(),
                Ok(Asked::Manifest(name(), Reference::Tag("3.20-r1".to_owned()))),
            ),
            (
                format!("/v2/library/alpine/manifests/sha256:{hex}"),
                Ok(Asked::Manifest(name(), Reference::Digest(digest.clone()))),
            ),
            (format!("/v2/library/alpine/blobs/sha256:{hex}"), Ok(Asked::Blob(name(), digest))),
            (format!("/v2/a/blobs/sha256:{}", &hex[1..]), Err("DIGEST_INVALID")),
            ("/v2/a/blobs/uploads".to_owned(), Err("DIGEST_INVALID")),
            ("/v2/../etc/manifests/a".to_owned(), Err("NAME_INVALID")),
            ("/v2/A/manifests/a".to_owned(), Err("NAME_INVALID")),
            ("/v2/a//b/manifests/a".to_owned(), Err("NAME_INVALID")),
            ("/v2/a/manifests/..".to_owned(), Err("MANIFEST_INVALID")),
            ("/v2/a/manifests/a%2fb".to_owned(), Err("MANIFEST_INVALID")),
            ("/v2/_catalog".to_owned(), Err("UNSUPPORTED")),
            ("/v2x".to_owned(), Err("UNSUPPORTED")),
            ("/".to_owned(), Err("UNSUPPORTED")),
        ] {
            assert_eq!(Asked::parse(&path).map_err(|(code, _)| code), expect, "{path}");
        }
        assert!(Asked::parse(&format!("/v2/{}/manifests/a", "a".repeat(256))).is_err());
    }
}
