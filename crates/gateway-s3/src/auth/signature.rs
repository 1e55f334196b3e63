//! Signatures of streams: each chunk is signed behind the one before.

use stoker_sigv4::{SHA256_OF_NOTHING, SigningKey, equal, hex, sha256_hex};

/// Checks the chunks of a signed stream, each against the one before.
pub(crate) struct ChunkSigner {
    key: SigningKey,
    time: String,
    scope: String,
    previous: String,
}

impl ChunkSigner {
    /// Starts behind the signature of the request itself.
    pub(super) fn new(key: SigningKey, time: String, scope: String, seed: String) -> ChunkSigner {
        ChunkSigner { key, time, scope, previous: seed }
    }

    /// Whether this signature belongs to a chunk with this SHA-256; then it is the one before the next.
    pub(crate) fn chunk_fits(&mut self, sha256: &[u8], signature: &str) -> bool {
        let hash = hex(sha256);
        self.fits(&["AWS4-HMAC-SHA256-PAYLOAD"], &[SHA256_OF_NOTHING, &hash], signature)
    }

    /// Whether this signature belongs to these trailer lines, each with a line feed.
    pub(crate) fn trailer_fits(&mut self, lines: &[u8], signature: &str) -> bool {
        let hash = sha256_hex(lines);
        self.fits(&["AWS4-HMAC-SHA256-TRAILER"], &[&hash], signature)
    }

    fn fits(&mut self, before: &[&str], behind: &[&str], signature: &str) -> bool {
        let middle = [self.time.as_str(), self.scope.as_str(), self.previous.as_str()];
        let expected = self.key.sign(&[before, &middle, behind].concat());
        let fits = equal(&expected, signature);
        self.previous = expected;
        fits
    }
}

#[cfg(test)]
impl ChunkSigner {
    /// With the key and time that the examples of AWS's documentation use.
    pub(crate) fn of_documentation(seed: &str) -> ChunkSigner {
        let key = SigningKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1");
        let scope = stoker_sigv4::scope("20130524", "us-east-1");
        ChunkSigner::new(key, "20130524T000000Z".to_owned(), scope, seed.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(bytes: &[u8]) -> Vec<u8> {
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec()
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
