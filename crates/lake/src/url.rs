//! The url of a lake: `s3://bucket/prefix?region=...`, `gs://`, `az://`, `file:///dir` or an absolute path.

use std::path::PathBuf;

use crate::error::{LakeError, Result};

/// A url, taken apart. `query` wins over nothing: whoever reads it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LakeUrl {
    pub scheme: Scheme,
    /// Bucket or container; empty for a directory.
    pub bucket: String,
    /// The account of an Azure container, if the url names it.
    pub account: Option<String>,
    /// Key prefix without slashes at its ends, or the directory.
    pub path: Vec<u8>,
    pub query: Vec<(String, String)>,
}

/// What kind of lake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    File,
    S3,
    Gcs,
    Azure,
}

impl LakeUrl {
    pub fn parse(url: &str) -> Result<LakeUrl> {
        if url.starts_with('/') {
            return Ok(LakeUrl::directory(url.as_bytes().to_vec()));
        }
        let bad = |why: &str| LakeError::invalid(format!("`{url}` is not a lake: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            bad("use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory or /directory")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = parse_query(query).ok_or_else(|| bad("the part behind `?` is damaged"))?;
        let scheme = match scheme {
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return Err(bad(
                        "a directory has an absolute path, with three slashes: file:///directory",
                    ));
                }
                if query.iter().any(|(name, _)| name != "umask") || query.len() > 1 {
                    return Err(bad(
                        "the only setting behind `?` of a directory is umask; a `?` in its name is %3F",
                    ));
                }
                let path = percent_decode(path).ok_or_else(|| bad("a `%` in it stands alone; write %25"))?;
                return Ok(LakeUrl { query, ..LakeUrl::directory(path) });
            }
            "s3" | "s3a" => Scheme::S3,
            "gs" | "gcs" => Scheme::Gcs,
            "az" | "azure" | "abfs" | "abfss" => Scheme::Azure,
            other => return Err(bad(&format!("`{other}` is not one of s3, gs, az and file"))),
        };
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, account) = match host.split_once('@') {
            Some((bucket, account)) if scheme == Scheme::Azure => {
                // Both `container@account` and the long host name.
                (bucket, Some(account.split('.').next().unwrap_or(account).to_owned()))
            }
            Some(_) => return Err(bad("credentials do not belong into a url; use the environment")),
            None => (host, None),
        };
        if bucket.is_empty() {
            return Err(bad("it names no bucket"));
        }
        if !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte)) {
            return Err(bad("a bucket has letters, digits, `-`, `.` and `_`"));
        }
        Ok(LakeUrl {
            scheme,
            bucket: bucket.to_owned(),
            account,
            path: prefix.trim_matches('/').as_bytes().to_vec(),
            query,
        })
    }

    /// The directory of a `file` lake.
    pub fn directory_path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        PathBuf::from(std::ffi::OsString::from_vec(self.path.clone()))
    }

    fn directory(path: Vec<u8>) -> LakeUrl {
        LakeUrl { scheme: Scheme::File, bucket: String::new(), account: None, path, query: Vec::new() }
    }
}

fn parse_query(query: &str) -> Option<Vec<(String, String)>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name.to_owned(), String::from_utf8(percent_decode(value)?).ok()?))
        })
        .collect()
}

/// Bytes from text in which `%XX` stands for a byte. `None` if a `%` does not.
pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let code = std::str::from_utf8(rest.get(..2)?).ok()?;
            if !code.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(code, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, scheme: Scheme, bucket: &str, path: &str) -> LakeUrl {
        let parsed = LakeUrl::parse(url).unwrap();
        assert_eq!(
            (parsed.scheme, parsed.bucket.as_str(), parsed.path.as_slice()),
            (scheme, bucket, path.as_bytes())
        );
        parsed
    }

    #[test]
    fn urls_of_every_kind() {
        check("s3://bucket", Scheme::S3, "bucket", "");
        check("s3://bucket/", Scheme::S3, "bucket", "");
        check("s3://bucket/a/b/", Scheme::S3, "bucket", "a/b");
        check("gs://my.bucket_1/x", Scheme::Gcs, "my.bucket_1", "x");
        check("az://box/x", Scheme::Azure, "box", "x");
        assert_eq!(check("az://box@me/x", Scheme::Azure, "box", "x").account.as_deref(), Some("me"));
        let long = check("abfss://box@me.dfs.core.windows.net/x", Scheme::Azure, "box", "x");
        assert_eq!(long.account.as_deref(), Some("me"));
        check("file:///mnt/lake", Scheme::File, "", "/mnt/lake");
        check("file:///mnt/a%20b%3F", Scheme::File, "", "/mnt/a b?");
        check("/mnt/a%20b?", Scheme::File, "", "/mnt/a%20b?");
        let query = check("s3://b/p?endpoint=http%3A%2F%2Fh:9000&region=x", Scheme::S3, "b", "p").query;
        assert_eq!(query[0], ("endpoint".to_owned(), "http://h:9000".to_owned()));
        assert_eq!(query[1], ("region".to_owned(), "x".to_owned()));
    }

    #[test]
    fn bad_urls_say_what_to_write() {
        for (url, hint) in [
            ("bucket", "s3://bucket/prefix"),
            ("s3://", "no bucket"),
            ("s3:///key", "no bucket"),
            ("s3://key:secret@bucket/", "environment"),
            ("s3://a b/", "letters"),
            ("ftp://x", "not one of"),
            ("file://dir", "three slashes"),
            ("file:///a%zz", "%25"),
            ("s3://b?region", "behind `?`"),
        ] {
            let error = LakeUrl::parse(url).unwrap_err();
            assert!(error.message.contains(hint), "{url}: {error}");
        }
    }
}
