//! Who asks: what every call through the door carries. Plain types; what somebody may do is decided in the crate `access`. (R13)

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError};

/// The tenant that owns whatever says nothing of a tenant.
pub const TENANT_DEFAULT: &str = "default";

/// Longest name of a tenant, a project or a user.
pub const WHO_NAME_LEN_MAX: usize = 24;

/// Stands between tenant and volume in the full name of a volume; no bucket has it in its name. (D143)
pub const TENANT_MARK: char = '_';

/// In front of the owner, among the prefixes of an access key. (D145)
const OWNER_MARK: char = '@';

/// Somebody in a tenant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct UserName {
    /// Tenant.
    pub tenant: String,
    /// User.
    pub user: String,
}

impl UserName {
    /// Reads `TENANT/USER`; a name alone is one of the default tenant.
    pub fn parse(text: &str) -> Result<UserName> {
        let (tenant, user) = text.split_once('/').unwrap_or((TENANT_DEFAULT, text));
        check_who_name("tenant", tenant)?;
        check_who_name("user", user)?;
        Ok(UserName { tenant: tenant.to_owned(), user: user.to_owned() })
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.user)
    }
}

/// Longest name of a job.
pub const JOB_LABEL_LEN_MAX: usize = 64;

/// The name of a job, as its scheduler calls it. Whoever connects says it: it decides how soon work is done, never what may be done.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobLabel(Arc<str>);

