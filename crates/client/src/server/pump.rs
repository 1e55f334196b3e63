//! The task of one writer: fetches buffers for the connection to fill, writes them to the store, publishes.

use std::sync::Arc;
use std::time::Duration;

use stoker_store::{ErrorKind, Result, StoreError, Writer};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::inlet::{Finishing, Inlet, Posted, Step, Wish};
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
    let filled = tokio::select! {
        filled = fill(&session, id, &inlet, &mut writer) => filled,
        _ = &mut dropped => return,
    };
    match filled {
        Ok(finishing) => publish(&session, &inlet, writer, finishing).await,
        Err(error) => {
            session.forget(id);
            session.outbox().push(OutFrame::control(Kind::Failed, id, &error));
        }
    }
}

/// Takes bytes until the client wants to publish.
async fn fill(session: &Session, id: u64, inlet: &Inlet, writer: &mut Box<dyn Writer>) -> Result<Finishing> {
    loop {
        match inlet.step() {
            Step::Write(posted) => write(writer, posted).await?,
            Step::Fetch { holds_one: false } => inlet.post(fetch(session, writer).await?),
            Step::Fetch { holds_one: true } => tokio::select! {
                posted = fetch(session, writer) => inlet.post(posted?),
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
                        write(writer, posted).await?;
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

async fn write(writer: &mut Box<dyn Writer>, posted: Posted) -> Result<()> {
    let Posted { buf, permit } = posted;
    let written = writer.write(buf).await;
    drop(permit);
    written
}

/// Publishes, whether the client still listens or not.
async fn publish(session: &Session, inlet: &Inlet, writer: Box<dyn Writer>, finishing: Finishing) {
    let Finishing { request, slot, wish: Wish { len, crc64, finish, base }, _keep } = finishing;
    let came = inlet.len();
    let response = if came != len {
        let message = format!("the client announced {len} bytes and sent {came}");
        Response::Error(StoreError::new(ErrorKind::Invalid, message))
    } else if writer.crc64() != crc64 {
        let message = "bytes changed between client and store: their CRC-64/NVME differ";
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
