//! The calls of one connection that this node dialed.
//!
//! What is under way never exceeds what the other side allowed in its hello: requests by number, bodies by bytes. Permits
//! come back with the answer, also with that to a cancelled request, so both sides always agree on what is under way and
//! the other side's reader never has to stop for one caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::end::End;
use super::frame::{FLAG_FAULT, FLAG_UNSERVED, Form, Header, Unserved};
use super::hello::Met;
use super::intake::Intake;
use super::line::Line;
use super::message::{Call, CallError, Fault, Message};
use super::outbox::OutFrame;
use super::refusal::Reason;
use super::stats::Rail;

/// What a request without a body counts for, when connections are compared by their load.
const REQUEST_LOAD: u64 = 4 << 10;

/// Calls over one connection.
pub(super) struct Link {
    pub line: Arc<Line>,
    rail: Arc<Rail>,
    window: u32,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    load: AtomicU64,
    next_id: AtomicU64,
    calls: Mutex<Calls>,
    /// The other side wants no more requests.
    leaving: AtomicBool,
    ping_sent: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Waiting>,
    ended: bool,
}

struct Waiting {
    answer: oneshot::Sender<Result<Message, Missed>>,
    answer_len_max: u32,
    _permits: [OwnedSemaphorePermit; 2],
}

/// What is to be expected of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outlook {
    /// It takes calls.
    Open,
    /// It is lost, and another will be made.
    Ended,
    /// The other side wants no more requests.
    Leaving,
}

/// Why an attempt has no answer.
#[derive(Debug)]
pub(super) enum Missed {
    /// It is decided.
    Decided(CallError),
    /// The service did not see the request, because the connection ended or the node is stopping.
    Unseen,
    /// The connection ended; the service may have seen the request.
    Lost,
}

impl Link {
    /// The calls of a connection whose hello is over.
    pub fn new(met: &Met, line: Arc<Line>, rail: Arc<Rail>) -> Arc<Link> {
        Arc::new(Link {
            line,
            rail,
            window: met.window,
            requests: Arc::new(Semaphore::new((met.requests_max as usize).min(Semaphore::MAX_PERMITS))),
            bytes: Arc::new(Semaphore::new((met.window as usize).min(Semaphore::MAX_PERMITS))),
            load: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            calls: Mutex::default(),
            leaving: AtomicBool::new(false),
            ping_sent: Mutex::new(None),
        })
    }

    /// Bytes under way and in line.
    pub fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// Whether it takes new calls.
    pub fn outlook(&self) -> Outlook {
        if self.leaving.load(Ordering::Relaxed) {
            Outlook::Leaving
        } else if self.requests.is_closed() {
            Outlook::Ended
        } else {
            Outlook::Open
        }
    }

    /// Waits for room for a request of that weight.
    pub async fn reserve(self: &Arc<Link>, weight: u32) -> Result<Reserved, Missed> {
        if weight > self.window {
            let text = format!("{weight} bytes; the node takes {} at most at a time", self.window);
            return Err(Missed::Decided(CallError::Invalid(text)));
        }
        let load = Load::new(self.clone(), u64::from(weight) + REQUEST_LOAD);
        let gone = |_| Missed::Unseen;
        let permits = [
            self.requests.clone().acquire_owned().await.map_err(gone)?,
            self.bytes.clone().acquire_many_owned(weight).await.map_err(gone)?,
        ];
        Ok(Reserved { permits, load })
    }

    /// Sends a request and waits for the answer. Dropping it gives the request up.
    pub async fn call(
        &self,
        reserved: Reserved,
        request: &Arc<Message>,
        body_crc: u32,
        call: &Call,
        deadline: Instant,
    ) -> Result<Message, Missed> {
        let begun = Instant::now();
        let left = deadline.saturating_duration_since(begun).as_millis();
        let header = Header {
            kind: request.kind,
            // Zero would mean that there is no deadline.
            deadline_ms: u32::try_from(left).unwrap_or(u32::MAX).max(1),
            answer_len_max: call.answer_len_max as u32,
            ..Header::bare(Form::Request, self.next_id.fetch_add(1, Ordering::Relaxed))
        };
        let Reserved { permits, load: _load } = reserved;
        let (answer, answered) = oneshot::channel();
        {
            let mut calls = self.calls.lock().unwrap();
            if calls.ended {
                return Err(Missed::Unseen);
            }
            let answer_len_max = header.answer_len_max;
            calls.waiting.insert(header.id, Waiting { answer, answer_len_max, _permits: permits });
        }
        let mut under_way = UnderWay { link: self, id: header.id, answered: false };
        self.line.outbox.push(OutFrame::of(header, request.clone(), body_crc));
        let outcome = answered.await.unwrap_or(Err(Missed::Lost));
        under_way.answered = true;
        if let Ok(_) | Err(Missed::Decided(CallError::Fault(_))) = outcome {
            self.rail.latency.record(begun.elapsed());
        }
        outcome
    }

