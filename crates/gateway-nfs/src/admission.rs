//! Who may be connected, and how much of the gateway one place may take. (D106)
//!
//! A connection that has not named anything that it may use proves nothing: it has a few seconds for its first request, and goes
//! first when somebody else needs its place. All connections of one source together have a share of the places and of the memory.
//! When there is no place left, the source with most gives one up, and of its connections the one that has asked for nothing for
//! longest: NFS clients connect again when they need to, and send again what was not answered. So whatever a client does, others go on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::record::RECORD_LEN_MAX;

/// One source may have a quarter of all connections, and half of the memory.
const CONNECTIONS_SHARE: usize = 4;
const BYTES_SHARE: usize = 2;

/// Connections of one source that have proved nothing and may still take the place of one that has, as a part of all places: a
/// client opens some at once.
const STRANGERS_SHARE: usize = 32;

/// Bits of an IPv6 address that a network hands out; the rest is for its hosts to choose.
const NETWORK_BITS: u32 = 64;

/// Ports below this are for root alone, and kernels mount from them. What other users of a machine do is not counted as theirs.
const RESERVED_PORTS: u16 = 1024;

/// Where connections come from: an address, a network whose hosts choose their own, or this machine, which has very many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Source {
    address: IpAddr,
    is_root: bool,
}

impl Source {
    fn of(peer: SocketAddr, is_own: impl FnOnce(IpAddr) -> bool) -> Source {
        let address = match peer.ip().to_canonical() {
            address if address.is_loopback() || is_own(address) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS).into()
            }
            address => address,
        };
        Source { address, is_root: peer.port() < RESERVED_PORTS }
    }
}

/// Whether an address is one of this machine. Addresses come and go; only the kernel knows them all.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Bytes that may be in memory: of one source, and of all.
#[derive(Clone, Debug)]
pub struct ByteLimit {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Bytes that are in memory.
#[derive(Debug)]
pub struct Room {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl ByteLimit {
    fn of_all(bytes: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(bytes.max(2 * RECORD_LEN_MAX)))
    }

    fn new(all: &Arc<Semaphore>, bytes: usize) -> ByteLimit {
        let own = (bytes / BYTES_SHARE).max(RECORD_LEN_MAX);
        ByteLimit { own: Arc::new(Semaphore::new(own)), all: all.clone() }
    }

    /// Waits for room. The own share comes first: who has used it up waits alone. None when everything ends.
    pub async fn acquire(&self, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes).ok()?;
        let own = self.own.clone().acquire_many_owned(bytes).await.ok()?;
        let all = self.all.clone().acquire_many_owned(bytes).await.ok()?;
        Some(Room { _own: own, _all: all })
    }

    #[cfg(test)]
    pub fn for_test() -> ByteLimit {
        ByteLimit::new(&ByteLimit::of_all(0), 2 * RECORD_LEN_MAX)
    }

    #[cfg(test)]
    pub fn taken(&self) -> usize {
        2 * RECORD_LEN_MAX - self.all.available_permits()
    }
}

struct Connected {
    source: Source,
    /// It has named something that it may use.
    is_proved: bool,
    /// Requests of it that are being worked on.
    working: usize,
    /// When it last asked for something: a number that grows. At first, when it came.
    asked_at: u64,
    end: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// Counts connections and requests.
    next: u64,
    connected: BTreeMap<u64, Connected>,
    /// Sources that have a connection, with how many.
    sources: HashMap<Source, (usize, [ByteLimit; 2])>,
}

/// All connections.
pub struct Admission {
    connections_max: usize,
    bytes_max: [usize; 2],
    rooms: [Arc<Semaphore>; 2],
    state: Mutex<State>,
}

/// A connection that was let in. Its place is free when this is dropped.
pub struct NfsClient {
    pub address: IpAddr,
    /// Room for requests and for answers.
    pub input: ByteLimit,
    pub output: ByteLimit,
    id: u64,
    end: Arc<Notify>,
    admission: Arc<Admission>,
}

/// A request of a connection while it is worked on.
pub struct Working<'c>(&'c NfsClient);

impl Admission {
    pub fn new(connections_max: usize, bytes_in_max: usize, bytes_out_max: usize) -> Arc<Admission> {
        let bytes_max = [bytes_in_max, bytes_out_max];
        let rooms = bytes_max.map(ByteLimit::of_all);
        Arc::new(Admission { connections_max, bytes_max, rooms, state: Mutex::default() })
    }

