//! Names of files that have several.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A file with several names. Its last one may be alone again: the number of this row stays that of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinksRow {
    /// How many names it has.
    pub count: u32,
}

impl RowValue for LinksRow {
    const TABLE: &'static str = "links";
}
