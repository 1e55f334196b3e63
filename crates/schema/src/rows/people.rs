//! Tenants, projects and users. Rows that no release before level 4 knows; none is written below it.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A tenant or a project: what it is called is in its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlainRow {
    /// When it was made, milliseconds since 1970 by the catalog's clock.
    pub created_ms: u64,
}

impl RowValue for PlainRow {
    const TABLE: &'static str = "tenants and projects";
}

/// What is kept of a user's token. Nobody can be taken for the user by it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenPart {
    /// Tells the token from others.
    pub id: u32,
    /// Checks the client.
    pub stored: [u8; 32],
    /// Proves the node.
    pub server: [u8; 32],
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserRow {
    /// When they were made, milliseconds since 1970 by the catalog's clock.
    pub created_ms: u64,
    /// May not change anything.
    pub read_only: bool,
    /// Is not let in.
    pub disabled: bool,
    /// Projects whose folders they see.
    pub projects: Vec<String>,
    /// Other places that they see, as `volume` or `volume/prefix` in the tenant.
    pub prefixes: Vec<String>,
    /// Of their token for the client port.
    pub token: Option<TokenPart>,
}

impl RowValue for UserRow {
    const TABLE: &'static str = "users";
}

/// How much a tenant, project or user may have; 0 for any amount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QuotaRow {
    /// Most bytes.
    pub bytes: u64,
    /// Most files.
    pub files: u64,
    /// More bytes are logged.
    pub soft_bytes: u64,
    /// More files are logged.
    pub soft_files: u64,
}

impl RowValue for QuotaRow {
    const TABLE: &'static str = "quotas";
}
