//! Histories of a replicated log: replicas that crash, pause, lose messages, members and drives, while clients write and read; then a time
//! without faults in which it must go on.
//!
//! The replicas are the real ones; drives, network, clocks and the table behind the log are simulated. Invariants: one leader for each term,
//! the same entries in the same order everywhere, nothing acknowledged lost, and every read sees what was acknowledged or read before it
//! began. (Since all writes are in one order that is known, that is all there is to linearizability.)

pub mod bugs;
mod machine;
mod world;

use self::bugs::Bug;
use self::world::World;

/// What one seed did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Terms in which somebody led.
    pub leaders: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Changes of the group.
    pub changes: u64,
    /// Copies of everything that were put into place.
    pub snapshots: u64,
    /// Of all that was applied.
    pub hash: u64,
}

impl Tally {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Tally) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.leaders += other.leaders;
        self.faults += other.faults;
        self.changes += other.changes;
        self.snapshots += other.snapshots;
        self.hash ^= other.hash;
    }
}

/// Runs the history of one seed; an error says which promise broke.
pub fn run_seed(seed: u64) -> Result<Tally, String> {
    World::new(seed, None).run()
}

/// The same with a bug planted.
pub fn run_with(seed: u64, bug: Bug) -> Result<Tally, String> {
    World::new(seed, Some(bug)).run()
}
