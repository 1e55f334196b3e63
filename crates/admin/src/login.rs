//! Logins to the console by an OpenID provider: the browser goes to it and comes back with a code, which becomes a session. (D228)
//!
//! A login that has begun is remembered here, in a bounded table, for ten minutes and for one use. It belongs to the browser that began it, by a
//! cookie of its own: a link that leads into somebody else's login leads nowhere. Whoever comes back gets the role that their groups have; the
//! session is like any other.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, LOCATION, SET_COOKIE};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;
use stoker_audit::Event;
use stoker_oidc::{Login, Rejected, Started};
use tokio::time::Instant;

use crate::access::{Role, cookie_value, is_equal};
use crate::answer::{Asked, JSON, respond};

/// Logins that have begun at the same time; beyond, the oldest is forgotten.
const STARTED_MAX: usize = 256;
/// How long somebody may take to log in.
const STARTED_AGE_MAX: Duration = Duration::from_secs(600);
/// Longest query that is read.
const QUERY_LEN_MAX: usize = 8 << 10;

/// Names of providers, for the form.
pub const PROVIDERS: &str = "/login/providers";
const BEGIN: &str = "/login/begin";
const CALLBACK: &str = "/login/callback";

/// A login that has begun.
struct Begun {
    provider: String,
    started: Started,
    /// What the browser has in a cookie.
    browser: String,
    at: Instant,
}

/// Logins by providers.
#[derive(Default)]
pub struct Logins {
    providers: Vec<Login>,
    begun: Mutex<HashMap<String, Begun>>,
}

/// Whether a path is one of a login.
pub fn has(path: &str) -> bool {
    [PROVIDERS, BEGIN, CALLBACK].contains(&path)
}

impl Logins {
    pub fn new(providers: Vec<Login>) -> Logins {
        Logins { providers, begun: Mutex::default() }
    }

    fn remember(&self, begun: Begun) {
        let mut all = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, one| begun.at.saturating_duration_since(one.at) < STARTED_AGE_MAX);
        if all.len() >= STARTED_MAX {
            let oldest = all.iter().min_by_key(|(_, one)| one.at).map(|(state, _)| state.clone());
            oldest.map(|state| all.remove(&state));
        }
        all.insert(begun.started.state.clone(), begun);
    }

    /// Takes a login that comes back, if it is of this browser.
    fn take(&self, state: &str, browser: &str, now: Instant) -> Option<Begun> {
        let mut all = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = all.get(state).is_some_and(|one| is_equal(browser.as_bytes(), &one.browser));
        let begun = if is_it { all.remove(state) } else { None };
        begun.filter(|one| now.saturating_duration_since(one.at) < STARTED_AGE_MAX)
    }
}

/// Answers one of its paths.
pub async fn answer(
    asked: &Asked,
    path: &str,
    query: &str,
    headers: &HeaderMap,
    address: std::net::IpAddr,
) -> Response<Full<Bytes>> {
    let parameters = if query.len() <= QUERY_LEN_MAX { pairs(query) } else { HashMap::new() };
    match path {
        PROVIDERS => {
            let names: Vec<&str> = asked.logins.providers.iter().map(Login::name).collect();
            respond(StatusCode::OK, JSON, json!({ "providers": names }).to_string())
        }
        BEGIN => begin(asked, parameters.get("provider").map_or("", String::as_str), headers).await,
        _ => {
            let answered = finish(asked, &parameters, headers, address).await;
            answered.unwrap_or_else(|why| {
                tracing::info!(%address, "a login to the console failed: {why}");
                page(StatusCode::FORBIDDEN, "Not logged in", &why, None)
            })
        }
    }
}

async fn begin(asked: &Asked, provider: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let failed = |status, why: &str| page(status, "Not logged in", why, None);
    let Some(login) = asked.logins.providers.iter().find(|login| login.name() == provider) else {
        return failed(StatusCode::NOT_FOUND, "There is no provider of this name.");
    };
    let Some(redirect) = redirect(asked, login, headers) else {
        return failed(
            StatusCode::BAD_REQUEST,
            "The request does not say what this console is called (Host).",
        );
    };
    let started = match login.start(&redirect).await {
        Ok(started) => started,
        Err(why) => {
            tracing::warn!(provider, "nobody can log in by a provider: {why}");
            return failed(StatusCode::BAD_GATEWAY, "The provider does not answer. The node's log says why.");
        }
    };
    let Ok(url) = HeaderValue::from_str(&started.url) else {
        return failed(StatusCode::BAD_GATEWAY, "The provider's address cannot be gone to.");
    };
    let browser = match crate::session::random_hex() {
        Ok(browser) => browser,
        Err(_) => return failed(StatusCode::SERVICE_UNAVAILABLE, "The kernel gave no random bytes."),
    };
    let cookie = browser_cookie(asked, &browser, STARTED_AGE_MAX.as_secs());
    asked.logins.remember(Begun { provider: provider.to_owned(), started, browser, at: Instant::now() });
    let mut response = page(StatusCode::SEE_OTHER, "Log in", "The provider is next.", None);
    response.headers_mut().insert(LOCATION, url);
    set_cookie(&mut response, &cookie);
    response
}

