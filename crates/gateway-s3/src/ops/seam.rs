//! The seam to s3s: a verified request goes in, in path style and without its signature; an answer comes out.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts as Head;
use http::{HeaderValue, Request, StatusCode, Uri};
use s3s::dto;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result};
use stoker_store::{Access, Store};
use tracing::Dispatch;
use tracing::instrument::WithSubscriber as _;

use crate::answer::{Answer, AnswerBody};
use crate::auth::{Credential, Payload};
use crate::hot::arrivals::Arrivals;
use crate::lifecycle;
use crate::operation::Operation;
use crate::percent::{self, Keep};
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::settings::{self, Of};
use crate::target::Target;
use crate::versions::{self, key_asked};
use crate::xml;

use super::configured;
use super::control_body::Room;

/// A verified request for one of the control operations.
pub(crate) struct Call<'a> {
    /// Which.
    pub(crate) operation: Operation,
    /// Method and headers.
    pub(crate) head: &'a Head,
    /// What it is about.
    pub(crate) target: &'a Target,
    /// Parameters.
    pub(crate) query: &'a Query,
    /// Who.
    pub(crate) credential: Arc<Credential>,
    /// How to read the body.
    pub(crate) payload: Payload,
    /// The region that the request is signed for.
    pub(crate) region: String,
    /// The body.
    pub(crate) arrivals: &'a mut Arrivals,
    /// How the request is named in the answer.
    pub(crate) request_id: &'a str,
    /// How the resource is named in the answer.
    pub(crate) resource: &'a str,
}

/// Who asks, and the headers as they came; travels with a request through s3s.
#[derive(Clone)]
pub(super) struct Caller {
    credential: Arc<Credential>,
    headers: Arc<HeaderMap>,
    region: String,
    /// Why it was refused, whole: an error of s3s has no place for the details.
    refused: Arc<Mutex<Option<Refusal>>>,
    /// Where the log of what happens behind s3s goes.
    log: Dispatch,
}

impl Caller {
    /// The caller of a request. One without is a bug, and is refused.
    pub(super) fn of<T>(request: &S3Request<T>) -> Result<Caller> {
        let caller = request.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| Refusal::new(Code::AccessDenied, "Access Denied"))
    }

    /// What the key may do.
    pub(super) fn access(&self) -> &Access {
        &self.credential.access
    }

    /// The store as the caller may use it.
    pub(super) fn store(&self) -> &dyn Store {
        &*self.credential.view
    }

    /// The same, for what outlives the request.
    pub(super) fn shared_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.credential.view) as Arc<dyn Store>
    }

    /// The public part of the key.
    pub(super) fn access_key(&self) -> &str {
        &self.credential.access_key
    }

    /// Where the client believes to be.
    pub(super) fn region(&self) -> &str {
        &self.region
    }

    /// All headers of the request.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    fn refuse(&self, refusal: Refusal) -> s3s::S3Error {
        *self.refused.lock().unwrap() = Some(refusal.clone());
        refusal.into()
    }

    /// A header as text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// The way to the control operations.
pub(crate) struct Seam {
    service: S3Service,
    room: Room,
}

impl Seam {
    /// Operations in this region.
    pub(crate) fn new(region: String) -> Seam {
        let service = S3ServiceBuilder::new(Operations { region }).build();
        Seam { service, room: Room::new() }
    }

    /// Answers a request.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Answer> {
        let is_checked = call.operation != Operation::CompleteMultipartUpload;
        let headers = &call.head.headers;
        let document = self.room.collect(headers, call.payload, call.arrivals, is_checked).await?;
        if let Some(of) = settings::asked_of(call.operation) {
            let asked =
                Asked { operation: call.operation, of, target: call.target, query: call.query, headers };
            return answer_setting(&*call.credential.view, asked, &document.bytes).await;
        }
        let log = tracing::dispatcher::get_default(Dispatch::clone);
        let refused = Arc::new(Mutex::new(None));
        let caller = Caller {
            credential: call.credential,
            region: call.region,
            headers: Arc::new(headers.clone()),
            refused: Arc::clone(&refused),
            log,
        };
        let mut request = Request::new(s3s::Body::from(document.bytes.clone()));
        *request.method_mut() = call.head.method.clone();
        *request.uri_mut() = plain_uri(call.target, call.query)?;
        *request.headers_mut() = plain_headers(headers, document.bytes.len());
        request.extensions_mut().insert(caller);
        // s3s logs every refusal as an error for which a person would have to act.
        let quiet = self.service.call(request).with_subscriber(Dispatch::none());
        let answer = quiet.await.map_err(|_| {
            Refusal::new(Code::InternalError, "We encountered an internal error. Please try again.")
        })?;
        let status = answer.status();
        let refused = refused.lock().unwrap().take();
        if let Some(refusal) = refused.filter(|refusal| refusal.code.status() == status) {
            return Err(refusal);
        }
        if matches!(status, StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE) {
            let operation = call.operation.name();
            let words = answer.body().bytes().unwrap_or_default();
            let words = String::from_utf8_lossy(&words);
            tracing::warn!(operation, path = call.resource, request = call.request_id, "{words}");
        }
        let mut answer = finished(answer, call.resource, call.request_id);
        if call.operation == Operation::GetObjectAttributes
            && let Some(document) = answer.body().bytes().and_then(|document| unquoted(&document))
        {
            *answer.body_mut() = AnswerBody::whole(document);
        }
        Ok(answer)
    }
}

