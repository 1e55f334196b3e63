//! Conditions of statements: an operator, what it looks at, and the values that it wants.

use std::net::IpAddr;

use super::pattern::Pattern;
use super::{Asked, Fault};

/// What a condition looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum About {
    SourceIp,
    SecureTransport,
    UserName,
    PrincipalArn,
    Prefix,
    CurrentTime,
}

const ABOUT: &[(&str, About)] = &[
    ("aws:sourceip", About::SourceIp),
    ("aws:securetransport", About::SecureTransport),
    ("aws:username", About::UserName),
    ("aws:principalarn", About::PrincipalArn),
    ("s3:prefix", About::Prefix),
    ("aws:currenttime", About::CurrentTime),
];

/// What it wants.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Want {
    /// Exactly one of these; the flag says whether upper and lower case are the same.
    Equal(Vec<Pattern>, bool),
    Like(Vec<Pattern>),
    Within(Vec<Network>),
    Bool(bool),
    /// Before this moment; the flag says whether that moment counts.
    Before(u64, bool),
    After(u64, bool),
    /// Nothing is known of it, or something is.
    Null(bool),
}

/// A condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Condition {
    about: About,
    want: Want,
    is_not: bool,
    /// Holds if nothing is known of what it looks at.
    if_exists: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Network { address, bits })
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(own.to_bits().into(), other.to_bits().into(), self.bits, 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), self.bits, 128),
            _ => false,
        }
    }
}

/// Whether the first bits are the same.
fn same(one: u128, other: u128, bits: u8, all: u8) -> bool {
    bits == 0 || (one ^ other) >> (all - bits) == 0
}

