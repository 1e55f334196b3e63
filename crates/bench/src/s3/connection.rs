//! One HTTP/1.1 connection of the light client: bytes out, bytes in, nothing kept but a status, a length and, if asked
//! for, a checksum.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes taken from the socket at a time.
const RECEIVE_BYTES: usize = 512 << 10;
/// An answer's head is refused beyond this.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Of an error's body, for the person who reads about it.
const ERROR_BYTES_MAX: u64 = 2 << 10;
/// A server that says nothing for this long is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What a server said.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Length of the body as received.
    pub bytes: u64,
    /// CRC64-NVME of the body, if it was asked for.
    pub crc: Option<u64>,
    /// Start of the body, if the status is none of success.
    pub error: String,
}

/// A connection that is kept alive while the server agrees.
pub struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    memory: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection { address, stream: None, memory: vec![0; RECEIVE_BYTES] };
        connection.stream = Some(connection.connect()?);
        Ok(connection)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(stream)
    }

    /// Sends a request and reads its answer to the end.
    pub fn exchange(&mut self, head: &[u8], body: &[u8], wants_crc: bool) -> io::Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        send(&mut stream, head, body)?;
        let (answer, is_kept) = receive(&mut stream, &mut self.memory, wants_crc)?;
        self.stream = is_kept.then_some(stream);
        Ok(answer)
    }
}

/// Head and body in as few system calls as the kernel lets us.
fn send(stream: &mut impl Write, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(body)];
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads one answer; also tells whether the connection can be used again.
fn receive(stream: &mut impl Read, memory: &mut [u8], wants_crc: bool) -> io::Result<(Answer, bool)> {
    let mut filled = 0;
    let head_bytes = loop {
        let got = stream.read(&mut memory[filled..])?;
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed before it answered"));
        }
        // The mark may lie across two reads.
        let from = filled.saturating_sub(3);
        filled += got;
        if let Some(at) = find(&memory[from..filled], b"\r\n\r\n") {
            break from + at + 4;
        }
        if filled > HEAD_BYTES_MAX.min(memory.len() - 1) {
            return Err(invalid("the head of the answer does not end"));
        }
    };
    let head = Head::parse(&memory[..head_bytes])?;
    let mut crc = wants_crc.then(|| Digest::new(CrcAlgorithm::Crc64Nvme));
    let mut error = String::new();
    let is_error = head.status >= 300;
    let mut take = |part: &[u8], at: u64| {
        if let Some(crc) = &mut crc {
            crc.update(part);
        }
        if is_error && at < ERROR_BYTES_MAX {
            error.push_str(&String::from_utf8_lossy(part));
        }
    };
    take(&memory[head_bytes..filled], 0);
    let mut bytes = (filled - head_bytes) as u64;
    // Errors may come in chunks of unknown length; their connection is given up.
    let end = head.body_bytes.unwrap_or(if is_error { bytes } else { u64::MAX });
    while bytes < end {
        let want = (end - bytes).min(memory.len() as u64) as usize;
        match stream.read(&mut memory[..want])? {
            0 if head.body_bytes.is_none() => break,
            0 => {
                let message = format!("the server closed after {bytes} of {end} bytes");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            got => {
                take(&memory[..got], bytes);
                bytes += got as u64;
            }
        }
    }
    if head.body_bytes.is_some_and(|wanted| bytes > wanted) {
        return Err(invalid("more bytes came than the server had said"));
    }
    let crc = crc.map(|digest| digest.finalize());
    Ok((Answer { status: head.status, bytes, crc, error }, head.is_kept && head.body_bytes.is_some()))
}

struct Head {
    status: u16,
    /// Unknown if the body comes in chunks or ends with the connection.
    body_bytes: Option<u64>,
    is_kept: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> io::Result<Head> {
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("the head of the answer is no text"))?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| invalid("this is no HTTP/1.1 answer"))?;
        let mut head = Head { status, body_bytes: (status == 204).then_some(0), is_kept: true };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let length = value.parse().map_err(|_| invalid("its Content-Length is no number"))?;
                head.body_bytes = Some(length);
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                head.is_kept = false;
            }
        }
        Ok(head)
    }
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes per read, as a network may.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(memory.len());
            memory[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn check(text: &str, expect: Option<(u16, u64, bool)>) {
        for piece in 1..=text.len() {
            let got = receive(&mut Pieces(text.as_bytes(), piece), &mut [0; 256], true);
            let got = got.ok().map(|(answer, is_kept)| (answer.status, answer.bytes, is_kept));
            assert_eq!(got, expect, "{text:?} in pieces of {piece}");
        }
    }

    #[test]
    fn answers_in_pieces_of_any_size() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Some((200, 5, true)));
        check("HTTP/1.1 200 OK\r\ncontent-length:5\r\nConnection: close\r\n\r\nhello", Some((200, 5, false)));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some((204, 0, true)));
        check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Some((200, 0, true)));
        check("HTTP/1.1 200 OK\r\n\r\nto the end", Some((200, 10, false)));
    }

    #[test]
    fn answers_that_are_none() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", None);
        check("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", None);
        check("SSH-2.0-OpenSSH\r\n\r\n", None);
        check("HTTP/1.1 200 OK\r\n", None);
        let (endless, mut memory) = ("a: b\r\n".repeat(100), [0; 256]);
        assert!(receive(&mut Pieces(endless.as_bytes(), 64), &mut memory, false).is_err());
    }

    #[test]
    fn the_checksum_is_of_the_body_alone() {
        let expect = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, b"hello");
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        for piece in 1..=text.len() {
            let (answer, _) = receive(&mut Pieces(text, piece), &mut [0; 256], true).unwrap();
            assert_eq!(answer.crc, Some(expect));
        }
    }

    #[test]
    fn an_error_brings_its_words() {
        let text = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 8\r\n\r\nSlowDown";
        let (answer, _) = receive(&mut Pieces(text, 9), &mut [0; 256], false).unwrap();
        assert_eq!((answer.status, answer.error.as_str()), (503, "SlowDown"));
    }

    #[test]
    fn a_request_arrives_whole_through_a_narrow_pipe() {
        struct Narrow(Vec<u8>);
        impl Write for Narrow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let len = bytes.len().min(3);
                self.0.extend_from_slice(&bytes[..len]);
                Ok(len)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (head, body) in [("head", "body and more"), ("head", ""), ("h", "b")] {
            let mut narrow = Narrow(Vec::new());
            send(&mut narrow, head.as_bytes(), body.as_bytes()).unwrap();
            assert_eq!(narrow.0, [head, body].concat().into_bytes());
        }
    }
}
