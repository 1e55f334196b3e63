//! The server: accepts connections, bounds them, hands requests to [`answer`](crate::answer).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stoker_store::{Counter, Store};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::NowMs;
use crate::answer::answer;
use crate::fetch::Fetcher;
use crate::shelf::Shelf;
use crate::stats::Stats;
use crate::upstream::{Asker, Upstream};

/// Connections at the same time; more wait in the queue of the kernel.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// How long a client may take to send a request, or to begin the next one.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// How long a connection lives.
const CONNECTION_MAX: Duration = Duration::from_secs(6 * 3600);
/// Waiting time after `accept` failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How to serve.
pub struct RegistryOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// The volume with the images.
    pub volume: String,
    /// Registries behind this one; the first is meant where a client names none.
    pub upstreams: Vec<Upstream>,
    /// Most bytes of images in the volume.
    pub bytes_max: u64,
    /// How long a tag is believed to be what it was.
    pub tag_age: Duration,
    /// Milliseconds since 1970.
    pub now_ms: NowMs,
}

/// The running registry. It runs on the runtime that it was started on.
pub struct Registry {
    addresses: Vec<SocketAddr>,
    fetcher: Arc<Fetcher>,
    stop: watch::Sender<bool>,
    acceptors: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl Registry {
    /// Listens and serves from then on.
    pub async fn start(store: Arc<dyn Store>, options: RegistryOptions) -> io::Result<Registry> {
        if options.upstreams.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "there is no upstream to pull through from",
            ));
        }
        let stats = Arc::new(Stats::default());
        let shelf = Shelf::new(store, options.volume, options.bytes_max, options.now_ms, stats.clone());
        let askers = options.upstreams.into_iter().map(|one| Asker::new(one, stats.clone())).collect();
        let fetcher = Arc::new(Fetcher::new(shelf, askers, options.tag_age, stats));
        let (stop, stopped) = watch::channel(false);
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        for address in options.listen {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            let listener = TcpListener::bind(address).await.map_err(named)?;
            addresses.push(listener.local_addr()?);
            listeners.push(listener);
        }
        let serve =
            |listener| tokio::spawn(accept(listener, fetcher.clone(), permits.clone(), stopped.clone()));
        let acceptors = std::sync::Mutex::new(listeners.into_iter().map(serve).collect());
        Ok(Registry { addresses, fetcher, stop, acceptors })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its numbers.
    pub fn counters(&self) -> Vec<Counter> {
        self.fetcher.stats.counters(self.fetcher.shelf.held_bytes())
    }

    /// Takes no more requests, and finishes those under way for at most this long.
    pub async fn stop(&self, grace: Duration) {
        self.stop.send_replace(true);
        let acceptors =
            std::mem::take(&mut *self.acceptors.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let ends: Vec<_> = acceptors.iter().map(JoinHandle::abort_handle).collect();
        let all = async {
            for acceptor in acceptors {
                // One that panicked is over as well.
                let _ = acceptor.await;
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            ends.iter().for_each(tokio::task::AbortHandle::abort);
        }
    }
}

async fn accept(
    listener: TcpListener,
    fetcher: Arc<Fetcher>,
    permits: Arc<Semaphore>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (fetcher, stopped) = (fetcher.clone(), stopped.clone());
                connections.spawn(async move {
                    serve(stream, fetcher, stopped).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("registry: accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(stream: TcpStream, fetcher: Arc<Fetcher>, mut stopped: watch::Receiver<bool>) {
    // Only the last piece of an answer waits for it.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let fetcher = fetcher.clone();
        async move { Ok::<_, Infallible>(answer(&fetcher, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let whole = async {
        tokio::select! {
            done = connection.as_mut() => return done,
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_MAX, whole).await {
        tracing::debug!("registry: {error}");
    }
}
