//! The requests of one connection that another node dialed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::end::End;
use super::frame::{FLAG_CLAIMED, FLAG_FAULT, FLAG_UNSERVED, Form, HEAD_LEN_MAX, Header, Unserved};
use super::intake::Intake;
use super::line::Line;
use super::message::{Fault, Message, Peer, Service};
use super::outbox::OutFrame;
use super::refusal::Reason;

/// Requests of one connection.
pub(super) struct Served {
    pub peer: Peer,
    pub line: Arc<Line>,
    requests_max: usize,
    window: u64,
    under_way: Mutex<UnderWay>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct UnderWay {
    requests: HashMap<u64, Taken>,
    weight: u64,
}

struct Taken {
    weight: u32,
    /// Dropped to give the request up.
    cancel: Option<oneshot::Sender<()>>,
}

impl Served {
    /// A connection with these limits.
    pub fn new(peer: Peer, requests_max: u32, window: u32) -> Arc<Served> {
        Arc::new(Served {
            peer,
            line: Arc::default(),
            requests_max: requests_max as usize,
            window: u64::from(window),
            under_way: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Reads requests and has them served until the connection ends.
    pub async fn read(self: &Arc<Served>, mut intake: Intake, service: &Arc<dyn Service>) -> End {
        loop {
            if let Err(end) = self.read_one(&mut intake, service).await {
                return end;
            }
        }
    }

    async fn read_one(
        self: &Arc<Served>,
        intake: &mut Intake,
        service: &Arc<dyn Service>,
    ) -> Result<(), End> {
        let (header, head) = intake.next().await?;
        match header.form {
            Form::Request => {
                let cancelled = self.take(&header)?;
                let turn = Turn { served: self.clone(), id: header.id, answered: false };
                if self.stopping.load(Ordering::Relaxed) {
                    intake.skip_body(&header).await?;
                    turn.unserved(Unserved::Stopping);
                    return Ok(());
                }
                let request = intake.request(&header, head).await?;
                tokio::spawn(serve(service.clone(), header, request, turn, cancelled));
            }
            Form::Cancel => self.under_way.lock().unwrap().cancel(header.id),
            Form::Ping => self.line.outbox.push_one(OutFrame::bare(&Header::bare(Form::Pong, header.id))),
            Form::Pong => {}
            Form::Goodbye => return Err(End::Refused(Reason::from_byte(header.kind as u8))),
            Form::Answer => return Err(End::broken("an answer from the side that asks")),
        }
        Ok(())
    }

    /// Takes a request in, within the limits that the hello named.
    fn take(&self, header: &Header) -> Result<oneshot::Receiver<()>, End> {
        let (cancel, cancelled) = oneshot::channel();
        let mut under_way = self.under_way.lock().unwrap();
        let weight = header.weight();
        if under_way.requests.len() >= self.requests_max
            || under_way.weight + u64::from(weight) > self.window
            || under_way.requests.contains_key(&header.id)
        {
            return Err(End::broken("more requests than were allowed, or one twice"));
        }
        under_way.weight += u64::from(weight);
        under_way.requests.insert(header.id, Taken { weight, cancel: Some(cancel) });
        Ok(cancelled)
    }

    /// Asks for no more requests; the other side ends the connection when those under way are answered.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.line.say_goodbye(Reason::Stopping);
    }

    /// Gives up all that is under way.
    pub fn end(&self) {
        let mut under_way = self.under_way.lock().unwrap();
        let requests = std::mem::take(&mut under_way.requests);
        drop(under_way);
        drop(requests);
    }
}

impl UnderWay {
    /// Gives a request up, if it is not answered yet; its turn says so.
    fn cancel(&mut self, id: u64) {
        if let Some(taken) = self.requests.get_mut(&id) {
            taken.cancel = None;
        }
    }
}

async fn serve(
    service: Arc<dyn Service>,
    header: Header,
    request: Message,
    turn: Turn,
    cancelled: oneshot::Receiver<()>,
) {
    let serving = service.serve(turn.served.peer, request);
    let deadline = match header.deadline_ms {
        0 => Duration::MAX,
        ms => Duration::from_millis(u64::from(ms)),
    };
    // The block ends, and with it what served, before the answer is sent.
    let outcome = {
        tokio::select! {
            biased;
            _ = cancelled => Err(Unserved::Cancelled),
            served = tokio::time::timeout(deadline, serving) => served.map_err(|_| Unserved::Deadline),
        }
    };
    match outcome {
        Err(why) => turn.unserved(why),
        Ok(Err(fault)) => turn.fault(fault),
        Ok(Ok(answer)) => {
            let len = answer.body.len();
            if len > header.answer_len_max as usize || answer.head.len() > HEAD_LEN_MAX {
                return turn.unserved(Unserved::TooLong);
            }
            turn.answer(0, answer);
        }
    }
}

/// The duty to answer one request; a turn that is dropped says that the service broke down.
struct Turn {
    served: Arc<Served>,
    id: u64,
    answered: bool,
}

impl Turn {
    fn unserved(self, why: Unserved) {
        self.answer(FLAG_UNSERVED, Message::new(why as u16, Bytes::new()));
    }

    fn fault(self, fault: Fault) {
        let mut text = fault.message.into_bytes();
        text.truncate(HEAD_LEN_MAX);
        self.answer(FLAG_FAULT, Message::new(fault.code, text));
    }

    fn answer(mut self, flags: u8, message: Message) {
        self.answered = true;
        self.send(flags, message);
    }

    fn send(&self, flags: u8, message: Message) {
        let crc = message.crc();
        let flags = if message.is_claimed { flags | FLAG_CLAIMED } else { flags };
        let header = Header { flags, kind: message.kind, ..Header::bare(Form::Answer, self.id) };
        let frame = OutFrame::of(header, Arc::new(message), crc);
        let mut under_way = self.served.under_way.lock().unwrap();
        let Some(taken) = under_way.requests.remove(&self.id) else { return };
        under_way.weight -= u64::from(taken.weight);
        // The caller may send the next request as soon as it has this answer, so room is made first.
        self.served.line.outbox.push(frame);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.answered {
            self.send(FLAG_UNSERVED, Message::new(Unserved::Broken as u16, Bytes::new()));
        }
    }
}
