//! One connection: requests are read while there is room, worked on side by side, and answered as they are done.
//!
//! The work of a connection is one task, which begins requests in the order in which they came: writes that follow one
//! another reach the file in that order. Other connections run beside it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::counters::Counters;
use crate::record::{self, Record, Reply};
use crate::replies::{Known, Replies, Request};
use crate::rpc::{self, Call, Refusal};
use crate::volumes::Volumes;
use crate::{mount, nfs};

/// What all connections share.
pub struct Service {
    pub volumes: Volumes,
    pub counters: Counters,
    pub replies: Replies,
    pub rooms_in: Arc<Semaphore>,
    pub rooms_out: Arc<Semaphore>,
    pub requests_max: usize,
}

/// Serves until the client is gone, sends what is no request, or a stop is asked for.
pub async fn serve(stream: TcpStream, peer: IpAddr, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    let (input, mut output) = stream.into_split();
    let (replies, mut queue) = mpsc::channel::<Reply>(service.requests_max);
    let writer = tokio::spawn(async move {
        while let Some(reply) = queue.recv().await {
            record::write(&mut output, &reply).await?;
        }
        io::Result::Ok(())
    });
    let mut working: FuturesUnordered<BoxFuture<'static, Option<Reply>>> = FuturesUnordered::new();
    let mut reading = Some(next(input, service.clone()));
    loop {
        let is_full = working.len() >= service.requests_max;
        tokio::select! {
            biased;
            () = stopped(&mut stop), if reading.is_some() => reading = None,
            Some(done) = working.next() => {
                if let Some(reply) = done && replies.send(reply).await.is_err() {
                    break;
                }
            }
            (input, read) = async { reading.as_mut().expect("checked").await }, if reading.is_some() && !is_full => {
                match read {
                    Ok(Some(record)) => {
                        reading = Some(next(input, service.clone()));
                        working.push(Box::pin(answer(service.clone(), peer, record)));
                    }
                    Ok(None) => reading = None,
                    Err(error) => {
                        tracing::debug!("NFS client {peer}: {error}");
                        reading = None;
                    }
                }
            }
            else => break,
        }
    }
    drop(replies);
    if let Ok(Err(error)) = writer.await {
        tracing::debug!("NFS client {peer}: {error}");
    }
}

/// Returns when a stop is asked for.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

type Read = (OwnedReadHalf, io::Result<Option<Record>>);

/// The next record. It keeps the connection, so that one that is half there is not lost.
fn next(mut input: OwnedReadHalf, service: Arc<Service>) -> BoxFuture<'static, Read> {
    Box::pin(async move {
        let read = record::read(&mut input, &service.rooms_in).await;
        (input, read)
    })
}

/// Carries out a request; none if it gets no answer.
async fn answer(service: Arc<Service>, peer: IpAddr, record: Record) -> Option<Reply> {
    let Record { bytes, room } = record;
    Counters::add(&service.counters.requests, 1);
    let refused = |xid, refusal| {
        Counters::add(&service.counters.refused, 1);
        Some(rpc::refused(xid, refusal).into())
    };
    let call = match rpc::parse(bytes) {
        Ok(Ok(call)) => call,
        Ok(Err((xid, refusal))) => return refused(xid, refusal),
        Err(_) => {
            Counters::add(&service.counters.refused, 1);
            return None;
        }
    };
    let xid = call.xid;
    let once = nfs::is_once(&call).then(|| Request::of(peer, &call));
    if let Some(request) = &once {
        match service.replies.begin(request) {
            Known::New => {}
            Known::Begun => return None,
            Known::Answered(reply) => return Some(reply.into()),
        }
    }
    let reply = match dispatch(&service, peer, call).await {
        Ok(reply) => reply,
        Err(refusal) => {
            if let Some(request) = &once {
                service.replies.forget(request);
            }
            return refused(xid, refusal);
        }
    };
    if let Some(request) = once {
        service.replies.end(request, Bytes::clone(&reply.head));
    }
    drop(room);
    Some(reply)
}

async fn dispatch(service: &Arc<Service>, peer: IpAddr, call: Call) -> Result<Reply, Refusal> {
    match call.program {
        rpc::NFS | rpc::MOUNT if call.version != rpc::PROGRAM_VERSION => Err(Refusal::ProgramVersion),
        rpc::NFS => nfs::answer(service, peer, call).await,
        rpc::MOUNT => mount::answer(service, peer, call).await,
        _ => Err(Refusal::ProgramUnknown),
    }
}
