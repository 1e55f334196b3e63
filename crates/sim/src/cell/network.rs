//! The network between the machines: messages take time, overtake each other and get lost, links are cut in one or both
//! directions. Like the real transport it may deliver a request twice: one whose connection broke is sent again on another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stoker_format::NodeId;
use stoker_node::{Body, GivenWorld, InWorld, Node, Wire};
use stoker_store::{BoxFuture, Buf, ErrorKind, Result, StoreError};
use tokio::sync::oneshot;

use super::machine::Process;
use super::trace::Trace;
use crate::rng::Rng;

/// A node that runs on a machine.
#[derive(Clone)]
pub struct Host {
    /// The node.
    pub node: Arc<Node>,
    /// Its process.
    pub process: Arc<Process>,
}

impl Host {
    /// What its futures run in.
    pub fn world(&self) -> GivenWorld {
        GivenWorld(self.process.clone())
    }
}

/// The network.
pub struct Net {
    trace: Trace,
    state: Mutex<State>,
}

struct State {
    hosts: Vec<Option<Host>>,
    /// Machines by the nodes that live on them.
    places: BTreeMap<NodeId, usize>,
    /// Links that carry nothing: from, to.
    cut: BTreeSet<(usize, usize)>,
    loss_percent: u64,
    slow_ms: usize,
    double_percent: u64,
    rng: Rng,
}

fn gone() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "simulated: no answer")
}

impl Net {
    /// A network for so many machines.
    pub fn new(machines: usize, trace: Trace, rng: Rng) -> Arc<Net> {
        let state = State {
            hosts: vec![None; machines],
            places: BTreeMap::new(),
            cut: BTreeSet::new(),
            loss_percent: 0,
            slow_ms: 0,
            double_percent: 0,
            rng,
        };
        Arc::new(Net { trace, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A node can be reached from now on.
    pub fn plug(&self, at: usize, host: Host) {
        let mut state = self.state();
        state.places.insert(host.node.id(), at);
        state.hosts[at] = Some(host);
    }

    /// It cannot any more.
    pub fn unplug(&self, at: usize) {
        self.state().hosts[at] = None;
    }

    /// The node on a machine, if it is open.
    pub fn host(&self, at: usize) -> Option<Host> {
        self.state().hosts[at].clone()
    }

    /// Every node that is open.
    pub fn hosts(&self) -> Vec<Host> {
        self.state().hosts.iter().flatten().cloned().collect()
    }

    /// The node that lives on a machine, once one did.
    pub fn id_of(&self, at: usize) -> Option<NodeId> {
        self.state().places.iter().find(|(_, place)| **place == at).map(|(node, _)| *node)
    }

    /// Cuts a link in one direction.
    pub fn cut(&self, from: usize, to: usize) {
        self.state().cut.insert((from, to));
    }

    /// Cuts a machine off.
    pub fn cut_off(&self, at: usize) {
        let mut state = self.state();
        for other in (0..state.hosts.len()).filter(|other| *other != at) {
            state.cut.extend([(at, other), (other, at)]);
        }
    }

    /// Every link carries again.
    pub fn heal(&self) {
        self.state().cut.clear();
    }

    /// Loses a share of all messages, delays the others, and delivers a share of the requests twice.
    pub fn set_faults(&self, loss_percent: u64, slow_ms: usize, double_percent: u64) {
        let mut state = self.state();
        (state.loss_percent, state.slow_ms, state.double_percent) = (loss_percent, slow_ms, double_percent);
    }

    /// Carries something one way; false if it does not arrive.
    pub async fn carry(&self, from: usize, to: usize) -> bool {
        let (is_lost, delay_ms) = {
            let state = &mut *self.state();
            let is_lost = state.loss_percent > 0 && state.rng.percent(state.loss_percent);
            let slow_ms = state.slow_ms;
            let delay_ms = if state.rng.percent(60) { 0 } else { state.rng.below(3 + slow_ms) };
            (is_lost, delay_ms)
        };
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms as u64)).await;
        }
        !is_lost && !self.state().cut.contains(&(from, to))
    }

