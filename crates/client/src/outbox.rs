//! Frames that wait to be written, and who writes them.
//!
//! The queue takes frames without waiting, from any place. Whoever finds it empty writes small frames to the socket at
//! once, because a switch to the task that writes would cost more than the write; what the socket does not take at once is
//! left to the task. That the queue stays short is up to those who fill it: payloads are bounded by permits that leave with
//! the frame, and a side that answers stops reading while [`Outbox::room`] is waited for.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Buf as _;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use crate::fault::Fault;
use crate::frame::OutFrame;
use crate::halves::{Direct, Sink};

/// Frames in the queue above which nobody should read more requests.
const FRAMES_MAX: usize = 1024;
/// Frames that are written with one call.
const BATCH_FRAMES: usize = 32;
/// Longer frames are left to the task: who fills the queue has something else to do meanwhile.
const DIRECT_LEN_MAX: usize = 32 << 10;
/// Batches that one who fills the queue writes for others before it leaves the rest to the task.
const DIRECT_BATCHES: usize = 4;

#[derive(Default)]
struct Queue {
    frames: VecDeque<OutFrame>,
    closed: bool,
    /// Somebody has taken frames from the front and is writing them; nobody else may.
    is_writing: bool,
    /// For those who do not wait; none before the task begins and after it ends.
    direct: Option<Arc<Direct>>,
}

impl Queue {
    /// The next frames; whoever gets some says when they are written.
    fn take(&mut self) -> Option<VecDeque<OutFrame>> {
        if self.is_writing || self.frames.is_empty() {
            return None;
        }
        self.is_writing = true;
        let count = self.frames.len().min(BATCH_FRAMES);
        let rest = self.frames.split_off(count);
        Some(std::mem::replace(&mut self.frames, rest))
    }

    /// The same for one who does not wait: only if the first of them are small.
    fn take_small(&mut self) -> Option<(Arc<Direct>, VecDeque<OutFrame>)> {
        let direct = self.direct.clone()?;
        let is_small = self.frames.iter().take(BATCH_FRAMES).all(|frame| frame.len() <= DIRECT_LEN_MAX);
        if is_small { Some((direct, self.take()?)) } else { None }
    }
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
        if queue.closed {
            return;
        }
        queue.frames.extend(frames);
        for _ in 0..DIRECT_BATCHES {
            let Some((direct, mut batch)) = queue.take_small() else { break };
            drop(queue);
            let is_open = send_now(&direct, &mut batch);
            queue = self.put_back(batch);
            if !is_open {
                break;
            }
        }
        // Whoever is writing looks at the queue again when it is done.
        if !queue.is_writing && (queue.closed || !queue.frames.is_empty()) {
            self.filled.notify_one();
        }
    }

    /// What was not written is in front again.
    fn put_back(&self, batch: VecDeque<OutFrame>) -> std::sync::MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock().unwrap();
        queue.is_writing = false;
        if queue.closed && queue.direct.is_none() {
            // Nobody writes any more. Guards of frames may call back; they run without the lock.
            drop(queue);
            drop(batch);
            return self.queue.lock().unwrap();
        }
        for frame in batch.into_iter().rev() {
            queue.frames.push_front(frame);
        }
        if queue.frames.len() < FRAMES_MAX {
            self.emptied.notify_one();
        }
        queue
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
        let gone = (std::mem::take(&mut queue.frames), queue.direct.take());
        drop(queue);
        // Guards of frames may call back; they run without the lock.
        drop(gone);
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
                if let Some(batch) = queue.take() {
                    return Some(batch);
                }
                if queue.closed && queue.frames.is_empty() && !queue.is_writing {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Writes frames until the outbox is closed and empty, then ends the stream. Gives up on a peer that takes nothing
    /// for as long as `stall`. Whatever the end, nothing is queued any more.
    pub async fn write_to(&self, mut stream: impl Sink, stall: Duration) -> Result<(), Fault> {
        self.queue.lock().unwrap().direct = stream.direct().map(Arc::new);
        let written = self.write_all_to(&mut stream, stall).await;
        self.discard();
        written
    }

    async fn write_all_to(&self, stream: &mut impl Sink, stall: Duration) -> Result<(), Fault> {
        while let Some(mut frames) = self.batch().await {
            while !frames.is_empty() {
                let (slices, descriptors) = next_call(&frames);
                let write = std::future::poll_fn(|cx| stream.poll_send(cx, &slices, descriptors));
                let written = tokio::time::timeout(stall, write).await.map_err(|_| Fault::Stalled)??;
                if written == 0 {
                    return Err(Fault::Io(io::ErrorKind::WriteZero.into()));
                }
                advance(&mut frames, written);
            }
            // TLS keeps what the kernel did not take at once.
            tokio::time::timeout(stall, stream.flush()).await.map_err(|_| Fault::Stalled)??;
            drop(self.put_back(frames));
        }
        let _ = tokio::time::timeout(stall, stream.shutdown()).await;
        Ok(())
    }
}

