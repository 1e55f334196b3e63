//! Sessions of the console: a random word in a cookie, kept here, in a bounded table, until it expires.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::access::Role;

/// Sessions at the same time; beyond, one of those who look that was used longest ago ends, or else one of operators.
const SESSIONS_MAX: usize = 256;
/// Random bytes of an id.
const ID_LEN: usize = 32;

/// Somebody who logged in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    pub role: Role,
    /// What a changing call has to repeat in a header, which other sites cannot send.
    pub csrf: String,
    /// Begun then; a session ends some time after that, however busy it is.
    begun: Instant,
    used: Instant,
}

/// What became of an id.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Live(Session),
    /// It was one, and its time is over.
    Expired,
    Unknown,
}

/// The table.
pub struct Sessions {
    idle_max: Duration,
    age_max: Duration,
    table: Mutex<HashMap<String, Session>>,
}

impl Sessions {
    pub fn new(idle_max: Duration, age_max: Duration) -> Sessions {
        Sessions { idle_max, age_max, table: Mutex::new(HashMap::new()) }
    }

    /// Begins a session; its id.
    pub fn begin(&self, role: Role, now: Instant) -> Result<(String, Session), getrandom::Error> {
        let (id, csrf) = (random_hex()?, random_hex()?);
        let session = Session { role, csrf, begun: now, used: now };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= SESSIONS_MAX {
            // Those who look go before those who operate, so that no view-token can throw operators out.
            let oldest = table.iter().min_by_key(|(_, session)| (session.role, session.used));
            let oldest = oldest.map(|(id, _)| id.clone());
            oldest.map(|id| table.remove(&id));
        }
        table.insert(id.clone(), session.clone());
        Ok((id, session))
    }

    /// The session of an id, which counts as used now. One that expired stays known for a while, so that this can be said.
    pub fn find(&self, id: &str, now: Instant) -> Found {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = table.get_mut(id) else { return Found::Unknown };
        let since = |then: Instant| now.saturating_duration_since(then);
        if since(session.used) > self.idle_max || since(session.begun) > self.age_max {
            return Found::Expired;
        }
        session.used = now;
        Found::Live(session.clone())
    }

    /// Ends a session.
    pub fn end(&self, id: &str) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// How long a browser should keep the cookie, seconds.
    pub fn age_max_s(&self) -> u64 {
        self.age_max.as_secs()
    }
}

/// A word that nobody guesses.
pub fn random_hex() -> Result<String, getrandom::Error> {
    let mut bytes = [0; ID_LEN];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_expire_by_idleness_and_by_age() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (id, session) = sessions.begin(Role::View, begin).unwrap();
        assert_eq!((id.len(), session.csrf.len()), (64, 64));
        let is_live = |seconds| matches!(sessions.find(&id, at(seconds)), Found::Live(_));
        assert!(is_live(9) && is_live(18));
        assert!(is_live(24));
        assert_eq!(sessions.find(&id, at(26)), Found::Expired, "too old, although in use");
        assert_eq!(sessions.find("no such", at(0)), Found::Unknown);
        let (other, _) = sessions.begin(Role::Operator, at(30)).unwrap();
        assert_eq!(sessions.find(&other, at(41)), Found::Expired, "left alone");
        sessions.end(&other);
        assert_eq!(sessions.find(&other, at(30)), Found::Unknown);
    }

    #[test]
    fn the_table_is_bounded() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let begin = Instant::now();
        let (first, _) = sessions.begin(Role::View, begin).unwrap();
        for number in 1..=SESSIONS_MAX as u64 {
            sessions.begin(Role::View, begin + Duration::from_millis(number)).unwrap();
        }
        assert_eq!(sessions.table.lock().unwrap().len(), SESSIONS_MAX);
        assert_eq!(sessions.find(&first, begin), Found::Unknown);
    }

    #[test]
    fn those_who_look_cannot_throw_operators_out() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let begin = Instant::now();
        let (operator, _) = sessions.begin(Role::Operator, begin).unwrap();
        for number in 1..=2 * SESSIONS_MAX as u64 {
            sessions.begin(Role::View, begin + Duration::from_millis(number)).unwrap();
        }
        assert!(matches!(sessions.find(&operator, begin), Found::Live(_)));
        assert_eq!(sessions.table.lock().unwrap().len(), SESSIONS_MAX);
    }
}
