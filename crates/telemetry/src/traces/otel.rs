//! Spans that ended wait in a bounded queue; one task sends them. A request never waits for a collector: where there is no room, a
//! span is dropped and counted.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method};
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter as _, SpanProcessor, Tracer,
};
use stoker_store::{BoxFuture, Counter};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{Metadata, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use super::{TRACE, TracesPlan};
use crate::events::Origin;
use crate::failure::Failure;
use crate::fetch::{Http, check_url};
use crate::{pause, told};

/// Spans that wait to be sent. More are dropped.
const WAITING_MAX: usize = 4_096;
/// Spans that are sent together.
const BATCH_MAX: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// Pauses after failures: they double from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Fields that are numbers: the layer knows no unsigned ones, and makes text of them.
const NUMBERS: [&str; 9] = [
    "bytes",
    "checks",
    "copies",
    "failures",
    "hedges",
    "http.response.body.size",
    "http.response.status_code",
    "index",
    "writes",
];
/// What a request asks for becomes the name of its span. It is known only when the span has begun, and the layer would take no other
/// name then.
const OPERATION: &str = "rpc.method";
/// Longest answer of a collector that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The way to a collector. Clones are the same.
#[derive(Clone)]
pub struct Traces(Arc<Shared>);

struct Shared {
    tracer: Tracer,
    url: String,
    counts: Arc<Counts>,
    /// Taken by the task that sends.
    ends: Mutex<Option<(SpanExporter, mpsc::Receiver<SpanData>)>>,
}

#[derive(Debug)]
struct Counts {
    waiting: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
    is_up: AtomicBool,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traces({})", self.0.url)
    }
}

impl Traces {
    /// The way to the collector that is configured or that the environment names; none if neither is.
    pub fn open(plan: &TracesPlan) -> Result<Option<Traces>, Failure> {
        let Some(url) = plan.url(|name| std::env::var(name).ok()) else { return Ok(None) };
        check_url(&url).map_err(|words| Failure::new(format!("traces: {words}")))?;
        let (feed, ends) = mpsc::channel(WAITING_MAX);
        let (waiting, sent, dropped, failures) = Default::default();
        let counts = Arc::new(Counts { waiting, sent, dropped, failures, is_up: AtomicBool::new(true) });
        // A caller that wants a trace gets one: it has told so, and the queue is bounded.
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(plan.sample)));
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampler)
            .with_span_processor(Feed { spans: feed, counts: counts.clone() })
            .build();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Way(Http::new()?))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&url)
            .build()
            .map_err(|error| Failure::new(format!("traces: {error}")))?;
        let ends = Mutex::new(Some((exporter, ends)));
        Ok(Some(Traces(Arc::new(Shared { tracer: provider.tracer("stoker"), url, counts, ends }))))
    }

    /// What listens to spans, and to nothing else.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let is_ours = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == TRACE;
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer.clone())
            // Parents are those of `tracing`; nobody else here speaks OpenTelemetry.
            .with_context_activation(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_ours).with_max_level_hint(LevelFilter::DEBUG))
            .boxed()
    }

    /// Sends what waits, until told to stop. What ended before waits until now: only now the node knows who it is.
    pub fn start(&self, origin: &Origin, stopped: &watch::Receiver<bool>) -> Option<JoinHandle<()>> {
        let (mut exporter, ends) = self.0.ends.lock().unwrap().take()?;
        exporter.set_resource(&resource(origin));
        Some(tokio::spawn(self.0.clone().send_all(exporter, ends, stopped.clone())))
    }

    /// Spans that were sent and dropped.
    pub fn counters(&self) -> Vec<Counter> {
        let counts = &self.0.counts;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let is_up = f64::from(counts.is_up.load(Ordering::Relaxed));
        [
            ("traces_up", "1 if the collector took the last spans that it was sent.", is_up),
            ("traces_spans_waiting", "Spans that wait to be sent.", load(&counts.waiting)),
            ("traces_spans_sent_total", "Spans that the collector took.", load(&counts.sent)),
            (
                "traces_spans_dropped_total",
                "Spans that were too many to wait, or that the collector did not take.",
                load(&counts.dropped),
            ),
            ("traces_failures_total", "Tries to send spans that failed.", load(&counts.failures)),
        ]
        .into_iter()
        .map(|(name, help, value)| Counter::new(name, help, &[], value))
        .collect()
    }
}

impl Shared {
    async fn send_all(
        self: Arc<Shared>,
        exporter: SpanExporter,
        mut ends: mpsc::Receiver<SpanData>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut failed = 0u32;
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                got = ends.recv_many(&mut batch, BATCH_MAX) => if got == 0 { return },
                () = told(&mut stopped) => return,
            }
            if batch.len() < BATCH_MAX {
                let _ = pause(GATHER, &mut stopped).await;
                while batch.len() < BATCH_MAX {
                    let Ok(span) = ends.try_recv() else { break };
                    batch.push(span);
                }
            }
            let spans = batch.len() as u64;
            self.counts.waiting.fetch_sub(spans, Ordering::Relaxed);
            let Err(error) = exporter.export(batch).await else {
                self.counts.sent.fetch_add(spans, Ordering::Relaxed);
                self.counts.is_up.store(true, Ordering::Relaxed);
                failed = 0;
                continue;
            };
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(spans, Ordering::Relaxed);
            // Told once, when it begins.
            if self.counts.is_up.swap(false, Ordering::Relaxed) {
                tracing::warn!(url = self.url, "traces cannot be sent, and are dropped: {error}");
            }
            if pause(PAUSE_MIN.saturating_mul(1 << failed.min(10)).min(PAUSE_MAX), &mut stopped).await {
                return;
            }
            failed += 1;
        }
    }
}

