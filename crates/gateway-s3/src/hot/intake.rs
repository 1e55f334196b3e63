//! Carries a body into a writer: copied once, into the aligned memory that goes to the drive. A slow client holds
//! kilobytes, not a chunk.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stoker_store::{Buf, Writer};

use crate::refusal::{Code, Refusal, Result};

/// Bytes that are kept as they arrived before a chunk's memory is taken for them.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Frames that are kept; more are merged, because each may hold on to more memory than it shows.
const FRAMES_MAX: usize = 16;
/// How long a partly filled chunk waits for more.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// How often one body may do that: each time leaves a short chunk, which somebody has to remember.
const RELAXED_MAX: usize = 500;

/// A body on its way into a writer.
pub(crate) struct Intake {
    writer: Box<dyn Writer>,
    frames: Vec<Bytes>,
    frames_bytes: usize,
    buf: Option<Buf>,
    relaxed: usize,
}

impl Intake {
    /// Fills this writer.
    pub(crate) fn new(writer: Box<dyn Writer>) -> Intake {
        Intake { writer, frames: Vec::new(), frames_bytes: 0, buf: None, relaxed: 0 }
    }

    /// How long it may wait for more before [`Self::relax`].
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.buf.is_some() && self.relaxed < RELAXED_MAX).then_some(QUIET)
    }

    /// Takes bytes.
    pub(crate) async fn push(&mut self, data: Bytes) -> Result<()> {
        if self.buf.is_some() {
            return self.pour(&data).await;
        }
        self.frames_bytes += data.len();
        self.frames.push(data);
        if self.frames_bytes >= SMALL_BYTES_MAX {
            return self.pour_frames().await;
        }
        if self.frames.len() == FRAMES_MAX {
            let mut merged = BytesMut::with_capacity(self.frames_bytes);
            self.frames.drain(..).for_each(|frame| merged.extend_from_slice(&frame));
            self.frames.push(merged.freeze());
        }
        Ok(())
    }

    /// Writes what is there, short of a chunk, so that its memory is free for others.
    pub(crate) async fn relax(&mut self) -> Result<()> {
        match self.buf.take() {
            Some(buf) if !buf.is_empty() => {
                self.relaxed += 1;
                Ok(self.writer.write(buf).await?)
            }
            _ => Ok(()),
        }
    }

    /// Everything came. Returns the writer, to be finished.
    pub(crate) async fn end(mut self) -> Result<Box<dyn Writer>> {
        self.pour_frames().await?;
        self.relax().await?;
        Ok(self.writer)
    }

    async fn pour_frames(&mut self) -> Result<()> {
        self.frames_bytes = 0;
        for frame in std::mem::take(&mut self.frames) {
            self.pour(&frame).await?;
        }
        Ok(())
    }

    async fn pour(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let mut buf = match self.buf.take() {
                Some(buf) => buf,
                None => self.writer.buffer().await?,
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
