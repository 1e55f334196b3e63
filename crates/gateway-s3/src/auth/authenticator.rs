//! Checks signatures of requests.

use std::cell::RefCell;
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts as Head;
use stoker_access::Guard;

use crate::clock;
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};

use super::SKEW_S_MAX;
use super::canonical::{self, Parts, Spelling};
use super::claim::{Claim, Means, Scope, Service};
use super::keyring::{Credential, Keyring, Signer, invalid_token};
use super::legacy::{self, LegacyClaim};
use super::payload::{Declared, Payload};
use super::signature::ChunkSigner;

/// Where clients believe to be that sign by Version 2.
const LEGACY_REGION: &str = "us-east-1";

/// Checks signatures. Any region is taken that the signature is for: there is one place here, whatever clients call it.
pub(crate) struct Authenticator {
    keyring: Keyring,
    /// Whether presigned requests of Version 2 are taken.
    takes_legacy: bool,
}

/// A request that is what its signer sent.
pub(crate) struct Verified {
    /// Who.
    pub(crate) credential: Arc<Credential>,
    /// How to read the body.
    pub(crate) payload: Payload,
    /// The region that the signature is for.
    pub(crate) region: String,
}

thread_local! {
    static CANONICAL: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(4096));
}

impl Authenticator {
    /// Takes access keys from behind the guard.
    pub(crate) fn new(guard: Guard, takes_legacy: bool) -> Authenticator {
        Authenticator { keyring: Keyring::new(guard), takes_legacy }
    }

    /// Checks a request at this time. `volume` is the one that the host names, if it does.
    pub(crate) async fn check(
        &self,
        head: &Head,
        query: &Query,
        volume: Option<&str>,
        now_s: i64,
    ) -> Result<Verified> {
        if self.takes_legacy && legacy::is_signed_so(query) {
            return self.check_legacy(head, query, volume, now_s).await;
        }
        let claimed = Claimed::of(head, query, now_s)?;
        let token = session_token(&head.headers, query)?;
        let credential = self.keyring.find(claimed.claim.scope.access_key, token, now_s).await?;
        let region = claimed.claim.scope.region.to_owned();
        let payload = claimed.verify(head, query, &credential.signer)?;
        Ok(Verified { credential, payload, region })
    }

    /// The same for a request to STS, whose body is there already: its clients do not say in a header what the signature covers of it.
    pub(crate) async fn check_sts(
        &self,
        head: &Head,
        query: &Query,
        body: &[u8],
        now_s: i64,
    ) -> Result<Arc<Credential>> {
        let claim = Claim::find(&head.headers, query, Service::Sts)?;
        check_time(&claim, now_s)?;
        check_signed_headers(&head.headers, claim.signed_headers)?;
        let payload = stoker_sigv4::sha256_hex(body);
        let declared = head.headers.get("x-amz-content-sha256").map(http::HeaderValue::as_bytes);
        if declared.is_some_and(|declared| declared != payload.as_bytes()) {
            return Err(Refusal::new(
                Code::XAmzContentSHA256Mismatch,
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            ));
        }
        let token = session_token(&head.headers, query)?;
        let credential = self.keyring.find(claim.scope.access_key, token, now_s).await?;
        let claimed =
            Claimed { claim, payload: &payload, declared: Declared::Unsigned, service: Service::Sts };
        claimed.verify(head, query, &credential.signer)?;
        Ok(credential)
    }

    /// The same for a policy that is signed by Version 2; none if that is not taken.
    pub(crate) async fn check_legacy_policy(
        &self,
        access_key: &str,
        token: Option<&str>,
        policy: &str,
        theirs: &str,
    ) -> Option<Result<Arc<Credential>>> {
        if !self.takes_legacy {
            return None;
        }
        Some(self.keyring.find(access_key, token, clock::unix_s()).await.and_then(|credential| {
            match legacy::is_policy_right(policy, theirs, credential.signer.secret_key()) {
                true => Ok(credential),
                false => Err(mismatch(&credential.access_key)),
            }
        }))
    }

    async fn check_legacy(
        &self,
        head: &Head,
        query: &Query,
        volume: Option<&str>,
        now_s: i64,
    ) -> Result<Verified> {
        let claim = LegacyClaim::of(&head.headers, query, now_s)?;
        let declared = payload_text(&head.headers, query, Means::Query { expires_s: 0 })?;
        let payload = match Declared::parse(declared)? {
            Declared::Unsigned => Payload::Plain,
            Declared::Sha256(hash) => Payload::Sha256(hash),
            _ => {
                return Err(Refusal::new(
                    Code::NotImplemented,
                    "A streaming payload needs Signature Version 4.",
                ));
            }
        };
        let token = session_token(&head.headers, query)?;
        let credential = self.keyring.find(claim.access_key, token, now_s).await?;
        if !claim.is_right(head, query, volume, credential.signer.secret_key()) {
            return Err(mismatch(&credential.access_key));
        }
        Ok(Verified { credential, payload, region: LEGACY_REGION.to_owned() })
    }

    /// Checks the signature of a form's policy. How long the policy is good is its own business.
    pub(crate) async fn check_policy(
        &self,
        scope: &Scope<'_>,
        token: Option<&str>,
        policy: &str,
        theirs: &str,
    ) -> Result<Arc<Credential>> {
        let credential = self.keyring.find(scope.access_key, token, clock::unix_s()).await?;
        let key = credential.signer.signing_key(scope.day, scope.region, Service::S3);
        if stoker_sigv4::equal(&key.sign(&[policy]), theirs) {
            Ok(credential)
        } else {
            Err(mismatch(&credential.access_key))
        }
    }
}

