//! Keys and MACs of Signature Version 4.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::hmac::{self, HMAC_SHA256};

use super::claim::ALGORITHM;

const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Bytes as lower-case hex digits.
pub(crate) fn hex_lower(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    out
}

/// The key that signs for one day and region.
pub(super) fn signing_key(secret: &str, day: &str, region: &str) -> hmac::Key {
    let mut first = Vec::with_capacity(4 + secret.len());
    first.extend_from_slice(b"AWS4");
    first.extend_from_slice(secret.as_bytes());
    let mut key = hmac::Key::new(HMAC_SHA256, &first);
    for piece in [day, region, "s3", "aws4_request"] {
        key = hmac::Key::new(HMAC_SHA256, hmac::sign(&key, piece.as_bytes()).as_ref());
    }
    key
}

/// `20130524/us-east-1/s3/aws4_request`.
pub(super) fn scope_text(day: &str, region: &str) -> String {
    format!("{day}/{region}/s3/aws4_request")
}

/// The signature of a canonical request.
pub(super) fn request_signature(key: &hmac::Key, time: &str, scope: &str, canonical: &[u8]) -> String {
    let hash = hex_lower(digest::digest(&SHA256, canonical).as_ref());
    sign(key, &[ALGORITHM, time, scope, &hash])
}

/// The signature of a form's policy.
pub(super) fn policy_signature(key: &hmac::Key, policy: &str) -> String {
    hex_lower(hmac::sign(key, policy.as_bytes()).as_ref())
}

fn sign(key: &hmac::Key, lines: &[&str]) -> String {
    let mut context = hmac::Context::with_key(key);
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            context.update(b"\n");
        }
        context.update(line.as_bytes());
    }
    hex_lower(context.sign().as_ref())
}

/// Compares without telling by time where they differ. Hex digits of either case are the same.
pub(super) fn equal(ours: &str, theirs: &str) -> bool {
    verify_slices_are_equal(ours.as_bytes(), theirs.to_ascii_lowercase().as_bytes()).is_ok()
}

/// Checks the chunks of a signed stream, each against the one before.
pub(crate) struct ChunkSigner {
    key: hmac::Key,
    time: String,
    scope: String,
    previous: String,
}

impl ChunkSigner {
    /// Starts behind the signature of the request itself.
    pub(super) fn new(key: hmac::Key, time: String, scope: String, seed: String) -> ChunkSigner {
        ChunkSigner { key, time, scope, previous: seed }
    }

    /// Whether this signature belongs to a chunk with this SHA-256; then it is the one before the next.
    pub(crate) fn chunk_fits(&mut self, sha256: &[u8], signature: &str) -> bool {
        let hash = hex_lower(sha256);
        self.fits(&["AWS4-HMAC-SHA256-PAYLOAD"], &[SHA256_OF_NOTHING, &hash], signature)
    }

    /// Whether this signature belongs to these trailer lines, each with a line feed.
    pub(crate) fn trailer_fits(&mut self, lines: &[u8], signature: &str) -> bool {
        let hash = hex_lower(digest::digest(&SHA256, lines).as_ref());
        self.fits(&["AWS4-HMAC-SHA256-TRAILER"], &[&hash], signature)
    }

    fn fits(&mut self, before: &[&str], behind: &[&str], signature: &str) -> bool {
        let middle = [self.time.as_str(), self.scope.as_str(), self.previous.as_str()];
        let expected = sign(&self.key, &[before, &middle, behind].concat());
        let fits = equal(&expected, signature);
        self.previous = expected;
        fits
    }
}

#[cfg(test)]
impl ChunkSigner {
    /// With the key and time that the examples of AWS's documentation use.
    pub(crate) fn of_documentation(seed: &str) -> ChunkSigner {
        let key = signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1");
        let scope = scope_text("20130524", "us-east-1");
        ChunkSigner::new(key, "20130524T000000Z".to_owned(), scope, seed.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(bytes: &[u8]) -> Vec<u8> {
        digest::digest(&SHA256, bytes).as_ref().to_vec()
    }

    #[test]
    fn chunks_of_the_documentation_fit() {
        let mut signer =
            ChunkSigner::of_documentation("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9");
        for (len, signature) in [
            (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            assert!(signer.chunk_fits(&sha256(&vec![b'a'; len]), signature));
        }
        assert!(
            !signer
                .chunk_fits(&sha256(b""), "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")
        );
    }

    #[test]
    fn chunks_with_a_trailer_of_the_documentation_fit() {
        let mut signer =
            ChunkSigner::of_documentation("106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e");
        for (len, signature) in [
            (65_536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
            (1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
            (0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
        ] {
            assert!(signer.chunk_fits(&sha256(&vec![b'a'; len]), signature));
        }
        let signature = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435";
        assert!(signer.trailer_fits(b"x-amz-checksum-crc32c:sOO8/Q==\n", signature));
    }
}
