//! Places for connections: so many, shared by those who come. (D88)
//!
//! One source alone may have all of them. When all are taken, whoever comes gets the place of another connection, which is shed:
//! 1. one that has proved nothing yet, of the largest source that has more places than the newcomer's, the oldest first; that may be
//!    the newcomer's own, if it has more than a few of those;
//! 2. a proved one of the largest source that has at least two places more than the newcomer's, an idle one first;
//! 3. one of the newcomer's own source that has proved nothing.
//!
//! Otherwise the newcomer is refused. So neither those who open connections and say nothing nor a single source with credentials can
//! shut the others out, and nobody who works is disturbed by strangers of its own address. Here is who goes; how a connection ends is
//! up to those who serve it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Connections of one source that have proved nothing and may still take the place of a proved one: a client opens some at once.
const STRANGERS_FEW: usize = 32;
/// The same as a part of all places.
const STRANGERS_SHARE: usize = 32;

/// The places.
pub struct Places {
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Numbers of connections, in the order in which they came.
    next: u64,
    taken: usize,
    sources: HashMap<IpAddr, Source>,
}

#[derive(Default)]
struct Source {
    /// Those that have proved nothing.
    strangers: BTreeMap<u64, Arc<Signal>>,
    proved: BTreeMap<u64, Arc<Signal>>,
}

impl Source {
    fn count(&self) -> usize {
        self.strangers.len() + self.proved.len()
    }
}

/// What a connection and the table of places share.
#[derive(Default)]
struct Signal {
    busy: AtomicBool,
    shed: Mutex<(bool, Option<Waker>)>,
}

