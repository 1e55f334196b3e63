//! Tenants, projects and users, and how they change.

use serde::{Deserialize, Serialize};

use crate::who::UserName;

/// Tenants of a cluster.
pub const TENANTS_MAX: usize = 1_000;
/// Projects of a cluster.
pub const PROJECTS_MAX: usize = 4_000;
/// Users of a cluster.
pub const USERS_MAX: usize = 4_000;
/// Projects, and prefixes, of one user.
pub const USER_PLACES_MAX: usize = 32;

/// A tenant: whoever is in it sees its volumes and no others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TenantInfo {
    /// Name.
    pub name: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
}

/// A project: a folder in the volume that is called as its tenant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProjectInfo {
    /// Tenant.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
}

/// What a user may do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserRights {
    /// May not change anything.
    pub read_only: bool,
    /// Is not let in.
    pub disabled: bool,
    /// Sees the folders of these projects. With neither projects nor prefixes, all of the tenant.
    pub projects: Vec<String>,
    /// Sees these, as `volume` or `volume/prefix` in the tenant.
    pub prefixes: Vec<String>,
}

/// What is kept of a token: enough to check who has it, and too little to be taken for them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCheck {
    /// Tells the token from others; not 0.
    pub id: u32,
    /// Checks the client.
    pub stored: [u8; 32],
    /// Proves the node.
    pub server: [u8; 32],
}

impl std::fmt::Debug for TokenCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCheck").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserInfo {
    /// Who.
    pub name: UserName,
    /// What they may do.
    pub rights: UserRights,
    /// When they were made, milliseconds since 1970.
    pub created_ms: u64,
    /// They have a token for the client port.
    pub has_token: bool,
    /// Never leaves the node.
    #[serde(skip)]
    pub token: Option<TokenCheck>,
}

/// Everybody.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct People {
    /// Tenants by name, without the default one.
    pub tenants: Vec<TenantInfo>,
    /// Projects by tenant and name.
    pub projects: Vec<ProjectInfo>,
    /// Users by tenant and name.
    pub users: Vec<UserInfo>,
}

/// A change of that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeopleChange {
    /// A new tenant, with a volume of its name.
    TenantCreate {
        /// Name.
        tenant: String,
    },
    /// A tenant goes that has no volumes, projects and users any more.
    TenantDelete {
        /// Name.
        tenant: String,
    },
    /// A new project.
    ProjectCreate {
        /// Tenant.
        tenant: String,
        /// Name.
        project: String,
    },
    /// A project goes that no user is in any more. Its files stay.
    ProjectDelete {
        /// Tenant.
        tenant: String,
        /// Name.
        project: String,
    },
    /// A new user.
    UserCreate {
        /// Who.
        name: UserName,
        /// What they may do.
        rights: UserRights,
    },
    /// Other rights for a user.
    UserSet {
        /// Who.
        name: UserName,
        /// What they may do from now on.
        rights: UserRights,
    },
    /// Another token for a user, or none any more.
    UserToken {
        /// Who.
        name: UserName,
        /// What is kept of it.
        token: Option<TokenCheck>,
    },
    /// A user goes, and their access keys with them.
    UserDelete {
        /// Who.
        name: UserName,
    },
    /// Another quota for a tenant, a project or a user.
    Quota {
        /// Whose.
        account: AccountName,
        /// How much from now on.
        limits: QuotaLimits,
    },
}

/// Whose files are counted together, besides those of a volume.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum AccountName {
    /// A tenant: all its volumes.
    Tenant(String),
    /// A project: its folder.
    Project {
        /// Tenant.
        tenant: String,
        /// Name.
        project: String,
    },
    /// A user: the files that they wrote last.
    User(UserName),
}

impl AccountName {
    /// The tenant that it is, or is in.
    pub fn tenant(&self) -> &str {
        match self {
            AccountName::Tenant(tenant) | AccountName::Project { tenant, .. } => tenant,
            AccountName::User(name) => &name.tenant,
        }
    }

    /// What it is.
    pub fn kind(&self) -> &'static str {
        match self {
            AccountName::Tenant(_) => "tenant",
            AccountName::Project { .. } => "project",
            AccountName::User(_) => "user",
        }
    }
}

impl std::fmt::Display for AccountName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AccountName::Tenant(tenant) => f.write_str(tenant),
            AccountName::Project { tenant, project } => write!(f, "{tenant}/{project}"),
            AccountName::User(name) => name.fmt(f),
        }
    }
}

/// How much somebody may have; 0 for any amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QuotaLimits {
    /// Most bytes.
    pub bytes: u64,
    /// Most files.
    pub files: u64,
    /// More bytes are logged.
    pub soft_bytes: u64,
    /// More files are logged.
    pub soft_files: u64,
}

impl QuotaLimits {
    /// Whether somebody who has so much is above a soft limit.
    pub fn is_soft_exceeded(&self, files: u64, bytes: u64) -> bool {
        (self.soft_bytes > 0 && bytes > self.soft_bytes) || (self.soft_files > 0 && files > self.soft_files)
    }
}

/// What somebody has and may have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccountInfo {
    /// Who.
    pub account: AccountName,
    /// How much they may have.
    pub limits: QuotaLimits,
    /// Files that they have.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}
