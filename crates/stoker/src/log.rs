//! Where `tracing` goes: stderr, as text or as one JSON object per line.

use std::fmt;
use std::io;

use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock;

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

/// Starts logging; once per process.
pub fn start(level: Level, format: Format) {
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::from(level)).with_writer(io::stderr);
    match format {
        Format::Text => builder.with_target(false).init(),
        Format::Json => builder.event_format(JsonLine).init(),
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
