//! A store behind sockets.
//!
//! One task reads a connection, one writes it, and each request or writer has one of its own. What clients can make the
//! server hold is bounded: connections, requests and handles per connection, memory for bytes that come in and go out.

mod dispatch;
mod hatches;
mod inlet;
mod leases;
mod pump;
mod receiving;
mod session;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_access::{Guard, Guarded, Origin, Peers};
use stoker_format::ClusterId;
use stoker_store::{Counter, Histogram};
use stoker_tls::{Certificate, CertificateSource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::hello::{self, Known, Terms};
use crate::message::Request;
use crate::socket::{Listener, PROTOCOL, Stream};

/// How this endpoint is called where somebody says by which one a call came.
const DOOR: &str = "client";
/// Connections that may be in their hello at once; others wait in the kernel's queue.
const HELLOS_MAX: usize = 64;
/// Pause after the kernel refused a connection, usually for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections at once.
    pub connections_max: usize,
    /// Requests under way per connection.
    pub requests_max: usize,
    /// Open files and writers per connection.
    pub handles_max: usize,
    /// Calls into the store at once over all connections, those that only wait for a lake not counted.
    pub calls_max: usize,
    /// Buffers that wait to be filled by clients, over all connections; a chunk each.
    pub buffers_max: usize,
    /// Bytes of reads under way over all connections, and an eighth of it per connection; a read is answered with no
    /// more than that eighth.
    pub read_bytes_max: usize,
    /// Descriptors that a connection may be given at once, by all its leases. A client keeps each file once.
    pub descriptors_max: usize,
    /// Time that a client has for its hello.
    pub hello_timeout: Duration,
    /// Time after which a client that should send or take bytes and does not is disconnected.
    pub stall_timeout: Duration,
    /// TCP takes TLS alone.
    pub certificate: Option<Arc<Certificate>>,
    /// A Unix socket wants the token too.
    pub unix_token: bool,
    /// The cluster that is told to clients.
    pub cluster: ClusterId,
    /// Who users of this machine are, who come by the Unix socket. With some of them mapped, everybody on this machine may connect.
    pub peers: Peers,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            connections_max: 1024,
            requests_max: 256,
            handles_max: 1024,
            calls_max: 1024,
            buffers_max: 64,
            read_bytes_max: 256 << 20,
            descriptors_max: 1024,
            hello_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            certificate: None,
            unix_token: false,
            cluster: ClusterId::ZERO,
            peers: Peers::default(),
        }
    }
}

/// A share of the bytes for reads below which reading is all overhead.
const READ_SHARE_MIN: usize = 64 << 10;

impl ServerOptions {
    /// Bytes of reads that a connection may have under way.
    fn read_share(&self) -> usize {
        (self.read_bytes_max / 8).clamp(READ_SHARE_MIN, READ_BYTES_LIMIT)
    }
}

/// Answers with descriptors that are being made or wait to be written, over all connections: each holds open files.
const LEASE_ANSWERS_MAX: usize = 16;

/// Slots of all hatches; clients that come when all are taken use the socket.
const HATCH_SLOTS_MAX: usize = 256;

/// More permits than this no semaphore has.
const READ_BYTES_LIMIT: usize = 1 << 30;

