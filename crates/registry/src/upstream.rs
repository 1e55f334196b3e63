//! The registry behind ours: requests with a deadline, tokens for whoever has none, redirections.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use stoker_tls::Trust;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::fault::Fault;
use crate::stats::{Stats, add};

/// Until the head of an answer is there.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Redirections in a row.
const HOPS_MAX: usize = 5;
/// Longest answer of whoever gives tokens.
const TOKEN_BYTES_MAX: usize = 1 << 20;
/// Tokens that are remembered.
const TOKENS_MAX: usize = 1024;
/// How long a token is good if nobody says so, and how much earlier it is not used any more.
const TOKEN_AGE: Duration = Duration::from_secs(60);
const TOKEN_MARGIN: Duration = Duration::from_secs(10);
const TOKEN_AGE_MAX: Duration = Duration::from_secs(3600);

/// The kinds of manifests that clients know.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.docker.distribution.manifest.v2+json, application/json;q=0.5, */*;q=0.1";

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Where images come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// `https://HOST[:PORT]`.
    url: String,
    host: String,
    /// Whose certificates are taken; those that the machine trusts if none.
    ca_file: Option<PathBuf>,
}

impl Upstream {
    /// Takes `https://HOST[:PORT]`, the same with `http`, or `HOST[:PORT]` for https.
    pub fn parse(text: &str, ca_file: Option<PathBuf>) -> Result<Upstream, String> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let url = whole.trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|error| format!("`{text}` is not a url: {error}"))?;
        let authority = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let is_sound = matches!(uri.scheme_str(), Some("https" | "http"))
            && uri.path_and_query().is_none_or(|path| path.as_str() == "/")
            && !authority.contains('@')
            && uri.host().is_some_and(|host| !host.is_empty());
        match is_sound {
            true => Ok(Upstream { url: url.to_owned(), host: authority, ca_file }),
            false => Err(format!(
                "`{text}` is not the address of a registry, such as https://registry-1.docker.io"
            )),
        }
    }

    /// Its name in the volume, and in `ns=` of clients.
    pub fn host(&self) -> &str {
        match self.host.as_str() {
            "registry-1.docker.io" => "docker.io",
            host => host,
        }
    }

    /// Whether everybody on the way can read it.
    pub fn is_plain(&self) -> bool {
        self.url.starts_with("http://")
    }

    /// What it calls a repository: Docker Hub has its own in `library`.
    fn repository<'a>(&self, name: &'a str) -> std::borrow::Cow<'a, str> {
        match self.host() == "docker.io" && !name.contains('/') {
            true => format!("library/{name}").into(),
            false => name.into(),
        }
    }
}

/// Asks an upstream, and remembers what opens it.
pub(crate) struct Asker {
    pub upstream: Upstream,
    stats: Arc<Stats>,
    /// By repository.
    tokens: Mutex<HashMap<String, (String, Instant)>>,
}

impl Asker {
    pub fn new(upstream: Upstream, stats: Arc<Stats>) -> Asker {
        Asker { upstream, stats, tokens: Mutex::default() }
    }

