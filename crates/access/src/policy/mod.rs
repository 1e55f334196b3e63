//! Policies of volumes, in the JSON that S3 has for buckets. Pure: a document and a request in, yes, no or nothing out. (D199)
//!
//! A policy takes away from what users may do, or gives them what their own rights lack. What it says of somebody whom nobody here can
//! recognise, or of something that nothing here can check, is refused when it is set: a rule that is kept and not followed would be a lie.

mod condition;
mod document;
mod pattern;

use std::net::IpAddr;

use stoker_store::{ErrorKind, StoreError};

use self::condition::Condition;
use self::pattern::Pattern;
use crate::action::Action;

/// Most bytes of a document, as in S3.
pub const POLICY_LEN_MAX: usize = 20 << 10;

/// Why a document is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It makes no sense.
    Malformed(String),
    /// It makes sense, and cannot be followed here.
    Unsupported(String),
}

impl Fault {
    /// As the door says it.
    pub(crate) fn into_error(self) -> StoreError {
        let (Fault::Malformed(what) | Fault::Unsupported(what)) = self;
        StoreError::new(ErrorKind::Invalid, format!("the policy is not taken: {what}"))
    }
}

/// What a policy says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Allow,
    Deny,
    /// Nothing.
    Silent,
}

/// What a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On<'a> {
    /// The volume; a listing of what begins so.
    Volume(Option<&'a [u8]>),
    Key(&'a [u8]),
    /// Everything that begins so.
    Below(&'a [u8]),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The tenant of who asks.
    pub tenant: &'a str,
    /// Their name in it.
    pub user: Option<&'a str>,
    /// As S3 calls it.
    pub action: &'a str,
    pub on: On<'a>,
    pub address: Option<IpAddr>,
    /// Nobody on the way reads it.
    pub is_tls: bool,
    pub now_ms: u64,
}

impl Asked<'_> {
    fn prefix(&self) -> Option<&[u8]> {
        match self.on {
            On::Volume(prefix) => prefix,
            On::Key(_) | On::Below(_) => None,
        }
    }
}

/// The name of a user in policies.
fn user_arn(tenant: &str, user: &str) -> String {
    format!("arn:aws:iam::{tenant}:user/{user}")
}

/// Somebody in a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Somebody {
    Everybody,
    /// All of the tenant of the volume.
    Tenant,
    User(String),
}

/// A list, or all that is not in it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Listed<T> {
    all: Vec<T>,
    is_not: bool,
}

impl<T> Listed<T> {
    fn has(&self, is_it: impl Fn(&T) -> bool) -> bool {
        self.all.iter().any(is_it) != self.is_not
    }
}

/// What a statement is about, behind the name of the volume.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Thing {
    Volume,
    Keys(Pattern),
    /// The volume and everything in it.
    All,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Statement {
    is_allow: bool,
    who: Listed<Somebody>,
    actions: Listed<Pattern>,
    things: Listed<Thing>,
    conditions: Vec<Condition>,
}

impl Statement {
    fn is_about(&self, asked: &Asked<'_>) -> bool {
        let is_it = |one: &Somebody| match one {
            Somebody::Everybody => true,
            // Policies name those of their own tenant, and others reach no volume of it.
            Somebody::Tenant => true,
            Somebody::User(name) => asked.user == Some(name),
        };
        self.who.has(is_it)
    }

    fn covers(&self, asked: &Asked<'_>) -> bool {
        let is_thing = |thing: &Thing| match (thing, asked.on) {
            (Thing::All, _) | (Thing::Volume, On::Volume(_)) => true,
            (Thing::Keys(pattern), On::Key(key)) => pattern.fits(key, asked.user),
            // To take away a part of it is to take it away; to give it, all has to be given.
            (Thing::Keys(pattern), On::Below(prefix)) => match self.is_allow == self.things.is_not {
                true => pattern.may_fit_below(prefix, asked.user),
                false => pattern.fits_all_below(prefix, asked.user),
            },
            _ => false,
        };
        // Names of actions have no case.
        let action = asked.action.to_ascii_lowercase();
        self.actions.has(|one| pattern::fits(one.text().as_bytes(), action.as_bytes()))
            && self.things.has(is_thing)
            && self.conditions.iter().all(|condition| condition.holds(asked))
    }
}

/// The policy of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    statements: Vec<Statement>,
}

impl Policy {
    /// Reads the document of a volume, which is called `bucket` in it and belongs to a tenant.
    pub fn parse(document: &[u8], bucket: &str, tenant: &str) -> Result<Policy, Fault> {
        document::parse(document, bucket, tenant)
    }

    /// That of a volume of which nobody knows what its policy says.
    pub(crate) fn closed() -> Policy {
        let all = |text: &str| Listed { all: Pattern::parse(text).into_iter().collect(), is_not: false };
        let statement = Statement {
            is_allow: false,
            who: Listed { all: vec![Somebody::Everybody], is_not: false },
            actions: all("*"),
            things: Listed { all: vec![Thing::All], is_not: false },
            conditions: Vec::new(),
        };
        Policy { statements: vec![statement] }
    }