    /// Notes that a ping leaves.
    pub fn pinging(&self) {
        self.ping_sent.lock().unwrap().get_or_insert_with(Instant::now);
    }

    /// Reads answers until the connection ends.
    pub async fn read(&self, mut intake: Intake) -> End {
        loop {
            if let Err(end) = self.read_one(&mut intake).await {
                return end;
            }
            if self.leaving.load(Ordering::Relaxed) {
                let mut calls = self.calls.lock().unwrap();
                calls.ended = calls.waiting.is_empty();
                if calls.ended {
                    return End::Refused(Reason::Stopping);
                }
            }
        }
    }

    async fn read_one(&self, intake: &mut Intake) -> Result<(), End> {
        let (header, head) = intake.next().await?;
        match header.form {
            Form::Answer => {
                let found = self.calls.lock().unwrap().waiting.remove(&header.id);
                let waiting = found.ok_or_else(|| End::broken("an answer to a request that nobody sent"))?;
                if header.body_len > waiting.answer_len_max {
                    return Err(End::broken("an answer that is longer than was asked for"));
                }
                if waiting.answer.is_closed() {
                    return intake.skip_body(&header).await;
                }
                let message = intake.answer(&header, head).await?;
                // Whoever gave up meanwhile does not mind.
                let _ = waiting.answer.send(outcome(&header, message));
            }
            Form::Ping => self.line.outbox.push_one(OutFrame::bare(&Header::bare(Form::Pong, header.id))),
            Form::Pong => {
                if let Some(sent) = self.ping_sent.lock().unwrap().take() {
                    self.rail.rtt.record(sent.elapsed());
                }
            }
            Form::Goodbye => match Reason::from_byte(header.kind as u8) {
                Reason::Stopping => self.leaving.store(true, Ordering::Relaxed),
                reason => return Err(End::Refused(reason)),
            },
            Form::Request | Form::Cancel => return Err(End::broken("a request from the side that serves")),
        }
        Ok(())
    }

    /// Lets go of all calls; those under way learn that the connection is gone.
    pub fn end(&self) {
        self.requests.close();
        self.bytes.close();
        let waiting = {
            let mut calls = self.calls.lock().unwrap();
            calls.ended = true;
            std::mem::take(&mut calls.waiting)
        };
        drop(waiting);
    }
}

fn outcome(header: &Header, message: Message) -> Result<Message, Missed> {
    let text = || String::from_utf8_lossy(&message.head).into_owned();
    if header.flags & FLAG_FAULT != 0 {
        return Err(Missed::Decided(CallError::Fault(Fault::new(header.kind, text()))));
    }
    if header.flags & FLAG_UNSERVED == 0 {
        return Ok(message);
    }
    Err(match Unserved::from_number(header.kind) {
        Unserved::Deadline => Missed::Decided(CallError::Deadline),
        Unserved::Stopping => Missed::Unseen,
        Unserved::TooLong => {
            Missed::Decided(CallError::Invalid("the answer is longer than the call allowed".into()))
        }
        Unserved::Cancelled | Unserved::Broken => {
            Missed::Decided(CallError::Lost("the service broke down".into()))
        }
    })
}

/// A request that was queued; dropped before the answer, it is given up.
struct UnderWay<'a> {
    link: &'a Link,
    id: u64,
    answered: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let outbox = &self.link.line.outbox;
        if outbox.take_back(self.id) {
            let waiting = self.link.calls.lock().unwrap().waiting.remove(&self.id);
            drop(waiting);
        } else {
            outbox.push_first(OutFrame::bare(&Header::bare(Form::Cancel, self.id)));
        }
    }
}

/// Room for a request.
pub(super) struct Reserved {
    permits: [OwnedSemaphorePermit; 2],
    load: Load,
}

/// What a call adds to the load of its connection and rail.
struct Load {
    link: Arc<Link>,
    bytes: u64,
}

impl Load {
    fn new(link: Arc<Link>, bytes: u64) -> Load {
        link.load.fetch_add(bytes, Ordering::Relaxed);
        link.rail.load_bytes.fetch_add(bytes, Ordering::Relaxed);
        Load { link, bytes }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.link.load.fetch_sub(self.bytes, Ordering::Relaxed);
        self.link.rail.load_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
