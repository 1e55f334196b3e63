//! Session policies: what the holder of a temporary key wants to do without. (D225)
//!
//! A key can be made read-only and can be kept to places, so policies that say no more than this are followed, and all others are refused:
//! statements that allow `s3:*`, or `s3:Get*` with `s3:List*`, on all buckets, or on buckets and what is in them below a prefix. What is followed
//! never gives more than the policy says.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use stoker_store::check_bucket_name;

/// Longest policy, as in AWS.
const POLICY_LEN_MAX: usize = 2_048;
const PREFIX: &str = "arn:aws:s3:::";

/// What is left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Narrowed {
    pub(super) is_read_only: bool,
    /// `volume` or `volume/prefix`; empty for everything.
    pub(super) places: Vec<String>,
}

/// Reads a policy, or says what of it cannot be followed.
pub(super) fn parse(text: &str) -> Result<Narrowed, String> {
    if text.len() > POLICY_LEN_MAX {
        return Err(format!("it is longer than {POLICY_LEN_MAX} bytes"));
    }
    let document: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let document = document.as_object().ok_or("it is no JSON object")?;
    known(document, &["Version", "Id", "Statement"])?;
    if document.get("Version").is_some_and(|version| version != "2012-10-17") {
        return Err("its Version has to be 2012-10-17".to_owned());
    }
    let statements = match document.get("Statement") {
        Some(Value::Array(all)) if !all.is_empty() => all.iter().collect(),
        Some(one @ Value::Object(_)) => vec![one],
        _ => return Err("it has no Statement".to_owned()),
    };
    let mut read_only = None;
    // Whether the bucket itself is named, and what in it is.
    let mut buckets: BTreeMap<&str, (bool, Vec<&str>)> = BTreeMap::new();
    let mut is_everywhere = false;
    for statement in statements {
        let statement = statement.as_object().ok_or("a Statement is no JSON object")?;
        known(statement, &["Sid", "Effect", "Action", "Resource"])?;
        if statement.get("Effect").is_none_or(|effect| effect != "Allow") {
            return Err("only Allow is followed".to_owned());
        }
        let is_read = is_read(&texts(statement, "Action")?)?;
        if read_only.replace(is_read).is_some_and(|before| before != is_read) {
            return Err("all statements have to allow the same actions".to_owned());
        }
        for resource in texts(statement, "Resource")? {
            if matches!(resource, "*" | "arn:aws:s3:::*") {
                is_everywhere = true;
                continue;
            }
            let bare = resource.strip_prefix(PREFIX).ok_or(format!("`{resource}` is no bucket"))?;
            let (bucket, keys) =
                bare.split_once('/').map_or((bare, None), |(bucket, keys)| (bucket, Some(keys)));
            check_bucket_name(bucket).map_err(|_| format!("`{resource}` names no bucket"))?;
            let entry = buckets.entry(bucket).or_default();
            match keys {
                None => entry.0 = true,
                Some(keys) => {
                    let prefix = keys.strip_suffix('*').filter(|prefix| !prefix.contains(['*', '?', '$']));
                    entry
                        .1
                        .push(prefix.ok_or(format!("`{resource}` is no prefix of keys with a * behind it"))?);
                }
            }
        }
    }
    let mut places = Vec::new();
    for (bucket, (is_named, prefixes)) in &buckets {
        if !is_named || prefixes.is_empty() {
            return Err(format!(
                "it has to name both {PREFIX}{bucket} and {PREFIX}{bucket}/*, or a prefix instead of the *"
            ));
        }
        places.extend(prefixes.iter().map(|prefix| match *prefix {
            "" => (*bucket).to_owned(),
            prefix => format!("{bucket}/{prefix}"),
        }));
    }
    let places = if is_everywhere { Vec::new() } else { places };
    Ok(Narrowed { is_read_only: read_only == Some(true), places })
}

fn known(object: &Map<String, Value>, names: &[&str]) -> Result<(), String> {
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err(format!("{name} is not followed")),
        None => Ok(()),
    }
}

fn texts<'v>(statement: &'v Map<String, Value>, name: &str) -> Result<Vec<&'v str>, String> {
    let odd = || format!("{name} has to be a text or a list of texts");
    match statement.get(name) {
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(all)) if !all.is_empty() => {
            all.iter().map(|one| one.as_str().ok_or_else(odd)).collect()
        }
        _ => Err(odd()),
    }
}

