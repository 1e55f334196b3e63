//! What the driver sees. It measures and looks; it does not judge.

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::objective::Indicator;
use crate::part::{Inventory, PartId};
use crate::time::Time;

/// Something that was seen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// What there is. Facts about parts that are not in the last one are ignored.
    Inventory(Inventory),
    /// A fact about a part.
    Fact {
        /// Which.
        part: PartId,
        /// When it was seen, by the clock of the driver and not by that of the part.
        at: Time,
        /// What.
        fact: Fact,
    },
}

impl Observation {
    /// A fact.
    pub fn fact(part: PartId, at: Time, fact: Fact) -> Observation {
        Observation::Fact { part, at, fact }
    }
}

/// A fact about a part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Latencies since the last look.
    Latencies {
        /// Of what.
        indicator: Indicator,
        /// How long.
        latencies: Latencies,
    },
    /// How many went well and how many did not, since the last look.
    Counts {
        /// Of what.
        indicator: Indicator,
        /// Well.
        good: u64,
        /// Not.
        bad: u64,
    },
    /// How old something is.
    Age {
        /// Of what.
        indicator: Indicator,
        /// Microseconds.
        age_us: u64,
    },
    /// What the gate measured of a part when it was sound.
    Baseline {
        /// Of what.
        indicator: Indicator,
        /// Microseconds.
        p99_us: u64,
    },
    /// What a drive says about itself.
    Smart {
        /// Critical warnings, in words; none of them is good.
        critical: Vec<String>,
        /// Endurance that is used up, in percent.
        used_percent: u32,
    },
    /// Whether it is there.
    Presence(Presence),
    /// What the cluster decided about a node or drive, by us or by persons.
    Duty(Duty),
    /// How far an evacuation is.
    Evacuation {
        /// Files that have a copy there and are not in the lake.
        files_left: u64,
        /// Nothing is left.
        done: bool,
    },
    /// What the gate found, of the run that [`crate::Command::RunGate`] asked for.
    Gate {
        /// Which run.
        run: u64,
        /// The part may work again.
        passed: bool,
        /// What was found, in short.
        words: String,
    },
    /// Somebody, or a hook, says that the part was replaced or repaired.
    Repaired,
    /// Another one is in the place of a drive that we took out.
    Replaced,
    /// [`crate::Command::Quarantine`] could not be carried out, and nothing was changed.
    Refused {
        /// Why.
        why: String,
    },
}

/// Whether a part is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It answers; a link is there; a drive serves.
    Up,
    /// A node that missed its pings.
    Suspect,
    /// A node that the catalog declared down, a port without a link, a drive that failed, a switch or rack that another system
    /// says is out.
    Down,
    /// A node that announced that it leaves.
    Left,
    /// It is no part of the cluster any more: removed, or another one is in its place.
    Removed,
}

/// What was decided about a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duty {
    /// It takes chunks.
    Full,
    /// It takes no new chunks.
    Quarantined,
    /// The same, and what is not in the lake is brought elsewhere.
    Evacuating,
}
