//! Policies of admission.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// What somebody's work is promised and allowed. (R16)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosRow {
    /// Work of this tenant, of this job and on this volume, by its full name; what is not given may be any.
    pub tenant: Option<String>,
    /// Job.
    pub job: Option<String>,
    /// Volume.
    pub volume: Option<String>,
    /// Bytes and operations per second that it is promised.
    pub floor: (Option<u64>, Option<u64>),
    /// The same that it never exceeds.
    pub ceiling: (Option<u64>, Option<u64>),
    /// Its share of what is left.
    pub weight: u32,
    /// Somebody waits for each answer.
    pub is_interactive: bool,
    /// Milliseconds.
    pub burst_ms: u32,
    /// What of the volume is handed out with it, if it is an export.
    pub export: Option<String>,
    /// The request that made it, by which that is known when it comes again.
    pub request: Option<String>,
    /// When it was made, milliseconds since 1970 by the catalog's clock.
    pub created_ms: u64,
}

impl RowValue for QosRow {
    const TABLE: &'static str = "qos policies";
}
