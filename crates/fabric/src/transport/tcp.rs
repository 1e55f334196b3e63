//! The transport over TCP: what a node starts, calls through and stops.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig};
use stoker_format::NodeId;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::{TlsConnector, TlsStream};

use super::acceptor::Acceptor;
use super::config::{Config, Security};
use super::end::End;
use super::frame::BODY_LEN_MAX;
use super::hello::{Introduction, Lane, Met};
use super::message::{BoxFuture, Call, CallError, Message, Service, Transport};
use super::refusal::{Reason, Refusals};
use super::route::Route;
use super::socket::{self, ReadHalf, WriteHalf};
use super::stats::PeerStatus;
use super::verifier::node_of;

/// Connections between this node and others.
pub struct TcpTransport {
    shared: Arc<Shared>,
    acceptor: Arc<Acceptor>,
    addresses: Vec<SocketAddr>,
    routes: Mutex<HashMap<NodeId, Arc<Route>>>,
    /// The accepting loops, and with them all connections that were accepted.
    accepting: Mutex<JoinSet<()>>,
}

/// What all connections need.
pub(super) struct Shared {
    pub config: Config,
    pub introduction: Introduction,
    pub refusals: Refusals,
    pub runtime: Handle,
    dialer: Option<Arc<ClientConfig>>,
}

/// A connection after its hello.
pub(super) type Connected = (Met, ReadHalf, WriteHalf);

impl TcpTransport {
    /// Listens, and serves what comes. Runs on the runtime that it is called from.
    pub fn start(config: Config, service: Arc<dyn Service>) -> io::Result<Arc<TcpTransport>> {
        let secret = match &config.security {
            Security::Tls(_) => None,
            Security::Plaintext { secret } => Some(hmac::Key::new(hmac::HMAC_SHA256, secret)),
        };
        let dialer = match &config.security {
            Security::Tls(credentials) => Some(credentials.dialer().map_err(io::Error::other)?),
            Security::Plaintext { .. } => None,
        };
        let introduction = Introduction {
            cluster: config.cluster,
            node: config.node,
            session: config.session,
            secret,
            requests_max: config.requests_max,
            window: config.window_bytes,
        };
        let runtime = Handle::current();
        let shared =
            Arc::new(Shared { config, introduction, refusals: Refusals::default(), runtime, dialer });
        let acceptor = Acceptor::new(shared.clone(), service).map_err(io::Error::other)?;
        let mut accepting = JoinSet::new();
        let mut addresses = Vec::new();
        for address in &shared.config.listen {
            let listener = socket::listen(*address)?;
            addresses.push(listener.local_addr()?);
            accepting.spawn(acceptor.clone().accept(listener));
        }
        let (routes, accepting) = (Mutex::default(), Mutex::new(accepting));
        Ok(Arc::new(TcpTransport { shared, acceptor, addresses, routes, accepting }))
    }

    /// Where it listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How often connections were refused, by this node or by the other one, for each reason.
    pub fn refusals(&self) -> Vec<(Reason, u64)> {
        self.shared.refusals.counts()
    }

    /// Stops without losing a request: peers hear of it, send no more, and get answers to what is under way, within
    /// `grace`. Then everything ends.
    pub async fn stop(&self, grace: Duration) {
        self.acceptor.stop();
        let _ = tokio::time::timeout(grace, self.acceptor.empty()).await;
        self.accepting.lock().unwrap().abort_all();
        let routes = std::mem::take(&mut *self.routes.lock().unwrap());
        drop(routes);
    }

    async fn call_within(&self, to: NodeId, request: Message, call: Call) -> Result<Message, CallError> {
        let deadline = Instant::now() + call.deadline;
        if let Some(excess) = request.excess() {
            return Err(CallError::Invalid(excess));
        }
        if call.answer_len_max > BODY_LEN_MAX {
            let text =
                format!("an answer of up to {} bytes; the limit is {BODY_LEN_MAX}", call.answer_len_max);
            return Err(CallError::Invalid(text));
        }
        let route = self.routes.lock().unwrap().get(&to).cloned();
        let route =
            route.ok_or_else(|| CallError::Unreachable(format!("no address of node {to} is known")))?;
        let called = tokio::time::timeout_at(deadline, route.call(request, &call, deadline)).await;
        called.unwrap_or(Err(CallError::Deadline))
    }
}

