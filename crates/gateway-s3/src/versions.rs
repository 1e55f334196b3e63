//! Versions of objects and what holds them, as S3 has them: which version a request means, what its headers say of locks, and the settings of
//! buckets and objects about both.

use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::dto::{
    ObjectLockConfiguration, ObjectLockLegalHold, ObjectLockRetention, Timestamp, TimestampFormat,
    VersioningConfiguration,
};
use stoker_store::{
    ErrorKind, Keeps, Key, LOCK_SETTING, Lock, LockChange, Retention, Store, StoreError, Subject,
    VERSIONING_SETTING, VersionEntry, VersionInfo, Versioning, VersionsRequest,
};

use crate::answer::{self, Answer};
use crate::clock;
use crate::operation::Operation;
use crate::ops::malformed;
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::settings::filled;

const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";
const HOLD: &str = "x-amz-object-lock-legal-hold";
const VERSION: &str = "x-amz-version-id";
const MARKER: &str = "x-amz-delete-marker";
const NO_LOCK: &str = "Bucket is missing Object Lock Configuration";

/// The key of the version that is asked for; no id: the present one.
pub(crate) fn key_of_version(key: &Key, id: Option<&str>) -> Result<Key> {
    match id {
        None | Some("") => Ok(key.clone()),
        Some(id) => Key::version_of(key, id).map_err(|_| {
            Refusal::new(Code::NoSuchVersion, "The specified version does not exist.").with("VersionId", id)
        }),
    }
}

/// The same by the parameter of a request.
pub(crate) fn key_asked(key: &Key, query: &Query) -> Result<Key> {
    key_of_version(key, query.get("versionId"))
}

/// What a bucket keeps.
pub(crate) async fn versioning(store: &dyn Store, volume: &str) -> Result<Versioning> {
    let document = store.volume_setting(volume, VERSIONING_SETTING).await?;
    let text = document.map(|document| String::from_utf8_lossy(&document).into_owned());
    Ok(text.map_or(Ok(Versioning::default()), |text| text.parse())?)
}

