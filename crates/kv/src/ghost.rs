//! Names of blocks that left the memory without being written: their next put is the second use.

use std::collections::VecDeque;

use crate::digest::{Digest, DigestMap};

/// A fixed number of names, the oldest of which are forgotten.
pub(crate) struct Ghosts {
    max: usize,
    names: DigestMap<()>,
    /// May hold names that were taken; these cost a place until their turn comes.
    queue: VecDeque<Digest>,
}

impl Ghosts {
    pub fn new(max: usize) -> Ghosts {
        Ghosts { max, names: DigestMap::default(), queue: VecDeque::new() }
    }

    pub fn add(&mut self, digest: Digest) {
        if self.names.insert(digest, ()).is_none() {
            self.queue.push_back(digest);
        }
        while self.queue.len() > self.max {
            if let Some(oldest) = self.queue.pop_front() {
                self.names.remove(&oldest);
            }
        }
    }

    /// Whether it is one, and forgets it.
    pub fn take(&mut self, digest: &Digest) -> bool {
        self.names.remove(digest).is_some()
    }

    pub fn clear(&mut self) {
        *self = Ghosts::new(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut ghosts = Ghosts::new(2);
        for n in 0..3 {
            ghosts.add(Digest([n; 16]));
        }
        assert!(!ghosts.take(&Digest([0; 16])) && ghosts.take(&Digest([1; 16])));
        assert!(!ghosts.take(&Digest([1; 16])), "taken once");
        for n in 0..100 {
            ghosts.add(Digest([n; 16]));
            assert!(ghosts.queue.len() <= 2 && ghosts.names.len() <= 2);
        }
    }
}
