//! Reading a policy. Mistakes are told with line and column.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::condition::Condition;
use super::pattern::Pattern;
use super::{Fault, Listed, POLICY_LEN_MAX, Policy, Somebody, Statement, Thing, is_known, user_arn};

/// Versions of the language. In the older one variables are plain text, so nothing may look like one.
const VERSION: &str = "2012-10-17";
const VERSION_OLD: &str = "2008-10-17";

const ARN: &str = "arn:aws:s3:::";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Many<RawStatement>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct RawStatement {
    sid: Option<String>,
    effect: RawEffect,
    principal: Option<Principal>,
    not_principal: Option<Principal>,
    action: Option<Many<String>>,
    not_action: Option<Many<String>>,
    resource: Option<Many<String>>,
    not_resource: Option<Many<String>>,
    #[serde(default)]
    condition: BTreeMap<String, BTreeMap<String, Many<Word>>>,
}

#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq)]
enum RawEffect {
    Allow,
    Deny,
}

/// `"*"`, or lists by kind.
enum Principal {
    Everybody,
    Kinds(BTreeMap<String, Many<String>>),
}

/// A text, a number or a truth, as a text.
struct Word(String);

/// One, or a list.
struct Many<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Many<T>, D::Error> {
        struct Found<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Found<T> {
            type Value = Many<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one or a list")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Many<T>, E> {
                Ok(Many(vec![T::deserialize(StrDeserializer::new(text))?]))
            }

