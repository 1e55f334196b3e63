//! A program without traces.

use stoker_gateway_s3::TraceParent;
use stoker_store::Counter;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::super::events::Origin;
use super::TracesPlan;
use crate::failure::Failure;

/// There are none.
#[derive(Clone, Debug)]
pub enum Traces {}

/// Nobody wants to know.
pub fn trace_parent() -> Option<TraceParent> {
    None
}

impl Traces {
    /// Refuses a collector that is configured. One that only the environment names may be meant for other programs.
    pub fn open(plan: &TracesPlan) -> Result<Option<Traces>, Failure> {
        plan.check()?;
        if plan.url(|name| std::env::var(name).ok()).is_some() {
            crate::out::say(
                "the environment names an OpenTelemetry collector, but this stoker was built without traces",
            );
        }
        Ok(None)
    }

    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        match *self {}
    }

    pub fn start(&self, _: &Origin, _: &watch::Receiver<bool>) -> Option<JoinHandle<()>> {
        match *self {}
    }

    pub fn counters(&self) -> Vec<Counter> {
        match *self {}
    }
}
