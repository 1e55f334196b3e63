//! Roles: who of a provider's users becomes which user here. (D227)
//!
//! A role leads to a user of the cluster, whose row is in the catalog: so its rights, quotas and end are those of a user, and the same on every
//! node. A role can only take away from them.

use std::fmt;
use std::sync::Arc;

use stoker_store::{UserName, check_who_name};

use crate::claims::Claims;
use crate::issuer::{Issuer, IssuerOptions};
use crate::jwt::Token;
use crate::{Rejected, invalid};

/// The name of a role: `TENANT/ROLE`, and `arn:aws:iam::TENANT:role/ROLE` for AWS's programs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RoleName {
    /// Tenant.
    pub tenant: String,
    /// Role.
    pub role: String,
}

impl RoleName {
    /// Reads `TENANT/ROLE`.
    pub fn parse(text: &str) -> Result<RoleName, String> {
        let (tenant, role) = text.split_once('/').ok_or("a role is called TENANT/ROLE")?;
        check_who_name("tenant", tenant).map_err(|fault| fault.message)?;
        check_who_name("role", role).map_err(|fault| fault.message)?;
        Ok(RoleName { tenant: tenant.to_owned(), role: role.to_owned() })
    }

    /// Reads `arn:aws:iam::TENANT:role/ROLE`.
    pub fn of_arn(arn: &str) -> Option<RoleName> {
        let (tenant, role) = arn.strip_prefix("arn:aws:iam::")?.split_once(":role/")?;
        RoleName::parse(&format!("{tenant}/{role}")).ok()
    }

    /// The other form of it.
    pub fn arn(&self) -> String {
        format!("arn:aws:iam::{}:role/{}", self.tenant, self.role)
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.role)
    }
}

/// What users of a provider may become, and which of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Role {
    /// Its name.
    pub name: RoleName,
    /// The user of its tenant that they become, or `{CLAIM}` for the one that a claim names.
    pub user: String,
    /// They are in one of these groups; empty if that does not matter.
    pub groups: Vec<String>,
    /// Their subject fits one of these patterns; empty if that does not matter.
    pub subjects: Vec<String>,
    /// Each of these claims fits its pattern.
    pub claims: Vec<(String, String)>,
    /// They may not change anything.
    pub is_read_only: bool,
    /// Only these places of the tenant, as `volume` or `volume/prefix`; empty for all that the user may.
    pub prefixes: Vec<String>,
    /// Longest life of their keys.
    pub duration_max_s: u32,
}

impl Role {
    /// Refuses what cannot be, or is for everybody without saying so.
    pub fn check(&self) -> Result<(), String> {
        match self.user.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some("") => return Err("`{}` names no claim".to_owned()),
            Some(_) => {}
            None => check_who_name("user", &self.user).map_err(|fault| fault.message)?,
        }
        if self.groups.is_empty() && self.subjects.is_empty() && self.claims.is_empty() {
            return Err(format!(
                "role {} would be for everybody whom the issuer knows: say whom by `groups`, `subjects` or `claims` (`subjects = [\"*\"]` for \
                 everybody)",
                self.name
            ));
        }
        Ok(())
    }

    /// The user whom these claims make; why not, if they do not.
    fn user(&self, claims: &Claims, groups_claim: &str) -> Result<UserName, String> {
        let subject = std::slice::from_ref(&claims.subject);
        let fits_subject = |pattern: &String| subject.iter().any(|one| crate::pattern_fits(pattern, one));
        if !self.subjects.is_empty() && !self.subjects.iter().any(fits_subject) {
            return Err("its subject is not one of those that the role is for".to_owned());
        }
        if !self.groups.is_empty() && !claims.has_one(groups_claim, &self.groups) {
            return Err(format!(
                "none of its groups (`{groups_claim}`) is one of those that the role is for"
            ));
        }
        if let Some((name, _)) =
            self.claims.iter().find(|(name, pattern)| !claims.has_one(name, std::slice::from_ref(pattern)))
        {
            return Err(format!("its claim `{name}` is not what the role asks for"));
        }
        let user = match self.user.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            None => self.user.as_str(),
            Some(name) => {
                let user =
                    claims.text(name).ok_or(format!("it has no claim `{name}`, which names the user"))?;
                check_who_name("user", user).map_err(|_| format!("its claim `{name}` can name no user"))?;
                user
            }
        };
        Ok(UserName { tenant: self.name.tenant.clone(), user: user.to_owned() })
    }
}

/// What somebody became.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assumed {
    /// By which role.
    pub role: Role,
    /// Which user.
    pub user: UserName,
    /// Who they are for their provider.
    pub subject: String,
    /// For whom their token was made.
    pub audience: String,
    /// The provider.
    pub issuer: String,
}

/// All providers of a configuration.
#[derive(Default)]
pub struct Issuers {
    all: Vec<Arc<Issuer>>,
}

impl Issuers {
    /// These.
    pub fn new(options: Vec<IssuerOptions>) -> Issuers {
        Issuers { all: options.into_iter().map(|options| Arc::new(Issuer::new(options))).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<Issuer>] {
        &self.all
    }

    /// The one that signed a token, by what the token says. It is not believed before its signature fits one of that issuer's keys.
    pub fn of_token(&self, token: &str) -> Result<&Arc<Issuer>, Rejected> {
        let token = Token::parse(token)?;
        let said = token.claims.get("iss").and_then(serde_json::Value::as_str);
        match self.all.iter().find(|issuer| Some(issuer.options().issuer.as_str()) == said) {
            Some(issuer) => Ok(issuer),
            None => invalid("the token is of an issuer that this cluster does not know"),
        }
    }

    /// What the holder of a token becomes by a role.
    pub async fn assume(&self, role: &RoleName, token: &str, now_s: i64) -> Result<Assumed, Rejected> {
        let issuer = self.of_token(token)?;
        let options = issuer.options();
        let claims = issuer.verify(token, &options.audiences, now_s).await?;
        let mut why = format!("this cluster has no role {role} for users of this issuer");
        // One name may stand for several rules.
        for rule in options.roles.iter().filter(|rule| rule.name == *role) {
            match rule.user(&claims, &options.groups_claim) {
                Ok(user) => {
                    let issuer = options.issuer.clone();
                    let Claims { subject, audience, .. } = claims;
                    return Ok(Assumed { role: rule.clone(), user, subject, audience, issuer });
                }
                Err(other) => why = format!("the token is not enough for role {role}: {other}"),
            }
        }
        Err(Rejected::Denied(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_have_two_forms() {
        let name = RoleName::parse("acme/trainer").unwrap();
        assert_eq!(name.arn(), "arn:aws:iam::acme:role/trainer");
        assert_eq!(RoleName::of_arn(&name.arn()), Some(name));
        for bad in [
            "",
            "acme/trainer",
            "arn:aws:iam::acme:user/trainer",
            "arn:aws:iam::acme:role/",
            "arn:aws:iam:::role/trainer",
            "arn:aws:iam::acme:role/a/b",
            "arn:aws:iam::ac_me:role/trainer",
            "arn:aws:sts::acme:role/trainer",
        ] {
            assert_eq!(RoleName::of_arn(bad), None, "{bad}");
        }
    }
}