            fn visit_bool<E: Error>(self, truth: bool) -> Result<Many<T>, E> {
                self.visit_str(if truth { "true" } else { "false" })
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Many<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Many<T>, A::Error> {
                Ok(Many(vec![T::deserialize(MapAccessDeserializer::new(map))?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Many<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                Ok(Many(all))
            }
        }
        deserializer.deserialize_any(Found(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct Found;
        impl Visitor<'_> for Found {
            type Value = Word;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, true or false")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }

            fn visit_bool<E: Error>(self, truth: bool) -> Result<Word, E> {
                Ok(Word(truth.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(Found)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Principal, D::Error> {
        struct Found;
        impl<'de> Visitor<'de> for Found {
            type Value = Principal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"*\" or {\"AWS\": ...}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Principal, E> {
                match text {
                    "*" => Ok(Principal::Everybody),
                    _ => Err(E::custom(format!(
                        "invalid principal \"{text}\", expected \"*\" or {{\"AWS\": ...}}"
                    ))),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Principal, A::Error> {
                let mut kinds = BTreeMap::new();
                while let Some(kind) = map.next_key::<String>()? {
                    if kind != "AWS" {
                        let _ = map.next_value::<IgnoredAny>()?;
                        return Err(A::Error::custom(format!(
                            "principals of the kind {kind} are not known here"
                        )));
                    }
                    kinds.insert(kind, map.next_value()?);
                }
                Ok(Principal::Kinds(kinds))
            }
        }
        deserializer.deserialize_any(Found)
    }
}

/// Reads a document.
pub(super) fn parse(document: &[u8], bucket: &str, tenant: &str) -> Result<Policy, Fault> {
    if document.len() > POLICY_LEN_MAX {
        return Err(Fault::Malformed(format!("a policy has at most {POLICY_LEN_MAX} bytes")));
    }
    let Document { version, statement, .. } =
        serde_json::from_slice(document).map_err(|fault| Fault::Malformed(fault.to_string()))?;
    let version = version.as_deref().unwrap_or(VERSION_OLD);
    if ![VERSION, VERSION_OLD].contains(&version) {
        return Err(Fault::Malformed(format!("the policy has the version {version}; there is {VERSION}")));
    }
    if version == VERSION_OLD && String::from_utf8_lossy(document).contains("${") {
        return Err(Fault::Unsupported(format!("variables need \"Version\": \"{VERSION}\"")));
    }
    if statement.0.is_empty() {
        return Err(Fault::Malformed("the policy has no statement".into()));
    }
    let statements = statement.0.into_iter().enumerate().map(|(at, raw)| {
        let name = raw.sid.clone().unwrap_or_else(|| (at + 1).to_string());
        raw.read(bucket, tenant).map_err(|fault| fault.of_statement(&name))
    });
    Ok(Policy { statements: statements.collect::<Result<_, _>>()? })
}

impl Fault {
    fn of_statement(self, name: &str) -> Fault {
        let told = |what: String| format!("statement {name}: {what}");
        match self {
            Fault::Malformed(what) => Fault::Malformed(told(what)),
            Fault::Unsupported(what) => Fault::Unsupported(told(what)),
        }
    }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Malformed(what.into()))
}

/// One of two fields that exclude each other; true if it is the negative one.
fn either<T>(name: &str, is: Option<T>, is_not: Option<T>) -> Result<(T, bool), Fault> {
    match (is, is_not) {
        (Some(all), None) => Ok((all, false)),
        (None, Some(all)) => Ok((all, true)),
        (None, None) => malformed(format!("it has no {name}")),
        (Some(_), Some(_)) => malformed(format!("it has both {name} and Not{name}")),
    }
}

impl RawStatement {
    fn read(self, bucket: &str, tenant: &str) -> Result<Statement, Fault> {
        let is_allow = self.effect == RawEffect::Allow;
        let (principal, is_not_who) = either("Principal", self.principal, self.not_principal)?;
        let who = Listed { all: somebodies(principal, tenant)?, is_not: is_not_who };
        if is_allow && (is_not_who || who.all.contains(&Somebody::Everybody)) {
            let what = format!(
                "it allows something to everybody, and the public has no access here; name users as {}, or all of the tenant as \
                 arn:aws:iam::{tenant}:root",
                user_arn(tenant, "NAME")
            );
            return Err(Fault::Unsupported(what));
        }
        let (actions, is_not) = either("Action", self.action, self.not_action)?;
        let all = actions.0.iter().map(|name| action(name, is_allow)).collect::<Result<Vec<_>, _>>()?;
        let actions = Listed { all, is_not };
        let (things, is_not) = either("Resource", self.resource, self.not_resource)?;
        let all = things.0.iter().map(|name| thing(name, bucket)).collect::<Result<Vec<_>, _>>()?;
        let things = Listed { all, is_not };
        if who.all.is_empty() || actions.all.is_empty() || things.all.is_empty() {
            return malformed("a list in it is empty");
        }
        let mut conditions = Vec::new();
        for (operator, keys) in &self.condition {
            for (key, values) in keys {
                let values: Vec<String> = values.0.iter().map(|word| word.0.clone()).collect();
                conditions.push(Condition::parse(operator, key, &values)?);
            }
        }
        Ok(Statement { is_allow, who, actions, things, conditions })
    }
}

fn somebodies(principal: Principal, tenant: &str) -> Result<Vec<Somebody>, Fault> {
    let kinds = match principal {
        Principal::Everybody => return Ok(vec![Somebody::Everybody]),
        Principal::Kinds(kinds) => kinds,
    };
    let somebody = |name: String| {
        let rest = match name.strip_prefix("arn:aws:iam::") {
            Some(rest) => rest,
            None if name == "*" => return Ok(Somebody::Everybody),
            None if name == tenant => return Ok(Somebody::Tenant),
            None => return malformed(format!("invalid principal `{name}`")),
        };
        match rest.split_once(':') {
            Some((of, _)) if of != tenant => Err(Fault::Unsupported(format!(
                "`{name}`: who belongs to another tenant than {tenant} does not reach the bucket"
            ))),
            Some((_, "root")) => Ok(Somebody::Tenant),
            Some((_, who)) => match who.strip_prefix("user/") {
                Some(user) if !user.is_empty() && !user.contains(['*', '?', '/']) => {
                    Ok(Somebody::User(user.to_owned()))
                }
                _ => Err(Fault::Unsupported(format!("`{name}`: there are users and the tenant (root)"))),
            },
            None => malformed(format!("invalid principal `{name}`")),
        }
    };
    kinds.into_values().flat_map(|names| names.0).map(somebody).collect()
}

fn action(name: &str, is_allow: bool) -> Result<Pattern, Fault> {
    let lower = name.to_ascii_lowercase();
    if lower != "*" && !lower.starts_with("s3:") {
        return malformed(format!("invalid action `{name}`"));
    }
    if !is_known(&lower, is_allow) {
        return Err(Fault::Unsupported(format!("nothing here can be decided by the action `{name}`")));
    }
    Pattern::parse(&lower).ok_or_else(|| Fault::Malformed(format!("invalid action `{name}`")))
}

fn thing(name: &str, bucket: &str) -> Result<Thing, Fault> {
    let elsewhere =
        || Fault::Malformed(format!("`{name}` is not in the bucket; write {ARN}{bucket} or {ARN}{bucket}/*"));
    if name == "*" {
        return Ok(Thing::All);
    }
    let place = name.strip_prefix(ARN).ok_or_else(elsewhere)?;
    if place == "*" || place.strip_suffix('*') == Some(bucket) {
        return Ok(Thing::All);
    }
    match place.strip_prefix(bucket).ok_or_else(elsewhere)? {
        "" => Ok(Thing::Volume),
        rest => {
            let keys = rest.strip_prefix('/').ok_or_else(elsewhere)?;
            let unknown =
                || Fault::Unsupported(format!("`{name}`: the one variable here is ${{aws:username}}"));
            Pattern::parse(keys).map(Thing::Keys).ok_or_else(unknown)
        }
    }
}
