//! The connections that lead to one node: which one a call takes, and the loops that keep them up.
//!
//! Each address of the node is a rail with one connection for small requests and a few for bulk bytes. A call takes the
//! connection of its lane with the least bytes under way, over all rails. While none is up it waits for those that are
//! being made; when all were tried in vain it fails at once, so that its caller can take another node.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_format::NodeId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::end::End;
use super::hello::Lane;
use super::intake::Intake;
use super::line::Line;
use super::link::{Link, Missed, Outlook, Reserved};
use super::message::{Call, CallError, Message};
use super::refusal::Reason;
use super::stats::{PeerStatus, Rail};
use super::tcp::{Connected, Shared};

/// A request or answer with a longer body is bulk.
const SMALL_LEN_MAX: usize = 64 << 10;
/// How often a call is sent, at most.
const ATTEMPTS_MAX: usize = 6;
const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(50);
/// A connection that lasted this long was a good one: pauses begin to grow anew.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// All that leads to one node.
pub(super) struct Route {
    node: NodeId,
    addresses: Vec<SocketAddr>,
    rails: Vec<Arc<Rail>>,
    slots: Arc<Slots>,
    /// The loops; they end with the route.
    _dialers: JoinSet<()>,
}

/// The state of every connection.
struct Slots {
    slots: Mutex<Vec<Slot>>,
    changed: watch::Sender<()>,
}

struct Slot {
    rail: usize,
    lane: Lane,
    state: State,
}

enum State {
    /// Being made for the first time, or again after it was lost.
    Connecting,
    Up(Arc<Link>),
    /// Tried in vain; tried again after a pause.
    Down(CallError),
}

/// What a call can do.
enum Pick {
    Link(usize, Arc<Link>),
    Wait,
    Fail(CallError),
}

impl Route {
    /// Begins to connect.
    pub fn new(shared: &Arc<Shared>, node: NodeId, addresses: Vec<SocketAddr>) -> Route {
        let rails: Vec<Arc<Rail>> = addresses.iter().map(|_| Arc::default()).collect();
        let lanes = std::iter::once(Lane::Small)
            .chain(std::iter::repeat_n(Lane::Bulk, shared.config.bulk_connections.max(1)));
        let slots: Vec<Slot> = (0..addresses.len())
            .flat_map(|rail| lanes.clone().map(move |lane| Slot { rail, lane, state: State::Connecting }))
            .collect();
        let places: Vec<(usize, Lane)> = slots.iter().map(|slot| (slot.rail, slot.lane)).collect();
        let slots = Arc::new(Slots { slots: Mutex::new(slots), changed: watch::channel(()).0 });
        let mut dialers = JoinSet::new();
        for (at, (rail, lane)) in places.into_iter().enumerate() {
            let dialer = Dialer {
                shared: shared.clone(),
                node,
                lane,
                address: addresses[rail],
                from: shared.local_address(rail, addresses[rail]),
                rail: rails[rail].clone(),
                slots: slots.clone(),
                at,
            };
            dialers.spawn_on(dialer.run(), &shared.runtime);
        }
        Route { node, addresses, rails, slots, _dialers: dialers }
    }

    /// Its addresses.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What is known of it.
    pub fn status(&self) -> PeerStatus {
        let mut rails: Vec<_> =
            self.rails.iter().zip(&self.addresses).map(|(rail, address)| rail.status(*address)).collect();
        for slot in self.slots.slots.lock().unwrap().iter() {
            if let State::Up(link) = &slot.state {
                rails[slot.rail].sent_bytes += link.line.sent_bytes.load(Ordering::Relaxed);
                rails[slot.rail].received_bytes += link.line.received_bytes.load(Ordering::Relaxed);
            }
        }
        PeerStatus { node: self.node, rails }
    }

    /// Calls, on another connection if one is lost; returns only with an outcome or when nothing leads there.
    pub async fn call(&self, request: Message, call: &Call, deadline: Instant) -> Result<Message, CallError> {
        let body_crc = request.crc();
        let request = Arc::new(request);
        let len = request.body.len().max(call.answer_len_max);
        let mut lost = false;
        for _ in 0..ATTEMPTS_MAX {
            let (rail, link, reserved) = match self.reserve(len).await {
                Ok(found) => found,
                // Where it went before, it may have been served.
                Err(error) if lost => return Err(CallError::Lost(error.to_string())),
                Err(error) => return Err(error),
            };
            let rail = &self.rails[rail];
            rail.calls.fetch_add(1, Ordering::Relaxed);
            let missed = match link.call(reserved, &request, body_crc, call, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(Missed::Decided(error @ CallError::Fault(_))) => return Err(error),
                Err(missed) => missed,
            };
            rail.errors.fetch_add(1, Ordering::Relaxed);
            match missed {
                Missed::Decided(error) => return Err(error),
                Missed::Unseen => {}
                Missed::Lost => lost = true,
            }
            if lost && !call.repeatable {
                return Err(CallError::Lost("the request is not to be repeated".into()));
            }
        }
        let text = format!("tried {ATTEMPTS_MAX} times");
        Err(if lost { CallError::Lost(text) } else { CallError::Unreachable(text) })
    }

