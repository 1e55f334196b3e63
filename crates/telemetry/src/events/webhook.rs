//! Events to somebody's URL: one POST for each, signed if there is a secret.

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{HeaderName, Method};
use stoker_store::BoxFuture;

use super::Event;
use super::delivery::{Delivery, Outcome, Receiver, Sort, hex};
use crate::clock;
use crate::failure::Failure;
use crate::fetch::Http;
use crate::small_file::read_small;

const SORT: Sort = Sort { name: "webhook", label: "url", words: "a webhook" };

/// Signs a body: `t=UNIX_SECONDS,v1=HEX` of HMAC-SHA256 over `UNIX_SECONDS.BODY`.
const SIGNATURE: HeaderName = HeaderName::from_static("stoker-signature");
/// The same for each try.
const EVENT_ID: HeaderName = HeaderName::from_static("stoker-event-id");

/// What signs.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

/// Reads it from its file; blanks at its ends do not count.
pub fn read_secret(path: &Path) -> Result<Secret, Failure> {
    let text = read_small(path)?.unwrap_or_default();
    let text = text.trim();
    if text.is_empty() {
        return Err(Failure::new(format!("{}: there is no secret for webhooks in it", path.display()))
            .hint("write one there, such as the output of `openssl rand -hex 32`"));
    }
    Ok(Secret(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))))
}

impl Secret {
    fn sign(&self, unix_s: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{unix_s}.").as_bytes());
        context.update(body);
        format!("t={unix_s},v1={}", hex(context.sign().as_ref()))
    }
}

/// One receiver.
struct Webhook {
    url: String,
    secret: Option<Secret>,
    http: Http,
}

/// A receiver, and where it stood when the node stopped. `twins` are those before it that are called the same in numbers; one that
/// was never there before is sent what comes behind `seq`.
pub fn open(dir: &Path, url: &str, twins: usize, secret: Option<Secret>, http: Http, seq: u64) -> Delivery {
    let whose = match twins {
        0 => without_secrets(url).to_owned(),
        more => format!("{}#{}", without_secrets(url), more + 1),
    };
    let webhook = Webhook { url: url.to_owned(), secret, http };
    Delivery::open(dir, SORT, url, whose, Box::new(webhook), seq)
}

impl Receiver for Webhook {
    fn send<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let body = match serde_json::to_vec(event) {
                Ok(body) => Bytes::from(body),
                Err(error) => return Outcome::Refused(error.to_string()),
            };
            let mut headers = vec![
                (http::header::CONTENT_TYPE, "application/json".to_owned()),
                (EVENT_ID, event.id.clone()),
            ];
            if let Some(secret) = &self.secret {
                headers.push((SIGNATURE, secret.sign(clock::unix_ms() / 1_000, &body)));
            }
            match self.http.tell(Method::POST, &self.url, &headers, body).await {
                Ok(status) => outcome_of(status),
                Err(words) => Outcome::Failed(words),
            }
        })
    }
}

/// Whether two receivers are called the same in numbers: two channels of one chat service are.
pub fn is_label_same(url: &str, other: &str) -> bool {
    without_secrets(url) == without_secrets(other)
}

/// A url without what may be a secret: chat services have theirs in the path.
fn without_secrets(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    match url[host..end].rfind('@') {
        Some(at) => &url[host + at + 1..end],
        None => &url[..end],
    }
}

fn outcome_of(status: u16) -> Outcome {
    let words = format!("it answers with status {status}");
    match status {
        200..=299 => Outcome::Taken,
        // What the event is, and not who sends it or where to: an expired word or a wrong path is fixed by a person, and until
        // then nothing may be lost.
        400 | 406 | 409 | 413 | 415 | 422 => Outcome::Refused(words),
        _ => Outcome::Failed(words),
    }
}

#[cfg(test)]
mod tests;
