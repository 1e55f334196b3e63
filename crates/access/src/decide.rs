//! The decision. Pure: rights, an action and what it is about in, yes or no out.

use stoker_format::past_parts;
use stoker_store::{ErrorKind, StoreError, TENANT_DEFAULT, volume_tenant};

use crate::action::{Action, Kind};

/// What an action is about. Volumes by their full names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource<'a> {
    /// The cluster, or nothing in particular.
    Cluster,
    /// That a volume is there.
    Glimpse(&'a str),
    /// A volume as a whole.
    Volume(&'a str),
    /// A key, or all keys that start so.
    Key(&'a str, &'a [u8]),
}

impl<'a> Resource<'a> {
    /// The volume that it is about.
    pub fn volume(self) -> Option<&'a str> {
        match self {
            Resource::Cluster => None,
            Resource::Glimpse(volume) | Resource::Volume(volume) | Resource::Key(volume, _) => Some(volume),
        }
    }
}

impl<'a> Resource<'a> {
    /// The key, if it is about one version of one.
    pub(crate) fn of_version(self) -> Option<Resource<'a>> {
        match self {
            Resource::Key(volume, key) => past_parts(key).map(|(of, _)| Resource::Key(volume, of)),
            Resource::Cluster | Resource::Glimpse(_) | Resource::Volume(_) => None,
        }
    }
}

/// A place: a volume, or the keys in it that start so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    volume: String,
    prefix: Vec<u8>,
}

impl Scope {
    /// Reads `volume` or `volume/prefix`, with the full name of the volume.
    pub fn parse(text: &str) -> Scope {
        let (volume, prefix) = text.split_once('/').unwrap_or((text, ""));
        Scope { volume: volume.to_owned(), prefix: prefix.as_bytes().to_vec() }
    }

    fn covers(&self, resource: Resource<'_>) -> bool {
        match resource {
            Resource::Cluster => true,
            Resource::Glimpse(volume) => volume == self.volume,
            Resource::Volume(volume) => volume == self.volume && self.prefix.is_empty(),
            Resource::Key(volume, key) => volume == self.volume && key.starts_with(&self.prefix),
        }
    }
}

/// Somebody in a tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The tenant.
    pub tenant: String,
    /// May not change anything.
    pub read_only: bool,
    /// Places, of which one of each list has to cover what is asked for. An empty list covers everything in the tenant.
    pub scopes: Vec<Vec<Scope>>,
    /// Volumes of other tenants, by their full names: what an operator opened to an endpoint by name.
    pub also: Vec<String>,
}

impl Member {
    /// One who may do everything in a tenant.
    pub fn of(tenant: &str) -> Member {
        Member { tenant: tenant.to_owned(), read_only: false, scopes: Vec::new(), also: Vec::new() }
    }

    /// Whether there is anything in the tenant that they do not see.
    pub fn is_limited(&self) -> bool {
        self.scopes.iter().any(|list| !list.is_empty())
    }

    fn owns(&self, volume: &str) -> bool {
        volume_tenant(volume).0 == self.tenant || self.also.iter().any(|also| also == volume)
    }

    fn covers(&self, resource: Resource<'_>) -> bool {
        self.scopes.iter().all(|list| list.is_empty() || list.iter().any(|scope| scope.covers(resource)))
    }
}

/// What somebody may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Everything.
    Operator,
    /// Look at the cluster and at names, and at no bytes.
    Viewer,
    /// Work in a tenant.
    Member(Member),
    /// Nothing.
    Nobody,
}

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Nobody knows who asks.
    Stranger,
    /// It is for those who run the cluster.
    Operators,
    /// They may look and not change.
    ReadOnly,
    /// It is a place that they do not see.
    Elsewhere,
    /// It is the audit log, which nobody changes.
    AuditLog,
    /// The policy of the volume says no.
    Policy,
}

impl Reason {
    /// As the door says it. Says nothing of what is there.
    pub fn fault(self) -> StoreError {
        let message = match self {
            Reason::Stranger => "Access Denied: it is not known who asks.",
            Reason::Operators => "Access Denied: this is for operators of the cluster.",
            Reason::ReadOnly => "Access Denied: whoever asks may read this, not change it.",
            Reason::Elsewhere => "Access Denied: whoever asks may use other places, not this one.",
            Reason::AuditLog => "Access Denied: the cluster alone writes its audit log.",
            Reason::Policy => "Access Denied: the policy of the bucket says no.",
        };
        StoreError::new(ErrorKind::Denied, message)
    }