impl Transport for TcpTransport {
    fn call(&self, to: NodeId, request: Message, call: Call) -> BoxFuture<'_, Result<Message, CallError>> {
        Box::pin(self.call_within(to, request, call))
    }

    fn set_peer(&self, node: NodeId, addresses: Vec<SocketAddr>) {
        let mut routes = self.routes.lock().unwrap();
        if routes.get(&node).is_some_and(|route| route.addresses() == addresses) {
            return;
        }
        // Calls under way keep the old one until they are done.
        routes.insert(node, Arc::new(Route::new(&self.shared, node, addresses)));
    }

    fn remove_peer(&self, node: NodeId) {
        let route = self.routes.lock().unwrap().remove(&node);
        drop(route);
    }

    fn peers(&self) -> Vec<PeerStatus> {
        let mut peers: Vec<_> = self.routes.lock().unwrap().values().map(|route| route.status()).collect();
        peers.sort_unstable_by_key(|peer| peer.node);
        peers
    }
}

impl Shared {
    /// The local address that a rail is dialed from.
    pub fn local_address(&self, rail: usize, to: SocketAddr) -> Option<IpAddr> {
        let family: Vec<_> = self.config.bind.iter().filter(|ip| ip.is_ipv4() == to.is_ipv4()).collect();
        (!family.is_empty()).then(|| *family[rail % family.len()])
    }

    /// Makes a connection to a node.
    pub async fn dial(
        &self,
        node: NodeId,
        address: SocketAddr,
        from: Option<IpAddr>,
        lane: Lane,
    ) -> Result<Connected, End> {
        let mut stream = socket::dial(address, from).await?;
        let Some(dialer) = &self.dialer else {
            let met = self.introduction.greet(&mut stream, node, lane, None).await?;
            let (read_half, write_half) = socket::split_plain(stream);
            return Ok((met, read_half, write_half));
        };
        let connector = TlsConnector::from(dialer.clone());
        let name = ServerName::IpAddress(address.ip().into());
        let mut stream = connector
            .connect(name, socket::below_tls(stream))
            .await
            .map_err(|error| tls_end(End::Io(error)))?;
        let certified = stream.get_ref().1.peer_certificates().and_then(|chain| node_of(chain.first()?));
        let Some((_, certified)) = certified else { return Err(End::Refused(Reason::Certificate)) };
        let met = match self.introduction.greet(&mut stream, node, lane, Some(certified)).await {
            Ok(met) => met,
            Err(End::Io(error)) => {
                // The other side looks at our certificate after we believe that all is well: its alert may be there
                // while our bytes can no longer leave.
                let alert = stream.read(&mut [0]).await.err();
                return Err(tls_end(End::Io(alert.unwrap_or(error))));
            }
            Err(end) => return Err(end),
        };
        let (read_half, write_half) = socket::split_tls(TlsStream::Client(stream));
        Ok((met, read_half, write_half))
    }
}

/// What an error of TLS says about the other side.
pub(super) fn tls_end(end: End) -> End {
    let End::Io(error) = end else { return end };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match inner {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::NotValidYet,
        )) => Reason::Clock,
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            Reason::Certificate
        }
        Some(rustls::Error::NoApplicationProtocol) => Reason::Security,
        Some(rustls::Error::AlertReceived(alert)) => match alert {
            AlertDescription::NoApplicationProtocol => Reason::Security,
            AlertDescription::CertificateExpired => Reason::Clock,
            AlertDescription::CloseNotify | AlertDescription::InternalError => return End::Io(error),
            _ => Reason::Certificate,
        },
        Some(_) => Reason::Garbage,
        None => return End::Io(error),
    };
    End::Refused(reason)
}