    /// What it says. A no counts more than a yes.
    pub(crate) fn says(&self, asked: &Asked<'_>) -> Effect {
        let mut effect = Effect::Silent;
        for statement in self.statements.iter().filter(|statement| statement.is_about(asked)) {
            if !statement.covers(asked) {
                continue;
            }
            if !statement.is_allow {
                return Effect::Deny;
            }
            effect = Effect::Allow;
        }
        effect
    }

    /// Whether it gives somebody anything at all: then they may know that the volume is there.
    pub(crate) fn knows(&self, asked: &Asked<'_>) -> bool {
        self.statements.iter().any(|statement| statement.is_allow && statement.is_about(asked))
    }
}

/// Of what S3 has a name for it: its names there, each of which has to be allowed. What has none is not for policies.
pub(crate) fn names_of(action: Action) -> &'static [&'static str] {
    use Action as A;
    match action {
        A::Open | A::Stage | A::Lock | A::UploadPartOpen => &["s3:GetObject"],
        A::Stat | A::Entry | A::PartChecksums | A::Receipt | A::Wait | A::Explain => &["s3:GetObject"],
        A::SetStatus | A::SetFind | A::SetLatest => &["s3:GetObject"],
        A::List => &["s3:ListBucket"],
        A::Versions => &["s3:ListBucketVersions"],
        A::SetVersionLock => &["s3:PutObjectRetention"],
        A::Create | A::Edit | A::EditNow | A::Copy | A::SetAttributes | A::Drain => &["s3:PutObject"],
        A::UploadCreate | A::UploadCreateFull | A::UploadPart | A::UploadPartCopy | A::UploadComplete => {
            &["s3:PutObject"]
        }
        A::SetBegin | A::SetShard | A::SetShardComplete | A::SetPublish | A::SetAbort => &["s3:PutObject"],
        A::ConflictResolve => &["s3:PutObject"],
        A::Link => &["s3:GetObject", "s3:PutObject"],
        A::Rename => &["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        A::Delete | A::DeleteVersions => &["s3:DeleteObject"],
        A::UploadAbort => &["s3:AbortMultipartUpload"],
        A::UploadParts => &["s3:ListMultipartUploadParts"],
        A::Uploads => &["s3:ListBucketMultipartUploads"],
        A::VolumeDelete => &["s3:DeleteBucket"],
        _ => &[],
    }
}

/// The same of what is about one version of a key.
pub(crate) fn version_names_of(action: Action) -> &'static [&'static str] {
    match names_of(action) {
        ["s3:GetObject"] => &["s3:GetObjectVersion"],
        ["s3:DeleteObject"] => &["s3:DeleteObjectVersion"],
        _ if action == Action::SetAttributes => &["s3:PutObjectVersionTagging"],
        names => names,
    }
}

/// The name of a change of a setting; none if it is not for policies: that of the policy itself is for those who may change everything.
pub(crate) fn name_of_setting(setting: &str) -> &'static [&'static str] {
    match setting {
        "cors" => &["s3:PutBucketCORS"],
        "lifecycle" => &["s3:PutLifecycleConfiguration"],
        "tagging" => &["s3:PutBucketTagging"],
        "ownership" => &["s3:PutBucketOwnershipControls"],
        "public-access" => &["s3:PutBucketPublicAccessBlock"],
        "versioning" => &["s3:PutBucketVersioning"],
        "object-lock" => &["s3:PutBucketObjectLockConfiguration"],
        _ => &[],
    }
}

/// Names that only a yes may have: who may do what is asked for may do these, and they are told apart nowhere.
const ALSO_GIVEN: &[&str] = &[
    "s3:deleteobjecttagging",
    "s3:getbucketacl",
    "s3:getbucketcors",
    "s3:getbucketlocation",
    "s3:getbuckettagging",
    "s3:getbucketobjectlockconfiguration",
    "s3:getbucketversioning",
    "s3:getlifecycleconfiguration",
    "s3:getobjectacl",
    "s3:getobjectattributes",
    "s3:getobjectlegalhold",
    "s3:getobjectretention",
    "s3:getobjecttagging",
    "s3:putobjectacl",
    "s3:putobjecttagging",
];

/// Whether a policy may name an action.
fn is_known(pattern: &str, is_allow: bool) -> bool {
    let fits = |name: &str| pattern::fits(pattern.as_bytes(), name.to_ascii_lowercase().as_bytes());
    let settings = ["cors", "tagging", "ownership", "public-access", "versioning", "object-lock"];
    let names = |action: &Action| names_of(*action).iter().chain(version_names_of(*action));
    let of_locks = ["s3:PutObjectLegalHold", "s3:BypassGovernanceRetention"];
    let of_calls = Action::ALL.iter().flat_map(names).copied().chain(of_locks);
    of_calls.chain(settings.iter().flat_map(|setting| name_of_setting(setting)).copied()).any(fits)
        || (is_allow && ALSO_GIVEN.iter().copied().any(fits))
}

#[cfg(test)]
mod tests;
