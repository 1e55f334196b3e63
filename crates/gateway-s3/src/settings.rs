//! What buckets and objects can be asked about themselves, and S3's own answer for what is not set, so that programs that look before they act go on.
//! What can be set is in `ops/configured.rs`. Who may ask is checked by the caller of [`answer`]; that the bucket is there, too.

use http::{Method, StatusCode};

use crate::answer::{self, Answer};
use crate::operation::Operation;
use crate::ops::OWNER_ID;
use crate::refusal::{Code, Refusal, Result};
use crate::xml;

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// What is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Bucket,
    Object,
}

/// Parameter, method, what it is asked of, and the operation.
const QUESTIONS: &[(&str, Method, Of, Operation)] = &[
    ("accelerate", Method::GET, Of::Bucket, Operation::GetBucketAccelerateConfiguration),
    ("acl", Method::GET, Of::Bucket, Operation::GetBucketAcl),
    ("acl", Method::PUT, Of::Bucket, Operation::PutBucketAcl),
    ("acl", Method::GET, Of::Object, Operation::GetObjectAcl),
    ("acl", Method::PUT, Of::Object, Operation::PutObjectAcl),
    ("analytics", Method::GET, Of::Bucket, Operation::ListBucketAnalyticsConfigurations),
    ("cors", Method::GET, Of::Bucket, Operation::GetBucketCors),
    ("cors", Method::PUT, Of::Bucket, Operation::PutBucketCors),
    ("cors", Method::DELETE, Of::Bucket, Operation::DeleteBucketCors),
    ("encryption", Method::GET, Of::Bucket, Operation::GetBucketEncryption),
    ("encryption", Method::DELETE, Of::Bucket, Operation::DeleteBucketEncryption),
    ("intelligent-tiering", Method::GET, Of::Bucket, Operation::ListBucketIntelligentTieringConfigurations),
    ("inventory", Method::GET, Of::Bucket, Operation::ListBucketInventoryConfigurations),
    ("legal-hold", Method::GET, Of::Object, Operation::GetObjectLegalHold),
    ("legal-hold", Method::PUT, Of::Object, Operation::PutObjectLegalHold),
    ("lifecycle", Method::GET, Of::Bucket, Operation::GetBucketLifecycleConfiguration),
    ("lifecycle", Method::PUT, Of::Bucket, Operation::PutBucketLifecycleConfiguration),
    ("lifecycle", Method::DELETE, Of::Bucket, Operation::DeleteBucketLifecycle),
    ("logging", Method::GET, Of::Bucket, Operation::GetBucketLogging),
    ("metrics", Method::GET, Of::Bucket, Operation::ListBucketMetricsConfigurations),
    ("notification", Method::GET, Of::Bucket, Operation::GetBucketNotificationConfiguration),
    ("object-lock", Method::GET, Of::Bucket, Operation::GetObjectLockConfiguration),
    ("object-lock", Method::PUT, Of::Bucket, Operation::PutObjectLockConfiguration),
    ("ownershipControls", Method::GET, Of::Bucket, Operation::GetBucketOwnershipControls),
    ("ownershipControls", Method::PUT, Of::Bucket, Operation::PutBucketOwnershipControls),
    ("ownershipControls", Method::DELETE, Of::Bucket, Operation::DeleteBucketOwnershipControls),
    ("policy", Method::GET, Of::Bucket, Operation::GetBucketPolicy),
    ("policy", Method::PUT, Of::Bucket, Operation::PutBucketPolicy),
    ("policy", Method::DELETE, Of::Bucket, Operation::DeleteBucketPolicy),
    ("policyStatus", Method::GET, Of::Bucket, Operation::GetBucketPolicyStatus),
    ("publicAccessBlock", Method::GET, Of::Bucket, Operation::GetPublicAccessBlock),
    ("publicAccessBlock", Method::PUT, Of::Bucket, Operation::PutPublicAccessBlock),
    ("publicAccessBlock", Method::DELETE, Of::Bucket, Operation::DeletePublicAccessBlock),
    ("replication", Method::GET, Of::Bucket, Operation::GetBucketReplication),
    ("replication", Method::DELETE, Of::Bucket, Operation::DeleteBucketReplication),
    ("requestPayment", Method::GET, Of::Bucket, Operation::GetBucketRequestPayment),
    ("restore", Method::POST, Of::Object, Operation::RestoreObject),
    ("retention", Method::GET, Of::Object, Operation::GetObjectRetention),
    ("retention", Method::PUT, Of::Object, Operation::PutObjectRetention),
    ("tagging", Method::GET, Of::Bucket, Operation::GetBucketTagging),
    ("tagging", Method::PUT, Of::Bucket, Operation::PutBucketTagging),
    ("tagging", Method::DELETE, Of::Bucket, Operation::DeleteBucketTagging),
    ("versioning", Method::PUT, Of::Bucket, Operation::PutBucketVersioning),
    ("versions", Method::GET, Of::Bucket, Operation::ListObjectVersions),
    ("website", Method::GET, Of::Bucket, Operation::GetBucketWebsite),
    ("website", Method::DELETE, Of::Bucket, Operation::DeleteBucketWebsite),
];

