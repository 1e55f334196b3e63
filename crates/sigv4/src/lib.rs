//! Signature Version 4 of S3: keys, scopes, canonical requests and what is made of them, for those who sign and those who check.
//!
//! Pure: keys and time are arguments. The tests are the examples of Amazon's documentation.
//!
//! It must not read a clock, do I/O, or know an HTTP library.

#![forbid(unsafe_code)]

mod text;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::hmac::{self, HMAC_SHA256};

pub use text::{Slash, hex, percent_encode, time_text};

/// The name of the algorithm, in headers and in what is signed.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What a body that is not part of the signature is called.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// SHA-256 of no bytes.
pub const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The key that signs for one day and region.
#[derive(Clone)]
pub struct SigningKey(hmac::Key);

impl SigningKey {
    /// Derives it from a secret. `day` is like `20130524`.
    pub fn new(secret: &str, day: &str, region: &str) -> SigningKey {
        SigningKey::of_service(secret, day, region, "s3")
    }

    /// The same for another service, such as `sts`.
    pub fn of_service(secret: &str, day: &str, region: &str, service: &str) -> SigningKey {
        let first = [b"AWS4", secret.as_bytes()].concat();
        let mut key = hmac::Key::new(HMAC_SHA256, &first);
        for piece in [day, region, service, "aws4_request"] {
            key = hmac::Key::new(HMAC_SHA256, hmac::sign(&key, piece.as_bytes()).as_ref());
        }
        SigningKey(key)
    }

    /// The signature of these lines, with a line feed between each two.
    pub fn sign(&self, lines: &[&str]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                context.update(b"\n");
            }
            context.update(line.as_bytes());
        }
        hex(context.sign().as_ref())
    }

    /// The signature of a canonical request. `time` is like `20130524T000000Z`.
    pub fn sign_request(&self, time: &str, scope: &str, canonical: &[u8]) -> String {
        self.sign(&[ALGORITHM, time, scope, &sha256_hex(canonical)])
    }
}

/// `20130524/us-east-1/s3/aws4_request`.
pub fn scope(day: &str, region: &str) -> String {
    scope_of_service(day, region, "s3")
}

/// The same for another service.
pub fn scope_of_service(day: &str, region: &str, service: &str) -> String {
    format!("{day}/{region}/{service}/aws4_request")
}

/// SHA-256 in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&SHA256, bytes).as_ref())
}

/// The same of a body in pieces.
pub fn sha256_hex_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut context = digest::Context::new(&SHA256);
    pieces.for_each(|piece| context.update(piece));
    hex(context.finish().as_ref())
}

/// Compares signatures without telling by time where they differ. Hex digits of either case are the same.
pub fn equal(ours: &str, theirs: &str) -> bool {
    verify_slices_are_equal(ours.as_bytes(), theirs.to_ascii_lowercase().as_bytes()).is_ok()
}

/// Keys of an account.
#[derive(Clone)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// Goes with keys that work for a while only.
    pub session_token: Option<String>,
}

/// A request in the form in which it is signed.
pub struct Signable<'a> {
    /// `GET`, `PUT` and so on.
    pub method: &'a str,
    /// Percent-encoded.
    pub path: &'a str,
    /// Percent-encoded and sorted.
    pub query: &'a str,
    /// Names in lower case, sorted.
    pub headers: &'a [(String, String)],
    /// SHA-256 of the body, or [`UNSIGNED_PAYLOAD`].
    pub payload_hash: &'a str,
}

