//! Which operation a request asks for. What is not named here is not implemented: a request with an unknown
//! subresource must never fall through to the plain operation on the same path.

use http::{HeaderMap, Method};

use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::settings::{self, Of};
use crate::target::Target;

macro_rules! operations {
    ($($name:ident,)*) => {
        /// What a request asks for, as S3 names it.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub(crate) enum Operation { $($name,)* }

        impl Operation {
            /// All of them.
            pub(crate) const ALL: &'static [Operation] = &[$(Operation::$name,)*];

            /// The name.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Operation::$name => stringify!($name),)* }
            }
        }
    };
}

operations! {
    AbortMultipartUpload,
    AssumeRoleWithWebIdentity,
    CompleteMultipartUpload,
    CopyObject,
    CreateBucket,
    CreateMultipartUpload,
    DeleteBucket,
    DeleteBucketCors,
    DeleteBucketEncryption,
    DeleteBucketLifecycle,
    DeleteBucketOwnershipControls,
    DeleteBucketPolicy,
    DeleteBucketReplication,
    DeleteBucketTagging,
    DeleteBucketWebsite,
    DeleteObject,
    DeleteObjectTagging,
    DeleteObjects,
    DeletePublicAccessBlock,
    GetBucketAccelerateConfiguration,
    GetBucketAcl,
    GetBucketCors,
    GetBucketEncryption,
    GetBucketLifecycleConfiguration,
    GetBucketLocation,
    GetBucketLogging,
    GetBucketNotificationConfiguration,
    GetBucketOwnershipControls,
    GetBucketPolicy,
    GetBucketPolicyStatus,
    GetBucketReplication,
    GetBucketRequestPayment,
    GetBucketTagging,
    GetBucketVersioning,
    GetBucketWebsite,
    GetCallerIdentity,
    GetObject,
    GetObjectAcl,
    GetObjectAttributes,
    GetObjectLegalHold,
    GetObjectLockConfiguration,
    GetObjectRetention,
    GetObjectTagging,
    GetPublicAccessBlock,
    GetSessionToken,
    HeadBucket,
    HeadObject,
    ListBucketAnalyticsConfigurations,
    ListBucketIntelligentTieringConfigurations,
    ListBucketInventoryConfigurations,
    ListBucketMetricsConfigurations,
    ListBuckets,
    ListMultipartUploads,
    ListObjectVersions,
    ListObjects,
    ListObjectsV2,
    ListParts,
    PostObject,
    Preflight,
    PutBucketAcl,
    PutBucketCors,
    PutBucketLifecycleConfiguration,
    PutBucketOwnershipControls,
    PutBucketPolicy,
    PutBucketTagging,
    PutBucketVersioning,
    PutObject,
    PutObjectAcl,
    PutObjectLegalHold,
    PutObjectLockConfiguration,
    PutObjectRetention,
    PutObjectTagging,
    PutPublicAccessBlock,
    RestoreObject,
    Unknown,
    UploadPart,
    UploadPartCopy,
}

/// Parameters that change which operation is meant and that no operation here takes.
const SUBRESOURCES: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "logging",
    "metadataConfiguration",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "torrent",
    "versions",
    "website",
];

/// Parameters of operations that [`settings`] answers.
const SETTINGS_PARAMETERS: &[&str] = &["id", "versionId", "continuation-token"];

