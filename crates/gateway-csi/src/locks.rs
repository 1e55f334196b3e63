//! One change at a time for each volume.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

use crate::answer::Answer;

/// What is being changed.
#[derive(Clone, Default)]
pub struct Locks(Arc<Mutex<HashSet<String>>>);

/// Holds a name until it is dropped.
pub struct Held {
    locks: Locks,
    name: String,
}

impl Locks {
    /// Takes a name, or refuses at once: the orchestrator asks again.
    pub fn take(&self, name: &str) -> Answer<Held> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.insert(name.to_owned()) {
            return Err(Status::aborted(format!("another call for {name} is under way; try again")));
        }
        Ok(Held { locks: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
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
        assert!(locks.take("b").is_ok());
        drop(held);
        assert!(locks.take("a").is_ok());
    }
}
