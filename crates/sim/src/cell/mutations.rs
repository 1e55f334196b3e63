//! Planted bugs: what the simulation must find, or it proves nothing. (D50)
//!
//! Each is planted at the seam between the nodes and their surroundings, where a step that the code left out looks the
//! same as one that the surroundings did not carry out: a flush that does nothing, a check that the catalog does not see,
//! a condition that the lake does not see. So the product itself has no switch for any of them.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A write is acknowledged before the drive made it durable.
    SkipFlush,
    /// Recovery stops at the first block that was never written.
    StopAtHole,
    /// A file is acknowledged when one node has it.
    AckAfterOneCopy,
    /// A drain ends although somebody else took over its lake key.
    IgnoreFence,
    /// A node that was declared down goes on writing.
    IgnoreSession,
    /// A publish counts copies on drives that are gone.
    IgnoreDrives,
    /// A change of a name does not look whether the name changed meanwhile.
    IgnoreNames,
    /// Chunks are deleted without a look at who else uses them.
    IgnoreSharers,
    /// A commit whose answer was lost counts as done.
    BelieveLostCommits,
    /// The lake's object is replaced or deleted whatever it is.
    WriteBlindly,
    /// A file is clean before the lake confirmed that it has it.
    CleanUnconfirmed,
    /// After a start nothing is dirty.
    StartClean,
    /// A lake object goes although other files rely on it.
    IgnoreReliers,
    /// What a lost node held is not protected again.
    SkipRepair,
    /// What comes from the lake is not held against its sums.
    IgnoreSums,
    /// What a drive lost is not written down when its node starts.
    SkipInventory,
    /// What is written down as missing still counts as a copy, and nobody brings it back.
    CountMissing,
    /// A segment that a client has a descriptor of is written again in place. Leases need real descriptors between nodes and
    /// clients, so this one is looked for in the simulation of one ring.
    ReuseLeased,
}

/// All of them.
pub const MUTATIONS: [Mutation; 18] = [
    Mutation::SkipFlush,
    Mutation::StopAtHole,
    Mutation::AckAfterOneCopy,
    Mutation::IgnoreFence,
    Mutation::IgnoreSession,
    Mutation::IgnoreDrives,
    Mutation::IgnoreNames,
    Mutation::IgnoreSharers,
    Mutation::BelieveLostCommits,
    Mutation::WriteBlindly,
    Mutation::CleanUnconfirmed,
    Mutation::StartClean,
    Mutation::IgnoreReliers,
    Mutation::SkipRepair,
    Mutation::IgnoreSums,
    Mutation::SkipInventory,
    Mutation::CountMissing,
    Mutation::ReuseLeased,
];

impl Mutation {
    /// The tables whose checks the catalog does not see.
    pub fn unchecked(self) -> &'static [u8] {
        match self {
            Mutation::IgnoreFence => b"k",
            Mutation::IgnoreSession => b"S",
            Mutation::IgnoreDrives => b"D",
            Mutation::IgnoreNames => b"E",
            Mutation::IgnoreSharers => b"rs",
            _ => b"",
        }
    }

    /// The tables that nodes find empty.
    pub fn unseen(self) -> &'static [u8] {
        match self {
            Mutation::StartClean => b"d",
            Mutation::IgnoreReliers => b"L",
            Mutation::IgnoreSharers => b"s",
            Mutation::IgnoreSums => b"b",
            Mutation::CountMissing => b"l",
            _ => b"",
        }
    }

    /// The tables that nothing is put into.
    pub fn unwritten(self) -> &'static [u8] {
        match self {
            Mutation::SkipInventory => b"l",
            _ => b"",
        }
    }
}
