//! Who asks: by a token in a header, or by the cookie of a session.

use std::hint::black_box;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderValue};
use tokio::time::Instant;

use crate::session::{Found, Session, Sessions};

/// Header in which a session repeats its word for changing calls.
pub const CSRF_HEADER: &str = "x-stoker-csrf";
/// Bytes of a cookie header that are looked at.
const COOKIES_LEN_MAX: usize = 4 << 10;

/// What a caller may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Look.
    View,
    /// Look and change.
    Operator,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operator => "operator",
        }
    }
}

/// Somebody who may ask.
#[derive(Clone, Debug)]
pub struct Caller {
    pub role: Role,
    pub address: IpAddr,
    /// The session that the caller came by, with its id; none for a token.
    pub session: Option<(String, Session)>,
}

impl Caller {
    /// How it showed who it is.
    pub fn by(&self) -> &'static str {
        if self.session.is_some() { "session" } else { "token" }
    }
}

/// Why somebody is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// Nothing was shown.
    Nothing,
    /// A token or a session that is none.
    Wrong,
    /// A session that is over.
    Expired,
}

/// The tokens.
pub struct Tokens {
    pub operator: String,
    pub view: Vec<String>,
}

impl Tokens {
    /// The role of a token. How long this takes does not depend on how much of it is right.
    pub fn role(&self, given: &[u8]) -> Option<Role> {
        let view = self.view.iter().fold(false, |found, token| found | is_equal(given, token));
        let operator = is_equal(given, &self.operator);
        operator.then_some(Role::Operator).or(view.then_some(Role::View))
    }
}

/// Whoever sent these headers.
pub fn caller(
    headers: &HeaderMap,
    address: IpAddr,
    tokens: &Tokens,
    sessions: &Sessions,
    cookie: &str,
) -> Result<Caller, Stranger> {
    if let Some(given) = headers.get(AUTHORIZATION) {
        let token = bearer(given).ok_or(Stranger::Wrong)?;
        let role = tokens.role(token).ok_or(Stranger::Wrong)?;
        return Ok(Caller { role, address, session: None });
    }
    let Some(id) = cookie_value(headers, cookie) else { return Err(Stranger::Nothing) };
    match sessions.find(&id, Instant::now()) {
        Found::Live(session) => Ok(Caller { role: session.role, address, session: Some((id, session)) }),
        Found::Expired => Err(Stranger::Expired),
        Found::Unknown => Err(Stranger::Wrong),
    }
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// What a cookie says.
pub fn cookie_value(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter(|value| value.len() <= COOKIES_LEN_MAX);
    let mut pairs = cookies.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let (_, id) = pairs.find_map(|pair| pair.trim().split_once('=').filter(|(other, _)| *other == name))?;
    Some(id.to_owned())
}

/// Whether two words are the same, at a cost that tells nothing of the right one but its length.
pub fn is_equal(given: &[u8], word: &str) -> bool {
    let same = given.len() == word.len()
        && given.iter().zip(word.as_bytes()).fold(0, |different, (a, b)| black_box(different | (a ^ b))) == 0;
    same && !word.is_empty()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    fn asked(name: http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    fn sessions() -> Sessions {
        Sessions::new(Duration::from_secs(60), Duration::from_secs(60))
    }

    fn check(headers: &HeaderMap, sessions: &Sessions, expect: Result<Role, Stranger>) {
        let tokens = Tokens { operator: "secret".into(), view: vec!["look".into(), String::new()] };
        let found = caller(headers, IpAddr::V4(Ipv4Addr::LOCALHOST), &tokens, sessions, "c");
        assert_eq!(found.map(|caller| caller.role), expect, "{headers:?}");
    }

    #[test]
    fn only_a_whole_token_opens() {
        let sessions = sessions();
        check(&asked(AUTHORIZATION, "Bearer secret"), &sessions, Ok(Role::Operator));
        check(&asked(AUTHORIZATION, "bearer secret"), &sessions, Ok(Role::Operator));
        check(&asked(AUTHORIZATION, "Bearer look"), &sessions, Ok(Role::View));
        for wrong in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"] {
            check(&asked(AUTHORIZATION, wrong), &sessions, Err(Stranger::Wrong));
        }
        check(&HeaderMap::new(), &sessions, Err(Stranger::Nothing));
    }

    #[test]
    fn a_cookie_leads_to_its_session() {
        let sessions = sessions();
        let (id, _) = sessions.begin(Role::View, Instant::now()).unwrap();
        check(&asked(COOKIE, &format!("a=b; c={id}")), &sessions, Ok(Role::View));
        check(&asked(COOKIE, "c=guess"), &sessions, Err(Stranger::Wrong));
        check(&asked(COOKIE, &format!("d={id}")), &sessions, Err(Stranger::Nothing));
        // A token counts first, also a wrong one: nobody is let in by accident.
        let mut both = asked(COOKIE, &format!("c={id}"));
        both.insert(AUTHORIZATION, HeaderValue::from_static("Bearer wrong"));
        check(&both, &sessions, Err(Stranger::Wrong));
    }
}
