//! The promises, one file each, checked while the cluster runs or when it has come to rest.

pub mod acked_survives;
pub mod all_or_nothing;
pub mod bounded;
pub mod copies_count;
pub mod drained_before_evicted;
pub mod heals;
pub mod no_quiet_degradation;
pub mod no_silent_corruption;
pub mod one_writer_per_lake_key;
pub mod read_your_writes;
pub mod said_is_true;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    promise: &'static str,
    how: String,
}

impl Broken {
    /// Names the promise and what was seen.
    pub fn new(promise: &'static str, how: impl Into<String>) -> Broken {
        Broken { promise, how: how.into() }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is broken: {}", self.promise, self.how)
    }
}