/// Where the provider sends the browser back to.
fn redirect(asked: &Asked, login: &Login, headers: &HeaderMap) -> Option<String> {
    if let Some(url) = &login.options().url {
        return Some(format!("{url}{CALLBACK}"));
    }
    let scheme = if asked.is_secure { "https" } else { "http" };
    let host = headers.get(HOST)?.to_str().ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_plain)).then(|| format!("{scheme}://{host}{CALLBACK}"))
}

/// Someone is back. Why not, for a person, if it comes to nothing.
async fn finish(
    asked: &Asked,
    parameters: &HashMap<String, String>,
    headers: &HeaderMap,
    address: std::net::IpAddr,
) -> Result<Response<Full<Bytes>>, String> {
    let text = |name: &str| parameters.get(name).map_or("", String::as_str);
    let event = asked.audit.event(&Method::GET, CALLBACK, None, &asked.audit.origin(address));
    let refused = |why: String| {
        asked.audit.add(event.clone(), StatusCode::UNAUTHORIZED);
        why
    };
    let browser = cookie_value(headers, &browser_cookie_name(asked)).unwrap_or_default();
    let Some(begun) = asked.logins.take(text("state"), &browser, Instant::now()) else {
        return Err(refused(
            "This login was not begun in this browser, or a while ago. Begin again.".to_owned(),
        ));
    };
    if parameters.contains_key("error") {
        let said: String = text("error").chars().filter(|char| !char.is_control()).take(80).collect();
        return Err(refused(format!("The provider says no: {said}.")));
    }
    let Some(login) = asked.logins.providers.iter().find(|login| login.name() == begun.provider) else {
        return Err(refused("There is no provider of this name.".to_owned()));
    };
    let now_s = i64::try_from(crate::clock::unix_ms() / 1_000).unwrap_or(0);
    let claims = match login.finish(&begun.started, text("code"), now_s).await {
        Ok(claims) => claims,
        Err(Rejected::Unreachable(why)) => return Err(format!("The provider does not answer: {why}.")),
        Err(why) => return Err(refused(format!("The provider's answer is not taken: {why}."))),
    };
    let role = match login.is_operator(&claims) {
        Some(true) => Role::Operator,
        Some(false) => Role::View,
        None => {
            return Err(refused(format!(
                "{} is in no group that the console lets in. Whoever runs this cluster names them in its configuration.",
                claims.subject
            )));
        }
    };
    let (id, _) = asked
        .sessions
        .begin(role, Instant::now())
        .map_err(|error| format!("The kernel gave no random bytes: {error}."))?;
    let detail = json!({ "provider": begun.provider, "subject": claims.subject }).to_string();
    let principal = crate::audit::principal(role).to_owned();
    asked.audit.add(Event { principal, detail, ..event }, StatusCode::OK);
    // The page leads on by itself: a redirection would still count as the provider's, and a strict cookie would not go with it.
    let mut response = page(StatusCode::OK, "Logged in", "The console is next.", Some("/"));
    set_cookie(&mut response, &asked.session_cookie(&id));
    set_cookie(&mut response, &browser_cookie(asked, "", 0));
    Ok(response)
}

fn browser_cookie_name(asked: &Asked) -> String {
    format!("{}-login", asked.cookie)
}

/// The cookie of the browser that begins a login. It comes back from another site, which a strict one would not.
fn browser_cookie(asked: &Asked, browser: &str, age_s: u64) -> String {
    let secure = if asked.is_secure { "; Secure" } else { "" };
    let name = browser_cookie_name(asked);
    format!("{name}={browser}; Path=/login; HttpOnly; SameSite=Lax; Max-Age={age_s}{secure}")
}

fn set_cookie(response: &mut Response<Full<Bytes>>, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

/// A page with one sentence, which may lead on.
fn page(status: StatusCode, title: &str, text: &str, next: Option<&str>) -> Response<Full<Bytes>> {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let refresh =
        next.map_or(String::new(), |next| format!("<meta http-equiv=\"refresh\" content=\"0; url={next}\">"));
    let link = next.unwrap_or("/login");
    let body = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{refresh}<title>{title} · Stoker</title>\n\
         <link rel=\"stylesheet\" href=\"/console/style.css\">\n</head>\n<body class=\"login\">\n<main>\n<div class=\"card\">\n<h1>{title}</h1>\n\
         <p>{text}</p>\n<p><a href=\"{link}\">Go on</a></p>\n</div>\n</main>\n</body>\n</html>\n"
    );
    respond(status, "text/html; charset=utf-8", body)
}

/// Parameters of a query, decoded. Of one that comes twice, the first counts.
fn pairs(query: &str) -> HashMap<String, String> {
    let mut all = HashMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(name), Some(value)) = (decoded(name), decoded(value)) {
            all.entry(name).or_insert(value);
        }
    }
    all
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (pair, tail) = rest.split_first_chunk::<2>()?;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push(u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?);
                rest = tail;
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let found = pairs("state=a%2Bb&code=c+d&state=z&e&bad=%zz&bad2=%f");
        assert_eq!(found.get("state").map(String::as_str), Some("a+b"));
        assert_eq!(found.get("code").map(String::as_str), Some("c d"));
        assert_eq!(found.get("e").map(String::as_str), Some(""));
        assert!(!found.contains_key("bad") && !found.contains_key("bad2"));
    }

    #[test]
    fn what_a_page_says_is_text() {
        let body = format!("{:?}", page(StatusCode::OK, "t", "<script>\"x\"&", None).into_body());
        assert!(!body.contains("<script>") && body.contains("&lt;script&gt;"));
    }
}
