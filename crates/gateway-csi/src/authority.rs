//! Names of the host in requests, as clients of Unix sockets have them.
//!
//! A client that was given the path of a socket sends that path as `:authority`: kubelets before 1.26, and whatever is built with the gRPC
//! library of that time. HTTP says that a path is no authority, and hyper ends such a stream. Nobody looks at it on a Unix socket, so each
//! one is replaced before hyper reads it, by a name of the same length: the tables of compressed headers (RFC 7541) count it on both sides.
//!
//! Frames other than HEADERS go through as they are, and so does what cannot be read here: hyper says what is wrong with it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 client says first.
const PREFACE_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 9;
/// Payload of a frame, unless both sides agree on more.
const PAYLOAD_LEN_MAX: usize = 16_384;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table.
const AUTHORITY: usize = 1;
/// What a name is made of.
const LETTER: u8 = b'h';
/// Codes of each length in the Huffman code of headers, from 1 bit on. It is canonical: that is all one needs to count symbols.
const CODES: [u32; 30] =
    [0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];

/// Where in the stream of a client it is.
#[derive(Debug)]
enum State {
    /// Bytes that go through as they are.
    Through(usize),
    FrameHeader,
    /// The payload of a frame of headers.
    Headers,
}

/// Replaces names of hosts in what a client sends.
#[derive(Debug)]
struct Rewriter {
    state: State,
    /// The beginning of a frame that is not whole yet.
    frame: Vec<u8>,
}

impl Rewriter {
    fn new() -> Rewriter {
        Rewriter { state: State::Through(PREFACE_LEN), frame: Vec::new() }
    }

    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.state {
                State::Through(0) => self.state = State::FrameHeader,
                State::Through(left) => {
                    let (now, later) = input.split_at(left.min(input.len()));
                    out.extend_from_slice(now);
                    input = later;
                    self.state = State::Through(left - now.len());
                }
                State::FrameHeader => {
                    input = self.collect(input, FRAME_HEADER_LEN);
                    if self.frame.len() == FRAME_HEADER_LEN {
                        self.begin(out);
                    }
                }
                State::Headers => {
                    let len = FRAME_HEADER_LEN + payload_len(&self.frame);
                    input = self.collect(input, len);
                    if self.frame.len() == len {
                        out.extend(rewritten(&self.frame));
                        self.frame.clear();
                        self.state = State::FrameHeader;
                    }
                }
            }
        }
    }

    /// Takes bytes until the frame has `len` of them; gives the rest.
    fn collect<'a>(&mut self, input: &'a [u8], len: usize) -> &'a [u8] {
        let (now, later) = input.split_at((len - self.frame.len()).min(input.len()));
        self.frame.extend_from_slice(now);
        later
    }

    /// The header of a frame is whole.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let len = payload_len(&self.frame);
        if self.frame[3] == HEADERS && (1..=PAYLOAD_LEN_MAX).contains(&len) {
            self.state = State::Headers;
            return;
        }
        out.append(&mut self.frame);
        self.state = State::Through(len);
    }
}

fn payload_len(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

/// A whole frame of headers with other names of hosts.
fn rewritten(frame: &[u8]) -> Vec<u8> {
    let (header, payload) = frame.split_at(FRAME_HEADER_LEN);
    let has = |flag: u8| header[4] & flag != 0;
    let padding = if has(PADDED) { usize::from(payload[0]) } else { 0 };
    let begin = usize::from(has(PADDED)) + if has(PRIORITY) { 5 } else { 0 };
    let end = payload.len().checked_sub(padding).filter(|end| *end >= begin);
    let Some(end) = end else { return frame.to_vec() };
    let block = replaced(&payload[begin..end]);
    let len = begin + block.len() + padding;
    if len > PAYLOAD_LEN_MAX {
        return frame.to_vec();
    }
    let mut made = Vec::with_capacity(FRAME_HEADER_LEN + len);
    made.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
    made.extend_from_slice(&header[3..]);
    made.extend_from_slice(&payload[..begin]);
    made.extend(block);
    made.extend_from_slice(&payload[end..]);
    made
}

/// A block of headers with other names of hosts. What is behind something that cannot be read stays as it is.
fn replaced(mut block: &[u8]) -> Vec<u8> {
    let mut made = Vec::with_capacity(block.len());
    while !block.is_empty() {
        let Some(field) = Field::read(block) else { break };
        match field.host_len {
            None => made.extend_from_slice(&block[..field.len]),
            Some(len) => {
                made.push(block[0]);
                push_len(&mut made, len);
                made.resize(made.len() + len, LETTER);
            }
        }
        block = &block[field.len..];
    }
    made.extend_from_slice(block);
    made
}

/// One field of a block.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    len: usize,
    /// Letters of the name, if it is the name of a host.
    host_len: Option<usize>,
}

impl Field {
    fn read(block: &[u8]) -> Option<Field> {
        let first = *block.first()?;
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, mut len) = number(block, prefix)?;
        if first >= 0x80 || prefix == 5 {
            return Some(Field { len, host_len: None });
        }
        if index == 0 {
            len += text(&block[len..])?.1;
        }
        let (symbols, value_len) = text(&block[len..])?;
        // In one byte of a small index, which is kept.
        let is_host = index == AUTHORITY && len == 1 && symbols.is_some_and(|count| count > 0);
        Some(Field { len: len + value_len, host_len: symbols.filter(|_| is_host) })
    }
}

