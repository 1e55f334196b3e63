//! Lifecycle rules of a bucket: S3's document and the form in which they are kept, each made from the other. Whether they make sense is decided in
//! `stoker-tiers`, and carried out by nodes.

use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::dto::{
    BucketLifecycleConfiguration, LifecycleExpiration, LifecycleRule, LifecycleRuleFilter,
    NoncurrentVersionExpiration, TimestampFormat,
};
use stoker_store::{Expires, LIFECYCLE_SETTING, Store};
use stoker_tiers::lifecycle::{
    Expiration, Fault, FaultKind, Filter, Form, FormerExpiration, Lifecycle, RULES_MAX, Rule,
};

use crate::answer::{self, Answer};
use crate::clock;
use crate::operation::Operation;
use crate::ops::{malformed, parse};
use crate::percent::{self, Keep};
use crate::refusal::{Code, Refusal, Result};
use crate::settings::filled;
use crate::versions::date;
use crate::xml::push_element;

const EXPIRATION: &str = "x-amz-expiration";

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        let code = match fault.kind {
            FaultKind::Malformed => Code::MalformedXML,
            FaultKind::Argument => Code::InvalidArgument,
            FaultKind::Request => Code::InvalidRequest,
        };
        Refusal::new(code, fault.message)
    }
}

/// Answers what a bucket is asked about its rules.
pub(crate) async fn answer_bucket(
    store: &dyn Store,
    operation: Operation,
    volume: &str,
    document: &[u8],
) -> Result<Option<Answer>> {
    match operation {
        Operation::GetBucketLifecycleConfiguration => {
            let kept = store.volume_setting(volume, LIFECYCLE_SETTING).await?;
            kept.map(|kept| shown(&kept)).transpose()
        }
        Operation::PutBucketLifecycleConfiguration => {
            let kept = serde_json::to_vec(&wished(document)?).map_err(|_| malformed())?;
            store.set_volume_setting(volume, LIFECYCLE_SETTING, Some(kept)).await?;
            Ok(Some(answer::bare(StatusCode::OK)))
        }
        Operation::DeleteBucketLifecycle => {
            store.set_volume_setting(volume, LIFECYCLE_SETTING, None).await?;
            Ok(Some(answer::bare(StatusCode::NO_CONTENT)))
        }
        _ => Ok(None),
    }
}

/// Says when an object expires.
pub(crate) fn add_expiration(headers: &mut HeaderMap, expires: Option<&Expires>) {
    let Some(Expires { at_ms, rule }) = expires else { return };
    let at = httpdate::fmt_http_date(clock::from_unix_ms((*at_ms).min(clock::HTTP_MS_MAX)));
    let rule = percent::encoded(rule.as_bytes(), Keep::Nothing);
    if let Ok(value) = HeaderValue::from_str(&format!("expiry-date=\"{at}\", rule-id=\"{rule}\"")) {
        headers.insert(EXPIRATION, value);
    }
}

/// The rules of a document.
fn wished(document: &[u8]) -> Result<Lifecycle> {
    let given: BucketLifecycleConfiguration = parse(document)?;
    if given.rules.len() > RULES_MAX {
        return Err(malformed());
    }
    let mut rules = given.rules.into_iter().map(rule).collect::<Result<Vec<Rule>>>()?;
    name(&mut rules);
    let rules = Lifecycle { rules };
    rules.check()?;
    Ok(rules)
}

/// Gives rules without a name one that no other rule has.
fn name(rules: &mut [Rule]) {
    let mut number = 0;
    for at in 0..rules.len() {
        while rules[at].id.is_empty() {
            number += 1;
            let id = format!("rule-{number}");
            if rules.iter().all(|rule| rule.id != id) {
                rules[at].id = id;
            }
        }
    }
}