/// A request whose claim makes sense; its signature was not looked at yet.
struct Claimed<'a> {
    claim: Claim<'a>,
    payload: &'a str,
    declared: Declared,
    service: Service,
}

impl<'a> Claimed<'a> {
    /// Checks everything that needs no secret.
    fn of(head: &'a Head, query: &'a Query, now_s: i64) -> Result<Claimed<'a>> {
        let claim = Claim::find(&head.headers, query, Service::S3)?;
        check_time(&claim, now_s)?;
        check_signed_headers(&head.headers, claim.signed_headers)?;
        let payload = payload_text(&head.headers, query, claim.means)?;
        Ok(Claimed { claim, payload, declared: Declared::parse(payload)?, service: Service::S3 })
    }

    /// Checks the signature.
    fn verify(self, head: &Head, query: &Query, signer: &Signer) -> Result<Payload> {
        let claim = self.claim;
        let key = signer.signing_key(claim.scope.day, claim.scope.region, self.service);
        let (day, region) = (claim.scope.day, claim.scope.region);
        let scope = stoker_sigv4::scope_of_service(day, region, self.service.name());
        let parts = Parts {
            method: &head.method,
            raw_path: head.uri.path(),
            query,
            headers: &head.headers,
            signed_headers: claim.signed_headers,
            payload: self.payload,
        };
        let found = CANONICAL.with_borrow_mut(|buffer| {
            [Spelling::Canonical, Spelling::Raw].into_iter().find_map(|spelling| {
                canonical::write(buffer, &parts, spelling);
                let ours = key.sign_request(&claim.time, &scope, buffer);
                stoker_sigv4::equal(&ours, claim.signature).then_some(ours)
            })
        });
        let Some(seed) = found else {
            return Err(mismatch(&signer.access_key));
        };
        let chunks = || Some(Box::new(ChunkSigner::new(key, claim.time, scope, seed)));
        Ok(match self.declared {
            Declared::Unsigned => Payload::Plain,
            Declared::Sha256(hash) => Payload::Sha256(hash),
            Declared::Signed => Payload::Chunked { signer: chunks(), trailer: false },
            Declared::SignedTrailer => Payload::Chunked { signer: chunks(), trailer: true },
            Declared::UnsignedTrailer => Payload::Chunked { signer: None, trailer: true },
        })
    }
}

fn check_time(claim: &Claim<'_>, now_s: i64) -> Result<()> {
    let skewed = || {
        Refusal::new(
            Code::RequestTimeTooSkewed,
            "The difference between the request time and the current time is too large.",
        )
        .with("RequestTime", &claim.time)
        .with("MaxAllowedSkewMilliseconds", (SKEW_S_MAX * 1000).to_string())
    };
    match claim.means {
        Means::Header if (now_s - claim.time_s).abs() > SKEW_S_MAX => Err(skewed()),
        Means::Query { .. } if claim.time_s - now_s > SKEW_S_MAX => Err(skewed()),
        // Without any life it is over at once, also within the same second.
        Means::Query { expires_s } if expires_s == 0 || now_s > claim.time_s + expires_s => {
            Err(Refusal::new(Code::AccessDenied, "Request has expired."))
        }
        _ => Ok(()),
    }
}

/// The host and everything that S3 would act on must be covered, or somebody in between could change it.
fn check_signed_headers(headers: &HeaderMap, signed: &str) -> Result<()> {
    let covered = |name: &str| signed.split(';').any(|other| other == name);
    let naked =
        headers.keys().map(|name| name.as_str()).find(|name| name.starts_with("x-amz-") && !covered(name));
    let naked = if covered("host") { naked } else { Some("host") };
    match naked {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            Code::AccessDenied,
            "There were headers present in the request which were not signed.",
        )
        .with("HeadersNotSigned", name)),
    }
}

/// The session token of a temporary key, in a header or in the query; the signature covers both. More than one is none.
fn session_token<'a>(headers: &'a HeaderMap, query: &'a Query) -> Result<Option<&'a str>> {
    const NAME: &str = "x-amz-security-token";
    let in_headers = headers.get_all(NAME).iter().map(|value| value.to_str().map_err(|_| invalid_token()));
    let in_query = query.names().filter(|name| name.eq_ignore_ascii_case(NAME));
    let mut all = in_headers.chain(in_query.map(|name| Ok(query.get(name).unwrap_or_default())));
    match (all.next().transpose()?, all.next()) {
        (token, None) => Ok(token),
        (_, Some(_)) => Err(invalid_token()),
    }
}

/// What the signature covers as the payload.
fn payload_text<'a>(headers: &'a HeaderMap, query: &'a Query, means: Means) -> Result<&'a str> {
    let header = headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
    match (header, means) {
        (Some(value), _) => Ok(value),
        (None, Means::Query { .. }) => Ok(query.get("X-Amz-Content-Sha256").unwrap_or("UNSIGNED-PAYLOAD")),
        (None, Means::Header) => Err(Refusal::new(
            Code::InvalidRequest,
            "Missing required header for this request: x-amz-content-sha256.",
        )),
    }
}

fn mismatch(access_key: &str) -> Refusal {
    Refusal::new(
        Code::SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and signing \
         method.",
    )
    .with("AWSAccessKeyId", access_key)
}

#[cfg(test)]
mod tests;
