//! What is recorded: every step of the loop, with its reason.

use serde::{Deserialize, Serialize};

use crate::part::PartId;
use crate::table::{Event, State};
use crate::time::Time;

/// Findings that an event or a work order carries.
pub const EVIDENCE_MAX: usize = 16;

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// The indicator, or in other words what was looked at.
    pub what: String,
    /// The part that it was found at.
    pub part: String,
    /// What was found.
    pub found: String,
    /// What is allowed; empty if that says itself.
    #[serde(default)]
    pub limit: String,
    /// Since when.
    pub since: Time,
    /// For how many periods in a row; zero for what is no row.
    #[serde(default)]
    pub periods: u32,
}

/// A step of the loop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// Counts up, also over restarts.
    pub number: u64,
    /// When.
    pub at: Time,
    /// Of what; none if it is about all.
    pub part: Option<PartId>,
    /// The incident that it belongs to; zero for none.
    #[serde(default)]
    pub incident: u64,
    /// What.
    pub what: What,
    /// Why, for people.
    pub reason: String,
    /// What was found.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A part went from one state to another, or was treated again in the same.
    Moved {
        /// Before.
        from: State,
        /// What was noticed.
        event: Event,
        /// After.
        to: State,
    },
    /// Something that the table asks for was not done.
    HeldBack,
    /// Measurements were forgotten.
    Forgot,
    /// Observations were not understood or too old.
    Ignored,
    /// The budget of an objective burns too fast.
    Burning,
    /// It does not any more.
    Calm,
}