impl JobLabel {
    /// Reads a name: letters, digits and `.`, `_`, `-`, `:`, starting with a letter or digit.
    pub fn parse(text: &str) -> Result<JobLabel> {
        let bytes = text.as_bytes();
        let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:".contains(byte);
        let is_sound = bytes.len() <= JOB_LABEL_LEN_MAX
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.iter().all(is_known);
        if is_sound {
            return Ok(JobLabel(text.into()));
        }
        let message = format!(
            "`{}` cannot name a job: 1 to {JOB_LABEL_LEN_MAX} letters, digits and `.`, `_`, `-`, `:`, starting with a letter or digit",
            text.chars().take(JOB_LABEL_LEN_MAX).collect::<String>().escape_debug()
        );
        Err(StoreError::new(ErrorKind::Invalid, message))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for JobLabel {
    type Error = StoreError;

    fn try_from(text: String) -> Result<JobLabel> {
        JobLabel::parse(&text)
    }
}

impl From<JobLabel> for String {
    fn from(job: JobLabel) -> String {
        job.as_str().to_owned()
    }
}

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Principal {
    /// Who runs the cluster: the operator's token, or root and the node's own user on its machine.
    Operator,
    /// Who may look at the cluster, and at no bytes.
    Viewer,
    /// A part of Stoker that works for nobody in particular.
    Service(&'static str),
    /// A user.
    User(UserName),
    /// An access key that belongs to no user: one of the default tenant.
    Key(String),
    /// A user of this machine who is mapped to no user of Stoker: one of the default tenant.
    Uid(u32),
    /// Nobody who is known.
    Anonymous,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Operator => f.write_str("operator"),
            Principal::Viewer => f.write_str("viewer"),
            Principal::Service(name) => write!(f, "service {name}"),
            Principal::User(name) => write!(f, "user {name}"),
            Principal::Key(key) => write!(f, "key {key}"),
            Principal::Uid(uid) => write!(f, "uid {uid}"),
            Principal::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// What a call is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WorkClass {
    /// Somebody waits for it.
    #[default]
    Foreground,
    /// Nobody waits for it.
    Background,
}

/// What a call carries. A view of the store is bound to one, so that no call can be made without. (D144)
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Who asks.
    pub principal: Principal,
    /// The endpoint that the call came through: `s3`, `client`, `admin`, `nfs`.
    pub door: &'static str,
    /// What it is a part of.
    pub class: WorkClass,
    /// The session by whose temporary key it came, as the audit log calls it.
    pub session: Option<Arc<str>>,
}

impl Context {
    /// Of somebody who waits.
    pub fn new(principal: Principal, door: &'static str) -> Context {
        Context { principal, door, class: WorkClass::Foreground, session: None }
    }

    /// The tenant for which it works; none for those who work for all.
    pub fn tenant(&self) -> Option<&str> {
        match &self.principal {
            Principal::User(name) => Some(&name.tenant),
            Principal::Key(_) | Principal::Uid(_) => Some(TENANT_DEFAULT),
            Principal::Operator | Principal::Viewer | Principal::Service(_) | Principal::Anonymous => None,
        }
    }
}

/// Refuses names that cannot stand in a path, in the full name of a volume or behind a mark.
pub fn check_who_name(what: &str, name: &str) -> Result<()> {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_sound = (3..=WHO_NAME_LEN_MAX).contains(&bytes.len())
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|byte| edge(byte) || *byte == b'-');
    if is_sound {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot name a {what}: 3 to {WHO_NAME_LEN_MAX} lower-case letters, digits and hyphens, starting and ending with a \
         letter or digit"
    );
    Err(StoreError::new(ErrorKind::Invalid, message))
}

/// The full name of a volume of a tenant.
pub fn full_volume_name(tenant: &str, volume: &str) -> String {
    match tenant {
        TENANT_DEFAULT => volume.to_owned(),
        _ => format!("{tenant}{TENANT_MARK}{volume}"),
    }
}

/// Tenant and own name of a volume, of its full name. What begins with the mark is the name of no volume, and nobody's but the default tenant's.
pub fn volume_tenant(full: &str) -> (&str, &str) {
    full.split_once(TENANT_MARK).filter(|(tenant, _)| !tenant.is_empty()).unwrap_or((TENANT_DEFAULT, full))
}

/// The entry that makes an access key one of a user. A release that does not know it takes it for a volume that cannot be, and gives the
/// key access to nothing.
pub fn owner_entry(owner: &UserName) -> String {
    format!("{OWNER_MARK}{owner}")
}

/// The owner of an access key, and its other prefixes. An owner that cannot be read is nobody, and nobody may do anything.
pub fn split_owner(prefixes: &[String]) -> (Option<UserName>, Vec<String>) {
    let mut owner = None;
    let mut others = Vec::new();
    for entry in prefixes {
        match entry.strip_prefix(OWNER_MARK) {
            Some(text) => {
                let unreadable = || UserName { tenant: String::new(), user: text.to_owned() };
                owner = Some(UserName::parse(text).unwrap_or_else(|_| unreadable()));
            }
            None => others.push(entry.clone()),
        }
    }
    (owner, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_within_their_tenant() {
        let check = |text: &str, expect: Option<(&str, &str)>| {
            let found = UserName::parse(text).ok();
            let found = found.as_ref().map(|name| (name.tenant.as_str(), name.user.as_str()));
            assert_eq!(found, expect, "{text}");
        };
        check("acme/alice", Some(("acme", "alice")));
        check("alice", Some(("default", "alice")));
        for bad in ["", "/", "acme/", "acme/al", "Acme/alice", "acme/ali_ce", "acme/alice/x", "-acme/alice"] {
            check(bad, None);
        }
    }

    #[test]
    fn jobs_are_named_as_schedulers_name_them() {
        for good in ["1234", "1234_7", "slurm:1234.0", "train-llama", "A", &"x".repeat(JOB_LABEL_LEN_MAX)] {
            assert_eq!(JobLabel::parse(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(JOB_LABEL_LEN_MAX + 1);
        for bad in ["", "-x", "a b", "a/b", "a\n", "\u{e9}", long.as_str()] {
            assert_eq!(JobLabel::parse(bad).unwrap_err().kind, ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn a_full_name_tells_the_tenant() {
        for (tenant, volume, full) in [("default", "data", "data"), ("acme", "data", "acme_data")] {
            assert_eq!(full_volume_name(tenant, volume), full);
            assert_eq!(volume_tenant(full), (tenant, volume));
        }
    }

    #[test]
    fn the_owner_of_a_key_is_an_entry_of_its_own() {
        let owner = UserName::parse("acme/alice").unwrap();
        let prefixes = vec![owner_entry(&owner), "acme_data/logs/".to_owned()];
        assert_eq!(split_owner(&prefixes), (Some(owner), vec!["acme_data/logs/".to_owned()]));
        assert_eq!(split_owner(&["data".to_owned()]), (None, vec!["data".to_owned()]));
        // One that makes no sense is nobody, never everybody.
        let (owner, _) = split_owner(&["@".to_owned()]);
        assert_eq!(owner.unwrap().tenant, "");
    }
}
