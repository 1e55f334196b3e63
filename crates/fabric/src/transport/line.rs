//! One connection, whichever side dialed: frames out, frames in, and the end when nothing comes any more.
//!
//! Both sides ping. A side that hears nothing for a few pings in a row gives the connection up, so a peer whose machine is
//! gone is noticed without traffic. A reader that waits for memory hears nothing by its own choice and does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::end::End;
use super::frame::{Form, Header};
use super::outbox::{OutFrame, Outbox};
use super::refusal::Reason;
use super::socket::WriteHalf;

/// Pings in a row without a byte from the other side, after which it is given up.
const SILENT_PINGS_MAX: u32 = 3;
/// How long a side that ends a connection waits for its last frames to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// The state that the two loops of a connection share.
#[derive(Default)]
pub(super) struct Line {
    pub outbox: Outbox,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    /// The reader waits for memory.
    pub reader_waits: AtomicBool,
    ended: Notify,
}

impl Line {
    /// Ends the connection from elsewhere.
    pub fn end(&self) {
        self.ended.notify_one();
    }

    /// Asks for no more requests.
    pub fn say_goodbye(&self, reason: Reason) {
        self.outbox.push_one(OutFrame::bare(&Header {
            kind: u16::from(reason as u8),
            ..Header::bare(Form::Goodbye, 0)
        }));
    }

    /// Writes what is queued and runs `read` until one of them ends; `pinging` is called with each ping.
    pub async fn run(
        self: &Arc<Line>,
        write_half: WriteHalf,
        ping_interval: Duration,
        pinging: impl Fn(),
        read: impl Future<Output = End>,
    ) -> End {
        let line = self.clone();
        let mut writer = AbortOnDrop(tokio::spawn(async move {
            let count = |written| {
                line.sent_bytes.fetch_add(written as u64, Ordering::Relaxed);
            };
            let written = line.outbox.write_to(write_half, count).await;
            line.outbox.discard();
            written
        }));
        let end = tokio::select! {
            end = read => end,
            end = self.keep(ping_interval, pinging) => end,
            written = &mut writer.0 => match written {
                Ok(Err(end)) => end,
                _ => End::Closed,
            },
            () = self.ended.notified() => End::Closed,
        };
        if let End::Broken(_) = end {
            self.say_goodbye(Reason::Broken);
        }
        self.outbox.close();
        if matches!(end, End::Broken(_) | End::Closed) && !writer.0.is_finished() {
            let _ = tokio::time::timeout(FAREWELL, &mut writer.0).await;
        }
        self.outbox.discard();
        end
    }

    /// Pings, and returns when the other side is silent.
    async fn keep(&self, ping_interval: Duration, pinging: impl Fn()) -> End {
        let (mut heard, mut silent_pings) = (0, 0);
        loop {
            tokio::time::sleep(ping_interval).await;
            let received = self.received_bytes.load(Ordering::Relaxed);
            if received != heard || self.reader_waits.load(Ordering::Relaxed) {
                (heard, silent_pings) = (received, 0);
            } else {
                silent_pings += 1;
            }
            if silent_pings >= SILENT_PINGS_MAX {
                return End::Silent;
            }
            pinging();
            self.outbox.push_one(OutFrame::bare(&Header::bare(Form::Ping, 0)));
        }
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
