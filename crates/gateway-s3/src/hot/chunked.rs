//! Takes aws-chunked framing apart, in whatever pieces it arrives, without copying the data inside.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::{Buf as _, Bytes};

use crate::auth::ChunkSigner;
use crate::percent::hex_digit;
use crate::refusal::{Code, Refusal, Result};

/// Longest line of the framing: a size and a signature, or a trailer.
const LINE_LEN_MAX: usize = 1024;
/// Most trailers.
const TRAILERS_MAX: usize = 8;

/// What comes out of the framing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A piece of the content.
    Data(Bytes),
    /// The input is used up; bring more.
    More,
    /// The end; what follows in the input would be garbage.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In the line that starts a chunk.
    Size,
    /// In a chunk, so many bytes before its end.
    Data(u64),
    /// In the line break behind a chunk.
    Break,
    /// In a line of the trailer.
    Trailer,
    Done,
}

/// Decodes one body.
pub(crate) struct ChunkedDecoder {
    state: State,
    line: Vec<u8>,
    /// Bytes of content that may still come.
    left: u64,
    signer: Option<Box<ChunkSigner>>,
    hash: Context,
    /// Signature of the chunk that is being read.
    signature: String,
    with_trailer: bool,
    trailers: Vec<(String, String)>,
    trailer_signature: Option<String>,
}

impl ChunkedDecoder {
    /// Expects exactly `len` bytes of content.
    pub(crate) fn new(len: u64, signer: Option<Box<ChunkSigner>>, with_trailer: bool) -> ChunkedDecoder {
        ChunkedDecoder {
            state: State::Size,
            line: Vec::new(),
            left: len,
            signer,
            hash: Context::new(&SHA256),
            signature: String::new(),
            with_trailer,
            trailers: Vec::new(),
            trailer_signature: None,
        }
    }

    /// Takes from the front of the input.
    pub(crate) fn step(&mut self, input: &mut Bytes) -> Result<Step> {
        loop {
            match self.state {
                State::Size => match self.take_line(input)? {
                    Some(line) => self.begin_chunk(&line)?,
                    None => return Ok(Step::More),
                },
                State::Data(0) => {
                    self.check_chunk()?;
                    self.state = State::Break;
                }
                State::Data(left) => {
                    if input.is_empty() {
                        return Ok(Step::More);
                    }
                    let len = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let data = input.split_to(len);
                    self.state = State::Data(left - len as u64);
                    if self.signer.is_some() {
                        self.hash.update(&data);
                    }
                    return Ok(Step::Data(data));
                }
                State::Break => match self.take_line(input)? {
                    Some(line) if line.is_empty() => self.state = State::Size,
                    Some(_) => return Err(malformed("a chunk is longer than it says")),
                    None => return Ok(Step::More),
                },
                State::Trailer => match self.take_line(input)? {
                    Some(line) => self.take_trailer(&line)?,
                    None => return Ok(Step::More),
                },
                State::Done if input.is_empty() => return Ok(Step::End),
                State::Done => return Err(malformed("something follows the last chunk")),
            }
        }
    }

    /// The body has ended. Returns the trailers.
    pub(crate) fn finish(mut self) -> Result<Vec<(String, String)>> {
        if self.state == State::Trailer && self.line.is_empty() && self.has_all() {
            self.end()?;
        }
        match self.state {
            State::Done => Ok(self.trailers),
            _ => Err(Refusal::new(Code::IncompleteBody, "The body ended before its last chunk.")),
        }
    }

    /// One line without its end, once it is complete.
    fn take_line(&mut self, input: &mut Bytes) -> Result<Option<Vec<u8>>> {
        let end = input.iter().position(|&byte| byte == b'\n');
        let len = end.unwrap_or(input.len());
        if self.line.len() + len > LINE_LEN_MAX {
            return Err(malformed("a line is too long"));
        }
        self.line.extend_from_slice(&input[..len]);
        input.advance(len + usize::from(end.is_some()));
        if end.is_none() {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.line);
        line.pop_if(|byte| *byte == b'\r');
        Ok(Some(line))
    }

