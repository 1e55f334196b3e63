//! Records on a TCP connection: fragments with their length in front (RFC 5531, section 11).

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::admission::{ByteLimit, Room};

/// Longest record: the longest write and what stands in front of it.
pub const RECORD_LEN_MAX: usize = (1 << 20) + (16 << 10);

/// Fragments of one record. Clients send one.
const FRAGMENTS_MAX: usize = 64;

/// A connection without a request is closed after this.
const IDLE_MAX: Duration = Duration::from_secs(900);

/// The first request comes within this, and the front of each one that was begun.
const FRONT_MAX: Duration = Duration::from_secs(10);

/// What is read before there is room for the rest: a length alone takes no memory from others.
const FRONT_LEN: usize = 4096;

/// The rest of a record comes within this, and an answer leaves within this.
const STALL_MAX: Duration = Duration::from_secs(60);

const LAST: u32 = 1 << 31;

/// A request, and the room that it takes.
pub struct Record {
    pub bytes: Bytes,
    pub room: Room,
}

/// An answer, and the room that it takes.
#[derive(Debug)]
pub struct Reply {
    pub head: Bytes,
    /// Bytes of a file behind the head, padded on their way.
    pub data: Bytes,
    pub _room: Option<Room>,
}

impl From<Bytes> for Reply {
    fn from(head: Bytes) -> Reply {
        Reply { head, data: Bytes::new(), _room: None }
    }
}

/// The next record; none if the client has closed the connection. The first one of a connection is not waited for long.
pub async fn read(
    input: &mut (impl AsyncRead + Unpin),
    limit: &ByteLimit,
    is_first: bool,
) -> io::Result<Option<Record>> {
    let mut mark = [0; 4];
    let idle_max = if is_first { FRONT_MAX } else { IDLE_MAX };
    match timeout(idle_max, input.read(&mut mark[..1])).await.map_err(late)?? {
        0 => return Ok(None),
        _ => timeout(FRONT_MAX, input.read_exact(&mut mark[1..])).await.map_err(late)??,
    };
    let mut bytes = BytesMut::new();
    let len = check_len(0, mark)?;
    timeout(FRONT_MAX, read_part(input, &mut bytes, len.min(FRONT_LEN))).await.map_err(late)??;
    // Room for all of it at once: who has some never waits for more. What is not read waits with the client.
    let is_whole = u32::from_be_bytes(mark) & LAST != 0;
    let needed = if is_whole { len } else { RECORD_LEN_MAX };
    let room = limit.acquire(needed).await.ok_or_else(|| broken("closed"))?;
    timeout(STALL_MAX, read_rest(input, &mut bytes, len, mark)).await.map_err(late)??;
    Ok(Some(Record { bytes: bytes.freeze(), room }))
}

/// The rest of a fragment of which some is here, and those behind it.
async fn read_rest(
    input: &mut (impl AsyncRead + Unpin),
    bytes: &mut BytesMut,
    mut end: usize,
    mut mark: [u8; 4],
) -> io::Result<()> {
    for _ in 0..FRAGMENTS_MAX {
        read_part(input, bytes, end).await?;
        if u32::from_be_bytes(mark) & LAST != 0 {
            return Ok(());
        }
        input.read_exact(&mut mark).await?;
        end = check_len(bytes.len(), mark)?;
    }
    Err(broken("a record in too many fragments"))
}

/// Where a fragment behind so many bytes ends.
fn check_len(before: usize, mark: [u8; 4]) -> io::Result<usize> {
    let end = before + (u32::from_be_bytes(mark) & !LAST) as usize;
    if end > RECORD_LEN_MAX { Err(broken("a record that is longer than any request")) } else { Ok(end) }
}

