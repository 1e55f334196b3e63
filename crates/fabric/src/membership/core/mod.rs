//! The decisions of membership: datagrams and time in, datagrams and events out.
//!
//! SWIM itself is foca's. Added here: members are fetched page by page at a join and compared now and then, an
//! unanswered ping goes out again over another address, verdicts wait for the grace period, and of two processes with
//! one id the older is told to stop. Time is monotonic and local; no two nodes need to agree on it.

mod exchange;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use foca::{Error, Foca, Member, NoCustomBroadcast, OwnedNotification, Timer};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use stoker_format::NodeId;

use super::codec::{Codec, CodecError, PING, peek_sender};
use super::event::{Event, Peer};
use super::identity::Identity;
use super::message::{Members, Message, swim};
use super::peers::{Condition, Peers};
use super::seal::Dropped;
use super::settings::Settings;
use super::tasks::{Task, Tasks};
use exchange::{News, Pull};

/// Longer than this behind its own schedule, the process stood still and could not hear anybody.
const LATE: Duration = Duration::from_secs(1);
/// An older boot may still have datagrams under way for this long.
const DUPLICATE_AFTER: Duration = Duration::from_secs(2);

/// What a step of the core wants done.
#[derive(Debug, Default)]
pub struct Effects {
    /// Bodies to seal and send.
    pub datagrams: Vec<(SocketAddr, Vec<u8>)>,
    /// To tell the caller.
    pub events: Vec<Event>,
}

/// The membership of one node.
pub struct Core {
    foca: Foca<Identity, Codec, SmallRng, NoCustomBroadcast>,
    settings: Settings,
    seeds: Vec<SocketAddr>,
    rng: SmallRng,
    peers: Peers,
    tasks: Tasks,
    pull: Option<Pull>,
    pulls: u64,
    /// The last ping, in case that it has to be repeated.
    ping: Option<Ping>,
    /// The older boots that were reported, of nodes that are known.
    duplicates: BTreeMap<NodeId, u64>,
    collected: Collected,
    hops: u32,
    silent: bool,
    started: Duration,
    seen: Duration,
    stood_still: Duration,
}

struct Ping {
    node: NodeId,
    body: Vec<u8>,
    sent: Duration,
}

impl Core {
    /// A node that looks for others at the seeds. The random number makes nodes that start together differ.
    pub fn new(me: Identity, settings: Settings, seeds: Vec<SocketAddr>, random: u64, now: Duration) -> Core {
        let mut rng = SmallRng::seed_from_u64(random);
        let codec = Codec { node: me.node, boot: me.boot };
        let foca = Foca::new(me, settings.swim(1), rng.fork(), codec);
        let mut tasks = Tasks::default();
        tasks.add(now, Task::Seek);
        tasks.add(now + settings.compare_period.mul_f64(rng.random()), Task::Compare);
        Core {
            foca,
            settings,
            seeds,
            rng,
            peers: Peers::default(),
            tasks,
            pull: None,
            pulls: 0,
            ping: None,
            duplicates: BTreeMap::new(),
            collected: Collected::default(),
            hops: 0,
            silent: false,
            started: now,
            seen: now,
            stood_still: Duration::ZERO,
        }
    }

    /// Takes nodes that the caller knows, from the catalog: a large cluster is there at once, and one that hangs before its first
    /// ping is missed like any other. Of a node that was heard of already the caller knows nothing new.
    pub fn introduce(&mut self, known: Vec<Identity>, now: Duration, out: &mut Effects) {
        let unheard = known.into_iter().filter(|identity| self.peers.get(identity.node).is_none());
        let members = unheard.map(Member::alive).collect();
        self.learn(members, News::Old, now, out);
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_due(&self) -> Option<Duration> {
        if self.silent { None } else { self.tasks.next_due() }
    }

    /// The nodes that are up, this one not counted.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.peers
            .values()
            .filter(|record| record.condition == Condition::Up)
            .map(|r| Peer::from(&r.identity))
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration, out: &mut Effects) {
        self.notice_standstill(now);
        while !self.silent
            && let Some(task) = self.tasks.take_due(now)
        {
            self.run(task, now, out);
        }
    }

    /// Takes the body of a datagram that was rightly sealed.
    pub fn handle(
        &mut self,
        from: SocketAddr,
        body: &[u8],
        now: Duration,
        out: &mut Effects,
    ) -> Result<(), Dropped> {
        self.notice_standstill(now);
        if self.silent {
            return Ok(());
        }
        let malformed = |_: CodecError| Dropped::Malformed;
        match Message::decode(body).map_err(malformed)? {
            Message::Swim(bytes) => {
                let (node, boot) = peek_sender(bytes).map_err(malformed)?;
                if self.is_outdated(node, boot, from, now, out) || self.has_no_room(node) {
                    return Ok(());
                }
                self.heard(node, from, now);
                self.swim(from, now, out, |foca, collected| foca.handle_data(bytes, collected))
            }
            Message::Ask(ask) => {
                self.answer(ask, from, now, out);
                Ok(())
            }
            Message::Members(page) => {
                let news = if self.pull.is_some() { News::Old } else { News::Fresh };
                self.learn_from(page.members, news, from, now, out);
                self.turn_page(page.next, from, now, out);
                Ok(())
            }
        }
    }

