//! The task of one writer: fetches buffers for the connection to fill, writes them to the store, publishes.

use std::sync::Arc;
use std::time::Duration;

use stoker_format::{crc32c, crc32c_combine};
use stoker_store::{ErrorKind, Result, StoreError, Writer};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::inlet::{Finishing, Inlet, Posted, Step, Sum, Wish};
use super::session::Session;
use crate::frame::{Kind, OutFrame};
use crate::message::Response;

/// A client that pauses for longer gets its half-full buffer written, which ends a chunk early.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Serves a writer until it is published, fails, or `dropped` says that the client is gone.
pub(super) async fn run(
    session: Arc<Session>,
    id: u64,
    inlet: Arc<Inlet>,
    mut writer: Box<dyn Writer>,
    mut dropped: oneshot::Receiver<()>,
) {
    let mut filling = Filling { writer: &mut writer, crc32c: 0 };
    let filled = tokio::select! {
        filled = fill(&session, id, &inlet, &mut filling) => filled,
        _ = &mut dropped => return,
    };
    let crc32c = filling.crc32c;
    match filled {
        Ok(finishing) => publish(&session, &inlet, writer, crc32c, finishing).await,
        Err(error) => {
            // From here on no wish to publish reaches the inlet. One that did waits for its answer, and for nothing else.
            session.forget(id);
            match inlet.take_finishing() {
                Some(Finishing { request, slot, .. }) => {
                    session.answer(request, &Response::Error(error), bytes::Bytes::new(), slot);
                }
                None => session.outbox().push(OutFrame::control(Kind::Failed, id, &error)),
            }
        }
    }
}

/// A writer and what is known of the bytes that it was given.
struct Filling<'w> {
    writer: &'w mut Box<dyn Writer>,
    /// CRC32C of all of them, where nobody sums them otherwise.
    crc32c: u32,
}

/// Takes bytes until the client wants to publish.
async fn fill(session: &Session, id: u64, inlet: &Inlet, filling: &mut Filling<'_>) -> Result<Finishing> {
    loop {
        match inlet.step() {
            Step::Write(posted) => filling.write(posted, inlet.is_late).await?,
            Step::Fetch { holds_one: false } => inlet.post(fetch(session, filling.writer).await?),
            Step::Fetch { holds_one: true } => tokio::select! {
                posted = fetch(session, filling.writer) => inlet.post(posted?),
                () = inlet.changed() => {}
            },
            Step::Grant(total) => session.outbox().push(OutFrame::control(Kind::Grant, id, &total)),
            Step::Publish(finishing) => return Ok(finishing),
            Step::AwaitBytes => {
                timeout(session.stall_timeout(), inlet.changed()).await.map_err(|_| {
                    let message = "the client announced bytes and did not send them";
                    StoreError::new(ErrorKind::Unavailable, message)
                })?;
            }
            Step::AwaitWish => {
                if timeout(IDLE_MAX, inlet.changed()).await.is_err() {
                    for posted in inlet.take_idle().into_iter().filter(|posted| !posted.buf.is_empty()) {
                        filling.write(posted, inlet.is_late).await?;
                    }
                    inlet.changed().await;
                }
            }
        }
    }
}

async fn fetch(session: &Session, writer: &mut Box<dyn Writer>) -> Result<Posted> {
    let permit = session.buffers().acquire_owned().await.expect("never closed");
    let buf = writer.buffer().await?;
    if buf.capacity() == 0 {
        return Err(StoreError::new(ErrorKind::Unavailable, "the node has no memory for the bytes"));
    }
    Ok(Posted { buf, permit })
}

impl Filling<'_> {
    async fn write(&mut self, posted: Posted, is_late: bool) -> Result<()> {
        let Posted { buf, permit } = posted;
        if is_late {
            let sum = buf.crc32c().unwrap_or_else(|| crc32c(buf.as_slice()));
            self.crc32c = crc32c_combine(self.crc32c, sum, buf.len() as u64);
        }
        let written = self.writer.write(buf).await;
        drop(permit);
        written
    }
}

/// Publishes, whether the client still listens or not.
async fn publish(
    session: &Session,
    inlet: &Inlet,
    writer: Box<dyn Writer>,
    crc32c: u32,
    finishing: Finishing,
) {
    let Finishing { request, slot, wish: Wish { len, sum, finish, base }, _keep } = finishing;
    let got = if inlet.is_late { Sum::Late(crc32c) } else { Sum::Whole(writer.crc64()) };
    let came = inlet.len();
    let response = if came != len {
        let message = format!("the client announced {len} bytes and sent {came}");
        Response::Error(StoreError::new(ErrorKind::Invalid, message))
    } else if got != sum {
        let message = "bytes changed between client and store: their checksums differ";
        Response::Error(StoreError::new(ErrorKind::Corrupt, message))
    } else {
        let finished = match base {
            None => writer.finish(finish),
            Some(base) => writer.finish_on(base, finish),
        };
        match finished.await {
            Ok(receipt) => Response::Receipt(Box::new(receipt)),
            Err(error) => Response::Error(error),
        }
    };
    session.answer(request, &response, bytes::Bytes::new(), slot);
}