/// What all connections share.
struct Shared {
    guard: Guard,
    /// The user of this process.
    own_uid: Option<u32>,
    options: ServerOptions,
    token: Option<String>,
    connections: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    buffers: Arc<Semaphore>,
    read_bytes: Arc<Semaphore>,
    lease_answers: Arc<Semaphore>,
    hatch_slots: Arc<Semaphore>,
    hatch_bytes: AtomicU64,
    times: Times,
    stopping: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

/// Times of calls by what they do. Those that only wait, and writers, which last as long as their clients like, are not here.
#[derive(Default)]
struct Times {
    reads: Histogram,
    looks: Histogram,
    changes: Histogram,
}

impl Times {
    fn of(&self, request: &Request) -> Option<&Histogram> {
        match request {
            Request::Wait { .. } => None,
            request if request.opens_writer() => None,
            Request::Read { .. } | Request::Lease { .. } | Request::Seek { .. } => Some(&self.reads),
            request if request.changes() => Some(&self.changes),
            _ => Some(&self.looks),
        }
    }
}

impl Shared {
    /// Starts a task that [`Server::stop`] waits for.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// The server. Dropped without [`Server::stop`], it ends at once.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Endpoint>,
    accepting: JoinSet<()>,
}

impl Server {
    /// Listens and serves, in the tokio runtime that it is called in. TCP is refused without a token.
    pub fn start(
        guard: Guard,
        listen: Vec<Endpoint>,
        token: Option<String>,
        options: ServerOptions,
    ) -> io::Result<Server> {
        let token = token.filter(|token| !token.is_empty());
        if let Some(endpoint) =
            listen.iter().find(|endpoint| matches!(endpoint, Endpoint::Tcp(_) | Endpoint::Tls(_)))
            && token.is_none()
        {
            let message = format!("{endpoint}: TCP needs a token; anybody could connect without");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if let Some(endpoint) = listen.iter().find(|endpoint| matches!(endpoint, Endpoint::Tls(_)))
            && options.certificate.is_none()
        {
            let message = format!("{endpoint}: TLS needs a certificate");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let is_open = !options.peers.users.is_empty();
        let listeners =
            listen.iter().map(|at| Listener::bind(at, is_open)).collect::<io::Result<Vec<Listener>>>()?;
        let addresses = listeners.iter().map(Listener::endpoint).collect::<io::Result<Vec<_>>>()?;
        let secured = |at| match at {
            Endpoint::Tcp(address) if options.certificate.is_some() => Endpoint::Tls(address),
            other => other,
        };
        let addresses = addresses.into_iter().map(secured).collect();
        let shared = Arc::new(Shared {
            guard,
            own_uid: std::fs::metadata("/proc/self").ok().map(|own| own.uid()),
            token,
            connections: Arc::new(Semaphore::new(options.connections_max)),
            calls: Arc::new(Semaphore::new(options.calls_max)),
            buffers: Arc::new(Semaphore::new(options.buffers_max)),
            read_bytes: Arc::new(Semaphore::new(
                options.read_bytes_max.clamp(options.read_share(), READ_BYTES_LIMIT),
            )),
            lease_answers: Arc::new(Semaphore::new(LEASE_ANSWERS_MAX)),
            hatch_slots: Arc::new(Semaphore::new(HATCH_SLOTS_MAX)),
            hatch_bytes: AtomicU64::new(0),
            times: Times::default(),
            stopping: watch::Sender::new(false),
            tasks: Mutex::default(),
            options,
        });
        let mut accepting = JoinSet::new();
        let hellos = Arc::new(Semaphore::new(HELLOS_MAX));
        for listener in listeners {
            accepting.spawn(accept(shared.clone(), listener, hellos.clone()));
        }
        Ok(Server { shared, addresses, accepting })
    }

    /// The certificate of its TCP ports.
    pub fn certificate(source: CertificateSource) -> io::Result<Certificate> {
        Certificate::load(source, PROTOCOL)
    }

    /// Bytes of writers that came through shared memory.
    pub fn hatch_bytes(&self) -> u64 {
        self.shared.hatch_bytes.load(Ordering::Relaxed)
    }

    /// Gives numbers for `/metrics`, as long as the server is there.
    pub fn counters(&self) -> impl Fn() -> Vec<Counter> + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let taken = |all: usize, free: &Semaphore| all.saturating_sub(free.available_permits()) as f64;
            let options = &shared.options;
            let hatch_bytes = shared.hatch_bytes.load(Ordering::Relaxed) as f64;
            let connections = taken(options.connections_max, &shared.connections);
            let calls = taken(options.calls_max, &shared.calls);
            let one = |(name, help, value): (&str, &str, f64)| Counter::new(name, help, &[], value);
            let mut all: Vec<Counter> = [
                ("door_connections", "Connections of mounts, programs and commands.", connections),
                ("door_calls_now", "Their calls under way.", calls),
                ("door_hatch_bytes_total", "Bytes of writers that came through shared memory.", hatch_bytes),
            ]
            .into_iter()
            .map(one)
            .collect();
            let times = &shared.times;
            for (kind, times) in [("read", &times.reads), ("look", &times.looks), ("change", &times.changes)]
            {
                let help =
                    "Time of calls of mounts, programs and commands; writers and waits are not counted.";
                all.extend(times.list("door_call_seconds", help, &[("kind", kind)]));
            }
            all
        }
    }

