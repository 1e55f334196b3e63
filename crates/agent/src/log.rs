//! Where `tracing` goes: what is logged to stderr, as text or as one JSON object per line; spans to a collector, if there is one.

mod repeats;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Mutex, PoisonError, RwLock};

use serde::Deserialize;
use serde_json::{Map, Value};
use stoker_store::name_ids;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock;
use crate::journal;
use crate::{TRACE, Traces};
use repeats::Repeats;

/// How much is logged.
#[derive(clap::ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing.
    Off,
    /// What a person has to act upon.
    Error,
    /// What may become that.
    Warn,
    /// What happens rarely.
    #[default]
    Info,
    /// What happens often.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> LevelFilter {
        match level {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

/// What a line looks like.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Starts logging, and listening to spans if somebody wants them; once per process.
pub fn start(level: Level, format: Format, traces: Option<&Traces>) {
    let lines = tracing_subscriber::registry().with(lines(level, format));
    match traces {
        None => lines.init(),
        Some(traces) => lines.with(traces.layer()).init(),
    }
}

/// What is logged. Spans for a collector are none of it, whatever the level.
fn lines<S>(level: Level, format: Format) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let level = LevelFilter::from(level);
    let is_logged = move |metadata: &Metadata<'_>| {
        let target = metadata.target();
        // The client of Kafka tells of each try; we tell once, when it begins to fail.
        let is_told_by_us = target.starts_with("rskafka") && level < LevelFilter::DEBUG;
        *metadata.level() <= level && target != TRACE && !is_told_by_us
    };
    let filter = filter_fn(is_logged).with_max_level_hint(level);
    let layer = tracing_subscriber::fmt::layer();
    match format {
        Format::Text => {
            let lines = Seldom::new(text(), format);
            layer.with_writer(|| NamedLines).event_format(lines).with_filter(filter).boxed()
        }
        Format::Json => {
            let lines = Seldom::new(JsonLine, format);
            layer.with_writer(io::stderr).event_format(lines).with_filter(filter).boxed()
        }
    }
}

/// What people call nodes and drives, by id. Lines for people say these names, wherever they come from; lines for machines keep the
/// ids.
static NAMES: RwLock<BTreeMap<String, String>> = RwLock::new(BTreeMap::new());

/// Tells what nodes and drives are called from now on.
pub fn set_names(names: impl IntoIterator<Item = (String, String)>) {
    *NAMES.write().unwrap_or_else(PoisonError::into_inner) = names.into_iter().collect();
}

/// Lines for people, on stderr.
struct NamedLines;

impl io::Write for NamedLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
        let named = name_ids(&text, |id| names.get(id).cloned());
        io::stderr().lock().write_all(named.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// How lines for people look.
fn text() -> tracing_subscriber::fmt::format::Format {
    tracing_subscriber::fmt::format().with_target(false)
}

/// Writes a warning only once within seconds, word for word; what is not the same in every field is another. Not a filter: what one
/// of those refuses of an event is taken for a refusal of the next.
struct Seldom<F> {
    inner: F,
    format: Format,
    repeats: Mutex<Repeats>,
}

impl<F> Seldom<F> {
    fn new(inner: F, format: Format) -> Seldom<F> {
        Seldom { inner, format, repeats: Mutex::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for Seldom<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = journal::priority(*event.metadata().level());
        if *event.metadata().level() > tracing::Level::WARN {
            writer.write_str(priority)?;
            return self.inner.format_event(context, writer, event);
        }
        let mut line = LineHash(DefaultHasher::new());
        event.metadata().callsite().hash(&mut line.0);
        event.record(&mut line);
        let admitted = {
            let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            repeats.admit(line.0.finish(), clock::now())
        };
        let Some(skipped) = admitted else { return Ok(()) };
        if skipped > 0 {
            let words = format!("the next line came {skipped} more times");
            writer.write_str(priority)?;
            match self.format {
                Format::Text => writeln!(writer, "{words}")?,
                Format::Json => {
                    let time = clock::rfc3339(clock::unix_ms());
                    writeln!(
                        writer,
                        "{}",
                        serde_json::json!({ "time": time, "level": "info", "message": words })
                    )?;
                }
            }
        }
        writer.write_str(priority)?;
        self.inner.format_event(context, writer, event)
    }
}

/// What a line says, as one number.
struct LineHash(DefaultHasher);

impl Visit for LineHash {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        field.name().hash(&mut self.0);
        format!("{value:?}").hash(&mut self.0);
    }
}

/// Writes an event as a JSON object: time, level, target, message, then its fields.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut object = Map::new();
        object.insert("time".into(), clock::rfc3339(clock::unix_ms()).into());
        object.insert("level".into(), event.metadata().level().as_str().to_ascii_lowercase().into());
        object.insert("target".into(), event.metadata().target().into());
        event.record(&mut Fields(&mut object));
        writeln!(to, "{}", Value::Object(object))
    }
}

