//! Questions to a provider: one connection each, with a deadline and a bound on the answer. Redirections are not followed.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use stoker_tls::Trust;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Longest time for one question.
const ASK_MAX: Duration = Duration::from_secs(5);
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// An address that may be asked: HTTPS, or HTTP on this machine alone, where nobody is in between.
pub(crate) fn check(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("`{text}` is not a url: {error}"))?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        _ if host.is_empty() || uri.authority().is_some_and(|whole| whole.as_str().contains('@')) => {}
        Some("https") => return Ok(uri),
        Some("http") if is_here => return Ok(uri),
        Some("http") => {
            return Err(format!("`{text}` is not safe: only https:// is taken, but on this machine"));
        }
        _ => {}
    }
    Err(format!("`{text}` is not a url that begins with https://"))
}

/// A question.
pub(crate) struct Ask<'a> {
    pub url: &'a str,
    /// A form to post; none to get.
    pub form: Option<String>,
    /// What `authorization` says.
    pub authorization: Option<String>,
    /// Whose certificates are taken; those that the machine trusts if none.
    pub ca_file: Option<&'a Path>,
}

impl Ask<'_> {
    /// Status and body of the answer.
    pub async fn send(self) -> Result<(u16, Bytes), String> {
        let url = self.url.to_owned();
        match tokio::time::timeout(ASK_MAX, self.send_slowly()).await {
            Ok(answer) => answer.map_err(|why| format!("{url}: {why}")),
            Err(_) => Err(format!("{url}: no answer within {} s", ASK_MAX.as_secs())),
        }
    }

    async fn send_slowly(self) -> Result<(u16, Bytes), String> {
        let uri = check(self.url)?;
        let authority = uri.authority().map(|whole| whole.as_str().to_owned()).unwrap_or_default();
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| error.to_string())?;
        let stream: Box<dyn Wire> = match is_tls {
            false => Box::new(stream),
            true => {
                let trust = Trust::open(self.ca_file, b"http/1.1").map_err(|error| error.to_string())?;
                let address =
                    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                let connected = trust.connect(stream, &address).await;
                Box::new(connected.map_err(|error| format!("TLS: {error}"))?)
            }
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let method = if self.form.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, authority)
            .header(USER_AGENT, "Stoker")
            .header(ACCEPT, "application/json");
        if self.form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = Full::new(Bytes::from(self.form.unwrap_or_default()));
        let request = request.body(body).map_err(|error| error.to_string())?;
        let asked = async {
            let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| format!("its answer cannot be read: {error}"))?;
            Ok((status, body.to_bytes()))
        };
        // The connection does the work while the answer is waited for, and is gone with it.
        let mut asked = std::pin::pin!(asked);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            answer = &mut asked => answer,
            _ = &mut connection => asked.await,
        }
    }
}

/// Bytes of a form or a query as they stand in one.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A form or a query of these.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{}={}", encoded(name), encoded(value));
    pairs.iter().map(pair).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_in_between_is_asked() {
        for good in [
            "https://login.example.com",
            "https://login.example.com:8443/realms/a?b=c",
            "http://127.0.0.1:9000/a",
            "http://localhost:1",
            "http://[::1]:80/",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "login.example.com",
            "http://login.example.com",
            "http://10.0.0.1",
            "http://localhost.example.com",
            "ftp://127.0.0.1",
            "https://",
            "https://user:pw@login.example.com",
            "file:///etc/passwd",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn forms_are_encoded() {
        assert_eq!(form(&[("a b", "c&d=ä"), ("e", "~-._")]), "a%20b=c%26d%3D%C3%A4&e=~-._");
    }
}
