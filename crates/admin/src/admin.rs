//! The server: accepts connections, bounds them, hands requests to [`answer`](crate::answer).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stoker_store::{Counter, Store};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::answer::{Asked, Watched, answer};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Waiting time after `accept` failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A place that numbers for `/metrics` come from, beside the door.
pub type Source = Box<dyn Fn() -> Vec<Counter> + Send + Sync>;

/// How to serve.
pub struct AdminOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What `/api` wants to see as `Authorization: Bearer`.
    pub token: String,
    /// More numbers for `/metrics`.
    pub extra: Vec<Source>,
    /// Connections at the same time; more wait in the kernel.
    pub connections_max: usize,
    /// How long a client may take to send a request, or to begin the next one.
    pub request_timeout: Duration,
    /// How long the door may take to answer.
    pub answer_timeout: Duration,
    /// How old the answer of `/readyz` may be: asking a node for its state is work, and anybody may ask.
    pub ready_age_max: Duration,
    /// How long a connection lives; a client that does not take its answer is cut off then.
    pub connection_timeout: Duration,
}

impl AdminOptions {
    /// The usual limits.
    pub fn new(listen: SocketAddr, token: impl Into<String>) -> AdminOptions {
        AdminOptions {
            listen,
            token: token.into(),
            extra: Vec::new(),
            connections_max: 128,
            request_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(10),
            ready_age_max: Duration::from_secs(1),
            connection_timeout: Duration::from_secs(600),
        }
    }
}

/// The running server. It runs on the runtime that it was started on, and ends when this is dropped.
pub struct Admin {
    address: SocketAddr,
    asked: Arc<Asked>,
    stop: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
}

impl Admin {
    /// Listens and serves from then on.
    pub async fn start(store: Arc<dyn Store>, options: AdminOptions) -> io::Result<Admin> {
        Admin::watch(Box::new(store), options).await
    }

    /// [`Self::start`] on the part of the door that is needed here.
    pub(crate) async fn watch(watched: Box<dyn Watched>, options: AdminOptions) -> io::Result<Admin> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let asked = Arc::new(Asked {
            watched,
            token: options.token,
            extra: options.extra,
            timeout: options.answer_timeout,
            ready_age_max: options.ready_age_max,
            ready: Mutex::new(None),
            stopping: AtomicBool::new(false),
        });
        let (stop, stopped) = watch::channel(false);
        let server = Server {
            asked: Arc::clone(&asked),
            room: Arc::new(Semaphore::new(options.connections_max)),
            request_timeout: options.request_timeout,
            connection_timeout: options.connection_timeout,
            stopped,
        };
        let acceptor = tokio::spawn(server.accept(listener));
        Ok(Admin { address, asked, stop, acceptor })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on `/readyz` says no, so that nobody sends more work; the rest is answered as before.
    pub fn set_stopping(&self) {
        self.asked.stopping.store(true, Ordering::Relaxed);
    }

    /// Stops listening and finishes the answers that are under way, for at most this long.
    pub async fn stop(mut self, grace: Duration) {
        self.stop.send_replace(true);
        let _ = tokio::time::timeout(grace, &mut self.acceptor).await;
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

/// What the acceptor needs.
struct Server {
    asked: Arc<Asked>,
    room: Arc<Semaphore>,
    request_timeout: Duration,
    connection_timeout: Duration,
    stopped: watch::Receiver<bool>,
}

impl Server {
    async fn accept(self, listener: TcpListener) {
        let mut stopped = self.stopped.clone();
        // Dropping the set ends the connections, so none outlives the server.
        let mut connections = JoinSet::new();
        loop {
            let room = Arc::clone(&self.room);
            let next = async {
                let permit = room.acquire_owned().await.expect("the semaphore is never closed");
                (listener.accept().await, permit)
            };
            tokio::select! {
                () = told(&mut stopped) => break,
                Some(_) = connections.join_next() => {}
                (accepted, permit) = next => match accepted {
                    Ok((stream, _)) => {
                        let connection = self.serve(stream);
                        connections.spawn(async move {
                            connection.await;
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the admin door cannot accept connections");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    /// One connection, from its first byte to its last.
    fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + 'static {
        let (asked, mut stopped) = (Arc::clone(&self.asked), self.stopped.clone());
        let (request_timeout, connection_timeout) = (self.request_timeout, self.connection_timeout);
        async move {
            let service = service_fn(move |request| {
                let asked = Arc::clone(&asked);
                async move { Ok::<_, std::convert::Infallible>(answer(&asked, &request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(request_timeout)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            let wound_down = async {
                tokio::select! {
                    // A client that goes away or sends rubbish is its own business.
                    _ = connection.as_mut() => return,
                    () = told(&mut stopped) => connection.as_mut().graceful_shutdown(),
                }
                let _ = connection.as_mut().await;
            };
            let _ = tokio::time::timeout(connection_timeout, wound_down).await;
        }
    }
}

/// Waits until the server was told to stop.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // An error means that the server was dropped, which says the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
