//! Signed requests to one bucket.
//!
//! The path of a request is exactly the encoded key: nothing here folds, trims or re-encodes it, which is why
//! this is a plain hyper client and not one that goes through a url type.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::config::Config;
use super::credentials::CredentialSource;
use super::reply::{Fault, Place};
use crate::error::{LakeError, Result};
use stoker_sigv4::{self as sigv4, Signable, Slash, UNSIGNED_PAYLOAD};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Connections that are kept open although nothing happens on them.
const IDLE_MAX: usize = 64;
/// Answers that are not objects are small; a listing of 1000 long keys is the largest.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// One request, before it is signed.
pub(super) struct Request {
    pub method: Method,
    /// The whole key; empty for the bucket itself.
    pub key: String,
    pub query: Vec<(&'static str, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<Bytes>,
}

impl Request {
    pub fn new(method: Method, key: impl Into<String>) -> Request {
        Request { method, key: key.into(), query: Vec::new(), headers: Vec::new(), body: Vec::new() }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Request {
        self.query.push((name, value.into()));
        self
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Request {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn body(mut self, body: Vec<Bytes>) -> Request {
        self.body = body;
        self
    }
}

/// An answer whose body was not read yet.
pub(super) struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: hyper::body::Incoming,
}

/// Whom to believe. A bucket that is spoken to without TLS needs nobody, so it can be used on a machine that has no certificates of
/// authorities; a server that leads from there to https is not believed.
fn tls(config: &Config) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| LakeError::invalid(format!("TLS cannot be set up: {error}")))?;
    if config.scheme == "http" {
        return Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth());
    }
    let trusting = rustls_platform_verifier::BuilderVerifierExt::with_platform_verifier(builder);
    let trusting = trusting.map_err(|error| {
        LakeError::invalid(format!(
            "{} needs certificates of authorities, and this machine has none ({error}): install ca-certificates",
            config.endpoint
        ))
    })?;
    Ok(trusting.with_no_client_auth())
}

/// The connection to a bucket.
pub(super) struct Connection {
    config: Config,
    credentials: CredentialSource,
    client: Client<HttpsConnector<HttpConnector>, Pieces>,
}

impl Connection {
    pub fn new(config: Config, credentials: CredentialSource) -> Result<Connection> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(IDLE_TIMEOUT));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&config)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(https);
        Ok(Connection { config, credentials, client })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a request. Every answer of the server is a reply, also a bad one.
    pub async fn send(&self, request: Request) -> Result<Reply> {
        let request = self.sign(request).await?;
        let response = self.client.request(request).await.map_err(|error| {
            LakeError::unavailable(format!("cannot reach {}: {}", self.config.endpoint, with_causes(&error)))
        })?;
        let (parts, body) = response.into_parts();
        Ok(Reply { status: parts.status, headers: parts.headers, body })
    }

    /// Sends a request that must succeed. `action` says what was tried, in case it does not.
    pub async fn demand(&self, request: Request, action: &str) -> Result<Reply> {
        let is_head = request.method == Method::HEAD;
        let reply = self.send(request).await?;
        if reply.status.is_success() {
            return Ok(reply);
        }
        let fault = reply.into_fault().await;
        if is_head && matches!(fault.status, 301 | 400 | 403) {
            return Err(self.explain(fault, action).await);
        }
        Err(self.error(&fault, action))
    }

    /// The error of a fault.
    pub fn error(&self, fault: &Fault, action: &str) -> LakeError {
        let access_key_id = self.credentials.access_key_id();
        let place = Place {
            bucket: &self.config.bucket,
            endpoint: &self.config.endpoint,
            region: &self.config.region,
            access_key_id: access_key_id.as_deref(),
        };
        fault.error(action, &place)
    }

    /// A HEAD has no body that says what is wrong; the same fault of a listing has one.
    async fn explain(&self, mut fault: Fault, action: &str) -> LakeError {
        let request = Request::new(Method::GET, "").query("list-type", "2").query("max-keys", "1");
        if let Ok(reply) = self.send(request).await
            && !reply.status.is_success()
        {
            let region = fault.region.take();
            fault = reply.into_fault().await;
            fault.region = fault.region.or(region);
        }
        self.error(&fault, action)
    }

    async fn sign(&self, request: Request) -> Result<http::Request<Pieces>> {
        let config = &self.config;
        let path =
            format!("{}{}", config.base_path, sigv4::percent_encode(request.key.as_bytes(), Slash::Keep));
        let query = encode_query(&request.query);
        let mut headers = request.headers;
        headers.push(("host".to_owned(), config.host.clone()));
        let credentials = self.credentials.get().await?;
        let body = Pieces::new(request.body);
        if let Some(credentials) = credentials {
            let time = sigv4::time_text(unix_s());
            let payload_hash = if config.payload_signed || body.len == 0 {
                sigv4::sha256_hex_pieces(body.pieces.iter().map(|piece| piece.as_ref()))
            } else {
                UNSIGNED_PAYLOAD.to_owned()
            };
            headers.push(("x-amz-date".to_owned(), time.clone()));
            headers.push(("x-amz-content-sha256".to_owned(), payload_hash.clone()));
            if let Some(token) = &credentials.session_token {
                headers.push(("x-amz-security-token".to_owned(), token.clone()));
            }
            headers.sort();
            let signable = Signable {
                method: request.method.as_str(),
                path: &path,
                query: &query,
                headers: &headers,
                payload_hash: &payload_hash,
            };
            let value = signable.authorization(&credentials, &config.region, &time);
            headers.push(("authorization".to_owned(), value));
        }
        // The HTTP client leaves it out for an empty body, and S3 asks for it.
        if body.len == 0 && matches!(request.method, Method::PUT | Method::POST) {
            headers.push(("content-length".to_owned(), "0".to_owned()));
        }
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}://{}{path}{mark}{query}", config.scheme, config.host);
        let mut signed = http::Request::builder()
            .method(request.method)
            .uri(uri)
            .body(body)
            .map_err(|error| LakeError::invalid(format!("the key makes no request: {error}")))?;
        for (name, value) in headers {
            let bad = || LakeError::invalid(format!("`{name}` is not a header that can be sent"));
            let value = HeaderValue::from_str(&value).map_err(|_| bad())?;
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            signed.headers_mut().append(name, value);
        }
        Ok(signed)
    }
}

