//! What a node measured and was told about its parts, for whoever judges them.

use serde::{Deserialize, Serialize};

/// How long operations took since a node started: counts that only grow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Upper edge of a bucket in microseconds, and how many fell into it.
    pub buckets: Vec<(u64, u64)>,
    /// Sum of all, microseconds.
    pub sum_us: u64,
    /// Bytes that they moved; zero if nobody counts them.
    pub bytes: u64,
    /// Time during which at least one was under way, microseconds; zero if nobody counts it.
    #[serde(default)]
    pub busy_us: u64,
}

/// What a node measured of itself, of its drives and of its ways to others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Measures {
    /// Node id.
    pub node: String,
    /// Its drives.
    pub drives: Vec<DriveMeasures>,
    /// Reads of pieces of files, wherever they came from.
    pub reads: Times,
    /// Chunks that it copied to others.
    pub copies: Vec<CopyMeasures>,
    /// Age of the oldest change that is not in the lake, milliseconds; 0 if there is none.
    pub drain_age_ms: u64,
    /// What its surroundings say.
    pub facts: PartFacts,
}

/// What a node measured of one of its drives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriveMeasures {
    /// Its id.
    pub drive: String,
    /// Where it is.
    pub path: String,
    /// `live`, `cordoned`, `leaving` or `failed`.
    pub state: String,
    /// Why, if it is not live.
    pub why: Option<String>,
    /// Reads.
    pub reads: Times,
    /// Writes of the drive itself.
    pub writes: Times,
    /// Operations that went well.
    pub good: u64,
    /// Operations that failed, and blocks whose bytes were wrong.
    pub bad: u64,
    /// Whether nothing that the lake lacks is there; asked only of a drive that is cordoned.
    pub is_empty: Option<bool>,
}

/// Chunks that a node copied to another one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyMeasures {
    /// The other one, by its id.
    pub node: String,
    /// How long those took that it took.
    pub times: Times,
    /// How many it did not take.
    pub bad: u64,
}

/// What the surroundings of a node say of its parts: drives about themselves, cards about their links, the gate.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PartFacts {
    /// Drives.
    pub drives: Vec<DriveFacts>,
    /// Ports that carry the node's addresses.
    pub ports: Vec<PortFacts>,
    /// What the gate found, of runs that were asked for.
    pub gates: Vec<GateFacts>,
}

/// What a drive says about itself, and what it could do when it was sound.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriveFacts {
    /// Where it is.
    pub path: String,
    /// Critical warnings in words; none if it cannot be asked.
    pub critical: Option<Vec<String>>,
    /// Endurance that is used up, in percent.
    pub used_percent: u32,
    /// Model and serial number, for whoever replaces it.
    pub model: String,
    /// What the gate measured; none if nobody did.
    pub read: Option<Calibration>,
    /// The same for writes.
    pub write: Option<Calibration>,
    /// Small reads that it was tried with while it is out.
    pub tried_reads: Times,
    /// The same for writes.
    pub tried_writes: Times,
    /// Tries that failed.
    #[serde(default)]
    pub tried_bad: u64,
}

/// What a drive could do when it was sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// Ninety-nine of a hundred operations of 4 KiB, one at a time, took no longer; microseconds.
    pub small_p99_us: u64,
    /// Bytes per second of large ones.
    pub bytes_per_s: u64,
}

/// A port of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortFacts {
    /// Name of the interface.
    pub name: String,
    /// It has a link.
    pub is_up: bool,
    /// Speed and kind, for people.
    pub detail: String,
}

/// What the gate found of a part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GateFacts {
    /// Which part, as the loop names it.
    pub part: String,
    /// Which run.
    pub run: u64,
    /// It may work again.
    pub passed: bool,
    /// What was found, in short.
    pub words: String,
}

/// Of which part less is asked for now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartWeight {
    /// Its node, by its id.
    pub node: String,
    /// The path of the drive; none for the node itself.
    pub drive: Option<String>,
    /// How much is asked of it, in percent of the usual.
    pub percent: u8,
    /// New chunks are put there.
    pub takes_chunks: bool,
}