    /// Tells everybody that this node leaves, and says nothing more.
    pub fn leave(&mut self, out: &mut Effects) {
        let goodbye = Members::encode(&[Member::down(self.foca.identity().farewell())]);
        for record in self.peers.values().filter(|record| record.condition == Condition::Up) {
            for address in &record.identity.profile.addresses {
                out.datagrams.push((*address, goodbye.clone()));
            }
        }
        self.silent = true;
    }

    fn run(&mut self, task: Task, now: Duration, out: &mut Effects) {
        match task {
            Task::Swim(timer) => self.run_swim(timer, now, out),
            Task::Seek => {
                self.seek(now, out);
                self.tasks.add(now + self.settings.seek_period, Task::Seek);
            }
            Task::Compare => {
                if let Some(address) = self.random_up() {
                    self.begin_pull(address, now, out);
                }
                self.tasks.add(now + self.settings.compare_period, Task::Compare);
            }
            Task::Overdue(number) => self.repeat_page(number, now, out),
            Task::Verdict { node, since, stood_still } => {
                self.give_verdict(node, since, stood_still, now, out);
            }
        }
    }

    fn run_swim(&mut self, timer: Timer<Identity>, now: Duration, out: &mut Effects) {
        match &timer {
            Timer::SendIndirectProbe { probed_id, .. } => self.repeat_ping(probed_id.node, out),
            Timer::RemoveDown(identity) => {
                self.peers.forget(identity);
                self.duplicates.remove(&identity.node);
            }
            _ => {}
        }
        let here = SocketAddr::from(([0, 0, 0, 0], 0));
        // Timers that outlived their reason are refused; foca has already gone on without them.
        let _refused = self.swim(here, now, out, |foca, collected| foca.handle_timer(timer, collected));
    }

    /// Lets foca do something, and does what it asks for.
    fn swim(
        &mut self,
        from: SocketAddr,
        now: Duration,
        out: &mut Effects,
        step: impl FnOnce(&mut Foca<Identity, Codec, SmallRng, NoCustomBroadcast>, &mut Collected) -> Outcome,
    ) -> Result<(), Dropped> {
        let outcome = step(&mut self.foca, &mut self.collected);
        let Collected { mut sends, mut timers, mut notices } = std::mem::take(&mut self.collected);
        for notice in notices.drain(..) {
            self.note(notice, now, out);
        }
        for (node, bytes) in sends.drain(..) {
            self.send_swim(node, &bytes, now, out);
        }
        for (after, timer) in timers.drain(..) {
            self.tasks.add(now + after, Task::Swim(timer));
        }
        self.collected = Collected { sends, timers, notices };
        self.fit_settings();
        match outcome {
            Ok(()) => Ok(()),
            Err(Error::Decode(cause)) => match cause.downcast_ref() {
                Some(CodecError::Superseded(newer)) => {
                    self.stop_for(newer.boot, from, out);
                    Ok(())
                }
                _ => Err(Dropped::Malformed),
            },
            Err(Error::MalformedPacket | Error::DataTooBig | Error::CustomBroadcast(_)) => {
                Err(Dropped::Malformed)
            }
            Err(_) => Ok(()),
        }
    }

    fn send_swim(&mut self, node: NodeId, bytes: &[u8], now: Duration, out: &mut Effects) {
        let Some(record) = self.peers.get(node) else { return };
        let Some(address) = record.paths.address(&record.identity.profile.addresses) else { return };
        let body = swim(bytes);
        if bytes.first() == Some(&PING) {
            self.ping = Some(Ping { node, body: body.clone(), sent: now });
        }
        out.datagrams.push((address, body));
    }

    /// Pings once more, over the next address: a lost datagram or cable should make nobody suspect.
    fn repeat_ping(&mut self, node: NodeId, out: &mut Effects) {
        let Some(ping) = self.ping.take_if(|ping| ping.node == node) else { return };
        let Some(record) = self.peers.get_mut(node) else { return };
        if record.paths.heard_since(ping.sent) {
            return;
        }
        let addresses = &record.identity.profile.addresses;
        record.paths.turn(addresses);
        if let Some(address) = record.paths.address(addresses) {
            out.datagrams.push((address, ping.body));
        }
    }

    /// Takes what foca noticed.
    fn note(&mut self, notice: OwnedNotification<Identity>, now: Duration, out: &mut Effects) {
        match notice {
            OwnedNotification::MemberUp(identity) => {
                self.peers.set(&identity, Condition::Up, now);
                self.tell_up(&identity, out);
            }
            OwnedNotification::MemberDown(identity) => self.note_down(&identity, now, out),
            OwnedNotification::Rename(_, identity) => {
                let Some(condition) = self.peers.get(identity.node).map(|record| record.condition) else {
                    return;
                };
                self.peers.set(&identity, condition, now);
                match condition {
                    Condition::Up if !identity.is_farewell() => self.tell_restart(&identity, out),
                    Condition::Suspect(_) | Condition::Gone if identity.is_farewell() => {
                        self.note_down(&identity, now, out);
                    }
                    _ => {}
                }
            }
            OwnedNotification::Active
            | OwnedNotification::Idle
            | OwnedNotification::Defunct
            | OwnedNotification::Rejoin(_) => {}
        }
    }

