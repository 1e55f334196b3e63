//! Frames that wait to be written, and the task that writes them.
//!
//! The queue takes frames without waiting, from any place. That it stays short is up to those who fill it: payloads
//! are bounded by permits that leave with the frame, and a side that answers stops reading while [`Outbox::room`] is
//! waited for.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Buf as _;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use crate::fault::Fault;
use crate::frame::OutFrame;
use crate::halves::Sink;

/// Frames in the queue above which nobody should read more requests.
const FRAMES_MAX: usize = 1024;
/// Frames that are written with one call.
const BATCH_FRAMES: usize = 32;

#[derive(Default)]
struct Queue {
    frames: VecDeque<OutFrame>,
    closed: bool,
}

/// The queue.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    emptied: Notify,
}

impl Outbox {
    /// Queues a frame; it is dropped if the outbox is closed.
    pub fn push(&self, frame: OutFrame) {
        self.push_all([frame]);
    }

    /// Queues frames with nothing in between.
    pub fn push_all(&self, frames: impl IntoIterator<Item = OutFrame>) {
        let mut queue = self.queue.lock().unwrap();
        if !queue.closed {
            queue.frames.extend(frames);
            self.filled.notify_one();
        }
    }

    /// Lets the writing task end when the queue is empty.
    pub fn close(&self) {
        self.queue.lock().unwrap().closed = true;
        self.filled.notify_one();
    }

    /// Closes, and drops what was not written.
    pub fn discard(&self) {
        let mut queue = self.queue.lock().unwrap();
        queue.closed = true;
        let frames = std::mem::take(&mut queue.frames);
        drop(queue);
        // Guards of frames may call back; they run without the lock.
        drop(frames);
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    /// Waits until the queue is short or closed; for one task only.
    pub async fn room(&self) {
        loop {
            {
                let queue = self.queue.lock().unwrap();
                if queue.closed || queue.frames.len() < FRAMES_MAX {
                    return;
                }
            }
            self.emptied.notified().await;
        }
    }

    /// The next frames; none once it is closed and empty.
    async fn batch(&self) -> Option<VecDeque<OutFrame>> {
        loop {
            {
                let mut queue = self.queue.lock().unwrap();
                if !queue.frames.is_empty() {
                    let count = queue.frames.len().min(BATCH_FRAMES);
                    let rest = queue.frames.split_off(count);
                    return Some(std::mem::replace(&mut queue.frames, rest));
                }
                if queue.closed {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Writes frames until the outbox is closed and empty, then ends the stream. Gives up on a peer that takes nothing
    /// for as long as `stall`. Whatever the end, nothing is queued any more.
    pub async fn write_to(&self, mut stream: impl Sink, stall: Duration) -> Result<(), Fault> {
        let written = self.write_all_to(&mut stream, stall).await;
        self.discard();
        written
    }

    async fn write_all_to(&self, stream: &mut impl Sink, stall: Duration) -> Result<(), Fault> {
        while let Some(mut frames) = self.batch().await {
            while let Some(front) = frames.front() {
                // Descriptors go with the first byte of a call, so a frame that has some begins one.
                let alone = |frame: &&OutFrame| frame.descriptors.is_empty();
                let slices: Vec<IoSlice<'_>> = std::iter::once(front)
                    .chain(frames.iter().skip(1).take_while(alone))
                    .flat_map(|frame| [&frame.head, &frame.payload])
                    .filter(|bytes| !bytes.is_empty())
                    .map(|bytes| IoSlice::new(bytes))
                    .collect();
                let descriptors = front.descriptors.as_slice();
                let write = std::future::poll_fn(|cx| stream.poll_send(cx, &slices, descriptors));
                let written = tokio::time::timeout(stall, write).await.map_err(|_| Fault::Stalled)??;
                if written == 0 {
                    return Err(Fault::Io(std::io::ErrorKind::WriteZero.into()));
                }
                advance(&mut frames, written);
            }
            self.emptied.notify_one();
        }
        let _ = tokio::time::timeout(stall, stream.shutdown()).await;
        Ok(())
    }
}

/// Drops what was written.
fn advance(frames: &mut VecDeque<OutFrame>, mut written: usize) {
    while let Some(frame) = frames.front_mut() {
        if written > 0 {
            frame.descriptors.clear();
        }
        let head = written.min(frame.head.len());
        frame.head.advance(head);
        let payload = (written - head).min(frame.payload.len());
        frame.payload.advance(payload);
        written -= head + payload;
        if !frame.head.is_empty() || !frame.payload.is_empty() {
            break;
        }
        frames.pop_front();
    }
    debug_assert_eq!(written, 0);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::frame::Kind;

    #[tokio::test]
    async fn frames_leave_whole_and_in_order_through_a_narrow_pipe() {
        let outbox = Outbox::default();
        let mut expect = Vec::new();
        for id in 0..100u64 {
            let payload = Bytes::from(vec![id as u8; (id * 37) as usize]);
            let frame = OutFrame::new(Kind::Data, id, 0, b"abc", payload);
            expect.extend_from_slice(&frame.head);
            expect.extend_from_slice(&frame.payload);
            outbox.push(frame);
        }
        outbox.close();
        outbox.push(OutFrame::bare(Kind::Release, 1));
        let (near, mut far) = tokio::io::duplex(100);
        let mut got = Vec::new();
        let (written, read) =
            tokio::join!(outbox.write_to(near, Duration::from_secs(10)), far.read_to_end(&mut got));
        written.unwrap();
        read.unwrap();
        assert!(got == expect);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up_and_permits_come_back() {
        let outbox = Outbox::default();
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        outbox.push(OutFrame::new(Kind::Data, 1, 0, &[], Bytes::from(vec![0; 1000])).guarded(permit));
        let (near, _far) = tokio::io::duplex(10);
        let done = outbox.write_to(near, Duration::from_millis(20)).await;
        assert!(matches!(done, Err(Fault::Stalled)));
        assert_eq!(permits.available_permits(), 1);
    }
}
