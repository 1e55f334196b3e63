//! One change at a time for each volume; what only looks at it goes side by side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

use crate::answer::Answer;

/// Who has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holders {
    One,
    Shared(u64),
}

/// What is being changed, or kept from it.
#[derive(Clone, Default)]
pub struct Locks(Arc<Mutex<HashMap<String, Holders>>>);

/// Holds a name until it is dropped.
pub struct Held {
    locks: Locks,
    name: String,
}

impl Locks {
    /// Takes a name for oneself, or refuses at once: the orchestrator asks again.
    pub fn take(&self, name: &str) -> Answer<Held> {
        self.hold(name, |now| now.is_none().then_some(Holders::One))
    }

    /// Takes a name with others who do the same; whoever wants it alone is refused meanwhile.
    pub fn share(&self, name: &str) -> Answer<Held> {
        self.hold(name, |now| match now {
            None => Some(Holders::Shared(1)),
            Some(Holders::Shared(count)) => Some(Holders::Shared(count + 1)),
            Some(Holders::One) => None,
        })
    }

    fn hold(&self, name: &str, next: impl FnOnce(Option<Holders>) -> Option<Holders>) -> Answer<Held> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(holders) = next(names.get(name).copied()) else {
            return Err(Status::aborted(format!("another call for {name} is under way; try again")));
        };
        names.insert(name.to_owned(), holders);
        Ok(Held { locks: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut names = self.locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get_mut(&self.name) {
            Some(Holders::Shared(count)) if *count > 1 => *count -= 1,
            _ => drop(names.remove(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_is_aborted_until_the_first_ends() {
        let locks = Locks::default();
        let held = locks.take("a").ok().unwrap();
        assert_eq!(locks.take("a").err().unwrap().code(), tonic::Code::Aborted);
        assert!(locks.share("a").is_err() && locks.take("b").is_ok());
        drop(held);
        assert!(locks.take("a").is_ok());
    }

    #[test]
    fn those_who_share_keep_others_out_until_the_last_ends() {
        let locks = Locks::default();
        let (first, second) = (locks.share("a").ok().unwrap(), locks.share("a").ok().unwrap());
        drop(first);
        assert!(locks.take("a").is_err());
        drop(second);
        assert!(locks.take("a").is_ok() && locks.0.lock().unwrap().is_empty());
    }
}
