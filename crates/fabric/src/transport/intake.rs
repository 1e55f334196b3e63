//! Frames that come in: header and head through a small buffer, bodies straight into aligned memory.
//!
//! The sums of a body are taken piece by piece while the bytes are still in the processor's cache. They are what the body is
//! checked by. Those of a request's blocks stay with it for the ring; an answer goes to a reader and is summed as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stoker_buffer::{Buf, Pool};
use tokio::io::{AsyncReadExt, BufReader};

use super::end::End;
use super::frame::{HEADER_LEN, Header};
use super::line::Line;
use super::message::{Body, Message};
use super::socket::ReadHalf;

/// Headers and heads are read through this much; bodies pass it by.
const READ_AHEAD: usize = 16 << 10;
/// Read and summed at once: small enough for the second cache.
const PIECE: usize = 256 << 10;

/// The reading side of a connection.
pub(super) struct Intake {
    reader: BufReader<ReadHalf>,
    pool: Arc<Pool>,
    line: Arc<Line>,
}

impl Intake {
    /// Reads from a connection into memory of a pool.
    pub fn new(half: ReadHalf, pool: Arc<Pool>, line: Arc<Line>) -> Intake {
        Intake { reader: BufReader::with_capacity(READ_AHEAD, half), pool, line }
    }

    /// Header and head of the next frame; its body is left in the stream.
    pub async fn next(&mut self) -> Result<(Header, Bytes), End> {
        let mut raw = [0; HEADER_LEN];
        self.reader.read_exact(&mut raw).await?;
        let header = Header::decode(&raw)?;
        let mut head = vec![0; header.head_len as usize];
        self.reader.read_exact(&mut head).await?;
        header.check_head(&head)?;
        self.received(HEADER_LEN + head.len());
        Ok((header, head.into()))
    }

    /// The request that header and head began.
    pub async fn request(&mut self, header: &Header, head: Bytes) -> Result<Message, End> {
        self.message(header, head, Buf::grow).await
    }

    /// The answer that header and head began.
    pub async fn answer(&mut self, header: &Header, head: Bytes) -> Result<Message, End> {
        self.message(header, head, Buf::grow_whole).await
    }

    async fn message(
        &mut self,
        header: &Header,
        head: Bytes,
        grow: fn(&mut Buf, usize),
    ) -> Result<Message, End> {
        let len = header.body_len as usize;
        if len == 0 {
            return Ok(Message::new(header.kind, head));
        }
        self.line.reader_waits.store(true, Ordering::Relaxed);
        let mut buf = self.pool.get(len).await;
        self.line.reader_waits.store(false, Ordering::Relaxed);
        buf.set_len(0);
        while buf.len() < len {
            let room = PIECE.min(len - buf.len());
            let read = self.reader.read(&mut buf.spare_mut()[..room]).await?;
            if read == 0 {
                return Err(End::Io(std::io::ErrorKind::UnexpectedEof.into()));
            }
            grow(&mut buf, read);
            self.received(read);
        }
        let crc = buf.crc32c().expect("a buffer that only grew knows its sums");
        header.check_body(crc)?;
        Ok(Message::new(header.kind, head).with_summed_body(Body::Buf(buf), crc))
    }

    /// Throws away the body of a frame that nobody waits for.
    pub async fn skip_body(&mut self, header: &Header) -> Result<(), End> {
        let mut scratch = [0; READ_AHEAD];
        let mut rest = header.body_len as usize;
        while rest > 0 {
            let part = rest.min(scratch.len());
            self.reader.read_exact(&mut scratch[..part]).await?;
            self.received(part);
            rest -= part;
        }
        Ok(())
    }

    fn received(&self, len: usize) {
        self.line.received_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}