fn rule(given: LifecycleRule) -> Result<Rule> {
    if given.transitions.is_some() || given.noncurrent_version_transitions.is_some() {
        let message = "Transitions are not implemented: there is one storage class. Objects can expire.";
        return Err(Refusal::new(Code::NotImplemented, message));
    }
    let is_enabled = match given.status.as_str() {
        "Enabled" => true,
        "Disabled" => false,
        _ => return Err(malformed()),
    };
    let filter = match (given.prefix, given.filter) {
        (Some(prefix), None) => Filter { form: Form::Prefix, prefix: Some(prefix), ..Filter::default() },
        (None, Some(given)) => filter(given)?,
        // One of both says what the rule is about.
        _ => return Err(malformed()),
    };
    let abort = given.abort_incomplete_multipart_upload;
    let abort_days = abort.map(|abort| count(abort.days_after_initiation.unwrap_or(0)));
    Ok(Rule {
        id: given.id.unwrap_or_default(),
        is_enabled,
        filter,
        expiration: given.expiration.map(expiration).transpose()?,
        former: given.noncurrent_version_expiration.map(former).transpose()?,
        abort_days,
    })
}

/// What is below zero is refused as zero is.
fn count(given: i32) -> u32 {
    u32::try_from(given).unwrap_or(0)
}

fn filter(given: LifecycleRuleFilter) -> Result<Filter> {
    let LifecycleRuleFilter { and, mut object_size_greater_than, mut object_size_less_than, mut prefix, tag } =
        given;
    let mut tags: Vec<_> = tag.into_iter().collect();
    let mut form = Form::Filter;
    if let Some(and) = and {
        let is_alone = prefix.is_none()
            && tags.is_empty()
            && object_size_greater_than.is_none()
            && object_size_less_than.is_none();
        if !is_alone {
            return Err(malformed());
        }
        form = Form::And;
        prefix = and.prefix;
        (object_size_greater_than, object_size_less_than) =
            (and.object_size_greater_than, and.object_size_less_than);
        tags = and.tags.unwrap_or_default();
    }
    let size = |given: Option<i64>| {
        let given = given.map(u64::try_from).transpose();
        given.map_err(|_| Refusal::new(Code::InvalidRequest, "A size cannot be negative."))
    };
    let tag = |tag: s3s::dto::Tag| Some((tag.key?, tag.value.unwrap_or_default()));
    Ok(Filter {
        form,
        prefix,
        tags: tags.into_iter().map(tag).collect::<Option<_>>().ok_or_else(malformed)?,
        larger: size(object_size_greater_than)?,
        smaller: size(object_size_less_than)?,
    })
}

fn expiration(given: LifecycleExpiration) -> Result<Expiration> {
    match (given.date, given.days, given.expired_object_delete_marker) {
        (None, Some(days), None) => Ok(Expiration::Days(count(days))),
        (None, None, Some(goes)) => Ok(Expiration::LoneMarker(goes)),
        (Some(date), None, None) => {
            let mut text = Vec::new();
            date.format(TimestampFormat::DateTime, &mut text).map_err(|_| malformed())?;
            let text = String::from_utf8_lossy(&text);
            let at_s = clock::parse_extended(&text).and_then(|at_s| u64::try_from(at_s).ok());
            let is_whole = text.split_once('.').is_none_or(|(_, rest)| rest.trim_matches('0') == "Z");
            match at_s.filter(|_| is_whole) {
                Some(at_s) => Ok(Expiration::Date(at_s.saturating_mul(1_000))),
                None => Err(Fault::argument("'Date' must be at midnight GMT").into()),
            }
        }
        _ => Err(malformed()),
    }
}

fn former(given: NoncurrentVersionExpiration) -> Result<FormerExpiration> {
    let newer = match given.newer_noncurrent_versions {
        None => 0,
        Some(newer) if newer < 1 => {
            let message =
                "'NewerNoncurrentVersions' for NoncurrentVersionExpiration action must be a positive integer";
            return Err(Fault::argument(message).into());
        }
        Some(newer) => count(newer),
    };
    Ok(FormerExpiration { days: count(given.noncurrent_days.ok_or_else(malformed)?), newer })
}

