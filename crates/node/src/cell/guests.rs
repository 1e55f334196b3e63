//! Chunks here that another node wrote and has not published yet (R7). A version with a guest is left alone: it is neither
//! declared clean nor forgotten until its home says that the write is over, or the session of that home is.
//!
//! Messages overtake each other, and one whose connection broke is sent again: what a home asks for may come after the word that
//! it is over. So that word is remembered for a while, or nothing would ever end what came late.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use stoker_format::{NodeId, VersionId};

#[derive(PartialEq, Eq)]
struct Guest {
    home: NodeId,
    session: [u8; 16],
    /// Tells uses of one version by one home apart.
    hold: u64,
}

/// Ends of writes that are remembered. A message is not late by as many as that.
const ENDED_MAX: usize = 20_000;

/// A use of a version by a home; each has a number, and none is taken up again after its end.
type Use = (VersionId, NodeId, u64);

#[derive(Default)]
struct State {
    guests: HashMap<VersionId, Vec<Guest>>,
    ended: HashSet<Use>,
    /// The same, the oldest in front.
    order: VecDeque<Use>,
}

/// Versions that other nodes are about to publish.
#[derive(Default)]
pub(crate) struct Guests(Mutex<State>);

impl Guests {
    /// A home keeps a version here from now on; false if it said already that this use of it is over.
    pub fn hold(&self, version: VersionId, home: NodeId, session: [u8; 16], hold: u64) -> bool {
        let guest = Guest { home, session, hold };
        let mut state = self.0.lock().unwrap();
        if state.ended.contains(&(version, home, hold)) {
            return false;
        }
        let all = state.guests.entry(version).or_default();
        if !all.contains(&guest) {
            all.push(guest);
        }
        true
    }

    /// The home says that a write is over.
    pub fn done(&self, version: VersionId, home: NodeId, hold: u64) {
        let state = &mut *self.0.lock().unwrap();
        if state.ended.insert((version, home, hold)) {
            state.order.push_back((version, home, hold));
            if state.order.len() > ENDED_MAX {
                let oldest = state.order.pop_front();
                oldest.map(|oldest| state.ended.remove(&oldest));
            }
        }
        let Some(all) = state.guests.get_mut(&version) else { return };
        all.retain(|guest| guest.home != home || guest.hold != hold);
        if all.is_empty() {
            state.guests.remove(&version);
        }
    }

    pub fn has(&self, version: VersionId) -> bool {
        self.0.lock().unwrap().guests.contains_key(&version)
    }

    /// Ends the guests of sessions that are over; true if there were any.
    pub fn end_sessions(&self, is_over: impl Fn(NodeId, [u8; 16]) -> bool) -> bool {
        let guests = &mut self.0.lock().unwrap().guests;
        let before: usize = guests.values().map(Vec::len).sum();
        guests.retain(|_, all| {
            all.retain(|guest| !is_over(guest.home, guest.session));
            !all.is_empty()
        });
        before != guests.values().map(Vec::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stays_until_its_last_guest_is_gone() {
        let guests = Guests::default();
        let (version, a, b) = (VersionId([1; 12]), NodeId([1; 16]), NodeId([2; 16]));
        guests.hold(version, a, [1; 16], 0);
        guests.hold(version, a, [1; 16], 0);
        guests.hold(version, a, [1; 16], 7);
        guests.hold(version, b, [2; 16], 0);
        guests.done(version, b, 0);
        guests.done(version, a, 0);
        assert!(guests.has(version));
        guests.done(version, a, 7);
        assert!(!guests.has(version));
        guests.done(version, a, 7);
        guests.hold(version, a, [1; 16], 8);
        assert!(!guests.end_sessions(|home, session| home == a && session != [1; 16]));
        assert!(guests.end_sessions(|home, _| home == a));
        assert!(!guests.has(version));
    }

    #[test]
    fn what_comes_after_the_word_that_it_is_over_keeps_nothing() {
        let guests = Guests::default();
        let (version, home) = (VersionId([1; 12]), NodeId([1; 16]));
        guests.done(version, home, 7);
        assert!(!guests.hold(version, home, [1; 16], 7));
        assert!(!guests.has(version));
        assert!(guests.hold(version, home, [1; 16], 8));
        // Memory is bounded: the oldest word is forgotten first.
        (0..ENDED_MAX as u64).for_each(|hold| guests.done(VersionId([2; 12]), home, hold));
        assert!(guests.hold(version, home, [1; 16], 7));
        assert!(!guests.hold(VersionId([2; 12]), home, [1; 16], 0));
    }
}