/// Writes as many frames as the socket takes now; false if it takes no more. What fails is left to the task, which fails
/// in the same way.
fn send_now(direct: &Direct, frames: &mut VecDeque<OutFrame>) -> bool {
    while !frames.is_empty() {
        let (slices, descriptors) = next_call(frames);
        match direct.try_send(&slices, descriptors) {
            Ok(written) if written > 0 => advance(frames, written),
            _ => return false,
        }
    }
    true
}

/// What is written with one call: descriptors go with the first byte of it, so a frame that has some begins one.
fn next_call(frames: &VecDeque<OutFrame>) -> (Vec<IoSlice<'_>>, &[OwnedFd]) {
    let alone = |frame: &&OutFrame| frame.descriptors.is_empty();
    let (first, rest) = (frames.iter().take(1), frames.iter().skip(1).take_while(alone));
    let slices = first
        .chain(rest)
        .flat_map(|frame| [&frame.head, &frame.payload])
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| IoSlice::new(bytes))
        .collect();
    (slices, frames.front().map_or(&[], |front| front.descriptors.as_slice()))
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
    use crate::frame::{HEADER_LEN, Header, Kind};

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

    /// A socket that takes little at once.
    fn narrow() -> (crate::halves::Outgoing, std::os::unix::net::UnixStream) {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        socket2::SockRef::from(&near).set_send_buffer_size(1).unwrap();
        let near = crate::socket::Stream::Unix(tokio::net::UnixStream::from_std(near).unwrap());
        (near.split().1, far)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn frames_of_many_threads_leave_whole_and_in_order() {
        const THREADS: u64 = 6;
        const FRAMES: u64 = 400;
        let outbox = Arc::new(Outbox::default());
        let (out, mut far) = narrow();
        let permits = Arc::new(tokio::sync::Semaphore::new((THREADS * FRAMES) as usize));
        let writing = outbox.clone();
        let written = tokio::spawn(async move { writing.write_to(out, Duration::from_secs(60)).await });
        let reading = std::thread::spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut far, &mut got).unwrap();
            got
        });
        let filling: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (outbox, permits) = (outbox.clone(), permits.clone());
                std::thread::spawn(move || {
                    for number in 0..FRAMES {
                        // Some are too long for those who do not wait.
                        let len =
                            if number % 50 == 7 { DIRECT_LEN_MAX + 1 } else { (number * 29 % 3000) as usize };
                        let payload = Bytes::from(vec![thread as u8; len]);
                        let permit = permits.clone().try_acquire_owned().unwrap();
                        let id = thread << 32 | number;
                        let frame = OutFrame::new(Kind::Data, id, 0, &[], payload).guarded(permit);
                        match number % 3 {
                            0 => outbox.push(frame),
                            // Those that belong together stay together.
                            _ => outbox.push_all([OutFrame::bare(Kind::Want, id), frame]),
                        }
                    }
                })
            })
            .collect();
        tokio::task::spawn_blocking(|| filling.into_iter().for_each(|one| one.join().unwrap()))
            .await
            .unwrap();
        outbox.close();
        written.await.unwrap().unwrap();
        let got = tokio::task::spawn_blocking(|| reading.join().unwrap()).await.unwrap();
        assert_eq!(permits.available_permits(), (THREADS * FRAMES) as usize, "all guards are gone");

        let (mut rest, mut next, mut wanted) = (&got[..], [0; THREADS as usize], None);
        while !rest.is_empty() {
            let raw: [u8; HEADER_LEN] = rest[..HEADER_LEN].try_into().unwrap();
            let header = Header::decode(&raw).unwrap();
            header.check(&[]).unwrap();
            let payload = &rest[HEADER_LEN..][..header.payload_len as usize];
            let (thread, number) = (header.id >> 32, header.id & u64::from(u32::MAX));
            assert!(wanted.take().is_none_or(|wanted| wanted == header.id), "something came in between");
            match header.kind {
                Kind::Want => wanted = Some(header.id),
                _ => {
                    assert_eq!(number, next[thread as usize]);
                    next[thread as usize] += 1;
                    assert!(payload.iter().all(|byte| *byte == thread as u8));
                    header.check_payload(stoker_format::crc32c(payload)).unwrap();
                }
            }
            rest = &rest[HEADER_LEN + payload.len()..];
        }
        assert_eq!(next, [FRAMES; THREADS as usize]);
    }

    #[tokio::test]
    async fn who_writes_at_once_notices_that_nobody_writes_any_more() {
        let outbox = Outbox::default();
        let permits = Arc::new(tokio::sync::Semaphore::new(100));
        let (out, far) = narrow();
        let push = || {
            let permit = permits.clone().try_acquire_owned().unwrap();
            outbox.push(OutFrame::new(Kind::Data, 1, 0, &[], Bytes::from(vec![0; 9000])).guarded(permit));
        };
        let write = outbox.write_to(out, Duration::from_secs(60));
        tokio::pin!(write);
        assert!(futures_util::poll!(&mut write).is_pending());
        (0..50).for_each(|_| push());
        assert!(permits.available_permits() < 100, "the socket is full");
        drop(far);
        assert!(matches!(write.await, Err(Fault::Io(_))));
        push();
        assert_eq!(permits.available_permits(), 100);
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