    /// Whether an error is one of a decision.
    pub(crate) fn is_of(fault: &StoreError) -> bool {
        use Reason as R;
        let all = [R::Stranger, R::Operators, R::ReadOnly, R::Elsewhere, R::AuditLog, R::Policy];
        all.into_iter().any(|reason| reason.fault().message == fault.message)
    }
}

/// Yes or no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Yes.
    Allow,
    /// No.
    Deny(Reason),
}

impl Verdict {
    /// Whether it is yes.
    pub fn is_allowed(self) -> bool {
        self == Verdict::Allow
    }

    /// An error if it is no.
    pub fn check(self) -> Result<(), StoreError> {
        match self {
            Verdict::Allow => Ok(()),
            Verdict::Deny(reason) => Err(reason.fault()),
        }
    }
}

/// The volume that closed segments of the audit log are put into. Operators and viewers read it, nobody changes it, and for others it is not there.
pub const AUDIT_VOLUME: &str = "stoker-audit";

/// Whether somebody may do this. What no rule allows is refused.
pub fn decide(rights: &Rights, action: Action, resource: Resource<'_>) -> Verdict {
    if resource.volume() == Some(AUDIT_VOLUME) {
        match rights {
            Rights::Operator if action.kind() == Kind::Write => return Verdict::Deny(Reason::AuditLog),
            Rights::Member(_) => return Verdict::Deny(Reason::Elsewhere),
            Rights::Operator | Rights::Viewer | Rights::Nobody => {}
        }
    }
    let member = match rights {
        Rights::Operator => return Verdict::Allow,
        Rights::Nobody => return Verdict::Deny(Reason::Stranger),
        Rights::Viewer => {
            return match action.kind() {
                Kind::Glimpse | Kind::Look | Kind::Watch => Verdict::Allow,
                Kind::Read | Kind::Write | Kind::Operate => Verdict::Deny(Reason::Operators),
            };
        }
        Rights::Member(member) => member,
    };
    match action.kind() {
        Kind::Watch | Kind::Operate => return Verdict::Deny(Reason::Operators),
        Kind::Write if member.read_only => return Verdict::Deny(Reason::ReadOnly),
        Kind::Write | Kind::Glimpse | Kind::Look | Kind::Read => {}
    }
    if resource.volume().is_some_and(|volume| !member.owns(volume)) || !member.covers(resource) {
        return Verdict::Deny(Reason::Elsewhere);
    }
    Verdict::Allow
}

