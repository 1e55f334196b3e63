//! One request from its head to its answer: what it is about, what it asks for, who asks, whether they may, and then the
//! path that does it.

use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts as Head;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use stoker_access::{Guard, Guarded, Origin};
use stoker_oidc::Issuers;
use stoker_store::{ErrorKind, JobLabel, Place, Places, Store, StoreError};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::answer::{self, Answer};
use crate::auth::{Authenticator, Verified};
use crate::counters::Counters;
use crate::exchange::{Exchange, Pace};
use crate::hot::arrivals::Arrivals;
use crate::hot::checksum;
use crate::hot::condition::write_failed;
use crate::hot::discard::discard;
use crate::hot::get::{Read, get_object, head_object};
use crate::hot::memory_queue::MemoryQueue;
use crate::hot::post::{Post, post_object};
use crate::hot::put::{Write, put_object, upload_part};
use crate::operation::Operation;
use crate::ops::{Call, OWNER_ID, Seam, cors_rules};
use crate::options::{GatewayOptions, TraceParent};
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::request_id::RequestIds;
use crate::sets::{self, Reserved};
use crate::target::{Target, volume_of_host};
use crate::{DOOR, TRACE, clock, cors, rights, sts};

/// What all requests share.
pub(crate) struct Service {
    guard: Guard,
    /// What is looked up before it is known who asks.
    lookup: Arc<Guarded>,
    auth: Authenticator,
    /// Whose tokens become temporary keys.
    issuers: Arc<Issuers>,
    seam: Seam,
    ids: RequestIds,
    /// Counts.
    pub(crate) counters: Arc<Counters>,
    /// Who may be connected.
    pub(crate) places: Arc<Places>,
    memory: Arc<MemoryQueue>,
    /// How the gateway was started.
    pub(crate) options: GatewayOptions,
}

/// By which a client says for which job it works.
const JOB: HeaderName = HeaderName::from_static("x-stoker-job");

/// The job that a request is a part of, if it says so.
fn job_of(headers: &header::HeaderMap) -> Result<Option<JobLabel>> {
    let Some(value) = headers.get(JOB) else { return Ok(None) };
    let unreadable = || StoreError::new(ErrorKind::Invalid, "the header x-stoker-job is no name of a job");
    let job = value.to_str().map_err(|_| unreadable()).and_then(JobLabel::parse);
    Ok(Some(job.map_err(Refusal::from)?))
}

impl Service {
    /// A gateway in front of this store.
    pub(crate) fn new(guard: Guard, issuers: Arc<Issuers>, options: GatewayOptions) -> Service {
        Service {
            lookup: guard.lookup(DOOR),
            guard: guard.clone(),
            auth: Authenticator::new(guard, options.signature_v2),
            issuers,
            seam: Seam::new(options.region.clone()),
            ids: RequestIds::new(clock::unix_s().unsigned_abs() << 20),
            counters: Arc::new(Counters::new()),
            places: Places::new(options.connections_max),
            memory: MemoryQueue::new(),
            options,
        }
    }

    /// Answers a request.
    pub(crate) async fn serve(
        &self,
        request: Request<Incoming>,
        pace: Pace,
        place: Arc<Place>,
        from: Arc<str>,
    ) -> Answer {
        let id = self.ids.next();
        let span = self.span(&request, &id);
        let exchange = Exchange::begin(Arc::clone(&self.counters), pace, place, span.clone());
        let is_tls = self.options.tls.is_some();
        let origin = Origin { address: from, request_id: Arc::from(id.as_str()), is_tls };
        origin.scope(self.serve_within(request, id, exchange)).instrument(span).await
    }

    /// Writes down that somebody did not prove who they are. Of what they sent nothing is written but what they asked for.
    fn refuses_stranger(&self, operation: Option<Operation>, target: &Target, refusal: &Refusal) {
        let is_session = matches!(refusal.code, Code::ExpiredToken | Code::InvalidToken);
        if refusal.code.status() == StatusCode::FORBIDDEN || is_session {
            let action = operation.unwrap_or(Operation::Unknown).name();
            let (volume, key) = match target {
                Target::Root => ("", None),
                Target::Volume(volume) => (volume.as_str(), None),
                Target::Object(volume, key) => (volume.as_str(), Some(key.as_bytes())),
            };
            let code = refusal.code.name();
            match is_session {
                // As JSON, of which the audit log hides values by their names: these have a word in them that secrets have.
                true => {
                    let why = format!("{{\"code\":\"{code}\"}}");
                    self.guard.refused_stranger(DOOR, action, volume, key, &why);
                }
                false => self.guard.refused_stranger(DOOR, action, volume, key, code),
            }
        }
    }

