//! Many cores on a simulated network: loss, delay, crashes, pauses, restarts and partitions, all from one seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use stoker_fabric::membership::{Core, Effects, Event, Identity, Profile, Settings};
use stoker_format::NodeId;

/// What the network does to datagrams.
#[derive(Clone, Copy)]
pub struct Weather {
    pub loss_per_mille: u64,
    pub delay_min: Duration,
    pub delay_max: Duration,
}

impl Weather {
    pub fn clear() -> Weather {
        Weather {
            loss_per_mille: 0,
            delay_min: Duration::from_micros(50),
            delay_max: Duration::from_micros(500),
        }
    }

    pub fn lossy() -> Weather {
        Weather { loss_per_mille: 50, ..Weather::clear() }
    }
}

pub struct Network {
    pub now: Duration,
    pub weather: Weather,
    pub hosts: Vec<Host>,
    pub sent: u64,
    queue: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    happenings: u64,
    rng: u64,
    settings: Settings,
    /// How many of the first hosts are the seeds of all.
    pub seeds: usize,
}

pub struct Host {
    core: Option<Core>,
    /// A paused process gets its datagrams later.
    pub paused: bool,
    held: Vec<(SocketAddr, Vec<u8>)>,
    /// Hosts of different sides do not reach each other.
    pub side: u8,
    /// Of its addresses, those that are cut off.
    pub cut: [bool; 2],
    pub boot: u64,
    wake_at: Option<Duration>,
    /// What its clock showed when the simulation began: clocks may be hours apart.
    clock: Duration,
    pub events: Vec<(Duration, Event)>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Datagram { from: SocketAddr, to: usize, body: Vec<u8> },
    Wake { host: usize },
}