/// A number whose first bits are in a byte with something else; and its length.
fn number(block: &[u8], prefix: u32) -> Option<(usize, usize)> {
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.first()?) & mask;
    if value < mask {
        return Some((value, 1));
    }
    // More than three bytes of it are more than a frame.
    for at in 1..=3 {
        let byte = *block.get(at)?;
        value += usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Symbols of a text, if they can be counted, and the bytes that it takes.
fn text(block: &[u8]) -> Option<(Option<usize>, usize)> {
    let is_huffman = block.first()? & 0x80 != 0;
    let (len, begin) = number(block, 7)?;
    let bytes = block.get(begin..begin + len)?;
    Some((if is_huffman { symbols(bytes) } else { Some(len) }, begin + len))
}

/// Symbols of a text in the code of headers.
fn symbols(bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    let (mut code, mut first, mut len) = (0_u32, 0_u32, 0_usize);
    let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1)));
    for bit in bits {
        (code, first) = (code << 1 | bit, first << 1);
        let codes = *CODES.get(len)?;
        len += 1;
        if code - first < codes {
            (count, code, first, len) = (count + 1, 0, 0, 0);
        } else {
            first += codes;
        }
    }
    // What is left fills the last byte.
    (len < 8).then_some(count)
}

/// The length of a text that is not compressed.
fn push_len(out: &mut Vec<u8>, len: usize) {
    if len < 127 {
        out.push(len as u8);
        return;
    }
    out.push(127);
    let mut rest = len - 127;
    while rest >= 128 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A connection whose client may call the host as it likes.
pub struct AnyHost<S> {
    stream: S,
    rewriter: Rewriter,
    read: Vec<u8>,
    /// What was rewritten, and how much of it was taken.
    ready: Vec<u8>,
    taken: usize,
}

impl<S> AnyHost<S> {
    pub fn new(stream: S) -> AnyHost<S> {
        AnyHost {
            stream,
            rewriter: Rewriter::new(),
            read: vec![0; PAYLOAD_LEN_MAX],
            ready: Vec::new(),
            taken: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyHost<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        while me.taken == me.ready.len() {
            me.ready.clear();
            me.taken = 0;
            let mut read = ReadBuf::new(&mut me.read);
            ready!(Pin::new(&mut me.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            me.rewriter.feed(read.filled(), &mut me.ready);
        }
        let now = &me.ready[me.taken..];
        let now = &now[..now.len().min(out.remaining())];
        out.put_slice(now);
        me.taken += now.len();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyHost<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `www.example.com` and `no-cache`, of RFC 7541, C.4.
    const EXAMPLE: &[u8] = &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    const NO_CACHE: &[u8] = &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn fed(input: &[u8], step: usize) -> Vec<u8> {
        let (mut rewriter, mut out) = (Rewriter::new(), Vec::new());
        input.chunks(step).for_each(|piece| rewriter.feed(piece, &mut out));
        out
    }

    #[test]
    fn symbols_are_counted() {
        assert_eq!((symbols(EXAMPLE), symbols(NO_CACHE), symbols(&[])), (Some(15), Some(8), Some(0)));
        assert_eq!(CODES.iter().sum::<u32>(), 257);
        assert_eq!(symbols(&[0xff; 5]), None);
    }

    #[test]
    fn hosts_become_names_of_the_same_length() {
        let path = b"/var/lib/kubelet/plugins/csi.sock";
        let mut block = vec![0x83, 0x86, 0x41, path.len() as u8];
        block.extend_from_slice(path);
        let huffman = [&[0x41, 0x80 | EXAMPLE.len() as u8], EXAMPLE].concat();
        // A text that is no host, by an index and by its name.
        let other =
            [&[0x5f, 3], b"abc".as_slice(), &[0x40, 2], b"te", &[8], b"trailers", &[0x3f, 0xe1, 0x1f]]
                .concat();
        let all = [block, huffman, other.clone()].concat();
        let expect = [
            &[0x83, 0x86, 0x41, path.len() as u8],
            [LETTER; 33].as_slice(),
            &[0x41, 15],
            &[LETTER; 15],
            &other,
        ]
        .concat();
        assert_eq!(replaced(&all), expect);
        let long = [&[0x11, 127, 0x80, 1], [b'/'; 255].as_slice()].concat();
        assert_eq!(replaced(&long), [&[0x11, 127, 0x80, 1], [LETTER; 255].as_slice()].concat());
    }

    #[test]
    fn streams_are_rewritten_however_they_are_cut() {
        let block = [&[0x41, 5], b"/sock".as_slice()].concat();
        let padded = [&[3, 0, 0, 0, 0, 9], block.as_slice(), &[0; 3]].concat();
        let rest = [frame(0, 1, b"/sock\x41\x05/sock"), frame(4, 0, &[])].concat();
        let parts = [vec![b'P'; PREFACE_LEN], frame(1, 4, &block), rest.clone(), frame(1, 0x2c, &padded)];
        let replaced = [&[0x41, 5], [LETTER; 5].as_slice()].concat();
        let padded = [&[3, 0, 0, 0, 0, 9], replaced.as_slice(), &[0; 3]].concat();
        let expect =
            [vec![b'P'; PREFACE_LEN], frame(1, 4, &replaced), rest, frame(1, 0x2c, &padded)].concat();
        for step in 1..parts.concat().len() {
            assert_eq!(fed(&parts.concat(), step), expect, "{step}");
        }
    }

    #[test]
    fn what_cannot_be_read_stays_as_it_is() {
        for block in [
            &[0x41][..],
            &[0x41, 9, b'x'],
            &[0x41, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0x85, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0],
            &[0x7f],
        ] {
            assert_eq!(replaced(block), block, "{block:?}");
        }
        // More padding than there is, and a frame that is too long.
        for wrong in
            [frame(1, 0x8, &[9, 0x41]), frame(1, 0x20, &[1]), frame(1, 4, &vec![0x83; PAYLOAD_LEN_MAX + 1])]
        {
            let input = [vec![0; PREFACE_LEN], wrong].concat();
            assert_eq!(fed(&input, 7), input);
        }
    }
}