    /// The span of a request, if somebody listens.
    fn span(&self, request: &Request<Incoming>, id: &str) -> Span {
        let span = tracing::debug_span!(
            target: TRACE,
            "s3 request",
            rpc.method = Empty,
            otel.kind = "server",
            otel.status_code = Empty,
            http.request.method = request.method().as_str(),
            url.path = request.uri().path(),
            http.response.status_code = Empty,
            http.response.body.size = Empty,
            stoker.request = id,
        );
        if let Some(TraceParent(set)) = self.options.trace_parent.filter(|_| !span.is_disabled()) {
            set(&span, request.headers());
        }
        span
    }

    async fn serve_within(&self, request: Request<Incoming>, id: String, mut exchange: Exchange) -> Answer {
        let (mut head, body) = request.into_parts();
        let (counters, memory) = (Arc::clone(&self.counters), Arc::clone(&self.memory));
        // Nothing is there to go on with, so hyper says no 100; botocore then takes the status line of this answer for that of the next one on
        // the same connection, and waits a minute for its end.
        let is_unsaid = waits_for_continue(&head) && http_body::Body::is_end_stream(&body);
        let mut arrivals = Arrivals::new(body, self.options.body_timeout, counters, memory);
        let answered = match job_of(&head.headers) {
            Ok(job) => {
                let answered = self.answer(&mut head, &mut arrivals, &id, &mut exchange);
                let answered = stoker_store::patiently(Some(self.options.catalog_patience), answered);
                stoker_store::in_job(job, answered).await
            }
            Err(refusal) => Err(refusal),
        };
        let mut answer = match answered {
            Ok(answer) => answer,
            Err(refusal) => {
                let is_bare = refusal.code == Code::PreconditionFailed && refusal.details.is_empty();
                let refusal = if is_bare { write_failed(&head.headers) } else { refusal };
                if matches!(refusal.code, Code::InternalError | Code::ServiceUnavailable) {
                    let path = head.uri.path();
                    tracing::warn!(code = refusal.code.name(), path, request = id, "{}", refusal.message);
                }
                answer::refused(&refusal, head.uri.path(), &id, head.method == Method::HEAD)
            }
        };
        if is_unsaid || !arrivals.is_ended() && !discard(&mut arrivals, waits_for_continue(&head)).await {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let headers = answer.headers_mut();
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert("x-amz-request-id", id);
        }
        headers.insert(header::SERVER, HeaderValue::from_static("Stoker"));
        if let Some(origin) = cors::allowed_origin(&self.options.cors_origins, &head.headers) {
            cors::add(headers, origin);
        } else if head.method != Method::OPTIONS
            && head.headers.contains_key(header::ORIGIN)
            && !answer.status().is_server_error()
        {
            let rules = self.cors_rules(&head).await;
            cors::add_by(&rules, &head.method, &head.headers, answer.headers_mut());
        }
        exchange.answers(answer.status().as_u16());
        answer.body_mut().ends(exchange);
        answer
    }

    /// The rules by which web pages may use the bucket that a request is about.
    async fn cors_rules(&self, head: &Head) -> Vec<cors::Rule> {
        let target = Target::parse(host_of(head), head.uri.path(), &self.options.domains);
        match target.as_ref().ok().and_then(Target::volume) {
            None => Vec::new(),
            Some(volume) => {
                let looked = cors_rules(&*self.lookup, volume);
                stoker_store::patiently(Some(self.options.catalog_patience), looked).await
            }
        }
    }

