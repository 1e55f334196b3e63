//! Temporary access keys in the form of AWS's Security Token Service: a form posted to the root of the port, answers in XML. (D225)
//!
//! `AssumeRoleWithWebIdentity` takes a token of an OpenID provider and is not signed; `GetSessionToken` and `GetCallerIdentity` are signed by a
//! key of a user, for the service `sts`. What is given is decided elsewhere: what a token is worth by [`stoker_oidc`], what a temporary key opens by
//! the guard, with every request that it signs.

mod answer;
mod fault;
mod narrow;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap};
use http::request::Parts as Head;
use http::{Method, StatusCode};
use stoker_access::{Guard, SessionRequest};
use stoker_oidc::{Assumed, Issuers, RoleName, TOKEN_LEN_MAX};

use self::answer::{Assumption, Identity};
use self::fault::{Code, Fault, Result};
use self::narrow::Narrowed;
use crate::answer::Answer;
use crate::auth::{Authenticator, Credential};
use crate::exchange::Exchange;
use crate::hot::arrivals::{Arrival, Arrivals};
use crate::operation::Operation;
use crate::query::Query;
use crate::target::Target;
use crate::{DOOR, clock};

/// Longest form: a token of a provider and a policy, encoded.
const FORM_BYTES_MAX: usize = 96 << 10;
/// Shortest life of a temporary key.
const DURATION_S_MIN: u32 = 900;
/// Longest life.
const DURATION_S_MAX: u32 = 12 * 3_600;
/// Life of a key by a role, if nobody says otherwise.
const ROLE_DURATION_S: u32 = 3_600;
/// The version of the protocol, which all programs name.
const VERSION: &str = "2011-06-15";

/// What a request to STS has.
pub(crate) struct Asked<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) auth: &'a Authenticator,
    pub(crate) issuers: &'a Issuers,
    pub(crate) head: &'a Head,
    pub(crate) query: &'a Query,
    pub(crate) arrivals: &'a mut Arrivals,
    pub(crate) patience: Duration,
    pub(crate) request_id: &'a str,
}

/// Whether a request is for STS. No operation of S3 posts a form of this type, and none posts to the root.
pub(crate) fn is_asked(method: &Method, target: &Target, headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    *method == Method::POST
        && *target == Target::Root
        && kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Answers a request.
pub(crate) async fn answer(mut asked: Asked<'_>, exchange: &mut Exchange) -> Answer {
    let mut operation = Operation::Unknown;
    let request_id = asked.request_id;
    match asked.answer(&mut operation, exchange).await {
        Ok(answer) => answer,
        Err(fault) => {
            if fault.code.status() != StatusCode::SERVICE_UNAVAILABLE {
                // As JSON, of which the audit log hides values by their names: some codes have words in them that secrets have.
                let why = format!("{{\"code\":\"{}\"}}", fault.code.name());
                asked.guard.refused_stranger(DOOR, operation.name(), "", None, &why);
            }
            tracing::debug!(code = fault.code.name(), request = request_id, "{}", fault.message);
            fault.answer(request_id)
        }
    }
}

impl Asked<'_> {
    async fn answer(&mut self, operation: &mut Operation, exchange: &mut Exchange) -> Result<Answer> {
        let body = self.body().await?;
        let text = std::str::from_utf8(&body)
            .map_err(|_| Fault::new(Code::ValidationError, "The form is not UTF-8."))?;
        let form = Query::parse(Some(text)).map_err(Fault::from)?;
        let Some(action) = form.get("Action") else {
            return Err(Fault::new(Code::MissingAction, "The form has no Action."));
        };
        *operation = match action {
            "AssumeRoleWithWebIdentity" => Operation::AssumeRoleWithWebIdentity,
            "GetSessionToken" => Operation::GetSessionToken,
            "GetCallerIdentity" => Operation::GetCallerIdentity,
            _ => {
                let message = "This Action is not known here: AssumeRoleWithWebIdentity, GetSessionToken, GetCallerIdentity.";
                return Err(Fault::new(Code::InvalidAction, message));
            }
        };
        exchange.asks(*operation);
        if form.get("Version").is_some_and(|version| version != VERSION) {
            return Err(Fault::new(Code::InvalidAction, format!("The Version has to be {VERSION}.")));
        }
        if *operation == Operation::AssumeRoleWithWebIdentity {
            let answer = self.assume(&form).await?;
            exchange.proves();
            return Ok(answer);
        }
        let credential = self.auth.check_sts(self.head, self.query, &body, clock::unix_s()).await?;
        exchange.proves();
        match operation {
            Operation::GetSessionToken => self.session(&form, &credential).await,
            _ => Ok(Identity::of(&credential).answer(self.request_id)),
        }
    }

    async fn body(&mut self) -> Result<Vec<u8>> {
        let received = async {
            let mut body = Vec::new();
            loop {
                match self.arrivals.next(None).await? {
                    Arrival::Data(data) if body.len() + data.len() > FORM_BYTES_MAX => {
                        return Err(Fault::new(Code::ValidationError, "The form is too long."));
                    }
                    Arrival::Data(data) => body.extend_from_slice(&data),
                    Arrival::Quiet => {}
                    Arrival::End => return Ok(body),
                }
            }
        };
        let slow = |_| Fault::new(Code::ValidationError, "The form took too long to arrive.");
        tokio::time::timeout(self.patience, received).await.map_err(slow)?
    }

    async fn assume(&self, form: &Query) -> Result<Answer> {
        let arn = want(form, "RoleArn", 20..=2_048)?;
        let name = session_name(want(form, "RoleSessionName", 2..=64)?)?;
        let token = want(form, "WebIdentityToken", 4..=TOKEN_LEN_MAX)?;
        let narrowed = narrowed(form)?;
        let duration_s = duration(form)?;
        let not_there =
            || Fault::new(Code::AccessDenied, "Not authorized to perform sts:AssumeRoleWithWebIdentity.");
        let role = RoleName::of_arn(arn).ok_or_else(not_there)?;
        let assumed = self.issuers.assume(&role, token, clock::unix_s()).await?;
        let Assumed { role, user, subject, audience, issuer } = &assumed;
        let most_s = role.duration_max_s.clamp(DURATION_S_MIN, DURATION_S_MAX);
        if duration_s.is_some_and(|duration_s| duration_s > most_s) {
            let message =
                format!("The requested DurationSeconds exceeds the most that this role gives: {most_s}.");
            return Err(Fault::new(Code::ValidationError, message));
        }
        let arn = format!("arn:aws:sts::{}:assumed-role/{}/{name}", role.name.tenant, role.name.role);
        let request = SessionRequest {
            label: format!("{}/{name} ({subject} at {issuer})", role.name.role),
            arn: arn.clone(),
            is_read_only: role.is_read_only || narrowed.is_read_only,
            places: [role.prefixes.clone(), narrowed.places]
                .into_iter()
                .filter(|list| !list.is_empty())
                .collect(),
            duration_s: duration_s.unwrap_or(ROLE_DURATION_S.min(most_s)),
            now_ms: now_ms(),
        };
        let Some(session) = self.guard.session_of_user(user, request).await? else {
            let message = format!(
                "Not authorized to perform sts:AssumeRoleWithWebIdentity: the role is user {user} here, who is not there or is kept out."
            );
            return Err(Fault::new(Code::AccessDenied, message));
        };
        let detail = serde_json::json!({
            "role": role.name.to_string(), "subject": subject, "issuer": issuer, "name": name,
            "access_key": session.access_key, "expires_ms": session.expires_ms,
        });
        self.guard.given(user, DOOR, "AssumeRoleWithWebIdentity", detail.to_string()).await?;
        let assumption = Assumption {
            session: &session,
            subject,
            audience,
            provider: issuer,
            id: format!("{}:{name}", role.name.role),
        };
        Ok(assumption.answer(self.request_id))
    }

    async fn session(&self, form: &Query, credential: &Arc<Credential>) -> Result<Answer> {
        if credential.session.is_some() {
            let message = "Cannot call GetSessionToken with session credentials.";
            return Err(Fault::new(Code::AccessDenied, message));
        }
        if form.has("SerialNumber") || form.has("TokenCode") {
            return Err(Fault::new(
                Code::ValidationError,
                "There are no MFA devices here: leave SerialNumber and TokenCode away.",
            ));
        }
        let duration_s = duration(form)?.unwrap_or(DURATION_S_MAX);
        let request = SessionRequest {
            label: format!("of {}", credential.access_key),
            arn: Identity::of(credential).arn,
            is_read_only: false,
            places: Vec::new(),
            duration_s,
            now_ms: now_ms(),
        };
        let session = self.guard.session_of_key(&credential.access_key, credential.secret_key(), request)?;
        let detail =
            serde_json::json!({ "access_key": session.access_key, "expires_ms": session.expires_ms });
        credential.view.given("GetSessionToken", detail.to_string()).await?;
        Ok(answer::session(&session, self.request_id))
    }
}

