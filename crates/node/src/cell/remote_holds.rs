//! Chunks here that another node wrote and has not published yet (R7). A version with a remote hold is left alone: it is neither
//! declared clean nor forgotten until its home says that the write is over, or the session of that home is.
//!
//! Messages overtake each other, and one whose connection broke is sent again: what a home asks for may come after the word that
//! it is over. So that word is remembered for a while, or nothing would ever end what came late.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use stoker_format::{NodeId, VersionId};

#[derive(PartialEq, Eq)]
struct RemoteHold {
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
    remote_holds: HashMap<VersionId, Vec<RemoteHold>>,
    ended: HashSet<Use>,
    /// The same, the oldest in front.
    order: VecDeque<Use>,
}

/// Versions that other nodes are about to publish.
#[derive(Default)]
pub(crate) struct RemoteHolds(Mutex<State>);

impl RemoteHolds {
    /// A home keeps a version here from now on; false if it said already that this use of it is over.
    pub fn hold(&self, version: VersionId, home: NodeId, session: [u8; 16], hold: u64) -> bool {
        let remote_hold = RemoteHold { home, session, hold };
        let mut state = self.0.lock().unwrap();
        if state.ended.contains(&(version, home, hold)) {
            return false;
        }
        let all = state.remote_holds.entry(version).or_default();
        if !all.contains(&remote_hold) {
            all.push(remote_hold);
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
        let Some(all) = state.remote_holds.get_mut(&version) else { return };
        all.retain(|remote_hold| remote_hold.home != home || remote_hold.hold != hold);
        if all.is_empty() {
            state.remote_holds.remove(&version);
        }
    }

    pub fn has(&self, version: VersionId) -> bool {
        self.0.lock().unwrap().remote_holds.contains_key(&version)
    }

    /// Ends the remote holds of sessions that are over; true if there were any.
    pub fn end_sessions(&self, is_over: impl Fn(NodeId, [u8; 16]) -> bool) -> bool {
        let remote_holds = &mut self.0.lock().unwrap().remote_holds;
        let before: usize = remote_holds.values().map(Vec::len).sum();
        remote_holds.retain(|_, all| {
            all.retain(|remote_hold| !is_over(remote_hold.home, remote_hold.session));
            !all.is_empty()
        });
        before != remote_holds.values().map(Vec::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stays_until_its_last_guest_is_gone() {
        let remote_holds = RemoteHolds::default();
        let (version, a, b) = (VersionId([1; 12]), NodeId([1; 16]), NodeId([2; 16]));
        remote_holds.hold(version, a, [1; 16], 0);
        remote_holds.hold(version, a, [1; 16], 0);
        remote_holds.hold(version, a, [1; 16], 7);
        remote_holds.hold(version, b, [2; 16], 0);
        remote_holds.done(version, b, 0);
        remote_holds.done(version, a, 0);
        assert!(remote_holds.has(version));
        remote_holds.done(version, a, 7);
        assert!(!remote_holds.has(version));
        remote_holds.done(version, a, 7);
        remote_holds.hold(version, a, [1; 16], 8);
        assert!(!remote_holds.end_sessions(|home, session| home == a && session != [1; 16]));
        assert!(remote_holds.end_sessions(|home, _| home == a));
        assert!(!remote_holds.has(version));
    }

    #[test]
    fn what_comes_after_the_word_that_it_is_over_keeps_nothing() {
        let remote_holds = RemoteHolds::default();
        let (version, home) = (VersionId([1; 12]), NodeId([1; 16]));
        remote_holds.done(version, home, 7);
        assert!(!remote_holds.hold(version, home, [1; 16], 7));
        assert!(!remote_holds.has(version));
        assert!(remote_holds.hold(version, home, [1; 16], 8));
        // Memory is bounded: the oldest word is forgotten first.
        (0..ENDED_MAX as u64).for_each(|hold| remote_holds.done(VersionId([2; 12]), home, hold));
        assert!(remote_holds.hold(version, home, [1; 16], 7));
        assert!(!remote_holds.hold(VersionId([2; 12]), home, [1; 16], 0));
    }
}