/// Collects the fields of an event.
struct Fields<'m>(&'m mut Map<String, Value>);

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a span for a collector is on, whether its fields were computed, and whether its place is off for good.
    fn seen_by(subscriber: impl Subscriber + Send + Sync + 'static) -> (bool, bool, bool) {
        let is_computed = Cell::new(false);
        let place = || {
            let value = || {
                is_computed.set(true);
                1
            };
            tracing::debug_span!(target: "stoker::trace", "a span", value = value())
        };
        // One that wants everything tells what the place is called; a span that is off does not know.
        let all = tracing::Dispatch::new(tracing_subscriber::registry());
        let metadata = tracing::dispatcher::with_default(&all, place).metadata().unwrap();
        assert!(is_computed.replace(false));
        drop(all);
        let dispatch = tracing::Dispatch::new(subscriber);
        let is_on = !tracing::dispatcher::with_default(&dispatch, place).is_disabled();
        (is_on, is_computed.get(), dispatch.register_callsite(metadata).is_never())
    }

    #[test]
    fn spans_for_a_collector_are_off_for_good_without_one() {
        for level in [Level::Off, Level::Info, Level::Debug, Level::Trace] {
            for format in [Format::Text, Format::Json] {
                let subscriber = tracing_subscriber::registry().with(lines(level, format));
                assert_eq!(seen_by(subscriber), (false, false, true), "{level:?} {format:?}");
            }
        }
    }

    #[test]
    fn a_warning_is_not_said_again_word_for_word() {
        use tracing_subscriber::fmt::MakeWriter;
        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<Mutex<Vec<u8>>>);
        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl MakeWriter<'_> for Lines {
            type Writer = Lines;
            fn make_writer(&self) -> Lines {
                self.clone()
            }
        }
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(lines.clone())
            .with_ansi(false)
            .event_format(Seldom::new(text(), Format::Text))
            .with_filter(LevelFilter::INFO);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for at in 0..200 {
                let error = io::Error::from_raw_os_error(libc::EMFILE);
                tracing::warn!(%error, "a connection could not be accepted");
                tracing::info!("happens often");
                tracing::warn!(file = at % 3, "is lost");
                tracing::debug!("is not wanted");
            }
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!(
            (count("be accepted"), count("often"), count("is lost"), count("not wanted")),
            (1, 200, 3, 0),
            "{text}"
        );
    }

    #[cfg(feature = "otel")]
    #[test]
    fn spans_for_a_collector_are_on_with_one() {
        let endpoint = Some("http://127.0.0.1:1".to_owned());
        let plan = crate::TracesPlan { endpoint, sample: 1.0 };
        let traces = Traces::open(&plan).unwrap().unwrap();
        let lines = tracing_subscriber::registry().with(lines(Level::Info, Format::Text));
        assert_eq!(seen_by(lines.with(traces.layer())), (true, true, false));
    }
}