/// The full name of a volume that a member of a tenant names. One that cannot be named so gets a name that no volume has.
pub(crate) fn full_name(member: &Member, volume: &str) -> Option<String> {
    match (member.tenant.as_str(), volume.contains(stoker_store::TENANT_MARK)) {
        (TENANT_DEFAULT, false) => None,
        (TENANT_DEFAULT, true) if member.also.iter().any(|also| also == volume) => None,
        (TENANT_DEFAULT, true) => Some(format!("{}{volume}", stoker_store::TENANT_MARK)),
        (tenant, _) => Some(stoker_store::full_volume_name(tenant, volume)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(tenant: &str, read_only: bool, scopes: &[&[&str]]) -> Rights {
        let scopes = scopes.iter().map(|list| list.iter().map(|text| Scope::parse(text)).collect()).collect();
        Rights::Member(Member { read_only, scopes, ..Member::of(tenant) })
    }

    /// Every kind of caller against every kind of action, as the table says: y allowed, r read only, e elsewhere, o operators, s stranger.
    #[test]
    fn the_table() {
        let kinds = [Kind::Glimpse, Kind::Look, Kind::Read, Kind::Write, Kind::Watch, Kind::Operate];
        let rows: [(&str, Rights, &str); 8] = [
            ("operator", Rights::Operator, "yyyyyy"),
            ("viewer", Rights::Viewer, "yyooyo"),
            ("nobody", Rights::Nobody, "ssssss"),
            ("member", member("acme", false, &[]), "yyyyoo"),
            ("reader", member("acme", true, &[]), "yyyroo"),
            ("other tenant", member("beta", false, &[]), "eeeeoo"),
            ("default tenant", member("default", false, &[]), "eeeeoo"),
            ("elsewhere in the tenant", member("acme", false, &[&["acme_other"]]), "eeeeoo"),
        ];
        for (who, rights, expect) in rows {
            for (kind, expect) in kinds.iter().zip(expect.chars()) {
                for action in Action::ALL.iter().filter(|action| action.kind() == *kind) {
                    let resource = match kind {
                        Kind::Watch | Kind::Operate => Resource::Cluster,
                        Kind::Glimpse => Resource::Glimpse("acme_data"),
                        _ => Resource::Key("acme_data", b"a/b"),
                    };
                    let found = match decide(&rights, *action, resource) {
                        Verdict::Allow => 'y',
                        Verdict::Deny(Reason::ReadOnly) => 'r',
                        Verdict::Deny(Reason::Elsewhere) => 'e',
                        Verdict::Deny(Reason::Operators) => 'o',
                        Verdict::Deny(Reason::Stranger) => 's',
                        Verdict::Deny(Reason::AuditLog) => 'a',
                        Verdict::Deny(Reason::Policy) => 'p',
                    };
                    assert_eq!(found, expect, "{who}: {action:?}");
                }
            }
        }
    }

    #[test]
    fn places_limit() {
        let limited = member("default", false, &[&["vol/logs/", "other"]]);
        for (resource, fine) in [
            (Resource::Key("vol", b"logs/a"), true),
            (Resource::Key("vol", b"logs/"), true),
            (Resource::Key("vol", b"logs"), false),
            (Resource::Key("vol", b""), false),
            (Resource::Key("other", b""), true),
            (Resource::Key("vol2", b"logs/a"), false),
            (Resource::Key("othe", b"r"), false),
            (Resource::Volume("vol"), false),
            (Resource::Volume("other"), true),
            (Resource::Glimpse("vol"), true),
            (Resource::Glimpse("third"), false),
        ] {
            assert_eq!(decide(&limited, Action::Delete, resource).is_allowed(), fine, "{resource:?}");
        }
        // What a user may see and what one of their keys may see: both have to cover it.
        let both =
            member("acme", false, &[&["acme_acme/vision/"], &["acme_acme/vision/run-1/", "acme_data"]]);
        for (resource, fine) in [
            (Resource::Key("acme_acme", b"vision/run-1/x"), true),
            (Resource::Key("acme_acme", b"vision/run-2/x"), false),
            (Resource::Key("acme_data", b"x"), false),
        ] {
            assert_eq!(decide(&both, Action::Open, resource).is_allowed(), fine, "{resource:?}");
        }
    }

    #[test]
    fn nobody_changes_the_audit_log_and_tenants_do_not_see_it() {
        let of = |rights: &Rights, action| decide(rights, action, Resource::Key(AUDIT_VOLUME, b"n/segment"));
        assert_eq!(of(&Rights::Operator, Action::Open), Verdict::Allow);
        assert_eq!(of(&Rights::Operator, Action::VolumeSet), Verdict::Allow);
        assert_eq!(of(&Rights::Viewer, Action::List), Verdict::Allow);
        for action in
            [Action::Create, Action::Delete, Action::Rename, Action::VolumeDelete, Action::SetAttributes]
        {
            assert_eq!(of(&Rights::Operator, action), Verdict::Deny(Reason::AuditLog), "{action:?}");
        }
        for action in [Action::Open, Action::List, Action::Create, Action::Volume] {
            let member = member("default", false, &[]);
            assert_eq!(of(&member, action), Verdict::Deny(Reason::Elsewhere), "{action:?}");
        }
    }

    #[test]
    fn names_are_understood_within_the_tenant() {
        let check = |tenant: &str, volume: &str, expect: &str| {
            let member = Member { also: vec!["acme_open".into()], ..Member::of(tenant) };
            let full = full_name(&member, volume).unwrap_or_else(|| volume.to_owned());
            assert_eq!(full, expect, "{tenant} {volume}");
            if !volume.starts_with("acme_open") {
                let is_allowed =
                    decide(&Rights::Member(member), Action::Open, Resource::Key(&full, b"x")).is_allowed();
                assert_eq!(is_allowed, volume_tenant(&full).0 == tenant);
            }
        };
        check("default", "data", "data");
        check("default", "acme_data", "_acme_data");
        check("default", "acme_open", "acme_open");
        check("acme", "data", "acme_data");
        check("acme", "beta_data", "acme_beta_data");
        check("acme", "acme_data", "acme_acme_data");
    }
}
