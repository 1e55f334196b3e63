//! A connection's bytes, plain or in TLS, with limits on how long the other side may dawdle.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;

use crate::exchange::Pace;

/// Plain or encrypted.
pub(crate) enum Stream {
    /// HTTP.
    Plain(TcpStream),
    /// HTTPS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A deadline that is set often and reached rarely.
#[derive(Default)]
struct Patience {
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// Things move.
    fn reset(&mut self) {
        self.since = None;
    }

    /// Starts to wait, unless it does.
    fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether it waited for too long; wakes the task when that is so.
    fn is_over(&mut self, cx: &mut Context<'_>, max: Duration) -> bool {
        let Some(since) = self.since else {
            return false;
        };
        let deadline = since + max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}

/// A connection as hyper sees it.
pub(crate) struct Wire {
    stream: Stream,
    pace: Pace,
    /// Turns of the pace when it was last looked at.
    turns: u64,
    /// From the first byte of a head to the request.
    head: Patience,
    head_max: Duration,
    /// While the other side takes nothing.
    stall: Patience,
    stall_max: Duration,
}

impl Wire {
    /// A connection whose requests `pace` counts.
    pub(crate) fn new(stream: Stream, pace: Pace, head_max: Duration, stall_max: Duration) -> Wire {
        Wire {
            stream,
            pace,
            turns: 0,
            head: Patience::default(),
            head_max,
            stall: Patience::default(),
            stall_max,
        }
    }

    fn with_stall<T>(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match act(Pin::new(&mut self.stream), cx) {
            Poll::Ready(done) => {
                self.stall.reset();
                Poll::Ready(done)
            }
            Poll::Pending => {
                self.stall.begin();
                if self.stall.is_over(cx, self.stall_max) {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        let turns = this.pace.turns();
        if turns != this.turns {
            this.turns = turns;
            this.head.reset();
        }
        let is_busy = turns % 2 == 1;
        if is_busy {
            return polled;
        }
        match polled {
            Poll::Ready(Ok(())) if buf.filled().len() > before => this.head.begin(),
            Poll::Ready(_) => {}
            Poll::Pending if this.head.is_over(cx, this.head_max) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().with_stall(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().with_stall(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().with_stall(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().with_stall(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
