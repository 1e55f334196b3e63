//! A server as the client sees it: an address and how a request for a key looks.

use std::net::SocketAddr;

use stoker_sigv4::{self as sigv4, Presigner};

use crate::clock;

/// How long a URL is valid: longer than any run.
const EXPIRES_S: u32 = 12 * 3600;

/// Who asks an S3 server.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// As the server calls its region.
    pub region: String,
}

/// Where requests go.
pub struct Target {
    address: SocketAddr,
    host: String,
    /// Before the key, with slashes at both ends.
    prefix: String,
    /// Requests are signed once and sent many times.
    signer: Option<Presigner>,
}

impl Target {
    /// A server that wants no signature.
    pub fn plain(address: SocketAddr) -> Target {
        Target { address, host: address.to_string(), prefix: "/".into(), signer: None }
    }

    /// An S3 server; keys are in one bucket.
    pub fn s3(address: SocketAddr, bucket: &str, credentials: &Credentials) -> Target {
        let Credentials { access_key, secret_key, region } = credentials.clone();
        let keys = sigv4::Credentials { access_key, secret_key, session_token: None };
        let signer = Some(Presigner::new(&keys, &region, clock::unix_ms() / 1000));
        Target { address, host: address.to_string(), prefix: format!("/{bucket}/"), signer }
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything of a request before its body.
    pub fn head(&self, method: &str, key: &str, body_bytes: Option<usize>) -> Vec<u8> {
        let path = format!("{}{key}", self.prefix);
        let path = match &self.signer {
            Some(signer) => signer.presign(method, &self.host, &path, EXPIRES_S),
            None => path,
        };
        let length = body_bytes.map(|bytes| format!("Content-Length: {bytes}\r\n")).unwrap_or_default();
        format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{length}\r\n", self.host).into_bytes()
    }

    /// The request that makes the bucket, on a server that has none yet.
    pub fn bucket_head(&self) -> Vec<u8> {
        let path = self.prefix.trim_end_matches('/');
        let path = match &self.signer {
            Some(signer) => signer.presign("PUT", &self.host, path, EXPIRES_S),
            None => path.to_owned(),
        };
        format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", self.host).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_request() {
        let target = Target::plain("127.0.0.1:81".parse().unwrap());
        let head = target.head("PUT", "put/a", Some(3));
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "PUT /put/a HTTP/1.1\r\nHost: 127.0.0.1:81\r\nContent-Length: 3\r\n\r\n"
        );
    }

    #[test]
    fn a_signed_request_names_the_bucket_and_carries_its_signature() {
        let credentials =
            Credentials { access_key: "A".into(), secret_key: "B".into(), region: "us-east-1".into() };
        let target = Target::s3("127.0.0.1:81".parse().unwrap(), "data", &credentials);
        let head = String::from_utf8(target.head("GET", "a/b", None)).unwrap();
        assert!(head.starts_with("GET /data/a/b?X-Amz-Algorithm="), "{head}");
        assert!(head.contains("&X-Amz-Signature="), "{head}");
        assert!(!head.contains("Content-Length"), "{head}");
        assert!(target.bucket_head().starts_with(b"PUT /data?X-Amz-"));
    }
}