impl Signable<'_> {
    fn names(&self) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.join(";")
    }

    fn canonical(&self) -> String {
        let mut canonical = format!("{}\n{}\n{}\n", self.method, self.path, self.query);
        for (name, value) in self.headers {
            canonical.push_str(&format!("{name}:{}\n", text::squeeze(value)));
        }
        canonical.push_str(&format!("\n{}\n{}", self.names(), self.payload_hash));
        canonical
    }

    /// The value of the `authorization` header. `time` is like `20130524T000000Z`.
    pub fn authorization(&self, credentials: &Credentials, region: &str, time: &str) -> String {
        let day = &time[..8];
        let (scope, key) = (scope(day, region), SigningKey::new(&credentials.secret_key, day, region));
        let signature = key.sign_request(time, &scope, self.canonical().as_bytes());
        let (access_key, names) = (&credentials.access_key, self.names());
        format!("{ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}")
    }
}

/// Makes URLs that carry their signature, for requests of one day and region.
pub struct Presigner {
    access_key: String,
    scope: String,
    time: String,
    key: SigningKey,
}

impl Presigner {
    /// One whose URLs are valid from this time on, seconds since 1970.
    pub fn new(credentials: &Credentials, region: &str, unix_s: u64) -> Presigner {
        let time = time_text(unix_s);
        let day = &time[..8];
        Presigner {
            access_key: credentials.access_key.clone(),
            scope: scope(day, region),
            key: SigningKey::new(&credentials.secret_key, day, region),
            time,
        }
    }

    /// A path with the query that makes it a presigned URL. The path is percent-encoded, with a leading slash.
    pub fn presign(&self, method: &str, host: &str, path: &str, expires_s: u32) -> String {
        let credential = format!("{}/{}", self.access_key, self.scope);
        let query = format!(
            "X-Amz-Algorithm={ALGORITHM}&X-Amz-Credential={}&X-Amz-Date={}&X-Amz-Expires={expires_s}&X-Amz-SignedHeaders=host",
            percent_encode(credential.as_bytes(), Slash::Encode),
            self.time
        );
        let canonical = format!("{method}\n{path}\n{query}\nhost:{host}\n\nhost\n{UNSIGNED_PAYLOAD}");
        let signature = self.key.sign_request(&self.time, &self.scope, canonical.as_bytes());
        format!("{path}?{query}&X-Amz-Signature={signature}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        }
    }

    fn check(
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        payload_hash: &str,
        signature: &str,
    ) {
        let time = time_text(1_369_353_600);
        assert_eq!(time, "20130524T000000Z");
        let mut headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        headers.push(("host".into(), "examplebucket.s3.amazonaws.com".into()));
        headers.push(("x-amz-content-sha256".into(), payload_hash.into()));
        headers.push(("x-amz-date".into(), time.clone()));
        headers.sort();
        let request = Signable { method, path, query, headers: &headers, payload_hash };
        let value = request.authorization(&credentials(), "us-east-1", &time);
        assert!(value.ends_with(&format!("Signature={signature}")), "{value}");
    }

    #[test]
    fn signatures_are_those_of_the_documentation() {
        assert_eq!(sha256_hex_pieces([].into_iter()), SHA256_OF_NOTHING);
        assert_eq!(sha256_hex_pieces([&b"ab"[..], b"c"].into_iter()), sha256_hex(b"abc"));
        check(
            "GET",
            "/test.txt",
            "",
            &[("range", "bytes=0-9")],
            SHA256_OF_NOTHING,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        );
        check(
            "PUT",
            &percent_encode(b"/test$file.text", Slash::Keep),
            "",
            &[("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        );
        check(
            "GET",
            "/",
            "max-keys=2&prefix=J",
            &[],
            SHA256_OF_NOTHING,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        );
    }

    #[test]
    fn a_presigned_url_is_that_of_the_documentation() {
        let presigner = Presigner::new(&credentials(), "us-east-1", 1_369_353_600);
        assert_eq!(
            presigner.presign("GET", "examplebucket.s3.amazonaws.com", "/test.txt", 86_400),
            "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F\
             us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }

    #[test]
    fn signatures_are_compared_whole() {
        assert!(equal("0a1b", "0A1b"));
        for other in ["0a1", "0a1b0", "0a1c", ""] {
            assert!(!equal("0a1b", other), "{other}");
        }
    }
}