/// Name, method and path of each question.
pub(crate) fn questions() -> Vec<(&'static str, String, String)> {
    let path = |of: Of| if of == Of::Bucket { "{bucket}" } else { "{bucket}/a/b" };
    let one = |row: &(&str, Method, Of, Operation)| {
        (row.3.name(), row.1.to_string(), format!("/{}?{}", path(row.2), row.0))
    };
    QUESTIONS.iter().map(one).collect()
}

/// The operation that a parameter means, if it is one of these.
pub(crate) fn operation(method: &Method, of: Of, parameter: &str) -> Option<Operation> {
    QUESTIONS.iter().find(|row| row.0 == parameter && row.1 == *method && row.2 == of).map(|row| row.3)
}

/// Whether [`answer`] knows an operation, and of what it is asked.
pub(crate) fn asked_of(operation: Operation) -> Option<Of> {
    // A listing comes from the store.
    let row = QUESTIONS.iter().find(|row| row.3 == operation && operation != Operation::ListObjectVersions);
    row.map(|row| row.2)
}

/// Whether it would change something.
#[cfg(test)]
pub(crate) fn is_change(operation: Operation) -> bool {
    QUESTIONS.iter().any(|row| row.3 == operation && row.1 != Method::GET)
}

/// The answer. `id` is the parameter `id`, which names one of several configurations; `acl` the canned access control list of the
/// request, `document` its body.
pub(crate) fn answer(
    operation: Operation,
    id: Option<&str>,
    acl: Option<&[u8]>,
    document: &[u8],
) -> Result<Answer> {
    use Operation as O;
    let missing = |code, message: &'static str| Err(Refusal::new(code, message));
    match operation {
        O::GetBucketAcl | O::GetObjectAcl => Ok(answer::xml(StatusCode::OK, owner_acl())),
        O::PutBucketAcl | O::PutObjectAcl => match is_owners_acl(acl, document) {
            true => Ok(answer::bare(StatusCode::OK)),
            false => missing(Code::AccessControlListNotSupported, "The bucket does not allow ACLs."),
        },
        O::GetBucketAccelerateConfiguration => empty("AccelerateConfiguration"),
        O::GetBucketLogging => empty("BucketLoggingStatus"),
        O::GetBucketNotificationConfiguration => empty("NotificationConfiguration"),
        O::GetBucketRequestPayment => filled("RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>"),
        O::ListBucketAnalyticsConfigurations
        | O::ListBucketIntelligentTieringConfigurations
        | O::ListBucketInventoryConfigurations
        | O::ListBucketMetricsConfigurations
            if id.is_some() =>
        {
            missing(Code::NoSuchConfiguration, "The specified configuration does not exist.")
        }
        O::ListBucketAnalyticsConfigurations => no_more("ListBucketAnalyticsConfigurationResult"),
        O::ListBucketIntelligentTieringConfigurations => {
            no_more("ListBucketIntelligentTieringConfigurationsOutput")
        }
        O::ListBucketInventoryConfigurations => no_more("ListInventoryConfigurationsResult"),
        O::ListBucketMetricsConfigurations => no_more("ListMetricsConfigurationsResult"),
        O::GetBucketCors => missing(Code::NoSuchCORSConfiguration, "The CORS configuration does not exist"),
        O::GetBucketEncryption => missing(
            Code::ServerSideEncryptionConfigurationNotFoundError,
            "The server side encryption configuration was not found",
        ),
        O::GetBucketLifecycleConfiguration => {
            missing(Code::NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist")
        }
        O::GetObjectLockConfiguration => missing(
            Code::ObjectLockConfigurationNotFoundError,
            "Object Lock configuration does not exist for this bucket",
        ),
        O::GetBucketOwnershipControls => {
            missing(Code::OwnershipControlsNotFoundError, "The bucket ownership controls were not found")
        }
        O::GetBucketPolicy | O::GetBucketPolicyStatus => {
            missing(Code::NoSuchBucketPolicy, "The bucket policy does not exist")
        }
        O::GetPublicAccessBlock => missing(
            Code::NoSuchPublicAccessBlockConfiguration,
            "The public access block configuration was not found",
        ),
        O::GetBucketReplication => missing(
            Code::ReplicationConfigurationNotFoundError,
            "The replication configuration was not found",
        ),
        O::GetBucketTagging => missing(Code::NoSuchTagSet, "The TagSet does not exist"),
        O::GetBucketWebsite => missing(
            Code::NoSuchWebsiteConfiguration,
            "The specified bucket does not have a website configuration",
        ),
        // In a bucket that has none: what is locked has its own answers.
        O::GetObjectLegalHold | O::PutObjectLegalHold | O::GetObjectRetention | O::PutObjectRetention => {
            missing(Code::InvalidRequest, "Bucket is missing Object Lock Configuration")
        }
        O::RestoreObject => {
            missing(Code::InvalidObjectState, "Restore is not allowed for the object's current storage class")
        }
        // What is not set is not set afterwards.
        _ => Ok(answer::bare(StatusCode::NO_CONTENT)),
    }
}

/// A document with this name and content.
pub(crate) fn filled(name: &str, inner: &str) -> Result<Answer> {
    let document =
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{name} xmlns=\"{NAMESPACE}\">{inner}</{name}>");
    Ok(answer::xml(StatusCode::OK, document))
}

