//! What a token says of somebody, once its signature fits.

use serde_json::{Map, Value};

use crate::Rejected;

/// Longest text of a claim that becomes a name here.
const TEXT_LEN_MAX: usize = 255;
/// Most groups that are looked at.
const GROUPS_MAX: usize = 1_000;

/// Claims of a token whose signature fits, whose issuer and audience are right and whose time has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claims {
    all: Map<String, Value>,
    /// Whom it is about, by the provider's name for them.
    pub subject: String,
    /// For whom it was made, of those that the configuration takes.
    pub audience: String,
    /// When it is over, seconds since 1970.
    pub expires_s: i64,
}

/// What claims have to be.
pub(crate) struct Demands<'a> {
    pub issuer: &'a str,
    pub audiences: &'a [String],
    pub skew_s: i64,
    pub now_s: i64,
}

fn claim(why: impl Into<String>) -> Rejected {
    Rejected::Claim(why.into())
}

/// A time in seconds since 1970, with a fraction or without.
fn time(all: &Map<String, Value>, name: &str) -> Result<Option<i64>, Rejected> {
    let odd = || Rejected::Invalid(format!("the token's `{name}` is no time"));
    let Some(value) = all.get(name) else { return Ok(None) };
    let seconds = value.as_i64().or_else(|| {
        let seconds = value.as_f64().filter(|seconds| seconds.abs() < 1e15)?;
        // It is within an i64 by far.
        Some(seconds.floor() as i64)
    });
    seconds.filter(|seconds| seconds.abs() < 1_000_000_000_000_000).map(Some).ok_or_else(odd)
}

impl Claims {
    pub(crate) fn check(all: Map<String, Value>, demands: &Demands<'_>) -> Result<Claims, Rejected> {
        let text = |name: &str| all.get(name).and_then(Value::as_str);
        if text("iss") != Some(demands.issuer) {
            return Err(claim("the token is of another issuer"));
        }
        let said: Vec<&str> = match all.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let Some(audience) = demands.audiences.iter().find(|one| said.contains(&one.as_str())).cloned()
        else {
            return Err(claim(format!("the token is made for {}, and not for this cluster", quoted(&said))));
        };
        let Some(expires_s) = time(&all, "exp")? else {
            return Err(Rejected::Invalid("the token has no end (`exp`)".to_owned()));
        };
        if demands.now_s >= expires_s.saturating_add(demands.skew_s) {
            let late = demands.now_s - expires_s;
            return Err(Rejected::Expired(format!("the token expired {late} s ago")));
        }
        for (name, what) in [("nbf", "is not valid yet"), ("iat", "was made in the future")] {
            if let Some(from) = time(&all, name)?
                && from > demands.now_s.saturating_add(demands.skew_s)
            {
                let early = from - demands.now_s;
                return Err(claim(format!(
                    "the token {what}: `{name}` is {early} s ahead; check the clocks"
                )));
            }
        }
        let subject = text("sub").filter(|text| is_plain(text)).map(str::to_owned);
        let Some(subject) = subject else {
            return Err(Rejected::Invalid("the token does not say whom it is about (`sub`)".to_owned()));
        };
        Ok(Claims { all, subject, audience, expires_s })
    }

    /// A claim by its name, or by names with dots between them for one within others, as `realm_access.roles`.
    fn value(&self, name: &str) -> Option<&Value> {
        if let Some(value) = self.all.get(name) {
            return Some(value);
        }
        let mut names = name.split('.');
        let first = self.all.get(names.next()?)?;
        names.try_fold(first, |value, name| value.get(name))
    }

    /// A claim that is a text, short enough for a name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_str).filter(|text| is_plain(text))
    }

    /// A claim that is a list of texts, or one.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.value(name) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).take(GROUPS_MAX).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether one of the texts of a claim fits one of the patterns.
    pub fn has_one(&self, name: &str, patterns: &[String]) -> bool {
        let texts = self.texts(name);
        patterns.iter().any(|pattern| texts.iter().any(|text| pattern_fits(pattern, text)))
    }
}

