//! Tokens that let nodes join.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A token. Its secret is not here: whoever reads the catalog cannot join by what is in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinTokenRow {
    /// Its public key, which proves it.
    pub key: [u8; 32],
    /// When it was made, milliseconds since 1970 by the catalog's clock.
    pub created_ms: u64,
    /// When it stops to work, by the same clock.
    pub expires_ms: u64,
    /// How many nodes it lets join.
    pub uses_max: u32,
    /// Those that it let join so far; never more than `uses_max`.
    pub uses: Vec<JoinUse>,
    /// When somebody revoked it.
    pub revoked_ms: Option<u64>,
}

/// A node that a token let join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinUse {
    /// The node.
    pub node: [u8; 16],
    /// When, by the catalog's clock.
    pub at_ms: u64,
}

impl RowValue for JoinTokenRow {
    const TABLE: &'static str = "join tokens";
}
