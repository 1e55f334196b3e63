//! Requests to others: with a deadline, and with a bound on what they may answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::failure::Failure;

/// Longest time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// How long a connection is kept open although nothing happens on it.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A client for plain HTTP and HTTPS; certificates are those that the machine trusts.
#[derive(Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Why no certificate is trusted, if so.
    untrusting: Option<Arc<str>>,
}

/// An answer, whole.
pub struct Answer {
    /// Of HTTP.
    pub status: u16,
    /// At most as much as was asked for.
    pub body: Bytes,
}

/// Refuses what could never be asked.
pub fn check_url(text: &str) -> Result<(), String> {
    let uri: Uri = text.parse().map_err(|error| format!("`{text}` is not a url: {error}"))?;
    let scheme = uri.scheme_str().unwrap_or_default();
    if !["http", "https"].contains(&scheme) || uri.host().is_none_or(str::is_empty) {
        return Err(format!("`{text}` is not a url that begins with http:// or https://"));
    }
    Ok(())
}

impl Http {
    /// A client with the certificates of this machine.
    pub fn new() -> Result<Http, Failure> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(REQUEST_MAX));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = || {
            rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
        };
        let failed = |error: rustls::Error| Failure::new(format!("TLS cannot be set up: {error}"));
        // A machine without certificates of authorities can do all that needs none. Whoever needs them is told then.
        let trusting =
            builder().and_then(rustls_platform_verifier::BuilderVerifierExt::with_platform_verifier);
        let (tls, untrusting) = match trusting {
            Ok(tls) => (tls.with_no_client_auth(), None),
            Err(error) => {
                let nobody = rustls::RootCertStore::empty();
                let tls = builder().map_err(failed)?.with_root_certificates(nobody).with_no_client_auth();
                (
                    tls,
                    Some(format!(
                        "this machine has no certificates of authorities ({error}): install ca-certificates"
                    )),
                )
            }
        };
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(1)
            .build(https);
        Ok(Http { client, untrusting: untrusting.map(Arc::from) })
    }

    /// Why a request was not answered.
    fn failed(&self, url: &str, error: &dyn std::error::Error) -> String {
        match &self.untrusting {
            Some(why) if url.starts_with("https:") => why.to_string(),
            _ => with_causes(error),
        }
    }

    /// Gets a page of at most so many bytes.
    pub async fn get(&self, url: &str, bytes_max: usize) -> Result<Answer, String> {
        let request = request(Method::GET, url, &[], Bytes::new())?;
        let whole = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(url, &error))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), bytes_max).collect().await;
            let body = body.map_err(|error| format!("its answer cannot be read: {error}"))?.to_bytes();
            Ok(Answer { status, body })
        };
        in_time(whole).await
    }

    /// Sends something; the answer, of which no more than so many bytes are read. What follows them, or does not come in time, is not
    /// waited for: the status says what became of it.
    pub async fn ask(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, String)],
        body: Bytes,
        bytes_max: usize,
    ) -> Result<Answer, String> {
        let request = request(method, url, headers, body)?;
        let begun =
            in_time(async { self.client.request(request).await.map_err(|error| self.failed(url, &error)) });
        let response = begun.await?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let mut body = response.into_body();
        let rest = async {
            while let Some(Ok(frame)) = body.frame().await {
                let Some(data) = frame.data_ref() else { continue };
                bytes.extend_from_slice(&data[..data.len().min(bytes_max - bytes.len())]);
                if bytes.len() == bytes_max {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(REQUEST_MAX, rest).await;
        Ok(Answer { status, body: bytes.into() })
    }

    /// Sends something; the status of the answer. What else is in the answer is not waited for: who has taken something may say
    /// much about it.
    pub async fn tell(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, String)],
        body: Bytes,
    ) -> Result<u16, String> {
        let request = request(method, url, headers, body)?;
        let told = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(url, &error))?;
            Ok(response.status().as_u16())
        };
        in_time(told).await
    }
}

fn request(
    method: Method,
    url: &str,
    headers: &[(HeaderName, String)],
    body: Bytes,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
        request = request.header(name, value);
    }
    request.body(Full::new(body)).map_err(|error| error.to_string())
}

async fn in_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_MAX, work).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", REQUEST_MAX.as_secs())),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::check_url;

    #[test]
    fn urls_that_cannot_be_asked_are_refused() {
        for good in ["http://127.0.0.1:9400/metrics", "https://hooks.example.com/a?b=c", "http://[::1]:80"] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in ["", "hooks.example.com", "/metrics", "ftp://example.com", "http://", "http://a b"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