fn empty(name: &str) -> Result<Answer> {
    filled(name, "")
}

fn no_more(name: &str) -> Result<Answer> {
    filled(name, "<IsTruncated>false</IsTruncated>")
}

/// There is one owner, who may do everything.
fn owner_acl() -> String {
    let mut owner = String::new();
    xml::push_element(&mut owner, "ID", OWNER_ID);
    xml::push_element(&mut owner, "DisplayName", OWNER_ID);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<AccessControlPolicy xmlns=\"{NAMESPACE}\"><Owner>{owner}</Owner>\
         <AccessControlList><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xsi:type=\"CanonicalUser\">{owner}</Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList>\
         </AccessControlPolicy>"
    )
}

/// Whether an access control list says what is so anyway: the owner may do everything, and nobody else anything.
fn is_owners_acl(canned: Option<&[u8]>, document: &[u8]) -> bool {
    if let Some(canned) = canned {
        return document.is_empty() && matches!(canned, b"private" | b"bucket-owner-full-control");
    }
    let text = String::from_utf8_lossy(document);
    let all = |name: &str, want: &str| {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut found =
            text.split(&open).skip(1).map(|rest| rest.split_once(&close).map(|(value, _)| value.trim()));
        let is_all = found.clone().all(|value| value == Some(want));
        found.next().is_some() && is_all
    };
    all("ID", OWNER_ID)
        && all("Permission", "FULL_CONTROL")
        && !text.contains("<URI>")
        && !text.contains("<EmailAddress>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_an_answer_of_its_own() {
        for (parameter, method, of, operation) in QUESTIONS {
            assert_eq!(super::operation(method, *of, parameter), Some(*operation));
            let (set, unset) = (is_change(*operation), answer(*operation, None, None, b""));
            match unset {
                Ok(answer) => {
                    // Such a Put does not come here: it is kept.
                    let is_bare = answer.status() == StatusCode::NO_CONTENT;
                    let is_kept = *method == Method::PUT && *of == Of::Bucket;
                    let is_gone = *method == Method::DELETE || *operation == Operation::ListObjectVersions;
                    assert_eq!(is_bare, is_kept || is_gone);
                }
                Err(refusal) => assert!(refusal.code.status().is_client_error(), "{operation:?}"),
            }
            assert_eq!(set, *method != Method::GET);
        }
    }

    #[test]
    fn an_acl_that_says_what_is_so_is_taken() {
        let own = owner_acl();
        assert!(is_owners_acl(None, own.as_bytes()));
        assert!(is_owners_acl(Some(b"private"), b""));
        for (canned, document) in [
            (None, ""),
            (Some(&b"public-read"[..]), ""),
            (Some(b"private"), own.as_str()),
            (None, &own.replace("FULL_CONTROL", "READ")),
            (None, &own.replace("<ID>stoker</ID>", "<ID>other</ID>")),
            (None, &own.replace("</Grant>", "</Grant><Grant><Grantee><URI>x</URI></Grantee></Grant>")),
        ] {
            assert!(!is_owners_acl(canned, document.as_bytes()), "{canned:?} {document}");
        }
    }
}