/// A question about a bucket or an object.
struct Asked<'a> {
    operation: Operation,
    of: Of,
    target: &'a Target,
    query: &'a Query,
    headers: &'a HeaderMap,
}

/// Answers what a bucket or an object is asked about itself.
async fn answer_setting(store: &dyn Store, asked: Asked<'_>, document: &[u8]) -> Result<Answer> {
    let Asked { operation, of, target, query, headers } = asked;
    match (of, target) {
        (Of::Bucket, Target::Volume(volume)) => {
            store.volume(volume).await?;
            if let Some(answer) = versions::answer_bucket(store, operation, volume, document).await? {
                return Ok(answer);
            }
            if let Some(answer) = lifecycle::answer_bucket(store, operation, volume, document).await? {
                return Ok(answer);
            }
            if let Some(answer) = configured::answer(store, operation, volume, document).await? {
                return Ok(answer);
            }
        }
        (Of::Object, Target::Object(volume, key)) => {
            let key = key_asked(key, query)?;
            let of = (volume.as_str(), &key);
            if let Some(answer) = versions::answer_object(store, operation, of, headers, document).await? {
                return Ok(answer);
            }
            store.stat(volume, &key).await?;
        }
        _ => return Err(Refusal::new(Code::MethodNotAllowed, "The specified method is not allowed.")),
    }
    let acl = headers.get("x-amz-acl").map(HeaderValue::as_bytes);
    settings::answer(operation, query.get("id"), acl, document)
}

/// The request in path style, without what signed it.
fn plain_uri(target: &Target, query: &Query) -> Result<Uri> {
    let path = match target {
        Target::Root => "/".to_owned(),
        Target::Volume(volume) => format!("/{volume}"),
        Target::Object(volume, key) => format!("/{volume}/{}", percent::encoded(key.as_bytes(), Keep::Slash)),
    };
    let query = query.without_signature();
    let text = if query.is_empty() { path } else { format!("{path}?{query}") };
    text.parse().map_err(|_| Refusal::new(Code::InvalidURI, "Couldn't parse the specified URI."))
}

/// Headers that operations take from [`Caller`]: s3s is stricter about their form than S3 is.
fn is_ours(name: &HeaderName) -> bool {
    let name_text = name.as_str();
    matches!(
        *name,
        header::AUTHORIZATION
            | header::CONTENT_LENGTH
            | header::TRANSFER_ENCODING
            | header::EXPECT
            | header::EXPIRES
            | header::HOST
            | header::DATE
    ) || name_text.starts_with("if-")
        || name_text.starts_with("x-amz-copy-source-if-")
        || name_text.starts_with("x-amz-meta-")
        || matches!(
            name_text,
            "x-amz-date" | "x-amz-content-sha256" | "x-amz-copy-source-range" | "content-md5"
        )
}

fn plain_headers(headers: &HeaderMap, body_bytes: usize) -> HeaderMap {
    let mut plain = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| !is_ours(name)) {
        plain.append(name, value.clone());
    }
    if headers.contains_key("x-amz-copy-source") {
        // That there is one says which operation it is; what it says is read from the header itself.
        plain.insert("x-amz-copy-source", HeaderValue::from_static("source/source"));
    }
    plain.insert(header::CONTENT_LENGTH, HeaderValue::from(body_bytes));
    plain
}

/// Adds what every answer has and s3s leaves out.
fn finished(answer: http::Response<s3s::Body>, resource: &str, request_id: &str) -> Answer {
    let (head, body) = answer.into_parts();
    let Some(document) = body.bytes() else {
        return Answer::from_parts(head, AnswerBody::foreign(body));
    };
    let failed = head.status.is_client_error() || head.status.is_server_error();
    let document = if failed { named(&document, resource, request_id) } else { document };
    let document = xml::escape_controls(&document).map_or(document, Bytes::from);
    let mut answer = Answer::from_parts(head, AnswerBody::whole(document));
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer
}

