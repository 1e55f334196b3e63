//! Frames that wait to be written, and the loop that writes them, bodies from where they are.
//!
//! The queue takes frames without waiting. It stays short because requests need permits and answers need requests.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_format::crc32c;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::end::End;
use super::frame::{Form, HEADER_LEN, Header};
use super::message::Message;

/// A batch that is written with one call ends behind the frame that fills it.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_FRAMES: usize = 32;

/// A frame on its way out.
pub(super) struct OutFrame {
    form: Form,
    id: u64,
    /// Header and head.
    head: Bytes,
    /// Whose body follows.
    message: Option<Arc<Message>>,
    body_len: usize,
}

impl OutFrame {
    /// A frame that is a header alone.
    pub fn bare(header: &Header) -> OutFrame {
        OutFrame {
            form: header.form,
            id: header.id,
            head: Bytes::copy_from_slice(&header.encode()),
            message: None,
            body_len: 0,
        }
    }

    /// The frame of a message, whose lengths were checked and whose body's CRC32C is `body_crc`.
    pub fn of(header: Header, message: Arc<Message>, body_crc: u32) -> OutFrame {
        let body_len = message.body.len();
        let header = Header {
            head_len: message.head.len() as u32,
            body_len: body_len as u32,
            head_crc: crc32c(&message.head),
            body_crc,
            ..header
        };
        let mut head = Vec::with_capacity(HEADER_LEN + message.head.len());
        head.extend_from_slice(&header.encode());
        head.extend_from_slice(&message.head);
        OutFrame { form: header.form, id: header.id, head: head.into(), message: Some(message), body_len }
    }

    fn len(&self) -> usize {
        self.head.len() + self.body_len
    }

    /// Its bytes, piece by piece.
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let body = self.message.iter().flat_map(|message| message.body.slices());
        std::iter::once(&self.head[..]).chain(body)
    }
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<OutFrame>,
    /// No more frames; the writing loop ends when the queue is empty.
    closed: bool,
}

/// The queue.
#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
}

impl Outbox {
    /// Queues a frame; it is dropped if the outbox is closed.
    pub fn push(&self, frame: OutFrame) {
        self.with_open_queue(|frames| frames.push_back(frame));
    }

    /// Queues a frame before all others.
    pub fn push_first(&self, frame: OutFrame) {
        self.with_open_queue(|frames| frames.push_front(frame));
    }

    /// Queues a frame before all others, unless one of its form waits already: whoever asks again and again gets one.
    pub fn push_one(&self, frame: OutFrame) {
        self.with_open_queue(|frames| {
            if frames.iter().all(|queued| queued.form != frame.form) {
                frames.push_front(frame);
            }
        });
    }

    fn with_open_queue(&self, put: impl FnOnce(&mut VecDeque<OutFrame>)) {
        let mut queue = self.queue.lock().unwrap();
        if !queue.closed {
            put(&mut queue.frames);
            self.filled.notify_one();
        }
    }

    /// Takes back a frame of which no byte was written; false if it is too late.
    pub fn take_back(&self, id: u64) -> bool {
        let mut queue = self.queue.lock().unwrap();
        let found = queue.frames.iter().position(|frame| frame.id == id && frame.form == Form::Request);
        let frame = found.and_then(|at| queue.frames.remove(at));
        drop(queue);
        frame.is_some()
    }

    /// Takes no more frames; the writing loop ends after those that wait.
    pub fn close(&self) {
        self.queue.lock().unwrap().closed = true;
        self.filled.notify_one();
    }

    /// Closes, and drops what was not written.
    pub fn discard(&self) {
        let frames = {
            let mut queue = self.queue.lock().unwrap();
            queue.closed = true;
            std::mem::take(&mut queue.frames)
        };
        drop(frames);
        self.filled.notify_one();
    }

    /// Writes frames until the outbox is closed and empty, then ends the stream. `wrote` hears of bytes that left.
    pub async fn write_to(
        &self,
        mut stream: impl AsyncWrite + Unpin,
        wrote: impl Fn(usize),
    ) -> Result<(), End> {
        while let Some(batch) = self.batch(&mut stream).await? {
            let mut slices: Vec<IoSlice<'_>> = batch
                .iter()
                .flat_map(OutFrame::slices)
                .filter(|piece| !piece.is_empty())
                .map(IoSlice::new)
                .collect();
            let mut rest = slices.as_mut_slice();
            while !rest.is_empty() {
                let written = stream.write_vectored(rest).await?;
                if written == 0 {
                    return Err(End::Io(std::io::ErrorKind::WriteZero.into()));
                }
                wrote(written);
                IoSlice::advance_slices(&mut rest, written);
            }
        }
        stream.shutdown().await?;
        Ok(())
    }

    /// The next frames; none once it is closed and empty. Flushes the stream before it waits.
    async fn batch(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<Option<Vec<OutFrame>>, End> {
        let mut flushed = false;
        loop {
            {
                let mut queue = self.queue.lock().unwrap();
                if !queue.frames.is_empty() {
                    return Ok(Some(take_batch(&mut queue.frames)));
                }
                if queue.closed {
                    return Ok(None);
                }
            }
            if !flushed {
                stream.flush().await?;
                flushed = true;
                continue;
            }
            self.filled.notified().await;
        }
    }
}

fn take_batch(frames: &mut VecDeque<OutFrame>) -> Vec<OutFrame> {
    let mut batch = Vec::new();
    let mut len = 0;
    while let Some(frame) = frames.pop_front() {
        len += frame.len();
        batch.push(frame);
        if len >= BATCH_BYTES || batch.len() == BATCH_FRAMES {
            break;
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::super::message::Body;
    use super::*;

    fn frame(id: u64) -> OutFrame {
        let pieces = (0..id % 4).map(|n| Bytes::from(vec![n as u8; (id * 37) as usize])).collect();
        let message = Message::new(1, "abc").with_body(Body::Shared(pieces));
        let crc = message.crc();
        OutFrame::of(Header::bare(Form::Request, id), Arc::new(message), crc)
    }

    #[tokio::test]
    async fn frames_leave_whole_and_in_order_through_a_narrow_pipe() {
        let outbox = Outbox::default();
        let mut expect = Vec::new();
        for id in 0..100 {
            if id != 50 {
                frame(id).slices().for_each(|piece| expect.extend_from_slice(piece));
            }
            outbox.push(frame(id));
        }
        assert!(outbox.take_back(50));
        assert!(!outbox.take_back(50));
        outbox.close();
        outbox.push(frame(200));
        let (near, mut far) = tokio::io::duplex(100);
        let mut got = Vec::new();
        let count = std::sync::atomic::AtomicUsize::new(0);
        let write = outbox.write_to(near, |n| {
            count.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        });
        let (written, read) = tokio::join!(write, far.read_to_end(&mut got));
        written.unwrap();
        read.unwrap();
        assert!(got == expect);
        assert_eq!(count.into_inner(), expect.len());
    }
}
