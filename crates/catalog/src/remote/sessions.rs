//! The commits that clients wait for, so that one which is sent twice runs once. All in memory; what must
//! outlive the server is remembered with the rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::message::NamedCommit;
use crate::error::Result;
use crate::kv::Outcome;

/// Most sessions; above this the one that was used least recently goes, and its client opens another.
const SESSIONS_MAX: usize = 256;
/// Most commits of one session that are not below its floor.
pub(super) const SESSION_COMMITS_MAX: u64 = 1024;

/// How a commit ended; `None` if its client is not known.
pub(super) type Ended = Result<Option<Outcome>>;

/// What to do with a commit that came in.
pub(super) enum Entered {
    /// Run it and say how it ended.
    Run(watch::Sender<Option<Ended>>),
    /// It runs or ran; wait for how it ended.
    Wait(watch::Receiver<Option<Ended>>),
    /// There is no such session.
    Gone,
    /// Its client said that it waits for it no longer, or sends more than it may.
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<u64, Session>,
    /// Number of the last session.
    last: u64,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Session {
    client: u128,
    floor: u64,
    commits: BTreeMap<u64, watch::Receiver<Option<Ended>>>,
    used: u64,
}

impl Sessions {
    /// A new session of this client. Older ones of it stay until they are the least recently used.
    pub(super) fn open(&self, client: u128) -> u64 {
        let mut state = self.lock();
        if state.sessions.len() >= SESSIONS_MAX {
            let oldest = state.sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.map(|id| state.sessions.remove(&id));
        }
        state.last += 1;
        state.clock += 1;
        let (id, used) = (state.last, state.clock);
        state.sessions.insert(id, Session { client, floor: 0, commits: BTreeMap::new(), used });
        id
    }

    pub(super) fn enter(&self, commit: &NamedCommit) -> Entered {
        let mut state = self.lock();
        state.clock += 1;
        let clock = state.clock;
        let session = state.sessions.get_mut(&commit.session);
        let Some(session) = session.filter(|session| session.client == commit.client) else {
            return Entered::Gone;
        };
        session.used = clock;
        if commit.floor > session.floor {
            session.floor = commit.floor;
            session.commits = session.commits.split_off(&commit.floor);
        }
        let window = session.floor..session.floor.saturating_add(SESSION_COMMITS_MAX);
        if !window.contains(&commit.number) {
            return Entered::Refused;
        }
        if let Some(ended) = session.commits.get(&commit.number) {
            return Entered::Wait(ended.clone());
        }
        let (ends, ended) = watch::channel(None);
        session.commits.insert(commit.number, ended);
        Entered::Run(ends)
    }

    /// Forgets a commit that did not end, so that sending it again tries again.
    pub(super) fn forget(&self, session: u64, number: u64) {
        if let Some(session) = self.lock().sessions.get_mut(&session) {
            session.commits.remove(&number);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;
    use crate::kv::Commit;

    fn named(session: u64, number: u64, floor: u64) -> NamedCommit {
        NamedCommit { to: Epoch::default(), session, client: 7, number, floor, commit: Commit::new() }
    }

    #[test]
    fn a_name_runs_once_and_not_after_its_client_went_on() {
        let sessions = Sessions::default();
        let id = sessions.open(7);
        let Entered::Run(ends) = sessions.enter(&named(id, 3, 0)) else { panic!("runs") };
        ends.send_replace(Some(Ok(Some(Outcome::Failed { check: 1 }))));
        let Entered::Wait(ended) = sessions.enter(&named(id, 3, 0)) else { panic!("ran") };
        assert_eq!(*ended.borrow(), Some(Ok(Some(Outcome::Failed { check: 1 }))));
        assert!(matches!(sessions.enter(&named(id, 4, 4)), Entered::Run(_)));
        assert!(matches!(sessions.enter(&named(id, 3, 0)), Entered::Refused));
        assert!(matches!(sessions.enter(&named(id, 4 + SESSION_COMMITS_MAX, 0)), Entered::Refused));
        assert!(matches!(sessions.enter(&named(id + 1, 5, 0)), Entered::Gone));
        assert!(matches!(sessions.enter(&NamedCommit { client: 8, ..named(id, 5, 0) }), Entered::Gone));
    }

    #[test]
    fn sessions_are_bounded_and_the_used_one_stays() {
        let sessions = Sessions::default();
        let kept = sessions.open(7);
        let lost = sessions.open(7);
        for _ in 0..3 * SESSIONS_MAX {
            assert!(!matches!(sessions.enter(&named(kept, 0, 0)), Entered::Gone));
            sessions.open(1);
        }
        assert!(matches!(sessions.enter(&named(lost, 0, 0)), Entered::Gone));
        assert!(sessions.lock().sessions.len() <= SESSIONS_MAX);
    }
}