/// The document of rules that are kept.
fn shown(kept: &[u8]) -> Result<Answer> {
    let rules: Lifecycle = serde_json::from_slice(kept).map_err(|_| {
        Refusal::new(Code::InternalError, "The lifecycle rules of the bucket cannot be read.")
    })?;
    filled("LifecycleConfiguration", &document(&rules))
}

fn document(rules: &Lifecycle) -> String {
    let mut out = String::new();
    for rule in &rules.rules {
        out.push_str("<Rule>");
        push_element(&mut out, "ID", &rule.id);
        push_filter(&mut out, &rule.filter);
        push_element(&mut out, "Status", if rule.is_enabled { "Enabled" } else { "Disabled" });
        if let Some(expiration) = rule.expiration {
            out.push_str("<Expiration>");
            match expiration {
                Expiration::Days(days) => push_element(&mut out, "Days", &days.to_string()),
                Expiration::Date(at_ms) => push_element(&mut out, "Date", &date(at_ms)),
                Expiration::LoneMarker(goes) => {
                    push_element(&mut out, "ExpiredObjectDeleteMarker", &goes.to_string());
                }
            }
            out.push_str("</Expiration>");
        }
        if let Some(former) = rule.former {
            out.push_str("<NoncurrentVersionExpiration>");
            push_element(&mut out, "NoncurrentDays", &former.days.to_string());
            if former.newer > 0 {
                push_element(&mut out, "NewerNoncurrentVersions", &former.newer.to_string());
            }
            out.push_str("</NoncurrentVersionExpiration>");
        }
        if let Some(days) = rule.abort_days {
            out.push_str("<AbortIncompleteMultipartUpload>");
            push_element(&mut out, "DaysAfterInitiation", &days.to_string());
            out.push_str("</AbortIncompleteMultipartUpload>");
        }
        out.push_str("</Rule>");
    }
    out
}

