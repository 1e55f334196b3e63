//! The ways that messages take: over the transport, in its kinds.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use stoker_catalog::{CatalogError, ErrorKind as CatalogKind};
use stoker_fabric::transport::{
    self, BODY_LEN_MAX, Call, CallError, Fault, HEAD_LEN_MAX, Message, RailStatus, TcpTransport, Transport,
};
use stoker_format::NodeId;
use stoker_store::{BoxFuture, Counter, ErrorKind, Histogram, Result, StoreError};

use crate::book::Book;
use crate::catalog_host::CatalogHost;
use crate::wire::{Body, Summed, Wire};

/// For the node.
pub(crate) const KIND_NODE: u16 = 1;
/// For its catalog.
pub(crate) const KIND_CATALOG: u16 = 2;
/// The same, with room for a large answer.
pub(crate) const KIND_CATALOG_LARGE: u16 = 3;

/// For the standby of another node's catalog.
pub(crate) const KIND_STANDBY: u16 = 4;
/// About the catalog: who keeps it.
pub(crate) const KIND_CATALOG_HOST: u16 = 5;

/// For the replica of a node in the catalog's group.
pub(crate) const KIND_REPLICA: u16 = 6;

/// The answer does not fit where there was room for it; asked again with room, it comes.
pub(crate) const TOO_LARGE: u16 = 3;

/// Longest wait for an answer of the catalog: longer than a poll takes there.
const CATALOG_MAX: Duration = Duration::from_secs(20);

/// The same for a standby, which may make a whole file durable.
const STANDBY_MAX: Duration = Duration::from_secs(60);

/// How often pings count.
const LATENCIES: Duration = Duration::from_secs(1);

/// Weight of a new latency, as one part of so many.
const LATENCY_PART: u64 = 8;

/// To the nodes.
pub struct PeerWire {
    own: NodeId,
    transport: Arc<TcpTransport>,
    book: Arc<Book>,
    latencies: RwLock<HashMap<NodeId, u64>>,
    /// Times of all calls, by node.
    times: RwLock<HashMap<NodeId, Arc<Histogram>>>,
}

impl PeerWire {
    /// Nothing is known of latencies yet.
    pub fn new(own: NodeId, transport: Arc<TcpTransport>, book: Arc<Book>) -> PeerWire {
        PeerWire { own, transport, book, latencies: RwLock::default(), times: RwLock::default() }
    }

    /// Brings every node back to what pings say, bit by bit: one that was slow once is not avoided for ever.
    pub async fn watch_latencies(self: Arc<PeerWire>) {
        loop {
            for peer in self.transport.peers() {
                if let Some(rtt) = peer.rails.iter().filter_map(|rail| rail.rtt).min() {
                    self.note_latency(peer.node, rtt);
                }
            }
            tokio::time::sleep(LATENCIES).await;
        }
    }

    fn note_latency(&self, node: NodeId, took: Duration) {
        let took_us = took.as_micros() as u64;
        let mut latencies = self.latencies.write().unwrap();
        let known = latencies.entry(node).or_insert(took_us);
        *known = (*known * (LATENCY_PART - 1) + took_us) / LATENCY_PART;
    }
}

/// Nodes of which times are kept; more than any cluster has.
const TIMES_MAX: usize = 4_096;

impl PeerWire {
    fn times_of(&self, node: NodeId) -> Arc<Histogram> {
        if let Some(times) = self.times.read().unwrap().get(&node) {
            return times.clone();
        }
        let mut times = self.times.write().unwrap();
        if times.len() >= TIMES_MAX {
            times.clear();
        }
        times.entry(node).or_default().clone()
    }
}

/// Numbers of one address of a peer.
fn rail_numbers(peer: &str, rail: &RailStatus) -> Vec<Counter> {
    let address = rail.address.to_string();
    let labels = [("peer", peer), ("rail", address.as_str())];
    let one = |(name, help, value): (&str, &str, u64)| Counter::new(name, help, &labels, value as f64);
    let mut all: Vec<Counter> = [
        ("rail_connections", "Connections to an address of a peer that are up.", rail.connections),
        ("rail_reconnects_total", "Times that a connection was lost and made again.", rail.reconnects),
        ("rail_sent_bytes_total", "Bytes that left, frames included.", rail.sent_bytes),
        ("rail_received_bytes_total", "Bytes that came, frames included.", rail.received_bytes),
        ("rail_queue_bytes", "Bytes of calls under way or in line.", rail.load_bytes),
        ("rail_calls_total", "Calls that were begun.", rail.calls),
        (
            "rail_errors_total",
            "Calls that ended without an answer, and were given up or sent elsewhere.",
            rail.errors,
        ),
    ]
    .into_iter()
    .map(one)
    .collect();
    for (name, help, time) in [
        ("rail_rtt_seconds", "Moving average of the time from ping to pong.", rail.rtt),
        ("rail_latency_seconds", "Moving average of the time from a request to its answer.", rail.latency),
        ("rail_latency_p95_seconds", "Most answers, 95 of 100, come within this.", rail.latency_p95),
    ] {
        all.extend(time.map(|time| Counter::new(name, help, &labels, time.as_secs_f64())));
    }
    all
}

fn unavailable(node: NodeId, fault: &CallError) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("node {node}: {fault}"))
}

