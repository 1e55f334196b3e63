//! Who may connect: sniffs plaintext and TLS apart, holds the hello, and keeps the list of who is connected.
//!
//! Whatever comes, only its own connection ends. A node that comes with a later session takes the place of its earlier
//! one, whose connections end; an earlier session is refused.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use stoker_buffer::{Place, Places};
use stoker_format::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsStream, server};

use super::config::Security;
use super::credentials::{CredentialsError, JOIN_PROTOCOL, NODE_PROTOCOL};
use super::end::End;
use super::hello::{DIALER_MAGIC, Met};
use super::intake::Intake;
use super::join;
use super::message::{Peer, Service};
use super::refusal::Reason;
use super::served::Served;
use super::socket::{self, Below, ReadHalf, WriteHalf};
use super::tcp::{Shared, tls_end};
use super::verifier::node_of;

/// Connections that are not past their hello yet. Beyond that, each new one takes the place of the one of its kind that is there
/// longest: those who connect and say nothing keep nobody out.
const NEWCOMERS_MAX: usize = 256;
/// Nodes that are being admitted at the same time.
const JOINS_MAX: usize = 16;
/// Longest time that it takes to admit one. The catalog is asked, which may have to find its leader first.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// The first byte of TLS.
const TLS_HANDSHAKE: u8 = 22;
/// A TLS record that says "no such protocol here", for a dialer that speaks TLS to a node that does not.
const TLS_REFUSAL: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];
/// Pause after an error that `accept` may repeat at once, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes connections.
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    service: Arc<dyn Service>,
    node_tls: Option<Arc<ServerConfig>>,
    join_tls: Option<Arc<ServerConfig>>,
    newcomers: Arc<Places>,
    joins: Semaphore,
    inbound: Mutex<Inbound>,
    left: Notify,
    stopping: AtomicBool,
}

/// Who is connected. A node that was here once keeps its entry: an old session must not come back.
#[derive(Default)]
struct Inbound {
    nodes: HashMap<NodeId, InboundPeer>,
    count: usize,
}

#[derive(Default)]
struct InboundPeer {
    session: u64,
    connections: Vec<Arc<Served>>,
}