impl Operation {
    /// Finds the operation.
    pub(crate) fn of(
        method: &Method,
        target: &Target,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Operation> {
        let only = |allowed: &[&str], operation: Operation| match query
            .names()
            .find(|name| !allowed.contains(name) && !is_neutral(name))
        {
            Some(name) => Err(not_implemented(name)),
            None => Ok(operation),
        };
        if let Some(operation) = Self::of_setting(method, target, query) {
            return operation;
        }
        let reads = *method == Method::GET || *method == Method::HEAD;
        if reads && let Some(name) = query.names().find(|name| SUBRESOURCES.contains(name)) {
            return Err(not_implemented(name));
        }
        match (method.as_str(), target) {
            ("OPTIONS", _) => Ok(Operation::Preflight),
            ("GET", Target::Root) => Ok(Operation::ListBuckets),
            ("HEAD", Target::Volume(_)) => Ok(Operation::HeadBucket),
            ("GET", Target::Volume(_)) => Ok(Self::of_volume_read(query)),
            ("PUT", Target::Volume(_)) => only(&[], Operation::CreateBucket),
            ("DELETE", Target::Volume(_)) => only(&[], Operation::DeleteBucket),
            ("POST", Target::Volume(_)) if query.has("delete") => only(&["delete"], Operation::DeleteObjects),
            ("POST", Target::Volume(_)) if is_form(headers) => only(&[], Operation::PostObject),
            ("HEAD", Target::Object(..)) => Ok(Operation::HeadObject),
            ("GET", Target::Object(..)) => Ok(Self::of_object_read(query)),
            ("PUT", Target::Object(..)) if query.has("tagging") => {
                only(&["tagging", "versionId"], Operation::PutObjectTagging)
            }
            ("PUT", Target::Object(..)) => {
                let (part, copy) = (query.has("uploadId"), headers.contains_key("x-amz-copy-source"));
                match (part, copy) {
                    (false, false) => only(&[], Operation::PutObject),
                    (false, true) => only(&[], Operation::CopyObject),
                    (true, false) => only(&["uploadId", "partNumber"], Operation::UploadPart),
                    (true, true) => only(&["uploadId", "partNumber"], Operation::UploadPartCopy),
                }
            }
            ("POST", Target::Object(..)) if query.has("uploads") => {
                only(&["uploads"], Operation::CreateMultipartUpload)
            }
            ("POST", Target::Object(..)) if query.has("uploadId") => {
                only(&["uploadId"], Operation::CompleteMultipartUpload)
            }
            ("DELETE", Target::Object(..)) if query.has("uploadId") => {
                only(&["uploadId"], Operation::AbortMultipartUpload)
            }
            ("DELETE", Target::Object(..)) if query.has("tagging") => {
                only(&["tagging", "versionId"], Operation::DeleteObjectTagging)
            }
            ("DELETE", Target::Object(..)) => only(&["versionId"], Operation::DeleteObject),
            ("HEAD" | "PUT" | "POST" | "DELETE", _) => match query.names().find(|name| !is_neutral(name)) {
                Some(name) => Err(not_implemented(name)),
                None => Err(method_not_allowed()),
            },
            _ => Err(method_not_allowed()),
        }
    }

    /// What a bucket or an object is asked about itself; none if it is something else.
    fn of_setting(method: &Method, target: &Target, query: &Query) -> Option<Result<Operation>> {
        let of = match target {
            Target::Root => return None,
            Target::Volume(_) => Of::Bucket,
            Target::Object(..) => Of::Object,
        };
        let (parameter, operation) =
            query.names().find_map(|name| Some((name, settings::operation(method, of, name)?)))?;
        if operation == Operation::ListObjectVersions {
            return Some(Ok(operation));
        }
        let is_odd =
            |name: &&str| *name != parameter && !SETTINGS_PARAMETERS.contains(name) && !is_neutral(name);
        Some(query.names().find(is_odd).map_or(Ok(operation), |name| Err(not_implemented(name))))
    }

    fn of_volume_read(query: &Query) -> Operation {
        if query.has("location") {
            Operation::GetBucketLocation
        } else if query.has("versioning") {
            Operation::GetBucketVersioning
        } else if query.has("uploads") {
            Operation::ListMultipartUploads
        } else if query.get("list-type") == Some("2") {
            Operation::ListObjectsV2
        } else {
            Operation::ListObjects
        }
    }

    fn of_object_read(query: &Query) -> Operation {
        if query.has("attributes") {
            Operation::GetObjectAttributes
        } else if query.has("tagging") {
            Operation::GetObjectTagging
        } else if query.has("uploadId") {
            Operation::ListParts
        } else {
            Operation::GetObject
        }
    }
}

/// Parameters that never change what is meant: `x-id`, and what signs a request.
fn is_neutral(name: &str) -> bool {
    matches!(name, "AWSAccessKeyId" | "Signature" | "Expires" | "content-type" | "content-md5")
        || name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("x-"))
}

fn is_form(headers: &HeaderMap) -> bool {
    let start = b"multipart/form-data";
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..start.len()))
        .is_some_and(|value| value.eq_ignore_ascii_case(start))
}

