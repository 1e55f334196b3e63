//! Traces: what a request did, step by step, and how long each step took, for an OpenTelemetry collector.
//!
//! Spans are made in the crates below, all with the target [`TRACE`]. Nobody but a collector listens to that target, so without one
//! every such place is off for good: `tracing` asks once, keeps the answer, and from then on looks at one word in memory. Nothing is
//! formatted or allocated, and the values of fields are not even computed.

#[cfg(not(feature = "otel"))]
mod absent;
#[cfg(feature = "otel")]
mod otel;

use crate::failure::Failure;

#[cfg(not(feature = "otel"))]
pub use absent::{Traces, trace_parent};
#[cfg(feature = "otel")]
pub use otel::{Traces, trace_parent};

/// The target of every span that is for a collector. Crates below have the same word.
pub const TRACE: &str = "stoker::trace";

/// What OpenTelemetry calls the same setting, for all signals and for traces alone.
const ENV: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const ENV_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Where a collector takes traces, below its endpoint.
const PATH: &str = "v1/traces";

/// Which traces go where.
#[derive(Clone, PartialEq, Debug)]
pub struct TracesPlan {
    /// A collector: `http://host:4318`. None: what the environment says.
    pub endpoint: Option<String>,
    /// Share of traces that begin here. Those of callers go by what the caller decided.
    pub sample: f64,
}

impl Default for TracesPlan {
    fn default() -> TracesPlan {
        TracesPlan { endpoint: None, sample: 0.01 }
    }
}

impl TracesPlan {
    /// Refuses what this program cannot do.
    pub fn check(&self) -> Result<(), Failure> {
        match self.endpoint.is_none() || cfg!(feature = "otel") {
            true => Ok(()),
            false => {
                let words =
                    "`endpoint` in [telemetry.traces] is set, but this stoker was built without traces";
                Err(Failure::new(words)
                    .hint("build it with `cargo build --release --features otel`, or leave the setting out"))
            }
        }
    }

    /// Where traces go, if anywhere: the configuration comes before the environment.
    fn url(&self, env: impl Fn(&str) -> Option<String>) -> Option<String> {
        let below = |endpoint: String| format!("{}/{PATH}", endpoint.trim_end_matches('/'));
        let env = |name| env(name).filter(|text| !text.is_empty());
        let configured = self.endpoint.clone().map(below);
        configured.or_else(|| env(ENV_TRACES)).or_else(|| env(ENV).map(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_comes_before_the_environment() {
        let check = |endpoint: Option<&str>, env: &[(&str, &str)], expect: Option<&str>| {
            let plan = TracesPlan { endpoint: endpoint.map(str::to_owned), ..TracesPlan::default() };
            let find = |name: &str| env.iter().find(|(known, _)| *known == name);
            let url = plan.url(|name| find(name).map(|(_, value)| (*value).to_owned()));
            assert_eq!(url.as_deref(), expect, "{endpoint:?} {env:?}");
        };
        check(None, &[], None);
        check(None, &[(ENV, "")], None);
        check(Some("http://a:4318"), &[(ENV, "http://b")], Some("http://a:4318/v1/traces"));
        check(Some("http://a/x/"), &[], Some("http://a/x/v1/traces"));
        check(None, &[(ENV, "http://b:1/")], Some("http://b:1/v1/traces"));
        check(None, &[(ENV, "http://b"), (ENV_TRACES, "http://c/t")], Some("http://c/t"));
    }

    #[test]
    fn without_the_feature_a_collector_is_refused() {
        assert!(TracesPlan::default().check().is_ok());
        let plan = TracesPlan { endpoint: Some("http://a".into()), ..TracesPlan::default() };
        assert_eq!(plan.check().is_ok(), cfg!(feature = "otel"));
    }
}