impl Acceptor {
    /// Prepares what does not change from connection to connection.
    pub fn new(shared: Arc<Shared>, service: Arc<dyn Service>) -> Result<Arc<Acceptor>, CredentialsError> {
        let node_tls = match &shared.config.security {
            Security::Tls(credentials) => Some(credentials.acceptor()?),
            Security::Plaintext { .. } => None,
        };
        let join_tls =
            shared.config.join.as_ref().map(|desk| desk.credentials.join_acceptor()).transpose()?;
        Ok(Arc::new(Acceptor {
            shared,
            service,
            node_tls,
            join_tls,
            newcomers: Places::new(NEWCOMERS_MAX),
            joins: Semaphore::new(JOINS_MAX),
            inbound: Mutex::default(),
            left: Notify::new(),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Accepts for ever.
    pub async fn accept(self: Arc<Acceptor>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = loop {
                tokio::select! {
                    accepted = listener.accept() => break accepted,
                    Some(_) = connections.join_next() => {}
                }
            };
            match accepted {
                Ok((stream, address)) => {
                    let Some(newcomer) = self.newcomers.take(address.ip()) else { continue };
                    let acceptor = self.clone();
                    connections.spawn(async move {
                        if let Err(end) = acceptor.connection(stream, newcomer).await {
                            acceptor.note(address, &end);
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections of other nodes");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Takes no more requests, and says so.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let inbound = self.inbound.lock().unwrap();
        inbound.nodes.values().flat_map(|peer| &peer.connections).for_each(|served| served.stop());
    }

    /// Waits until nobody is connected.
    pub async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.inbound.lock().unwrap().count == 0 {
                return;
            }
            left.await;
        }
    }

    async fn connection(self: &Arc<Acceptor>, stream: TcpStream, newcomer: Place) -> Result<(), End> {
        let meet = tokio::time::timeout(self.shared.config.dial_timeout, self.meet(stream));
        let met = tokio::select! {
            met = meet => met.unwrap_or(Err(End::Silent))?,
            () = newcomer.shed() => return Err(End::Silent),
        };
        let (stay, read_half, write_half) = match met {
            Meeting::Over => return Ok(()),
            Meeting::Join(stream, asked) => return self.join(*stream, &asked, newcomer).await,
            Meeting::Node(connected) => connected,
        };
        drop(newcomer);
        let served = &stay.served;
        let intake = Intake::new(read_half, self.shared.config.pool.clone(), served.line.clone());
        let read = served.read(intake, &self.service);
        match served.line.run(write_half, self.shared.config.ping_interval, || (), read).await {
            end @ End::Broken(_) => Err(end),
            _ => Ok(()),
        }
    }

    /// Admits a node that wants to join, or says why not. It is a newcomer until that begins, so that those who wait are not many.
    async fn join(
        &self,
        mut stream: server::TlsStream<Below>,
        asked: &[u8],
        newcomer: Place,
    ) -> Result<(), End> {
        let Some(desk) = &self.shared.config.join else { return Ok(()) };
        let joining = async {
            // The semaphore is never closed.
            let _permit = tokio::select! {
                permit = self.joins.acquire() => permit,
                () = newcomer.shed() => return Err(End::Silent),
            };
            drop(newcomer);
            join::receive(&mut stream, asked, desk).await
        };
        tokio::time::timeout(JOIN_TIMEOUT, joining).await.unwrap_or(Err(End::Silent))
    }

    /// Finds out who is there.
    async fn meet(self: &Arc<Acceptor>, mut stream: TcpStream) -> Result<Meeting, End> {
        // A connection that was reset meanwhile shows that at its first read.
        let _ = socket::tune(&stream);
        let rail = stream.local_addr()?;
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(Meeting::Over);
        }
        if first[0] == TLS_HANDSHAKE {
            return self.meet_by_tls(stream, rail).await;
        }
        if first[0] != DIALER_MAGIC[0] {
            return Err(End::Refused(Reason::Garbage));
        }
        let introduction = &self.shared.introduction;
        if self.node_tls.is_some() {
            return Err(introduction.turn_away(&mut stream, Reason::Security).await?);
        }
        let (_, stay) = introduction.receive(&mut stream, None, |met| self.admit(met, rail)).await?;
        let (read_half, write_half) = socket::split_plain(stream);
        Ok(Meeting::Node((stay, read_half, write_half)))
    }

    async fn meet_by_tls(self: &Arc<Acceptor>, stream: TcpStream, rail: SocketAddr) -> Result<Meeting, End> {
        let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket::below_tls(stream));
        let mut start = hello.await.map_err(|_| End::Refused(Reason::Garbage))?;
        let offers = |wanted: &[u8]| {
            let hello = start.client_hello();
            hello.alpn().is_some_and(|mut offered| offered.any(|offer| offer == wanted))
        };
        if let (true, Some(config)) = (offers(JOIN_PROTOCOL), &self.join_tls) {
            let mut stream = handshake(start, config).await?;
            let asked = join::read_request(&mut stream).await?;
            return Ok(Meeting::Join(Box::new(stream), asked));
        }
        let (true, Some(config)) = (offers(NODE_PROTOCOL), &self.node_tls) else {
            // Refused either way.
            let _ = start.io.write_all(&TLS_REFUSAL).await;
            socket::part(start.io).await;
            return Err(End::Refused(Reason::Security));
        };
        let mut stream = handshake(start, config).await?;
        let certified = stream.get_ref().1.peer_certificates().and_then(|chain| node_of(chain.first()?));
        let Some((_, certified)) = certified else { return Err(End::Refused(Reason::Certificate)) };
        let introduction = &self.shared.introduction;
        let received = introduction.receive(&mut stream, Some(certified), |met| self.admit(met, rail)).await;
        let (_, stay) = received.map_err(tls_end)?;
        let (read_half, write_half) = socket::split_tls(TlsStream::Server(stream));
        Ok(Meeting::Node((stay, read_half, write_half)))
    }

    /// Enters a node that has proved itself.
    fn admit(self: &Arc<Acceptor>, met: &Met, rail: SocketAddr) -> Result<Stay, Reason> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Reason::Stopping);
        }
        let config = &self.shared.config;
        let peer = Peer { node: met.node, session: met.session, rail };
        let mut inbound = self.inbound.lock().unwrap();
        if inbound.count >= config.connections_max {
            return Err(Reason::Full);
        }
        let known = inbound.nodes.entry(met.node).or_default();
        if met.session < known.session {
            return Err(Reason::OldSession);
        }
        if met.session > known.session {
            known.session = met.session;
            known.connections.iter().for_each(|served| served.line.end());
        }
        let served = Served::new(peer, config.requests_max, config.window_bytes);
        known.connections.push(served.clone());
        inbound.count += 1;
        Ok(Stay { acceptor: self.clone(), served })
    }

    fn note(&self, address: SocketAddr, end: &End) {
        let reason = match end {
            End::Refused(reason) => *reason,
            End::Broken(_) => Reason::Broken,
            _ => return tracing::debug!(%address, %end, "a connection ended before its hello"),
        };
        self.shared.refusals.note(address.ip(), reason, end);
    }
}

async fn handshake(
    start: StartHandshake<Below>,
    config: &Arc<ServerConfig>,
) -> Result<server::TlsStream<Below>, End> {
    match start.into_stream(config.clone()).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            socket::part(stream).await;
            Err(tls_end(End::Io(error)))
        }
    }
}

/// Who is there.
enum Meeting {
    /// A node that belongs here.
    Node(Connected),
    /// One that wants to, and what it says.
    Join(Box<server::TlsStream<Below>>, Vec<u8>),
    /// Nobody any more.
    Over,
}

/// A connection of a node that was admitted.
type Connected = (Stay, ReadHalf, WriteHalf);

/// An entry in the list of inbound peers; it goes, and what is under way with it, however the connection ends.
struct Stay {
    acceptor: Arc<Acceptor>,
    served: Arc<Served>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.served.line.outbox.discard();
        self.served.end();
        let mut inbound = self.acceptor.inbound.lock().unwrap();
        if let Some(peer) = inbound.nodes.get_mut(&self.served.peer.node) {
            peer.connections.retain(|served| !Arc::ptr_eq(served, &self.served));
        }
        inbound.count -= 1;
        drop(inbound);
        self.acceptor.left.notify_waiters();
    }
}