impl Wire for PeerWire {
    fn call(
        &self,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        answer_len: usize,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<(Vec<u8>, Body)>> {
        Box::pin(async move {
            let request = Message::new(KIND_NODE, head);
            let request = match body {
                Body::None => request,
                Body::Shared(summed) => with_shared(request, summed),
                Body::Aligned(buf) => request.with_body(transport::Body::Buf(buf)),
            };
            let call = Call::within(deadline).expecting(answer_len);
            let begun = tokio::time::Instant::now();
            let answer = self.transport.call(to, request, call).await;
            let took = begun.elapsed();
            self.times_of(to).note(took);
            if answer_len > 0 {
                self.note_latency(to, took);
            }
            let answer = answer.map_err(|fault| unavailable(to, &fault))?;
            let body = match answer.body {
                transport::Body::None => Body::None,
                body => Body::Aligned(body.into_buf()),
            };
            Ok((answer.head.to_vec(), body))
        })
    }

    fn latency_us(&self, node: NodeId) -> u64 {
        self.latency_seen_us(node).unwrap_or(1_000)
    }

    fn latency_seen_us(&self, node: NodeId) -> Option<u64> {
        self.latencies.read().unwrap().get(&node).copied()
    }

    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]) {
        let places = peers.iter().filter(|(node, _)| *node != self.own).map(|(node, addresses)| {
            let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
            (*node, addresses)
        });
        let places: Vec<(NodeId, Vec<SocketAddr>)> = places.collect();
        for (node, addresses) in &places {
            self.transport.set_peer(*node, addresses.clone());
        }
        self.book.set(places);
    }

    fn remove_peer(&self, node: NodeId) {
        if node != self.own {
            self.transport.remove_peer(node);
        }
    }

    fn counters(&self, names: &HashMap<NodeId, String>) -> Vec<Counter> {
        let mut all = Vec::new();
        // A node that is no member any more is not shown.
        for peer in self.transport.peers() {
            let Some(name) = names.get(&peer.node) else { continue };
            all.extend(peer.rails.iter().flat_map(|rail| rail_numbers(name, rail)));
        }
        let times = self.times.read().unwrap();
        for (name, times) in times.iter().filter_map(|(node, times)| Some((names.get(node)?, times))) {
            let help = "Time from a question to another node to its answer.";
            all.extend(times.list("peer_call_seconds", help, &[("peer", name)]));
        }
        all
    }
}

/// A message with bytes that others use too.
pub(crate) fn with_shared(message: Message, summed: Summed) -> Message {
    let body = transport::Body::Shared(vec![summed.bytes]);
    match summed.crc {
        Some(crc) if summed.is_claimed => message.with_claimed_body(body, crc),
        Some(crc) => message.with_summed_body(body, crc),
        None => message.with_body(body),
    }
}

/// To whoever keeps the catalog: another node, or this one.
pub(crate) struct HostWire(pub Weak<CatalogHost>);

impl stoker_catalog::Wire for HostWire {
    fn call(&self, request: Vec<u8>) -> stoker_catalog::BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(async move {
            let Some(host) = self.0.upgrade() else {
                return Err(CatalogError::new(CatalogKind::Unavailable, "this node is stopping"));
            };
            if let Some(server) = host.server() {
                return Ok(server.answer(request).await);
            }
            let holder = host.holder();
            let answer = catalog_call(&host.transport, holder, KIND_CATALOG, request, CATALOG_MAX).await;
            if answer.is_err() {
                // It may be elsewhere by now; whoever asked tries again.
                host.probe_soon();
            }
            answer
        })
    }
}

/// To a standby.
pub(crate) struct StandbyWire {
    pub node: NodeId,
    pub transport: Arc<TcpTransport>,
}

impl stoker_catalog::Wire for StandbyWire {
    fn call(&self, request: Vec<u8>) -> stoker_catalog::BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(catalog_call(&self.transport, self.node, KIND_STANDBY, request, STANDBY_MAX))
    }
}

/// To the replica of a node.
pub(crate) struct ReplicaWire {
    pub node: NodeId,
    pub transport: Arc<TcpTransport>,
}

impl stoker_catalog::Wire for ReplicaWire {
    fn call(&self, request: Vec<u8>) -> stoker_catalog::BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(catalog_call(&self.transport, self.node, KIND_REPLICA, request, STANDBY_MAX))
    }
}

/// Asks a catalog. Almost everything is small and travels in heads, beside the bulk. Room for a large answer is asked for only when
/// there is one: a read that is asked twice does no harm, a commit has a small answer, and so has a standby.
async fn catalog_call(
    transport: &TcpTransport,
    node: NodeId,
    kind: u16,
    request: Vec<u8>,
    within: Duration,
) -> stoker_catalog::Result<Vec<u8>> {
    let request = Bytes::from(request);
    let call = Call::within(within).once();
    let answer = match transport.call(node, catalog_message(kind, request.clone()), call).await {
        Err(CallError::Fault(Fault { code: TOO_LARGE, .. })) => {
            let call = call.expecting(BODY_LEN_MAX);
            transport.call(node, catalog_message(KIND_CATALOG_LARGE, request), call).await
        }
        answer => answer,
    };
    let answer = answer.map_err(|fault| {
        CatalogError::new(CatalogKind::Unavailable, format!("the catalog with node {node}: {fault}"))
    })?;
    Ok(catalog_bytes(answer))
}

/// A message for a catalog or from one: in the head if it fits there.
pub(crate) fn catalog_message(kind: u16, bytes: Bytes) -> Message {
    match bytes.len() <= HEAD_LEN_MAX {
        true => Message::new(kind, bytes),
        false => Message::new(kind, Bytes::new()).with_body(transport::Body::Shared(vec![bytes])),
    }
}

/// What such a message says.
pub(crate) fn catalog_bytes(message: Message) -> Vec<u8> {
    match message.body {
        transport::Body::None => message.head.to_vec(),
        body => body.into_buf().as_slice().to_vec(),
    }
}