    /// Asks a node; the answer is dropped if it is lost on the way.
    async fn ask(
        self: Arc<Net>,
        from: usize,
        own: NodeId,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        answer: oneshot::Sender<(Vec<u8>, Body)>,
    ) {
        let Some(place) = self.state().places.get(&to).copied() else { return };
        let kind = head.get(1).copied().unwrap_or_default();
        if !self.carry(from, place).await {
            self.trace.note(format_args!("net: {from}>{place} message {kind} is lost"));
            return self.keep_waiting(answer).await;
        }
        let Some(host) = self.host(place) else { return };
        self.trace.note(format_args!("net: {from}>{place} message {kind}"));
        let (node, died) = (host.node.clone(), host.process.clone());
        let body = aligned(body);
        if self.is_doubled() {
            self.clone().deliver_unanswered(from, own, place, head.clone(), copy(&body));
            if !self.carry(from, place).await {
                return self.keep_waiting(answer).await;
            }
        }
        let serve = async move { node.serve_peer(own, &head, body).await };
        let served = tokio::spawn(InWorld::new(&host.world(), serve));
        let served = tokio::select! {
            biased;
            served = served => served,
            () = died.died.notified() => return,
        };
        let Ok((head, body)) = served else { return };
        if !self.carry(place, from).await {
            self.trace.note(format_args!("net: {place}>{from} answer {kind} is lost"));
            return self.keep_waiting(answer).await;
        }
        let _ = answer.send((head, aligned(body)));
    }

    fn is_doubled(&self) -> bool {
        let state = &mut *self.state();
        state.double_percent > 0 && state.rng.percent(state.double_percent)
    }

    /// A request is carried out, and the connection breaks before its answer: it comes once more on another one.
    fn deliver_unanswered(self: Arc<Net>, from: usize, own: NodeId, place: usize, head: Vec<u8>, body: Body) {
        let Some(host) = self.host(place) else { return };
        let kind = head.get(1).copied().unwrap_or_default();
        self.trace.note(format_args!("net: {from}>{place} message {kind} comes twice"));
        let node = host.node.clone();
        let serve = async move { node.serve_peer(own, &head, body).await };
        tokio::spawn(InWorld::new(&host.world(), serve));
    }

    /// Some losses are noticed at once, as a broken connection is, and others by their deadline.
    async fn keep_waiting<T>(&self, mut answer: oneshot::Sender<T>) {
        if self.state().rng.percent(50) {
            answer.closed().await;
        }
    }
}

fn aligned(body: Body) -> Body {
    match body {
        Body::Shared(summed) => Body::Aligned(Buf::copy_of(&summed.bytes)),
        other => other,
    }
}

/// What the same request brings once more.
fn copy(body: &Body) -> Body {
    match body {
        Body::None => Body::None,
        Body::Aligned(buf) => Body::Aligned(Buf::copy_of(buf.as_slice())),
        Body::Shared(summed) => Body::Aligned(Buf::copy_of(&summed.bytes)),
    }
}

/// The network as one node sees it.
pub struct Port {
    /// All of it.
    pub net: Arc<Net>,
    /// The machine of this node.
    pub at: usize,
}

impl Wire for Port {
    fn call(
        &self,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        _: usize,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<(Vec<u8>, Body)>> {
        let (net, at) = (self.net.clone(), self.at);
        Box::pin(async move {
            let own = net.id_of(at).ok_or_else(gone)?;
            let (tell, told) = oneshot::channel();
            // What was sent arrives, whether or not the sender still waits.
            tokio::spawn(net.ask(at, own, to, head, body, tell));
            match tokio::time::timeout(deadline, told).await {
                Ok(Ok(answer)) => Ok(answer),
                _ => Err(gone()),
            }
        })
    }

    fn latency_us(&self, _: NodeId) -> u64 {
        1_000
    }

    fn set_peers(&self, _: &[(NodeId, Vec<String>)]) {}
}
