//! When keys of a provider are fetched. Pure: what is known, time and what a token needs in, a command out. (D226)
//!
//! Keys are used for an hour and then fetched again. A token that names a key that is not known makes them be fetched at once, and at most
//! every half minute: whoever sends tokens with names of keys that nobody has does not make this node ask the provider for each. While the
//! provider does not answer, known keys go on for as long as the configuration says.

use std::sync::Arc;
use std::time::Duration;

use crate::jwks::KeySet;

/// Keys older than this are fetched again when they are needed.
const FRESH_MAX: Duration = Duration::from_secs(3_600);
/// Between two tries.
const RETRY_MIN: Duration = Duration::from_secs(30);
/// The same as long as nothing is known at all, so that a provider that starts together with the node is soon found.
const FIRST_RETRY_MIN: Duration = Duration::from_secs(2);

/// What is known of a provider's keys. Times are since 1970; a clock that was set counts as time that passed, whichever way.
#[derive(Default)]
pub(crate) struct Keeper {
    known: Option<(Arc<KeySet>, Duration)>,
    tried: Option<Duration>,
    /// Why the last try failed.
    why: String,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Next {
    /// These are good.
    Use(Arc<KeySet>),
    /// Fetch them first. If somebody else does already, these are good enough.
    Fetch(Option<Arc<KeySet>>),
    /// There are none, and why.
    Refuse(String),
}

impl Keeper {
    /// What to do for a token, of whose key the known ones may know nothing.
    pub fn next(&self, now: Duration, is_unknown: bool, stale_max: Duration) -> Next {
        let since = |then: Duration| now.abs_diff(then);
        let Some((keys, fetched)) = &self.known else {
            return match self.tried.is_some_and(|tried| since(tried) < FIRST_RETRY_MIN) {
                true => Next::Refuse(self.why.clone()),
                false => Next::Fetch(None),
            };
        };
        let may_try = self.tried.is_none_or(|tried| since(tried) >= RETRY_MIN);
        let is_old = since(*fetched) >= FRESH_MAX;
        let is_stale = since(*fetched) >= stale_max.max(FRESH_MAX);
        match (may_try && (is_old || is_unknown), is_stale) {
            (true, true) => Next::Fetch(None),
            (true, false) => Next::Fetch(Some(Arc::clone(keys))),
            (false, true) => Next::Refuse(self.why.clone()),
            (false, false) => Next::Use(Arc::clone(keys)),
        }
    }

    /// Somebody begins to fetch.
    pub fn tries(&mut self, now: Duration) {
        self.tried = Some(now);
    }

    /// They came, or not.
    pub fn fetched(&mut self, now: Duration, keys: Result<KeySet, String>) {
        match keys {
            Ok(keys) => {
                self.known = Some((Arc::new(keys), now));
                self.why.clear();
            }
            Err(why) => self.why = why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_secs(86_400);

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn keys() -> KeySet {
        let x = "A".repeat(43);
        KeySet::parse(format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#).as_bytes())
            .unwrap()
    }

    /// u use, f fetch, F fetch and nothing is good meanwhile, r refuse.
    fn says(keeper: &Keeper, s: u64, is_unknown: bool) -> char {
        match keeper.next(at(s), is_unknown, STALE) {
            Next::Use(_) => 'u',
            Next::Fetch(Some(_)) => 'f',
            Next::Fetch(None) => 'F',
            Next::Refuse(_) => 'r',
        }
    }

    #[test]
    fn keys_are_fetched_when_they_have_to_be_and_not_more() {
        let mut keeper = Keeper::default();
        assert_eq!(says(&keeper, 0, false), 'F');
        keeper.tries(at(0));
        keeper.fetched(at(1), Err("down".into()));
        assert_eq!((says(&keeper, 1, false), says(&keeper, 2, false)), ('r', 'F'));
        keeper.tries(at(2));
        keeper.fetched(at(2), Ok(keys()));
        assert_eq!(
            (says(&keeper, 3, false), says(&keeper, 3, true)),
            ('u', 'u'),
            "one unknown name after another"
        );
        assert_eq!((says(&keeper, 32, false), says(&keeper, 32, true)), ('u', 'f'));
        keeper.tries(at(32));
        keeper.fetched(at(32), Ok(keys()));
        assert_eq!(says(&keeper, 33, true), 'u');
        assert_eq!(says(&keeper, 32 + 3_600, false), 'f', "an hour old");
        for round in 0..100 {
            let s = 4_000 + 60 * round;
            assert_eq!(says(&keeper, s, false), 'f');
            keeper.tries(at(s));
            keeper.fetched(at(s + 5), Err("down".into()));
            assert_eq!(says(&keeper, s + 5, false), 'u', "known ones go on");
        }
        assert_eq!(says(&keeper, 32 + 86_400, false), 'F', "for a day");
        keeper.tries(at(32 + 86_400));
        keeper.fetched(at(32 + 86_400), Err("down".into()));
        assert_eq!(says(&keeper, 33 + 86_400, false), 'r');
        let Next::Refuse(why) = keeper.next(at(33 + 86_400), false, STALE) else { panic!() };
        assert_eq!(why, "down");
    }
}