/// The document of attributes with its ETag bare: only there S3 writes it so.
fn unquoted(document: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(document).ok()?;
    let (start, rest) = text.split_once("<ETag>")?;
    let (etag, end) = rest.split_once("</ETag>")?;
    let etag = etag.replace("&quot;", "").replace('"', "");
    Some(format!("{start}<ETag>{etag}</ETag>{end}").into_bytes())
}

const MALFORMED: &str =
    "The XML you provided was not well-formed or did not validate against our published schema.";

/// An error document with message, resource and request id.
fn named(document: &Bytes, resource: &str, request_id: &str) -> Bytes {
    let end = "</Error>";
    match std::str::from_utf8(document).ok().and_then(|text| text.strip_suffix(end)) {
        Some(start) => {
            let mut out = start.to_owned();
            if !start.contains("<Message>") {
                let malformed = start.contains("<Code>MalformedXML</Code>");
                xml::push_element(
                    &mut out,
                    "Message",
                    if malformed { MALFORMED } else { "The request was refused." },
                );
            }
            xml::push_element(&mut out, "Resource", resource);
            xml::push_element(&mut out, "RequestId", request_id);
            out.push_str(end);
            Bytes::from(out)
        }
        None => document.clone(),
    }
}

/// The operations themselves; each is in a file with its kin.
pub(super) struct Operations {
    pub(super) region: String,
}

macro_rules! operations {
    ($($method:ident: $input:ident -> $output:ident in $module:ident;)*) => {
        #[async_trait]
        impl S3 for Operations {
            $(
                async fn $method(&self, request: S3Request<dto::$input>) -> S3Result<S3Response<dto::$output>> {
                    let caller = Caller::of(&request)?;
                    let log = caller.log.clone();
                    let done = super::$module::$method(self, &caller, request.input).with_subscriber(log).await;
                    done.map_err(|refusal| caller.refuse(refusal))
                }
            )*
        }
    };
}

operations! {
    list_buckets: ListBucketsInput -> ListBucketsOutput in buckets;
    create_bucket: CreateBucketInput -> CreateBucketOutput in buckets;
    delete_bucket: DeleteBucketInput -> DeleteBucketOutput in buckets;
    head_bucket: HeadBucketInput -> HeadBucketOutput in buckets;
    get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput in buckets;
    get_bucket_versioning: GetBucketVersioningInput -> GetBucketVersioningOutput in buckets;
    list_objects: ListObjectsInput -> ListObjectsOutput in listing;
    list_object_versions: ListObjectVersionsInput -> ListObjectVersionsOutput in listing;
    list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output in listing;
    delete_object: DeleteObjectInput -> DeleteObjectOutput in delete;
    delete_objects: DeleteObjectsInput -> DeleteObjectsOutput in delete;
    copy_object: CopyObjectInput -> CopyObjectOutput in copy;
    upload_part_copy: UploadPartCopyInput -> UploadPartCopyOutput in copy;
    get_object_tagging: GetObjectTaggingInput -> GetObjectTaggingOutput in properties;
    put_object_tagging: PutObjectTaggingInput -> PutObjectTaggingOutput in properties;
    delete_object_tagging: DeleteObjectTaggingInput -> DeleteObjectTaggingOutput in properties;
    get_object_attributes: GetObjectAttributesInput -> GetObjectAttributesOutput in properties;
    create_multipart_upload: CreateMultipartUploadInput -> CreateMultipartUploadOutput in uploads;
    complete_multipart_upload: CompleteMultipartUploadInput -> CompleteMultipartUploadOutput in completion;
    abort_multipart_upload: AbortMultipartUploadInput -> AbortMultipartUploadOutput in uploads;
    list_parts: ListPartsInput -> ListPartsOutput in uploads;
    list_multipart_uploads: ListMultipartUploadsInput -> ListMultipartUploadsOutput in uploads;
}

/// Milliseconds since 1970 as s3s writes times.
pub(super) fn timestamp(ms: u64) -> dto::Timestamp {
    dto::Timestamp::from(crate::clock::from_unix_ms(ms))
}

/// Who owns everything: there is one owner, the one who runs the node.
pub(super) fn owner() -> dto::Owner {
    dto::Owner { display_name: Some(OWNER_ID.to_owned()), id: Some(OWNER_ID.to_owned()) }
}

/// How the owner is called.
pub(crate) const OWNER_ID: &str = "stoker";
