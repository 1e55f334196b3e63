//! Continuation tokens: opaque to clients, checked when they come back.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crc_fast::CrcAlgorithm;

use crate::refusal::{Code, Refusal, Result};

const VERSION: u8 = 1;

/// A token that goes on behind a name in a listing of a volume.
pub(super) fn encode(volume: &str, after: &[u8]) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&check(volume, after).to_be_bytes());
    bytes.extend_from_slice(after);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The name behind which a token goes on.
pub(super) fn decode(volume: &str, token: &str) -> Result<Vec<u8>> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (&version, rest) = bytes.split_first()?;
        let (sum, after) = rest.split_first_chunk::<4>()?;
        (version == VERSION && check(volume, after) == u32::from_be_bytes(*sum)).then(|| after.to_vec())
    };
    read().ok_or_else(|| {
        Refusal::new(Code::InvalidArgument, "The continuation token provided is incorrect.")
            .with("ArgumentName", "continuation-token")
    })
}

fn check(volume: &str, after: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(volume.as_bytes());
    digest.update(&[0]);
    digest.update(after);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_or_are_refused() {
        let token = encode("vol", b"a/\xff");
        assert_eq!(decode("vol", &token).unwrap(), b"a/\xff");
        assert!(decode("other", &token).is_err());
        for bad in ["", "x", "AAAA", "not base64!", &token[1..], &token[..token.len() - 1]] {
            assert_eq!(decode("vol", bad).unwrap_err().code, Code::InvalidArgument, "{bad}");
        }
    }
}
