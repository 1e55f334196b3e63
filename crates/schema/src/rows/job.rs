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

/// Windows for checkpoints: a document that the crate `jobs` understands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobWindowsRow {
    /// The document.
    pub document: Vec<u8>,
}

impl RowValue for JobWindowsRow {
    const TABLE: &'static str = "windows of jobs";
}