    fn note_down(&mut self, identity: &Identity, now: Duration, out: &mut Effects) {
        if identity.is_farewell() {
            self.peers.set(identity, Condition::Left, now);
            out.events.push(Event::Left(identity.node));
            return;
        }
        self.peers.set(identity, Condition::Suspect(now), now);
        out.events.push(Event::Suspect(identity.node));
        self.plan_verdict(identity.node, now, now + self.settings.grace);
    }

    fn tell_up(&mut self, identity: &Identity, out: &mut Effects) {
        let Some(record) = self.peers.get_mut(identity.node) else { return };
        if record.told_boot.replace(identity.boot) == Some(identity.boot) {
            out.events.push(Event::Alive(identity.node));
        } else {
            out.events.push(Event::Joined(identity.into()));
        }
    }

    fn tell_restart(&mut self, identity: &Identity, out: &mut Effects) {
        let Some(record) = self.peers.get_mut(identity.node) else { return };
        if record.told_boot.replace(identity.boot) != Some(identity.boot) {
            out.events.push(Event::Joined(identity.into()));
        }
    }

    fn plan_verdict(&mut self, node: NodeId, since: Duration, due: Duration) {
        self.tasks.add(due, Task::Verdict { node, since, stood_still: self.stood_still });
    }

    fn give_verdict(
        &mut self,
        node: NodeId,
        since: Duration,
        stood_still: Duration,
        now: Duration,
        out: &mut Effects,
    ) {
        let Some(record) = self.peers.get_mut(node) else { return };
        if record.condition != Condition::Suspect(since) {
            return;
        }
        if self.stood_still > stood_still {
            self.plan_verdict(node, since, now + (self.stood_still - stood_still));
            return;
        }
        record.condition = Condition::Gone;
        out.events.push(Event::Gone(node));
    }

    /// Time in which this process did not run is no time in which others were silent.
    fn notice_standstill(&mut self, now: Duration) {
        let expected = self.tasks.next_due().unwrap_or(now).max(self.seen);
        if now > expected + LATE {
            self.stood_still += now - expected;
        }
        self.seen = self.seen.max(now);
    }

    /// More nodes need more hops, and so more time and repeats.
    fn fit_settings(&mut self) {
        let nodes = self.peers.up() + 1;
        let hops = (nodes as u32 + 1).ilog10();
        if hops != self.hops {
            self.hops = hops;
            self.foca.set_config(self.settings.swim(nodes)).expect("only what may change has changed");
        }
    }

    fn heard(&mut self, node: NodeId, from: SocketAddr, now: Duration) {
        if let Some(record) = self.peers.get_mut(node) {
            record.paths.heard(from, &record.identity.profile.addresses, now);
        }
    }

    fn has_no_room(&self, node: NodeId) -> bool {
        self.peers.is_full() && self.peers.get(node).is_none()
    }

    /// Tells a process whose node has a newer boot to stop, and the caller that there are two.
    fn is_outdated(
        &mut self,
        node: NodeId,
        boot: u64,
        from: SocketAddr,
        now: Duration,
        out: &mut Effects,
    ) -> bool {
        let me = self.foca.identity();
        let (newer, since) = if node == me.node {
            (Member::alive(me.clone()), self.started)
        } else {
            let Some(record) = self.peers.get(node) else { return false };
            (Member::alive(record.identity.clone()), record.boot_since)
        };
        if boot >= newer.id().boot {
            return false;
        }
        out.datagrams.push((from, Members::encode(std::slice::from_ref(&newer))));
        if now >= since + DUPLICATE_AFTER && self.duplicates.insert(node, boot) != Some(boot) {
            out.events.push(Event::Duplicate { node, older: boot, newer: newer.id().boot, address: from });
        }
        true
    }

    /// A newer boot of this node is live: this one stops.
    fn stop_for(&mut self, newer: u64, from: SocketAddr, out: &mut Effects) {
        let me = self.foca.identity();
        out.events.push(Event::Duplicate { node: me.node, older: me.boot, newer, address: from });
        self.silent = true;
    }
}

type Outcome = Result<(), Error>;

/// What foca asks for during one step.
#[derive(Default)]
struct Collected {
    sends: Vec<(NodeId, Vec<u8>)>,
    timers: Vec<(Duration, Timer<Identity>)>,
    notices: Vec<OwnedNotification<Identity>>,
}

impl foca::Runtime<Identity> for &mut Collected {
    fn notify(&mut self, notification: foca::Notification<'_, Identity>) {
        self.notices.push(notification.to_owned());
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        self.sends.push((to.node, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        self.timers.push((after, event));
    }
}