/// Who tells; names of OpenTelemetry where it has some. What the environment says of the program stays.
fn resource(origin: &Origin) -> Resource {
    let mut attributes = vec![
        KeyValue::new("service.instance.id", origin.node_id.clone()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("stoker.node", origin.node.clone()),
        KeyValue::new("stoker.cluster", origin.cluster.clone()),
    ];
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        attributes.push(KeyValue::new("service.name", "stoker"));
    }
    Resource::builder().with_attributes(attributes).build()
}

/// Takes the parent of an S3 request from its `traceparent`.
pub fn trace_parent() -> Option<fn(&Span, &HeaderMap)> {
    Some(|span: &Span, headers: &HeaderMap| {
        use opentelemetry::propagation::TextMapPropagator as _;
        // The library takes ids of any length, and would make others of them.
        let is_whole = |text: &str| {
            let lengths: Vec<usize> = text.split('-').take(4).map(str::len).collect();
            lengths == [2, 32, 16, 2]
        };
        if !headers.get("traceparent").and_then(|text| text.to_str().ok()).is_some_and(is_whole) {
            return;
        }
        let caller =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        if caller.span().span_context().is_valid() {
            // It fails only for a span that nobody listens to.
            let _ = span.set_parent(caller);
        }
    })
}

/// Puts spans that ended into the queue.
#[derive(Debug)]
struct Feed {
    spans: mpsc::Sender<SpanData>,
    counts: Arc<Counts>,
}

impl SpanProcessor for Feed {
    fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        for field in &mut span.attributes {
            if field.key.as_str() == OPERATION {
                span.name = field.value.as_str().into_owned().into();
            } else if NUMBERS.contains(&field.key.as_str())
                && let Ok(number) = field.value.as_str().parse::<i64>()
            {
                field.value = number.into();
            }
        }
        // Before it is there for the task that takes it off again.
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if self.spans.try_send(span).is_err() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Requests of the exporter, by the client that webhooks use.
struct Way(Http);

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

impl HttpClient for Way {
    // What `async_trait` makes of the trait's `async fn`.
    fn send_bytes<'own, 'made>(
        &'own self,
        request: Request<Bytes>,
    ) -> BoxFuture<'made, Result<Response<Bytes>, HttpError>>
    where
        'own: 'made,
        Self: 'made,
    {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let mut headers = Vec::new();
            for (name, value) in &head.headers {
                headers.push((name.clone(), value.to_str()?.to_owned()));
            }
            let url = head.uri.to_string();
            let answer = self.0.ask(Method::POST, &url, &headers, body, ANSWER_BYTES_MAX).await?;
            Ok(Response::builder().status(answer.status).body(answer.body)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn value(traces: &Traces, name: &str) -> f64 {
        traces.counters().into_iter().find(|counter| counter.name == name).unwrap().value
    }

    fn open(sample: f64) -> Traces {
        let plan = TracesPlan { endpoint: Some("http://127.0.0.1:1".into()), sample };
        Traces::open(&plan).unwrap().unwrap()
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_too_much_is_counted() {
        let traces = open(1.0);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(traces.layer()), || {
            for _ in 0..WAITING_MAX + 5 {
                drop(tracing::debug_span!(target: TRACE, "a span").entered());
            }
            // Not for a collector.
            drop(tracing::info_span!("another").entered());
            tracing::info!(target: TRACE, "an event");
        });
        assert_eq!(value(&traces, "traces_spans_waiting"), WAITING_MAX as f64);
        assert_eq!(value(&traces, "traces_spans_dropped_total"), 5.0);
    }

    #[test]
    fn callers_decide_what_becomes_of_their_traces() {
        let traces = open(0.0);
        let trace_id = "0af7651916cd43dd8448eb211c80319c";
        let check = |header: Option<String>, expect: f64| {
            let mut headers = HeaderMap::new();
            header.iter().for_each(|text| drop(headers.insert("traceparent", text.parse().unwrap())));
            let before = value(&traces, "traces_spans_waiting");
            tracing::subscriber::with_default(tracing_subscriber::registry().with(traces.layer()), || {
                let span = tracing::debug_span!(target: TRACE, "request");
                trace_parent().unwrap()(&span, &headers);
                span.in_scope(|| drop(tracing::debug_span!(target: TRACE, "below").entered()));
            });
            assert_eq!(value(&traces, "traces_spans_waiting") - before, expect, "{header:?}");
        };
        check(None, 0.0);
        check(Some(format!("00-{trace_id}-b7ad6b7169203331-00")), 0.0);
        check(Some(format!("00-{trace_id}-b7ad6b7169203331-01")), 2.0);
        // Foreign bytes.
        for odd in ["", "00-1-2-01", "zz-x-y-z", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            check(Some(odd.into()), 0.0);
        }
        let (_, mut ends) = traces.0.ends.lock().unwrap().take().unwrap();
        let below = ends.try_recv().unwrap();
        let request = ends.try_recv().unwrap();
        assert_eq!((&*below.name, &*request.name), ("below", "request"));
        assert_eq!(below.parent_span_id, request.span_context.span_id());
        assert_eq!(request.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(request.span_context.trace_id().to_string(), trace_id);
    }
}