fn push_filter(out: &mut String, filter: &Filter) {
    let mut inner = String::new();
    if let Some(prefix) = &filter.prefix {
        push_element(&mut inner, "Prefix", prefix);
    }
    for (key, value) in &filter.tags {
        inner.push_str("<Tag>");
        push_element(&mut inner, "Key", key);
        push_element(&mut inner, "Value", value);
        inner.push_str("</Tag>");
    }
    for (name, size) in [("ObjectSizeGreaterThan", filter.larger), ("ObjectSizeLessThan", filter.smaller)] {
        if let Some(size) = size {
            push_element(&mut inner, name, &size.to_string());
        }
    }
    match filter.form {
        Form::Prefix => out.push_str(&inner),
        Form::Filter => out.push_str(&format!("<Filter>{inner}</Filter>")),
        Form::And => out.push_str(&format!("<Filter><And>{inner}</And></Filter>")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(rules: &str) -> String {
        format!(
            "<LifecycleConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{rules}</LifecycleConfiguration>"
        )
    }

    #[test]
    fn documents_become_rules_and_back() {
        let rules = "<Rule><ID>a &amp; b</ID><Filter><And><Prefix>logs/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag>\
            <ObjectSizeGreaterThan>1</ObjectSizeGreaterThan><ObjectSizeLessThan>9</ObjectSizeLessThan></And></Filter>\
            <Status>Enabled</Status><Expiration><Days>30</Days></Expiration><NoncurrentVersionExpiration><NoncurrentDays>7\
            </NoncurrentDays><NewerNoncurrentVersions>3</NewerNoncurrentVersions></NoncurrentVersionExpiration></Rule>\
            <Rule><ID>b</ID><Prefix>old/</Prefix><Status>Disabled</Status><Expiration><Date>2030-01-01T00:00:00.000Z</Date>\
            </Expiration><AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation></AbortIncompleteMultipartUpload>\
            </Rule><Rule><ID>c</ID><Filter></Filter><Status>Enabled</Status><Expiration><ExpiredObjectDeleteMarker>true\
            </ExpiredObjectDeleteMarker></Expiration></Rule>";
        let known = wished(whole(rules).as_bytes()).unwrap();
        assert_eq!(known.rules.len(), 3);
        assert_eq!(document(&known), rules);
        let kept = serde_json::to_vec(&known).unwrap();
        let text = shown(&kept).unwrap().body().bytes().unwrap();
        assert_eq!(wished(&text).unwrap(), known);
    }

    #[test]
    fn rules_without_names_get_names() {
        let rule = |id: &str| {
            format!(
                "<Rule>{id}<Prefix/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>"
            )
        };
        let all = wished(whole(&[rule(""), rule("<ID>rule-1</ID>"), rule("")].concat()).as_bytes()).unwrap();
        let ids: Vec<&str> = all.rules.iter().map(|rule| &*rule.id).collect();
        assert_eq!(ids, ["rule-2", "rule-1", "rule-3"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_as_s3_does() {
        use Code::{InvalidArgument, InvalidRequest, MalformedXML, NotImplemented};
        let days = "<Expiration><Days>1</Days></Expiration>";
        let of = |about: &str, action: &str| format!("<Rule>{about}<Status>Enabled</Status>{action}</Rule>");
        for (rules, code) in [
            (String::new(), MalformedXML),
            (of("", days), MalformedXML),
            (of("<Prefix>a</Prefix><Filter/>", days), MalformedXML),
            (of("<Filter/>", ""), InvalidRequest),
            (of("<Filter/>", "<Expiration/>"), MalformedXML),
            (of("<Filter/>", "<Expiration><Days>0</Days></Expiration>"), InvalidArgument),
            (of("<Filter/>", "<Expiration><Days>-1</Days></Expiration>"), InvalidArgument),
            (of("<Filter/>", "<Expiration><Days>x</Days></Expiration>"), MalformedXML),
            (
                of("<Filter/>", "<Expiration><Days>1</Days><Date>2030-01-01T00:00:00Z</Date></Expiration>"),
                MalformedXML,
            ),
            (of("<Filter/>", "<Expiration><Date>2030-01-01T00:00:01Z</Date></Expiration>"), InvalidArgument),
            (
                of("<Filter/>", "<Expiration><Date>2030-01-01T00:00:00.5Z</Date></Expiration>"),
                InvalidArgument,
            ),
            (of("<Filter/>", "<Expiration><Date>20300101</Date></Expiration>"), MalformedXML),
            (of("<Filter><Colour>red</Colour></Filter>", days), MalformedXML),
            (of("<Filter><And><Prefix>a</Prefix></And></Filter>", days), MalformedXML),
            (of("<Filter><ObjectSizeLessThan>-1</ObjectSizeLessThan></Filter>", days), InvalidRequest),
            (
                of(
                    "<Filter/>",
                    "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays><NewerNoncurrentVersions>0\
                     </NewerNoncurrentVersions></NoncurrentVersionExpiration>",
                ),
                InvalidArgument,
            ),
            (
                of(
                    "<Filter/>",
                    "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>",
                ),
                NotImplemented,
            ),
            (of("<Filter/>", days).replace("Enabled", "enabled"), MalformedXML),
            ("<x/>".to_owned(), MalformedXML),
        ] {
            let found = wished(whole(&rules).as_bytes()).err().map(|refusal| refusal.code);
            assert_eq!(found, Some(code), "{rules}");
        }
        assert!(wished(b"nonsense").is_err());
    }

    #[test]
    fn the_day_of_expiry_is_told_in_a_header() {
        let mut headers = HeaderMap::new();
        add_expiration(&mut headers, Some(&Expires { at_ms: 1_356_048_000_000, rule: "a b\"".to_owned() }));
        assert_eq!(
            headers[EXPIRATION],
            "expiry-date=\"Fri, 21 Dec 2012 00:00:00 GMT\", rule-id=\"a%20b%22\""
        );
        add_expiration(&mut headers, Some(&Expires { at_ms: u64::MAX, rule: "a".to_owned() }));
        assert!(headers[EXPIRATION].to_str().unwrap().contains("9999"));
    }
}
