//! What `x-amz-content-sha256` says about the body.

use crate::percent::hex_digit;
use crate::refusal::{Code, Refusal, Result};

use super::signature::ChunkSigner;

/// The header's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Declared {
    /// `UNSIGNED-PAYLOAD`.
    Unsigned,
    /// The SHA-256 of the body.
    Sha256([u8; 32]),
    /// `STREAMING-AWS4-HMAC-SHA256-PAYLOAD`: chunks, each with a signature.
    Signed,
    /// The same with a trailer.
    SignedTrailer,
    /// `STREAMING-UNSIGNED-PAYLOAD-TRAILER`: chunks without signatures, and a trailer.
    UnsignedTrailer,
}

impl Declared {
    /// Reads the header.
    pub(crate) fn parse(text: &str) -> Result<Declared> {
        Ok(match text {
            "UNSIGNED-PAYLOAD" => Declared::Unsigned,
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Declared::Signed,
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Declared::SignedTrailer,
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Declared::UnsignedTrailer,
            _ => Declared::Sha256(sha256_of_hex(text).ok_or_else(|| {
                Refusal::new(
                    Code::InvalidArgument,
                    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
                     STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 \
                     value.",
                )
            })?),
        })
    }
}

fn sha256_of_hex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
    }
    Some(out)
}

/// How the body of a verified request is to be read.
pub(crate) enum Payload {
    /// As it is.
    Plain,
    /// As it is, and its SHA-256 must be this.
    Sha256([u8; 32]),
    /// In aws-chunked framing.
    Chunked {
        /// Checks the chunks, if they are signed.
        signer: Option<Box<ChunkSigner>>,
        /// Whether a trailer follows.
        trailer: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert!(matches!(Declared::parse(empty), Ok(Declared::Sha256(value)) if value[..2] == [0xe3, 0xb0]));
        assert_eq!(Declared::parse("UNSIGNED-PAYLOAD"), Ok(Declared::Unsigned));
        for bad in [
            "",
            "e3b0",
            "unsigned-payload",
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
            &empty.replace('e', "x"),
        ] {
            assert_eq!(Declared::parse(bad).unwrap_err().code, Code::InvalidArgument, "{bad}");
        }
    }
}