    /// Lets a connection in, if need be in place of another one; none if nobody has to make room for it.
    pub fn admit(self: &Arc<Admission>, peer: SocketAddr) -> Option<NfsClient> {
        let source = Source::of(peer, is_own);
        let share = self.connections_max.div_ceil(CONNECTIONS_SHARE);
        let mut state = self.state.lock().unwrap();
        if state.count(source) >= share {
            let id = state.find_own(source)?;
            state.shed(id);
        } else if state.connected.len() >= self.connections_max {
            let id = state.find_for(source, (self.connections_max / STRANGERS_SHARE).max(1))?;
            state.shed(id);
        }
        let (count, limits) = state.sources.entry(source).or_insert_with(|| {
            let limit = |at: usize| ByteLimit::new(&self.rooms[at], self.bytes_max[at]);
            (0, [limit(0), limit(1)])
        });
        *count += 1;
        let [input, output] = limits.clone();
        let (id, end) = (state.tick(), Arc::new(Notify::new()));
        let connected = Connected { source, is_proved: false, working: 0, asked_at: id, end: end.clone() };
        state.connected.insert(id, connected);
        let address = peer.ip().to_canonical();
        Some(NfsClient { address, input, output, id, end, admission: self.clone() })
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn count(&self, source: Source) -> usize {
        self.sources.get(&source).map_or(0, |(count, _)| *count)
    }

    /// A connection that gives up its place, of those that have proved something or of the others: of the largest source that
    /// gives one, the one that asked for nothing for longest. What is being worked on is not disturbed.
    fn oldest(&self, is_proved: bool, gives: impl Fn(Source, usize) -> bool) -> Option<u64> {
        let candidates = self.connected.iter().filter_map(|(id, known)| {
            let count = self.count(known.source);
            let is_idle = !is_proved || known.working == 0;
            let fits = known.is_proved == is_proved && is_idle && gives(known.source, count);
            fits.then_some((Reverse(count), known.asked_at, *id))
        });
        candidates.min().map(|(_, _, id)| id)
    }

    /// Who makes room for a newcomer of a source that has its share.
    fn find_own(&self, newcomer: Source) -> Option<u64> {
        let is_own = |source, _| source == newcomer;
        self.oldest(false, is_own).or_else(|| self.oldest(true, is_own))
    }

    /// Who makes room for a newcomer of this source when all places are taken.
    fn find_for(&self, newcomer: Source, strangers_few: usize) -> Option<u64> {
        let own = self.count(newcomer);
        let is_stranger = |known: &&Connected| known.source == newcomer && !known.is_proved;
        let is_crowd = self.connected.values().filter(is_stranger).count() > strangers_few;
        let gives = |source, count| if source == newcomer { is_crowd } else { count > own };
        self.oldest(false, gives)
            .or_else(|| self.oldest(true, |_, count| count > own + 1))
            .or_else(|| self.find_own(newcomer))
            // As many sources as there are places.
            .or_else(|| self.oldest(true, |_, _| own == 0))
    }

    /// Ends a connection.
    fn shed(&mut self, id: u64) {
        if let Some(ended) = self.remove(id) {
            ended.end.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Connected> {
        let gone = self.connected.remove(&id)?;
        if let Some((count, _)) = self.sources.get_mut(&gone.source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&gone.source);
            }
        }
        Some(gone)
    }
}

impl NfsClient {
    /// A request is worked on until this is dropped.
    pub fn begin(&self) -> Working<'_> {
        self.note(|known, _| known.working += 1);
        Working(self)
    }

    /// It named something that it may use. To ask whether anybody is there is no such thing.
    pub fn prove(&self) {
        self.note(|known, now| (known.is_proved, known.asked_at) = (true, now));
    }

    fn note(&self, change: impl FnOnce(&mut Connected, u64)) {
        let mut state = self.admission.state.lock().unwrap();
        let now = state.tick();
        if let Some(known) = state.connected.get_mut(&self.id) {
            change(known, now);
        }
    }

    /// Returns when somebody else needs its place.
    pub async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.note(|known, _| known.working -= 1);
    }
}