fn now_ms() -> u64 {
    u64::try_from(clock::unix_s()).unwrap_or(0).saturating_mul(1_000)
}

fn want<'f>(form: &'f Query, name: &str, len: std::ops::RangeInclusive<usize>) -> Result<&'f str> {
    match form.get(name) {
        None => Err(Fault::new(
            Code::ValidationError,
            format!("Value null at '{name}' failed to satisfy constraint: Member must not be null."),
        )),
        Some(value) if !len.contains(&value.len()) => Err(Fault::new(
            Code::ValidationError,
            format!(
                "Value at '{name}' failed to satisfy constraint: Member must have length between {} and {}.",
                len.start(),
                len.end()
            ),
        )),
        Some(value) => Ok(value),
    }
}

fn session_name(name: &str) -> Result<&str> {
    let is_sound = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte));
    match is_sound {
        true => Ok(name),
        false => Err(Fault::new(
            Code::ValidationError,
            "Value at 'roleSessionName' failed to satisfy constraint: Member must satisfy regular expression pattern: [\\w+=,.@-]*",
        )),
    }
}

fn duration(form: &Query) -> Result<Option<u32>> {
    let Some(text) = form.get("DurationSeconds") else { return Ok(None) };
    match text.parse::<u32>() {
        Ok(duration_s) if (DURATION_S_MIN..=DURATION_S_MAX).contains(&duration_s) => Ok(Some(duration_s)),
        _ => Err(Fault::new(
            Code::ValidationError,
            format!(
                "Value at 'durationSeconds' has to be a number from {DURATION_S_MIN} to {DURATION_S_MAX}."
            ),
        )),
    }
}

/// What the caller itself wants to do without.
fn narrowed(form: &Query) -> Result<Narrowed> {
    if form.names().any(|name| {
        name.starts_with("PolicyArns") || name.starts_with("Tags") || name.starts_with("ProvidedContexts")
    }) {
        let message = "There are no managed policies, session tags and contexts here: leave PolicyArns, Tags and ProvidedContexts away.";
        return Err(Fault::new(Code::ValidationError, message));
    }
    match form.get("Policy") {
        None => Ok(Narrowed::default()),
        Some(policy) => narrow::parse(policy).map_err(|why| {
            Fault::new(
                Code::MalformedPolicyDocument,
                format!("The session policy is not taken, because it could not be followed: {why}."),
            )
        }),
    }
}
