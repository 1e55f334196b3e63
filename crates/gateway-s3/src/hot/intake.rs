//! Carries a body into a writer: copied once, into the aligned memory that goes to the drive. A slow client holds
//! kilobytes, not a chunk.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stoker_store::{Buf, Writer};
use tokio::time::Instant;

use crate::refusal::{Code, Refusal, Result};

use super::memory_queue::MemoryQueue;

/// Bytes that are kept as they arrived before a chunk's memory is taken for them.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Frames that are kept; more are merged, because each may hold on to more memory than it shows.
const FRAMES_MAX: usize = 16;
/// How long a partly filled chunk waits for more.
pub(crate) const QUIET: Duration = Duration::from_secs(2);
/// Whoever sends less is slow: it must not hold the memory of a chunk while it does.
const SLOW_BYTES_PER_S: u128 = 64 << 10;
/// The same while others wait for memory. A client that is this fast fills a chunk before anybody minds.
const CONTENDED_QUIET: Duration = Duration::from_millis(50);
const CONTENDED_BYTES_PER_S: u128 = 4 << 20;
/// Longest time that a chunk is being filled while others wait and its client is slower than that.
const CONTENDED_HELD: Duration = Duration::from_millis(200);

/// How often one body may give a chunk's memory back: each time leaves a chunk of another length, which somebody has to
/// remember. Then it counts as slow for good.
const RELAXED_MAX: usize = 500;

/// Whether so many bytes in that time are few.
fn is_slow(bytes: usize, time: Duration) -> bool {
    is_below(SLOW_BYTES_PER_S, bytes, time)
}

fn is_below(bytes_per_s: u128, bytes: usize, time: Duration) -> bool {
    (bytes as u128) * 1_000 < bytes_per_s * time.as_millis()
}

/// A body on its way into a writer.
pub(crate) struct Intake {
    writer: Box<dyn Writer>,
    frames: Vec<Bytes>,
    frames_bytes: usize,
    /// When the first of the frames came.
    frames_since: Option<Instant>,
    buf: Option<Buf>,
    /// When it was taken.
    buf_since: Instant,
    relaxed: usize,
    /// How often nothing came for another [`CONTENDED_QUIET`] since the last byte.
    quiet: u32,
    /// Bytes since it last gave memory back: who brings more is served first.
    progress: u64,
    queue: Arc<MemoryQueue>,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
}

impl Intake {
    /// Fills this writer.
    pub(crate) fn new(writer: Box<dyn Writer>, queue: Arc<MemoryQueue>) -> Intake {
        Intake::with_clock(writer, queue, Box::new(Instant::now))
    }

    fn with_clock(
        writer: Box<dyn Writer>,
        queue: Arc<MemoryQueue>,
        clock: Box<dyn Fn() -> Instant + Send + Sync>,
    ) -> Intake {
        let buf_since = clock();
        Intake {
            writer,
            frames: Vec::new(),
            frames_bytes: 0,
            frames_since: None,
            buf: None,
            buf_since,
            relaxed: 0,
            quiet: 0,
            progress: 0,
            queue,
            clock,
        }
    }

