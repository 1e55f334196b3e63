//! One connection: requests are read while there is room, worked on side by side, and answered as they are done.
//!
//! The work of a connection is one task, which begins requests in the order in which they came: writes that follow one
//! another reach the file in that order. Other connections run beside it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use stoker_access::Origin;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{mpsc, watch};

use crate::admission::NfsClient;
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
    pub requests_max: usize,
}

/// Serves until the client is gone, sends what is no request, or a stop is asked for.
pub async fn serve(
    stream: TcpStream,
    client: Arc<NfsClient>,
    service: Arc<Service>,
    stop: watch::Receiver<bool>,
) {
    let peer = client.address;
    let (input, mut output) = stream.into_split();
    let (replies, mut queue) = mpsc::channel::<Reply>(service.requests_max);
    let writer = tokio::spawn(async move {
        while let Some(reply) = queue.recv().await {
            record::write(&mut output, &reply).await?;
        }
        io::Result::Ok(())
    });
    // A task of its own: what has begun goes on to its end, also when nobody waits for this connection any more.
    let end = {
        let client = client.clone();
        async move { client.ended().await }
    };
    let working = tokio::spawn(work(requests(input, client, service), replies, stop, end));
    if working.await.is_err() {
        tracing::error!("NFS client {peer}: a request failed");
    }
    if let Ok(Err(error)) = writer.await {
        tracing::debug!("NFS client {peer}: {error}");
    }
}

/// A request that was read; carried out when it is polled.
type Work = BoxFuture<'static, Option<Reply>>;

/// Requests as they come. One that is half there is not lost when somebody stops waiting for it.
fn requests(input: OwnedReadHalf, client: Arc<NfsClient>, service: Arc<Service>) -> BoxStream<'static, Work> {
    let peer = client.address;
    let requests = stream::unfold((input, client, service, true), move |state| async move {
        let (mut input, client, service, is_first) = state;
        match record::read(&mut input, &client.input, is_first).await {
            Ok(record) => {
                let origin = Origin { address: peer.to_string().into(), ..Origin::default() };
                let work: Work = Box::pin(origin.scope(answer(service.clone(), client.clone(), record?)));
                Some((work, (input, client, service, false)))
            }
            Err(error) => {
                tracing::debug!("NFS client {peer}: {error}");
                None
            }
        }
    });
    requests.boxed()
}

/// Works requests off, as many at once as there is room for replies: one that is done never waits for a client that does
/// not read, and holds up nobody. One that has begun is carried out to its end: what it holds and has half done is of
/// use to others only then. If the client is gone, only the reply is dropped.
async fn work(
    requests: BoxStream<'static, Work>,
    replies: mpsc::Sender<Reply>,
    mut stop: watch::Receiver<bool>,
    end: impl Future<Output = ()>,
) {
    let mut end = std::pin::pin!(end.fuse());
    let mut working = FuturesUnordered::new();
    let (mut requests, mut room) = (Some(requests), None);
    loop {
        let is_open = requests.is_some();
        let next = async {
            match &mut requests {
                Some(requests) => requests.next().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            () = stopped(&mut stop), if is_open => requests = None,
            () = &mut end, if is_open => requests = None,
            Some(()) = working.next() => {}
            reserved = replies.clone().reserve_owned(), if is_open && room.is_none() => match reserved {
                Ok(reserved) => room = Some(reserved),
                Err(_) => requests = None,
            },
            request = next, if is_open && room.is_some() => match (request, room.take()) {
                (Some(request), Some(room)) => working.push(async move {
                    if let Some(reply) = request.await {
                        room.send(reply);
                    }
                }),
                _ => requests = None,
            },
            else => break,
        }
    }
}

/// Returns when a stop is asked for.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Carries out a request; none if it gets no answer.
async fn answer(service: Arc<Service>, client: Arc<NfsClient>, record: Record) -> Option<Reply> {
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
    let _working = client.begin();
    let xid = call.xid;
    let once = nfs::is_once(&call).then(|| Request::of(client.address, &call));
    if let Some(request) = &once {
        match service.replies.begin(request) {
            Known::New => {}
            Known::Begun => return None,
            Known::Answered(reply) => return Some(reply.into()),
        }
    }
    let reply = match dispatch(&service, &client, call).await {
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

async fn dispatch(service: &Arc<Service>, client: &NfsClient, call: Call) -> Result<Reply, Refusal> {
    match call.program {
        rpc::NFS | rpc::MOUNT if call.version != rpc::PROGRAM_VERSION => Err(Refusal::ProgramVersion),
        rpc::NFS => nfs::answer(service, client, call).await,
        rpc::MOUNT => mount::answer(service, client, call).await,
        _ => Err(Refusal::ProgramUnknown),
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use tokio::sync::oneshot;

    use super::*;

    fn reply() -> Reply {
        Bytes::from_static(b"reply").into()
    }

    /// A client sends a request that takes long and is gone before it is done.
    #[tokio::test]
    async fn a_request_that_has_begun_ends_although_the_client_is_gone() {
        let (replies, mut queue) = mpsc::channel(2);
        let (_stop, stopped) = watch::channel(false);
        let (begun, has_begun) = oneshot::channel();
        let (go, may_go) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let (send, sent) = mpsc::channel::<Work>(4);
        let requests = stream::unfold(sent, |mut sent| async { Some((sent.recv().await?, sent)) }).boxed();
        let long: Work = Box::pin(async move {
            begun.send(()).unwrap();
            may_go.await.unwrap();
            done.send(()).unwrap();
            Some(reply())
        });
        send.send(long).await.unwrap();
        let working = tokio::spawn(work(requests, replies, stopped, future::pending()));
        has_begun.await.unwrap();
        send.send(async { Some(reply()) }.boxed()).await.unwrap();
        assert!(queue.recv().await.is_some(), "others are answered meanwhile");
        drop(queue);
        // The next reply, or the room for it, shows that nobody reads: no more requests are taken.
        let _ = send.send(async { Some(reply()) }.boxed()).await;
        send.closed().await;
        go.send(()).unwrap();
        is_done.await.unwrap();
        working.await.unwrap();
    }

    /// A client that sends and does not read: what it began is done, and no more is begun than there is room for.
    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_nobody() {
        let (replies, mut queue) = mpsc::channel(2);
        let (stop, stopped) = watch::channel(false);
        let (begun, mut begins) = mpsc::unbounded_channel();
        let requests = stream::iter(0..10).map(move |at| {
            let begun = begun.clone();
            let work: Work = Box::pin(async move {
                begun.send(at).unwrap();
                tokio::task::yield_now().await;
                Some(reply())
            });
            work
        });
        let working = tokio::spawn(work(requests.boxed(), replies, stopped, future::pending()));
        assert_eq!((begins.recv().await, begins.recv().await), (Some(0), Some(1)));
        for at in 2..6 {
            assert!(begins.try_recv().is_err(), "there is no room for {at}");
            queue.recv().await.unwrap();
            assert_eq!(begins.recv().await, Some(at), "they begin in the order in which they came");
        }
        stop.send_replace(true);
        working.await.unwrap();
    }
}