/// Refuses a lock for an object in a bucket without locks, before its bytes are sent.
pub(crate) async fn check_lockable(store: &dyn Store, volume: &str, lock: Option<&Lock>) -> Result<()> {
    match lock.is_none() || versioning(store, volume).await?.has_lock {
        true => Ok(()),
        false => Err(Refusal::new(Code::InvalidRequest, NO_LOCK)),
    }
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

fn invalid(name: &'static str, message: &'static str) -> Refusal {
    Refusal::new(Code::InvalidArgument, message).with("ArgumentName", name)
}

fn mode(text: &str) -> Option<bool> {
    match text {
        "GOVERNANCE" => Some(false),
        "COMPLIANCE" => Some(true),
        _ => None,
    }
}

/// What the headers of a write say that is to hold the object.
pub(crate) fn lock_of_headers(headers: &HeaderMap) -> Result<Option<Lock>> {
    let retention = match (text_of(headers, MODE), text_of(headers, UNTIL)) {
        (None, None) => None,
        (Some(text), Some(until)) => {
            let is_compliance = mode(text).ok_or_else(|| invalid(MODE, "Unknown wormMode directive."))?;
            let until_s = clock::parse_extended(until)
                .ok_or_else(|| invalid(UNTIL, "The retain until date must be provided in ISO 8601 format"))?;
            Some(future(is_compliance, until_s)?)
        }
        (Some(_), None) => {
            return Err(invalid(
                UNTIL,
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied",
            ));
        }
        (None, Some(_)) => {
            return Err(invalid(
                MODE,
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied",
            ));
        }
    };
    let is_held = match text_of(headers, HOLD) {
        None | Some("OFF") => false,
        Some("ON") => true,
        Some(_) => return Err(invalid(HOLD, "Legal Hold must be either of 'ON' or 'OFF'")),
    };
    let says_something = headers.contains_key(HOLD) || retention.is_some();
    Ok(says_something.then_some(Lock { retention, is_held }))
}

fn future(is_compliance: bool, until_s: i64) -> Result<Retention> {
    if until_s <= clock::unix_s() {
        return Err(invalid(UNTIL, "The retain until date must be in the future!"));
    }
    let until_ms = u64::try_from(until_s).unwrap_or_default().saturating_mul(1_000);
    Ok(Retention { is_compliance, until_ms })
}

/// A moment as documents say it.
pub(crate) fn date(until_ms: u64) -> String {
    let mut text = Vec::new();
    let stamp = Timestamp::from(clock::from_unix_ms(until_ms));
    match stamp.format(TimestampFormat::DateTime, &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

fn mode_name(is_compliance: bool) -> &'static str {
    if is_compliance { "COMPLIANCE" } else { "GOVERNANCE" }
}

/// The headers of an answer that say which version it is and what holds it.
pub(crate) fn add_version(headers: &mut HeaderMap, version: Option<&VersionInfo>) {
    let Some(version) = version else { return };
    let mut add = |name: &'static str, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    add(VERSION, &version.id);
    if let Some(retention) = &version.retention {
        add(MODE, mode_name(retention.is_compliance));
        add(UNTIL, &date(retention.until_ms));
    }
    if version.is_held {
        add(HOLD, "ON");
    }
}

/// Why an object is not there: perhaps a marker says that it was deleted. Who may not list the bucket's versions does not hear of it.
pub(crate) async fn missing(
    store: &dyn Store,
    volume: &str,
    key: &Key,
    query: &Query,
    fault: StoreError,
) -> Refusal {
    let is_key =
        fault.kind == ErrorKind::NotFound && matches!(fault.subject, Subject::Key | Subject::Version);
    let refusal = Refusal::from(fault);
    if !is_key {
        return refusal;
    }
    if query.get("versionId").is_some_and(|id| !id.is_empty()) {
        let Ok(asked) = key_asked(key, query) else { return refusal };
        let found = store.stat(volume, &asked).await.ok().and_then(|info| info.past);
        return found.filter(|version| version.is_marker).map_or(refusal, |version| not_of_marker(&version));
    }
    if !matches!(versioning(store, volume).await, Ok(known) if known.keeps != Keeps::Nothing) {
        return refusal;
    }
    let request = VersionsRequest { prefix: key.as_bytes().to_vec(), limit: 1, ..VersionsRequest::default() };
    let page = store.versions(volume, request).await.unwrap_or_default();
    match page.entries.into_iter().next() {
        Some(VersionEntry::Version { info, version, .. }) if version.is_marker && info.key == *key => {
            refusal.with_header(MARKER, "true").with_header(VERSION, version.id)
        }
        _ => refusal,
    }
}

/// A marker can be deleted, and nothing else.
pub(crate) fn not_of_marker(version: &VersionInfo) -> Refusal {
    Refusal::new(Code::MethodNotAllowed, "The specified method is not allowed against this resource.")
        .with("Method", "GET")
        .with("ResourceType", "DeleteMarker")
        .with_header(MARKER, "true")
        .with_header(VERSION, version.id.clone())
        .with_header("allow", "DELETE")
}

/// A change of what a bucket keeps that cannot be now.
fn of_state(fault: StoreError) -> Refusal {
    match (fault.kind, fault.subject) {
        (ErrorKind::Conflict, Subject::Volume) => Refusal::new(Code::InvalidBucketState, fault.message),
        _ => fault.into(),
    }
}

/// Answers what a bucket is asked about its versions.
pub(crate) async fn answer_bucket(
    store: &dyn Store,
    operation: Operation,
    volume: &str,
    document: &[u8],
) -> Result<Option<Answer>> {
    let (name, wish) = match operation {
        Operation::PutBucketVersioning => (VERSIONING_SETTING, wished_versioning(document)?),
        Operation::PutObjectLockConfiguration => (LOCK_SETTING, wished_lock(document)?),
        Operation::GetObjectLockConfiguration => {
            let known = versioning(store, volume).await?;
            return known
                .has_lock
                .then(|| filled("ObjectLockConfiguration", &lock_document(&known)))
                .transpose();
        }
        _ => return Ok(None),
    };
    store.set_volume_setting(volume, name, Some(wish.into_bytes())).await.map_err(of_state)?;
    Ok(Some(answer::bare(StatusCode::OK)))
}

fn wished_versioning(document: &[u8]) -> Result<String> {
    let wish: VersioningConfiguration = crate::ops::parse(document)?;
    if wish.mfa_delete.is_some_and(|mfa| mfa.as_str() != "Disabled") {
        return Err(Refusal::new(Code::NotImplemented, "MFA delete is not implemented."));
    }
    match wish.status.as_ref().map(|status| status.as_str()) {
        Some("Enabled") => Ok("enabled".to_owned()),
        Some("Suspended") => Ok("suspended".to_owned()),
        _ => Err(Refusal::new(
            Code::IllegalVersioningConfigurationException,
            "The Versioning element must be specified",
        )),
    }
}

fn wished_lock(document: &[u8]) -> Result<String> {
    let wish: ObjectLockConfiguration = crate::ops::parse(document)?;
    if wish.object_lock_enabled.as_ref().is_none_or(|enabled| enabled.as_str() != "Enabled") {
        return Err(malformed());
    }
    let Some(rule) = wish.rule else { return Ok("lock".to_owned()) };
    let default = rule.default_retention.ok_or_else(malformed)?;
    let is_compliance = default.mode.as_ref().and_then(|given| mode(given.as_str())).ok_or_else(malformed)?;
    let name = mode_name(is_compliance).to_ascii_lowercase();
    let (count, unit, max) = match (default.days, default.years) {
        (Some(days), None) => (days, "days", stoker_store::RETENTION_DAYS_MAX),
        (None, Some(years)) => (years, "years", stoker_store::RETENTION_YEARS_MAX),
        _ => return Err(malformed()),
    };
    if count < 1 {
        return Err(Refusal::new(
            Code::InvalidRetentionPeriod,
            "Default retention period must be a positive integer value.",
        ));
    }
    if u32::try_from(count).is_ok_and(|count| count > max) {
        return Err(Refusal::new(Code::InvalidRetentionPeriod, "Default retention period too large."));
    }
    Ok(format!("lock {name} {count} {unit}"))
}

fn lock_document(known: &Versioning) -> String {
    let rule = known.default.map(|default| {
        let unit = if default.is_years { "Years" } else { "Days" };
        format!(
            "<Rule><DefaultRetention><Mode>{}</Mode><{unit}>{}</{unit}></DefaultRetention></Rule>",
            mode_name(default.is_compliance),
            default.count
        )
    });
    format!("<ObjectLockEnabled>Enabled</ObjectLockEnabled>{}", rule.unwrap_or_default())
}

/// Answers what an object is asked about what holds it.
pub(crate) async fn answer_object(
    store: &dyn Store,
    operation: Operation,
    (volume, key): (&str, &Key),
    headers: &HeaderMap,
    document: &[u8],
) -> Result<Option<Answer>> {
    use Operation as O;
    if !matches!(
        operation,
        O::GetObjectLegalHold | O::PutObjectLegalHold | O::GetObjectRetention | O::PutObjectRetention
    ) {
        return Ok(None);
    }
    if !versioning(store, volume).await?.has_lock {
        return Err(Refusal::new(Code::InvalidRequest, NO_LOCK));
    }
    let none = || {
        Refusal::new(
            Code::NoSuchObjectLockConfiguration,
            "The specified object does not have a ObjectLock configuration",
        )
    };
    let bypass = text_of(headers, "x-amz-bypass-governance-retention")
        .is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let change = match operation {
        O::GetObjectLegalHold | O::GetObjectRetention => {
            let info = store.stat(volume, key).await?;
            if let Some(version) = info.past.as_ref().filter(|version| version.is_marker) {
                return Err(not_of_marker(version));
            }
            let version = info.past.ok_or_else(none)?;
            return match (operation, version.retention) {
                (O::GetObjectLegalHold, _) => {
                    let status = if version.is_held { "ON" } else { "OFF" };
                    filled("LegalHold", &format!("<Status>{status}</Status>")).map(Some)
                }
                (_, Some(retention)) => filled("Retention", &retention_document(&retention)).map(Some),
                (_, None) => Err(none()),
            };
        }
        O::PutObjectLegalHold => {
            let wish: ObjectLockLegalHold = crate::ops::parse(document)?;
            let is_held = match wish.status.as_ref().map(|status| status.as_str()) {
                Some("ON") => true,
                Some("OFF") => false,
                _ => return Err(malformed()),
            };
            LockChange { is_held: Some(is_held), ..LockChange::default() }
        }
        _ => LockChange { retention: Some(wished_retention(document)?), bypass, ..LockChange::default() },
    };
    store.set_version_lock(volume, key, change).await?;
    Ok(Some(answer::bare(StatusCode::OK)))
}

fn retention_document(retention: &Retention) -> String {
    let until = date(retention.until_ms);
    let mode = mode_name(retention.is_compliance);
    format!("<Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate>")
}

/// None: the retention is to end.
fn wished_retention(document: &[u8]) -> Result<Option<Retention>> {
    let wish: ObjectLockRetention = crate::ops::parse(document)?;
    match (wish.mode, wish.retain_until_date) {
        (None, None) => Ok(None),
        (Some(given), Some(until)) => {
            let is_compliance = mode(given.as_str()).ok_or_else(malformed)?;
            let mut text = Vec::new();
            until.format(TimestampFormat::DateTime, &mut text).map_err(|_| malformed())?;
            let until_s =
                std::str::from_utf8(&text).ok().and_then(clock::parse_extended).ok_or_else(malformed)?;
            future(is_compliance, until_s).map(Some)
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn headers_say_what_is_to_hold_an_object() {
        let until = "2999-01-01T00:00:00Z";
        let lock = lock_of_headers(&headers(&[(MODE, "COMPLIANCE"), (UNTIL, until), (HOLD, "ON")]));
        let lock = lock.unwrap().unwrap();
        let retention = lock.retention.unwrap();
        assert!(lock.is_held && retention.is_compliance);
        assert_eq!(date(retention.until_ms), "2999-01-01T00:00:00.000Z");
        assert_eq!(lock_of_headers(&headers(&[])).unwrap(), None);
        for wrong in [
            &[(MODE, "COMPLIANCE")][..],
            &[(UNTIL, until)],
            &[(MODE, "compliance"), (UNTIL, until)],
            &[(MODE, "GOVERNANCE"), (UNTIL, "tomorrow")],
            &[(MODE, "GOVERNANCE"), (UNTIL, "2001-01-01T00:00:00Z")],
            &[(HOLD, "on")],
        ] {
            assert_eq!(
                lock_of_headers(&headers(wrong)).unwrap_err().code,
                Code::InvalidArgument,
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn documents_of_locks_become_settings_and_back() {
        let document = |enabled: &str, rule: &str| {
            format!(
                "<ObjectLockConfiguration><ObjectLockEnabled>{enabled}</ObjectLockEnabled>{rule}</ObjectLockConfiguration>"
            )
        };
        let rule = |inner: &str| format!("<Rule><DefaultRetention>{inner}</DefaultRetention></Rule>");
        let days = "<Mode>GOVERNANCE</Mode><Days>1</Days>";
        for (given, expect) in [
            (document("Enabled", ""), Ok("lock")),
            (document("Enabled", &rule(days)), Ok("lock governance 1 days")),
            (
                document("Enabled", &rule("<Mode>COMPLIANCE</Mode><Years>3</Years>")),
                Ok("lock compliance 3 years"),
            ),
            (document("enabled", ""), Err(Code::MalformedXML)),
            (document("Enabled", &rule("<Mode>GOVERNANCE</Mode>")), Err(Code::MalformedXML)),
            (document("Enabled", &rule(&format!("{days}<Years>1</Years>"))), Err(Code::MalformedXML)),
            (document("Enabled", &rule("<Mode>abc</Mode><Days>1</Days>")), Err(Code::MalformedXML)),
            (
                document("Enabled", &rule("<Mode>GOVERNANCE</Mode><Days>0</Days>")),
                Err(Code::InvalidRetentionPeriod),
            ),
            (
                document("Enabled", &rule("<Mode>GOVERNANCE</Mode><Days>40000</Days>")),
                Err(Code::InvalidRetentionPeriod),
            ),
            ("nonsense".to_owned(), Err(Code::MalformedXML)),
        ] {
            let found = wished_lock(given.as_bytes()).map_err(|refusal| refusal.code);
            assert_eq!(found.as_deref().map_err(|code| *code), expect, "{given}");
            if let Ok(text) = found {
                let known: Versioning = format!("enabled {text}").parse().unwrap();
                assert_eq!(
                    lock_document(&known),
                    given.replace("<ObjectLockConfiguration>", "").replace("</ObjectLockConfiguration>", "")
                );
            }
        }
    }

    #[test]
    fn retentions_are_in_the_future() {
        let document = |inner: &str| format!("<Retention>{inner}</Retention>");
        let check =
            |inner: &str| wished_retention(document(inner).as_bytes()).map_err(|refusal| refusal.code);
        let good = check("<Mode>GOVERNANCE</Mode><RetainUntilDate>2999-01-01T00:00:00Z</RetainUntilDate>");
        assert!(!good.unwrap().unwrap().is_compliance);
        assert_eq!(check(""), Ok(None));
        for (inner, code) in [
            ("<Mode>GOVERNANCE</Mode>", Code::MalformedXML),
            ("<Mode>abc</Mode><RetainUntilDate>2999-01-01T00:00:00Z</RetainUntilDate>", Code::MalformedXML),
            (
                "<Mode>GOVERNANCE</Mode><RetainUntilDate>2001-01-01T00:00:00Z</RetainUntilDate>",
                Code::InvalidArgument,
            ),
        ] {
            assert_eq!(check(inner), Err(code), "{inner}");
        }
    }
}
