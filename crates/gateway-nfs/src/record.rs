//! Records on a TCP connection: fragments with their length in front (RFC 5531, section 11).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Longest record: the longest write and what stands in front of it.
pub const RECORD_LEN_MAX: usize = (1 << 20) + (16 << 10);

/// Fragments of one record. Clients send one.
const FRAGMENTS_MAX: usize = 64;

/// A connection without a request is closed after this.
const IDLE_MAX: Duration = Duration::from_secs(900);

/// A record that was begun comes within this, and an answer leaves within this.
const STALL_MAX: Duration = Duration::from_secs(60);

const LAST: u32 = 1 << 31;

/// A request, and the room that it takes.
pub struct Record {
    pub bytes: Bytes,
    pub room: OwnedSemaphorePermit,
}

/// An answer, and the room that it takes.
#[derive(Debug)]
pub struct Reply {
    pub head: Bytes,
    /// Bytes of a file behind the head, padded on their way.
    pub data: Bytes,
    pub _room: Option<OwnedSemaphorePermit>,
}

impl From<Bytes> for Reply {
    fn from(head: Bytes) -> Reply {
        Reply { head, data: Bytes::new(), _room: None }
    }
}

/// The next record; none if the client has closed the connection. `rooms` holds bytes.
pub async fn read(
    input: &mut (impl AsyncRead + Unpin),
    rooms: &Arc<Semaphore>,
) -> io::Result<Option<Record>> {
    let mut mark = [0; 4];
    match timeout(IDLE_MAX, input.read(&mut mark[..1])).await.map_err(late)?? {
        0 => return Ok(None),
        _ => timeout(STALL_MAX, input.read_exact(&mut mark[1..])).await.map_err(late)??,
    };
    timeout(STALL_MAX, read_fragments(input, mark, rooms)).await.map_err(late)?.map(Some)
}

async fn read_fragments(
    input: &mut (impl AsyncRead + Unpin),
    mut mark: [u8; 4],
    rooms: &Arc<Semaphore>,
) -> io::Result<Record> {
    let mut bytes = BytesMut::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    for _ in 0..FRAGMENTS_MAX {
        let word = u32::from_be_bytes(mark);
        let len = (word & !LAST) as usize;
        if bytes.len() + len > RECORD_LEN_MAX {
            return Err(broken("a record that is longer than any request"));
        }
        // Room first: what is not read waits with the client.
        let more = rooms.clone().acquire_many_owned(len as u32).await.map_err(|_| broken("closed"))?;
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        bytes.reserve(len);
        let mut part = input.take(len as u64);
        while part.limit() > 0 {
            if part.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if let (true, Some(room)) = (word & LAST != 0, room.take_if(|_| word & LAST != 0)) {
            return Ok(Record { bytes: bytes.freeze(), room });
        }
        input.read_exact(&mut mark).await?;
    }
    Err(broken("a record in too many fragments"))
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
        let rooms = Arc::new(Semaphore::new(RECORD_LEN_MAX));
        let read = read(&mut &*bytes, &rooms).await?;
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
        let rooms = Arc::new(Semaphore::new(RECORD_LEN_MAX));
        let bytes = fragment(&[7; 1000], LAST);
        let record = read(&mut &*bytes, &rooms).await.unwrap().unwrap();
        assert_eq!(rooms.available_permits(), RECORD_LEN_MAX - 1000);
        drop(record);
        assert_eq!(rooms.available_permits(), RECORD_LEN_MAX);
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
