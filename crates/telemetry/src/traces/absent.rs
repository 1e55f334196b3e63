//! A program without traces.

use http::HeaderMap;
use stoker_store::Counter;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::TracesPlan;
use crate::events::Origin;
use crate::failure::Failure;

/// There are none.
#[derive(Clone, Debug)]
pub enum Traces {}

/// Nobody wants to know.
pub fn trace_parent() -> Option<fn(&Span, &HeaderMap)> {
    None
}

impl Traces {
    /// Refuses a collector that is configured. One that only the environment names may be meant for other programs.
    pub fn open(plan: &TracesPlan) -> Result<Option<Traces>, Failure> {
        plan.check()?;
        if plan.url(|name| std::env::var(name).ok()).is_some() {
            stoker_terminal::out::say(
                "the environment names an OpenTelemetry collector, but this stoker was built without traces",
            );
        }
        Ok(None)
    }

    /// There are none.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        match *self {}
    }

    /// There are none.
    pub fn start(&self, _: &Origin, _: &watch::Receiver<bool>) -> Option<JoinHandle<()>> {
        match *self {}
    }

    /// There are none.
    pub fn counters(&self) -> Vec<Counter> {
        match *self {}
    }
}