    fn begin_chunk(&mut self, line: &[u8]) -> Result<()> {
        let mut fields = line.split(|&byte| byte == b';');
        let size = fields
            .next()
            .and_then(parse_size)
            .ok_or_else(|| malformed("the size of a chunk is no number"))?;
        self.signature.clear();
        for field in fields {
            if let Some(signature) = field.trim_ascii().strip_prefix(b"chunk-signature=") {
                self.signature.push_str(&String::from_utf8_lossy(signature));
            }
        }
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            Refusal::new(
                Code::IncompleteBody,
                "The body has more bytes than x-amz-decoded-content-length says.",
            )
        })?;
        if size > 0 {
            self.state = State::Data(size);
            return Ok(());
        }
        self.check_chunk()?;
        if self.left > 0 {
            return Err(Refusal::new(
                Code::IncompleteBody,
                "The body has fewer bytes than x-amz-decoded-content-length says.",
            ));
        }
        self.state = State::Trailer;
        Ok(())
    }

    fn check_chunk(&mut self) -> Result<()> {
        let Some(signer) = &mut self.signer else {
            return Ok(());
        };
        let hash = std::mem::replace(&mut self.hash, Context::new(&SHA256)).finish();
        if signer.chunk_fits(hash.as_ref(), &self.signature) {
            Ok(())
        } else {
            Err(Refusal::new(Code::SignatureDoesNotMatch, "The signature of a chunk does not match."))
        }
    }

    fn take_trailer(&mut self, line: &[u8]) -> Result<()> {
        if line.is_empty() {
            // Some writers put an empty line between the trailers and their signature.
            return if self.has_all() { self.end() } else { Ok(()) };
        }
        let text = std::str::from_utf8(line).map_err(|_| malformed("a trailer is not text"))?;
        let (name, value) = text.split_once(':').ok_or_else(|| malformed("a trailer has no value"))?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if !self.with_trailer {
            return Err(malformed("a trailer follows that was not announced"));
        }
        if name == "x-amz-trailer-signature" {
            self.trailer_signature = Some(value);
        } else if self.trailers.len() < TRAILERS_MAX {
            self.trailers.push((name, value));
        } else {
            return Err(malformed("there are too many trailers"));
        }
        Ok(())
    }

    fn has_all(&self) -> bool {
        !(self.with_trailer && self.signer.is_some()) || self.trailer_signature.is_some()
    }

    fn end(&mut self) -> Result<()> {
        if self.with_trailer
            && let Some(signer) = &mut self.signer
        {
            let lines: String =
                self.trailers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
            let signature = self.trailer_signature.as_deref().unwrap_or_default();
            if !signer.trailer_fits(lines.as_bytes(), signature) {
                return Err(Refusal::new(
                    Code::SignatureDoesNotMatch,
                    "The signature of the trailer does not match.",
                ));
            }
        }
        self.state = State::Done;
        Ok(())
    }
}

fn parse_size(digits: &[u8]) -> Option<u64> {
    let digits = digits.trim_ascii();
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    digits.iter().try_fold(0, |size: u64, &byte| Some(size << 4 | u64::from(hex_digit(byte)?)))
}