/// Reads until there are so many bytes.
async fn read_part(input: &mut (impl AsyncRead + Unpin), bytes: &mut BytesMut, end: usize) -> io::Result<()> {
    let missing = end.saturating_sub(bytes.len());
    bytes.reserve(missing);
    let mut part = input.take(missing as u64);
    while part.limit() > 0 {
        if part.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Sends an answer.
pub async fn write(output: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    let padding = reply.data.len().next_multiple_of(4) - reply.data.len();
    let len = reply.head.len() + reply.data.len() + padding;
    let mark = (len as u32 | LAST).to_be_bytes();
    let body = Buf::chain(&reply.data[..], &[0u8; 4][..padding]);
    let mut bytes = Buf::chain(Buf::chain(&mark[..], &reply.head[..]), body);
    timeout(STALL_MAX, output.write_all_buf(&mut bytes)).await.map_err(late)?
}

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does nothing")
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let read = read(&mut &*bytes, &ByteLimit::for_test(), true).await?;
        Ok(read.map(|record| record.bytes.to_vec()))
    }

    fn fragment(bytes: &[u8], last: u32) -> Vec<u8> {
        [&(bytes.len() as u32 | last).to_be_bytes()[..], bytes].concat()
    }

    #[tokio::test]
    async fn fragments_become_a_record() {
        assert_eq!(of(b"").await.unwrap(), None);
        assert_eq!(of(&fragment(b"abcd", LAST)).await.unwrap().unwrap(), b"abcd");
        let two = [fragment(b"ab", 0), fragment(b"", 0), fragment(b"cd", LAST)].concat();
        assert_eq!(of(&two).await.unwrap().unwrap(), b"abcd");
    }

    #[tokio::test]
    async fn records_without_end_or_measure_are_refused() {
        let kind = |read: io::Result<Option<Vec<u8>>>| read.unwrap_err().kind();
        assert_eq!(kind(of(&[0xff; 64]).await), io::ErrorKind::InvalidData);
        assert_eq!(kind(of(&[0; 1024]).await), io::ErrorKind::InvalidData, "fragments of nothing");
        assert_eq!(kind(of(&fragment(b"abcd", LAST)[..6]).await), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(of(&[0x80, 0]).await), io::ErrorKind::UnexpectedEof);
        let half = vec![0; RECORD_LEN_MAX / 2 + 1];
        let twice = [fragment(&half, 0), fragment(&half, LAST)].concat();
        assert_eq!(kind(of(&twice).await), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn room_is_held_as_long_as_the_record() {
        let limit = ByteLimit::for_test();
        let bytes = fragment(&[7; 1000], LAST);
        let record = read(&mut &*bytes, &limit, true).await.unwrap().unwrap();
        assert_eq!(limit.taken(), 1000);
        drop(record);
        assert_eq!(limit.taken(), 0);
    }

    /// Four bytes say that a megabyte follows, and nothing does.
    #[tokio::test]
    async fn a_length_alone_takes_no_room() {
        let limit = ByteLimit::for_test();
        let (mut client, mut server) = tokio::io::duplex(RECORD_LEN_MAX);
        client.write_all(&(RECORD_LEN_MAX as u32 | LAST).to_be_bytes()).await.unwrap();
        let reading = tokio::spawn({
            let limit = limit.clone();
            async move { read(&mut server, &limit, true).await.map(|record| record.map(|it| it.bytes.len())) }
        });
        client.write_all(&[7; FRONT_LEN - 1]).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert_eq!(limit.taken(), 0);
        }
        client.write_all(&[7; 1]).await.unwrap();
        while limit.taken() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(limit.taken(), RECORD_LEN_MAX);
        client.write_all(&vec![7; RECORD_LEN_MAX - FRONT_LEN]).await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), Some(RECORD_LEN_MAX));
    }

    /// Who sends nothing, or half a length, is not waited for.
    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_not_waited_for() {
        for sent in [&b""[..], &[0x80, 0], &[0x80, 0, 1, 0], &[0x80, 0, 1, 0, 7]] {
            let (mut client, mut server) = tokio::io::duplex(1024);
            client.write_all(sent).await.unwrap();
            let begun = tokio::time::Instant::now();
            let read = read(&mut server, &ByteLimit::for_test(), true).await;
            assert_eq!(read.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut), "{sent:?}");
            assert!(begun.elapsed() <= FRONT_MAX + Duration::from_secs(1), "by the clock of the test");
        }
    }

    #[tokio::test]
    async fn answers_are_one_fragment_and_padded() {
        let mut out = Vec::new();
        let reply =
            Reply { head: Bytes::from_static(b"head"), data: Bytes::from_static(b"12345"), _room: None };
        write(&mut out, &reply).await.unwrap();
        assert_eq!(out, [&[0x80, 0, 0, 12][..], b"head12345\0\0\0"].concat());
    }
}
