//! The server: accepts connections, bounds them, hands requests to [`answer`](crate::answer).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use stoker_access::Guard;
use stoker_audit::Log;
use stoker_oidc::Login;
use stoker_store::{Place, Places};
use stoker_tls::{Accepted, Certificate};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use crate::access::Tokens;
use crate::answer::{Asked, Views, Watched, answer, caller, sample};
use crate::audit::Audit;
use crate::health::HealthProbe;
use crate::login::Logins;
use crate::rate::{Rate, Rates};
use crate::recent::Recent;
use crate::series::Series;
use crate::session::Sessions;
use crate::sources::{Events, HealthSource, PointSink, Source};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest handshake of TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Waiting time after `accept` failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Changes that are carried out at the same time.
const CHANGES_MAX: usize = 32;
/// Looks at the sources of numbers at the same time. One that hangs takes one of them, and not every thread there is.
const GATHERS_MAX: usize = 4;

/// How to serve.
pub struct AdminOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// HTTPS instead of HTTP.
    pub tls: Option<Arc<Certificate>>,
    /// What operators show as `Authorization: Bearer`, or log in with.
    pub token: String,
    /// The same for those who may look and change nothing.
    pub view_tokens: Vec<String>,
    /// Providers by which people log in to the console.
    pub logins: Vec<Login>,
    /// `/metrics` needs no token.
    pub metrics_open: bool,
    /// More numbers for `/metrics` and for plots.
    pub extra: Vec<Source>,
    /// More numbers for `/metrics` that no plot shows, so that they are not asked for all the time.
    pub aside: Vec<Source>,
    /// Where events come from, if they are kept.
    pub events: Option<Arc<dyn Events>>,
    /// What `/healthz` and `/readyz` ask first.
    pub health: Option<HealthSource>,
    /// What a person types to put a first file in, for a console that has nothing to show.
    pub first_line: Option<String>,
    /// Requests of one address.
    pub rate: Rate,
    /// Wrong tokens of one address.
    pub guess_rate: Rate,
    /// A session that is not used for so long is over.
    pub session_idle_max: Duration,
    /// A session that is so old is over.
    pub session_age_max: Duration,
    /// How often numbers are kept for plots.
    pub series_every: Duration,
    /// Who keeps them for longer.
    pub keep_point: Option<PointSink>,
    /// Connections at the same time. When there are as many, one that has shown no token makes room for the next, or one of an
    /// address that has more than others.
    pub connections_max: usize,
    /// How long a client may take to send a request, or to begin the next one.
    pub request_timeout: Duration,
    /// How long the door may take to answer.
    pub answer_timeout: Duration,
    /// How long a client waits for a change; the change goes on behind that.
    pub change_timeout: Duration,
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
            tls: None,
            token: token.into(),
            view_tokens: Vec::new(),
            logins: Vec::new(),
            metrics_open: false,
            extra: Vec::new(),
            aside: Vec::new(),
            events: None,
            health: None,
            first_line: None,
            rate: Rate { per_s: 100.0, burst: 500.0 },
            guess_rate: Rate { per_s: 0.5, burst: 20.0 },
            session_idle_max: Duration::from_secs(3_600),
            session_age_max: Duration::from_secs(12 * 3_600),
            series_every: Duration::from_secs(2),
            keep_point: None,
            connections_max: 128,
            request_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(10),
            change_timeout: Duration::from_secs(120),
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
    sampler: JoinHandle<()>,
}

impl Admin {
    /// Listens and serves from then on.
    pub async fn start(guard: &Guard, options: AdminOptions) -> io::Result<Admin> {
        let listener = TcpListener::bind(options.listen).await?;
        Admin::serve(Box::new(Views::of(guard)), guard.log().cloned(), options, listener)
    }

