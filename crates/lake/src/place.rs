//! Where a lake is. Two urls may look different and lead to the same objects.

use crate::cloud;
use crate::error::Result;
use crate::options::LakeOptions;
use crate::url::{LakeUrl, Scheme};

/// Where a lake is: server, bucket and the segments of its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    scheme: Scheme,
    /// Host and port, or the account; empty for a directory.
    server: String,
    bucket: String,
    segments: Vec<Vec<u8>>,
}

impl Place {
    /// Reads a url, as [`open`](crate::open) does.
    pub fn of(url: &str, options: &LakeOptions) -> Result<Place> {
        let url = LakeUrl::parse(url)?;
        let server = match url.scheme {
            Scheme::File => String::new(),
            Scheme::S3 => server_of(&cloud::S3Lake::endpoint(&url, options)?),
            Scheme::Gcs => options.endpoint.as_deref().map(server_of).unwrap_or_default(),
            Scheme::Azure => account_of(&url, options),
        };
        let segments = match url.scheme {
            Scheme::File => directory_segments(&url.path),
            _ if url.path.is_empty() => Vec::new(),
            // Keys are never normalised: every segment counts.
            _ => url.path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect(),
        };
        Ok(Place { scheme: url.scheme, server, bucket: url.bucket, segments })
    }

    /// A directory may need a disk or another machine to be opened; the others are asked later.
    pub fn is_directory(&self) -> bool {
        self.scheme == Scheme::File
    }

    /// True if an object of one could be an object of the other.
    pub fn overlaps(&self, other: &Place) -> bool {
        let same = (self.scheme, &self.server, &self.bucket) == (other.scheme, &other.server, &other.bucket);
        let len = self.segments.len().min(other.segments.len());
        same && self.segments[..len] == other.segments[..len]
    }
}

/// Host and port of an endpoint. Amazon's buckets have one name in all regions.
fn server_of(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/').to_ascii_lowercase();
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host == "amazonaws.com" || host.ends_with(".amazonaws.com") {
        return "amazonaws.com".to_owned();
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = match (has_port, scheme) {
        (true, _) => "",
        (false, "http") => ":80",
        (false, _) => ":443",
    };
    format!("{host}{port}/{path}")
}

fn account_of(url: &LakeUrl, options: &LakeOptions) -> String {
    let named = url.account.clone().or_else(|| options.access_key_id.clone());
    let account = named.or_else(|| std::env::var("AZURE_STORAGE_ACCOUNT_NAME").ok()).unwrap_or_default();
    let endpoint = options.endpoint.as_deref().map(server_of).unwrap_or_default();
    format!("{account}@{endpoint}")
}

/// `.` and empty segments are nothing in a directory, and `..` takes one back.
fn directory_segments(path: &[u8]) -> Vec<Vec<u8>> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            name => segments.push(name.to_vec()),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(one: &str, other: &str) -> bool {
        let place = |url| Place::of(url, &LakeOptions::default()).unwrap();
        let (one, other) = (place(one), place(other));
        assert_eq!(one.overlaps(&other), other.overlaps(&one));
        one.overlaps(&other)
    }

    #[test]
    fn the_same_objects_by_other_names() {
        for (one, other) in [
            ("s3://b", "s3://b/p"),
            ("s3://b/p", "s3a://b/p/"),
            ("s3://b/p?endpoint=http://e:1", "s3://b/p/sub?endpoint=http://e:1"),
            ("s3://b/p?endpoint=http://E/", "s3://b/p/sub?region=x&endpoint=http%3A%2F%2Fe:80"),
            (
                "s3://b/p?endpoint=https://s3.eu-west-1.amazonaws.com",
                "s3://b?endpoint=https://s3.amazonaws.com",
            ),
            ("gs://b/p", "gcs://b/p/sub"),
            ("az://b@me/p", "abfss://b@me.dfs.core.windows.net/p/sub"),
            ("/lake", "file:///lake"),
            ("/lake/", "file://localhost/lake/a"),
            ("file:///la%6be/a", "/lake/./b/../a//c"),
            ("/", "/lake"),
        ] {
            assert!(overlap(one, other), "{one} {other}");
        }
    }

    #[test]
    fn other_objects() {
        for (one, other) in [
            ("s3://b/p", "s3://b/pq"),
            ("s3://b/p/a", "s3://b/p/b"),
            ("s3://b/a//b", "s3://b/a/b"),
            ("s3://b/p", "s3://c/p"),
            ("s3://b/p", "gs://b/p"),
            ("s3://b/p?endpoint=http://e:1", "s3://b/p?endpoint=http://e:2"),
            ("az://b@me/p", "az://b@you/p"),
            ("/lake", "/lakes"),
            ("/lake/a%2e", "file:///lake/a%2e"),
        ] {
            assert!(!overlap(one, other), "{one} {other}");
        }
    }
}
