//! Answers of STS.

use http::StatusCode;
use stoker_access::Session;

use crate::answer::{self, Answer};
use crate::auth::Credential;
use crate::xml;

const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";

/// The begin of a document.
pub(super) fn document(name: &str) -> String {
    format!("<{name} xmlns=\"{NAMESPACE}\">")
}

/// Puts a result into the document of its action.
fn finished(action: &str, result: &str, request_id: &str) -> Answer {
    let mut out = document(&format!("{action}Response"));
    out.push_str(&format!("<{action}Result>{result}</{action}Result><ResponseMetadata>"));
    xml::push_element(&mut out, "RequestId", request_id);
    out.push_str(&format!("</ResponseMetadata></{action}Response>"));
    let mut answer = answer::xml(StatusCode::OK, out);
    let store = http::HeaderValue::from_static("no-store");
    answer.headers_mut().insert(http::header::CACHE_CONTROL, store);
    answer
}

fn credentials(session: &Session) -> String {
    let mut out = "<Credentials>".to_owned();
    xml::push_element(&mut out, "AccessKeyId", &session.access_key);
    xml::push_element(&mut out, "SecretAccessKey", &session.secret_key);
    xml::push_element(&mut out, "SessionToken", &session.token);
    xml::push_element(&mut out, "Expiration", &time(session.expires_ms / 1_000));
    out.push_str("</Credentials>");
    out
}

/// `2013-05-24T00:00:00Z`.
fn time(unix_s: u64) -> String {
    let basic = stoker_sigv4::time_text(unix_s);
    match (basic.get(..4), basic.get(4..6), basic.get(6..11), basic.get(11..13), basic.get(13..)) {
        (Some(year), Some(month), Some(day_hour), Some(minute), Some(rest)) => {
            format!("{year}-{month}-{day_hour}:{minute}:{rest}")
        }
        _ => basic,
    }
}

/// The answer to `GetSessionToken`.
pub(super) fn session(session: &Session, request_id: &str) -> Answer {
    finished("GetSessionToken", &credentials(session), request_id)
}

/// Somebody became a role.
pub(super) struct Assumption<'a> {
    pub(super) session: &'a Session,
    pub(super) subject: &'a str,
    pub(super) audience: &'a str,
    pub(super) provider: &'a str,
    pub(super) id: String,
}

impl Assumption<'_> {
    /// The answer to `AssumeRoleWithWebIdentity`.
    pub(super) fn answer(&self, request_id: &str) -> Answer {
        let mut out = String::new();
        xml::push_element(&mut out, "SubjectFromWebIdentityToken", self.subject);
        xml::push_element(&mut out, "Audience", self.audience);
        out.push_str("<AssumedRoleUser>");
        xml::push_element(&mut out, "Arn", &self.session.arn);
        xml::push_element(&mut out, "AssumedRoleId", &self.id);
        out.push_str("</AssumedRoleUser>");
        out.push_str(&credentials(self.session));
        xml::push_element(&mut out, "Provider", self.provider);
        finished("AssumeRoleWithWebIdentity", &out, request_id)
    }
}

/// Who somebody is.
pub(super) struct Identity {
    pub(super) arn: String,
    id: String,
    account: String,
}

impl Identity {
    pub(super) fn of(credential: &Credential) -> Identity {
        let tenant = credential.owner.as_ref().map_or(stoker_store::TENANT_DEFAULT, |owner| &owner.tenant);
        let own = || match &credential.owner {
            Some(owner) => format!("arn:aws:iam::{tenant}:user/{}", owner.user),
            None => format!("arn:aws:iam::{tenant}:access-key/{}", credential.access_key),
        };
        let id = match &credential.owner {
            Some(owner) => owner.user.clone(),
            None => credential.access_key.clone(),
        };
        Identity {
            arn: credential.session.as_ref().map_or_else(own, |session| session.arn.clone()),
            id,
            account: tenant.to_owned(),
        }
    }

    /// The answer to `GetCallerIdentity`.
    pub(super) fn answer(&self, request_id: &str) -> Answer {
        let mut out = String::new();
        xml::push_element(&mut out, "Arn", &self.arn);
        xml::push_element(&mut out, "UserId", &self.id);
        xml::push_element(&mut out, "Account", &self.account);
        finished("GetCallerIdentity", &out, request_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_programs_read_them() {
        assert_eq!(time(1_369_353_600), "2013-05-24T00:00:00Z");
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
    }
}
