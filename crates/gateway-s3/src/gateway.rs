//! The gateway as a whole: threads, listeners, stop.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use stoker_access::Guard;
use stoker_oidc::Issuers;
use stoker_store::Counter;
use stoker_tls::Certificate;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::connection::{self, Accepted};
use crate::options::GatewayOptions;
use crate::service::Service;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Connections that are turned away at the same time; more are just closed.
const TURNED_AWAY_MAX: usize = 64;
/// How TLS calls what is spoken inside.
const HTTP: &[u8] = b"http/1.1";
/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running S3 gateway. Dropped, it stops at once.
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    service: Arc<Service>,
    certificate: Option<Arc<Certificate>>,
    stop: watch::Sender<bool>,
    grace: watch::Sender<Duration>,
    /// Closed when the last thread is gone.
    done: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Gateway {
    /// Listens, and answers on threads of its own.
    pub fn start(guard: Guard, options: GatewayOptions) -> io::Result<Gateway> {
        Gateway::start_with(guard, Arc::default(), options)
    }

    /// The same, with providers whose tokens become temporary keys.
    pub fn start_with(guard: Guard, issuers: Arc<Issuers>, options: GatewayOptions) -> io::Result<Gateway> {
        if options.threads == 0 || options.listen.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the S3 gateway needs at least one thread and one address to listen on",
            ));
        }
        let certificate =
            options.tls.clone().map(|source| Certificate::load(source, HTTP)).transpose()?.map(Arc::new);
        let listeners =
            options.listen.iter().map(|address| listen(*address)).collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(StdListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let threads = options.threads;
        let service = Arc::new(Service::new(guard, issuers, options));
        let (stop, stopped) = watch::channel(false);
        let (grace, graced) = watch::channel(Duration::ZERO);
        let (alive, done) = mpsc::channel(1);

        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::unbounded_channel()).unzip();
        let mut listeners = Some((listeners, senders));
        for (index, accepted) in receivers.into_iter().enumerate() {
            let worker = Worker {
                service: Arc::clone(&service),
                certificate: certificate.clone(),
                accepted,
                // The first thread accepts for all.
                acceptor: listeners.take(),
                stop: stopped.clone(),
                grace: graced.clone(),
                _alive: alive.clone(),
            };
            let runtime = Builder::new_current_thread().enable_all().build()?;
            std::thread::Builder::new()
                .name(format!("s3-{index}"))
                .spawn(move || runtime.block_on(worker.run()))?;
        }
        Ok(Gateway { addresses, service, certificate, stop, grace, done: tokio::sync::Mutex::new(done) })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it counted.
    pub fn counters(&self) -> Vec<Counter> {
        self.service.counters.list()
    }

    /// Reads certificate and key again. What is no good is refused, and the old ones stay.
    pub fn reload(&self) -> io::Result<()> {
        self.certificate.as_ref().map_or(Ok(()), |certificate| certificate.reload())
    }

    /// Accepts no more, lets what is in flight finish for at most `grace`, then closes the rest.
    pub async fn stop(&self, grace: Duration) {
        self.grace.send_replace(grace);
        self.stop.send_replace(true);
        // Nobody sends; this returns when the last thread has let go of its end.
        while self.done.lock().await.recv().await.is_some() {}
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let fault = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {address} for S3: {error}"))
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into()).map_err(fault)?;
    socket.listen(BACKLOG).map_err(fault)?;
    Ok(socket.into())
}

type Dealers = Vec<mpsc::UnboundedSender<Accepted>>;

/// One thread with its own connections.
struct Worker {
    service: Arc<Service>,
    certificate: Option<Arc<Certificate>>,
    accepted: mpsc::UnboundedReceiver<Accepted>,
    acceptor: Option<(Vec<StdListener>, Dealers)>,
    stop: watch::Receiver<bool>,
    grace: watch::Receiver<Duration>,
    _alive: mpsc::Sender<()>,
}

impl Worker {
    async fn run(mut self) {
        if let Some((listeners, dealers)) = self.acceptor.take() {
            let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            for listener in listeners {
                let (service, dealers, next) =
                    (Arc::clone(&self.service), dealers.clone(), Arc::clone(&next));
                tokio::spawn(accept(listener, service, dealers, next, self.stop.clone()));
            }
        }
        let mut tasks = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                accepted = self.accepted.recv() => match accepted {
                    Some(accepted) => {
                        let (service, certificate) = (Arc::clone(&self.service), self.certificate.clone());
                        tasks.spawn(connection::serve(accepted, service, certificate, self.stop.clone()));
                    }
                    None => break,
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        let grace = *self.grace.borrow();
        let rest = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(grace, rest).await;
    }
}

/// Accepts, and deals connections to the threads in turn.
async fn accept(
    listener: StdListener,
    service: Arc<Service>,
    dealers: Dealers,
    next: Arc<std::sync::atomic::AtomicUsize>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot accept S3 connections");
            return;
        }
    };
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let accepted = accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer.ip())));
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "an S3 connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let accepted = match Accepted::take(stream, from, &service) {
            Ok(accepted) => accepted,
            Err(stream) => {
                if service.options.tls.is_none()
                    && let Ok(permit) = Arc::clone(&turned_away).try_acquire_owned()
                {
                    tokio::spawn(async move {
                        connection::turn_away(stream).await;
                        drop(permit);
                    });
                }
                continue;
            }
        };
        let turn = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % dealers.len();
        // The receiver is gone only when the gateway stops.
        let _ = dealers[turn].send(accepted);
    }
}
