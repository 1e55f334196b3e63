//! Providers whose users become users here, by their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use stoker_oidc::{ConsoleOptions, IssuerOptions, Role, RoleName, check_url};
use stoker_store::{check_bucket_name, check_who_name};
use toml::Spanned;

use super::value;
use crate::failure::Failure;
use crate::place::read_small;

/// Most providers.
const ISSUERS_MAX: usize = 32;
/// Most that clocks may differ.
const SKEW_S_MAX: u32 = 600;
/// Longest time that known keys go on.
const STALE_S_MAX: u32 = 30 * 86_400;
/// Life of temporary keys.
const DURATION_S: std::ops::RangeInclusive<u32> = 900..=43_200;

/// A provider.
#[derive(Deserialize, PartialEq, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Oidc {
    pub name: Spanned<String>,
    pub issuer: Spanned<String>,
    #[serde(default)]
    pub audiences: Vec<String>,
    #[serde(default = "groups")]
    pub groups_claim: String,
    #[serde(default = "skew_s")]
    pub clock_skew_s: u32,
    #[serde(default = "stale_s")]
    pub keys_stale_s: u32,
    #[serde(default, deserialize_with = "value::optional")]
    pub ca_file: Option<PathBuf>,
    #[serde(default)]
    pub role: Vec<OidcRole>,
    pub console: Option<OidcConsole>,
}

/// What its users may become.
#[derive(Deserialize, PartialEq, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct OidcRole {
    pub role: Spanned<String>,
    pub user: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub subjects: Vec<String>,
    #[serde(default)]
    pub claims: BTreeMap<String, String>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub prefixes: Vec<String>,
    #[serde(default = "duration_max_s")]
    pub duration_max_s: u32,
}

/// Whom of them the console lets in.
#[derive(Deserialize, PartialEq, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct OidcConsole {
    pub client_id: String,
    #[serde(default, deserialize_with = "value::optional")]
    pub client_secret_file: Option<PathBuf>,
    #[serde(default = "scopes")]
    pub scopes: Vec<String>,
    #[serde(default)]
    pub operators: Vec<String>,
    #[serde(default)]
    pub viewers: Vec<String>,
    #[serde(default, deserialize_with = "value::optional")]
    pub url: Option<String>,
}

fn groups() -> String {
    "groups".to_owned()
}

fn skew_s() -> u32 {
    60
}

fn stale_s() -> u32 {
    86_400
}

fn duration_max_s() -> u32 {
    3_600
}

fn scopes() -> Vec<String> {
    vec!["profile".to_owned()]
}

/// Where a mistake is, and what it is.
type Mistake = (Range<usize>, String);

impl OidcRole {
    fn role(&self) -> Result<Role, Mistake> {
        let wrong = |words: String| (self.role.span(), words);
        if !DURATION_S.contains(&self.duration_max_s) {
            return Err(wrong("`duration_max_s` is 900 to 43200".to_owned()));
        }
        for prefix in &self.prefixes {
            let volume = prefix.split_once('/').map_or(prefix.as_str(), |(volume, _)| volume);
            check_bucket_name(volume).map_err(|fault| wrong(format!("`prefixes`: {}", fault.message)))?;
        }
        let role = Role {
            name: RoleName::parse(self.role.get_ref()).map_err(wrong)?,
            user: self.user.clone(),
            groups: self.groups.clone(),
            subjects: self.subjects.clone(),
            claims: self.claims.clone().into_iter().collect(),
            is_read_only: self.read_only,
            prefixes: self.prefixes.clone(),
            duration_max_s: self.duration_max_s,
        };
        role.check().map_err(wrong)?;
        Ok(role)
    }
}

impl OidcConsole {
    fn options(&self) -> Result<ConsoleOptions, String> {
        if self.client_id.is_empty() {
            return Err("[oidc.console] needs the `client_id` that the issuer has for the console".to_owned());
        }
        if self.operators.is_empty() && self.viewers.is_empty() {
            return Err("[oidc.console] lets nobody in: name groups as `operators` or `viewers`".to_owned());
        }
        if let Some(url) = &self.url {
            check_url(url).map_err(|why| format!("[oidc.console] `url`: {why}"))?;
        }
        Ok(ConsoleOptions {
            client_id: self.client_id.clone(),
            client_secret: None,
            scopes: self.scopes.clone(),
            operators: self.operators.clone(),
            viewers: self.viewers.clone(),
            url: self.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
        })
    }
}

impl Oidc {
    fn options(&self) -> Result<IssuerOptions, Mistake> {
        let at_name = |words: String| (self.name.span(), words);
        let at_issuer = |words: String| (self.issuer.span(), words);
        check_who_name("provider", self.name.get_ref()).map_err(|fault| at_name(fault.message))?;
        check_url(self.issuer.get_ref()).map_err(at_issuer)?;
        if self.clock_skew_s > SKEW_S_MAX {
            return Err(at_name(format!("`clock_skew_s` is at most {SKEW_S_MAX}")));
        }
        if self.keys_stale_s > STALE_S_MAX {
            return Err(at_name(format!("`keys_stale_s` is at most {STALE_S_MAX}")));
        }
        if !self.role.is_empty() && self.audiences.iter().all(String::is_empty) {
            return Err(at_name(
                "roles need `audiences`: what tokens for this cluster have as `aud`; without it, tokens for others would do".to_owned(),
            ));
        }
        let console = self.console.as_ref().map(OidcConsole::options).transpose().map_err(at_name)?;
        Ok(IssuerOptions {
            name: self.name.get_ref().clone(),
            issuer: self.issuer.get_ref().clone(),
            audiences: self.audiences.iter().filter(|one| !one.is_empty()).cloned().collect(),
            groups_claim: self.groups_claim.clone(),
            skew_s: self.clock_skew_s,
            stale_max: Duration::from_secs(self.keys_stale_s.into()),
            ca_file: self.ca_file.clone(),
            roles: self.role.iter().map(OidcRole::role).collect::<Result<_, _>>()?,
            console,
        })
    }
}

/// Finds the first mistake in what is said of providers.
pub(super) fn check(all: &[Oidc]) -> Result<(), Mistake> {
    let (mut names, mut issuers) = (BTreeSet::new(), BTreeSet::new());
    for one in all {
        one.options()?;
        if !names.insert(one.name.get_ref()) {
            return Err((one.name.span(), "two [[oidc]] have this name".to_owned()));
        }
        if !issuers.insert(one.issuer.get_ref()) {
            let words = "two [[oidc]] have this issuer; put all its roles under one".to_owned();
            return Err((one.issuer.span(), words));
        }
    }
    match all.get(ISSUERS_MAX) {
        Some(one) => Err((one.name.span(), format!("there are at most {ISSUERS_MAX} [[oidc]]"))),
        None => Ok(()),
    }
}

/// The same as those who ask providers have it, with what is in files.
pub fn issuers(all: &[Oidc]) -> Result<Vec<IssuerOptions>, Failure> {
    let one = |one: &Oidc| {
        let mut options = one.options().map_err(|(_, words)| Failure::new(words))?;
        let file = one.console.as_ref().and_then(|console| console.client_secret_file.as_ref());
        if let (Some(console), Some(file)) = (&mut options.console, file) {
            let secret = read_small(file)?.map(|secret| secret.trim().to_owned());
            let Some(secret) = secret.filter(|secret| !secret.is_empty()) else {
                return Err(Failure::new(format!("{} is empty or not there", file.display()))
                    .hint("it holds the secret that the issuer has for the console"));
            };
            console.client_secret = Some(secret);
        }
        Ok(options)
    };
    all.iter().map(one).collect()
}
