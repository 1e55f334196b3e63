//! The policy of a form upload: what its signer allows a browser to send.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::clock;
use crate::refusal::{Code, Refusal, Result};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Rule {
    Equal(String, String),
    StartsWith(String, String),
}

/// A policy that was read; whose it is was checked elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    expires_s: i64,
    rules: Vec<Rule>,
    /// Fewest and most bytes of the file.
    pub(crate) size: (u64, u64),
}

impl Policy {
    /// Reads the field `policy`.
    pub(crate) fn parse(text: &str) -> Result<Policy> {
        let json = STANDARD.decode(text).map_err(|_| invalid("it is not base64"))?;
        let json: Value = serde_json::from_slice(&json).map_err(|_| invalid("it is not JSON"))?;
        let expires_s = json["expiration"].as_str().and_then(clock::parse_extended);
        let mut policy = Policy {
            expires_s: expires_s.ok_or_else(|| invalid("it has no valid expiration"))?,
            rules: Vec::new(),
            size: (0, u64::MAX),
        };
        for condition in json["conditions"].as_array().ok_or_else(|| invalid("it has no conditions"))? {
            policy.add(condition)?;
        }
        Ok(policy)
    }

    fn add(&mut self, condition: &Value) -> Result<()> {
        let odd = || invalid("a condition has an unknown form");
        if let Some(map) = condition.as_object() {
            if map.len() != 1 {
                return Err(invalid("a simple condition has exactly one property"));
            }
            for (name, value) in map {
                let value = value.as_str().ok_or_else(odd)?;
                self.rules.push(Rule::Equal(name.to_ascii_lowercase(), value.to_owned()));
            }
            return Ok(());
        }
        let [kind, first, second] = condition.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(odd());
        };
        let kind = kind.as_str().map(str::to_ascii_lowercase).ok_or_else(odd)?;
        if kind == "content-length-range" {
            let number =
                |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok()).ok_or_else(odd);
            self.size = (number(first)?, number(second)?);
            return Ok(());
        }
        let name =
            first.as_str().and_then(|name| name.strip_prefix('$')).ok_or_else(odd)?.to_ascii_lowercase();
        let value = second.as_str().ok_or_else(odd)?.to_owned();
        self.rules.push(match kind.as_str() {
            "eq" => Rule::Equal(name, value),
            "starts-with" => Rule::StartsWith(name, value),
            _ => return Err(odd()),
        });
        Ok(())
    }

    /// Whether it allows these fields at this time. Names are in lower case.
    pub(crate) fn check(&self, fields: &[(String, String)], volume: &str, now_s: i64) -> Result<()> {
        let denied = |words: String| {
            Err(Refusal::new(Code::AccessDenied, format!("Invalid according to Policy: {words}")))
        };
        if now_s >= self.expires_s {
            return denied("Policy expired.".to_owned());
        }
        let value = |name: &str| match name {
            "bucket" => Some(volume),
            _ => fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str()),
        };
        for rule in &self.rules {
            let (name, holds) = match rule {
                Rule::Equal(name, want) => (name, value(name) == Some(want)),
                Rule::StartsWith(name, want) => {
                    (name, value(name).is_some_and(|value| value.starts_with(want)))
                }
            };
            if !holds {
                return denied(format!("Policy Condition failed: {name}"));
            }
        }
        let named = |field: &str| {
            self.rules
                .iter()
                .any(|rule| matches!(rule, Rule::Equal(name, _) | Rule::StartsWith(name, _) if name == field))
        };
        let free = |name: &str| {
            matches!(name, "policy" | "x-amz-signature" | "file" | "awsaccesskeyid" | "signature")
                || name.starts_with("x-ignore-")
                // They let the body be what it is, and nothing else.
                || name.starts_with("x-amz-checksum-")
        };
        match fields.iter().find(|(name, _)| !free(name) && !named(name)) {
            Some((name, _)) => denied(format!("Extra input fields: {name}")),
            None => Ok(()),
        }
    }
}

fn invalid(words: &str) -> Refusal {
    Refusal::new(Code::InvalidPolicyDocument, format!("The policy of the form is invalid: {words}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> Result<Policy> {
        Policy::parse(&STANDARD.encode(json))
    }

    const GOOD: &str = r#"{"expiration":"2013-05-24T00:00:00.000Z","conditions":[{"bucket":"vol"},
        ["starts-with","$key","user/"],["eq","$acl","private"],["content-length-range",1,"10"],
        ["starts-with","$Content-Type",""]]}"#;
    const BEFORE_S: i64 = 1_369_353_599;

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_policy_allows_what_it_names() {
        let policy = policy(GOOD).unwrap();
        assert_eq!(policy.size, (1, 10));
        let good = [
            ("key", "user/a"),
            ("acl", "private"),
            ("content-type", "text/plain"),
            ("policy", "x"),
            ("x-ignore-a", "b"),
            ("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
        ];
        assert!(policy.check(&fields(&good), "vol", BEFORE_S).is_ok());
        assert!(policy.check(&fields(&good), "other", BEFORE_S).is_err());
        assert!(policy.check(&fields(&good), "vol", BEFORE_S + 1).is_err());
        let mut extra = fields(&good);
        extra.push(("x-amz-meta-a".to_owned(), "b".to_owned()));
        assert!(policy.check(&extra, "vol", BEFORE_S).is_err());
        for (at, wrong) in [(0, "users/a"), (1, "public-read")] {
            let mut fields = fields(&good);
            fields[at].1 = wrong.to_owned();
            assert_eq!(policy.check(&fields, "vol", BEFORE_S).unwrap_err().code, Code::AccessDenied);
        }
        assert!(policy.check(&fields(&good[..2]), "vol", BEFORE_S).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"expiration":"2013-05-24T00:00:00Z"}"#,
            r#"{"expiration":"soon","conditions":[]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[1]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[{}]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[{"acl":"private","bucket":"vol"}]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[["eq","key","a"]]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[["ends-with","$key","a"]]}"#,
            r#"{"expiration":"2013-05-24T00:00:00Z","conditions":[["content-length-range",-1,5]]}"#,
        ] {
            assert_eq!(policy(bad).unwrap_err().code, Code::InvalidPolicyDocument, "{bad}");
        }
        assert!(Policy::parse("***").is_err());
    }
}
