//! What a volume that keeps versions says of each of them.

use serde::{Deserialize, Serialize};

use crate::level::Level;

/// The level since which volumes keep versions: releases before would replace and delete them.
pub const VERSIONS_SINCE: Level = Level(6);

/// Which version of its name a file is, and what holds it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PastRow {
    /// Counted from 1; of two versions of a name the later one has the higher number.
    pub number: u64,
    /// It was written while no versions were kept: of these a name has one.
    pub is_null: bool,
    /// It says that the name was deleted, and has no content.
    pub is_marker: bool,
    /// Until when it stays.
    pub retention: Option<RetentionRow>,
    /// It stays until somebody says otherwise.
    pub is_held: bool,
}

impl PastRow {
    /// Whether it has to stay, by a clock that cannot jump; `bypass`: whoever asks may end what is not for compliance.
    pub fn is_locked(&self, now_ms: u64, bypass: bool) -> bool {
        let keeps = |row: &RetentionRow| row.until_ms > now_ms && (row.is_compliance || !bypass);
        self.is_held || self.retention.as_ref().is_some_and(keeps)
    }
}

/// How long a version stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RetentionRow {
    /// Nobody can shorten it.
    pub is_compliance: bool,
    /// Milliseconds since 1970.
    pub until_ms: u64,
}