fn malformed(words: &str) -> Refusal {
    Refusal::new(Code::InvalidRequest, format!("The aws-chunked body is malformed: {words}."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::auth::ChunkSigner;

    type Outcome = Result<(Vec<u8>, Vec<(String, String)>)>;

    fn decode(mut decoder: ChunkedDecoder, pieces: &[&[u8]]) -> Outcome {
        let mut content = Vec::new();
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while let Step::Data(data) = decoder.step(&mut input)? {
                content.extend_from_slice(&data);
            }
        }
        Ok((content, decoder.finish()?))
    }

    fn unsigned(len: u64, body: &[u8]) -> Outcome {
        decode(ChunkedDecoder::new(len, None, true), &[body])
    }

    fn code(outcome: Outcome) -> Code {
        outcome.unwrap_err().code
    }

    const TRAILED: &[u8] = b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:abc=\r\n\r\n";

    /// The body of AWS's documentation for signed chunks.
    fn documented(trailer: &str) -> Vec<u8> {
        let signatures = if trailer.is_empty() {
            [
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ]
        } else {
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ]
        };
        let mut body = Vec::new();
        for (len, signature) in [65_536, 1024, 0].into_iter().zip(signatures) {
            body.extend_from_slice(format!("{len:x};chunk-signature={signature}\r\n").as_bytes());
            body.extend_from_slice(&vec![b'a'; len]);
            if len > 0 {
                body.extend_from_slice(b"\r\n");
            }
        }
        body.extend_from_slice(trailer.as_bytes());
        body.extend_from_slice(b"\r\n");
        body
    }

    fn signed(seed: &str, trailer: bool, body: &[u8]) -> Outcome {
        let signer = Some(Box::new(ChunkSigner::of_documentation(seed)));
        decode(ChunkedDecoder::new(66_560, signer, trailer), &[body])
    }

    const SEED: &str = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    const SEED_TRAILER: &str = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e";
    const SIGNED_TRAILER: &str = "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:\
        d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n";

    #[test]
    fn split_anywhere_it_is_the_same() {
        let expected =
            (b"hello world".to_vec(), vec![("x-amz-checksum-crc32".to_owned(), "abc=".to_owned())]);
        for first in 0..=TRAILED.len() {
            for second in first..=TRAILED.len() {
                let pieces = [&TRAILED[..first], &TRAILED[first..second], &TRAILED[second..]];
                assert_eq!(decode(ChunkedDecoder::new(11, None, true), &pieces).unwrap(), expected);
            }
        }
    }

    #[test]
    fn signed_chunks_of_the_documentation_pass() {
        let (content, trailers) = signed(SEED, false, &documented("")).unwrap();
        assert_eq!((content.len(), trailers.len()), (66_560, 0));
        let (_, trailers) = signed(SEED_TRAILER, true, &documented(SIGNED_TRAILER)).unwrap();
        assert_eq!(trailers, [("x-amz-checksum-crc32c".to_owned(), "sOO8/Q==".to_owned())]);
        let spaced = SIGNED_TRAILER.replace("x-amz-trailer", "\r\nx-amz-trailer");
        assert!(signed(SEED_TRAILER, true, &documented(&spaced)).is_ok());
    }

    #[test]
    fn a_changed_byte_breaks_a_signature() {
        let body = documented("");
        for at in [100, 66_000, body.len() - 10] {
            let mut body = body.clone();
            body[at] ^= 1;
            assert_eq!(code(signed(SEED, false, &body)), Code::SignatureDoesNotMatch, "{at}");
        }
        assert_eq!(code(signed(SEED_TRAILER, false, &body)), Code::SignatureDoesNotMatch);
        let trailer = SIGNED_TRAILER.replace("sOO8", "sOO9");
        assert_eq!(code(signed(SEED_TRAILER, true, &documented(&trailer))), Code::SignatureDoesNotMatch);
        let naked = &SIGNED_TRAILER[..SIGNED_TRAILER.find('\n').unwrap() + 1];
        assert_eq!(code(signed(SEED_TRAILER, true, &documented(naked))), Code::IncompleteBody);
    }

    #[test]
    fn short_and_long_bodies_are_incomplete() {
        // Behind the last chunk the content is complete; a trailer that is missing is noticed elsewhere.
        for len in 0..TRAILED.len() - b"x-amz-checksum-crc32:abc=\r\n\r\n".len() {
            assert!(unsigned(11, &TRAILED[..len]).is_err(), "{len}");
        }
        assert_eq!(code(unsigned(11, &TRAILED[..8])), Code::IncompleteBody);
        assert_eq!(code(unsigned(12, TRAILED)), Code::IncompleteBody);
        assert_eq!(code(unsigned(10, TRAILED)), Code::IncompleteBody);
    }

    #[test]
    fn malformed_framing_is_refused() {
        for body in [
            &b"x\r\n"[..],
            b"\r\n",
            b"-1\r\n",
            b"5\r\nhellooo\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\n",
            b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
            b"5\r\nhello\r\n0\r\n\xff:\r\n\r\n",
            b"5\r\nhello\r\n0\r\n\r\nmore",
            &[b'1'; 4000],
        ] {
            assert_eq!(code(unsigned(5, body)), Code::InvalidRequest, "{}", String::from_utf8_lossy(body));
        }
        let unannounced = decode(ChunkedDecoder::new(0, None, false), &[b"0\r\na:b\r\n\r\n"]);
        assert_eq!(code(unannounced), Code::InvalidRequest);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(pieces: Vec<Vec<u8>>, len in 0u64..100, trailer: bool) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let signer = trailer.then(|| Box::new(ChunkSigner::of_documentation(SEED)));
            let _ = decode(ChunkedDecoder::new(len, signer, trailer), &pieces);
        }

        #[test]
        fn damage_never_panics(at in 0..TRAILED.len(), byte: u8) {
            let mut body = TRAILED.to_vec();
            body[at] = byte;
            let _ = unsigned(11, &body);
        }
    }
}