    /// Asks for a part of a repository, such as `manifests/latest`; `unknown` is what is said if it is not there.
    pub async fn ask(
        &self,
        method: Method,
        name: &str,
        part: &str,
        unknown: &'static str,
    ) -> Result<Response<Incoming>, Fault> {
        let repository = self.upstream.repository(name);
        let url = format!("{}/v2/{repository}/{part}", self.upstream.url);
        let token = self.known_token(&repository);
        let answer = self.follow(&method, &url, token).await?;
        let answer = match answer.status() {
            StatusCode::UNAUTHORIZED => {
                let token = self.fresh_token(&repository, answer.headers()).await?;
                self.follow(&method, &url, Some(token)).await?
            }
            _ => answer,
        };
        let host = self.upstream.host();
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::NOT_FOUND => Err(Fault::unknown(unknown)),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Fault::new(
                StatusCode::FORBIDDEN,
                "DENIED",
                format!(
                    "{host} does not give {repository} to everybody; images for some alone are not pulled through"
                ),
            )),
            StatusCode::TOO_MANY_REQUESTS => Err(Fault::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TOOMANYREQUESTS",
                format!("{host} takes no more requests for now"),
            )),
            status => Err(Fault::upstream(format!("{host} answers {status}"))),
        }
    }

    fn known_token(&self, repository: &str) -> Option<String> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, until) = tokens.get(repository)?;
        (Instant::now() < *until).then(|| token.clone())
    }

    /// Asks whoever the upstream names for a token that reads this repository.
    async fn fresh_token(&self, repository: &str, headers: &HeaderMap) -> Result<String, Fault> {
        let said = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenge = said.filter_map(Challenge::parse).next().ok_or_else(|| {
            let host = self.upstream.host();
            Fault::new(
                StatusCode::FORBIDDEN,
                "DENIED",
                format!("{host} wants a password, and there is none for it"),
            )
        })?;
        if self.upstream.url.starts_with("https://") && !challenge.realm.starts_with("https://") {
            return Err(Fault::upstream(format!("`{}` gives tokens without TLS", challenge.realm)));
        }
        let url = challenge.url(repository);
        let answer = self.follow(&Method::GET, &url, None).await?;
        if !answer.status().is_success() {
            let status = answer.status();
            return Err(Fault::new(
                StatusCode::FORBIDDEN,
                "DENIED",
                format!("{} gives no token to read {repository}: {status}", challenge.realm),
            ));
        }
        let body = collect(answer.into_body(), TOKEN_BYTES_MAX).await?;
        let (token, age) = read_token(&body).ok_or_else(|| {
            Fault::upstream(format!("{} gave something else than a token", challenge.realm))
        })?;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if tokens.len() >= TOKENS_MAX {
            tokens.retain(|_, (_, until)| *until > now);
        }
        if tokens.len() < TOKENS_MAX {
            tokens.insert(repository.to_owned(), (token.clone(), now + age.saturating_sub(TOKEN_MARGIN)));
        }
        Ok(token)
    }

    /// Follows redirections; a token is for the host that it was given for, and not shown to another.
    async fn follow(
        &self,
        method: &Method,
        url: &str,
        token: Option<String>,
    ) -> Result<Response<Incoming>, Fault> {
        let (mut url, mut token) = (url.to_owned(), token);
        for _ in 0..HOPS_MAX {
            let uri: Uri = url.parse().map_err(|_| Fault::upstream(format!("`{url}` is not a url")))?;
            let answer = tokio::time::timeout(HEAD_MAX, self.once(method, &uri, token.as_deref())).await;
            let answer = answer.map_err(|_| {
                Fault::upstream(format!("{} does not answer", uri.authority().map_or("", |a| a.as_str())))
            })??;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let next = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = next.ok_or_else(|| Fault::upstream("a redirection leads nowhere"))?;
            let there = absolute(&uri, next).ok_or_else(|| Fault::upstream("a redirection leads nowhere"))?;
            if uri.scheme_str() == Some("https") && there.scheme_str() != Some("https") {
                return Err(Fault::upstream("a redirection leads out of TLS"));
            }
            if there.authority() != uri.authority() {
                token = None;
            }
            url = there.to_string();
        }
        Err(Fault::upstream("redirections lead in a circle"))
    }

    async fn once(
        &self,
        method: &Method,
        uri: &Uri,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, Fault> {
        add(&self.stats.upstream_requests, 1);
        let authority = uri.authority().map(|whole| whole.as_str().to_owned()).unwrap_or_default();
        let cannot = |why: String| Fault::upstream(format!("{authority}: {why}"));
        let stream = self.connect(uri).await.map_err(cannot)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| cannot(error.to_string()))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &authority)
            .header(USER_AGENT, "Stoker")
            .header(ACCEPT, MANIFESTS);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| cannot(error.to_string()))?;
        // It lives as long as the body of the answer does.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| cannot(error.to_string()))
    }

    async fn connect(&self, uri: &Uri) -> Result<Box<dyn Wire>, String> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
        if !is_tls {
            return Ok(Box::new(stream));
        }
        let trust =
            Trust::open(self.upstream.ca_file.as_deref(), b"http/1.1").map_err(|error| error.to_string())?;
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let connected = trust.connect(stream, &address).await;
        Ok(Box::new(connected.map_err(|error| format!("TLS: {error}"))?))
    }
}

/// The whole of a body.
pub(crate) async fn collect(body: Incoming, bytes_max: usize) -> Result<Bytes, Fault> {
    let whole = tokio::time::timeout(HEAD_MAX, Limited::new(body, bytes_max).collect()).await;
    match whole {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Fault::upstream(format!("an answer cannot be read: {error}"))),
        Err(_) => Err(Fault::upstream("an answer does not end")),
    }
}