    /// How long nothing may come, counted from the last byte, before [`Self::grow_quiet`].
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.buf.is_some().then(|| CONTENDED_QUIET * (self.quiet + 1))
    }

    /// Nothing came for that long. Memory is given back after a while, or at once if others wait for some.
    pub(crate) async fn grow_quiet(&mut self) -> Result<()> {
        self.quiet += 1;
        if self.queue.is_contended() || CONTENDED_QUIET * self.quiet >= QUIET {
            return self.relax().await;
        }
        Ok(())
    }

    /// Takes bytes.
    pub(crate) async fn push(&mut self, data: Bytes) -> Result<()> {
        self.quiet = 0;
        self.progress += data.len() as u64;
        if self.buf.is_some() {
            self.pour(&data).await?;
            return if self.buf_is_slow() { self.relax().await } else { Ok(()) };
        }
        let now = (self.clock)();
        let since = *self.frames_since.get_or_insert(now);
        self.frames_bytes += data.len();
        self.frames.push(data);
        if self.frames_bytes >= SMALL_BYTES_MAX {
            let slow = is_slow(self.frames_bytes, now.saturating_duration_since(since));
            return match slow || self.relaxed >= RELAXED_MAX {
                true => self.pass_small().await,
                false => self.pour_frames().await,
            };
        }
        if self.frames.len() == FRAMES_MAX {
            let mut merged = BytesMut::with_capacity(self.frames_bytes);
            self.frames.drain(..).for_each(|frame| merged.extend_from_slice(&frame));
            self.frames.push(merged.freeze());
        }
        Ok(())
    }

    /// Writes what is there, short of a chunk, so that its memory is free for others.
    async fn relax(&mut self) -> Result<()> {
        self.relaxed += usize::from(self.buf.is_some());
        (self.quiet, self.progress) = (0, 0);
        self.write_short().await
    }

    /// Everything came. Returns the writer, to be finished.
    pub(crate) async fn end(mut self) -> Result<Box<dyn Writer>> {
        self.pour_frames().await?;
        self.write_short().await?;
        Ok(self.writer)
    }

    fn buf_is_slow(&self) -> bool {
        let held = (self.clock)().saturating_duration_since(self.buf_since);
        let len = self.buf.as_ref().map_or(0, Buf::len);
        let is_late = held >= CONTENDED_HELD && is_below(CONTENDED_BYTES_PER_S, len, held);
        held >= QUIET && is_slow(len, held) || is_late && self.queue.is_contended()
    }

    async fn write_short(&mut self) -> Result<()> {
        match self.buf.take() {
            Some(buf) if !buf.is_empty() => Ok(self.writer.write(buf).await?),
            _ => Ok(()),
        }
    }

    /// Writes what a slow client sent in small chunks of one length, which cost one entry together however many they are.
    /// The rest waits as frames.
    async fn pass_small(&mut self) -> Result<()> {
        let mut frames = std::mem::take(&mut self.frames).into_iter();
        while self.frames_bytes >= SMALL_BYTES_MAX {
            let mut missing = SMALL_BYTES_MAX;
            while missing > 0 {
                let Some(mut frame) = self.frames.pop().or_else(|| frames.next()) else { break };
                let piece = frame.split_to(missing.min(frame.len()));
                missing -= piece.len();
                self.pour(&piece).await?;
                if !frame.is_empty() {
                    self.frames.push(frame);
                }
            }
            self.write_short().await?;
            self.frames_bytes -= SMALL_BYTES_MAX;
        }
        self.frames.extend(frames);
        self.frames_since = (self.frames_bytes > 0).then(&self.clock);
        Ok(())
    }

    async fn pour_frames(&mut self) -> Result<()> {
        (self.frames_bytes, self.frames_since) = (0, None);
        for frame in std::mem::take(&mut self.frames) {
            self.pour(&frame).await?;
        }
        Ok(())
    }

    async fn pour(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let mut buf = match self.buf.take() {
                Some(buf) => buf,
                None => {
                    let _permit = self.queue.permit(self.progress).await;
                    let buf = self.queue.counted(self.writer.buffer()).await?;
                    self.buf_since = (self.clock)();
                    buf
                }
            };
            let len = data.len().min(buf.capacity() - buf.len());
            if len == 0 {
                return Err(Refusal::new(
                    Code::InternalError,
                    "The store has no room for more than was announced.",
                ));
            }
            buf.fill(&data[..len]);
            data = &data[len..];
            if buf.len() == buf.capacity() {
                self.writer.write(buf).await?;
            } else {
                self.buf = Some(buf);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use stoker_store::{BoxFuture, Finish, Receipt};

    use super::*;

    /// Remembers the lengths of the chunks that it was given.
    struct Lengths(Arc<Mutex<Vec<usize>>>);

    impl Writer for Lengths {
        fn buffer(&mut self) -> BoxFuture<'_, stoker_store::Result<Buf>> {
            Box::pin(async {
                let mut buf = Buf::heap(4 << 20);
                buf.set_len(0);
                Ok(buf)
            })
        }

        fn write(&mut self, buf: Buf) -> BoxFuture<'_, stoker_store::Result<()>> {
            self.0.lock().unwrap().push(buf.len());
            Box::pin(async { Ok(()) })
        }

        fn crc64(&self) -> u64 {
            0
        }

        fn finish(self: Box<Self>, _: Finish) -> BoxFuture<'static, stoker_store::Result<Receipt>> {
            unreachable!("nothing is published here")
        }
    }

    struct Rig {
        intake: Intake,
        lengths: Arc<Mutex<Vec<usize>>>,
        now_ms: Arc<AtomicU64>,
        queue: Arc<MemoryQueue>,
    }

    fn rig() -> Rig {
        let (lengths, now_ms) = (Arc::<Mutex<Vec<usize>>>::default(), Arc::<AtomicU64>::default());
        let (start, time) = (Instant::now(), now_ms.clone());
        let clock = move || start + Duration::from_millis(time.load(Ordering::Relaxed));
        let queue = MemoryQueue::new();
        let intake = Intake::with_clock(Box::new(Lengths(lengths.clone())), queue.clone(), Box::new(clock));
        Rig { intake, lengths, now_ms, queue }
    }

    impl Rig {
        /// Sends `count` frames of `len` bytes, each `pause_ms` after the one before. True if memory of a chunk was ever
        /// held for longer than the quiet time.
        async fn send(&mut self, count: usize, len: usize, pause_ms: u64) -> bool {
            let (mut held, mut too_long) = (0, false);
            for _ in 0..count {
                self.now_ms.fetch_add(pause_ms, Ordering::Relaxed);
                self.intake.push(vec![7; len].into()).await.unwrap();
                held = if self.intake.buf.is_some() { held + pause_ms } else { 0 };
                too_long |= held > QUIET.as_millis() as u64 + pause_ms;
            }
            too_long
        }

        async fn end(self) -> Vec<usize> {
            self.intake.end().await.unwrap();
            std::mem::take(&mut *self.lengths.lock().unwrap())
        }
    }

    #[tokio::test]
    async fn a_fast_client_fills_chunks() {
        let mut rig = rig();
        rig.send(3 * 64 + 1, 64 << 10, 100).await;
        assert_eq!(rig.end().await, [4 << 20, 4 << 20, 4 << 20, 64 << 10]);
    }

    #[tokio::test]
    async fn a_trickle_does_not_hold_a_chunk() {
        let mut rig = rig();
        // Fast at first, so that it has the memory; then one byte a second.
        rig.send(4, 64 << 10, 10).await;
        assert!(!rig.send(100, 1, 1_000).await);
        assert!(rig.intake.buf.is_none());
        assert_eq!(rig.end().await, [(256 << 10) + 4, 96]);
    }

    #[tokio::test]
    async fn who_is_quiet_gives_way_to_those_who_wait() {
        // Nobody waits: the chunk is kept for two seconds.
        let mut alone = rig();
        alone.send(4, 64 << 10, 1).await;
        for step in 1..40 {
            assert_eq!(alone.intake.patience(), Some(CONTENDED_QUIET * step));
            alone.intake.grow_quiet().await.unwrap();
            assert!(alone.intake.buf.is_some(), "{step}");
        }
        alone.intake.grow_quiet().await.unwrap();
        assert!(alone.intake.buf.is_none() && alone.intake.patience().is_none());
        // Somebody waits: a quiet client gives it back at once, one that trickles soon, a fast one fills it.
        let mut held = rig();
        let waits = held.queue.clone();
        let mut waits = Box::pin(waits.counted(std::future::pending::<()>()));
        std::future::poll_fn(|cx| {
            assert!(waits.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        held.send(64 - 1, 64 << 10, 10).await;
        assert!(held.intake.buf.is_some(), "6 MiB/s is fast");
        held.intake.grow_quiet().await.unwrap();
        assert!(held.intake.buf.is_none());
        held.send(4, 64 << 10, 1).await;
        held.send(6, 1, 40).await;
        assert!(held.intake.buf.is_none(), "1 byte in 40 ms is a trickle");
        drop(waits);
        held.end().await;
    }

    #[tokio::test]
    async fn slow_clients_leave_chunks_of_one_length() {
        let mut rig = rig();
        assert!(!rig.send(2_000, 10_000, 1_000).await);
        let lengths = rig.end().await;
        let (last, others) = lengths.split_last().unwrap();
        assert!(others.iter().all(|len| *len == 64 << 10), "{others:?}");
        assert_eq!(others.len() * (64 << 10) + last, 20_000_000);
    }

    #[tokio::test]
    async fn stop_and_go_is_slow_in_the_end() {
        let mut rig = rig();
        for _ in 0..2 * RELAXED_MAX {
            rig.send(2, 50_000, 1).await;
            assert!(!rig.send(1, 1, 3_000).await);
        }
        assert!(rig.intake.buf.is_none());
        let lengths = rig.end().await;
        let odd = lengths.iter().filter(|len| **len != 64 << 10).count();
        assert!(odd <= RELAXED_MAX + 1, "{odd}");
        assert_eq!(lengths.iter().sum::<usize>(), 2 * RELAXED_MAX * 100_001);
    }
}