fn is_plain(text: &str) -> bool {
    (1..=TEXT_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn quoted(all: &[&str]) -> String {
    match all {
        [] => "nobody".to_owned(),
        all => {
            let short =
                |text: &&str| text.chars().filter(|char| !char.is_control()).take(64).collect::<String>();
            all.iter().take(3).map(|text| format!("`{}`", short(text))).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Whether a text fits a pattern, in which `*` stands for any characters.
pub fn pattern_fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        if let Some(before) = last.replace(piece) {
            // What stands between two stars is taken where it comes first.
            let before: &str = before;
            match rest.find(before) {
                Some(at) => rest = &rest[at + before.len()..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn check(json: &str) -> Result<Claims, Rejected> {
        let Ok(Value::Object(all)) = serde_json::from_str(json) else { panic!("{json}") };
        let audiences = ["stoker".to_owned(), "other".to_owned()];
        Claims::check(all, &Demands { issuer: "https://a", audiences: &audiences, skew_s: 60, now_s: NOW })
    }

    fn with(more: &str) -> String {
        format!(r#"{{"iss":"https://a","aud":"stoker","sub":"alice","exp":{},{more}"x":1}}"#, NOW + 100)
    }

    #[test]
    fn claims_that_are_not_right_are_refused() {
        let kind = |json: &str| match check(json) {
            Ok(_) => "fine",
            Err(Rejected::Invalid(_)) => "invalid",
            Err(Rejected::Expired(_)) => "expired",
            Err(Rejected::Claim(_)) => "claim",
            Err(Rejected::Denied(_)) => "denied",
            Err(Rejected::Unreachable(_)) => "unreachable",
        };
        let (past, future) = (NOW - 60, NOW + 61);
        for (json, expect) in [
            (with(""), "fine"),
            (with("").replace("https://a", "https://a/"), "claim"),
            (with("").replace("https://a", "https://A"), "claim"),
            (with("").replace("\"iss\":\"https://a\",", ""), "claim"),
            (with("").replace("\"stoker\"", "\"stoker2\""), "claim"),
            (with("").replace("\"stoker\"", "[\"x\",\"stoker\"]"), "fine"),
            (with("").replace("\"stoker\"", "[\"x\"]"), "claim"),
            (with("").replace("\"stoker\"", "{\"stoker\":1}"), "claim"),
            (with("").replace("\"aud\":\"stoker\",", ""), "claim"),
            (with("").replace("\"sub\":\"alice\",", ""), "invalid"),
            (with("").replace("alice", ""), "invalid"),
            (with("").replace("alice", "a\\nb"), "invalid"),
            (with("").replace("alice", &"a".repeat(256)), "invalid"),
            (with("").replace(&format!("\"exp\":{},", NOW + 100), ""), "invalid"),
            (with("").replace(&(NOW + 100).to_string(), "\"soon\""), "invalid"),
            (with("").replace(&(NOW + 100).to_string(), "1e300"), "invalid"),
            (with("").replace(&(NOW + 100).to_string(), "9223372036854775807"), "invalid"),
            (with("").replace(&(NOW + 100).to_string(), "-1"), "expired"),
            (with("").replace(&(NOW + 100).to_string(), &past.to_string()), "expired"),
            (with("").replace(&(NOW + 100).to_string(), &(past + 1).to_string()), "fine"),
            (with("").replace(&(NOW + 100).to_string(), &format!("{}.5", NOW + 1)), "fine"),
            (with(&format!("\"nbf\":{future},")), "claim"),
            (with(&format!("\"nbf\":{},", future - 1)), "fine"),
            (with(&format!("\"iat\":{future},")), "claim"),
            (with("\"iat\":\"x\","), "invalid"),
        ] {
            assert_eq!(kind(&json), expect, "{json}");
        }
    }

    #[test]
    fn claims_are_found_within_others() {
        let claims =
            check(&with(r#""groups":["a","b",7],"one":"c","realm":{"roles":["d"]},"e.f":["g"],"n":5,"#))
                .unwrap();
        let has = |name: &str, pattern: &str| claims.has_one(name, &[pattern.to_owned()]);
        assert!(has("groups", "b") && has("one", "c") && has("realm.roles", "d") && has("e.f", "g"));
        assert!(has("groups", "*") && !has("groups", "7") && !has("none", "*") && !has("n", "*"));
        assert_eq!(
            (claims.text("one"), claims.text("groups"), claims.text("sub")),
            (Some("c"), None, Some("alice"))
        );
    }

    #[test]
    fn patterns_fit_as_a_whole() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "anything", true),
            ("repo:acme/*", "repo:acme/x:ref", true),
            ("repo:acme/*", "repo:acme", false),
            ("*:ref", "repo:ref", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "abab", true),
        ] {
            assert_eq!(pattern_fits(pattern, text), fits, "{pattern} {text}");
        }
    }
}