impl Condition {
    /// Reads one.
    pub fn parse(operator: &str, key: &str, values: &[String]) -> Result<Condition, Fault> {
        let unsupported = |what: String| Fault::Unsupported(what);
        let malformed = |what: String| Fault::Malformed(what);
        if operator.starts_with("ForAnyValue:") || operator.starts_with("ForAllValues:") {
            return Err(unsupported(format!("{operator}: nothing here has several values")));
        }
        let (name, if_exists) = match operator.strip_suffix("IfExists") {
            Some(name) => (name, true),
            None => (operator, false),
        };
        let lower = key.to_ascii_lowercase();
        let about = ABOUT.iter().find(|row| row.0 == lower).map(|row| row.1).ok_or_else(|| {
            unsupported(format!(
                "the condition key `{key}` is not known here; there are aws:SourceIp, aws:SecureTransport, aws:username, \
                 aws:PrincipalArn, aws:CurrentTime and s3:prefix"
            ))
        })?;
        if values.is_empty() {
            return Err(malformed(format!("`{operator}` of `{key}` has no value")));
        }
        let patterns = || {
            let read = |text: &String| {
                Pattern::parse(text).ok_or_else(|| {
                    unsupported(format!("`{text}`: the one variable here is ${{aws:username}}"))
                })
            };
            values.iter().map(read).collect::<Result<Vec<Pattern>, Fault>>()
        };
        let one = || match values {
            [value] => Ok(value.as_str()),
            _ => Err(malformed(format!("`{operator}` of `{key}` takes one value"))),
        };
        let truth = || match one()? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(malformed(format!("`{operator}` of `{key}`: `{other}` is neither true nor false"))),
        };
        let moment = || {
            let text = one()?;
            moment_ms(text)
                .ok_or_else(|| malformed(format!("`{text}` is no time; write it as 2026-01-31T12:00:00Z")))
        };
        let is_not = name.contains("Not");
        let is_text = matches!(about, About::UserName | About::PrincipalArn | About::Prefix);
        let want = match (name, about) {
            ("StringEquals" | "StringNotEquals", _) if is_text => Want::Equal(patterns()?, false),
            ("StringEqualsIgnoreCase" | "StringNotEqualsIgnoreCase", _) if is_text => {
                Want::Equal(patterns()?, true)
            }
            ("StringLike" | "StringNotLike", _) if is_text => Want::Like(patterns()?),
            ("ArnEquals" | "ArnLike" | "ArnNotEquals" | "ArnNotLike", About::PrincipalArn) => {
                Want::Like(patterns()?)
            }
            ("IpAddress" | "NotIpAddress", About::SourceIp) => {
                let read = |text: &String| {
                    Network::parse(text)
                        .ok_or_else(|| malformed(format!("`{text}` is no network; write it as 10.0.0.0/8")))
                };
                Want::Within(values.iter().map(read).collect::<Result<_, _>>()?)
            }
            ("Bool", About::SecureTransport) => Want::Bool(truth()?),
            ("DateLessThan", About::CurrentTime) => Want::Before(moment()?, false),
            ("DateLessThanEquals", About::CurrentTime) => Want::Before(moment()?, true),
            ("DateGreaterThan", About::CurrentTime) => Want::After(moment()?, false),
            ("DateGreaterThanEquals", About::CurrentTime) => Want::After(moment()?, true),
            ("Null", _) if !if_exists => Want::Null(truth()?),
            _ => return Err(unsupported(format!("`{operator}` does not go with `{key}` here"))),
        };
        Ok(Condition { about, want, is_not, if_exists })
    }

    /// Whether it holds.
    pub fn holds(&self, asked: &Asked<'_>) -> bool {
        let user = asked.user;
        let text = |value: Option<Vec<u8>>| {
            let fits = |value: &[u8]| match &self.want {
                Want::Equal(all, is_same_case) => all.iter().any(|one| {
                    // No pattern, but what the name is filled in like one.
                    let plain = one.text().replace("${aws:username}", user.unwrap_or_default());
                    match is_same_case {
                        true => plain.as_bytes().eq_ignore_ascii_case(value),
                        false => plain.as_bytes() == value,
                    }
                }),
                Want::Like(all) => all.iter().any(|one| one.fits(value, user)),
                _ => false,
            };
            value.map(|value| fits(&value))
        };
        let found = match (&self.want, self.about) {
            (Want::Null(want), about) => return self.is_known(about, asked) != *want,
            (Want::Within(all), _) => asked.address.map(|address| all.iter().any(|one| one.has(address))),
            (Want::Bool(want), _) => Some(asked.is_tls == *want),
            (Want::Before(moment, counts), _) => {
                Some(asked.now_ms < *moment || (*counts && asked.now_ms == *moment))
            }
            (Want::After(moment, counts), _) => {
                Some(asked.now_ms > *moment || (*counts && asked.now_ms == *moment))
            }
            (_, About::UserName) => text(user.map(|user| user.as_bytes().to_vec())),
            (_, About::PrincipalArn) => {
                text(user.map(|user| super::user_arn(asked.tenant, user).into_bytes()))
            }
            _ => text(asked.prefix().map(<[u8]>::to_vec)),
        };
        match found {
            // AWS takes a negation of what is not there for true.
            None => self.if_exists || self.is_not,
            Some(found) => found != self.is_not,
        }
    }

    fn is_known(&self, about: About, asked: &Asked<'_>) -> bool {
        match about {
            About::SourceIp => asked.address.is_some(),
            About::UserName | About::PrincipalArn => asked.user.is_some(),
            About::Prefix => asked.prefix().is_some(),
            About::SecureTransport | About::CurrentTime => true,
        }
    }
}

/// Milliseconds since 1970 of a time in UTC, as `2026-01-31T12:00:00Z` or a date alone.
fn moment_ms(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00Z"));
    let number = |text: &str, len: usize| {
        (text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<i64>().ok())?
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut clock = time.strip_suffix('Z')?.split(':');
    let (hour, minute, second) =
        (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let is_over = parts.next().is_some() || clock.next().is_some();
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    if is_over || !is_date || hour > 23 || minute > 59 || second > 60 || year < 1970 {
        return None;
    }
    // Days since 1970 by years that begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let has =
            |network: &str, address: &str| Network::parse(network).unwrap().has(address.parse().unwrap());
        assert!(has("10.0.0.0/8", "10.255.1.2") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && !has("0.0.0.0/0", "::1"));
        assert!(has("192.0.2.7", "::ffff:192.0.2.7") && !has("192.0.2.7/32", "192.0.2.8"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1") && has("::/0", "::1"));
        for bad in ["10.0.0.0/33", "10.0.0", "x", "::/129", "10.0.0.0/", "10.0.0.0/-1"] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn moments() {
        assert_eq!(moment_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(moment_ms("2026-11-19"), Some(1_795_046_400_000));
        assert_eq!(moment_ms("2024-02-29T12:30:15Z"), Some(1_709_209_815_000));
        for bad in
            ["2026-13-01", "2026-1-01", "2026-01-01T00:00:00", "x", "2026-01-01T24:00:00Z", "+026-01-01"]
        {
            assert_eq!(moment_ms(bad), None, "{bad}");
        }
    }
}
