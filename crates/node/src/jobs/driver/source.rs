//! A source that jobs want on drives, as the leader knows it.

use std::collections::HashSet;
use std::time::Duration;

use stoker_jobs::SourceNeed;
use tokio::time::Instant;

use crate::jobs::survey::{Piece, Target, Walked};

/// Pauses after a source could not be counted or brought.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// A source that jobs want on drives.
pub(super) struct Source {
    pub target: Target,
    pub walked: Option<Walked>,
    /// What the rings said last of what is held.
    pub resident: u64,
    pub lake_bytes: u64,
    pub trouble: Option<String>,
    pub is_admitted: bool,
    pub is_walking: bool,
    pub bringing: HashSet<u32>,
    /// Told apart from those of earlier counts.
    pub round: u64,
    pub walk_at: Instant,
    pub retry_at: Instant,
    pub failures: u32,
    pub kept_at: Option<Instant>,
    pub is_keeping: bool,
}

impl Source {
    pub fn new(target: Target) -> Source {
        let now = Instant::now();
        Source {
            target,
            walked: None,
            resident: 0,
            lake_bytes: 0,
            trouble: None,
            is_admitted: false,
            is_walking: false,
            bringing: HashSet::new(),
            round: 0,
            walk_at: now,
            retry_at: now,
            failures: 0,
            kept_at: None,
            is_keeping: false,
        }
    }

    pub fn need(&self) -> SourceNeed {
        let Some(walked) = &self.walked else { return SourceNeed::default() };
        // What is there and not held yet is held by bringing it.
        let missing = |piece: &Piece| if piece.is_held { 0 } else { piece.missing.max(1) };
        SourceNeed { bytes: Some(walked.bytes), missing: walked.pieces.iter().map(missing).collect() }
    }

    pub fn is_held(&self) -> bool {
        self.walked.as_ref().is_some_and(|walked| walked.pieces.iter().all(|piece| piece.is_held))
    }

    pub fn bytes(&self) -> u64 {
        self.walked.as_ref().map_or(0, |walked| walked.bytes)
    }

    pub fn failed(&mut self, why: String) {
        self.failures = (self.failures + 1).min(16);
        let pause = RETRY_MIN.saturating_mul(1 << self.failures.min(8)).min(RETRY_MAX);
        self.retry_at = Instant::now() + pause;
        self.trouble = Some(why);
    }
}