    /// Where it listens, in the order that was asked for, with the ports that the system chose.
    pub fn addresses(&self) -> &[Endpoint] {
        &self.addresses
    }

    /// Takes no more connections and no new requests, lets what is under way come to its end for as long as `grace`,
    /// then ends it. Writers that are not finished by then leave nothing visible.
    pub async fn stop(mut self, grace: Duration) {
        self.accepting.shutdown().await;
        self.shared.stopping.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock().unwrap());
        let all = async {
            // Sessions start more tasks while they come to their end.
            loop {
                while tasks.join_next().await.is_some() {}
                tasks = std::mem::take(&mut *self.shared.tasks.lock().unwrap());
                if tasks.is_empty() {
                    return;
                }
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!("clients were still busy after {grace:?}; their connections are closed");
        }
        tasks.shutdown().await;
        let mut late = std::mem::take(&mut *self.shared.tasks.lock().unwrap());
        late.shutdown().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.tasks.lock().unwrap().abort_all();
    }
}

async fn accept(shared: Arc<Shared>, listener: Listener, hellos: Arc<Semaphore>) {
    loop {
        let Ok(hello) = hellos.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let serving = shared.clone();
        shared.spawn(async move {
            let admitted = greet(&serving, stream).await;
            drop(hello);
            if let Some(Admitted { stream, version, view, _connection }) = admitted {
                session::serve(serving, stream, version, view).await;
            }
        });
    }
}

/// A client that said who it is.
struct Admitted {
    stream: Stream,
    version: u16,
    /// The store as it may use it.
    view: Arc<Guarded>,
    _connection: OwnedSemaphorePermit,
}

/// Handshake and hello, within the time that they have; none if the client is turned away.
async fn greet(shared: &Shared, stream: Stream) -> Option<Admitted> {
    match tokio::time::timeout(shared.options.hello_timeout, meet(shared, stream)).await {
        Ok(Ok(admitted)) => Some(admitted),
        Ok(Err(fault)) => {
            tracing::debug!("turned away: {fault}");
            None
        }
        Err(_) => None,
    }
}

async fn meet(shared: &Shared, mut stream: Stream) -> std::result::Result<Admitted, Fault> {
    let options = &shared.options;
    let (peer, from) = (stream.peer_uid(), stream.peer_address());
    let token_wanted = options.unix_token || !matches!(stream, Stream::Unix(_));
    if let Some(certificate) = &options.certificate {
        stream = stream.secured(certificate).await?;
    }
    let terms = Terms {
        token_wanted,
        cluster: options.cluster,
        requests_max: options.requests_max as u32,
        handles_max: options.handles_max as u32,
        tls_wanted: options.certificate.is_some() && matches!(stream, Stream::Tcp(_)),
    };
    let mut user = None;
    let known = async |id| {
        if id == 0 {
            return shared.token.clone().map(Known::Word);
        }
        match shared.guard.of_token(id).await {
            Ok(found) => found.map(|(name, check)| {
                user = Some(name);
                Known::User(check)
            }),
            Err(fault) => {
                tracing::debug!("a token cannot be checked: {}", fault.message);
                None
            }
        }
    };
    let admit = || shared.connections.clone().try_acquire_owned().ok();
    let received = hello::receive(&mut stream, &terms, known, admit).await;
    let (connection, version, token) = received.inspect_err(|fault| {
        if matches!(fault, Fault::Broken(how) if how == hello::TOKEN_WRONG) {
            let origin = Origin { address: from.as_str().into(), ..Origin::default() };
            origin.of_now(|| shared.guard.refused_stranger(DOOR, "Connect", "", None, "unknown token"));
        }
    })?;
    let view = match (token_wanted, token, user, peer) {
        (true, 0, ..) => shared.guard.operator(DOOR),
        (true, _, Some(user), _) => shared.guard.user(user, DOOR),
        (false, _, _, Some(uid)) => options.peers.view(&shared.guard, uid, shared.own_uid),
        // The kernel says of every peer who it is, and a token that was proved is a user's.
        _ => shared.guard.anonymous(DOOR),
    };
    // What goes over a Unix socket stays on the machine.
    let is_tls = !matches!(stream, Stream::Tcp(_));
    view.comes_from(Origin { address: from.into(), is_tls, ..Origin::default() });
    Ok(Admitted { stream, version, view, _connection: connection })
}