    /// The same at the first of these addresses that is free.
    pub async fn start_at(
        guard: &Guard,
        options: AdminOptions,
        addresses: &[SocketAddr],
    ) -> io::Result<Admin> {
        let mut failed = io::Error::other("there is no address");
        for address in addresses {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let views = Box::new(Views::of(guard));
                    return Admin::serve(views, guard.log().cloned(), options, listener);
                }
                Err(error) => {
                    failed = io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
                }
            }
        }
        Err(failed)
    }

    /// [`Self::start`] on the part of the door that is needed here.
    #[cfg(test)]
    pub(crate) async fn watch(watched: Box<dyn Watched>, options: AdminOptions) -> io::Result<Admin> {
        let listener = TcpListener::bind(options.listen).await?;
        Admin::serve(watched, None, options, listener)
    }

    fn serve(
        watched: Box<dyn Watched>,
        log: Option<Arc<Log>>,
        options: AdminOptions,
        listener: TcpListener,
    ) -> io::Result<Admin> {
        let address = listener.local_addr()?;
        let asked = Arc::new(Asked {
            watched,
            tokens: Tokens { operator: options.token, view: options.view_tokens },
            metrics_open: options.metrics_open,
            extra: options.extra,
            aside: options.aside,
            events: options.events,
            health: HealthProbe::new(options.health),
            first_line: options.first_line,
            logins: Logins::new(options.logins),
            sessions: Sessions::new(options.session_idle_max, options.session_age_max),
            cookie: format!("stoker-session-{}", address.port()),
            is_secure: options.tls.is_some(),
            rates: Rates::new(options.rate),
            guesses: Rates::new(options.guess_rate),
            audit: Audit::new(log),
            recent: Recent::default(),
            series: Series::default(),
            series_every: options.series_every,
            keep_point: options.keep_point,
            changes: Arc::new(Semaphore::new(CHANGES_MAX)),
            gathers: Arc::new(Semaphore::new(GATHERS_MAX)),
            timeout: options.answer_timeout,
            change_timeout: options.change_timeout,
            request_timeout: options.request_timeout,
            ready_age_max: options.ready_age_max,
            ready: Mutex::new(None),
            stopping: AtomicBool::new(false),
        });
        let (stop, stopped) = watch::channel(false);
        let server = Server {
            asked: Arc::clone(&asked),
            places: Places::new(options.connections_max),
            tls: options.tls,
            request_timeout: options.request_timeout,
            connection_timeout: options.connection_timeout,
            stopped,
        };
        let sampler = tokio::spawn(keep_series(Arc::clone(&asked)));
        let acceptor = tokio::spawn(server.accept(listener));
        Ok(Admin { address, asked, stop, acceptor, sampler })
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
        self.sampler.abort();
    }
}

/// Samples until it is ended.
async fn keep_series(asked: Arc<Asked>) {
    let mut ticks = tokio::time::interval(asked.series_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        sample(&asked).await;
    }
}

/// What the acceptor needs.
struct Server {
    asked: Arc<Asked>,
    places: Arc<Places>,
    tls: Option<Arc<Certificate>>,
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
            tokio::select! {
                () = told(&mut stopped) => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        // Whoever has its share is closed without a word.
                        if let Some(place) = self.places.take(peer.ip()) {
                            let place = Arc::new(place);
                            let connection = self.serve(stream, peer, Arc::clone(&place));
                            connections.spawn(async move {
                                tokio::select! {
                                    () = connection => {}
                                    () = place.shed() => {}
                                }
                            });
                        }
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
    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: Arc<Place>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (asked, mut stopped, tls) = (Arc::clone(&self.asked), self.stopped.clone(), self.tls.clone());
        let (request_timeout, connection_timeout) = (self.request_timeout, self.connection_timeout);
        async move {
            let service = service_fn(move |request| {
                let (asked, place) = (Arc::clone(&asked), Arc::clone(&place));
                async move {
                    let address = peer.ip().to_canonical();
                    if caller(&asked, request.headers(), address).is_ok() {
                        place.prove();
                    }
                    place.set_busy(true);
                    let answer = answer(&asked, request, address).await;
                    place.set_busy(false);
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let stream: Box<dyn Wire> = match tls {
                None => Box::new(stream),
                Some(certificate) => {
                    let accepted = stoker_tls::accept(stream, &certificate);
                    match tokio::time::timeout(request_timeout.min(HANDSHAKE_MAX), accepted).await {
                        Ok(Ok(Accepted::Tls(stream))) => stream,
                        Ok(Ok(Accepted::Plain(stream))) => return refuse_plain(stream).await,
                        _ => return,
                    }
                }
            };
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

/// The bytes of a connection, plain or in TLS.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Tells who speaks plain HTTP to a port that takes HTTPS. Reads a little, so that the answer is seen rather than a broken
/// connection.
async fn refuse_plain(mut stream: TcpStream) {
    const WORDS: &str = "this port takes HTTPS, and you sent plain HTTP: use https://\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{WORDS}",
        WORDS.len()
    );
    let polite = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), polite).await;
}

/// Waits until the server was told to stop.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // An error means that the server was dropped, which says the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
