//! Jobs. A release that does not know these rows leaves them alone: it neither stages nor ends jobs, and nothing else relies on them.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A job: a document that the crate `jobs` understands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobRow {
    /// The document.
    pub document: Vec<u8>,
}

impl RowValue for JobRow {
    const TABLE: &'static str = "jobs";
}

/// The node that stages for jobs, as long as it says so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobLeadRow {
    /// The node.
    pub node: [u8; 16],
    /// Its boot.
    pub session: [u8; 16],
    /// Changes while it leads.
    pub beat: u64,
}

impl RowValue for JobLeadRow {
    const TABLE: &'static str = "lead of jobs";
}
