//! Tokens that let nodes join, as operators see them.

use serde::{Deserialize, Serialize};

/// How long a join token works if nobody says otherwise, milliseconds.
pub const JOIN_TOKEN_TTL_MS_DEFAULT: u64 = 3_600_000;
/// Longest life of a join token, milliseconds.
pub const JOIN_TOKEN_TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// Most nodes that one join token lets in.
pub const JOIN_TOKEN_USES_MAX: u32 = 1_000;

/// What is known of a join token; the token itself is not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinTokenInfo {
    /// Names it: 16 hexadecimal digits.
    pub id: String,
    /// Whether it works.
    pub state: JoinTokenState,
    /// When it was made, milliseconds since 1970 by the catalog's clock.
    pub created_ms: u64,
    /// When it stops to work, by the same clock.
    pub expires_ms: u64,
    /// How many nodes it lets join.
    pub uses_max: u32,
    /// The nodes that joined by it.
    pub nodes: Vec<String>,
}

/// Whether a join token works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinTokenState {
    /// It lets a node join.
    Valid,
    /// Its time is over.
    Expired,
    /// As many nodes joined by it as may.
    UsedUp,
    /// Somebody took it back.
    Revoked,
}

impl JoinTokenState {
    /// One word or two.
    pub fn as_str(self) -> &'static str {
        match self {
            JoinTokenState::Valid => "valid",
            JoinTokenState::Expired => "expired",
            JoinTokenState::UsedUp => "used up",
            JoinTokenState::Revoked => "revoked",
        }
    }
}