impl Drop for NfsClient {
    fn drop(&mut self) {
        self.admission.state.lock().unwrap().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A connection from a port that any user may have.
    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 40_000)
    }

    /// One from a port of root.
    fn root_at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 800)
    }

    fn is_ended(client: &NfsClient) -> bool {
        client.ended().now_or_never().is_some()
    }

    fn proved(admission: &Arc<Admission>, peer: SocketAddr) -> NfsClient {
        let client = admission.admit(peer).unwrap();
        client.prove();
        client
    }

    #[test]
    fn one_source_has_a_share_and_the_longest_idle_goes() {
        let admission = Admission::new(8, 0, 0);
        let idle: Vec<_> = (0..2).map(|_| admission.admit(at("10.0.0.1")).unwrap()).collect();
        // The third of a source takes the place of the first, which has proved nothing.
        let third = admission.admit(at("10.0.0.1")).unwrap();
        assert!(is_ended(&idle[0]) && !is_ended(&idle[1]));
        idle[1].prove();
        third.prove();
        idle[1].prove();
        let fourth = proved(&admission, at("10.0.0.1"));
        assert!(is_ended(&third) && !is_ended(&idle[1]), "two is a quarter of eight");
        let working = (idle[1].begin(), fourth.begin());
        assert!(admission.admit(at("10.0.0.1")).is_none(), "what is being worked on is not disturbed");
        drop(working);
        assert!(admission.admit(at("10.0.0.1")).is_some());
        assert!(is_ended(&idle[1]) && !is_ended(&fourth));
        drop((idle, third, fourth));
        let state = admission.state.lock().unwrap();
        assert!(state.connected.is_empty() && state.sources.is_empty());
    }

    #[test]
    fn all_addresses_of_this_machine_are_one_source() {
        let of = |peer: SocketAddr| Source::of(peer, |address| address == at("10.0.0.7").ip());
        for address in ["127.0.0.2", "127.9.9.9", "::1", "::ffff:127.0.0.3", "10.0.0.7", "::ffff:10.0.0.7"] {
            assert_eq!(of(at(address)), of(at("127.0.0.1")), "{address}");
        }
        assert_ne!(of(at("127.0.0.1")), of(root_at("127.0.0.1")));
        assert_ne!(of(at("10.0.0.8")), of(at("127.0.0.1")));
        assert!(is_own("127.0.0.2".parse().unwrap()) && !is_own("203.0.113.1".parse().unwrap()));
    }

    /// A user of this machine with all of its addresses, and calls that name nothing.
    #[test]
    fn a_local_user_does_not_keep_others_out() {
        let admission = Admission::new(1024, 0, 0);
        let hold = |host: u32| admission.admit(at(&format!("127.0.0.{}", 2 + host % 4)));
        let held: Vec<_> = (0..1024).filter_map(hold).collect();
        let has_proved = |client: &NfsClient| client.prove();
        let counts = || admission.state.lock().unwrap().connected.len();
        assert_eq!(counts(), 256);
        let mounted = proved(&admission, root_at("127.0.0.1"));
        let neighbour = proved(&admission, at("127.0.0.1"));
        let elsewhere = proved(&admission, at("10.0.0.9"));
        // Also if it asks for what it may see.
        held.iter().for_each(has_proved);
        let more: Vec<_> = (0..255).filter_map(hold).collect();
        more.iter().for_each(has_proved);
        assert!(admission.admit(at("127.0.0.1")).is_some(), "the next takes the place of one that is idle");
        assert!(![&mounted, &elsewhere].into_iter().any(is_ended) && counts() <= 258);
        drop(neighbour);
    }

    #[test]
    fn the_largest_source_makes_room() {
        let admission = Admission::new(16, 0, 0);
        let hosts = |host: u32| proved(&admission, at(&format!("10.0.0.{}", host % 4)));
        let held: Vec<_> = (0..16).map(hosts).collect();
        held[0].prove();
        let newcomer = proved(&admission, at("10.0.0.9"));
        let ended: Vec<_> = held.iter().map(is_ended).collect();
        assert_eq!(ended.iter().filter(|is_ended| **is_ended).count(), 1);
        assert!(!ended[0], "it asked last");
        // One that proves nothing does not push out more than a few.
        let strangers: Vec<_> = (0..3).map(|_| admission.admit(at("10.0.0.10")).unwrap()).collect();
        assert!(is_ended(&strangers[0]) && !is_ended(&newcomer));
        assert_eq!(held.iter().filter(|client| is_ended(client)).count(), 2);
    }

    #[test]
    fn all_sources_together_are_bounded() {
        let admission = Admission::new(4, 0, 0);
        let clients: Vec<_> =
            (1..=4).map(|host| admission.admit(at(&format!("10.0.0.{host}"))).unwrap()).collect();
        clients.iter().skip(1).for_each(NfsClient::prove);
        let late = proved(&admission, at("10.0.0.9"));
        assert!(is_ended(&clients[0]));
        // With as many sources as places, the longest idle of all.
        let latest = proved(&admission, at("10.0.0.10"));
        assert!(is_ended(&clients[1]) && ![&late, &latest, &clients[2]].into_iter().any(is_ended));
        let held = [&clients[2], &clients[3], &late, &latest].map(NfsClient::begin);
        assert!(admission.admit(at("10.0.0.11")).is_none());
        drop(held);
    }

    #[test]
    fn hosts_of_one_network_are_one_source() {
        let of = |address: &str| Source::of(at(address), |_| false);
        assert_eq!(of("fd00::1"), of("fd00::2"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[tokio::test]
    async fn who_used_its_memory_up_waits_alone() {
        let admission = Admission::new(8, 4 * RECORD_LEN_MAX, 0);
        let (greedy, modest) =
            (admission.admit(at("10.0.0.1")).unwrap(), admission.admit(at("10.0.0.2")).unwrap());
        let held = [greedy.input.acquire(RECORD_LEN_MAX).await, greedy.input.acquire(RECORD_LEN_MAX).await];
        assert!(greedy.input.acquire(1).now_or_never().is_none());
        assert!(modest.input.acquire(RECORD_LEN_MAX).now_or_never().flatten().is_some());
        drop(held);
        assert!(greedy.input.acquire(1).now_or_never().flatten().is_some());
    }
}