pub fn node(host: usize) -> NodeId {
    let mut bytes = [0; 16];
    // Scattered over the space of ids, as real ones are.
    bytes[..8].copy_from_slice(&(host as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[8..].copy_from_slice(&(host as u64).to_be_bytes());
    NodeId(bytes)
}

fn address(host: usize, rail: usize) -> SocketAddr {
    let [_, a, b, c] = (host as u32).to_be_bytes();
    SocketAddr::from(([10 + rail as u8, a, b, c], 7000))
}

fn place(address: SocketAddr) -> (usize, usize) {
    match address {
        SocketAddr::V4(v4) => {
            let [rail, a, b, c] = v4.ip().octets();
            (u32::from_be_bytes([0, a, b, c]) as usize, usize::from(rail) - 10)
        }
        SocketAddr::V6(_) => panic!("no such address here"),
    }
}

pub fn identity(host: usize, boot: u64) -> Identity {
    let profile = Profile::new(vec![address(host, 0), address(host, 1)], vec![1; 16]);
    Identity::new(node(host), boot, profile.expect("within the limits"))
}

impl Network {
    pub fn new(hosts: usize, seed: u64, weather: Weather) -> Network {
        let mut network = Network {
            now: Duration::ZERO,
            weather,
            hosts: Vec::new(),
            sent: 0,
            queue: BinaryHeap::new(),
            happenings: 0,
            rng: seed,
            settings: Settings::default(),
            seeds: hosts.min(3),
        };
        for _ in 0..hosts {
            let clock = Duration::from_millis(network.below(36_000_000));
            network.hosts.push(Host {
                core: None,
                paused: false,
                held: Vec::new(),
                side: 0,
                cut: [false; 2],
                boot: 0,
                wake_at: None,
                clock,
                events: Vec::new(),
            });
        }
        network
    }

    /// Starts a host, in a new boot. It finds the others by the seeds.
    pub fn start(&mut self, host: usize) {
        self.hosts[host].boot += 1;
        self.boot(host, host, &[]);
    }

    /// Starts all hosts within a probe period, so that they do not march in step. Each knows all others, as from the
    /// catalog.
    pub fn start_all(&mut self) {
        let hosts = self.hosts.len();
        let known: Vec<Identity> = (0..hosts).map(|host| identity(host, 1)).collect();
        for host in 0..hosts {
            self.run_until(self.settings.probe_period * host as u32 / hosts as u32);
            self.hosts[host].boot = 1;
            self.boot(host, host, &known);
            self.hosts[host].events = Vec::new();
        }
    }

    /// Starts a process on `host` that takes itself for `name`.
    pub fn boot(&mut self, host: usize, name: usize, known: &[Identity]) {
        let boot = self.hosts[host].boot;
        let me = if host == name {
            identity(host, boot)
        } else {
            let profile = Profile::new(vec![address(host, 0)], Vec::new());
            Identity::new(node(name), boot, profile.expect("within the limits"))
        };
        let seeds = (0..self.seeds).map(|seed| address(seed, 0)).collect();
        let clock = self.hosts[host].clock + self.now;
        let mut core = Core::new(me, self.settings.clone(), seeds, self.number(), clock);
        let mut effects = Effects::default();
        let others = known.iter().filter(|other| **other != identity(host, boot)).cloned();
        core.introduce(others.collect(), clock, &mut effects);
        self.hosts[host].core = Some(core);
        self.settle(host, effects);
    }

    /// Tells a host that runs of others, as from the catalog.
    pub fn introduce(&mut self, host: usize, known: &[Identity]) {
        let clock = self.hosts[host].clock + self.now;
        let mut effects = Effects::default();
        let core = self.hosts[host].core.as_mut().expect("it runs");
        core.introduce(known.to_vec(), clock, &mut effects);
        self.settle(host, effects);
    }

    pub fn crash(&mut self, host: usize) {
        self.hosts[host].core = None;
        self.hosts[host].held.clear();
    }

    pub fn leave(&mut self, host: usize) {
        let mut effects = Effects::default();
        self.hosts[host].core.as_mut().expect("it runs").leave(&mut effects);
        self.settle(host, effects);
        self.hosts[host].core = None;
    }

    pub fn resume(&mut self, host: usize) {
        self.hosts[host].paused = false;
        for (from, body) in std::mem::take(&mut self.hosts[host].held) {
            self.deliver(host, from, &body);
        }
        self.wake(host);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    pub fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, ..))) = self.queue.peek()
            && *at <= end
        {
            let Some(Reverse((at, _, happening))) = self.queue.pop() else { return };
            self.now = at;
            match happening {
                Happening::Datagram { from, to, body } if self.hosts[to].paused => {
                    self.hosts[to].held.push((from, body));
                    // A socket has room for so much.
                    self.hosts[to].held.truncate(1000);
                }
                Happening::Datagram { from, to, body } => self.deliver(to, from, &body),
                Happening::Wake { host } => self.wake(host),
            }
        }
        self.now = end;
    }

    /// Ids of the peers that a host holds for up.
    pub fn view(&self, host: usize) -> Vec<NodeId> {
        let core = self.hosts[host].core.as_ref();
        core.map(|core| core.peers().map(|peer| peer.node).collect()).unwrap_or_default()
    }

    /// When each running host first had such an event, since a moment.
    pub fn first(&self, since: Duration, wanted: impl Fn(&Event) -> bool) -> Vec<Duration> {
        let first = |host: &Host| {
            host.events.iter().find(|(at, event)| *at >= since && wanted(event)).map(|(at, _)| *at - since)
        };
        self.hosts.iter().filter(|host| host.core.is_some()).filter_map(first).collect()
    }

    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.hosts.iter().flat_map(|host| &host.events).filter(|(_, event)| wanted(event)).count()
    }

    fn deliver(&mut self, host: usize, from: SocketAddr, body: &[u8]) {
        let clock = self.hosts[host].clock + self.now;
        let Some(core) = &mut self.hosts[host].core else { return };
        let mut effects = Effects::default();
        core.handle(from, body, clock, &mut effects).expect("what a core sends, a core understands");
        self.settle(host, effects);
    }

    fn wake(&mut self, host: usize) {
        let now = self.now;
        let here = &mut self.hosts[host];
        here.wake_at = here.wake_at.filter(|at| *at > now);
        let clock = here.clock + now;
        let Some(core) = here.core.as_mut().filter(|_| !here.paused) else { return };
        let mut effects = Effects::default();
        if core.next_due().is_some_and(|due| due <= clock) {
            core.tick(clock, &mut effects);
        }
        self.settle(host, effects);
    }

    fn settle(&mut self, host: usize, effects: Effects) {
        for (to, body) in effects.datagrams {
            self.send(host, to, body);
        }
        let now = self.now;
        let here = &mut self.hosts[host];
        here.events.extend(effects.events.into_iter().map(|event| (now, event)));
        if let Some(due) = here.core.as_ref().and_then(Core::next_due) {
            let at = due.saturating_sub(here.clock).max(now);
            if here.wake_at.is_none_or(|planned| at < planned) {
                here.wake_at = Some(at);
                self.push(at, Happening::Wake { host });
            }
        }
    }

    fn send(&mut self, from: usize, to: SocketAddr, body: Vec<u8>) {
        self.sent += 1;
        let (target, rail) = place(to);
        let lost = self.number() % 1000 < self.weather.loss_per_mille;
        let spread = (self.weather.delay_max - self.weather.delay_min).as_micros() as u64;
        let delay = self.weather.delay_min + Duration::from_micros(self.below(spread + 1));
        let (here, there) = (&self.hosts[from], &self.hosts[target]);
        if lost || here.side != there.side || here.cut[rail] || there.cut[rail] {
            return;
        }
        let happening = Happening::Datagram { from: address(from, rail), to: target, body };
        self.push(self.now + delay, happening);
    }

    fn push(&mut self, at: Duration, happening: Happening) {
        self.happenings += 1;
        self.queue.push(Reverse((at, self.happenings, happening)));
    }

    fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    pub fn number(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.rng;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
