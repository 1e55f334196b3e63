//! Presigned URLs, so that a request is signed once and sent many times. Written apart from the gateway's own check of
//! signatures: a slip in either shows.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};

use crate::clock;

/// How long a URL is valid: longer than any run.
const EXPIRES_S: u32 = 12 * 3600;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// As the server calls its region.
    pub region: String,
}

/// What is signed.
pub struct Request<'a> {
    /// `GET`, `PUT`, `DELETE`.
    pub method: &'a str,
    /// As in the `Host` header.
    pub host: &'a str,
    /// The path with a leading slash. It holds nothing that would have to be escaped.
    pub path: &'a str,
}

/// Signs requests of one day for one region.
pub struct Signer {
    access_key: String,
    scope: String,
    /// `20130524T000000Z`.
    time: String,
    key: Key,
}

impl Signer {
    /// A signer whose URLs are valid from now on.
    pub fn new(credentials: &Credentials, unix_ms: u64) -> Signer {
        let time: String = clock::rfc3339(unix_ms).chars().filter(|c| !matches!(c, '-' | ':')).collect();
        let date = &time[..8];
        let first = format!("AWS4{}", credentials.secret_key);
        let key = [date, &credentials.region, "s3", "aws4_request"]
            .iter()
            .fold(first.into_bytes(), |key, part| mac(&Key::new(HMAC_SHA256, &key), part));
        Signer {
            access_key: credentials.access_key.clone(),
            scope: format!("{date}/{}/s3/aws4_request", credentials.region),
            key: Key::new(HMAC_SHA256, &key),
            time,
        }
    }

    /// The path with the query that makes it a presigned URL.
    pub fn presign(&self, request: &Request<'_>) -> String {
        self.presign_for(request, EXPIRES_S)
    }

    fn presign_for(&self, request: &Request<'_>, expires_s: u32) -> String {
        let Request { method, host, path } = request;
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}%2F{}&X-Amz-Date={}&X-Amz-Expires={expires_s}\
             &X-Amz-SignedHeaders=host",
            self.access_key,
            self.scope.replace('/', "%2F"),
            self.time
        );
        let canonical = format!("{method}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
        let digest = hex(digest(&SHA256, canonical.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n{}\n{}\n{digest}", self.time, self.scope);
        format!("{path}?{query}&X-Amz-Signature={}", hex(&mac(&self.key, &text)))
    }
}

fn mac(key: &Key, text: &str) -> Vec<u8> {
    hmac::sign(key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a presigned URL in Amazon's reference.
    #[test]
    fn the_published_example() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        };
        let signer = Signer::new(&credentials, 1_369_353_600_000);
        let request = Request { method: "GET", host: "examplebucket.s3.amazonaws.com", path: "/test.txt" };
        assert_eq!(
            signer.presign_for(&request, 86_400),
            "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F\
             us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }
}