    /// Waits for a connection with room for so many bytes. Connections that come and go meanwhile are considered.
    async fn reserve(&self, len: usize) -> Result<(usize, Arc<Link>, Reserved), CallError> {
        let lane = if len > SMALL_LEN_MAX { Lane::Bulk } else { Lane::Small };
        let mut changed = self.slots.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let reserved = async {
                match self.slots.pick(lane) {
                    Pick::Link(rail, link) => match link.reserve(len as u32).await {
                        Ok(reserved) => Ok((rail, link, reserved)),
                        Err(Missed::Decided(error)) => Err(error),
                        // The change that comes with its end leads on.
                        Err(_) => std::future::pending().await,
                    },
                    Pick::Fail(error) => Err(error),
                    Pick::Wait => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                reserved = reserved => return reserved,
                // The sender lives as long as this route.
                _ = changed.changed() => {}
            }
        }
    }
}

impl Slots {
    fn set(&self, at: usize, state: State) {
        let old = std::mem::replace(&mut self.slots.lock().unwrap()[at].state, state);
        drop(old);
        self.changed.send_replace(());
    }

    fn pick(&self, lane: Lane) -> Pick {
        let slots = self.slots.lock().unwrap();
        let up = |slot: &Slot| match &slot.state {
            State::Up(link) if link.outlook() == Outlook::Open => Some((slot.rail, link.clone())),
            _ => None,
        };
        let best = |of_lane: bool| {
            let found = slots.iter().filter(|slot| (slot.lane == lane) == of_lane).filter_map(up);
            found.min_by_key(|(_, link)| link.load())
        };
        if let Some((rail, link)) = best(true) {
            return Pick::Link(rail, link);
        }
        let connecting = |slot: &Slot| match &slot.state {
            State::Connecting => true,
            State::Up(link) => link.outlook() == Outlook::Ended,
            State::Down(_) => false,
        };
        if slots.iter().any(|slot| slot.lane == lane && connecting(slot)) {
            return Pick::Wait;
        }
        if let Some((rail, link)) = best(false) {
            return Pick::Link(rail, link);
        }
        if slots.iter().any(connecting) {
            return Pick::Wait;
        }
        let error = slots.iter().find_map(|slot| match &slot.state {
            State::Down(error) => Some(error.clone()),
            _ => None,
        });
        Pick::Fail(error.unwrap_or_else(|| CallError::Unreachable("the node is stopping".into())))
    }
}

/// Keeps one connection up.
struct Dialer {
    shared: Arc<Shared>,
    node: NodeId,
    lane: Lane,
    address: SocketAddr,
    from: Option<IpAddr>,
    rail: Arc<Rail>,
    slots: Arc<Slots>,
    at: usize,
}

impl Dialer {
    async fn run(self) {
        let mut pause = REDIAL_PAUSE_MIN;
        loop {
            match self.connect().await {
                Ok(connected) => {
                    let begun = Instant::now();
                    let end = self.live(connected).await;
                    self.rail.reconnects.fetch_add(1, Ordering::Relaxed);
                    if begun.elapsed() >= GOOD_LIFE {
                        pause = REDIAL_PAUSE_MIN;
                    }
                    // A connection that was lost or damaged is followed by another, for which calls wait.
                    if matches!(end, End::Refused(reason) if reason != Reason::Broken) {
                        self.set_down(&end);
                    }
                }
                Err(end) => self.set_down(&end),
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(self.shared.config.redial_pause_max);
        }
    }

    /// Runs a connection to its end.
    async fn live(&self, (met, read_half, write_half): Connected) -> End {
        let line = Arc::<Line>::default();
        let link = Link::new(&met, line.clone(), self.rail.clone());
        let intake = Intake::new(read_half, self.shared.config.pool.clone(), line.clone());
        let _up = Up::new(self, link.clone());
        let interval = self.shared.config.ping_interval;
        let read = async {
            let end = link.read(intake).await;
            // Calls need not wait for a farewell.
            link.end();
            end
        };
        line.run(write_half, interval, || link.pinging(), read).await
    }

    async fn connect(&self) -> Result<Connected, End> {
        let dial = self.shared.dial(self.node, self.address, self.from, self.lane);
        match tokio::time::timeout(self.shared.config.dial_timeout, dial).await {
            Ok(dialed) => dialed,
            Err(_) => Err(End::Silent),
        }
    }

    fn set_down(&self, end: &End) {
        self.slots.set(self.at, State::Down(call_error(end)));
        match end {
            End::Refused(reason) => self.shared.refusals.note(self.address.ip(), *reason, &self.node),
            end => tracing::debug!(node = %self.node, address = %self.address, %end, "not connected"),
        }
    }
}

/// A connection that is up; when it is dropped, also with its whole task, its calls learn of it.
struct Up<'a> {
    dialer: &'a Dialer,
    link: Arc<Link>,
}

impl<'a> Up<'a> {
    fn new(dialer: &'a Dialer, link: Arc<Link>) -> Up<'a> {
        dialer.rail.connections.fetch_add(1, Ordering::Relaxed);
        dialer.slots.set(dialer.at, State::Up(link.clone()));
        Up { dialer, link }
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let rail = &self.dialer.rail;
        rail.connections.fetch_sub(1, Ordering::Relaxed);
        let line = &self.link.line;
        rail.sent_bytes.fetch_add(line.sent_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        rail.received_bytes.fetch_add(line.received_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        line.outbox.discard();
        self.dialer.slots.set(self.dialer.at, State::Connecting);
        self.link.end();
    }
}

fn call_error(end: &End) -> CallError {
    match end {
        End::Refused(reason) if !matches!(reason, Reason::Stopping | Reason::Full | Reason::Broken) => {
            CallError::Refused(*reason)
        }
        end => CallError::Unreachable(end.to_string()),
    }
}

/// Half of a pause at least, so that those who lost the same node do not come back in step.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without random bytes there is no jitter, which is all that is lost.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause / 2 * u32::from(byte[0]) / 255
}