impl Reply {
    /// A header as text; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The etag without quotes.
    pub fn etag(&self) -> String {
        plain_etag(self.header("etag"))
    }

    /// The body, which must have exactly this length.
    pub async fn bytes(self, len: usize) -> Result<Bytes> {
        // A connection that was cut, or a server that gave up half way: nothing says that the object is damaged.
        let short = |got: usize| LakeError::unavailable(format!("the body has {got} bytes instead of {len}"));
        let bytes = self.read(len).await?;
        match bytes {
            Some(bytes) if bytes.len() == len => Ok(bytes),
            Some(bytes) => Err(short(bytes.len())),
            None => Err(LakeError::corrupt(format!("the body has more than {len} bytes"))),
        }
    }

    /// The body of an answer that is not an object.
    pub async fn document(self) -> Result<Bytes> {
        self.read(DOCUMENT_BYTES_MAX).await?.ok_or_else(|| {
            LakeError::corrupt(format!(
                "an answer larger than {DOCUMENT_BYTES_MAX} bytes; is this an S3 server?"
            ))
        })
    }

    /// What a bad answer says.
    pub async fn into_fault(self) -> Fault {
        let (status, headers) = (self.status, self.headers.clone());
        let body = self.document().await.unwrap_or_default();
        Fault::new(status, &headers, &body)
    }

    /// The body; `None` if it is longer.
    async fn read(self, bytes_max: usize) -> Result<Option<Bytes>> {
        let mut body = self.body;
        let hint = usize::try_from(body.size_hint().lower()).unwrap_or(0);
        let mut whole = BytesMut::with_capacity(hint.min(bytes_max));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                LakeError::unavailable(format!("the body broke off: {}", with_causes(&error)))
            })?;
            if let Ok(data) = frame.into_data() {
                if whole.len() + data.len() > bytes_max {
                    return Ok(None);
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(Some(whole.freeze()))
    }
}

/// A body in pieces whose length is known.
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    len: u64,
}

impl Pieces {
    fn new(pieces: Vec<Bytes>) -> Pieces {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        Pieces { pieces: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), len }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.pop_front();
        if let Some(piece) = &piece {
            self.len -= piece.len() as u64;
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len)
    }
}

/// An etag without its quotes.
pub(super) fn plain_etag(etag: &str) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// Sorted and encoded, as it is signed and sent.
fn encode_query(query: &[(&'static str, String)]) -> String {
    let mut pairs: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={}", sigv4::percent_encode(value.as_bytes(), Slash::Encode)))
        .collect();
    pairs.sort();
    pairs.join("&")
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[expect(clippy::disallowed_methods, reason = "a signature holds the time at which it was made")]
fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
