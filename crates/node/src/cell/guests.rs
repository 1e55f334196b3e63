//! Chunks here that another node wrote and has not published yet (R7). A version with a guest is left alone: it is neither
//! declared clean nor forgotten until its home says that the write is over, or the session of that home is.

use std::collections::HashMap;
use std::sync::Mutex;

use stoker_format::{NodeId, VersionId};

#[derive(PartialEq, Eq)]
struct Guest {
    home: NodeId,
    session: [u8; 16],
    /// Tells uses of one version by one home apart.
    hold: u64,
}

/// Versions that other nodes are about to publish.
#[derive(Default)]
pub(crate) struct Guests(Mutex<HashMap<VersionId, Vec<Guest>>>);

impl Guests {
    /// A home keeps a version here from now on.
    pub fn hold(&self, version: VersionId, home: NodeId, session: [u8; 16], hold: u64) {
        let guest = Guest { home, session, hold };
        let mut guests = self.0.lock().unwrap();
        let all = guests.entry(version).or_default();
        if !all.contains(&guest) {
            all.push(guest);
        }
    }

    /// The home says that a write is over.
    pub fn done(&self, version: VersionId, home: NodeId, hold: u64) {
        let mut guests = self.0.lock().unwrap();
        let Some(all) = guests.get_mut(&version) else { return };
        all.retain(|guest| guest.home != home || guest.hold != hold);
        if all.is_empty() {
            guests.remove(&version);
        }
    }

    pub fn has(&self, version: VersionId) -> bool {
        self.0.lock().unwrap().contains_key(&version)
    }

    /// Ends the guests of sessions that are over; true if there were any.
    pub fn end_sessions(&self, is_over: impl Fn(NodeId, [u8; 16]) -> bool) -> bool {
        let mut guests = self.0.lock().unwrap();
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
        guests.hold(version, a, [1; 16], 0);
        assert!(!guests.end_sessions(|home, session| home == a && session != [1; 16]));
        assert!(guests.end_sessions(|home, _| home == a));
        assert!(!guests.has(version));
    }
}
