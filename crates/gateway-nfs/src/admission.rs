//! Who may be connected, and how much of the gateway one place may take.
//!
//! A connection that never sent a whole request proves nothing: it has a few seconds, and goes first when somebody else needs
//! its place. All connections of one place together have a share of the places and of the memory, so that whatever a client
//! does, others go on.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::record::RECORD_LEN_MAX;

/// One place may have a quarter of all connections, and half of the memory.
const CONNECTIONS_SHARE: usize = 4;
const BYTES_SHARE: usize = 2;

/// Bits of an IPv6 address that a network hands out; the rest is for its hosts to choose.
const NETWORK_BITS: u32 = 64;

/// Where connections come from: an address, or a network whose hosts choose their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SourceAddress(IpAddr);

impl SourceAddress {
    fn of(address: IpAddr) -> SourceAddress {
        SourceAddress(match address.to_canonical() {
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS).into()
            }
            address => address,
        })
    }
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
    source: SourceAddress,
    has_asked: bool,
    end: Arc<Notify>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By age.
    connected: BTreeMap<u64, Connected>,
    /// Sources that have a connection, with how many.
    sources: HashMap<SourceAddress, (usize, [ByteLimit; 2])>,
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

impl Admission {
    pub fn new(connections_max: usize, bytes_in_max: usize, bytes_out_max: usize) -> Arc<Admission> {
        let bytes_max = [bytes_in_max, bytes_out_max];
        let rooms = bytes_max.map(ByteLimit::of_all);
        Arc::new(Admission { connections_max, bytes_max, rooms, state: Mutex::default() })
    }

    /// Lets a connection in, in place of one that asked nothing if there is no other; none if there is none of those either.
    pub fn admit(self: &Arc<Admission>, address: IpAddr) -> Option<NfsClient> {
        let source = SourceAddress::of(address);
        let share = self.connections_max.div_ceil(CONNECTIONS_SHARE);
        let mut state = self.state.lock().unwrap();
        if state.sources.get(&source).is_some_and(|(count, _)| *count >= share) {
            state.end_idle(Some(source))?;
        }
        if state.connected.len() >= self.connections_max {
            state.end_idle(None)?;
        }
        let (count, limits) = state.sources.entry(source).or_insert_with(|| {
            let limit = |at: usize| ByteLimit::new(&self.rooms[at], self.bytes_max[at]);
            (0, [limit(0), limit(1)])
        });
        *count += 1;
        let [input, output] = limits.clone();
        let (id, end) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.connected.insert(id, Connected { source, has_asked: false, end: end.clone() });
        Some(NfsClient { address, input, output, id, end, admission: self.clone() })
    }
}

impl State {
    /// Ends the oldest connection that asked nothing, of a source or of all.
    fn end_idle(&mut self, source: Option<SourceAddress>) -> Option<()> {
        let is_it =
            |known: &Connected| !known.has_asked && source.is_none_or(|source| source == known.source);
        let id = *self.connected.iter().find(|(_, known)| is_it(known))?.0;
        let ended = self.remove(id)?;
        ended.end.notify_one();
        Some(())
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
    /// It sent a request that can be understood.
    pub fn has_asked(&self) {
        if let Some(known) = self.admission.state.lock().unwrap().connected.get_mut(&self.id) {
            known.has_asked = true;
        }
    }

    /// Returns when somebody else needs its place.
    pub async fn ended(&self) {
        self.end.notified().await;
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

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_place_has_a_share_and_who_asks_stays() {
        let admission = Admission::new(8, 0, 0);
        let idle: Vec<_> = (0..2).map(|_| admission.admit(at("10.0.0.1")).unwrap()).collect();
        assert!(idle[0].ended().now_or_never().is_none());
        // The third of a place takes that of the first, which never asked anything.
        let third = admission.admit(at("10.0.0.1")).unwrap();
        assert!(idle[0].ended().now_or_never().is_some() && idle[1].ended().now_or_never().is_none());
        idle[1].has_asked();
        third.has_asked();
        assert!(admission.admit(at("10.0.0.1")).is_none(), "two is a quarter of eight");
        drop(idle);
        assert!(admission.admit(at("10.0.0.1")).is_some());
        drop(third);
        let state = admission.state.lock().unwrap();
        assert!(state.connected.is_empty() && state.sources.is_empty());
    }

    #[test]
    fn all_places_together_are_bounded() {
        let admission = Admission::new(4, 0, 0);
        let clients: Vec<_> =
            (1..=4).map(|host| admission.admit(at(&format!("10.0.0.{host}"))).unwrap()).collect();
        clients.iter().skip(1).for_each(NfsClient::has_asked);
        let late = admission.admit(at("10.0.0.9")).unwrap();
        assert!(clients[0].ended().now_or_never().is_some());
        late.has_asked();
        assert!(admission.admit(at("10.0.0.10")).is_none());
    }

    #[test]
    fn hosts_of_one_network_are_one_place() {
        assert_eq!(SourceAddress::of(at("fd00::1")), SourceAddress::of(at("fd00::2")));
        assert_ne!(SourceAddress::of(at("fd00::1")), SourceAddress::of(at("fd00:0:0:1::1")));
        assert_eq!(SourceAddress::of(at("::ffff:10.0.0.1")), SourceAddress::of(at("10.0.0.1")));
        assert_ne!(SourceAddress::of(at("10.0.0.1")), SourceAddress::of(at("10.0.0.2")));
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