    async fn answer(
        &self,
        head: &mut Head,
        arrivals: &mut Arrivals,
        id: &str,
        exchange: &mut Exchange,
    ) -> Result<Answer> {
        if head.method == Method::OPTIONS {
            exchange.asks(Operation::Preflight);
            let rules = self.cors_rules(head).await;
            return match cors::preflight_by(&rules, &head.headers) {
                Some(answer) => Ok(answer),
                None => cors::preflight(&self.options.cors_origins, &head.headers),
            };
        }
        let host = host_of(head);
        let target = Target::parse(host, head.uri.path(), &self.options.domains)?;
        let query = Query::parse(head.uri.query())?;
        if sts::is_asked(&head.method, &target, &head.headers) {
            let asked = sts::Asked {
                guard: &self.guard,
                auth: &self.auth,
                issuers: &self.issuers,
                head,
                query: &query,
                arrivals,
                patience: self.options.header_timeout,
                request_id: id,
            };
            return Ok(sts::answer(asked, exchange).await);
        }
        let asked = Operation::of(&head.method, &target, &query, &head.headers);
        exchange.asks(*asked.as_ref().unwrap_or(&Operation::Unknown));
        if let (Ok(Operation::PostObject), Some(volume)) = (&asked, target.volume()) {
            let bytes_max = self.options.body_bytes_max;
            let fields_timeout = self.options.header_timeout;
            let post = Post { volume, headers: &head.headers, arrivals, bytes_max, fields_timeout, exchange };
            let answered = post_object(&self.auth, post).await;
            if let Err(refusal) = &answered
                && refusal.code != Code::AccessDenied
            {
                self.refuses_stranger(Some(Operation::PostObject), &target, refusal);
            }
            return answered;
        }
        let in_host = host.and_then(|host| volume_of_host(host, &self.options.domains));
        let verified = self.auth.check(head, &query, in_host, clock::unix_s()).await;
        let verified = verified.inspect_err(|refusal| {
            self.refuses_stranger(asked.as_ref().ok().copied(), &target, refusal);
        })?;
        exchange.proves();
        // Who asks comes before what is possible.
        let operation = if hoist(head, &query)? {
            Operation::of(&head.method, &target, &query, &head.headers)?
        } else {
            asked?
        };
        exchange.asks(operation);
        rights::check(&verified.credential, operation, &target, &query).await?;
        check_owner(head)?;
        self.dispatch(operation, head, &target, &query, verified, arrivals, id).await
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one request")]
    async fn dispatch(
        &self,
        operation: Operation,
        head: &Head,
        target: &Target,
        query: &Query,
        verified: Verified,
        arrivals: &mut Arrivals,
        id: &str,
    ) -> Result<Answer> {
        let headers = &head.headers;
        let Verified { credential, payload, region } = verified;
        let view = Arc::clone(&credential.view);
        let store: &dyn Store = &*view;
        if let Target::Object(volume, key) = target
            && let Some(reserved) = Reserved::of(key)
        {
            let write = Write {
                volume,
                key,
                query,
                headers,
                credential: &credential,
                payload,
                arrivals,
                bytes_max: self.options.body_bytes_max,
                md5_up_to: self.options.md5_up_to,
            };
            return sets::answer(store, operation, reserved, write).await;
        }
        match (operation, target) {
            (Operation::GetObject | Operation::HeadObject, Target::Object(volume, key)) => {
                let read = Read { volume, key, query, headers };
                match operation {
                    Operation::GetObject => get_object(store, read, &self.counters).await,
                    _ => head_object(store, read).await,
                }
            }
            (Operation::PutObject | Operation::UploadPart, Target::Object(volume, key)) => {
                let write = Write {
                    volume,
                    key,
                    query,
                    headers,
                    credential: &credential,
                    payload,
                    arrivals,
                    bytes_max: self.options.body_bytes_max,
                    md5_up_to: self.options.md5_up_to,
                };
                match operation {
                    Operation::PutObject => put_object(store, write).await,
                    _ => upload_part(store, write).await,
                }
            }
            _ => {
                let resource = head.uri.path();
                let call = Call {
                    operation,
                    head,
                    target,
                    query,
                    credential,
                    payload,
                    region,
                    arrivals,
                    request_id: id,
                    resource,
                };
                self.seam.call(call).await
            }
        }
    }
}

fn host_of(head: &Head) -> Option<&str> {
    head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(head.uri.host())
}

/// Headers that a presigned request carries in its query become headers again. The signature covers them there. Checksums of nothing do not: SDKs sign them
/// into a request whose body they do not know yet, and S3 does not look at checksums there at all.
fn hoist(head: &mut Head, query: &Query) -> Result<bool> {
    let mut hoisted = false;
    if !query.has("X-Amz-Signature") && !query.has("Signature") {
        return Ok(false);
    }
    for name in query.names() {
        let lower = name.to_ascii_lowercase();
        let signs = matches!(
            lower.as_str(),
            "x-amz-algorithm"
                | "x-amz-credential"
                | "x-amz-date"
                | "x-amz-expires"
                | "x-amz-signedheaders"
                | "x-amz-signature"
                | "x-amz-content-sha256"
                | "x-amz-security-token"
        );
        let value = query.get(name).unwrap_or_default();
        let is_idle = checksum::is_of_nothing(&lower, value) || lower == "x-amz-sdk-checksum-algorithm";
        if signs || is_idle || !lower.starts_with("x-amz-") || head.headers.contains_key(&lower) {
            continue;
        }
        let odd = || Refusal::new(Code::InvalidArgument, format!("The parameter {name} cannot be a header."));
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| odd())?;
        head.headers.insert(HeaderName::from_bytes(lower.as_bytes()).map_err(|_| odd())?, value);
        hoisted = true;
    }
    Ok(hoisted)
}

/// A client that wants to be sure whose bucket it is gets to be sure.
fn check_owner(head: &Head) -> Result<()> {
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if head.headers.get(name).is_some_and(|owner| owner != OWNER_ID) {
            return Err(Refusal::new(
                Code::AccessDenied,
                "Access Denied: the bucket belongs to somebody else.",
            ));
        }
    }
    Ok(())
}

fn waits_for_continue(head: &Head) -> bool {
    let expect = head.headers.get(header::EXPECT).map(HeaderValue::as_bytes);
    expect.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
}
