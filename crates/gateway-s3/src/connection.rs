//! One connection, from accept to close.

use std::convert::Infallible;
use std::net::{IpAddr, Shutdown, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use stoker_store::Place;
use stoker_tls::{Accepted as Handshake, Certificate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::counters::Counters;
use crate::exchange::Pace;
use crate::service::Service;
use crate::wire::{Stream, Wire};

/// Bytes that the kernel takes before we wait: a piece of a file, so that the next is read while this one leaves.
const SEND_BUFFER_BYTES: usize = 512 << 10;
/// Bytes that hyper reads and buffers at once.
const READ_BUFFER_BYTES: usize = 256 << 10;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 128;

/// A connection that is counted as long as it is open.
struct Counted(Arc<Counters>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connection_end();
    }
}

/// A connection that was accepted and is to be served.
pub(crate) struct Accepted {
    stream: StdStream,
    /// Its place among those that may be open.
    place: Arc<Place>,
    counted: Counted,
}

impl Accepted {
    /// Takes a connection, if there is a place for it.
    pub(crate) fn take(stream: StdStream, from: IpAddr, service: &Service) -> Result<Accepted, StdStream> {
        let place = service.places.take(from);
        service.counters.connection_begin(place.is_some());
        match place {
            Some(place) => {
                let counted = Counted(Arc::clone(&service.counters));
                Ok(Accepted { stream, place: Arc::new(place), counted })
            }
            None => Err(stream),
        }
    }
}

/// Serves a connection until it is closed, idle for too long, has to make room for another, or the gateway stops.
pub(crate) async fn serve(
    accepted: Accepted,
    service: Arc<Service>,
    certificate: Option<Arc<Certificate>>,
    stop: watch::Receiver<bool>,
) {
    let Accepted { stream, place, counted } = accepted;
    let counters = Arc::clone(&service.counters);
    tokio::select! {
        () = serve_to_end(stream, Arc::clone(&place), service, certificate, stop) => {}
        () = place.shed() => counters.connection_shed(),
    }
    drop(counted);
}

async fn serve_to_end(
    stream: StdStream,
    place: Arc<Place>,
    service: Arc<Service>,
    certificate: Option<Arc<Certificate>>,
    mut stop: watch::Receiver<bool>,
) {
    let options = &service.options;
    let (head_max, stall_max, idle_max) =
        (options.header_timeout, options.body_timeout, options.idle_timeout);
    tune(&stream);
    let from: Arc<str> = stream.peer_addr().map_or_else(|_| "".into(), |peer| peer.to_string().into());
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    let stream = match certificate {
        None => Stream::Plain(stream),
        Some(certificate) => {
            match tokio::time::timeout(head_max, stoker_tls::accept(stream, &certificate)).await {
                Ok(Ok(Handshake::Tls(stream))) => Stream::Tls(stream),
                Ok(Ok(Handshake::Plain(stream))) => {
                    service.counters.handshake_failed();
                    answer_and_close(stream, PLAIN_REFUSED, PLAIN_REFUSED_DOCUMENT).await;
                    return;
                }
                _ => {
                    service.counters.handshake_failed();
                    return;
                }
            }
        }
    };
    let pace = Pace::default();
    let io = TokioIo::new(Wire::new(stream, pace.clone(), head_max, stall_max));
    let serve = service_fn(move |request| {
        let (service, pace, place) = (Arc::clone(&service), pace.clone(), Arc::clone(&place));
        let from = Arc::clone(&from);
        async move { Ok::<_, Infallible>(service.serve(request, pace, place, from).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_max)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(READ_BUFFER_BYTES)
        .serve_connection(io, serve);
    let mut connection = std::pin::pin!(connection);
    if !*stop.borrow() {
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stop.changed() => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Settings that measured well; each is a wish, and the connection works without.
fn tune(stream: &StdStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)));
    // Pacing, as BBR does it, costs a tenth on loopback and gains nothing there.
    if stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()) {
        let _ = socket.set_tcp_congestion(b"cubic");
    }
}

/// The answer to plain HTTP on a port that takes HTTPS.
const PLAIN_REFUSED: &str = "400 Bad Request";
const PLAIN_REFUSED_DOCUMENT: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>InvalidRequest</Code>\
    <Message>This port takes HTTPS, and you sent plain HTTP. Use https:// in the endpoint.</Message></Error>";

/// Turns a connection away.
pub(crate) async fn turn_away(stream: StdStream) {
    const STATUS: &str = "503 Service Unavailable\r\nRetry-After: 1";
    const DOCUMENT: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>SlowDown</Code>\
        <Message>Too many connections. Please slow down.</Message></Error>";
    if let Ok(stream) = TcpStream::from_std(stream) {
        answer_and_close(stream, STATUS, DOCUMENT).await;
    }
}

/// Says why, whatever was asked. Reads a little, so that the client sees the answer rather than a broken connection.
async fn answer_and_close(mut stream: TcpStream, status: &str, document: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{document}",
        document.len()
    );
    let polite = async {
        stream.write_all(answer.as_bytes()).await?;
        let mut rest = [0; 1024];
        SockRef::from(&stream).shutdown(Shutdown::Write)?;
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), polite).await;
}