fn not_implemented(name: &str) -> Refusal {
    Refusal::new(
        Code::NotImplemented,
        format!("The parameter `{name}` implies functionality that is not implemented."),
    )
}

fn method_not_allowed() -> Refusal {
    Refusal::new(Code::MethodNotAllowed, "The specified method is not allowed against this resource.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, expected: Result<Operation, Code>) {
        let (raw_path, query) = path.split_once('?').unwrap_or((path, ""));
        let target = Target::parse(None, raw_path, &[]).unwrap();
        let query = Query::parse(Some(query)).unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let found =
            Operation::of(&method, &target, &query, &HeaderMap::new()).map_err(|refusal| refusal.code);
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn requests_lead_to_operations() {
        use Operation::*;
        for (method, path, operation) in [
            ("GET", "/", ListBuckets),
            ("GET", "/?x-id=ListBuckets", ListBuckets),
            ("HEAD", "/vol", HeadBucket),
            ("PUT", "/vol", CreateBucket),
            ("PUT", "/vol?x-id=CreateBucket", CreateBucket),
            ("DELETE", "/vol", DeleteBucket),
            ("GET", "/vol", ListObjects),
            ("GET", "/vol?list-type=2&prefix=a", ListObjectsV2),
            ("GET", "/vol?location", GetBucketLocation),
            ("GET", "/vol?versioning", GetBucketVersioning),
            ("GET", "/vol?uploads", ListMultipartUploads),
            ("POST", "/vol?delete", DeleteObjects),
            ("GET", "/vol/a", GetObject),
            ("GET", "/vol/a?whatever=1", GetObject),
            ("GET", "/vol/a?attributes", GetObjectAttributes),
            ("GET", "/vol/a?uploadId=1", ListParts),
            ("HEAD", "/vol/a?partNumber=1", HeadObject),
            ("PUT", "/vol/a?X-Amz-Signature=1", PutObject),
            ("PUT", "/vol/a?partNumber=1&uploadId=1", UploadPart),
            ("POST", "/vol/a?uploads", CreateMultipartUpload),
            ("POST", "/vol/a?uploadId=1", CompleteMultipartUpload),
            ("DELETE", "/vol/a?uploadId=1", AbortMultipartUpload),
            ("DELETE", "/vol/a", DeleteObject),
            ("PUT", "/vol/a?tagging", PutObjectTagging),
            ("OPTIONS", "/vol/a", Preflight),
            ("GET", "/vol?versions&prefix=a&max-keys=1", ListObjectVersions),
            ("GET", "/vol?tagging", GetBucketTagging),
            ("GET", "/vol?acl", GetBucketAcl),
            ("GET", "/vol/a?acl", GetObjectAcl),
            ("PUT", "/vol/a?acl&versionId=null", PutObjectAcl),
            ("GET", "/vol?analytics&id=1", ListBucketAnalyticsConfigurations),
            ("DELETE", "/vol?policy", DeleteBucketPolicy),
            ("POST", "/vol/a?restore", RestoreObject),
        ] {
            check(method, path, Ok(operation));
        }
    }

    #[test]
    fn an_unknown_subresource_never_falls_through() {
        for (method, path) in [
            ("PUT", "/vol?website"),
            ("DELETE", "/vol?policy&something-new"),
            ("DELETE", "/vol?something-new"),
            ("PUT", "/vol?something-new"),
            ("PUT", "/vol/a?something-new"),
            ("PUT", "/vol/a?acl&something-new"),
            ("DELETE", "/vol/a?acl"),
            ("PUT", "/vol/a?renameObject"),
            ("DELETE", "/vol/a?something-new"),
            ("GET", "/vol/a?versions"),
            ("GET", "/vol/a?policy"),
            ("HEAD", "/vol?acl"),
            ("POST", "/vol/a?select&select-type=2"),
            ("POST", "/vol?metadataTable"),
        ] {
            check(method, path, Err(Code::NotImplemented));
        }
        for (method, path) in
            [("POST", "/"), ("PATCH", "/vol/a"), ("DELETE", "/"), ("POST", "/vol/a"), ("HEAD", "/")]
        {
            check(method, path, Err(Code::MethodNotAllowed));
        }
    }
}