impl Signal {
    fn raise(&self) {
        let waker = {
            let mut shed = self.shed.lock().unwrap_or_else(PoisonError::into_inner);
            shed.0 = true;
            shed.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A connection's place; it is free again when this is dropped.
pub struct Place {
    places: Arc<Places>,
    source: IpAddr,
    number: u64,
    proved: AtomicBool,
    signal: Arc<Signal>,
}

/// Addresses that one machine can have as many of as it likes count as one.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

impl Places {
    /// So many, all free.
    pub fn new(max: usize) -> Arc<Places> {
        Arc::new(Places { max: max.max(1), state: Mutex::default() })
    }

    /// A place for a connection of that address, perhaps that of another one; none if nobody has to make room for it.
    pub fn take(self: &Arc<Places>, address: IpAddr) -> Option<Place> {
        let source = source_of(address);
        let mut state = self.lock();
        let mut shed = None;
        if state.taken >= self.max {
            shed = Some(state.shed_for(source, (self.max / STRANGERS_SHARE).clamp(1, STRANGERS_FEW))?);
        } else {
            state.taken += 1;
        }
        state.next += 1;
        let (number, signal) = (state.next, Arc::<Signal>::default());
        state.sources.entry(source).or_default().strangers.insert(number, Arc::clone(&signal));
        drop(state);
        if let Some(shed) = shed {
            shed.raise();
        }
        Some(Place { places: Arc::clone(self), source, number, proved: AtomicBool::new(false), signal })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the place of one that has to go for a newcomer of this source.
    fn shed_for(&mut self, newcomer: IpAddr, strangers_few: usize) -> Option<Arc<Signal>> {
        let own = self.sources.get(&newcomer);
        let (own_count, own_strangers) = own.map_or((0, 0), |own| (own.count(), own.strangers.len()));
        let gives = |address: IpAddr, source: &Source| match address == newcomer {
            true => own_strangers > strangers_few,
            false => source.count() > own_count,
        };
        let oldest = |source: &Source| source.strangers.first_key_value().map(|(number, _)| *number);
        let strangers = self.sources.iter().filter(|&(address, source)| gives(*address, source));
        let stranger = strangers
            .filter_map(|(address, source)| Some((source.count(), Reverse(oldest(source)?), *address)))
            .max();
        if let Some((_, Reverse(number), address)) = stranger {
            return self.remove(address, number);
        }
        let larger = self.sources.iter().filter(|(_, source)| source.count() > own_count + 1);
        let order = |(number, signal): (&u64, &Arc<Signal>)| (signal.busy.load(Ordering::Relaxed), *number);
        let proved = larger
            .filter_map(|(address, source)| {
                Some((source.count(), *address, source.proved.iter().map(order).min()?.1))
            })
            .max();
        if let Some((_, address, number)) = proved {
            return self.remove(address, number);
        }
        let number = self.sources.get(&newcomer).and_then(oldest)?;
        self.remove(newcomer, number)
    }

    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Arc<Signal>> {
        let source = self.sources.get_mut(&address)?;
        let found = source.strangers.remove(&number).or_else(|| source.proved.remove(&number));
        if source.count() == 0 {
            self.sources.remove(&address);
        }
        found
    }
}

impl Place {
    /// Its client has shown who it is.
    pub fn prove(&self) {
        if self.proved.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.places.lock();
        if let Some(source) = state.sources.get_mut(&self.source)
            && let Some(signal) = source.strangers.remove(&self.number)
        {
            source.proved.insert(self.number, signal);
        }
    }

    /// Something is being done for it, or not any more.
    pub fn set_busy(&self, is_busy: bool) {
        self.signal.busy.store(is_busy, Ordering::Relaxed);
    }

    /// Waits until the place is another one's; the connection has to end then.
    pub async fn shed(&self) {
        std::future::poll_fn(|cx| {
            let mut shed = self.signal.shed.lock().unwrap_or_else(PoisonError::into_inner);
            if shed.0 {
                return Poll::Ready(());
            }
            shed.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        if state.remove(self.source, self.number).is_some() {
            state.taken -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_shed(place: &Place) -> bool {
        place.signal.shed.lock().unwrap().0
    }

    fn take(places: &Arc<Places>, from: u8, count: usize) -> Vec<Place> {
        (0..count).map(|_| places.take(address(from)).unwrap()).collect()
    }

    #[test]
    fn one_source_has_all_until_another_comes() {
        let places = Places::new(4);
        let held = take(&places, 1, 4);
        held.iter().for_each(Place::prove);
        assert!(places.take(address(1)).is_none(), "those who work are not disturbed by their own");
        held[0].set_busy(true);
        let other = places.take(address(2)).unwrap();
        assert_eq!(
            held.iter().map(is_shed).collect::<Vec<_>>(),
            [false, true, false, false],
            "an idle one goes"
        );
        let second = places.take(address(2)).unwrap();
        assert_eq!(held.iter().filter(|place| is_shed(place)).count(), 2, "a few may come at once");
        let third = places.take(address(2)).unwrap();
        assert_eq!(held.iter().filter(|place| is_shed(place)).count(), 2, "and then have to prove something");
        assert!(is_shed(&other) && !is_shed(&second) && !is_shed(&third));
        assert_eq!(places.taken(), 4);
        drop(held);
        assert_eq!(places.taken(), 2);
    }

    #[test]
    fn strangers_make_room_the_oldest_of_the_largest_source_first() {
        let places = Places::new(5);
        let (few, many) = (take(&places, 1, 2), take(&places, 2, 3));
        many[0].prove();
        let _newcomer = places.take(address(3)).unwrap();
        assert!(is_shed(&many[1]) && !is_shed(&many[0]) && !is_shed(&many[2]));
        assert!(!few.iter().any(is_shed));
        // The largest source makes room for itself, and not at the cost of the others.
        let more = take(&places, 2, 3);
        assert!(is_shed(&many[2]) && !few.iter().any(is_shed));
        assert!(is_shed(&more[0]) && is_shed(&more[1]) && !is_shed(&more[2]));
    }

    #[test]
    fn shares_become_equal_and_stay() {
        let places = Places::new(4);
        let held = take(&places, 1, 4);
        held.iter().for_each(Place::prove);
        let others: Vec<Option<Place>> = (0..4)
            .map(|_| {
                let place = places.take(address(2));
                place.iter().for_each(Place::prove);
                place
            })
            .collect();
        assert_eq!(others.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(held.iter().filter(|place| is_shed(place)).count(), 2);
    }

    #[test]
    fn a_network_of_one_machine_is_one_source() {
        let places = Places::new(2);
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let same: IpAddr = "2001:db8::2".parse().unwrap();
        let held = [places.take(one).unwrap(), places.take(same).unwrap()];
        held.iter().for_each(Place::prove);
        assert!(places.take("2001:db8::3".parse().unwrap()).is_none());
        assert!(places.take("2001:db8:0:1::1".parse().unwrap()).is_some());
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(source_of(mapped), address(1));
    }

    #[test]
    fn whatever_comes_and_goes_the_number_holds() {
        let places = Places::new(8);
        let mut state = 7_u64;
        let mut held: Vec<Place> = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = (state >> 33) as usize;
            match dice % 4 {
                0 if !held.is_empty() => drop(held.swap_remove(dice / 8 % held.len())),
                1 if !held.is_empty() => held[dice / 8 % held.len()].prove(),
                2 if !held.is_empty() => held[dice / 8 % held.len()].set_busy(dice & 64 == 0),
                _ => held.extend(places.take(address((dice / 8 % 5) as u8))),
            }
            let alive = held.iter().filter(|place| !is_shed(place)).count();
            assert_eq!(places.taken(), alive);
            assert!(alive <= 8);
            held.retain(|place| !is_shed(place) || !dice.is_multiple_of(3));
        }
        held.clear();
        assert!(places.taken() == 0 && places.lock().sources.is_empty());
    }
}
