//! Planted bugs of replication: what this simulation must find, or it proves nothing. (D50)
//!
//! Each is planted in the driver around a replica, its drive or its settings; the product has no switch for any of them.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A vote is not made durable: a replica votes twice in a term.
    ForgetVote,
    /// Entries are confirmed before they are durable.
    SkipFlush,
    /// A leader that was replaced answers reads.
    IgnoreLease,
    /// A lease lasts longer than nobody else can be elected.
    LongLease,
    /// A replica that was just started votes although it confirmed a lease.
    VoteAtStart,
    /// A leader reads before it did what was committed before it led.
    ServeEarly,
    /// A leader that gave its leadership away goes on with its lease.
    LeaseAfterTransfer,
    /// A write is acknowledged when the leader has it.
    AckOnAppend,
    /// A write is acknowledged when its place is committed, whoever wrote there.
    AnswerByIndex,
    /// A copy of everything lacks a row.
    SnapshotMissesRow,
    /// A copy of everything is older than it says.
    SnapshotAhead,
    /// The table on the drive is older than it says.
    CheckpointAhead,
    /// A replica that lost its drive comes back under its old number.
    Amnesia,
    /// Of two entries with one index, the first one is read back.
    KeepConflicts,
    /// A replica that starts believes in the group that it had at its first start.
    ForgetGroup,
}

/// All of them.
pub const BUGS: [Bug; 15] = [
    Bug::ForgetVote,
    Bug::SkipFlush,
    Bug::IgnoreLease,
    Bug::LongLease,
    Bug::VoteAtStart,
    Bug::ServeEarly,
    Bug::LeaseAfterTransfer,
    Bug::AckOnAppend,
    Bug::AnswerByIndex,
    Bug::SnapshotMissesRow,
    Bug::SnapshotAhead,
    Bug::CheckpointAhead,
    Bug::Amnesia,
    Bug::KeepConflicts,
    Bug::ForgetGroup,
];