/// Whether it is reading that is allowed, or everything.
fn is_read(actions: &[&str]) -> Result<bool, String> {
    let has = |name: &str| actions.iter().any(|action| action.eq_ignore_ascii_case(name));
    let odd = actions.iter().find(|action| {
        !["*", "s3:*", "s3:get*", "s3:list*", "s3:headobject", "s3:headbucket"]
            .iter()
            .any(|name| action.eq_ignore_ascii_case(name))
    });
    match odd {
        Some(action) => Err(format!("the action {action} is not followed: s3:*, or s3:Get* and s3:List*")),
        None if has("*") || has("s3:*") => Ok(false),
        None if has("s3:get*") && has("s3:list*") => Ok(true),
        None => Err("reading is s3:Get* and s3:List* together".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(action: &str, resource: &str) -> String {
        format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":{action},"Resource":{resource}}}]}}"#
        )
    }

    #[test]
    fn what_can_be_followed_is() {
        let check = |action: &str, resource: &str, is_read_only: bool, places: &[&str]| {
            let places = places.iter().map(|place| (*place).to_owned()).collect();
            assert_eq!(
                parse(&policy(action, resource)),
                Ok(Narrowed { is_read_only, places }),
                "{action} {resource}"
            );
        };
        let whole = r#"["arn:aws:s3:::data","arn:aws:s3:::data/*"]"#;
        check("\"s3:*\"", "\"*\"", false, &[]);
        check("[\"s3:Get*\",\"s3:List*\"]", "\"arn:aws:s3:::*\"", true, &[]);
        check("\"*\"", whole, false, &["data"]);
        check("[\"S3:GET*\",\"s3:list*\",\"s3:HeadObject\"]", whole, true, &["data"]);
        let part = r#"["arn:aws:s3:::data","arn:aws:s3:::data/run-1/*","arn:aws:s3:::data/run-2/a*"]"#;
        check("\"s3:*\"", part, false, &["data/run-1/", "data/run-2/a"]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let fine = policy("\"s3:*\"", "\"*\"");
        assert!(parse(&fine).is_ok());
        for (bad, about) in [
            ("".to_owned(), "no JSON"),
            ("[]".to_owned(), "no JSON object"),
            ("{}".to_owned(), "no Statement"),
            (r#"{"Statement":[]}"#.to_owned(), "no Statement"),
            (fine.replace("2012-10-17", "2008-10-17"), "Version"),
            (fine.replace("Allow", "Deny"), "only Allow"),
            (fine.replace("\"Effect\"", "\"Principal\":\"*\",\"Effect\""), "Principal"),
            (fine.replace("\"Effect\"", "\"Condition\":{},\"Effect\""), "Condition"),
            (fine.replace("\"Action\"", "\"NotAction\""), "NotAction"),
            (policy("\"s3:GetObject\"", "\"*\""), "s3:GetObject is not followed"),
            (policy("\"s3:Get*\"", "\"*\""), "together"),
            (policy("\"iam:*\"", "\"*\""), "not followed"),
            (policy("7", "\"*\""), "Action has to be"),
            (policy("\"s3:*\"", "[]"), "Resource has to be"),
            (policy("\"s3:*\"", "\"arn:aws:s3:::data\""), "both"),
            (policy("\"s3:*\"", "\"arn:aws:s3:::data/*\""), "both"),
            (policy("\"s3:*\"", "[\"arn:aws:s3:::data\",\"arn:aws:s3:::data/a\"]"), "no prefix"),
            (policy("\"s3:*\"", "[\"arn:aws:s3:::data\",\"arn:aws:s3:::data/a?*\"]"), "no prefix"),
            (
                policy("\"s3:*\"", "[\"arn:aws:s3:::data\",\"arn:aws:s3:::data/${aws:username}/*\"]"),
                "no prefix",
            ),
            (policy("\"s3:*\"", "\"arn:aws:s3:::da*\""), "names no bucket"),
            (policy("\"s3:*\"", "\"arn:aws:s3:::acme_data/*\""), "names no bucket"),
            (policy("\"s3:*\"", "\"arn:aws:sqs:::data\""), "no bucket"),
            (" ".repeat(POLICY_LEN_MAX + 1), "longer"),
        ] {
            let why = parse(&bad).unwrap_err();
            assert!(why.contains(about), "{bad}: {why}");
        }
    }
}