/// Where a redirection leads.
fn absolute(from: &Uri, to: &str) -> Option<Uri> {
    let to: Uri = to.parse().ok()?;
    if to.host().is_some() {
        return matches!(to.scheme_str(), Some("https" | "http")).then_some(to);
    }
    let path = to.path_and_query()?.clone();
    Uri::builder()
        .scheme(from.scheme()?.clone())
        .authority(from.authority()?.clone())
        .path_and_query(path)
        .build()
        .ok()
}

/// What `WWW-Authenticate` asks for.
#[derive(PartialEq, Eq, Debug)]
struct Challenge {
    realm: String,
    service: Option<String>,
}

impl Challenge {
    /// Reads `Bearer realm="...",service="...",scope="..."`.
    fn parse(text: &str) -> Option<Challenge> {
        let (scheme, mut rest) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        while let Some((name, behind)) = rest.trim_start_matches([' ', ',']).split_once('=') {
            let (value, next) = match behind.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => behind.split_once(',').unwrap_or((behind, "")),
            };
            match name.trim() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                _ => {}
            }
            rest = next;
        }
        Some(Challenge { realm: realm?, service })
    }

    /// Where a token is. The scope is ours: no more than reading this repository.
    fn url(&self, repository: &str) -> String {
        let scope = encoded(&format!("repository:{repository}:pull"));
        let service = self.service.as_ref().map(|service| format!("&service={}", encoded(service)));
        let separator = if self.realm.contains('?') { '&' } else { '?' };
        format!("{}{separator}scope={scope}{}", self.realm, service.unwrap_or_default())
    }
}

/// The token in an answer, and how long it is good.
fn read_token(body: &[u8]) -> Option<(String, Duration)> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let token = [&value["token"], &value["access_token"]].into_iter().find_map(|token| token.as_str())?;
    let is_sound = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let age = value["expires_in"].as_u64().map_or(TOKEN_AGE, Duration::from_secs);
    is_sound.then(|| (token.to_owned(), age.min(TOKEN_AGE_MAX)))
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = Challenge::parse(
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a:pull""#,
        )
        .unwrap();
        assert_eq!(
            challenge.url("library/a"),
            "https://auth.docker.io/token?scope=repository%3Alibrary%2Fa%3Apull&service=registry.docker.io"
        );
        let bare = Challenge::parse("bearer realm=https://a/b?c=d, service=x").unwrap();
        assert_eq!(bare.url("n"), "https://a/b?c=d&scope=repository%3An%3Apull&service=x");
        for none in [
            "",
            "Bearer",
            "Basic realm=\"x\"",
            "Bearer realm=\"x",
            "Bearer service=\"x\"",
            "Bearer ====",
            "Bearer ,,,",
        ] {
            assert_eq!(Challenge::parse(none), None, "{none}");
        }
    }

    #[test]
    fn tokens_are_read() {
        assert_eq!(read_token(br#"{"token":"a"}"#), Some(("a".into(), TOKEN_AGE)));
        let long = read_token(br#"{"access_token":"b","expires_in":99999999999}"#);
        assert_eq!(long, Some(("b".into(), TOKEN_AGE_MAX)));
        for none in ["", "{}", r#"{"token":""}"#, r#"{"token":"a\r\nx: y"}"#, r#"{"token":7}"#] {
            assert_eq!(read_token(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn upstreams_are_read() {
        for (text, host) in [
            ("https://registry-1.docker.io", "docker.io"),
            ("https://ghcr.io/", "ghcr.io"),
            ("quay.io", "quay.io"),
            ("http://127.0.0.1:5000", "127.0.0.1:5000"),
        ] {
            assert_eq!(Upstream::parse(text, None).unwrap().host(), host, "{text}");
        }
        for wrong in ["", "https://", "ftp://a", "https://u:p@a", "https://a/b", "https://a?b"] {
            assert!(Upstream::parse(wrong, None).is_err(), "{wrong}");
        }
        let hub = Upstream::parse("registry-1.docker.io", None).unwrap();
        assert_eq!((&*hub.repository("alpine"), &*hub.repository("a/b")), ("library/alpine", "a/b"));
    }

    #[test]
    fn redirections_lead_somewhere() {
        let from: Uri = "https://a:1/b?c".parse().unwrap();
        let to = |text: &str| absolute(&from, text).map(|uri| uri.to_string());
        assert_eq!(to("/d?e"), Some("https://a:1/d?e".to_owned()));
        assert_eq!(to("https://x/y"), Some("https://x/y".to_owned()));
        assert_eq!(to("ftp://x/y"), None);
        assert_eq!(to(""), None);
    }
}
