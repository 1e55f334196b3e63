//! The body of a request as it arrives, with limits on waiting for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::counters::Counters;
use crate::refusal::{Code, Refusal, Result};

use super::memory_queue::MemoryQueue;

/// What came, or not.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Bytes.
    Data(Bytes),
    /// Nothing for a while; there may be more.
    Quiet,
    /// All came.
    End,
}

/// A body being received.
pub(crate) struct Arrivals {
    body: Incoming,
    counters: Arc<Counters>,
    memory: Arc<MemoryQueue>,
    stall_max: Duration,
    /// Since when nothing came.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    touched: bool,
    ended: bool,
}

impl Arrivals {
    /// Waits at most `stall_max` for the next byte.
    pub(crate) fn new(
        body: Incoming,
        stall_max: Duration,
        counters: Arc<Counters>,
        memory: Arc<MemoryQueue>,
    ) -> Arrivals {
        Arrivals { body, counters, memory, stall_max, since: None, timer: None, touched: false, ended: false }
    }

    /// Where memory for it is waited for.
    pub(crate) fn memory(&self) -> Arc<MemoryQueue> {
        Arc::clone(&self.memory)
    }

    /// Whether anybody asked for the body; a client that waits for `100 Continue` sends it only then.
    pub(crate) fn is_touched(&self) -> bool {
        self.touched
    }

    /// Whether nothing can follow.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    /// The next bytes. With `quiet`, says so after that long without any.
    pub(crate) async fn next(&mut self, quiet: Option<Duration>) -> Result<Arrival> {
        std::future::poll_fn(|cx| self.poll_next(cx, quiet)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, quiet: Option<Duration>) -> Poll<Result<Arrival>> {
        self.touched = true;
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.since = None;
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        self.counters.received(data.len());
                        return Poll::Ready(Ok(Arrival::Data(data)));
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    self.ended = true;
                    return Poll::Ready(Err(Refusal::new(
                        Code::IncompleteBody,
                        "The request body terminated unexpectedly.",
                    )));
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    return Poll::Ready(Ok(Arrival::End));
                }
                Poll::Pending => break,
            }
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.poll_timer(cx, since + quiet.unwrap_or(self.stall_max)) {
            return Poll::Pending;
        }
        Poll::Ready(match quiet {
            Some(_) => Ok(Arrival::Quiet),
            None => Err(Refusal::new(
                Code::RequestTimeout,
                "Your socket connection to the server was not read from or written to within the timeout period.",
            )),
        })
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}
